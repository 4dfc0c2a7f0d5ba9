"""MLflow runs, read back with MLflow's own client."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mopbt
from mopbt.tasks.toy import ToyTask
from mopbt.trackers import mlflow as tracker
from mopbt.trackers import to_mlflow
from mopbt.trackers.base import evaluations_of
from trackers.dying import SECOND, log_and_die
from trackers.expected import branches, expected_curves


@given(st.lists(st.integers(1, 10**6), max_size=30), st.integers(1, 7))
def test_batches_contain_every_item_once(items, size):
    batches = list(tracker._batches(items, size))
    assert [item for batch in batches for item in batch] == items
    assert all(0 < len(batch) <= size for batch in batches)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tags_params_and_metrics_are_those_of_the_run(results, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    to_mlflow(results, uri, experiment="toys")
    # The second call must add nothing.
    to_mlflow(results, uri, experiment="toys")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("toys").experiment_id
    found = client.search_runs([experiment], max_results=1000)
    runs = {run.info.run_name: run for run in found}
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
            donor = runs[branch.fork.branch.name]
            assert run.data.tags["mopbt.forked_from"] == donor.info.run_id
    first = next(e for e in evaluations_of(results) if e.branch.fork)
    run = runs[first.branch.name]
    assert run.data.params["style"] == first.hp["style"]
    assert float(run.data.params["lr"]) == first.hp["lr"]
    shown = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "near")}
    assert shown == expected_curves(results, first.branch.name)["near"]


# At these calls the process is killed: when the new position is saved, and when the metrics of the
# population are logged, which are the last ones.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "killing",
    [
        "set_tag = tracker._set_tag; "
        "tracker._set_tag = lambda name, value: (set_tag if name.endswith('pending') else die)"
        "(name, value)",
        "log = tracker._client.log_batch; "
        "tracker._client.log_batch = lambda run, **batch: (die if run == tracker._parent else log)"
        "(run, **batch)",
    ],
    ids=["position", "metrics"],
)
def test_reports_are_logged_once_if_the_tracker_is_killed(results, tmp_path, killing):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    log_and_die(results.path, f"MLflow({uri!r})", killing)
    to_mlflow(results, uri)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("mopbt").experiment_id
    runs = {run.info.run_name: run.info for run in client.search_runs([experiment])}
    history = client.get_metric_history(runs.pop("toy").run_id, "hypervolume")
    assert sorted(metric.step for metric in history) == list(range(1, len(results) + 1))
    assert len(results) > SECOND
    assert set(runs) == set(branches(results))
    for name, run in runs.items():
        for score, curve in expected_curves(results, name).items():
            history = client.get_metric_history(run.run_id, score)
            assert sorted(metric.step for metric in history) == sorted(curve)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_model_of_the_front_is_a_logged_model(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    task = ToyTask(steps=8)
    options = {"population": 4, "engine": "local", "progress": False}
    results = mopbt.run(task, out=tmp_path / "run", **options)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    to_mlflow(results, uri, models=True)
    # The second call must add nothing.
    to_mlflow(results, uri, models=True)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("mopbt").experiment_id
    logged = {int(m.tags["mopbt.model"]): m for m in client.search_logged_models([experiment])}
    assert set(logged) == {point.model for point in results.front()}
    for point in results.front():
        model = logged[point.model]
        assert model.name == f"model-{point.model}"
        assert model.status == "READY"
        assert {m.key: m.value for m in model.metrics} == pytest.approx(dict(point.scores))
        assert float(model.params["lr"]) == point.hp["lr"]
        run = client.get_run(model.source_run_id)
        assert run.data.params["trial"] == str(point.trial)
        files = client.list_logged_model_artifacts(model.model_id)
        names = {file.path.rpartition("/")[2] for file in files}
        assert names == {"model.safetensors", "model.json", "model.md"}
    # The database has a folder of its own for models: nothing is written elsewhere.
    assert {path.name for path in tmp_path.iterdir()} == {"run", "mlflow.db", "mlflow-models"}

    longer = mopbt.run(task, out=tmp_path / "run", extend={"steps": 16}, **options)
    to_mlflow(longer, uri, models=True)
    on_front = {}
    for model in client.search_logged_models([experiment]):
        on_front[int(model.tags["mopbt.model"])] = model.tags["mopbt.front"] == "true"
    assert set(logged) <= set(on_front)
    assert {model for model, is_on in on_front.items() if is_on} == {
        point.model for point in longer.front()
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_private_log_names_no_place(tmp_path, monkeypatch):
    pytest.importorskip("sqlalchemy")
    run = tmp_path / "secret-name"
    options = {"population": 4, "engine": "local", "progress": False}
    results = mopbt.run(ToyTask(steps=4), out=run, **options)
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-this-test")
    to_mlflow(results, f"sqlite:///{logs / 'mlflow.db'}", models=True, private=True)
    written = b"".join(path.read_bytes() for path in logs.rglob("*") if path.is_file())
    assert b"secret-name" not in written
    assert b"host-of-this-test" not in written
