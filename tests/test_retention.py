"""The limit `keep`: which models of a front keep their weights."""

import numpy as np
import pytest

import mopbt
from mopbt import Budget, Results
from mopbt.cli import main as command_line
from mopbt.errors import CorruptCheckpoint, RunMismatch
from mopbt.history import History
from mopbt.metrics import non_dominated
from mopbt.problem import make_problem
from mopbt.retention import Retention
from mopbt.run_directory import read_run_config
from mopbt.space import Grid
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange
from mopbt.tasks.toy import RowsToy, ToyTask

QUIET = {"engine": "local", "progress": False}


def problem():
    return make_problem(
        name="two",
        space={"x": Grid(0, 1, 5)},
        objectives={"a": "max", "b": "max"},
        constraints=(),
        interval=1,
        steps=1000,
    )


def exchanges(points):
    for i, point in enumerate(points):
        job = Job(id=i, trial=i, config=(0,), start=None, begin=0, end=1)
        scores = dict(zip("ab", map(float, point), strict=True))
        objectives = tuple(scores.values())
        report = Report(i, objectives, violation=0.0, scores=scores, checksum="0" * 32)
        yield Exchange(jobs=(job,))
        yield Exchange(reports=(report,))


@pytest.mark.parametrize("keep", [1, 3, 8])
def test_a_limited_selection_is_on_the_front_and_follows_from_the_reports(keep):
    angles = np.random.default_rng(0).uniform(0, np.pi / 2, 200)
    radii = 1 + np.random.default_rng(1).uniform(0, 1e-2, 200)
    points = np.column_stack([1000 * radii * np.cos(angles), radii * np.sin(angles)])
    history = History(problem())
    step_by_step = Retention(keep)
    for exchange in exchanges(points):
        history.append(exchange)
        n = len(history.reports)
        if exchange.reports and n % 7 == 0:
            kept = step_by_step.follow(history)
            front = set(non_dominated(points[:n]).tolist())
            assert kept <= front
            assert len(kept) <= keep
    # Reading all reports at once gives the same.
    assert step_by_step.follow(history) == Retention(keep).follow(history)
    assert len(history.front) > 20 > len(Retention(keep).follow(history))


def test_the_selection_is_scattered_in_both_objectives():
    # A dense cluster must not take the places, although f1 is a thousand times as large as f2.
    angles = [0.0, np.pi / 2, *np.linspace(0.7, 0.71, 20), np.pi / 4 + 0.3]
    points = [(1000 * np.cos(t), np.sin(t)) for t in angles]
    history = History(problem())
    for exchange in exchanges(points):
        history.append(exchange)
    kept = Retention(4).follow(history)
    assert {0, 1, 22} <= kept
    assert len(kept) == 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_keeps_the_weights_of_few_models_and_names_the_remedy(tmp_path, asynchronous):
    algorithm = mopbt.MOPBT(population=6, asynchronous=asynchronous)
    options = {"algorithm": algorithm, **QUIET}
    everything = mopbt.run(ToyTask(), out=tmp_path / "all", **options)
    results = mopbt.run(ToyTask(), out=tmp_path / "few", keep=3, **options)
    # The limit changes no decision.
    assert [p.scores for p in results.points()] == [p.scores for p in everything.points()]
    front = {point.model for point in results.front()}
    kept = results.models_with_weights()
    assert len(front) > 3
    assert len(kept) <= 3 < len(everything.models_with_weights())
    assert kept <= front
    assert all(results.load(job) for job in kept)
    gone = min(front - results.checkpoints.kept())
    with pytest.raises(CorruptCheckpoint, match=rf"model {gone} has no weights.*at most 3.*replay"):
        results.load(gone)
    replayed = results.replay(gone)
    assert replayed.scores == replayed.original
    # At most the selection, the population and what one exchange left are on disk.
    assert len(results.checkpoints.kept()) <= 3 + 2 * 6
    with pytest.raises(RunMismatch, match="keep is not set, it was 3"):
        mopbt.run(ToyTask(), out=tmp_path / "few", **options)


def test_a_run_in_parts_keeps_the_same_models(tmp_path):
    def go(out, **options):
        return mopbt.run(ToyTask(), out=out, keep=2, population=6, **QUIET, **options)

    whole = go(tmp_path / "whole")
    for jobs in (5, 13, 14, 37):
        part = go(tmp_path / "parts", budget=Budget(jobs=jobs))
        assert all(part.load(job) for job in part.models_with_weights())
    parts = go(tmp_path / "parts")
    assert parts.models_with_weights() == whole.models_with_weights()
    assert all(parts.load(job) for job in parts.models_with_weights())
    assert read_run_config(tmp_path / "parts").keep == 2


def test_what_is_measured_at_the_end_has_weights():
    results = mopbt.run(RowsToy(), out=None, population=6, keep=2, **QUIET)
    measured = {evaluation.model for evaluation in results.evaluations}
    assert measured == results.models_with_weights()
    assert len(results.front()) > 2


@pytest.mark.parametrize("keep", [0, -1, 1.5, True])
def test_a_wrong_limit_is_an_error(tmp_path, keep):
    with pytest.raises(ValueError, match="`keep` must be a whole number of at least 1"):
        mopbt.run(ToyTask(), out=tmp_path / "run", keep=keep, **QUIET)
    assert not (tmp_path / "run").exists()


def main(arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mopbt", *arguments])
    try:
        command_line()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_keep_and_constraints_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = ["run", "toy", "--population", "4", "--out", "run", "--engine", "local", "--quiet"]
    given = [*start, "--keep", "2", "--constraint", "near > 0.1", "--constraint", "far <= 5"]
    assert main([*given, "--budget-jobs", "9"], monkeypatch) == 3
    settings = read_run_config(tmp_path / "run")
    assert [str(c) for c in settings.problem.constraints] == ["near > 0.1", "far <= 5"]
    capsys.readouterr()
    assert main(["resume", "run", "--engine", "local", "--quiet"], monkeypatch) == 0
    assert "The weights of 2 models are in run/checkpoints" in capsys.readouterr().out
    results = Results.open("run")
    assert results.done
    # Another implementation of the constraints agrees on what is feasible.
    for point in results.points():
        satisfied = point.scores["near"] > 0.1 and point.scores["far"] <= 5
        assert (point.violation == 0) == satisfied
    assert main([*start, "--keep", "2", "--constraint", "near > 0.2"], monkeypatch) == 1
    assert "constraints is ['near > 0.2'], it was" in capsys.readouterr().err
    assert main([*start, "--constraint", "near is large"], monkeypatch) == 2
    assert "a constraint must read like" in capsys.readouterr().err


def test_a_task_object_can_be_given_further_constraints(tmp_path):
    results = mopbt.run(
        ToyTask(), out=tmp_path / "run", population=4, constraints=["near >= 0.5"], **QUIET
    )
    assert {point.violation > 0 for point in results.points()} == {True, False}
    assert all(point.scores["near"] >= 0.5 for point in results.front())
