"""Decisions of MO-PBT under noise: fresh rows, averaged lineages, cooling."""

import numpy as np
import pytest

import mopbt
from mopbt.objectives import fresh_metrics
from mopbt.problem import problem_of
from mopbt.state import ErrorBar, Measurement, Report, State, with_jobs
from mopbt.stores.journal import read_journal
from mopbt.tasks.toy import ToyTask

MEMBERS = 8
TASK = ToyTask(steps=12)
PROBLEM = problem_of(TASK)
NAMES = [objective.name for objective in PROBLEM.objectives]


def report_of(job, values, fresh=None, **options):
    """Return a report with these values, and others on fresh rows."""
    scores = dict(zip(NAMES, values, strict=True))
    if fresh is not None:
        scores |= {f"fresh/{name}": value for name, value in zip(NAMES, fresh, strict=True)}
    return Report(job, objectives=tuple(values), scores=scores, checksum="0", **options)


def test_fresh_metrics_take_the_place_of_those_on_all_rows():
    bar = ErrorBar(0.1, 0.4, 0.6)
    fresh_bar = ErrorBar(0.2, 0.5, 0.9)
    scores = {"a": 0.5, "b": 1.0, "fresh/a": 0.7}
    found, errors = fresh_metrics(scores, {"a": bar, "b": bar, "fresh/a": fresh_bar})
    assert found["a"] == 0.7
    assert found["b"] == 1.0
    assert errors == {"a": fresh_bar, "b": bar}
    # An error on all rows says nothing about fewer rows.
    assert fresh_metrics(scores, {"a": bar})[1] == {}
    assert fresh_metrics({"a": 0.5}, {"a": bar}) == ({"a": 0.5}, {"a": bar})


def first_generation(algorithm, values, fresh):
    """Return the trials after a generation whose reports have these values."""
    scheduler = algorithm.scheduler(PROBLEM)
    state = State(0)
    jobs = scheduler.ask(state, MEMBERS)
    state = with_jobs(state, jobs)
    for job, own, own_fresh in zip(jobs, values, fresh, strict=True):
        state = scheduler.tell(state, report_of(job.id, own, own_fresh))
    return state.trials


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decisions_follow_the_fresh_rows_and_the_front_does_not(asynchronous):
    by_all = [(float(i), float(i)) for i in range(MEMBERS)]
    by_fresh = by_all[::-1]
    options = {"population": MEMBERS, "asynchronous": asynchronous}
    plain = first_generation(mopbt.MOPBT(**options), by_all, by_fresh)
    fresh = first_generation(mopbt.MOPBT(**options, fresh_rows=0.5), by_all, by_fresh)
    last = MEMBERS - 1
    if not asynchronous:
        assert plain[0].checkpoint != 0
        assert plain[last].checkpoint == last
        assert fresh[0].checkpoint == 0
    assert fresh[last].checkpoint != last
    # Without fresh rows, the option changes nothing.
    without = first_generation(mopbt.MOPBT(**options, fresh_rows=0.5), by_all, [None] * MEMBERS)
    assert [t.checkpoint for t in without] == [t.checkpoint for t in plain]


def test_a_lineage_is_averaged_across_an_exploit():
    scheduler = mopbt.MOPBT(population=2, fraction=0.5, lineage=3).scheduler(PROBLEM)
    state = State(0)
    measured = [[(1.0, 1.0), (0.0, 0.0)], [(4.0, 1.0), (2.0, 2.0)], [(7.0, 7.0), (5.0, 5.0)]]
    for generation in measured:
        jobs = scheduler.ask(state, 2)
        state = with_jobs(state, jobs)
        for job in jobs:
            state = scheduler.tell(state, report_of(job.id, generation[job.trial]))
    first, second = state.trials
    # The second member copied the first one after the first generation.
    assert second.results[2 * TASK.interval].objectives == pytest.approx((1.5, 1.5))
    assert first.results[2 * TASK.interval].objectives == pytest.approx((2.5, 1.0))
    assert first.results[3 * TASK.interval].objectives == pytest.approx((4.0, 3.0))
    # In the second generation neither dominates; whichever copied the other took its past along.
    copied = second.results[3 * TASK.interval].recent
    assert len(copied) == 3
    assert copied[-1] == Measurement((5.0, 5.0), (0.0, 0.0))


