"""What trackers show is what the journal says, read back with each tracker's own reader."""

import json
import math
import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mopbt
from mopbt.errors import MissingExtra
from mopbt.tasks.toy import ToyTask
from mopbt.trackers import services as trackers
from mopbt.trackers.base import evaluations_of, standings_of
from mopbt.trackers.services import (
    MLflow,
    TensorBoard,
    WandB,
    follow,
    to_mlflow,
    to_tensorboard,
    to_wandb,
    track,
)
from toys import SlowToy
from trackers.recorder import Recorder


@dataclass(frozen=True)
class Wordy(ToyTask):
    """A toy with a hyperparameter that is a word, and one that fails at times."""

    @property
    def space(self):
        return {**super().space, "style": mopbt.Categorical(["round", "square"])}

    def train(self, model, hp, begin, end, seed):
        assert hp["style"]
        if hp["weight"] == 1:
            raise ZeroDivisionError
        return super().train(model, hp, begin, end, seed)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "toy"
    return mopbt.run(Wordy(steps=12), out=out, population=8, engine="local", progress=False)


def test_a_branch_is_a_trial_between_two_exploits(results):
    evaluations = evaluations_of(results)
    assert sorted(e.job for e in evaluations) == [record["job"] for record in results.records()]
    by_job = {e.job: e for e in evaluations}
    for record in results.records():
        if record["start"] is None or record["parent"] == record["trial"]:
            continue
        heir, donor = by_job[record["job"]], by_job[record["start"]]
        assert heir.branch.fork is donor
        assert heir.branch is not donor.branch
        assert heir.branch.trial == record["trial"]
    assert any(e.branch.fork for e in evaluations)
    names = {(e.branch.id, e.branch.name) for e in evaluations}
    assert len({name for _, name in names}) == len(names) == len({e.branch.id for e in evaluations})


def test_branches_put_together_are_the_lineage(results):
    by_job = {e.job: e for e in evaluations_of(results)}
    for point in results.front():
        expected = [
            ancestor.branch.id for ancestor in (by_job[a.job] for a in results.lineage(point))
        ]
        walked, branch = [], by_job[point.job].branch
        while branch is not None:
            walked.append(branch.id)
            branch = branch.fork.branch if branch.fork else None
        assert list(dict.fromkeys(expected)) == walked[::-1]


def test_standings_end_where_the_run_stands(results):
    standings = standings_of(results, evaluations_of(results))
    assert [s.reports for s in standings] == list(range(1, len(results) + 1))
    assert standings[-1].measures == {
        "hypervolume": pytest.approx(results.hypervolume()),
        "front": len(results.front()),
    }
    reached = [s.measures["hypervolume"] for s in standings]
    assert reached == sorted(reached)


@given(st.lists(st.integers(1, 10**6), max_size=30), st.integers(1, 7))
def test_pieces_put_together_are_the_whole(items, size):
    pieces = list(trackers._pieces(items, size))
    assert [item for piece in pieces for item in piece] == items
    assert all(0 < len(piece) <= size for piece in pieces)


def test_following_writes_each_report_once_also_over_a_resume(tmp_path):
    recorder, task = Recorder(tmp_path / "said"), SlowToy(steps=8, seconds=0.05)

    def wait(progress):
        """Wait in the middle until something is written, however long the other process takes to begin."""
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
                progress=wait,
                budget=mopbt.Budget(jobs=jobs),
            )
    assert (
        sorted(recorder.jobs()) == list(range(16)) == sorted(e.job for e in evaluations_of(results))
    )
    assert recorder.lines().count("end") == 2
    assert len(recorder.lines()) > 4  # while it went on, too


def test_a_tracker_that_fails_is_a_warning_and_the_run_goes_on(tmp_path):
    good, bad = Recorder(tmp_path / "good"), Recorder(tmp_path / "bad", fails=True)
    message = "Recorder could not follow .*: OSError: the server is gone; the run itself is whole"
    with pytest.warns(UserWarning, match=message), follow(tmp_path / "run", bad, good, every=0.05):
        results = mopbt.run(
            ToyTask(steps=4), out=tmp_path / "run", population=4, engine="local", progress=False
        )
    assert results.outcome == "done"
    assert len(good.jobs()) == len(results)
    assert bad.lines()[-1] == "end"


def test_a_follower_that_is_killed_is_a_warning(tmp_path):
    following = follow(tmp_path / "run", Recorder(tmp_path / "said")).__enter__()
    following._process.kill()
    results = mopbt.run(
        ToyTask(steps=4), out=tmp_path / "run", population=4, engine="local", progress=False
    )
    assert results.outcome == "done"
    with pytest.warns(UserWarning, match=r"the process that follows the run died \(exit code -9\)"):
        following.__exit__(None, None, None)


