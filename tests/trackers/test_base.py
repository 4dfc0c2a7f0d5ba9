"""Branches, population metrics and `follow`, checked against the journal."""

import math
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import mopbt
from mopbt.errors import MissingExtra
from mopbt.tasks.toy import ToyTask
from mopbt.trackers import MLflow, TensorBoard, WandB, base, follow, to_tensorboard, to_wandb
from mopbt.trackers.base import evaluations_of, population_metrics
from toys import SlowToy, Watcher
from trackers.recorder import Recorder


def test_a_branch_is_a_trial_between_two_exploits(results):
    evaluations = evaluations_of(results)
    assert sorted(e.model for e in evaluations) == [record["model"] for record in results.records()]
    by_job = {e.model: e for e in evaluations}
    for record in results.records():
        if record["start"] is None or record["parent"] == record["trial"]:
            continue
        recipient = by_job[record["model"]]
        donor = by_job[record["start"]]
        assert recipient.branch.fork is donor
        assert recipient.branch is not donor.branch
        assert recipient.branch.trial == record["trial"]
    assert any(e.branch.fork for e in evaluations)
    names = {(e.branch.id, e.branch.name) for e in evaluations}
    assert len({name for _, name in names}) == len(names) == len({e.branch.id for e in evaluations})


def test_the_forks_of_a_branch_are_the_lineage(results):
    by_job = {e.model: e for e in evaluations_of(results)}
    for point in results.front():
        expected = [by_job[ancestor.model].branch.id for ancestor in results.lineage(point)]
        walked = []
        branch = by_job[point.model].branch
        while branch is not None:
            walked.append(branch.id)
            branch = branch.fork.branch if branch.fork else None
        assert list(dict.fromkeys(expected)) == walked[::-1]


def test_the_last_population_metrics_are_those_of_the_run(results):
    rows = population_metrics(results, evaluations_of(results))
    assert [row.reports for row in rows] == list(range(1, len(results) + 1))
    assert rows[-1].metrics == {
        "hypervolume": pytest.approx(results.hypervolume()),
        "front": len(results.front()),
    }
    hypervolumes = [row.metrics["hypervolume"] for row in rows]
    assert hypervolumes == sorted(hypervolumes)


def test_nan_does_not_enter_the_front(tmp_path):
    @dataclass(frozen=True)
    class Diverging(ToyTask):
        def evaluate(self, model):
            return {"near": math.nan, "far": 1.0}

    results = mopbt.run(Diverging(steps=2), out=None, population=2, engine="local", progress=False)
    rows = population_metrics(results, evaluations_of(results))
    assert {row.metrics["front"] for row in rows} == {0.0}


def test_following_writes_each_report_once_also_after_a_resume(tmp_path):
    recorder = Recorder(tmp_path / "log")
    task = SlowToy(steps=8, seconds=0.05)

    def wait(progress):
        """Wait after 5 reports until the other process has started and written something."""
        deadline = time.monotonic() + 60
        while progress.reported == 5 and not recorder.jobs() and time.monotonic() < deadline:
            time.sleep(0.01)

    for jobs in (10, 1000):
        with follow(tmp_path / "run", recorder, every=0.05):
            results = mopbt.run(
                task,
                out=tmp_path / "run",
                population=4,
                engine="local",
                progress=False,
                callbacks=[Watcher(wait)],
                budget=mopbt.Budget(jobs=jobs),
            )
    assert sorted(recorder.jobs()) == list(range(16))
    assert sorted(e.model for e in evaluations_of(results)) == list(range(16))
    assert recorder.lines().count("end") == 2
    # More lines than two sessions with one `write` and one `end` each: it wrote during the run.
    assert len(recorder.lines()) > 4


def test_a_tracker_is_a_callback_that_logs_each_report_once_also_after_a_resume(tmp_path):
    recorder = Recorder(tmp_path / "log")
    options = {"population": 4, "engine": "local", "progress": False, "callbacks": [recorder]}
    for jobs in (10, 1000):
        budget = mopbt.Budget(jobs=jobs)
        mopbt.run(ToyTask(steps=8), out=tmp_path / "run", budget=budget, **options)
    assert sorted(recorder.jobs()) == list(range(16))
    assert recorder.lines().count("end") == 2


