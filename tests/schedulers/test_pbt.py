import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mopbt.algorithms import MOPBT
from mopbt.explore import Local, interpolate
from mopbt.problem import problem_of
from mopbt.ranking import by_domination, by_objective
from mopbt.rng import stream
from mopbt.schedulers.pbt import Pbt, initial_configs
from mopbt.state import Job, Report, State, Trial, required_checkpoints, with_jobs
from mopbt.tasks.toy import ToyTask
from mopbt.testing import SchedulerConformance

PROBLEM = problem_of(ToyTask(steps=6))


class TestSynchronous(SchedulerConformance):
    def make(self):
        return MOPBT(population=8).scheduler(self.problem)


class TestAsynchronous(SchedulerConformance):
    def make(self):
        return MOPBT(population=8, asynchronous=True).scheduler(self.problem)


class TestInheritedSteps(SchedulerConformance):
    def make(self):
        return MOPBT(
            population=7, asynchronous=True, inherit_step=True, fraction=0.5, within="crowded"
        ).scheduler(self.problem)


class TestInterpolated(SchedulerConformance):
    def make(self):
        problem = replace(self.problem, blendable=True)
        return MOPBT(population=8, interpolate=True, candidates=5).scheduler(problem)


class TestInterpolatedAsynchronously(SchedulerConformance):
    def make(self):
        problem = replace(self.problem, blendable=True)
        options = {"interpolate": True, "candidates": 5, "asynchronous": True}
        return MOPBT(population=8, **options).scheduler(problem)


class TestOtherParts(SchedulerConformance):
    def make(self):
        options = {"within": "hypervolume", "explore": "random", "start": "iid", "fraction": 0.1}
        return MOPBT(population=5, **options).scheduler(self.problem)


class TestBySingleObjective(SchedulerConformance):
    def make(self):
        return Pbt(self.problem, by_objective(1), Local(), population=4)


def generation(scheduler, state, scores):
    """Train one generation with the given scores of each trial."""
    jobs = scheduler.ask(state, 100)
    state = with_jobs(state, jobs)
    for job in jobs:
        state = scheduler.tell(state, answer(job, scores[job.trial]))
    return jobs, state


def answer(job, score):
    if score is None:
        return Report(job.id, error="boom")
    return Report(job.id, tuple(map(float, score)), checksum="0")


def test_a_generation_worked_by_hand():
    # The first front is {2, 5}. Of the rest, 0 dominates 1, 3 and 4, and 7 and 6 are the worst. A
    # quarter of 8 members is replaced.
    scores = [(5, 5), (4, 4), (9, 6), (3.5, 3.5), (3, 3), (6, 9), (1, 1), (2, 2)]
    scheduler = MOPBT(population=8).scheduler(PROBLEM)
    first, state = generation(scheduler, State(0), scores)
    second = {job.trial: job for job in scheduler.ask(state, 100)}
    assert all(job.start is None for job in first)
    for trial in range(6):
        assert second[trial].start == trial
        assert second[trial].config == first[trial].config
    for loser in (6, 7):
        donor = second[loser].start
        assert donor in (2, 5)  # in the first generation a job has its trial's number
        assert second[loser].begin == 2
        # Explored from the donor's configuration: at most three positions away, or resampled.
        assert second[loser].config != first[loser].config
        assert PROBLEM.space.contains(second[loser].config)


def test_an_exploit_copies_the_donors_hyperparameters():
    """Explore perturbs the donor's configuration, not the loser's (Algorithm 2)."""
    scores = [(5, 5), (4, 4), (9, 6), (3.5, 3.5), (3, 3), (6, 9), (1, 1), (2, 2)]
    scheduler = Pbt(PROBLEM, by_domination(), lambda space, config, rng: config, population=8)
    first, state = generation(scheduler, State(0), scores)
    second = {job.trial: job for job in scheduler.ask(state, 100)}
    for loser in (6, 7):
        assert second[loser].config == first[second[loser].start].config


