import errno
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import mopbt
from mopbt import MOPBT, Budget, Float, LocalEngine, PoolEngine, Results, errors, run
from mopbt.algorithms import MOASHA, RandomSearch
from mopbt.engines.base import RunContext
from mopbt.errors import (
    IncompatibleRun,
    MissingScore,
    RunMismatch,
    Stalled,
    StorageFull,
    StoreError,
    TaskError,
    TaskFailed,
    UnreadHyperparameter,
)
from mopbt.history import History
from mopbt.problem import problem_of
from mopbt.session import Session
from mopbt.state import Job, Report, State, with_jobs
from mopbt.stores.base import Exchange
from mopbt.stores.journal import read_journal
from mopbt.stores.memory import MemoryStore
from mopbt.tasks.toy import FailingToy, RowsToy, ToyTask
from toys import NanToy, SlowToy, Watcher


def toy(out, *, task=None, engine="local", population=6, **options):
    return run(
        task or ToyTask(steps=12),
        out=out,
        engine=engine,
        population=population,
        progress=False,
        **options,
    )


def events(out):
    exchanges, _ = read_journal(Path(out) / "journal.jsonl")
    jobs = sorted((job for e in exchanges for job in e.jobs), key=lambda job: job.id)
    reports = sorted(
        ((r.job, r.objectives, r.checksum, r.error) for e in exchanges for r in e.reports),
        key=lambda r: r[0],
    )
    return jobs, reports


class RepeatingEngine(LocalEngine):
    """Reports jobs twice, and jobs of long ago, as if it had lost contact with workers."""

    def start(self, context):
        super().start(context)
        self._past = []

    def collect(self, timeout=None):
        reports = super().collect(timeout)
        self._past += reports
        return [*self._past[:1], *reports, *reports, Report(10**6, error="of no job")]


def test_reports_that_an_engine_repeats_count_once(tmp_path):
    plain = toy(tmp_path / "plain", task=RowsToy(steps=12))
    repeated = toy(tmp_path / "repeated", task=RowsToy(steps=12), engine=RepeatingEngine())
    lines = [read_journal(results.path / "journal.jsonl")[0] for results in (plain, repeated)]
    reports = [[report.job for line in part for report in line.reports] for part in lines]
    assert reports[0] == reports[1]
    assert [p.model for p in repeated.front()] == [p.model for p in plain.front()]
    assert len(repeated.evaluations) == len(plain.evaluations) > 0


def test_a_budget_of_time_is_not_exhausted_by_reports_that_do_not_count(tmp_path):
    class Late(RepeatingEngine):
        def collect(self, timeout=None):
            if self._past and len(self._past) % 2:
                return [self._past.pop()]
            return super().collect(timeout)

    assert toy(tmp_path / "run", engine=Late(), budget=Budget(seconds=1000)).outcome == "done"


