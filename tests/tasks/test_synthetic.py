import itertools
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanes import examples
from mopbt.algorithms import MOPBT
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import train as execute
from mopbt.explore import Local
from mopbt.metrics import hypervolume
from mopbt.objectives import signed
from mopbt.problem import Hyperparameters, problem_of
from mopbt.ranking import by_objective
from mopbt.rng import derived_seed, stream
from mopbt.schedulers.pbt import Pbt
from mopbt.state import Job, Report, State, with_jobs
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.synthetic import (
    PROBLEMS,
    Annealing,
    LateBloomers,
    Learner,
    ThreeSkills,
    TradeOff,
    TwoQuadratics,
)
from mopbt.testing import TaskConformance

every_problem = pytest.mark.parametrize("kind", PROBLEMS, ids=lambda kind: kind.name)


class TestTwoQuadratics(TaskConformance):
    def make(self):
        return TwoQuadratics()


class TestAnnealing(TaskConformance):
    def make(self):
        return Annealing()


class TestThreeSkills(TaskConformance):
    def make(self):
        return ThreeSkills()


class TestLateBloomers(TaskConformance):
    def make(self):
        return LateBloomers()


class TestTradeOff(TaskConformance):
    def make(self):
        return TradeOff()


class TestLongIntervalsWithNoise(TaskConformance):
    def make(self):
        return TradeOff(interval=5, noise=0.1, nans=0.5)


def trained(task, schedule):
    """Train a learner with a schedule of hyperparameters."""
    model = task.init(0)
    for i, values in enumerate(schedule):
        model = task.train(model, values, i * task.interval, (i + 1) * task.interval, i)
    return model


def truth(task, model):
    scores = task.evaluate(model)
    return [scores[f"test/{name}"] for name in task.objectives]


def sampled(task, n, seed):
    space = problem_of(task).space
    return [space.decode(space.sample(stream(seed, "schedule", i))) for i in range(n)]


# Known fronts: nothing lies beyond them, and training reaches them.


def extreme(task, seed):
    """Return a schedule of few changes that prefers the ends of domains, where bounds break."""
    rng, intervals = stream(seed, "extreme"), task.steps // task.interval
    ends = {name: [d.decode(p) for p in d.stratified(9, rng)] for name, d in task.space.items()}
    for name, domain in task.space.items():
        lo, hi = (
            (domain.values[0], domain.values[-1])
            if hasattr(domain, "values")
            else (domain.lo, domain.hi)
        )
        ends[name] += [lo, hi, 1.0] * 4
    pieces = [
        {name: values[rng.integers(len(values))] for name, values in ends.items()}
        for _ in range(int(rng.integers(1, 5)))
    ]
    changes = sorted(int(c) for c in rng.integers(0, intervals, len(pieces) - 1))
    return [pieces[sum(i >= change for change in changes)] for i in range(intervals)]


@every_problem
@examples(40)
@given(
    seed=st.integers(0, 10**6),
    make=st.sampled_from([extreme, lambda task, seed: sampled(task, task.steps, seed)]),
)
def test_no_schedule_comes_beyond_the_front(kind, seed, make):
    task = kind()
    front, model = task.front(1500), task.init(0)
    for step, values in enumerate(make(task, seed)):
        model = task.train(model, values, step, step + 1, 0)
        score = np.array(truth(task, model))
        assert not (score > front + 1e-9).all(axis=1).any(), (step, score)


@every_problem
@examples(20)
@given(seed=st.integers(0, 10**6), split=st.integers(1, 49))
def test_a_learner_that_is_copied_at_any_step_learns_no_longer_than_others(kind, seed, split):
    task = kind()
    first, *others = sampled(task, 60, seed)
    complete = trained(task, [first] * split + others[: 50 - split])
    model = trained(task, [first] * split)
    # The receiving member is itself at step 0, as asynchronous exploiting allows.
    for values in others:
        read = Hyperparameters(values)
        model = task.train(model, read, 0, 1, 0)
        read.check_read()
    assert model == complete
    assert model.age == 50


