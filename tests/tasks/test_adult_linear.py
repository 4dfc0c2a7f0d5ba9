import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

import mopbt
from mopbt.errors import MissingExtra
from mopbt.problem import problem_of
from mopbt.tasks.adult_linear import AdultLinear, features
from mopbt.testing import TaskConformance

VALUES = {"positive_weight": 0.5, "weight_decay": 0.001, "learning_rate": 0.001}


def trained(steps=1, seed=3, **values):
    task = AdultLinear()
    return task.train(task.init(0), VALUES | values, 0, steps, seed)


class TestConformance(TaskConformance):
    def make(self):
        return AdultLinear()


class TestLongerIntervals(TaskConformance):
    def make(self):
        return AdultLinear(interval=3, steps=9)


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, precision_score, recall_score

    for weight in (0.1, 0.5, 0.9):
        model = trained(positive_weight=weight)
        task = AdultLinear()
        on_test = task.evaluate_rows(model, {}, 1, "test", 0)
        for scores, part in ((task.evaluate(model), "val"), (on_test, "test")):
            x, y = features(part)
            predicted = (x @ model.coef_[0] + model.intercept_[0]) > 0
            assert scores["precision"] == pytest.approx(
                precision_score(y, predicted, zero_division=0)
            )
            assert scores["recall"] == pytest.approx(recall_score(y, predicted))
            assert scores["accuracy"] == pytest.approx(accuracy_score(y, predicted))


def test_predicting_no_positives_has_precision_0():
    model = AdultLinear().init(0)
    model.intercept_ = np.array([-1.0])
    scores = AdultLinear().evaluate(model)
    assert (scores["precision"], scores["recall"]) == (0.0, 0.0)
    assert scores["accuracy"] == pytest.approx(0.759, abs=1e-3)


def test_an_interval_is_what_scikit_learn_does_by_itself():
    from sklearn.linear_model import SGDClassifier

    x, y = features("train")
    ours = trained(steps=1, positive_weight=0.7, weight_decay=0.01, learning_rate=0.0005)
    theirs = SGDClassifier(
        loss="log_loss",
        alpha=0.01,
        learning_rate="constant",
        eta0=0.0005,
        random_state=ours.random_state,
    )
    theirs.partial_fit(x, y, classes=[False, True], sample_weight=np.where(y, 0.7, 0.3))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9)
    assert ours.t_ == theirs.t_


@pytest.mark.parametrize(
    "changed", [{"positive_weight": 0.9}, {"weight_decay": 0.1}, {"learning_rate": 0.1}]
)
def test_every_hyperparameter_takes_effect_after_an_exploit(changed):
    task = AdultLinear()
    donor = task.dump(trained())
    same, other = (
        task.train(task.load(donor), values, 1, 2, 4) for values in (VALUES, VALUES | changed)
    )
    assert np.abs(same.coef_ - other.coef_).max() > 1e-4


def test_rows_come_in_another_order_in_each_step_and_with_each_seed():
    assert not np.array_equal(trained(seed=1).coef_, trained(seed=2).coef_)
    task, model, orders = AdultLinear(), AdultLinear().init(0), set()
    for step in range(3):
        task.train(model, VALUES, step, step + 1, 0)
        orders.add(model.random_state)
    assert len(orders) == 3


def test_class_weight_is_what_trades_precision_for_recall():
    careful, eager = (
        AdultLinear().evaluate(trained(positive_weight=weight)) for weight in (0.1, 0.9)
    )
    assert careful["precision"] > 0.85 > 0.5 > eager["precision"]
    assert careful["recall"] < 0.2 < 0.9 < eager["recall"]


def test_no_configuration_warns_or_diverges():
    task = AdultLinear()
    space = problem_of(task).space
    ends = [{name: space[name].values[i] for name in space} for i in (0, -1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for values in (*ends, {**ends[0], "learning_rate": ends[1]["learning_rate"]}):
            model = task.train(task.init(0), values, 0, 3, 0)
            assert np.isfinite(model.coef_).all()


@pytest.mark.slow
def test_a_run_finds_a_front_of_loadable_models(tmp_path):
    results = mopbt.run(
        AdultLinear(steps=5), out=tmp_path / "run", population=12, engine="local", progress=False
    )
    front = results.front()
    assert not results.failures
    assert len(front) > 3
    recall = front.scores[:, 1]
    assert recall.min() < 0.4 < 0.9 < recall.max()
    model, (x, y) = results.load(front[0]), features("val")
    hits = model.predict(x) & y
    assert hits.sum() / y.sum() == pytest.approx(front[0].scores["recall"])


def test_the_task_is_a_frozen_value_and_found_by_the_command_line():
    from importlib.metadata import entry_points

    assert replace(AdultLinear(), steps=40) == AdultLinear()
    (entry,) = entry_points(group="mopbt.tasks", name="adult-linear")
    assert entry.load() is AdultLinear
    assert AdultLinear().name == "adult-linear"


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        MissingExtra, match=r"adult-linear needs scikit-learn: pip install 'mopbt\[sklearn\]'"
    ):
        AdultLinear()