def test_finds_the_known_front():
    results = run(ToyTask(steps=40), out=None, population=16, engine="local", progress=False)
    front = results.front()
    assert results.outcome == "done"
    assert len(results) == 16 * 20
    assert sorted(ToyTask.distance_to_front(p.scores) for p in front)[len(front) // 2] < 0.05
    near = [p.scores["near"] for p in front]
    assert near == sorted(near, reverse=True)
    assert max(near) > 0.9
    assert max(p.scores["far"] for p in front) > 0.9


def test_the_same_seed_gives_the_same_run_on_every_engine(tmp_path):
    for name, engine in (
        ("a", "local"),
        ("b", PoolEngine(2)),
        ("c", PoolEngine(1, warm_bytes=0)),
        ("d", LocalEngine(warm_bytes=0)),
    ):
        toy(tmp_path / name, engine=engine, seed=5)
    assert (
        events(tmp_path / "a")
        == events(tmp_path / "b")
        == events(tmp_path / "c")
        == events(tmp_path / "d")
    )
    toy(tmp_path / "e", seed=6)
    assert events(tmp_path / "e") != events(tmp_path / "a")


def test_a_finished_run_is_not_run_again(tmp_path):
    first = toy(tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    again = toy(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    assert [p.model for p in again.front()] == [p.model for p in first.front()]
    assert again.outcome == "complete"


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (
            NanToy(steps=8),
            # A member that diverges is not trained to the end.
            {"algorithm": RandomSearch(population=10), "seed": 1},
        ),
        (
            ToyTask(steps=8),
            # The budget ends it.
            {"algorithm": MOASHA(), "budget": Budget(jobs=20)},
        ),
    ],
)
def test_a_run_with_fewer_intervals_than_expected_is_done_and_stays_as_it_is(
    tmp_path, task, options
):
    results = toy(tmp_path, task=task, population=None, **options)
    assert (results.outcome, results.done, Results.open(tmp_path).done) == ("done", True, True)
    assert len(results) != results.intervals
    journal, seconds = (tmp_path / "journal.jsonl").read_bytes(), results.seconds
    again = toy(tmp_path, task=task, population=None, **options)
    assert (again.outcome, again.done, again.seconds) == ("complete", True, seconds)
    assert (tmp_path / "journal.jsonl").read_bytes() == journal


@pytest.mark.slow
def test_changed_code_is_an_error_also_where_a_program_holds_the_task(tmp_path):
    """Edit, run again: without a word the old models would be taken for those of the new code."""
    (tmp_path / "helper.py").write_text("FACTOR = 1\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import helper, mopbt\n"
        "def train(m):\n"
        "    w = {'w': 0.0}\n"
        "    m.track(w=w)\n"
        "    for _ in m.steps(): w['w'] += m.hp['x'] * helper.FACTOR\n"
        "    m.report(up=w['w'], down=m.hp['x'])\n"
        "space, objectives = {'x': mopbt.Grid(0, 1, 5)}, {'up': 'max', 'down': 'min'}\n"
        "mopbt.run(train, out='run', space=space, objectives=objectives, steps=4, population=4,\n"
        "          engine='local')\n"
    )

    def execute():
        done = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, " ".join(done.stderr.split())

    assert execute()[0] == 0
    # What does not train is not the task's code.
    script.write_text(script.read_text() + "print('done')\n")
    code, again = execute()
    assert code == 0
    assert "the run is already complete" in again
    (tmp_path / "helper.py").write_text("FACTOR = 20\n")
    code, error = execute()
    assert code == 1
    assert "was started with other code of 'train'" in error
    script.write_text(script.read_text().replace("engine=", "on_change='continue', engine="))
    code, note = execute()
    assert code == 0
    assert "the code of 'train' has changed since this run was started" in note


def test_a_complete_run_resumes_with_a_larger_budget(tmp_path):
    algorithm = MOASHA()
    assert toy(tmp_path, algorithm=algorithm, population=None, budget=Budget(jobs=9)).done
    with pytest.raises(KeyboardInterrupt):
        run(
            ToyTask(steps=12),
            out=tmp_path,
            algorithm=algorithm,
            engine="local",
            budget=Budget(jobs=30),
            callbacks=[Watcher(interrupted_at(20))],
        )
    assert not Results.open(tmp_path).done
    assert toy(tmp_path, algorithm=algorithm, population=None, budget=Budget(jobs=30)).done


def interrupted_at(reported):
    """Return what interrupts a run that has so many reports."""

    def watch(progress):
        if progress.reported >= reported:
            raise KeyboardInterrupt

    return watch


def test_every_point_of_the_front_can_be_loaded_at_every_moment(tmp_path):
    seen = []

    def look(progress):
        results = Results.open(tmp_path)
        for point in results.front():
            assert set(results.load(point)) == {"place", "speed"}
        seen.append(len(results.front()))
        kept = len(list((tmp_path / "checkpoints").glob("*.ckpt")))
        in_flight = 2
        assert kept <= len(results.front()) + 6 + in_flight

    run(ToyTask(steps=12), out=tmp_path, engine="local", population=6, callbacks=[Watcher(look)])
    assert len(seen) == 37
    assert seen[-1] > 5


def test_out_none_lives_as_long_as_its_results():
    results = toy(None)
    assert results.path is None  # all in this process: nothing needs a file
    assert results.load(results.front()[0])
    with pytest.raises(mopbt.MopbtError, match="this run is only in memory"):
        results.checkpoint_file(results.front()[0])
    results = run(
        ToyTask(steps=4), out=None, algorithm=MOPBT(population=4), engine="pool", progress=False
    )
    path = results.path
    assert results.load(results.front()[0])
    del results
    assert not path.exists()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_budgets_stop_cleanly_count_over_resumes_and_can_be_raised(tmp_path, asynchronous):
    algorithm = MOPBT(population=6, asynchronous=asynchronous)
    options = {
        "out": tmp_path / "run",
        "algorithm": algorithm,
        "engine": "local",
        "progress": False,
    }
    task = ToyTask(steps=12)
    for jobs in (5, 5, 13):
        results = run(task, budget=Budget(jobs=jobs), **options)
        assert (results.outcome, len(results)) == ("budget", jobs)
    results = run(task, budget=Budget(total_steps=41), **options)
    assert len(results) == 20  # 20 intervals of 2 steps; 41 does not allow another
    assert run(task, **options).outcome == "done"
    whole = run(task, **options | {"out": tmp_path / "whole"})
    assert events(tmp_path / "run") == events(tmp_path / "whole")
    assert len(whole) == 36


@pytest.mark.parametrize("engine", ["local", pytest.param("pool", marks=pytest.mark.slow)])
def test_a_run_that_a_time_budget_stopped_resumes(tmp_path, engine):
    task = SlowToy(steps=6, seconds=0.1)
    began = time.monotonic()
    results = toy(tmp_path, task=task, engine=engine, population=4, budget=Budget(seconds=0.35))
    assert results.outcome == "budget"
    assert time.monotonic() - began < 5
    done = len(results)
    assert 0 < done < 12 or engine == "pool"
    assert (
        toy(tmp_path, task=task, engine=engine, population=4, budget=Budget(seconds=0.01)).outcome
        == "budget"
    )
    results = toy(tmp_path, task=task, engine=engine, population=4)
    assert results.outcome == "done"
    assert len(results) == 12
    seconds = [r["seconds"] for r in sorted(results.records(), key=lambda r: r["seconds"])]
    assert seconds[-1] > 0.3


def test_nan_does_not_end_a_run_and_is_replaced(tmp_path):
    results = toy(tmp_path, task=NanToy(steps=20), population=10, seed=1)
    assert results.outcome == "done"
    records = results.records()
    diverged = {r["model"] for r in records if r["score.near"] != r["score.near"]}
    assert diverged
    assert not {r["start"] for r in records} & diverged
    assert not {p.model for p in results.front()} & diverged


def test_failures_do_not_end_a_run_and_are_reported(tmp_path):
    results = toy(tmp_path, task=FailingToy(steps=20), population=11, seed=1)
    assert results.outcome == "done"
    failures = results.failures
    assert failures
    assert all("ZeroDivisionError" in text for text in failures.values())
    assert not {r["start"] for r in results.records()} & set(failures)


def test_a_flat_metric_keeps_the_disk_bounded(tmp_path):
    results = toy(tmp_path, task=NanToy(steps=20, flat=True), population=6)
    assert results.outcome == "done"
    assert len(results.front()) == 1
    assert len(list((tmp_path / "checkpoints").glob("*.ckpt"))) <= 1 + 6 + 1


class AlwaysFailingTask(ToyTask):
    def train(self, model, hp, begin, end, seed):
        raise RuntimeError("the loader is broken")


def test_a_task_that_always_fails_is_stopped_early_with_its_error(tmp_path):
    with pytest.raises(
        TaskFailed,
        match=r"(?s)3 intervals in a row failed; fix the task.*RuntimeError: the loader is broken",
    ):
        toy(tmp_path / "run", task=AlwaysFailingTask(steps=12))
    # The task is fixed, and the run resumes in the same directory.
    assert toy(tmp_path / "run").outcome == "done"
    toy(tmp_path / "whole")
    assert events(tmp_path / "run") == events(tmp_path / "whole"), (
        "and nothing is left of the failures"
    )


class OutageTask(ToyTask):
    """Fails while something is out, as when data are on a mount that is gone."""

    out = False

    def train(self, model, hp, begin, end, seed):
        if self.out:
            raise OSError("the mount is gone")
        return super().train(model, hp, begin, end, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [MOPBT(population=6), MOPBT(population=6, asynchronous=True), MOASHA()]
)
@pytest.mark.parametrize("jobs", [6, 14])
def test_an_outage_costs_nothing_however_often_one_tries(tmp_path, monkeypatch, algorithm, jobs):
    """A stop of the run does not count as a failure: requeueing on a cluster must not fail it."""

    def resume(out, budget):
        return run(
            OutageTask(steps=12),
            out=out,
            algorithm=algorithm,
            engine="local",
            budget=Budget(jobs=budget),
            progress=False,
            # The outage is a value of the class.
            on_change="continue",
        )

    resume(tmp_path / "run", jobs)
    monkeypatch.setattr(OutageTask, "out", True)
    for _ in range(3):
        with pytest.raises(TaskFailed, match="the mount is gone"):
            resume(tmp_path / "run", 60)
    monkeypatch.undo()
    assert not resume(tmp_path / "run", 60).failures
    resume(tmp_path / "whole", 60)
    assert events(tmp_path / "run") == events(tmp_path / "whole")


class GivenUpTask(ToyTask):
    """A task that ends the run itself, for example because a server is down."""

    def train(self, model, hp, begin, end, seed):
        raise TaskFailed("the data server is down")


def test_a_task_that_gives_up_costs_nothing(tmp_path):
    """Only what a run itself gives up for is taken back."""
    before = toy(tmp_path / "run", budget=Budget(jobs=15))
    with pytest.raises(TaskFailed, match="the data server is down"):
        toy(tmp_path / "run", task=GivenUpTask(steps=12))
    assert Results.open(tmp_path / "run").front().records() == before.front().records()
    assert toy(tmp_path / "run").outcome == "done"
    toy(tmp_path / "whole")
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def test_what_came_before_the_failures_in_the_same_exchange_stays(tmp_path):
    """Of jobs that end together, the sound ones are kept and the failed ones taken back."""
    store, broken = MemoryStore(), ToyTask(steps=12)
    problem, algorithm = problem_of(broken), MOPBT(population=4)
    session = Session(
        algorithm.scheduler(problem),
        problem,
        store,
        LocalEngine(),
        0,
        Budget(),
        lambda _: None,
        History(problem),
    )
    session.state = State(0)
    jobs = tuple(Job(i, i, (0, 0), None, 0, 2) for i in range(4))
    sound, failed = Report(0, objectives=(1.0, 1.0), checksum="a"), Report(1, error="oh\nno")
    for exchange in (
        Exchange(jobs=jobs),
        Exchange(reports=(sound, failed)),
        Exchange(reports=(Report(2, error="oh\nno"),)),
    ):
        mark = store.mark()
        store.append(exchange)
        if exchange.jobs:
            session.state = with_jobs(session.state, exchange.jobs)
        session._apply(exchange)
        if exchange.reports:
            session._remember_intact(exchange.reports, mark)
    session._roll_back_failures()
    assert store.read() == (Exchange(jobs=jobs), Exchange(reports=(sound,)))


class HollowTask(ToyTask):
    def evaluate(self, model):
        return dict.fromkeys(super().evaluate(model), float("nan"))


def test_a_population_of_which_nothing_is_finite_is_stopped(tmp_path):
    with pytest.raises(
        TaskFailed,
        match=r"none of the first 8 intervals has finite metrics \('.*' is nan.*rerun to resume",
    ):
        toy(tmp_path, task=HollowTask(steps=12))
    assert toy(tmp_path).outcome == "done"


def test_what_cannot_be_written_ends_the_session_and_not_the_run(tmp_path, monkeypatch):
    """A folder that became read-only says nothing about the members."""
    real, left = os.replace, [9]

    def sometimes_forbidden(source, target):
        left[0] -= 1
        if left[0] <= 0:
            raise PermissionError(errno.EACCES, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "replace", sometimes_forbidden)
    with pytest.raises(
        StoreError,
        match=r"cannot write .*\.ckpt: Permission denied; nothing reported is lost: "
        r"make it writable",
    ):
        toy(tmp_path / "run")
    monkeypatch.undo()
    toy(tmp_path / "run")
    toy(tmp_path / "whole")
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def test_a_damaged_checkpoint_costs_one_interval_of_one_member(tmp_path):
    toy(tmp_path, budget=Budget(jobs=18))
    latest = tmp_path / "checkpoints" / "16.ckpt"
    latest.write_bytes(latest.read_bytes()[:-5])
    results = toy(tmp_path)
    assert results.outcome == "done"
    failures = results.failures
    assert 1 <= len(failures) <= 3  # the member itself, and those that exploited it at that moment
    assert all("16.ckpt is damaged" in text for text in failures.values())
    assert max(failures) < 24  # in the next generation they are replaced


def test_a_lost_last_line_is_done_again_with_the_same_outcome(tmp_path):
    toy(tmp_path / "whole")
    toy(tmp_path / "run", budget=Budget(jobs=20))
    journal = tmp_path / "run" / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[-30] ^= 1
    journal.write_bytes(data)
    toy(tmp_path / "run")
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def test_a_full_disk_ends_the_session_and_not_the_run(tmp_path, monkeypatch):
    from mopbt.stores import directory

    real, left = directory.write_atomically, [9]

    def sometimes_full(path, data):
        left[0] -= 1
        if left[0] <= 0:
            raise StorageFull("no space left")
        real(path, data)

    monkeypatch.setattr(directory, "write_atomically", sometimes_full)
    with pytest.raises(StorageFull):
        toy(tmp_path / "run")
    monkeypatch.undo()
    toy(tmp_path / "run")
    toy(tmp_path / "whole")
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def train(m):
    state = {"x": 0.0}
    m.track(state=state)
    for _ in m.steps():
        state["x"] += m.hp["rate"]
    m.report(up=state["x"], down=-state["x"])


FUNCTION = {
    "space": {"rate": Float(0.1, 1)},
    "objectives": {"up": "max", "down": "max"},
    "steps": 4,
    "interval": 2,
}


def test_a_training_function_runs_and_its_tracked_state_comes_back(tmp_path):
    results = run(train, **FUNCTION, out=tmp_path, engine="local", population=4, progress=False)
    best = results.front()[0]
    assert results.load(best)["state"]["x"] == best.scores["up"]
    elsewhere = Results.open(tmp_path)  # without the task
    assert elsewhere.load(best) == results.load(best)


def unread(m):
    state = {"x": 1.0}
    m.track(state=state)
    for _ in m.steps():
        state["x"] += 1
    m.report(up=1, down=1)


def silent(m):
    train(m)
    m.report(up=1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (unread, UnreadHyperparameter, "never read 'rate'"),
        (silent, MissingScore, "did not measure the objective 'down'"),
    ],
)
def test_a_broken_contract_stops_the_run_before_it_writes_anything_down(
    tmp_path, function, error, message
):
    with pytest.raises(error, match=message):
        run(function, **FUNCTION, out=tmp_path, engine="local", population=4, progress=False)
    assert events(tmp_path)[1] == []
    results = run(
        train,
        **FUNCTION,
        name=function.__name__,
        out=tmp_path,
        engine="local",
        population=4,
        progress=False,
    )
    assert results.outcome == "done"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": -1}, ValueError, "`seed` must be a whole number of at least 0, got -1"),
        ({"seed": True}, ValueError, "`seed` must be"),
        (
            {"engine": "gpu"},
            ValueError,
            "`engine` must be one of 'auto', 'local', 'pool', 'vectorized', 'ray', 'simulated' "
            "or an engine object, got 'gpu'",
        ),
        ({"engine": object()}, TypeError, "`engine` must be one of"),
        ({"population": 1}, ValueError, "`population` must be a whole number of at least 2, got 1"),
        ({"algorithm": MOPBT}, TypeError, "`algorithm` must be an object such as MOPBT"),
        ({"algorithm": "mopbt"}, ValueError, "`algorithm` must be one of mo-pbt, random-search"),
        (
            {"space": {}},
            TypeError,
            "only training functions take `space`, got a ToyTask object, which has its own",
        ),
        (
            {"steps": 3},
            TypeError,
            "only training functions take `steps`, got a ToyTask object, which has its own",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_trains(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        run(ToyTask(), out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 0.7}, r"`fraction` must be in \(0, 0.5\], got 0.7"),
        ({"fraction": 0}, r"`fraction` must be in \(0, 0.5\], got 0"),
        (
            {"within": "random"},
            "`within` must be one of 'scattered', 'crowded', 'hypervolume', got 'random'",
        ),
        ({"explore": "none"}, "`explore` must be one of 'local', 'random', got 'none'"),
        ({"start": "grid"}, "`start` must be one of 'stratified', 'iid', got 'grid'"),
        ({"asynchronous": "yes"}, "`asynchronous` must be one of True, False, got 'yes'"),
        ({"resample": 2}, r"`resample` must be in \[0, 1\], got 2"),
        ({"population": 2.5}, "`population` must be a whole number"),
        ({"scale": True, "within": "crowded"}, "`scale`"),
    ],
)
def test_wrong_settings_of_mo_pbt(options, message):
    with pytest.raises(ValueError, match=message):
        MOPBT(**options)