def recipe(task, point):
    """Return the schedule that should end at a point of the front."""
    n = task.steps
    match task:
        case Annealing() | TradeOff():
            share = math.atan2(point[1], point[0]) / (math.pi / 2)
            # The share of its start that the place still has after n steps.
            memory = (1 - task.pull) ** n
            # Rounding can leave [0, 1] at the ends of the arc.
            weight = min(max((share - 0.5 * memory) / (1 - memory), 0.0), 1.0)
            rates = task.best_schedule() if isinstance(task, Annealing) else [1.0] * n
            return [{"weight": weight, "learning_rate": rate} for rate in rates]
        case ThreeSkills():
            first, second, third = (float(x) ** 2 for x in point)
            return [{"learning_rate": 1.0, "share": first, "split": second / (second + third)}] * n
        case LateBloomers():
            return [{"head": head, "weight": float(point[0])} for head in task.best_schedule()]


@pytest.mark.parametrize("kind", [Annealing, ThreeSkills, LateBloomers, TradeOff])
@pytest.mark.parametrize("steps", [50, 7])
def test_training_reaches_every_point_of_the_front(kind, steps):
    task = kind(steps=steps)
    space = problem_of(task).space
    for point in task.front(25):
        schedule = recipe(task, point)
        assert all(space.encode(values) for values in schedule)
        np.testing.assert_allclose(truth(task, trained(task, schedule)), point, atol=1e-9)


def test_constants_come_within_a_thousandth_of_the_front_between_two_quadratics():
    task = TwoQuadratics()
    n = 3001
    mixes = [
        {"h0": float((1 - x) / max(x, 1 - x)), "h1": float(x / max(x, 1 - x))}
        for x in np.linspace(0, 1, n)
    ]
    models = [task.init(0)] * n
    for step in range(50):
        models = task.train_many(models, mixes, [step] * n, [0] * n)
    reached = np.array([truth(task, model) for model in models])
    for point in task.front(200):
        assert (reached >= point - 1e-3).all(axis=1).any(), point


def test_the_front_between_two_quadratics_is_that_of_the_triangle_inequality():
    sides = np.sqrt(1.2 - TwoQuadratics().front(50))
    np.testing.assert_allclose(sides.sum(axis=1), 1, atol=1e-12)
    start = TwoQuadratics().evaluate(TwoQuadratics().init(0))
    assert start["first"] == pytest.approx(1.2 - 0.81 - 0.81)
    assert start["second"] == pytest.approx(1.2 - 0.01 - 0.81)


def test_a_step_of_the_toy_climbs_the_gradient_of_its_surrogate():
    def surrogate(x, y, h0, h1):
        return h0 * (1.2 - x**2 - y**2) + h1 * (1.2 - (x - 1) ** 2 - y**2)

    x, y, h0, h1, eps = 0.9, 0.9, 0.3, 0.8, 1e-6
    slope = [
        (surrogate(x + eps, y, h0, h1) - surrogate(x - eps, y, h0, h1)) / (2 * eps),
        (surrogate(x, y + eps, h0, h1) - surrogate(x, y - eps, h0, h1)) / (2 * eps),
    ]
    after = trained(TwoQuadratics(), [{"h0": h0, "h1": h1}]).state
    # A step is four of the PBT paper's, each with the rate 0.01.
    assert after == pytest.approx([x + 0.04 * slope[0], y + 0.04 * slope[1]], abs=1e-8)


def test_the_three_skills_front_is_the_eighth_of_a_sphere_evenly():
    front = ThreeSkills().front(4000)
    np.testing.assert_allclose((front**2).sum(axis=1), 1, atol=1e-12)
    assert (front >= 0).all()
    # The centroid of a hemisphere's surface is at half its radius.
    np.testing.assert_allclose(front.mean(axis=0), 0.5, atol=2e-3)


