"""Rows that do not guide the search: test rows and a holdout, measured for the front alone."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from tests.torch.nets import make_task, rows, scores

import mopbt
from mopbt.engines.vectorized import VectorizedEngine


def run(task, tmp_path, **options):
    settings = {"population": 6, "engine": "local", "progress": False} | options
    return mopbt.run(task, out=tmp_path / "run", **settings)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [VectorizedEngine(1, stack=3), "local"])
def test_the_front_is_measured_on_test_rows_and_nothing_else_is(engine, tmp_path):
    test = rows(64, seed=2)
    results = run(make_task(test=test), tmp_path, engine=engine)
    fronts = [*results.front(), *results.front(observed=True)]
    assert {e.model for e in results.evaluations} == {p.model for p in fronts}
    assert not any("test" in name for p in results.points() for name in p.scores)
    reference = make_task(validation=test)
    for evaluation in results.evaluations:
        measured = reference.evaluate(reference.load(results.checkpoint(evaluation.model)))
        assert evaluation.scores == pytest.approx({k: float(v) for k, v in measured.items()})
        assert evaluation.scores["loss"] != results.point(evaluation.model).scores["loss"]


def test_a_holdout_is_taken_from_the_validation_rows_and_never_steers():
    validation = rows(64, seed=1)
    seen = []

    def metrics(outputs, y):
        seen.append(len(y))
        return scores(outputs, y)

    task = make_task(validation=validation, holdout=0.25, metrics=metrics, errors=False)
    member = task.init(0)
    task.evaluate(member)
    task.evaluate_rows(member, {}, 1, "holdout", 0)
    assert seen == [48, 16]
    parts = task._built_rows
    together = torch.cat([parts["validation"][0], parts["holdout"][0]])
    assert sorted(together.tolist()) == sorted(validation[0].tolist())
    for part in parts.values():
        for x, y in zip(*part, strict=True):
            assert y == validation[1][(validation[0] == x).all(1)]
    again = pickle.loads(pickle.dumps(replace(task, metrics=scores)))
    assert torch.equal(again._built_rows["holdout"][0], parts["holdout"][0])


@pytest.mark.slow
def test_separate_rows_can_be_held_out_and_are_shown(tmp_path):
    holdout = rows(32, seed=5)
    task = make_task(test=rows(64, seed=2), holdout=holdout)
    assert task.rows == ("test", "holdout")
    results = run(task, tmp_path)
    found = results.evaluations.select("holdout")
    assert {e.model for e in found} >= {p.model for p in results.front()}
    reference = make_task(validation=holdout)
    for evaluation in found:
        measured = reference.evaluate(results.load(evaluation.model))
        assert evaluation.scores == pytest.approx(dict(measured))


def test_evaluate_model_receives_the_rows_to_measure():
    test = rows(20, seed=2)

    def evaluate(model, x, y):
        return {"recall": len(x), "specificity": float(model(x).sum() + y.sum())}

    task = make_task(metrics=None, evaluate_model=evaluate, test=test)
    member = task.init(0)
    assert task.evaluate(member)["recall"] == 64
    assert task.evaluate_rows(member, {}, 1, "test", 0)["recall"] == 20


def test_rows_that_a_task_does_not_have_are_an_error():
    task = make_task(test=rows(8))
    with pytest.raises(ValueError, match="`rows` must be one of 'test', got 'tests'.*did you mean"):
        task.evaluate_rows(task.init(0), {}, 1, "tests", 0)


def test_a_check_finds_mistakes_in_test_rows():
    task = make_task(test=(torch.zeros(8, 3), torch.zeros(8)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        task.check()


def test_a_diverged_model_is_nan_on_test_rows_too():
    task = make_task(test=rows(8))
    member = task.init(0)
    next(iter(member["model"].values())).fill_(math.nan)
    assert math.isnan(task.evaluate_rows(member, {}, 1, "test", 0)["recall"])