def test_a_tracker_that_fails_as_a_callback_is_a_warning(tmp_path):
    bad = Recorder(tmp_path / "bad", fails=True)
    options = {"population": 4, "engine": "local", "progress": False, "callbacks": [bad]}
    with pytest.warns(UserWarning, match="Recorder could not follow .*: OSError: the server"):
        results = mopbt.run(ToyTask(steps=4), out=tmp_path / "run", **options)
    assert results.outcome == "done"


def test_a_tracker_cannot_follow_a_run_in_memory(tmp_path):
    options = {"population": 4, "engine": "local", "progress": False}
    callbacks = [Recorder(tmp_path / "log")]
    with pytest.raises(ValueError, match="got a run in memory; give `out` a directory"):
        mopbt.run(ToyTask(steps=4), out=None, callbacks=callbacks, **options)


def test_a_tracker_that_fails_is_a_warning_and_does_not_affect_the_run(tmp_path):
    good = Recorder(tmp_path / "good")
    bad = Recorder(tmp_path / "bad", fails=True)
    message = r"Recorder could not follow .*: OSError: the server is gone; .*track\(Results\.open"
    with pytest.warns(UserWarning, match=message), follow(tmp_path / "run", bad, good, every=0.05):
        results = mopbt.run(
            ToyTask(steps=4), out=tmp_path / "run", population=4, engine="local", progress=False
        )
    assert results.outcome == "done"
    assert len(good.jobs()) == len(results)
    assert bad.lines()[-1] == "end"


def test_a_follower_that_is_killed_is_a_warning(tmp_path):
    following = follow(tmp_path / "run", Recorder(tmp_path / "log")).__enter__()
    following._worker.kill()
    results = mopbt.run(
        ToyTask(steps=4), out=tmp_path / "run", population=4, engine="local", progress=False
    )
    assert results.outcome == "done"
    with pytest.warns(UserWarning, match=r"the process that follows the run died \(exit code -9\)"):
        following.__exit__(None, None, None)


def test_the_log_is_complete_when_the_process_of_the_run_is_killed(tmp_path):
    """The follower sees that the process is gone, reads the journal once more and ends."""
    run = str(tmp_path / "run")
    program = f"""
import os, signal, mopbt
from trackers.recorder import Recorder
from mopbt.trackers import follow
from mopbt.tasks.toy import ToyTask
with follow({run!r}, Recorder({str(tmp_path / "log")!r}), every=60):
    mopbt.run(ToyTask(steps=4), out={run!r}, population=4, engine="local", progress=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
    )
    assert done.returncode == -9
    recorder = Recorder(tmp_path / "log")
    deadline = time.monotonic() + 30
    while "end" not in recorder.lines() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sorted(recorder.jobs()) == list(range(8))
    assert recorder.lines()[-1] == "end"


def test_following_a_run_that_never_starts_ends(tmp_path):
    with follow(tmp_path / "nothing", Recorder(tmp_path / "log"), every=0.01):
        pass
    assert Recorder(tmp_path / "log").lines() == []


@pytest.mark.parametrize(
    ("trackers", "message"),
    [((), "at least one tracker"), ((TensorBoard("x"),), "`every` must be a number")],
)
def test_wrong_arguments_say_what_is_allowed(trackers, message):
    with pytest.raises(ValueError, match=message):
        follow("runs/a", *trackers, every=0)


def test_a_missing_package_names_the_extra(results, tmp_path, monkeypatch):
    def fail(name):
        raise ImportError(name)

    monkeypatch.setattr(base.importlib, "import_module", fail)
    for tracker, extra in (
        (TensorBoard(tmp_path), "tensorboard"),
        (WandB(tmp_path), "wandb"),
        (MLflow(), "mlflow"),
    ):
        with pytest.raises(MissingExtra, match=rf"pip install 'mopbt\[{extra}\]'"):
            tracker.begin(results)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_private_log_names_neither_the_host_nor_the_run(kind, tmp_path, monkeypatch):
    pytest.importorskip(kind)
    run = tmp_path / "secret-name"
    options = {"population": 4, "engine": "local", "progress": False}
    results = mopbt.run(ToyTask(steps=4), out=run, **options)
    monkeypatch.chdir(tmp_path)
    # A short name could be found in any bytes.
    host = "host-of-this-test"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    {"tensorboard": to_tensorboard, "wandb": to_wandb}[kind](results, "logs", private=True)
    for path in Path("logs").rglob("*"):
        assert host not in path.name
        # W&B links its newest run by absolute paths, and logs what it does for itself.
        if path.is_file() and path.suffix != ".log":
            assert b"secret-name" not in path.read_bytes()
            assert host.encode() not in path.read_bytes()