@every_problem
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("steps", [50, 12])
def test_the_best_hypervolume_is_that_of_a_dense_front(kind, constant, steps):
    task = kind(steps=steps)
    K, n = len(task.objectives), 2000
    volume = hypervolume(task.front(n, constant=constant), np.zeros(K))
    best = task.best_hypervolume(constant=constant)
    assert volume < best
    assert volume == pytest.approx(best, rel=0.06 if K == 3 else 2e-3)


@every_problem
def test_constants_reach_no_more_than_the_front_and_all_of_it_where_no_schedule_is_needed(kind):
    task = kind()
    share = task.best_hypervolume(constant=True) / task.best_hypervolume()
    expected = {Annealing: 0.823, LateBloomers: 0.183}.get(kind, 1.0)
    assert share == pytest.approx(expected, abs=1e-3)


@every_problem
def test_the_reference_is_below_every_point_of_the_front(kind):
    task = kind()
    corner = np.array([task.reference[name] for name in task.objectives])
    assert (task.front(100) >= corner).all()
    assert hypervolume(task.front(1000), corner) > 0.4


# A schedule beats every constant.


def errors_after(schedules):
    """Compute Annealing's errors (n,) after rates (n, T) independently."""
    error = np.full(len(schedules), 100.0)
    for rates in np.asarray(schedules).T:
        error = (1 - rates) ** 2 * error + 4 * rates**2
    return error


RATES = np.array(Annealing().space["learning_rate"].values)