def test_donors_are_drawn_from_the_entire_top_and_differ_between_seeds():
    scores = [(i, i) for i in range(8)]
    donors = Counter()
    for seed in range(60):
        scheduler = MOPBT(population=8).scheduler(PROBLEM)
        _, state = generation(scheduler, State(seed), scores)
        donors.update(job.start for job in scheduler.ask(state, 100) if job.start != job.trial)
    assert set(donors) == {6, 7}
    assert 30 < donors[6] < 90


def test_population_larger_than_the_workers_is_served_lowest_step_first():
    scheduler = MOPBT(population=7, asynchronous=True).scheduler(PROBLEM)
    state, spread = State(3), 0
    rng = np.random.default_rng(0)
    while not scheduler.done(state):
        jobs = scheduler.ask(state, 2 - len(state.outstanding))
        state = with_jobs(state, jobs)
        job = state.outstanding[int(rng.choice(list(state.outstanding)))]
        state = scheduler.tell(state, answer(job, rng.random(2)))
        steps = [t.step for t in state.trials if t.status != "running"]
        if len(state.trials) == 7 and steps:
            spread = max(spread, max(steps) - min(steps))
    assert spread <= 2 * PROBLEM.interval
    assert all(t.status == "finished" and t.step == 6 for t in state.trials)


def test_nan_and_failed_members_are_replaced_and_never_donate():
    nan, inf = math.nan, math.inf
    scores = [(1, 1), None, (nan, 9), (2, 2), (inf, 0), (3, 3), (4, 4), (-inf, 5)]
    scheduler = MOPBT(population=8).scheduler(PROBLEM)
    _, state = generation(scheduler, State(0), scores)
    jobs = {job.trial: job for job in scheduler.ask(state, 100)}
    for trial in (1, 2, 4, 7):  # four of eight, though a quarter is two
        assert jobs[trial].start in (5, 6)
        assert jobs[trial].start in required_checkpoints(state)
    for trial in (0, 3, 5, 6):
        assert jobs[trial].start == trial


def test_nan_does_not_change_which_others_are_replaced():
    finite = [(5, 1), (4, 2), (3, 3), (2, 2), (1, 1), (0, 0)]
    scheduler = MOPBT(population=8).scheduler(PROBLEM)
    _, state = generation(scheduler, State(0), [*finite, (math.nan, 7), (7, math.nan)])
    replaced = {job.trial for job in scheduler.ask(state, 100) if job.start != job.trial}
    assert replaced == {6, 7}


def test_when_all_members_fail_each_retries_with_another_configuration():
    scheduler = MOPBT(population=4).scheduler(PROBLEM)
    _, state = generation(scheduler, State(0), [(1, 1), (2, 2), (3, 3), (4, 4)])
    second, state = generation(scheduler, state, [None] * 4)
    third = scheduler.ask(state, 100)
    assert [job.start for job in third] == [job.start for job in second]
    assert any(a.config != b.config for a, b in zip(second, third, strict=True))
    assert all(job.begin == 4 for job in third)


def test_a_flat_metric_ends_like_any_other():
    scheduler = MOPBT(population=6).scheduler(PROBLEM)
    state, jobs = State(0), 0
    while not scheduler.done(state):
        trained, state = generation(scheduler, state, [(1, 1)] * 6)
        jobs += len(trained)
    assert jobs == 6 * 3 == scheduler.total_jobs


def test_after_an_exploit_the_old_result_ranks_until_the_next_report():
    # Trial 0 has copied trial 1. While it trains, its old, bad result still counts when others are
    # ranked.
    scheduler = MOPBT(population=4, asynchronous=True).scheduler(PROBLEM)
    jobs = scheduler.ask(State(0), 100)
    state = with_jobs(State(0), jobs)
    for trial, score in ((1, (3, 3)), (2, (2, 2)), (3, (1, 1)), (0, (0, 0))):
        state = scheduler.tell(state, answer(jobs[trial], score))
    assert state.trials[0].checkpoint == 1
    assert state.trials[0].latest.objectives == (0.0, 0.0)
    assert state.trials[0].is_finite
    again = {job.trial: job for job in scheduler.ask(state, 100)}
    state = with_jobs(state, tuple(again.values()))
    state = scheduler.tell(state, answer(again[3], (0.5, 0.5)))
    assert state.trials[3].checkpoint == again[3].id, (
        "trial 3 was replaced although the old result of trial 0 is worse"
    )


