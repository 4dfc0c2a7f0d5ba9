from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.algorithms import BOMOASHA, MOASHA
from mopbt.problem import problem_of
from mopbt.proposals.uniform import Uniform
from mopbt.ranking import dominates
from mopbt.rng import stream
from mopbt.schedulers.asha import Asha
from mopbt.state import Report, State, required_checkpoints, with_jobs
from mopbt.tasks.toy import ToyTask
from mopbt.testing import SchedulerConformance

PROBLEM = problem_of(ToyTask(interval=2, steps=100))  # rungs at 2, 6, 18 and 54, as in the paper


class TestStopping(SchedulerConformance):
    problem = problem_of(ToyTask(steps=20))

    def make(self):
        return MOASHA(trials=30).scheduler(self.problem)


class TestPromotion(SchedulerConformance):
    problem = problem_of(ToyTask(steps=20))

    def make(self):
        return MOASHA(trials=30, kind="promotion", within="crowded").scheduler(self.problem)


class TestWithProposals(SchedulerConformance):
    problem = problem_of(ToyTask(steps=20))

    def make(self):
        return BOMOASHA(trials=40).scheduler(self.problem)


def played(scheduler, scores, slots=4, seed=0, jobs=600):
    """Simulate a run and return each job with the state after its report."""
    state, steps = State(seed), []
    while not scheduler.done(state) and state.jobs < jobs:
        state = with_jobs(state, scheduler.ask(state, slots - len(state.outstanding)))
        if not state.outstanding:
            break
        job = next(iter(state.outstanding.values()))
        state = scheduler.tell(state, Report(job.id, tuple(map(float, scores(job))), checksum="0"))
        steps.append((job, state))
    return steps


def by_random_points(job):
    return stream(1, "score", job.trial, job.end).random(2)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from(["scattered", "crowded", "hypervolume"]))
