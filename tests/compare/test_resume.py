"""Resuming a comparison that was interrupted, damaged or changed."""

import json
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest

from compare.helpers import COMMAND, COST, ONE_RUN, changed, experiment, plain, task
from mopbt import Results
from mopbt.compare import (
    compare,
    recompute,
)
from mopbt.compare.directory import read_about
from mopbt.compare.report import write_report
from mopbt.compare.worker import RunSpec, execute_run
from mopbt.errors import (
    RunMismatch,
    StoreError,
)
from mopbt.locking import holder_of
from mopbt.registry import task_fingerprint


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_resumes_after_a_signal_with_the_same_results(place, tmp_path, number):
    slow = experiment(place, "slow", seeds=2)
    (tmp_path / "slow.toml").write_text(slow.to_toml())
    command = [*COMMAND, "slow.toml", "--out", "out", "--jobs", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    runs = [tmp_path / "out" / run.directory for run in slow.plan()]
    asha = runs[2] / "journal.jsonl"
    # MO-ASHA starts after both runs of MO-PBT have finished.
    wait_until(lambda: asha.exists() and asha.read_text().count("reports") >= 2)
    (tmp_path / "signalled").touch()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    recorded, signalled = (
        (tmp_path / name).stat().st_mtime_ns for name in ("out/about.json", "signalled")
    )
    assert (recorded >= signalled) == (number == signal.SIGINT), (
        "an interrupted session records its duration, a killed one cannot"
    )
    assert ("stopped (interrupted); nothing reported is lost" in errors) == (
        number == signal.SIGINT
    )
    wait_until(lambda: not any(holder_of(run) for run in runs), 10)
    before = {
        run: (run / "journal.jsonl").read_bytes()
        for run in runs
        if (run / "journal.jsonl").exists()
    }
    assert [(run / "finished.json").exists() for run in runs[:2]] == [True, True]
    assert not all((run / "finished.json").exists() for run in runs)
    comparison = compare(tmp_path / "slow.toml", out=tmp_path / "out", jobs=2, progress=False)
    for run, journal in before.items():
        assert (run / "journal.jsonl").read_bytes().startswith(journal[: journal.rfind(b"\n") + 1])
        is_finished = runs.index(run) < 2
        assert ((run / "journal.jsonl").read_bytes() == journal) == is_finished
    uninterrupted = compare(slow, out=tmp_path / "uninterrupted", jobs=2, progress=False)
    for mine, theirs in zip(comparison.runs, uninterrupted.runs, strict=True):
        for name in ("jobs", "trials", "steps", "seconds", "objectives", "positions"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_a_run_with_missing_checkpoints_restarts(place, tmp_path):
    """A power cut may lose checkpoints of reports, because nothing waits for the disk.

    The run restarts, so that no member fails for that.
    """
    spec = RunSpec(
        path=str(tmp_path / "run"),
        task=task(place, "short"),
        algorithm={"name": "mo-pbt", "population": 6},
        constraints=(),
        seed=0,
        workers=4,
        cost=COST,
        stack=1,
        seconds=4 * COST,
        keep_models=False,
        task_fingerprint=task_fingerprint(task(place, "short")),
    )
    execute_run(replace(spec, keep_models=True), lambda _: None)
    (tmp_path / "run" / "finished.json").unlink()
    max((tmp_path / "run" / "checkpoints").glob("*.ckpt"), key=lambda file: int(file.stem)).unlink()
    uninterrupted = execute_run(
        replace(spec, path=str(tmp_path / "uninterrupted"), seconds=None), lambda _: None
    )
    restarted = execute_run(replace(spec, seconds=None), lambda _: None)
    assert (restarted["evaluations"], restarted["failures"]) == (uninterrupted["evaluations"], 0)
    assert plain(Results.open(tmp_path / "run")) == plain(Results.open(tmp_path / "uninterrupted"))


@pytest.mark.slow
def test_files_left_by_a_kill_do_no_harm(small, place, tmp_path):
    (tmp_path / "experiment.toml.123.tmp").touch()
    one = experiment(
        place, "short", seeds=1, algorithms={"MO-PBT": {"name": "mo-pbt", "population": 6}}
    )
    half = tmp_path / f"{one.plan()[0].directory}.tmp"  # an unfinished copy
    assert not compare(one, out=tmp_path, jobs=1, progress=False).missing
    half.mkdir()
    (half / "run.toml").touch()
    shutil.rmtree(tmp_path / one.plan()[0].directory)
    again = compare(one, out=tmp_path, jobs=1, progress=False, reuse=[small[1]])
    assert not again.missing
    assert not half.exists()


def test_runs_with_different_costs_are_not_compared(place, tmp_path):
    two_runs = ONE_RUN | {"seeds": 2}
    out, quick = tmp_path / "out", experiment(place, "quick", cost="measured", **two_runs)
    compare(quick, out=out, jobs=1, progress=False)
    about = read_about(out)
    about["tasks"][quick.tasks[0]]["cost"] = 123.0
    (out / "about.json").write_text(json.dumps(about))
    (out / quick.plan()[0].directory / "finished.json").unlink()
    with pytest.raises(
        RunMismatch,
        match=r"was run with .* virtual seconds a step, but about.json says 123.0; restore",
    ):
        compare(quick, out=out, jobs=1, progress=False)


@pytest.mark.slow
def test_an_unfinished_run_with_another_cost_restarts(place, tmp_path):
    out, quick = tmp_path / "out", experiment(place, "quick", **ONE_RUN)
    compare(quick, out=out, jobs=1, progress=False)
    first = out / quick.plan()[0].directory
    changed(first, "0.49", "0.4")
    (first / "finished.json").unlink()
    compare(quick, out=out, jobs=1, progress=False)
    assert "0.49" in (first / "run.toml").read_text()


def test_a_run_beyond_its_time_restarts(place, tmp_path, capfd):
    """Resumed outside its comparison, MO-ASHA would have more time than MO-PBT."""
    spec = RunSpec(
        path=str(tmp_path / "run"),
        task=task(place, "short"),
        algorithm={"name": "mo-asha"},
        constraints=(),
        seed=0,
        workers=4,
        cost=COST,
        stack=1,
        seconds=8 * COST,
        keep_models=True,
        task_fingerprint=task_fingerprint(task(place, "short")),
    )
    execute_run(spec, lambda _: None)
    (tmp_path / "run" / "finished.json").unlink()
    assert execute_run(replace(spec, seconds=4 * COST), lambda _: None)["seconds"] <= 4 * COST
    assert (
        "restarts: it has run for 3.43 virtual seconds, but its budget is 1.96"
        in capfd.readouterr().err
    )


def test_code_that_changes_during_a_comparison_is_noticed(tmp_path):
    """A run must be marked with the code that its process has loaded, not with that on disk."""
    (tmp_path / "mine.py").write_text(
        "from mopbt.testing import ToyTask\nclass Mine(ToyTask):\n    pass\n"
    )
    reference = f"{tmp_path / 'mine.py'}:Mine"
    spec = RunSpec(
        path=str(tmp_path / "one"),
        task=reference,
        algorithm={"name": "random-search", "population": 2},
        constraints=(),
        seed=0,
        workers=2,
        cost=COST,
        stack=1,
        seconds=None,
        keep_models=False,
        task_fingerprint=task_fingerprint(reference),
    )
    execute_run(spec, lambda _: None)
    with (tmp_path / "mine.py").open("a") as file:
        file.write("    more = 1\n")
    # This process has loaded the old code, and records it.
    execute_run(replace(spec, path=str(tmp_path / "two")), lambda _: None)
    assert spec.task_fingerprint in (tmp_path / "two" / "run.toml").read_text()
    with pytest.raises(
        RunMismatch,
        match=r"the code of .*mine.py:Mine changed during the comparison; rerun the same command",
    ):
        execute_run(
            replace(
                spec, path=str(tmp_path / "three"), task_fingerprint=task_fingerprint(reference)
            ),
            lambda _: None,
        )


def test_a_comparison_that_was_published_without_its_runs_is_not_replaced(small, place, tmp_path):
    """A new run would overwrite the published tables with those of one run."""
    shutil.copytree(small[1], tmp_path / "out", ignore=shutil.ignore_patterns("runs", "lock"))
    write_report(small[0], tmp_path / "out", figures=False)
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with pytest.raises(
        RunMismatch,
        match=r"out was published without its 8 runs: .*; use another directory for `out`",
    ):
        compare(experiment(place, "short", "Mixed"), out=tmp_path / "out", progress=False)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_the_description_of_an_experiment_may_change(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    described = experiment(place, "short", "Mixed", about="now I know", figures=("final",))
    assert recompute(described, out=tmp_path / "out").experiment.figures == ("final",)
    assert "now I know" in (tmp_path / "out" / "experiment.toml").read_text()


def test_a_changed_task_is_an_error(small, place, tmp_path):
    """Runs of two versions of a task must not be compared in one table."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    first, *_, last = [run for run in usual.plan() if run.task.endswith("short")]
    changed(tmp_path / "out" / last.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    assert recompute(usual, out=tmp_path / "out").mixed == (first.task,)
    changed(tmp_path / "out" / last.directory, "steps = 6", "steps = 5")
    with pytest.raises(RunMismatch, match=r"runs of .*short in .* are of different tasks"):
        recompute(usual, out=tmp_path / "out")
    (tmp_path / "out" / first.directory / "finished.json").unlink()
    with pytest.raises(
        RunMismatch,
        match=r"the task has changed since .* was run: steps is 6, it was 5; change it back",
    ):
        compare(usual, out=tmp_path / "out", progress=False)


def test_tasks_that_changed_after_all_runs_are_reported(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    assert compare(usual, out=tmp_path / "out", progress=False).changed == ()
    for run in usual.plan():
        changed(tmp_path / "out" / run.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    assert compare(usual, out=tmp_path / "out", progress=False).changed == usual.tasks


@pytest.mark.slow
def test_a_damaged_finished_run_is_an_error_before_any_run(small, place, tmp_path):
    """Otherwise it would be found after all other runs, and there would be no tables."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    first, *_, last = [tmp_path / "out" / run.directory for run in usual.plan()]
    shutil.rmtree(last)
    lines = (first / "journal.jsonl").read_text().splitlines(keepends=True)
    (first / "journal.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(
        StoreError,
        match=r"mo-pbt/0 has changed .*journal has \d+ bytes, but finished.json says \d+; ",
    ):
        compare(usual, out=tmp_path / "out", jobs=1, progress=False)
    assert not last.exists()
    other = compare(
        replace(usual, name="other"),
        out=tmp_path / "other",
        jobs=1,
        progress=False,
        reuse=[tmp_path / "out"],
    )
    assert not other.missing, "a damaged run is repeated, not reused"
    assert len(other.runs[0]) == len(small[0].runs[0])
    shutil.rmtree(first)
    assert not compare(usual, out=tmp_path / "out", jobs=1, progress=False).missing, (
        "the remedy works"
    )


@pytest.mark.parametrize("key", ["bytes", "evaluations"])
def test_a_marker_must_fit_its_journal(small, place, tmp_path, key):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    file = tmp_path / "out" / usual.plan()[0].directory / "finished.json"
    marker = json.loads(file.read_text())
    file.write_text(json.dumps(marker | {key: marker[key] + 1}))
    with pytest.raises(
        StoreError,
        match=rf"mo-pbt/0 has changed .*journal has {marker[key]} {key}, but finished.json says",
    ):
        recompute(usual, out=tmp_path / "out")
    del marker[key]
    file.write_text(json.dumps(marker))
    with pytest.raises(StoreError, match=rf"finished.json is damaged \(it has no '{key}'\)"):
        recompute(usual, out=tmp_path / "out")
