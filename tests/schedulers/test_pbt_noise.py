"""Decisions of population based training that account for the errors of metrics."""

from dataclasses import dataclass

import numpy as np
import pytest

from lanes import slow_except
from mopbt import MOPBT, Budget, Estimate, run
from mopbt.exploit import truncation
from mopbt.problem import problem_of
from mopbt.rng import stream
from mopbt.state import ErrorBar, Report, State, with_jobs
from mopbt.tasks.toy import ToyTask


@dataclass(frozen=True)
class NoisyToy(ToyTask):
    scale: float = 0.3

    def evaluate(self, model):
        scores = super().evaluate(model)
        rng = stream(0, "measure", model["place"].tobytes().hex())
        errors = self.scale * rng.random(2)
        noise = errors * rng.normal(size=2)
        return {
            name: Estimate(value + lucky, stderr=stderr)
            for (name, value), lucky, stderr in zip(scores.items(), noise, errors, strict=True)
        }


def exploits(measured, *, asynchronous=False, violations=None, **options):
    """Report (near, stderr) of four members and return whom the last one copies."""
    algorithm = MOPBT(population=4, fraction=0.25, asynchronous=asynchronous, **options)
    scheduler = algorithm.scheduler(problem_of(ToyTask()))
    state = State(0)
    jobs = scheduler.ask(state, 4)
    state = with_jobs(state, jobs)
    for job, (value, stderr) in zip(jobs, measured, strict=True):
        bar = ErrorBar(stderr, value - stderr, value + stderr)
        scores = {"near": value, "far": value}
        violation = 0.0 if violations is None else violations[job.trial]
        report = Report(
            job.id,
            objectives=(value, value),
            violation=violation,
            scores=scores,
            errors=dict.fromkeys(scores, bar),
        )
        state = scheduler.tell(state, report)
    donors = {job.id: job.trial for job in jobs}
    donor = donors[state.trials[3].checkpoint]
    return None if donor == 3 else donor


# The members 1 and 2 are in the middle. Member 0 is observed best, but its error is large.
LUCKY = [(0.9, 0.5), (0.8, 0.01), (0.7, 0.01), (0.1, 0.01)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_members_are_compared_at_their_bounds(asynchronous):
    assert exploits(LUCKY, asynchronous=asynchronous) == 0
    assert exploits(LUCKY, asynchronous=asynchronous, pessimistic=True) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_member_is_replaced_only_by_a_donor_that_is_clearly_better(asynchronous):
    # The difference is 0.8, and its standard error 0.5.
    options = {"asynchronous": asynchronous}
    assert exploits(LUCKY, margin=1.5, **options) == 0
    assert exploits(LUCKY, margin=1.7, **options) is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_margin_of_zero_needs_a_donor_that_dominates(asynchronous):
    assert exploits(LUCKY, margin=0, asynchronous=asynchronous) == 0
    assert exploits([(0.5, 0.1)] * 4, margin=0, asynchronous=asynchronous) is None


def test_an_infeasible_member_is_replaced_whatever_the_errors():
    measured = [(0.5, 9.0)] * 4
    assert exploits(measured, margin=3, violations=[0, 0, 0, 1]) == 0


def test_a_failed_member_is_replaced_whatever_the_margin():
    order = [0, 1, 2, 3]
    rng = np.random.default_rng(0)
    assert truncation(order, lambda i: rng, failed={3}, eligible=lambda i, donors: []) == {3: 0}
    assert truncation(order, lambda i: rng, eligible=lambda i, donors: []) == {}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "options", slow_except([{"margin": 1.0}], [{"pessimistic": True}, {"margin": 1.0}])
)
def test_a_resumed_run_makes_the_same_decisions(tmp_path, options, asynchronous):
    def start(out, **budget):
        return run(
            NoisyToy(steps=12),
            algorithm=MOPBT(population=6, asynchronous=asynchronous, **options),
            out=out,
            engine="local",
            progress=False,
            budget=Budget(**budget),
        )

    unbroken = start(tmp_path / "unbroken")
    for jobs in (9, 20):
        start(tmp_path / "resumed", jobs=jobs)
    resumed = start(tmp_path / "resumed")
    paths = [
        [(r["model"], r["start"], r["score.near"]) for r in results.records()]
        for results in (unbroken, resumed)
    ]
    assert paths[0] == paths[1]
    plain = run(
        NoisyToy(steps=12),
        algorithm=MOPBT(population=6, asynchronous=asynchronous),
        out=None,
        engine="local",
        progress=False,
    )
    assert [(r["model"], r["start"], r["score.near"]) for r in plain.records()] != paths[0]


def test_options_that_are_off_are_not_recorded(tmp_path):
    run(NoisyToy(steps=2), out=tmp_path, population=2, engine="local", progress=False)
    text = (tmp_path / "run.toml").read_text()
    assert "margin" not in text
    assert "pessimistic" not in text


@pytest.mark.parametrize("margin", [-1, "one", True, float("inf")])
def test_a_bad_margin_is_an_error(margin):
    with pytest.raises(
        ValueError, match=r"`margin` must be a number of standard errors of at least"
    ):
        MOPBT(margin=margin)