def test_the_best_continues_and_the_worst_stops_at_every_rung(seed, within):
    """Reading an order as ranks would stop most of the best trials."""
    scheduler = MOASHA(trials=60, within=within).scheduler(PROBLEM)
    seen = {step: [] for step in scheduler.rungs}
    for job, state in played(
        scheduler, lambda job: stream(seed, "score", job.trial, job.end).random(2)
    ):
        if job.end not in seen:
            continue
        point = state.trials[job.trial].results[job.end].objectives
        others, status = seen[job.end], state.trials[job.trial].status
        dominated = sum(dominates(other, point) for other in others)
        dominating = sum(dominates(point, other) for other in others)
        if dominating == len(others):
            assert status == "ready", "a trial that dominates its rung was stopped"
        if dominated >= -(-(len(others) + 1) // 3):
            assert status == "stopped", "a trial that enough others dominate continued"
        others.append(point)


def test_totally_ordered_trials_follow_successive_halving():
    """None stops if each is the best so far; all but one do if each is the worst."""
    growing = played(
        MOASHA(trials=27).scheduler(PROBLEM), lambda job: (job.trial, job.trial), slots=1
    )
    assert all(state.trials[job.trial].status in ("ready", "finished") for job, state in growing)
    falling = played(
        MOASHA(trials=27).scheduler(PROBLEM), lambda job: (-job.trial, -job.trial), slots=1
    )
    last = falling[-1][1]
    # With one slot, each trial is over before the next begins. The n-th at a rung stays only if
    # ceil(n / 3) >= n, which holds for the first.
    assert [t.status for t in last.trials] == ["finished"] + ["stopped"] * 26


def test_about_one_of_three_survives_a_rung():
    scheduler = MOASHA(trials=270).scheduler(PROBLEM)
    _, last = played(scheduler, by_random_points, slots=9, jobs=5000)[-1]
    reached = Counter(max(t.results) for t in last.trials)
    at_least = [sum(n for step, n in reached.items() if step > rung) for rung in (0, 2, 6, 18)]
    assert at_least[0] == 270
    assert all(0.28 < after / before < 0.5 for before, after in pairwise(at_least) if before > 30)


def test_rung_decisions_are_not_revised():
    """With stopping, a stopped trial never continues."""
    stopped = set()
    for _, state in played(MOASHA(trials=60).scheduler(PROBLEM), by_random_points):
        now = {t.id for t in state.trials if t.status == "stopped"}
        assert stopped <= now
        stopped = now
    assert stopped


def test_promotion_waits_until_a_third_has_come_and_then_takes_the_best():
    scheduler = MOASHA(kind="promotion").scheduler(PROBLEM)
    steps = played(scheduler, lambda job: (job.trial % 5, job.trial % 5), slots=1, jobs=8)
    jobs = [(job.trial, job.begin, job.end) for job, _ in steps]
    # Two trials wait at the first rung. With the third there is one place, for trial 2, which then
    # trains to the next rung.
    assert jobs[:5] == [(0, 0, 2), (1, 0, 2), (2, 0, 2), (2, 2, 4), (2, 4, 6)]
    # Trial 3 is better than all others and takes the only place, floor(4 / 3) = 1.
    assert jobs[5:8] == [(3, 0, 2), (3, 2, 4), (3, 4, 6)]


def test_promotion_revises_what_stopping_does_not():
    """A waiting trial can be promoted when more results are known."""
    scheduler = MOASHA(kind="promotion", trials=9).scheduler(PROBLEM)
    steps = played(scheduler, lambda job: (10 - job.trial, 10 - job.trial), slots=1)
    begun = [job.trial for job, _ in steps if job.begin == 2]
    assert begun == [0, 1, 2]
    waited = [i for i, (job, _) in enumerate(steps) if job.trial == 1]
    assert waited[1] > waited[0] + 1


def test_promotion_serves_the_highest_rung_first():
    scheduler = MOASHA(kind="promotion").scheduler(PROBLEM)
    for _, state in played(scheduler, by_random_points, slots=1, jobs=300):
        waiting = scheduler._promotable(state)
        assert [t.step for t in waiting] == sorted((t.step for t in waiting), reverse=True)
        if waiting and not any(t.status == "ready" for t in state.trials):
            assert scheduler.ask(state, 1)[0].trial == waiting[0].id


def test_running_trials_come_before_new_ones_most_steps_first():
    scheduler = MOASHA().scheduler(PROBLEM)
    for _, state in played(scheduler, by_random_points, jobs=200):
        jobs = scheduler.ask(state, 50)
        begins = [job.begin for job in jobs]
        assert begins == sorted(begins, reverse=True)
        assert len(jobs) == 50  # there is always something to do


def test_it_needs_a_budget_without_a_number_of_trials_and_drops_checkpoints_of_stopped_trials():
    scheduler = MOASHA().scheduler(PROBLEM)
    assert scheduler.needs_budget
    assert not MOASHA(trials=3).scheduler(PROBLEM).needs_budget
    steps = played(scheduler, by_random_points, jobs=400)
    state = steps[-1][1]
    stopped = {t.checkpoint for t in state.trials if t.status in ("stopped", "finished")}
    assert len(stopped) > 50
    assert not stopped & required_checkpoints(state)


def test_a_nan_at_a_rung_stops_the_trial_and_does_not_count_there():
    scheduler = MOASHA(trials=6).scheduler(PROBLEM)
    nan = float("nan")
    steps = played(
        scheduler,
        lambda job: (nan, 1) if job.trial in (0, 1, 2) else (job.trial, job.trial),
        slots=1,
    )
    last = steps[-1][1]
    # Trials 3, 4 and 5 are each the best so far.
    assert [t.status for t in last.trials] == ["stopped"] * 3 + ["finished"] * 3


def test_infeasible_trials_stop_before_feasible_ones():
    scheduler, state = MOASHA(trials=6).scheduler(PROBLEM), State(0)
    state = with_jobs(state, scheduler.ask(state, 6))
    for job in list(state.outstanding.values()):
        violation = 0.0 if job.trial == 5 else 1.0
        state = scheduler.tell(
            state, Report(job.id, (10.0 - job.trial, 0.0), violation, checksum="0")
        )
    assert state.trials[5].status == "ready"


def test_new_trials_do_not_depend_on_the_results_of_others():
    configs = [
        [
            t.config
            for t in played(MOASHA(trials=20).scheduler(PROBLEM), scores, slots=slots)[-1][1].trials
        ]
        for scores, slots in ((by_random_points, 1), (by_random_points, 7), (lambda job: (0, 0), 3))
    ]
    assert configs[0] == configs[1] == configs[2]


class TestProposals:
    def test_they_learn_from_the_highest_rung_with_enough_results(self):
        scheduler = BOMOASHA(trials=80).scheduler(PROBLEM)
        assert scheduler.min_results == 2 * 2 + 2
        state = played(scheduler, by_random_points, slots=1)[-1][1]
        known = scheduler._known_trials(state)
        step = max(
            s
            for s in scheduler.rungs
            if sum(s in t.results for t in state.trials) >= scheduler.min_results
        )
        assert step > 2
        assert [r.objectives for r in known.results] == [
            t.results[step].objectives for t in state.trials if step in t.results
        ]

    def test_they_draw_the_same_as_mo_asha_until_they_know_enough(self):
        mine = played(BOMOASHA(trials=6).scheduler(PROBLEM), by_random_points, slots=6)[-1][1]
        theirs = played(MOASHA(trials=6).scheduler(PROBLEM), by_random_points, slots=6)[-1][1]
        assert [t.config for t in mine.trials] == [t.config for t in theirs.trials]

    def test_they_concentrate_on_good_values(self):
        space = PROBLEM.space

        def score(job):
            values = space.decode(job.config)
            return 1 - abs(values["weight"] - 0.8), 1 - abs(values["weight"] - 1.0)

        mean = {}
        for kind in (MOASHA, BOMOASHA):
            last = played(kind(trials=120).scheduler(PROBLEM), score, jobs=3000)[-1][1]
            mean[kind] = np.mean([space.decode(t.config)["weight"] for t in last.trials[60:]])
        assert mean[BOMOASHA] > mean[MOASHA] + 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 1}, "`eta` must be a whole number of at least 2, got 1"),
        ({"grace": 0}, "`grace` must be a whole number of at least 1, got 0"),
        ({"kind": "pausing"}, "`kind` must be one of 'stopping', 'promotion', got 'pausing'"),
        ({"within": "front"}, "`within` must be one of"),
        ({"trials": 0}, "`trials` must be a whole number of at least 1, got 0"),
        ({"scale": 1}, "`scale` must be one of True, False, got 1"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        MOASHA(**options)


def test_a_rung_is_ranked_with_its_own_stream_and_the_place_that_matters():
    calls = []

    def rank(objectives, violations, rng, places):
        calls.append((len(objectives), rng.random(), places))
        return np.argsort(-objectives[:, 0], kind="stable")

    scheduler = Asha(PROBLEM, rank, Uniform(), trials=4)
    state = with_jobs(State(7), scheduler.ask(State(7), 4))
    for job in range(4):
        state = scheduler.tell(state, Report(job, (float(job), 0.0), checksum="0"))
    expected = [(n, stream(7, "rank", 2, n).random(), (-(-n // 3),)) for n in range(1, 5)]
    assert calls == expected
