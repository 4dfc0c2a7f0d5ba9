import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.algorithms import MOPBT, RandomSearch
from mopbt.problem import problem_of
from mopbt.proposals.uniform import Stratified, Uniform
from mopbt.rng import stream
from mopbt.schedulers import full_training
from mopbt.schedulers.full_training import FullTraining
from mopbt.state import Report, State, with_jobs
from mopbt.tasks.toy import ToyTask
from mopbt.testing import SchedulerConformance

PROBLEM = problem_of(ToyTask(steps=6))  # three intervals


@dataclass(frozen=True)
class Recorder:
    """Propose at random and record the calls."""

    seen: tuple = ()

    def __call__(self, space, trials, n, rng):
        CALLS.append((trials, n))
        return [space.sample(rng) for _ in range(n)]


CALLS = []


@pytest.fixture(autouse=True)
def _forget():
    CALLS.clear()
    full_training._propose_block.cache_clear()


class TestRandomSearch(SchedulerConformance):
    def make(self):
        return RandomSearch(population=9).scheduler(self.problem)


class TestBlocks(SchedulerConformance):
    def make(self):
        return FullTraining(self.problem, Uniform(), first=5, batch=3, trainings=12)


class TestOneByOne(SchedulerConformance):
    def make(self):
        return FullTraining(self.problem, Uniform(), first=4, batch=1, trainings=9)


class TestAsynchronous(SchedulerConformance):
    def make(self):
        return FullTraining(
            self.problem, Uniform(), first=5, batch=3, trainings=12, asynchronous=True
        )


def play(scheduler, slots, score=None, jobs=1000, seed=0):
    score = score or (lambda job: stream(0, "score", job.trial, job.end).random(2))
    state = State(seed)
    states = [state]
    while not scheduler.done(state) and state.jobs < jobs:
        state = with_jobs(state, scheduler.ask(state, slots - len(state.outstanding)))
        job = next(iter(state.outstanding.values()))
        value = score(job)
        report = (
            Report(job.id, error="no")
            if value is None
            else Report(job.id, tuple(map(float, value)), checksum="0")
        )
        state = scheduler.tell(state, report)
        states.append(state)
    return states


def test_random_search_trains_the_initial_population_of_mo_pbt():
    for start in ("stratified", "iid"):
        mine = RandomSearch(population=8, start=start).scheduler(PROBLEM).ask(State(3), 99)
        theirs = MOPBT(population=8, start=start).scheduler(PROBLEM).ask(State(3), 99)
        assert mine == theirs


def test_trials_keep_their_configurations():
    last = play(RandomSearch(population=6).scheduler(PROBLEM), 4)[-1]
    first = RandomSearch(population=6).scheduler(PROBLEM).ask(State(0), 99)
    assert [t.config for t in last.trials] == [job.config for job in first]
    assert all(t.status == "finished" and list(t.results) == [2, 4, 6] for t in last.trials)


def test_a_block_is_proposed_from_all_trainings_before_it_and_only_when_they_are_over():
    scheduler = FullTraining(PROBLEM, Recorder(), first=4, batch=2, trainings=9)
    states = play(scheduler, slots=3)
    sizes = [(len(h.configs), len(h.pending), n) for h, n in CALLS]
    # Each block is proposed once, although rows waited for a slot.
    assert sizes == [(0, 0, 4), (4, 0, 2), (6, 0, 2), (8, 0, 1)]
    last = states[-1]
    for known, _ in CALLS:
        n = len(known.configs)
        assert known.configs == tuple(t.config for t in last.trials[:n])
        assert [r.objectives for r in known.results] == [
            t.results[6].objectives for t in last.trials[:n]
        ]
    for state in states:
        begun = len(state.trials)
        if begun > 4:
            over = [t.status == "finished" for t in state.trials]
            assert all(over[: 4 + (begun - 5) // 2 * 2])


def test_asynchronously_running_trials_are_pending():
    scheduler = FullTraining(PROBLEM, Recorder(), first=3, batch=2, trainings=8, asynchronous=True)
    play(scheduler, slots=3)
    assert len(CALLS) > 3
    first, *later = CALLS
    assert (len(first[0].configs), first[1]) == (0, 3)
    assert all(len(h.configs) + len(h.pending) >= 3 and n >= 1 for h, n in later)
    assert any(h.pending for h, _ in later)


def test_proposals_see_failed_trainings_as_failed():
    scheduler = FullTraining(PROBLEM, Recorder(), first=3, batch=3, trainings=6)

    def score(job):
        if (job.trial, job.end) == (1, 4):
            return None
        return (float("nan"), 0) if job.trial == 2 else (1, 2)

    last = play(scheduler, 3, score)[-1]
    known = CALLS[1][0]
    assert [r.objectives for r in known.results] == [(1.0, 2.0), None, None]
    statuses = [t.status for t in last.trials]
    assert statuses == ["finished", *["stopped"] * 2, *["finished"] * 3]
    # The metrics from before the failure still count for the front.
    assert list(last.trials[1].results) == [2, 4]


def test_the_lowest_step_comes_first_so_that_all_train_side_by_side():
    scheduler = RandomSearch(population=7).scheduler(PROBLEM)
    for state in play(scheduler, 2):
        jobs = scheduler.ask(state, 2)
        ready = [t.step for t in state.trials if t.status == "ready"]
        news = [0] * (7 - len(state.trials))
        assert [job.begin for job in jobs] == sorted(news + ready)[:2]


@given(
    workers=st.integers(1, 20),
    first=st.integers(1, 60),
    batch=st.integers(1, 30),
    more=st.integers(0, 3),
)
def test_no_worker_is_idle_for_longer_than_it_must_be(workers, first, batch, more):
    """A block takes as long as its jobs divided by the workers, or as one training."""
    scheduler = FullTraining(
        PROBLEM, Uniform(), first=first, batch=batch, trainings=first + more * batch
    )
    state, turns, half_trained = State(0), 0, 0
    while not scheduler.done(state):
        state = with_jobs(state, scheduler.ask(state, workers))
        for job in list(state.outstanding.values()):
            state = scheduler.tell(state, Report(job.id, (0.0, 1.0), checksum="0"))
        turns += 1
        half_trained = max(half_trained, sum(0 < t.step < 6 for t in state.trials))
    assert turns == sum(max(3, math.ceil(3 * n / workers)) for n in (first, *[batch] * more))
    assert half_trained <= 2 * workers, "too many models are half trained"


def test_how_many_jobs_there_are():
    assert RandomSearch(population=7).scheduler(PROBLEM).total_jobs == 21
    needs_budget = FullTraining(PROBLEM, Stratified(), first=4, batch=2)
    assert (needs_budget.total_jobs, needs_budget.needs_budget) == (None, True)
    assert not needs_budget.done(play(needs_budget, 4, jobs=60)[-1])