@pytest.mark.parametrize(
    "budget", [{"seconds": 0}, {"jobs": -1}, {"total_steps": "3"}, {"jobs": True}, {"jobs": 2.5}]
)
def test_wrong_budgets(budget):
    with pytest.raises(ValueError, match="must be a (whole )?number above 0, or None for no limit"):
        Budget(**budget)


def test_a_function_needs_its_description(tmp_path):
    with pytest.raises(
        TypeError, match="a training function needs `space=`, `objectives=`, `steps=` as well"
    ):
        run(train, out=tmp_path)
    with pytest.raises(ValueError, match=r"must be a multiple of `interval` \(3\), got 4; use 3"):
        run(train, **FUNCTION | {"interval": 3}, out=tmp_path)
    with pytest.raises(TypeError, match="got the class ToyTask; pass ToyTask"):
        run(ToyTask, out=tmp_path)
    with pytest.raises(TypeError, match="int object is not a task: it has no method `init`"):
        run(3, out=tmp_path)


def test_another_run_in_the_same_directory_is_refused_with_the_differences(tmp_path):
    toy(tmp_path, seed=1)
    with pytest.raises(
        RunMismatch,
        match=r"other settings: seed is 2, it was 1; algorithm population is 8, it was 6; use",
    ):
        toy(tmp_path, seed=2, population=8)
    with pytest.raises(RunMismatch, match="steps is 14, it was 12"):
        toy(tmp_path, seed=1, task=ToyTask(steps=14))


