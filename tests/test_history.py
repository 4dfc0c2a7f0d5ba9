"""A history agrees with the plain fold of its journal, at every line."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mopbt
from lanes import slow_except
from mopbt.algorithms import algorithm_of
from mopbt.archive import entry_of, front_of
from mopbt.columns import LARGEST_GAP, JobColumns, MappingColumn, ReportColumns
from mopbt.errors import CorruptJournal, IncompatibleRun
from mopbt.history import LOST_REPORT, History, read_history
from mopbt.metrics import hypervolume
from mopbt.problem import make_problem, problem_of
from mopbt.state import ErrorBar, Job, Report, State, updated, with_jobs
from mopbt.stores.base import Exchange
from mopbt.stores.journal import read_journal, read_lines
from mopbt.tasks.toy import FailingToy, ToyTask
from toys import NanToy

CASES = {
    "synchronous": (ToyTask(steps=12), {"name": "mo-pbt", "population": 6}),
    "with NaN": (NanToy(steps=12), {"name": "mo-pbt", "population": 6}),
    "with failures": (FailingToy(steps=12), {"name": "mo-pbt", "population": 9, "fraction": 0.5}),
    "asynchronous": (NanToy(steps=12), {"name": "mo-pbt", "population": 8, "asynchronous": True}),
    "inherited steps": (
        FailingToy(steps=12),
        {"name": "mo-pbt", "population": 9, "asynchronous": True, "inherit_step": True},
    ),
    "interpolated": (
        NanToy(steps=12),
        {"name": "mo-pbt", "population": 8, "interpolate": True, "candidates": 5},
    ),
    "interpolated, asynchronous": (
        NanToy(steps=12),
        {
            "name": "mo-pbt",
            "population": 8,
            "interpolate": True,
            "candidates": 5,
            "asynchronous": True,
        },
    ),
    "averaged lineages": (NanToy(steps=12), {"name": "mo-pbt", "population": 8, "lineage": 3}),
    "averaged lineages, asynchronous": (
        FailingToy(steps=12),
        {"name": "mo-pbt", "population": 8, "lineage": 3, "asynchronous": True},
    ),
    "cooling, sparse donors": (
        NanToy(steps=12),
        {"name": "mo-pbt", "population": 8, "cooling": True, "sparse_donors": True},
    ),
    "frequencies": (
        NanToy(steps=12),
        {"name": "mo-pbt", "population": 8, "fraction": 0.5, "frequencies": [1, 2]},
    ),
    "random search": (NanToy(steps=8), {"name": "random-search", "population": 8}),
    "stopping ASHA": (NanToy(steps=12), {"name": "mo-asha"}),
    "promoting ASHA": (NanToy(steps=12), {"name": "mo-asha", "kind": "promotion"}),
    "NSGA-II": (NanToy(steps=6), {"name": "nsga2", "population": 6}),
}


@pytest.mark.parametrize("workers", slow_except([4], [1, 4]))
@pytest.mark.parametrize("name", CASES)
def test_the_state_is_that_of_the_plain_fold_after_every_line(name, workers, tmp_path):
    task, options = CASES[name]
    algorithm = algorithm_of(options)
    engine = mopbt.LocalEngine() if workers == 1 else mopbt.SimulatedEngine(workers)
    budget = mopbt.Budget(jobs=64)
    mopbt.run(task, out=tmp_path, algorithm=algorithm, engine=engine, budget=budget, progress=False)
    exchanges, _ = read_journal(tmp_path / "journal.jsonl")
    scheduler = algorithm.scheduler(problem_of(task))
    state, history = State(0), History(problem_of(task))
    for exchange in exchanges:
        history.append(exchange)
        if exchange.jobs:
            state = with_jobs(state, exchange.jobs)
        for report in exchange.reports:
            state = scheduler.tell(state, report)
        # The texts, because NaN is not equal to itself.
        assert repr(history.state(scheduler, 0)) == repr(state)


@pytest.mark.parametrize("seed", slow_except([0], range(5)))
@pytest.mark.parametrize("name", ["synchronous", "asynchronous", "stopping ASHA"])
def test_the_state_follows_trials_that_leave(name, seed):
    """Ray Tune may end a trial by itself: its job fails, and it is never trained again."""
    task, options = CASES[name]
    problem, rng = problem_of(task), np.random.default_rng(seed)
    scheduler = algorithm_of(options).scheduler(problem)
    state, history = State(0), History(problem)
    departed = set()
    for _ in range(60):
        jobs = [job for job in scheduler.ask(state, 3) if job.trial not in departed]
        if jobs:
            history.append(Exchange(jobs=tuple(jobs)))
            state = with_jobs(state, jobs)
        if not state.outstanding:
            break
        job = state.outstanding[int(rng.choice(list(state.outstanding)))]
        leaves = rng.random() < 0.1 and job.trial not in departed
        objectives = None if leaves else tuple(rng.random(2).tolist())
        report = Report(job.id, objectives, error="the trial was ended" if leaves else "")
        history.append(Exchange(reports=(report,)))
        state = scheduler.tell(state, report)
        if leaves:
            departed.add(job.trial)
            history.append(Exchange(left=(job.trial,)))
            state = updated(state, [replace(state.trials[job.trial], status="finished")])
        assert repr(history.state(scheduler, 0)) == repr(state)
    assert departed == {trial for _, trial in history.departures}


def test_a_trial_that_was_never_started_cannot_leave():
    history = History(problem_of(ToyTask()))
    with pytest.raises(CorruptJournal, match="the departure of trial 0"):
        history.append(Exchange(left=(0,)))


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """Return the problem and the exchanges of a run with NaN and failures."""
    path = tmp_path_factory.mktemp("run")
    task = NanToy(steps=12)
    mopbt.run(task, out=path, population=8, engine="local", progress=False)
    return problem_of(task), read_journal(path / "journal.jsonl")[0], path / "journal.jsonl"


def test_jobs_and_reports_come_back_as_they_were(journal):
    problem, exchanges, file = journal
    history = read_history(problem, read_lines(file), file)
    for exchange in exchanges:
        assert [history.job(job.id) for job in exchange.jobs] == list(exchange.jobs)
        for report in exchange.reports:
            assert repr(history.report(report.job)) == repr(report)
    with pytest.raises(KeyError):
        history.job(len(history.jobs))
    with pytest.raises(KeyError):
        history.report(len(history.jobs))


def test_front_and_hypervolume_are_those_of_all_reports_at_every_line(journal):
    problem, exchanges, _ = journal
    step_by_step, entries = History(problem), []
    for number, exchange in enumerate(exchanges, 1):
        step_by_step.append(exchange)
        entries += [entry for report in exchange.reports if (entry := entry_of(report))]
        at_once = History(problem)
        at_once.extend(e.to_json() for e in exchanges[:number])
        expected = {entry.job for entry in front_of(entries)}
        assert {e.job for e in step_by_step.front} == {e.job for e in at_once.front} == expected
        reference = np.array([-1.0, -1.0])
        points = np.array([e.objectives for e in front_of(entries)]).reshape(-1, 2)
        assert at_once.hypervolume(reference) == pytest.approx(hypervolume(points, reference))


def test_the_curve_is_the_hypervolume_at_each_of_its_times(journal):
    problem, exchanges, _ = journal
    history = History(problem)
    for exchange in exchanges:
        history.append(exchange)
        history.curve()  # so that milestones are found in pieces
    reports = [report for exchange in exchanges for report in exchange.reports]
    reference = history.reference()
    for seconds, volume in history.curve():
        so_far = [r.objectives for r in reports if r.seconds <= seconds and entry_of(r)]
        assert volume == pytest.approx(hypervolume(np.array(so_far), reference))
    assert history.curve()[-1][1] == pytest.approx(history.hypervolume())
    at_once = History(problem)
    at_once.extend(exchange.to_json() for exchange in exchanges)
    assert at_once.curve() == history.curve()


def test_a_history_without_lines_has_the_first_state():
    problem = problem_of(ToyTask(steps=4))
    scheduler = algorithm_of({"name": "mo-pbt", "population": 4}).scheduler(problem)
    assert History(problem).state(scheduler, 7) == State(7)


def test_many_reports_at_once_enter_the_front_once():
    problem = problem_of(ToyTask(steps=4))
    history = History(problem)
    rng = np.random.default_rng(0)
    reports = []
    for begin in (0, 100, 200):
        ids = range(begin, begin + 100)
        history.append(Exchange(jobs=tuple(Job(id, id, (1, 3), None, 0, 2) for id in ids)))
        reports += [Report(id, tuple(rng.random(2)), checksum="c") for id in ids]
        history.append(Exchange(reports=tuple(reports[begin:])))
        entries = [entry_of(report) for report in reports]
        assert sorted(e.job for e in history.front) == sorted(e.job for e in front_of(entries))


def test_the_hypervolume_grows_where_no_first_result_was():
    """The shown hypervolume froze once a front grew below the worst first result."""
    objectives = {"a": "max", "b": "max"}
    space = {"x": mopbt.Float(0, 1)}
    problem = make_problem(
        name="x", space=space, objectives=objectives, constraints=(), interval=1, steps=9
    )
    history = History(problem)
    seen = []
    for i, (a, b) in enumerate([(1.0, 1.0), (2.0, 0.9), (10.0, 0.5), (100.0, 0.1), (1000.0, 0.0)]):
        start = None if i == 0 else i - 1
        history.append(Exchange(jobs=(Job(i, 0, (0.5,), start, i, i + 1),)))
        report = Report(i, (a, b), scores={"a": a, "b": b}, checksum="0", seconds=float(i))
        history.append(Exchange(reports=(report,)))
        seen.append(history.hypervolume())
        curve = [volume for _, volume in history.curve()]
        assert curve == sorted(curve)
        assert curve[-1] == pytest.approx(seen[-1])
    assert seen == sorted(set(seen))


def test_lines_that_do_not_follow_are_refused():
    problem = problem_of(ToyTask())
    job = Job(0, 0, (0, 0), None, 0, 2)
    for jobs in (
        [job, job],
        [Job(0, 0, (0, 0), 0, 0, 2)],
        [job, Job(1, 0, (0, 0), 7, 2, 4)],
        [Job(0, 1, (0, 0), None, 0, 2)],
        [job, Job(1, 1, (0, 0), None, 0, 2, ((9, 0.5),))],
    ):
        lines = [Exchange(jobs=(each,)).to_json() for each in jobs]
        number = rf"line {len(jobs)} of j\.jsonl \(job {jobs[-1].id}\) does not follow"
        with pytest.raises(CorruptJournal, match=number):
            read_history(problem, lines, "j.jsonl")
    twice = [Exchange(reports=(Report(0, error="x"),)).to_json()] * 2
    with pytest.raises(CorruptJournal, match="the report of job 0"):
        read_history(problem, [Exchange(jobs=(job,)).to_json(), *twice], "j.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        {"jobs": [[0, 0, [0], None, 0, 2]]},
        {"jobs": [[0, "zero", [0, 0], None, 0, 2]]},
        {"jobs": [[LARGEST_GAP + 2, 0, [0, 0], None, 0, 2]]},
        {"jobs": [[0, 0]]},
        {"jobs": 7},
        {"jobs": [[0, 0, [0, math.nan], None, 0, 2]]},
        {"jobs": [[0, 0, [math.inf, 0], None, 0, 2]]},
        {"jobs": [[0, 0, [0, 0], None, 0, 10**9]]},
        {"jobs": [[0, 0, [0, 0], None, 4, 2]]},
        {"jobs": [[0, 0, [0, 0], None, -2, 0]]},
    ],
)
def test_an_intact_line_of_another_shape_is_incompatible(line):
    with pytest.raises(IncompatibleRun, match=r"^j\.jsonl: .* install the version that wrote it"):
        read_history(problem_of(ToyTask()), [line], "j.jsonl")


def test_blends_and_error_bars_survive_the_journal():
    problem = problem_of(ToyTask())
    history = History(problem)
    first = [Job(i, i, (0, 0), None, 0, 2) for i in range(3)]
    bars = {"near": ErrorBar(0.1, 0.4, math.inf)}
    reports = [
        Report(i, (0.5, 0.5), scores={"near": 0.5}, checksum="c", errors=bars) for i in range(3)
    ]
    child = Job(3, 0, (1, 2), 0, 2, 4, ((1, 0.25), (2, 0.5)))
    history.append(Exchange(jobs=tuple(first)))
    history.append(Exchange(reports=tuple(reports)))
    history.append(Exchange(jobs=(child,)))
    assert history.job(3) == child == Job.from_json(child.to_json())
    assert history.jobs.starts(3) == child.starts == (0, 1, 2)
    assert history.report(1) == reports[1] == Report.from_json(reports[1].to_json())
    assert history.reports.errors("near")[0].tolist() == [0.1, 0.4, math.inf]


def test_a_model_descends_from_all_that_it_was_blended_of():
    history = History(problem_of(ToyTask()))
    firsts = [Job(i, i, (0, 0), None, 0, 2) for i in range(3)]
    seconds = [Job(3, 0, (1, 2), 0, 2, 4), Job(4, 1, (1, 2), 0, 2, 4, ((2, 0.25),))]
    for jobs in (firsts, seconds, [Job(5, 1, (1, 2), 4, 4, 6)]):
        history.append(Exchange(jobs=tuple(jobs)))
        reports = tuple(Report(job.id, (0.5, 0.5), checksum="c") for job in jobs)
        history.append(Exchange(reports=reports))
    assert history.lineage(5) == [0, 4, 5]
    assert history.ancestors(5) == [0, 2, 4, 5]
    assert history.ancestors(3) == [0, 3]
    assert [job for job in range(6) if history.is_exploit(job)] == [4]


def test_only_a_repair_loses_reports():
    history = History(problem_of(ToyTask()))
    history.append(Exchange(jobs=tuple(Job(i, i, (0, 0), None, 0, 2) for i in range(3))))
    assert not history.has_lost_reports
    history.append(Exchange(reports=(Report(0, error="boom"),)))
    assert not history.has_lost_reports
    lost = Report(1, error=LOST_REPORT, checksum="0" * 32)
    history.append(Exchange(reports=(lost,)))
    assert history.has_lost_reports
    assert history.report(1) == lost


def test_ids_that_a_repaired_journal_left_out_are_unknown():
    columns = JobColumns(problem_of(ToyTask()))
    columns.append([0, 0, [1, 2], None, 0, 2])
    columns.append([4, 1, [3, 4], 0, 0, 2])
    assert len(columns) == 5
    assert [id in columns for id in range(6)] == [True, False, False, False, True, False]
    assert columns[4] == Job(4, 1, (3, 4), 0, 0, 2)
    with pytest.raises(KeyError):
        columns[2]


names = st.text(max_size=3)
numbers = st.floats(allow_nan=False)


@given(st.lists(st.dictionaries(names, numbers, max_size=4), max_size=12))
def test_mappings_come_back_from_their_column(mappings):
    column = MappingColumn(1)
    for mapping in mappings:
        column.append(mapping)
    assert [column[row] for row in range(len(mappings))] == mappings
    assert set(column.names()) == {name for mapping in mappings for name in mapping}
    for name in column.names():
        expected = [mapping.get(name, math.nan) for mapping in mappings]
        assert np.array_equal(column.column(name), expected, equal_nan=True)


def test_columns_of_reports_agree_with_the_reports(journal):
    problem, exchanges, _ = journal
    columns = ReportColumns(problem)
    reports = [report for exchange in exchanges for report in exchange.reports]
    for report in reports:
        columns.append(report.to_json())
    assert columns.jobs().tolist() == [report.job for report in reports]
    assert columns.seconds().tolist() == [report.seconds for report in reports]
    assert columns.durations().tolist() == [report.duration for report in reports]
    assert columns.score_names() == ("near", "far")
    near = [report.scores.get("near", math.nan) for report in reports]
    assert np.array_equal(columns.scores("near"), near, equal_nan=True)


def seconds_to_resume(intervals, resume):
    """Return the CPU time that the state of a journal takes, of two members that alternate."""
    problem = problem_of(ToyTask(steps=2 * intervals))
    scheduler = algorithm_of({"name": "mo-pbt", "population": 2, "asynchronous": True})
    scheduler = scheduler.scheduler(problem)
    exchanges = []
    for id in range(2 * intervals):
        step, trial = divmod(id, 2)
        job = Job(id, trial, (1, 3), id - 2 if step else None, 2 * step, 2 * step + 2)
        exchanges.append(Exchange(jobs=(job,)))
        exchanges.append(Exchange(reports=(Report(id, (id / 1e6, -id / 1e6), checksum="c"),)))
    began = time.process_time()
    resume(problem, scheduler, exchanges)
    return time.process_time() - began


def resume_history(problem, scheduler, exchanges):
    history = History(problem)
    history.extend(exchange.to_json() for exchange in exchanges)
    return history.state(scheduler, 0)


@pytest.mark.slow
def test_resuming_takes_time_in_proportion_to_the_intervals_of_a_trial():
    few, many = (min(seconds_to_resume(n, resume_history) for _ in "ab") for n in (1000, 8000))
    # Eight times as many intervals; states that copy all results of a trial took 21 times as long.
    assert many < 14 * few


def test_an_extension_is_part_of_the_history():
    history = History(problem_of(ToyTask(steps=4)))
    history.append(Exchange(jobs=tuple(Job(id, id, (1, 3), None, 0, 2) for id in range(3))))
    history.append(Exchange(extend={"population": 5}))
    history.append(Exchange(extend={"steps": 8}))
    assert history.extension == {"population": 5, "steps": 8}
    history.append(Exchange(jobs=tuple(Job(id, id, (1, 3), None, 0, 2) for id in range(3, 5))))
    # A generation before the extension has three trials.
    assert [history.generation_size(trials) for trials in (1, 3, 4, 5)] == [3, 3, 5, 5]


def test_the_first_reports_count_for_the_front_and_the_reference():
    problem = problem_of(ToyTask(steps=8))
    history = History(problem)
    values = [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8)]
    for id, point in enumerate(values):
        trial = id % 2
        begin = 2 * (id // 2)
        history.append(Exchange(jobs=(Job(id, trial, (1, 3), None, begin, begin + 2),)))
        history.append(Exchange(reports=(Report(id, point, checksum="c"),)))
        if id == 0:
            assert [entry.job for entry in history.pessimistic_front] == [0]
    # The worst of the first results of both trials, which later results do not replace.
    assert (history.reference() <= values[0]).all()