def test_only_the_newest_measurements_of_a_lineage_count():
    scheduler = mopbt.MOPBT(population=2, lineage=2).scheduler(PROBLEM)
    bars = {name: ErrorBar(0.3, 0.0, 0.0) for name in NAMES}
    past = (Measurement((0.0, 0.0), (0.4, 0.4)), Measurement((2.0, 4.0), (0.4, 0.4)))
    result = scheduler.result_of(report_of(5, (4.0, 8.0), errors=bars), past)
    assert result.objectives == pytest.approx((3.0, 6.0))
    assert result.stderrs == pytest.approx((0.25, 0.25))
    assert len(result.recent) == 2


def exploits(path):
    """Return the steps at which members start from the checkpoint of another one."""
    exchanges, _ = read_journal(path / "journal.jsonl")
    jobs = {job.id: job for exchange in exchanges for job in exchange.jobs}
    return [
        job.begin
        for job in jobs.values()
        if job.start is not None and jobs[job.start].trial != job.trial
    ]


@pytest.mark.slow
def test_cooling_replaces_fewer_members_toward_the_end(tmp_path):
    task = ToyTask(steps=40)
    options = {"population": 16, "fraction": 0.5}
    for name, cooling in (("constant", False), ("cooling", True)):
        mopbt.run(
            task,
            out=tmp_path / name,
            algorithm=mopbt.MOPBT(**options, cooling=cooling),
            engine="local",
            progress=False,
        )
    constant, cooled = (np.array(exploits(tmp_path / n)) for n in ("constant", "cooling"))
    assert (constant < 20).sum() == (constant > 20).sum()
    assert (cooled < 20).sum() > 2 * (cooled > 20).sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 8}, "`folds` needs a `margin`, such as 1, got folds=8"),
        ({"folds": 1, "margin": 1}, "`folds` must be a whole number of at least 2, got 1"),
        ({"lineage": 0}, "`lineage` must be a whole number of at least 1, got 0"),
        ({"fresh_rows": True}, "`fresh_rows` must be between 0 and 1, or None, got True"),
        ({"cooling": "yes"}, "`cooling` must be one of True, False, got 'yes'"),
        ({"sparse_donors": 1}, "`sparse_donors` must be one of True, False, got 1"),
    ],
)
def test_wrong_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        mopbt.MOPBT(**options)


def test_groups_decide_at_their_own_frequencies(tmp_path):
    task = ToyTask(steps=20)
    frequencies = (1, 2, 5)
    mopbt.run(
        task,
        out=tmp_path,
        algorithm=mopbt.MOPBT(population=24, fraction=0.5, frequencies=frequencies),
        engine="local",
        progress=False,
    )
    exchanges, _ = read_journal(tmp_path / "journal.jsonl")
    jobs = {job.id: job for exchange in exchanges for job in exchange.jobs}
    seen = {group: set() for group in range(3)}
    crossed = 0
    for job in jobs.values():
        if job.start is not None and jobs[job.start].trial != job.trial:
            group = job.trial % 3
            generation = job.begin // task.interval
            seen[group].add(generation)
            assert generation % frequencies[group] == 0
            crossed += jobs[job.start].trial % 3 != group
    generations = task.steps // task.interval
    assert seen[0] == set(range(1, generations))
    assert seen[2] == set(range(5, generations, 5))
    assert crossed > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequencies": ()}, "whole numbers of at least 1"),
        ({"frequencies": (1, 0)}, "got \\(1, 0\\)"),
        ({"frequencies": (1, 5), "asynchronous": True}, "asynchronous=True"),
        ({"frequencies": (1, 2, 5), "population": 4}, "a population of 4"),
    ],
)
def test_wrong_frequencies_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        mopbt.MOPBT(**options)