def test_asynchronous_members_decide_when_they_report():
    scheduler = MOPBT(population=4, asynchronous=True).scheduler(PROBLEM)
    state = State(0)
    jobs = scheduler.ask(state, 100)
    state = with_jobs(state, jobs)
    for trial, score in ((1, (3, 3)), (2, (2, 2)), (3, (1, 1))):
        state = scheduler.tell(state, answer(jobs[trial], score))
    state = scheduler.tell(state, answer(jobs[0], (0, 0)))  # the last and worst
    follower = state.trials[0]
    assert follower.status == "ready"
    assert follower.checkpoint == 1
    assert follower.step == 2
    # Each was ranked among those that had reported: 2 was the worse of two, 3 the worst of three.
    assert [t.checkpoint for t in state.trials[1:]] == [1, 1, 1]


@pytest.mark.parametrize(("inherit", "begin"), [(False, 2), (True, 4)])
def test_an_exploiting_member_keeps_its_step_or_takes_the_donors(inherit, begin):
    scheduler = replace(
        MOPBT(population=2, asynchronous=True, inherit_step=inherit, fraction=0.5).scheduler(
            PROBLEM
        )
    )
    state = State(0)
    a, b = scheduler.ask(state, 2)
    state = scheduler.tell(with_jobs(state, (a, b)), answer(a, (9, 9)))
    (c,) = scheduler.ask(state, 1)
    assert (c.trial, c.begin) == (0, 2)
    state = scheduler.tell(with_jobs(state, (c,)), answer(c, (9, 9)))
    state = scheduler.tell(state, answer(b, (1, 1)))
    follower = state.trials[1]
    assert (follower.checkpoint, follower.step) == (c.id, begin)


def test_inherited_steps_never_go_back_so_that_every_run_ends():
    # With one worker, the reporting member is ahead of all others, so every donor is behind it.
    # Falling back to the donor's step would repeat forever.
    scheduler = MOPBT(population=6, asynchronous=True, inherit_step=True, fraction=0.5).scheduler(
        PROBLEM
    )
    rng, state = np.random.default_rng(1), State(0)
    while not scheduler.done(state):
        (job,) = scheduler.ask(state, 1)
        state = scheduler.tell(with_jobs(state, (job,)), answer(job, rng.random(2)))
        assert state.jobs <= 6 * 3


def test_infeasible_members_are_replaced_by_feasible_ones():
    scheduler = MOPBT(population=4).scheduler(PROBLEM)
    state = State(0)
    jobs = scheduler.ask(state, 4)
    state = with_jobs(state, jobs)
    for job, score, violation in zip(jobs, [9, 1, 2, 3], [0.5, 0, 0, 0], strict=True):
        state = scheduler.tell(state, Report(job.id, (score, score), violation, checksum="0"))
    after = {job.trial: job for job in scheduler.ask(state, 4)}
    assert after[0].start == 3
    assert [after[i].start for i in (1, 2, 3)] == [1, 2, 3]


def test_initial_configurations_do_not_depend_on_how_many_are_handed_out_at_a_time():
    scheduler = MOPBT(population=5).scheduler(PROBLEM)
    together = [job.config for job in scheduler.ask(State(4), 5)]
    state, single = State(4), []
    while len(single) < 5:
        (job,) = scheduler.ask(state, 1)
        single.append(job.config)
        state = with_jobs(state, (job,))
    assert single == together
    assert tuple(together) == initial_configs(PROBLEM, 5, 4, "stratified")


def test_no_slots_no_jobs():
    scheduler = MOPBT(population=5).scheduler(PROBLEM)
    assert scheduler.ask(State(0), 0) == ()
    assert scheduler.ask(State(0), -3) == ()


