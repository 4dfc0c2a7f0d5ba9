"""Plans: what a run will take, against runs and counts by hand."""

import json

import numpy as np
import pytest

import mopbt
from mopbt import MOPBT, Budget, RandomSearch
from mopbt.cli import main as command_line
from mopbt.planning import most_checkpoints, suggested_timeout
from mopbt.tasks.toy import ToyTask


@pytest.mark.parametrize(
    ("jobs", "members", "keep", "most"),
    [
        (1600, 32, None, 1600),
        (1600, 32, 20, 116),
        (6, 2, None, 6),
        (6, 2, 1, 6),
        (None, 32, 20, 116),
        (None, 32, None, None),
        (300, None, 20, 300),
    ],
)
def test_the_most_checkpoints(jobs, members, keep, most):
    assert most_checkpoints(jobs, members, keep) == most


@pytest.mark.parametrize(
    ("seconds", "timeout"),
    [(0.0, 60), (0.01, 60), (6.0, 60), (6.1, 70), (10.0, 100), (10.1, 200), (3600, 40_000)],
)
def test_the_suggested_timeout_is_generous_and_round(seconds, timeout):
    assert suggested_timeout(seconds) == timeout


@pytest.mark.parametrize(
    "algorithm",
    [MOPBT(population=6), MOPBT(population=6, asynchronous=True), RandomSearch(population=6)],
    ids=str,
)
@pytest.mark.parametrize("keep", [None, 2])
def test_a_run_has_no_more_checkpoints_than_planned(tmp_path, algorithm, keep):
    task = ToyTask()
    plan = mopbt.plan(task, algorithm=algorithm, engine="local", keep=keep)
    most = [0]

    class Count(mopbt.Callback):
        def on_report(self, run, reports):
            most[0] = max(most[0], len(run.checkpoints.kept()))

    results = mopbt.run(
        task,
        out=tmp_path / "run",
        algorithm=algorithm,
        engine="local",
        keep=keep,
        progress=False,
        callbacks=[Count()],
    )
    assert plan.jobs == len(results)
    assert 6 <= most[0] <= plan.checkpoints
    front = results.front()[0]
    if front.model in results.models_with_weights():
        assert plan.checkpoint_bytes == len(results.checkpoint(front))
    assert plan.disk_bytes == plan.checkpoints * plan.checkpoint_bytes
    assert (plan.engine, plan.workers, plan.stack) == ("local", 1, 1)
    assert plan.seconds == pytest.approx(plan.jobs * plan.seconds_per_interval)
    assert plan.work_seconds == pytest.approx(plan.seconds)


def test_a_training_function_and_a_budget():
    calls = []

    def train(m):
        x = m.hp["x"]
        calls.append(x)
        place = np.zeros(1)
        m.track(place=place)
        for _ in m.steps():
            place += x + 1
            m.report(a=x, b=-x)

    plan = mopbt.plan(
        train,
        space={"x": mopbt.Grid(0, 1, 5)},
        objectives={"a": "max", "b": "max"},
        steps=8,
        interval=2,
        population=4,
        engine="local",
        budget=Budget(jobs=10),
    )
    assert calls
    assert plan.jobs == 10
    assert plan.flops is None
    text = str(plan)
    assert "8 steps in intervals of 2, 10 intervals" in text
    assert "operations   unknown" in text


def test_the_start_of_workers_counts():
    plan = mopbt.plan(ToyTask(), population=4, engine="pool", engine_options={"workers": 2})
    intervals = plan.jobs * plan.seconds_per_interval
    # A process of Python that imports numpy takes more than a tenth of a second.
    start = plan.seconds - intervals / 2
    assert start > 0.1
    assert plan.work_seconds == pytest.approx(intervals + 2 * start)


def test_only_about_a_second_is_trained():
    trained = []

    class Slow(ToyTask):
        def train(self, model, hp, begin, end, seed):
            trained.append(begin)
            return super().train(model, hp, begin, end, seed)

    mopbt.plan(Slow(), population=4, engine="local")
    # Two members of ten intervals at most.
    assert 1 <= len(trained) <= 20


def test_a_task_that_always_fails_is_an_error():
    class Broken(ToyTask):
        def train(self, model, hp, begin, end, seed):
            raise ZeroDivisionError("broken")

    with pytest.raises(mopbt.MopbtError, match="interval that was to be measured failed"):
        mopbt.plan(Broken(), population=4, engine="local")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "`keep` must be a whole number of at least 1, got 0"),
        ({"engine": "pol"}, "did you mean 'pool'"),
        ({"engine": "local", "engine_options": {"stack": 2}}, "`stack` is for the engines"),
        ({"algorithm": "mopbt"}, "did you mean 'mo-pbt'"),
    ],
)
def test_wrong_arguments_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        mopbt.plan(ToyTask(), **options)


def main(arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mopbt", *arguments])
    try:
        command_line()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_the_command(capsys, monkeypatch):
    options = ["--population", "4", "--engine", "local", "--keep", "2"]
    assert main(["plan", "toy", *options, "--json"], monkeypatch) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["task"], plan["members"], plan["keep"]) == ("toy", 4, 2)
    assert plan["checkpoints"] == 14
    assert plan["timeout"] == 60
    assert main(["plan", "toy", *options], monkeypatch) == 0
    assert "14 checkpoints, `keep` of 2" in capsys.readouterr().out
    assert main(["plan", "toy", "--engine", "loca"], monkeypatch) == 2
