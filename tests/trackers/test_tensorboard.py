"""Event files, read back with TensorBoard's own reader."""

import json

import pytest

import mopbt
from mopbt.tasks.toy import ToyTask
from mopbt.trackers import TensorBoard, tensorboard, to_tensorboard, track
from mopbt.trackers.base import evaluations_of
from trackers.dying import FIRST, log_and_die, log_parts
from trackers.expected import branches, expected_curves

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(directory):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    runs = {}
    for folder in sorted(d for d in directory.iterdir() if d.is_dir()):
        runs[folder.name] = reader.EventAccumulator(
            str(folder), size_guidance={"scalars": 0, "tensors": 0}
        )
        runs[folder.name].Reload()
    return runs


def test_scalars_and_texts_are_those_of_the_run(results, tmp_path):
    to_tensorboard(results, tmp_path / "logs")
    runs = read(tmp_path / "logs")
    assert set(runs) == {"population", *branches(results)}
    for name in branches(results):
        for score, curve in expected_curves(results, name).items():
            shown = {event.step: event.value for event in runs[name].Scalars(f"scores/{score}")}
            # TensorBoard stores 32-bit floats.
            assert shown == pytest.approx(curve, rel=1e-6)
    hypervolume = runs["population"].Scalars("hypervolume")
    assert hypervolume[-1].value == pytest.approx(results.hypervolume(), rel=1e-6)
    assert [event.step for event in hypervolume] == list(range(1, len(results) + 1))
    first = next(e for e in evaluations_of(results) if e.branch.fork)
    run = runs[first.branch.name]
    origin = run.Tensors("origin/text_summary")[0].tensor_proto.string_val[0]
    assert b"forked from" in origin
    lr = run.Scalars("hyperparameters/lr")[0].value
    assert lr == pytest.approx(first.hp["lr"], rel=1e-6)


def test_writing_again_adds_only_new_reports(results, tmp_path):
    to_tensorboard(results, tmp_path)
    to_tensorboard(results, tmp_path)
    assert len(read(tmp_path)["population"].Scalars("front")) == len(results)
    assert json.loads((tmp_path / "mopbt.json").read_text())["logged"] == len(results)


def test_the_directory_of_another_run_is_refused(results, tmp_path):
    to_tensorboard(results, tmp_path)
    other = mopbt.run(ToyTask(steps=2), out=None, population=2, engine="local", progress=False)
    with pytest.raises(ValueError, match="holds the log of another run; use one directory for"):
        to_tensorboard(other, tmp_path)


def test_the_number_of_open_files_is_limited(results, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "MAX_OPEN_FILES", 2)
    track(results, TensorBoard(tmp_path))
    runs = read(tmp_path)
    assert set(runs) == {"population", *branches(results)}
    shown = sum(
        len(run.Scalars("scores/near"))
        for run in runs.values()
        if "scores/near" in run.Tags()["scalars"]
    )
    assert shown == sum(len(expected_curves(results, name)["near"]) for name in branches(results))


def check_each_report_once(results, runs):
    # TensorBoard reads files of the same second in the order of their process ids.
    steps = [event.step for event in runs["population"].Scalars("hypervolume")]
    assert sorted(steps) == list(range(1, len(results) + 1))
    for name in branches(results):
        for score, curve in expected_curves(results, name).items():
            shown = [event.step for event in runs[name].Scalars(f"scores/{score}")]
            assert sorted(shown) == sorted(curve)


@pytest.mark.slow
def test_reports_are_logged_once_if_the_tracker_is_killed_before_it_saves_its_position(
    results, tmp_path
):
    log_and_die(
        results.path,
        f"TensorBoard({str(tmp_path)!r})",
        "import mopbt.trackers.base as base; base.LogPosition.commit = die",
    )
    assert len(read(tmp_path)["population"].Scalars("front")) > FIRST
    to_tensorboard(results, tmp_path)
    check_each_report_once(results, read(tmp_path))


def test_reports_are_logged_once_if_writing_them_fails_midway(results, tmp_path, monkeypatch):
    tracker = TensorBoard(tmp_path)
    write = tracker._write_evaluation
    written = []

    def fail_midway(evaluation):
        write(evaluation)
        written.append(evaluation)
        if len(written) == FIRST + 4:
            raise OSError("no space left")

    monkeypatch.setattr(tracker, "_write_evaluation", fail_midway)
    with pytest.raises(OSError, match="no space left"):
        list(log_parts(results.path, tracker))
    tracker.end()
    to_tensorboard(results, tmp_path)
    check_each_report_once(results, read(tmp_path))
