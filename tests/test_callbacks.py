import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mopbt
from mopbt import Callback, StopRun, run
from mopbt.problem import problem_of
from mopbt.run_config import RunConfig
from mopbt.runner import default_directory
from mopbt.stores.journal import read_journal
from mopbt.tasks.toy import FailingToy, ToyTask

QUIET = {"population": 4, "engine": "local", "progress": False}


class Log(Callback):
    """Records what it is called with, and stops the run after a number of reports."""

    def __init__(self, stop_after=None, on_start=False):
        self.stop_after = stop_after
        self.stops_on_start = on_start
        self.events = []
        self.jobs = []

    def on_start(self, run):
        self.events.append(("start", len(run)))
        if self.stops_on_start:
            raise StopRun

    def on_report(self, run, reports):
        # What is passed is in the journal, and in the results.
        if run.path is not None:
            lines, _ = read_journal(run.path / "journal.jsonl")
            written = {report.job for line in lines for report in line.reports}
            assert {report.job for report in reports} <= written
        assert all(run.point(report.job).scores == report.scores for report in reports)
        self.jobs += [report.job for report in reports]
        assert run.progress.reported == len(run)
        if self.stop_after is not None and len(run) >= self.stop_after:
            raise StopRun

    def on_end(self, run):
        self.events.append(("end", run.outcome, len(run)))


def test_callbacks_see_the_start_every_report_once_and_the_end(tmp_path):
    log = Log()
    results = run(ToyTask(steps=8), out=tmp_path / "run", callbacks=[log], **QUIET)
    assert log.events == [("start", 0), ("end", "done", 16)]
    assert sorted(log.jobs) == list(range(16))
    assert results.outcome == "done"


def test_a_run_that_a_callback_stops_is_resumed_and_repeats_no_report(tmp_path):
    first, second = Log(stop_after=6), Log()
    stopped = run(ToyTask(steps=8), out=tmp_path / "run", callbacks=[first], **QUIET)
    assert (stopped.outcome, stopped.done, len(stopped)) == ("stopped", False, 6)
    assert first.events[-1] == ("end", "stopped", 6)
    resumed = run(ToyTask(steps=8), out=tmp_path / "run", callbacks=[second], **QUIET)
    assert second.events == [("start", 6), ("end", "done", 16)]
    assert sorted(first.jobs + second.jobs) == list(range(16))
    unbroken = run(ToyTask(steps=8), out=tmp_path / "other", **QUIET)
    assert [p.scores for p in resumed.points()] == [p.scores for p in unbroken.points()]


def test_a_stop_reaches_the_other_callbacks_and_can_come_before_the_first_report():
    first, second = Log(stop_after=3), Log()
    run(ToyTask(steps=8), out=None, callbacks=[first, second], **QUIET)
    assert first.jobs == second.jobs
    assert second.events == [("start", 0), ("end", "stopped", 3)]
    early = run(ToyTask(steps=8), out=None, callbacks=[Log(on_start=True)], **QUIET)
    assert (early.outcome, len(early)) == ("stopped", 0)


def test_a_stop_at_the_last_report_is_the_end_of_the_run(tmp_path):
    results = run(ToyTask(steps=8), out=tmp_path / "run", callbacks=[Log(16)], **QUIET)
    assert (results.outcome, results.done) == ("done", True)


class Broken(Callback):
    def on_report(self, run, reports):
        if len(run) == 5:
            raise ZeroDivisionError("my own mistake")


def test_an_error_in_a_callback_ends_the_run_which_can_be_resumed(tmp_path):
    log = Log()
    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        run(ToyTask(steps=8), out=tmp_path / "run", callbacks=[log, Broken()], **QUIET)
    assert log.events[-1] == ("end", "failed", 5)
    assert run(ToyTask(steps=8), out=tmp_path / "run", **QUIET).outcome == "done"


def test_a_callback_sees_the_end_of_an_interrupted_run(tmp_path):
    class Interrupt(Callback):
        def on_report(self, run, reports):
            raise KeyboardInterrupt

    log = Log()
    with pytest.raises(KeyboardInterrupt):
        run(ToyTask(steps=8), out=tmp_path / "run", callbacks=[log, Interrupt()], **QUIET)
    assert log.events == [("start", 0), ("end", "interrupted", 1)]


def test_failed_reports_are_passed_too(tmp_path):
    errors = []

    class Errors(Callback):
        def on_report(self, run, reports):
            errors.extend(report.error for report in reports if report.error)

    options = QUIET | {"population": 11, "seed": 1}
    results = run(FailingToy(steps=8), out=None, callbacks=[Errors()], **options)
    assert len(errors) == len(results.failures) > 0


KILLED = """
import os, signal, sys
import mopbt
from mopbt.tasks.toy import ToyTask
class Killer(mopbt.Callback):
    def on_report(self, run, reports):
        with open(sys.argv[2], "a") as file:
            file.write("".join(f"{report.job}\\n" for report in reports))
        if len(run) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
mopbt.run(ToyTask(steps=8), out=sys.argv[1], population=4, engine="local", callbacks=[Killer()])
"""


@pytest.mark.slow
def test_no_report_is_passed_twice_after_a_kill(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, "-c", KILLED, str(run), str(log)]
    assert subprocess.run(command, env=os.environ, timeout=60).returncode == -signal.SIGKILL
    assert subprocess.run(command, env=os.environ, timeout=60).returncode == 0
    assert sorted(map(int, Path(log).read_text().split())) == list(range(16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"callbacks": [print]}, "list of Callback objects, got <built-in function print> in it; "),
        ({"callbacks": [Log]}, r"pass Log\(\)"),
        ({"callbacks": Log()}, "must be a list of Callback objects, got <"),
        ({"progress": print}, "True or False, got <built-in function print>; pass a Callback in "),
        ({"progress": 1}, "`progress` must be True or False, got 1"),
    ],
)
def test_wrong_arguments_are_explained(options, message):
    with pytest.raises(TypeError, match=message):
        run(ToyTask(steps=8), out=None, **QUIET | options)


def test_the_default_directory_names_task_algorithm_and_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = run(ToyTask(steps=8), seed=3, **QUIET)
    assert first.path == tmp_path / "runs" / "toy" / "mo-pbt-seed3"
    other = run(ToyTask(steps=8), algorithm=mopbt.RandomSearch(), seed=3, **QUIET)
    assert other.path == tmp_path / "runs" / "toy" / "random-search-seed3"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../../etc", "etc"),
        ("a/b c:d", "a-b-c-d"),
        ("<lambda>", "lambda"),
        ("Größe_2.1", "Größe_2.1"),
        ("...", "unnamed"),
        ("x" * 300, "x" * 100),
    ],
)
def test_the_name_of_a_task_is_made_safe_for_paths(name, folder):
    problem = replace(problem_of(ToyTask()), name=name)
    settings = RunConfig(problem, {"name": "mo-pbt"}, 0)
    assert default_directory(settings) == Path("runs") / folder / "mo-pbt-seed0"


def test_a_complete_run_says_so(tmp_path, capsys):
    options = QUIET | {"progress": True, "out": tmp_path / "run"}
    first = run(ToyTask(steps=8), **options)
    assert "already" not in repr(first) + capsys.readouterr().err
    again = run(ToyTask(steps=8), **options)
    assert (again.outcome, again.done) == ("complete", True)
    assert "already complete, nothing was trained" in repr(again)
    message = f"the run is already complete, in {tmp_path / 'run'}; a new run needs another"
    assert message in capsys.readouterr().err