def test_the_log_is_finished_when_the_driving_process_is_killed(tmp_path):
    """The follower notices that the process which started it is gone, looks once more, and closes the log."""
    program = f"""
import os, signal, mopbt
from trackers.recorder import Recorder
from mopbt.trackers.services import follow
from mopbt.tasks.toy import ToyTask
with follow({str(tmp_path / "run")!r}, Recorder({str(tmp_path / "said")!r}), every=60):
    mopbt.run(ToyTask(steps=4), out={str(tmp_path / "run")!r}, population=4, engine="local", progress=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    tests = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": str(tests)},
        timeout=60,
    )
    assert done.returncode == -9
    recorder, patience = Recorder(tmp_path / "said"), time.monotonic() + 30
    while "end" not in recorder.lines() and time.monotonic() < patience:
        time.sleep(0.05)
    assert sorted(recorder.jobs()) == list(range(8))
    assert recorder.lines()[-1] == "end"


def test_following_a_run_that_never_begins_ends(tmp_path):
    with follow(tmp_path / "nothing", Recorder(tmp_path / "said"), every=0.01):
        pass
    assert Recorder(tmp_path / "said").lines() == []


@pytest.mark.parametrize(
    ("trackers", "message"),
    [((), "at least one tracker"), ((TensorBoard("x"),), "`every` must be a number")],
)
def test_wrong_arguments_say_what_is_allowed(trackers, message):
    with pytest.raises(ValueError, match=message):
        follow("runs/a", *trackers, every=0)


def test_a_missing_package_names_the_extra(results, tmp_path, monkeypatch):
    def gone(name):
        raise ImportError(name)

    monkeypatch.setattr(trackers.importlib, "import_module", gone)
    for tracker, extra in (
        (TensorBoard(tmp_path), "tensorboard"),
        (WandB(tmp_path), "wandb"),
        (MLflow(), "mlflow"),
    ):
        with pytest.raises(MissingExtra, match=rf"pip install 'mopbt\[{extra}\]'"):
            tracker.begin(results)


# Each tracker's own reader.


def expected_curves(results, branch_name):
    """Return a branch's scores by step, worked out from the records: its own, and the donor's where it begins."""
    curves = defaultdict(dict)
    for e in evaluations_of(results):
        if e.branch.name != branch_name:
            continue
        if e.first and e.branch.fork:
            for name, score in e.branch.fork.scores.items():
                curves[name][e.branch.fork.step] = score
        for name, score in e.scores.items():
            curves[name][e.step] = score
    return curves


def branches(results):
    return {e.branch.name: e.branch for e in evaluations_of(results)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestTensorBoard:
    def read(self, directory):
        reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        runs = {}
        for folder in sorted(d for d in directory.iterdir() if d.is_dir()):
            runs[folder.name] = reading.EventAccumulator(
                str(folder), size_guidance={"scalars": 0, "tensors": 0}
            )
            runs[folder.name].Reload()
        return runs

    def test_scalars_of_each_branch_and_of_the_population_are_the_runs(self, results, tmp_path):
        pytest.importorskip("tensorboard")
        to_tensorboard(results, tmp_path / "logs")
        runs = self.read(tmp_path / "logs")
        assert set(runs) == {"population", *branches(results)}
        for name in branches(results):
            for score, curve in expected_curves(results, name).items():
                shown = {event.step: event.value for event in runs[name].Scalars(f"scores/{score}")}
                assert shown == pytest.approx(curve, rel=1e-6)  # TensorBoard keeps 32 bits
        hypervolume = runs["population"].Scalars("hypervolume")
        assert hypervolume[-1].value == pytest.approx(results.hypervolume(), rel=1e-6)
        assert [event.step for event in hypervolume] == list(range(1, len(results) + 1))
        first = next(e for e in evaluations_of(results) if e.branch.fork)
        assert (
            b"forked from"
            in runs[first.branch.name].Tensors("origin/text_summary")[0].tensor_proto.string_val[0]
        )
        assert runs[first.branch.name].Scalars("hyperparameters/lr")[0].value == pytest.approx(
            first.hp["lr"], rel=1e-6
        )

    def test_writing_again_adds_only_what_is_new(self, results, tmp_path):
        pytest.importorskip("tensorboard")
        to_tensorboard(results, tmp_path)
        to_tensorboard(results, tmp_path)
        assert len(self.read(tmp_path)["population"].Scalars("front")) == len(results)
        assert json.loads((tmp_path / "mopbt.json").read_text())["logged"] == len(results)
        other = mopbt.run(ToyTask(steps=2), out=None, population=2, engine="local", progress=False)
        with pytest.raises(
            ValueError, match="holds the log of another run; use a directory of its own"
        ):
            to_tensorboard(other, tmp_path)

    def test_no_more_files_are_open_than_allowed(self, results, tmp_path, monkeypatch):
        pytest.importorskip("tensorboard")
        monkeypatch.setattr(trackers, "OPEN", 2)
        tracker = TensorBoard(tmp_path)
        track(results, tracker)
        runs = self.read(tmp_path)
        assert set(runs) == {"population", *branches(results)}
        shown = sum(
            len(run.Scalars("scores/near"))
            for name, run in runs.items()
            if "scores/near" in run.Tags()["scalars"]
        )
        assert shown == sum(
            len(expected_curves(results, name)["near"]) for name in branches(results)
        )


@pytest.mark.filterwarnings("ignore")  # of the packages that it brings
class TestMLflow:
    @pytest.mark.slow
    def test_runs_tags_params_and_metrics_are_the_runs(self, results, tmp_path):
        mlflow = pytest.importorskip("mlflow")
        pytest.importorskip("sqlalchemy")
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        to_mlflow(results, uri, experiment="toys")
        to_mlflow(results, uri, experiment="toys")  # adds nothing
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name("toys").experiment_id
        runs = {
            run.info.run_name: run for run in client.search_runs([experiment], max_results=1000)
        }
        parent = runs.pop("toy")
        assert set(runs) == set(branches(results))
        history = client.get_metric_history(parent.info.run_id, "hypervolume")
        assert len(history) == len(results)
        assert max(history, key=lambda m: m.step).value == pytest.approx(results.hypervolume())
        for name, branch in branches(results).items():
            run = runs[name]
            assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert run.info.status == "FINISHED"
            if branch.fork:
                assert (
                    run.data.tags["mopbt.forked_from"] == runs[branch.fork.branch.name].info.run_id
                )
        first = next(e for e in evaluations_of(results) if e.branch.fork)
        run = runs[first.branch.name]
        assert run.data.params["style"] == first.hp["style"]
        assert float(run.data.params["lr"]) == first.hp["lr"]
        shown = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "near")}
        assert shown == expected_curves(results, first.branch.name)["near"]


@pytest.mark.filterwarnings("ignore")
class TestWandB:
    def read(self, directory):
        """Read the files that the offline mode leaves, as `wandb sync` does."""
        proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
        runs = {}
        for file in sorted(directory.rglob("run-*.wandb")):
            config, rows, name = {}, [], ""
            for data in self.records(file.read_bytes()):
                record = proto.Record()
                record.ParseFromString(data)
                if record.HasField("run"):
                    name = record.run.display_name
                    config |= {
                        item.key: json.loads(item.value_json) for item in record.run.config.update
                    }
                if record.HasField("history"):
                    row = {
                        (i.key or "/".join(i.nested_key)): json.loads(i.value_json)
                        for i in record.history.item
                    }
                    rows.append(row | {"_step": record.history.step.num})
            runs[name] = (file.stem.removeprefix("run-"), config, rows)
        return runs

    def records(self, data):
        """Go through the records of a log in LevelDB's format, which W&B uses after a head of seven bytes."""
        block, place, record = 32768, 7, b""
        while place + 7 <= len(data):
            if block - place % block < 7:
                place += block - place % block
                continue
            length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
            record += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # whole, or the last part
                yield record
                record = b""

    @pytest.mark.slow
    def test_histories_and_configurations_are_the_runs(self, results, tmp_path):
        pytest.importorskip("wandb")
        to_wandb(results, tmp_path / "wandb-logs")
        runs = self.read(tmp_path)
        assert set(runs) == {"population", *branches(results)}
        _, _, rows = runs["population"]
        assert rows[-1]["hypervolume"] == pytest.approx(results.hypervolume())
        assert len(rows) == len(results)
        for name, branch in branches(results).items():
            _, config, rows = runs[name]
            shown = {row["_step"]: row["near"] for row in rows if "near" in row}
            assert shown == pytest.approx(dict(expected_curves(results, name)["near"]))
            if branch.fork:
                assert config["forked_from"] == runs[branch.fork.branch.name][0]
                assert config["forked_at_step"] == branch.fork.step


def test_nan_is_no_standing(tmp_path):
    @dataclass(frozen=True)
    class Gone(ToyTask):
        def evaluate(self, model):
            return {"near": math.nan, "far": 1.0}

    results = mopbt.run(Gone(steps=2), out=None, population=2, engine="local", progress=False)
    assert {s.measures["front"] for s in standings_of(results, evaluations_of(results))} == {0.0}