@pytest.mark.parametrize(("interval", "steps"), [(1, 4), (2, 8), (3, 9), (4, 4)])
def test_annealing_knows_the_best_of_all_schedules(interval, steps):
    task = Annealing(interval=interval, steps=steps)
    every = np.array(list(itertools.product(RATES, repeat=steps // interval)))
    errors = errors_after(np.repeat(every, interval, axis=1))
    assert task.best_schedule() == every[errors.argmin()].tolist()
    assert np.linalg.norm(task.front(9)[4]) == pytest.approx(1 / (1 + errors.min()), rel=1e-12)


def test_annealing_knows_the_best_constant_and_it_is_far_from_the_best_schedule():
    task = Annealing()
    constants = errors_after(np.repeat(RATES[:, None], 50, axis=1))
    assert task.best_constant() == RATES[constants.argmin()]
    (best,) = errors_after([task.best_schedule()])
    # The optimum over real-valued rates: each step adds 1/4 to the precision.
    kalman = 1 / (1 / 100 + 50 / 4)
    assert kalman < best < 1.02 * kalman
    assert constants.min() > 2.3 * best


@pytest.mark.parametrize("kind", [Annealing, LateBloomers])
def test_no_constant_comes_beyond_what_constants_reach_and_the_best_one_reaches_it(kind):
    task = kind()
    name = "learning_rate" if kind is Annealing else "head"
    front = task.front(500, constant=True)
    finals = {}
    for value, weight in itertools.product(task.space[name].values, (0.0, 0.5, 1.0)):
        model = task.init(0)
        for step in range(task.steps):
            model = task.train(model, {name: value, "weight": weight}, step, step + 1, 0)
            assert not (np.array(truth(task, model)) > front + 1e-9).all(axis=1).any()
        finals[value, weight] = truth(task, model)
    assert max(finals, key=lambda pair: sum(finals[pair]) * (pair[1] == 0.5)) == (
        task.best_constant(),
        0.5,
    )
    ends = [finals[task.best_constant(), weight] for weight in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(
        sorted(ends), sorted(task.front(3, constant=True).tolist()), atol=1e-9
    )


# The trap.


def sums_after(schedules):
    """Compute LateBloomers' unscaled sums of both metrics (n,) after heads (n, T)."""
    foundation, total = np.ones(len(schedules)), np.zeros(len(schedules))
    for head in np.asarray(schedules).T:
        total += head * foundation**2
        foundation += 0.1 * (1 - head)
    return total


@pytest.mark.parametrize("steps", [3, 8, 12])
def test_late_bloomers_know_the_best_of_all_schedules(steps):
    task = LateBloomers(steps=steps)
    every = np.array(list(itertools.product([0.0, 0.5, 1.0], repeat=steps)))
    sums = sums_after(every)
    assert sums_after([task.best_schedule()])[0] == pytest.approx(sums.max(), rel=1e-12)
    best = trained(task, [{"head": head, "weight": 0.25} for head in every[sums.argmax()]])
    assert truth(task, best) == pytest.approx([0.25, 0.75], abs=1e-12)


def test_the_best_schedule_of_late_bloomers_is_what_dynamic_programming_finds():
    tenths = np.arange(11)
    # The value of the remaining steps, by the foundation in hundredths above 1.
    value = np.zeros(501)
    for _ in range(50):
        reach = np.minimum(np.arange(501)[:, None] + 10 - tenths, 500)
        now = tenths / 10 * (1 + np.arange(501)[:, None] / 100) ** 2
        value = (now + value[reach]).max(axis=1)
    assert sums_after([LateBloomers().best_schedule()])[0] == pytest.approx(value[0], rel=1e-12)
    assert LateBloomers().best_schedule() == [0.0] * 30 + [1.0] * 20


def test_early_leaders_are_late_losers():
    heads = np.linspace(0, 1, 11)
    early, late = (sums_after(np.repeat(heads[:, None], steps, axis=1)) for steps in (5, 50))
    assert (np.diff(early) > 0).all()
    assert LateBloomers().best_constant() == pytest.approx(heads[late.argmax()]) == 0.4
    assert late[10] < late[1]
    # The best next step always has a head of 1.
    greedy = late[10]
    assert greedy < 0.16 * sums_after([LateBloomers().best_schedule()])[0]
    best = [sums_after([LateBloomers().best_schedule()[:steps]])[0] for steps in range(1, 51)]
    constant = [sums_after([[1.0] * steps])[0] for steps in range(1, 51)]
    # The best schedule is behind until it starts to score.
    is_behind = [a < b for a, b in zip(best, constant, strict=True)]
    assert is_behind.index(False) > 30


# Selection on these problems.


def hypervolume_share(task, scheduler, seed):
    """Execute a run step by step; return its share of the best hypervolume by true metrics."""
    problem, state, models, points = problem_of(task), State(seed), {}, []
    while not scheduler.done(state):
        jobs = scheduler.ask(state, 32)
        state = with_jobs(state, jobs)
        for job in jobs:
            start = task.init(0) if job.start is None else models[job.start]
            hp = problem.space.decode(job.config)
            train_seed = derived_seed(seed, "train", job.trial, job.begin)
            models[job.id] = task.train(start, hp, job.begin, job.end, train_seed)
            scores = task.evaluate(models[job.id])
            state = scheduler.tell(
                state, Report(job.id, signed(problem.objectives, scores), checksum="0")
            )
            points.append(truth(task, models[job.id]))
    return hypervolume(points, np.zeros(len(task.objectives))) / task.best_hypervolume()


def constants_share(task, seed):
    configs = problem_of(task).space.stratified(32, stream(seed, "population"))
    points = [
        truth(task, trained(task, [problem_of(task).space.decode(c)] * task.steps)) for c in configs
    ]
    return hypervolume(points, np.zeros(len(task.objectives))) / task.best_hypervolume()


@pytest.mark.parametrize("seed", [0, 1])
def test_population_based_training_beats_all_constants_where_a_schedule_matters(seed):
    task = Annealing()
    share = hypervolume_share(task, MOPBT().scheduler(problem_of(task)), seed)
    assert task.best_hypervolume(constant=True) / task.best_hypervolume() + 0.1 < share <= 1


@pytest.mark.parametrize("seed", [0, 1])
def test_population_based_training_falls_into_the_trap_that_random_search_steps_over(seed):
    task = LateBloomers()
    assert hypervolume_share(
        task, MOPBT().scheduler(problem_of(task)), seed
    ) < 0.8 * constants_share(task, seed)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("k", [0, 1])
def test_selection_by_one_objective_loses_the_width_that_domination_keeps(k, noise):
    task = TradeOff(noise=noise)
    problem = problem_of(task)
    narrow = hypervolume_share(task, Pbt(problem, rank=by_objective(k), explore=Local()), 0)
    wide = hypervolume_share(task, MOPBT().scheduler(problem), 0)
    assert narrow < 0.65
    assert wide > 0.9


# Noise, failures and NaN.


@every_problem
def test_noise_is_in_what_is_measured_and_nowhere_else(kind):
    calm, noisy = kind(), kind(noise=0.1)
    schedule = sampled(calm, 6, 3)
    a, b = trained(calm, schedule), trained(noisy, schedule)
    assert a.state == b.state
    assert truth(calm, a) == truth(noisy, b)
    for name in calm.objectives:
        assert calm.evaluate(a)[name] == calm.evaluate(a)[f"test/{name}"]
        assert (
            noisy.evaluate(b)[name]
            == noisy.evaluate(b)[f"test/{name}"] + b.offsets[list(calm.objectives).index(name)]
        )
    assert 0 not in b.offsets


def test_noise_has_its_deviation_no_bias_and_no_correlation():
    task = ThreeSkills(noise=0.2)
    offsets = np.array([outcome(task, seed) for seed in range(4000)])
    np.testing.assert_allclose(offsets.std(axis=0), 0.2, rtol=0.05)
    np.testing.assert_allclose(offsets.mean(axis=0), 0, atol=0.012)
    np.testing.assert_allclose(np.corrcoef(offsets.T), np.eye(3), atol=0.06)


def outcome(task, seed):
    """Return the offsets of an interval, or None if it failed."""
    values = dict.fromkeys(("learning_rate", "weight", "share", "split", "head", "h0", "h1"), 0.5)
    try:
        return task.train(task.init(0), values, 0, 1, seed).offsets
    except RuntimeError:
        return None


@every_problem
def test_failures_and_nan_come_as_often_as_asked_for_and_from_the_seed_alone(kind):
    task, n = kind(failures=0.1, nans=0.2, noise=0.1), 1000
    outcomes = [outcome(task, seed) for seed in range(n)]
    assert repr(outcomes) == repr([outcome(task, seed) for seed in range(n)])
    failed = [seed for seed in range(n) if outcomes[seed] is None]
    lost = [seed for seed in range(n) if outcomes[seed] and np.isnan(outcomes[seed]).all()]
    assert len(failed) / n == pytest.approx(0.1, abs=0.03)
    assert len(lost) / (n - len(failed)) == pytest.approx(0.2, abs=0.04)
    assert len({o for o in outcomes if o and not np.isnan(o).any()}) == n - len(failed) - len(lost)
    # No option changes the draws of another.
    for seed in range(0, n, 7):
        assert (outcome(kind(failures=0.1), seed) is None) == (seed in failed)
        calmer = outcome(replace(task, failures=0.0, nans=0.0), seed)
        assert calmer == outcomes[seed] or seed in failed or seed in lost


def test_all_or_nothing_is_possible():
    for seed in range(20):
        with pytest.raises(RuntimeError, match=r"`failures` is 1.0; set it to 0"):
            TradeOff(failures=1.0).train(
                TradeOff().init(0), {"learning_rate": 1.0, "weight": 0.5}, 0, 1, seed
            )
    task = TradeOff(nans=1.0)
    scores = task.evaluate(trained(task, sampled(task, 5, 0)))
    assert math.isnan(scores["first"])
    assert math.isnan(scores["second"])
    # The measurement is lost, the learner is not.
    assert scores["test/first"] > 0


def test_a_lost_measurement_is_repeated_after_the_next_interval():
    task = TradeOff(nans=0.5)
    lost = next(seed for seed in range(99) if np.isnan(outcome(task, seed)).all())
    found = next(seed for seed in range(99) if not np.isnan(outcome(task, seed)).any())
    values = sampled(task, 1, 0)[0]
    model = task.train(task.train(task.init(0), values, 0, 1, lost), values, 1, 2, found)
    assert task.evaluate(model)["first"] == task.evaluate(model)["test/first"]


@pytest.mark.parametrize("option", ["noise", "failures", "nans"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_wrong_options_are_errors_that_say_what_is_allowed(option, value):
    with pytest.raises(
        ValueError,
        match=rf"`{option}` must be a (finite number of at least 0|probability in \[0, 1\]), got",
    ):
        TradeOff(**{option: value})
    with pytest.raises(ValueError, match="`failures` must be a probability"):
        TradeOff(failures=1.1)


# Stacks.


@every_problem
@examples(30)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 9),
    interval=st.integers(1, 4),
    ages=st.sampled_from([(0,), (5, 0), (47, 50, 3)]),
)
def test_a_stack_is_the_same_to_the_bit_as_its_members_one_by_one(kind, seed, n, interval, ages):
    task = kind(interval=interval, steps=interval * 50, noise=0.1, nans=0.2)
    values, seeds = sampled(task, n, seed), [seed + i for i in range(n)]
    models = [trained(task, [values[i]] * ages[i % len(ages)]) for i in range(n)]
    read = [Hyperparameters(own) for own in values]
    together = task.train_many(models, read, [0] * n, seeds)
    alone = [
        task.train(m, own, 0, interval, s) for m, own, s in zip(models, values, seeds, strict=True)
    ]
    assert [task.dump(m) for m in together] == [task.dump(m) for m in alone]
    assert repr(task.evaluate_many(together)) == repr([task.evaluate(m) for m in alone])
    assert all(isinstance(number, float) for m in together for number in (*m.state, *m.offsets))
    for own in read:
        own.check_read()


@every_problem
def test_in_a_stack_only_those_fail_whose_interval_fails(kind):
    task = kind(failures=0.3, noise=0.1)
    space, work = problem_of(task).space, RunContext(task, problem_of(task), 0, MemoryCheckpoints())
    stack = [(Job(i, i, space.sample(stream(i, "jobs")), None, 0, 1), "") for i in range(12)]
    together, alone = (
        execute(work, stack, ModelCache(0)),
        [execute(work, [job], ModelCache(0))[0] for job in stack],
    )
    assert 1 <= sum(bool(t.error) for t in together) <= 8
    for a, b in zip(together, alone, strict=True):
        assert (a.data, a.scores, a.error.splitlines()[-1:]) == (
            b.data,
            b.scores,
            b.error.splitlines()[-1:],
        )


@every_problem
def test_training_does_not_modify_the_learner_it_starts_from(kind):
    task = kind(noise=0.1)
    assert task.functional
    model = trained(task, sampled(task, 3, 0))
    before = task.dump(model)
    task.train(model, sampled(task, 1, 1)[0], 3, 4, 0)
    task.train_many([model, model], sampled(task, 2, 1), [3, 3], [0, 1])
    assert task.dump(model) == before


# Values.


@every_problem
def test_checkpoints_hold_every_float_and_nan(kind):
    task = kind()
    model = Learner((0.1, 1 / 3, 1e-300), 7, (math.nan, -0.0))
    assert repr(task.load(task.dump(model))) == repr(model)


@every_problem
def test_a_longer_interval_is_the_same_training_with_fewer_decisions(kind):
    short, long = kind(), kind(interval=10)
    values = sampled(short, 5, 0)
    assert (
        trained(short, [v for v in values for _ in range(10)]).state == trained(long, values).state
    )
    assert problem_of(long).steps == problem_of(short).steps == 50


def test_problems_are_frozen_values_with_unique_names():
    assert len({kind.name for kind in PROBLEMS}) == len(PROBLEMS) == 5
    for kind in PROBLEMS:
        task = kind(noise=0.1)
        assert pickle.loads(pickle.dumps(task)) == task == replace(task) != replace(task, noise=0.0)
        with pytest.raises(FrozenInstanceError):
            task.noise = 0.5
        assert kind.__doc__
        assert problem_of(task).reference == (0.0,) * len(task.objectives)
    assert TradeOff() != TwoQuadratics()