def test_rank_is_an_order_and_not_a_rank():
    # Trials 0, 1, 2 are second, third and first, a 3-cycle. Reading the order as ranks would
    # replace the best.
    scheduler = Pbt(PROBLEM, by_domination(), Local(), population=3, fraction=0.34)
    _, state = generation(scheduler, State(0), [(2, 2), (1, 1), (3, 3)])
    jobs = {job.trial: job.start for job in scheduler.ask(state, 3)}
    assert jobs == {0: 0, 1: 2, 2: 2}


def test_a_donor_that_finishes_first_is_kept_until_it_is_used():
    scheduler = MOPBT(population=2, asynchronous=True, fraction=0.5).scheduler(PROBLEM)
    state = State(0, (Trial(0, (1, 1)), Trial(1, (2, 2))))
    jobs = scheduler.ask(state, 2)
    state = scheduler.tell(
        scheduler.tell(with_jobs(state, jobs), answer(jobs[0], (5, 5))), answer(jobs[1], (1, 1))
    )
    taken = state.trials[1].checkpoint
    assert taken == 0
    while (job := next((j for j in scheduler.ask(state, 2) if j.trial == 0), None)) is not None:
        job = Job(state.jobs, 0, job.config, job.start, job.begin, job.end)
        state = scheduler.tell(with_jobs(state, (job,)), answer(job, (5, 5)))
        assert taken in required_checkpoints(state)
    assert state.trials[0].status == "finished"


@pytest.mark.parametrize(
    ("cooling", "cuts"), [(False, [(4, 12), (4, 12)]), (True, [(4, 13), (4, 15)])]
)
def test_a_generation_is_ranked_with_its_own_stream_and_the_places_that_matter(cooling, cuts):
    calls = []

    def rank(objectives, violations, rng, places):
        calls.append((rng.random(), places))
        return np.argsort(-objectives[:, 0], kind="stable")

    scheduler = Pbt(PROBLEM, rank, Local(), population=16, cooling=cooling)
    state = State(7)
    for _ in range(2):
        _, state = generation(scheduler, state, [(i, i) for i in range(16)])
    assert [number for number, _ in calls] == [stream(7, "rank", s).random() for s in (2, 4)]
    assert [places for _, places in calls] == cuts


def test_relatives_are_interpolated_by_hand():
    problem = replace(PROBLEM, blendable=True)
    options = {"population": 4, "fraction": 0.5, "interpolate": True, "candidates": 5}
    scheduler = Pbt(problem, by_objective(0), Local(), **options)
    # With this seed, 2 and 3 both copy 0, so that they descend from the same fresh weights.
    seed = next(seed for seed in range(20) if donors_of_losers(scheduler, seed) == {0})
    state = State(seed)
    _, state = generation(scheduler, state, [(9, 0), (8, 0), (1, 0), (0, 0)])
    second, state = generation(scheduler, state, [(2, 0), (1, 0), (9, 0), (8, 0)])
    configs = {job.trial: job.config for job in second}
    before = state
    third, state = generation(scheduler, state, [(0, 3), (0, 4), (9, 1), (8, 2)])
    for job in third[:2]:
        weight = float(stream(seed, "interpolate", job.trial, 4).random())
        donor, relative = (2, 3) if job.start == 6 else (3, 2)
        assert (job.start, job.blend) == (4 + donor, ((4 + relative, weight),))
        assert before.trials[job.trial].origin == 0
        middle = interpolate(problem.space, configs[donor], configs[relative], weight)
        rng = stream(seed, "explore", job.trial, 4)
        assert job.config == Local()(problem.space, middle, rng)
    # All four last models are on the front and share their origin, so neighbors are blended.
    candidates = scheduler.ask(state, 100)
    assert [(job.trial, job.begin, job.end) for job in candidates] == [(4, 6, 6), (5, 6, 6)]
    assert {(job.start, job.blend) for job in candidates} <= {
        (first, ((other, 0.5),)) for first in range(8, 12) for other in range(8, 12)
    }


def donors_of_losers(scheduler, seed):
    _, state = generation(scheduler, State(seed), [(9, 0), (8, 0), (1, 0), (0, 0)])
    return {state.trials[loser].checkpoint for loser in (2, 3)}
