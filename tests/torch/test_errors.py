"""Metrics of PyTorch tasks carry their errors without code of the user."""

import math

import numpy as np
import pytest
import torch
from tests.torch.nets import make_task, rows, scores

import mopbt
from mopbt import Estimate, rates
from mopbt.tasks.metrics import fairness, precision_recall


def member_of(task):
    return task.train(task.init(0), {"lr": 0.1}, 0, 1, 0)


def test_metrics_of_a_user_get_the_error_of_a_jackknife():
    task = make_task()
    measured = task.evaluate(member_of(task))
    x, y = task.validation
    model = task.model()
    model.load_state_dict(member_of(task)["model"])
    with torch.no_grad():
        outputs = model(x)
    for name, estimate in measured.items():

        def one(a, b, name=name):
            return scores(torch.from_numpy(a), torch.from_numpy(b))[name]

        expected = Estimate.jackknife(one, outputs.numpy(), y.numpy())
        assert estimate == pytest.approx(expected.mean, rel=1e-6)
        assert estimate.stderr == pytest.approx(expected.stderr, rel=1e-4)
        assert estimate.stderr > 0


def test_a_function_is_called_once_for_each_group_and_all_metrics():
    calls = []

    def counted(outputs, y):
        calls.append(len(y))
        return scores(outputs, y)

    task = make_task(metrics=counted, validation=rows(60, seed=1))
    task.evaluate(member_of(task))
    assert calls[:21] == [60] + [57] * 20


def test_without_errors_metrics_are_plain_numbers_and_reports_have_none(tmp_path):
    results = mopbt.run(
        make_task(
            errors=False,
            metrics=lambda o, y: {k: Estimate(v, 0.1) for k, v in scores(o, y).items()},
        ),
        out=tmp_path / "run",
        population=4,
        engine="local",
        progress=False,
    )
    assert not any(point.errors for point in results.points())
    assert '"errors"' not in (tmp_path / "run" / "journal.jsonl").read_text()
    assert results.front().kind == "observed"


def test_a_run_reports_errors(tmp_path):
    results = mopbt.run(
        make_task(), out=tmp_path / "run", population=4, engine="local", progress=False
    )
    assert all({"recall", "specificity", "loss"} == set(p.errors) for p in results.points())
    assert '"errors"' in (tmp_path / "run" / "journal.jsonl").read_text()


def test_estimates_of_a_user_are_kept():
    task = make_task(metrics=lambda o, y: scores(o, y) | {"recall": Estimate(0.5, 0.25)})
    measured = task.evaluate(member_of(task))
    assert measured["recall"].stderr == 0.25


def test_a_metric_that_is_undefined_without_some_rows_has_no_error():
    def fragile(outputs, y):
        if len(y) < 64:
            raise ValueError("only one class")
        return scores(outputs, y)

    measured = make_task(metrics=fragile).evaluate(member_of(make_task()))
    assert not any(isinstance(value, Estimate) for value in measured.values())
    assert all(map(math.isfinite, measured.values()))


def test_evaluate_model_has_errors_only_where_it_returns_estimates():
    def evaluate(model):
        return {"recall": Estimate(0.5, 0.1), "specificity": 0.25}

    task = make_task(metrics=None, validation=None, evaluate_model=evaluate)
    measured = task.evaluate(task.init(0))
    assert measured["recall"].stderr == 0.1
    assert type(measured["specificity"]) is float


def test_metrics_of_the_papers_tasks_have_the_closed_forms():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(300, 2, generator=generator)
    y, group = torch.randint(2, (2, 300), generator=generator)
    p = logits.double().softmax(-1)[:, 1].numpy()
    said = p > 0.5
    measured = precision_recall(logits, y)
    assert measured["precision"].interval(0.9) == rates.precision(said, y).interval(0.9)
    assert measured["accuracy"].stderr == rates.accuracy(said == y.numpy()).stderr
    fair = fairness(logits, y, group)
    for name, expected in {"dsp": rates.dsp(p, group), "deo": rates.deo(p, y, group)}.items():
        assert fair[name].mean == pytest.approx(expected.mean, rel=1e-12)
        np.testing.assert_allclose(fair[name].interval(0.9), expected.interval(0.9))
    assert all(map(math.isnan, fairness(logits * math.nan, y, group).values()))