def test_a_directory_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        RunMismatch,
        match=r"is not a run and not empty \(it has 'thesis.tex'\); use another directory",
    ):
        toy(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ValueError, match="`out` must be a directory, got the file"):
        toy(tmp_path / "thesis.tex")


def test_a_run_of_another_version_is_refused(tmp_path):
    toy(tmp_path)
    settings = tmp_path / "run.toml"
    settings.write_text(
        settings.read_text().replace("format = 1", "format = 2").replace('mopbt = "', 'mopbt = "9.')
    )
    with pytest.raises(
        IncompatibleRun,
        match=r"has format 2 \(mopbt 9\..*reads format 1; install the version that wrote it",
    ):
        toy(tmp_path)


class LazyScheduler:
    total_jobs = None
    decides_together = False

    def ask(self, state, slots):
        return ()

    def tell(self, state, report):
        return state

    def done(self, state):
        return False


def test_a_scheduler_that_orders_nothing_is_named():
    task, store, engine = ToyTask(), MemoryStore(), LocalEngine()
    engine.start(RunContext(task, problem_of(task), 0, store.checkpoints))
    session = Session(
        *(LazyScheduler(), problem_of(task), store, engine, 0, Budget()),
        *(lambda progress: None, History(problem_of(task))),
    )
    with pytest.raises(Stalled, match=r"LazyScheduler starts no job.*0 trials, 0 jobs"):
        session.drive()


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from toys import SlowToy
import mopbt
mopbt.run(SlowToy(steps=12, seconds=0.4), out={out!r}, population=6, engine={engine!r})
"""


@pytest.mark.parametrize("engine", ["local", pytest.param("pool", marks=pytest.mark.slow)])
def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path, engine):
    program = PROGRAM.format(
        tests=str(Path(__file__).parent), out=str(tmp_path / "run"), engine=engine
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = tmp_path / "run" / "journal.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (
        not journal.exists() or journal.read_text().count("reports") < 4
    ):
        time.sleep(0.02)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "stopped (interrupted) after" in errors
    assert "nothing reported is lost: rerun the same call to resume" in errors
    task = SlowToy(steps=12, seconds=0.0)
    results = run(task, out=tmp_path / "run", population=6, engine="local", progress=False)
    run(task, out=tmp_path / "whole", population=6, engine="local", progress=False)
    assert results.outcome == "done"
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def test_run_toml_holds_all_that_is_needed_to_read_the_run(tmp_path):
    toy(tmp_path, task=ToyTask(steps=4))
    text = (tmp_path / "run.toml").read_text()
    for piece in (
        'name = "toy"',
        "steps = 4",
        'near = "max"',
        'kind = "LogGrid"',
        "population = 6",
        "seed = 0",
    ):
        assert piece in text
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert {key for line in lines for key in line} == {"jobs", "reports", "crc"}
    assert mopbt.Results.open(tmp_path).problem == problem_of(ToyTask(steps=4))


def test_nothing_is_reported_as_tuned_when_training_breaks_its_own_rules(tmp_path):
    def no_track(m):
        for _ in m.steps():
            m.hp["rate"]
        m.report(up=1, down=1)

    with pytest.raises(TaskError, match="never called `track"):
        run(no_track, **FUNCTION, out=tmp_path, engine="local", population=4, progress=False)
    assert not any(exchange.reports for exchange in read_journal(tmp_path / "journal.jsonl")[0])


def test_the_time_of_a_session_without_a_report_counts(tmp_path, monkeypatch):
    task = SlowToy(steps=4, seconds=0.6)
    results = toy(
        tmp_path, task=task, engine=PoolEngine(1), population=2, budget=Budget(seconds=0.3)
    )
    assert (results.outcome, len(results)) == ("budget", 0)
    assert results.seconds >= 0.3
    with monkeypatch.context() as patch:
        patch.setattr(PoolEngine, "submit", lambda *_: pytest.fail("something was trained"))
        assert (
            toy(
                tmp_path, task=task, engine=PoolEngine(1), population=2, budget=Budget(seconds=0.3)
            ).outcome
            == "budget"
        )
    assert len(toy(tmp_path, task=task, engine=PoolEngine(1), population=2)) == 4


def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = toy("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert results.load(results.front()[0])
    assert (tmp_path / "run" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 100}, "`budget` must be a Budget, such as Budget"),
        ({"progress": "bar"}, "`progress` must be True or False, got 'bar'"),
    ],
)
def test_options_of_the_wrong_kind(tmp_path, options, message):
    with pytest.raises(TypeError, match=message):
        run(ToyTask(), out=tmp_path / "run", **options)
    with pytest.raises(TypeError, match="`engine` must be one of"):
        run(ToyTask(), out=tmp_path / "run", engine=PoolEngine)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_that_is_not_kept_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made, make = [], tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **named: made.append(make(**named)) or made[-1])
    with pytest.raises(TaskFailed):
        toy(None, task=AlwaysFailingTask(steps=12), engine=PoolEngine(1))
    gc.collect()
    assert len(made) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_constant_objective_does_not_hide_the_others(tmp_path):
    class FlatTask(ToyTask):
        objectives = {"near": "max", "far": "max", "cost": "min"}

        def evaluate(self, model):
            return {**super().evaluate(model), "cost": 1.0}

    assert toy(tmp_path, task=FlatTask(steps=12)).hypervolume() > 0


@pytest.mark.parametrize("population", [4, 7])
def test_progress_is_shown_where_no_first_interval_is_finite(tmp_path, population):
    class LateTask(ToyTask):
        def train(self, model, hp, begin, end, seed):
            return super().train(model, hp, begin, end, seed) | {"begin": begin}

        def evaluate(self, model):
            scores = super().evaluate(model)
            return scores if model["begin"] else dict.fromkeys(scores, float("nan"))

    seen = []
    task = LateTask(steps=12)
    results = run(
        task,
        out=tmp_path,
        population=population,
        engine="local",
        callbacks=[Watcher(lambda p: seen.append(p.hypervolume()))],
    )
    assert results.outcome == "done"
    assert seen[-1] == results.hypervolume() > 0


def test_diverged_members_are_counted(tmp_path):
    seen = []
    run(
        NanToy(steps=8),
        out=tmp_path,
        population=10,
        engine="local",
        seed=1,
        callbacks=[Watcher(seen.append)],
    )
    assert seen[-1].diverged > 0
    assert seen[-1].failures == 0


def test_a_traceback_comes_to_its_last_line_and_the_tasks_own_place():
    ours = f'  File "{errors.__file__}", line 9, in call\n    train()\n'
    theirs = '  File "/home/me/loop.py", line 12, in train\n    boom()\n'
    head, end = "Traceback (most recent call last):\n", "ValueError: no such luck\n"
    assert (
        errors.last_line(head + ours + theirs + end)
        == "ValueError: no such luck (loop.py, line 12)"
    )
    assert (
        errors.last_line(head + theirs + ours + end)
        == "ValueError: no such luck (loop.py, line 12)"
    )
    assert errors.last_line(head + ours + end) == "ValueError: no such luck"
    # A library in C++ appends its own stack to the message.
    native = "ValueError: no such luck\nStack trace:\n  [bt] (0) ffi_call\n  [bt] (1) start"
    assert errors.last_line(head + ours + native) == "ValueError: no such luck"
    assert errors.last_line("the worker died") == "the worker died"
    assert errors.last_line("") == "an error without a message"


def test_a_failed_task_survives_being_sent():
    failed = pickle.loads(pickle.dumps(TaskFailed("all failed:", "Traceback\nValueError: x")))
    assert str(failed) == "all failed: ValueError: x"
    assert failed.__notes__ == ["Traceback\nValueError: x"]
