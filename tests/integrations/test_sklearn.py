"""`MOPBTSearch` behaves like any estimator, and the parameters it tunes affect training."""

import dataclasses
import importlib
import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score, get_scorer, recall_score
from sklearn.model_selection import PredefinedSplit, train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import BernoulliRBM, MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mopbt import Estimate, Grid, LogGrid, Ordinal
from mopbt.errors import MissingExtra, RunMismatch, UnreadHyperparameter
from mopbt.integrations.sklearn import EstimatorTask, MOPBTSearch
from mopbt.testing import TaskConformance

ALPHA = {"alpha": LogGrid(1e-6, 10, 8)}
WEIGHTED = {**ALPHA, "eta0": LogGrid(1e-3, 1, 7)}
# The errors of scores need 20 more scores of each model.
SMALL = {"population": 4, "steps": 3, "random_state": 0, "errors": False}


def classifier(*, scoring=("precision", "recall"), **options):
    estimator = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1)
    return MOPBTSearch(estimator, WEIGHTED, scoring=scoring, **(SMALL | options))


@pytest.fixture(scope="module")
def rows():
    return make_classification(600, 10, n_informative=5, weights=[0.7], flip_y=0.2, random_state=0)


@pytest.fixture(scope="module")
def fitted(rows):
    return classifier(population=8, steps=10).fit(*rows)


SEARCHES = [
    MOPBTSearch(
        SGDClassifier(),
        ALPHA,
        scoring=["accuracy", "balanced_accuracy"],
        **SMALL | {"errors": True, "population": 2, "steps": 2},
    ),
    MOPBTSearch(
        SGDRegressor(), ALPHA, scoring={"error": "neg_mean_absolute_error", "r2": "r2"}, **SMALL
    ),
]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:invalid value encountered in cast", "ignore:y_pred contains classes not in y_true"
)
@parametrize_with_checks(SEARCHES, xfail_strict=True)
def test_passes_the_estimator_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_the_front_is_scored_on_rows_that_training_does_not_see(rows):
    x, y = rows
    learned = np.arange(len(y)) < 400
    search = classifier(validation=PredefinedSplit(np.where(learned, -1, 0))).fit(x, y)
    for point, model in zip(search.front_, search.estimators_, strict=True):
        assert point.scores["recall"] == pytest.approx(
            recall_score(y[400:], model.predict(x[400:]))
        )
    other = classifier(
        validation=PredefinedSplit(np.where(learned, -1, 0)), algorithm="random-search"
    )
    # Training must not depend on the labels of the validation rows.
    one, two = (clone(other).fit(x, np.where(learned, y, labels)) for labels in (y, 1 - y))
    kept = one.results_.checkpoints.kept() & two.results_.checkpoints.kept()
    assert kept
    for job in kept:
        np.testing.assert_array_equal(one.results_.load(job).coef_, two.results_.load(job).coef_)


def test_predicts_with_the_model_that_the_rule_picks(fitted, rows):
    x, y = rows
    expected = fitted.front_.knee()
    assert fitted.choice_.model == expected.model
    assert "knee" in fitted.choice_.why
    np.testing.assert_array_equal(fitted.predict(x), fitted.results_.load(expected).predict(x))
    np.testing.assert_array_equal(fitted.predict_proba(x), fitted.best_estimator_.predict_proba(x))
    assert fitted.score(x, y) == pytest.approx(accuracy_score(y, fitted.predict(x)))
    assert fitted.best_params_ == {
        name: fitted.best_estimator_.get_params()[name] for name in WEIGHTED
    }


@pytest.mark.parametrize(
    "rule", ["recall", {"precision": 0, "recall": 1}, lambda front: front[len(front) - 1]]
)
def test_a_rule_may_be_an_objective_or_weights_or_a_function(rule, rows):
    search = classifier(rule=rule).fit(*rows)
    assert search.choice_.scores["recall"] == max(point.scores["recall"] for point in search.front_)


def test_pick_returns_another_model_and_does_not_change_the_search(fitted, rows):
    x, _ = rows
    before = fitted.predict(x)
    model = fitted.estimator_of(fitted.front_.where("precision >= 0.5").best("recall"))
    best = max(
        (p for p in fitted.front_ if p.scores["precision"] >= 0.5), key=lambda p: p.scores["recall"]
    )
    np.testing.assert_array_equal(model.predict(x), fitted.results_.load(best).predict(x))
    np.testing.assert_array_equal(fitted.predict(x), before)


def test_pickling_keeps_all_models_of_the_front(fitted, rows):
    x, _ = rows
    again = pickle.loads(pickle.dumps(fitted))
    assert [p.model for p in again.front_] == [p.model for p in fitted.front_]
    np.testing.assert_array_equal(
        again.estimator_of(again.front_.best("recall")).predict(x),
        fitted.estimator_of(fitted.front_.best("recall")).predict(x),
    )
    assert not any(
        len(pickle.dumps(part)) > len(pickle.dumps(x))
        for part in (again.results_.task, again.front_)
    )


def without_times(search):
    """Return the records of a front, except for what depends on the speed of the machine."""
    clocks = ("seconds", "duration")
    return [{k: v for k, v in row.items() if k not in clocks} for row in search.front_.records()]


@pytest.mark.slow
def test_worker_processes_give_the_same_results(rows):
    one, two = classifier(population=4).fit(*rows), classifier(population=4, n_jobs=2).fit(*rows)
    assert without_times(one) == without_times(two)
    np.testing.assert_array_equal(one.best_estimator_.coef_, two.best_estimator_.coef_)


def test_a_kept_run_resumes_with_the_same_rows_only(rows, tmp_path):
    x, y = rows
    first = classifier(out=tmp_path / "run").fit(x, y)
    again = clone(classifier(out=tmp_path / "run")).fit(x, y)
    assert len(again.results_) == len(first.results_)
    assert again.front_.records() == first.front_.records()
    with pytest.raises(
        RunMismatch,
        match=r"'SGDClassifier \(rows (\w+), search (\w+)\)'.*\(rows (?!\1)\w+, search \2\)",
    ):
        classifier(out=tmp_path / "run").fit(x[::-1], y)


@pytest.mark.parametrize(
    "change",
    [
        {
            "estimator": SGDClassifier(
                loss="log_loss", learning_rate="constant", eta0=0.1, penalty="l1"
            )
        },
        {"scoring": {"precision": "precision", "recall": "roc_auc"}},
        {"scoring": {"precision": "precision", "recall": lambda model, x, y: 0.5}},
        {"validation": 0.5},
    ],
)
def test_a_kept_run_is_not_resumed_by_another_search(rows, tmp_path, change):
    """Otherwise the search would silently return models of another estimator."""
    usual = {
        "scoring": {"precision": "precision", "recall": "recall"},
        "out": tmp_path / "run",
        "population": 4,
        "steps": 2,
    }
    classifier(**usual).fit(*rows)
    with pytest.raises(
        RunMismatch,
        match=r"'SGDClassifier \(rows (\w+), search (\w+)\)'.*\(rows \1, search (?!\2)",
    ):
        classifier(**usual).set_params(**change).fit(*rows)
    classifier(**usual).set_params(**change, out=None).fit(*rows)


@pytest.mark.slow
@pytest.mark.parametrize("state", [None, np.random.RandomState(3)])
def test_a_kept_run_keeps_its_random_seed(rows, tmp_path, state):
    """A notebook cell resumes its run; a search without `out` draws a new seed."""
    first, again = (
        classifier(out=tmp_path / "run", random_state=state).fit(*rows) for _ in range(2)
    )
    assert again.front_.records() == first.front_.records()
    assert len(again.results_) == len(first.results_)
    seeds = {classifier(random_state=state).fit(*rows).results_.settings.seed for _ in range(2)}
    assert len(seeds) == 2


@pytest.mark.slow
def test_models_match_partial_fit_along_their_lineage(rows):
    x, y = rows
    learned = np.arange(len(y)) < 400
    estimator = SGDClassifier(loss="log_loss", learning_rate="constant", shuffle=False)
    options = {
        "population": 8,
        "steps": 10,
        "validation": PredefinedSplit(np.where(learned, -1, 0)),
        "random_state": 0,
        "errors": False,
    }
    results = (
        MOPBTSearch(estimator, WEIGHTED, scoring=["precision", "recall"], **options)
        .fit(x, y)
        .results_
    )
    lineages = {point.model: results.lineage(point) for point in results.front()}
    assert any(ancestor.exploited for lineage in lineages.values() for ancestor in lineage)
    for job, lineage in lineages.items():
        by_hand = clone(estimator)
        for ancestor in lineage:
            by_hand.set_params(**ancestor.hp).partial_fit(x[learned], y[learned], classes=[0, 1])
        np.testing.assert_array_equal(results.load(job).coef_, by_hand.coef_)


@pytest.mark.slow
def test_boosting_grows_with_warm_start(rows):
    space = {"learning_rate": LogGrid(0.01, 0.5, 6), "l2_regularization": LogGrid(0.01, 100, 6)}
    boosting = HistGradientBoostingClassifier(max_leaf_nodes=4, early_stopping=False)
    search = MOPBTSearch(
        boosting,
        space,
        scoring=["precision", "recall"],
        steps=20,
        interval=5,
        population=4,
        resource="max_iter",
    )
    search.set_params(random_state=1).fit(*rows)
    assert {model.n_iter_ for model in search.estimators_} == {
        point.step for point in search.front_
    }
    assert search.best_estimator_.max_iter == search.choice_.step


def test_transformers_without_targets_and_custom_scorers():
    x = (make_classification(200, 6, random_state=0)[0] > 0).astype(float)
    scoring = {
        "likelihood": lambda model, x, y=None: model.score_samples(x).mean(),
        "silence": _silence,
    }
    search = MOPBTSearch(
        BernoulliRBM(4, batch_size=50),
        {"learning_rate": LogGrid(1e-3, 1, 6)},
        scoring=scoring,
        **SMALL,
    )
    assert search.fit(x).transform(x).shape == (200, 4)
    assert not hasattr(search, "predict")
    # `partial_fit` makes one pass and ignores `n_iter`.
    fixed = search.set_params(space={"n_iter": Ordinal([1, 2])})
    with pytest.raises(UnreadHyperparameter, match="'n_iter' has no effect on BernoulliRBM"):
        fixed.fit(x)


def _silence(model, x, y=None):
    return -model.transform(x).mean()


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_a_new_rate_is_passed_to_the_optimizer_of_a_perceptron(solver):
    x, y = make_classification(100, random_state=0)
    task = perceptron_task(x, y, solver)
    task.check()
    fresh = task.train(task.init(0), {"learning_rate_init": 0.1, "alpha": 1e-3}, 0, 1, 0)
    slow = task.train(
        task.load(task.dump(fresh)), {"learning_rate_init": 1e-12, "alpha": 1e-3}, 1, 2, 1
    )
    assert np.abs(slow.coefs_[0] - fresh.coefs_[0]).max() < (1 if solver == "sgd" else 1e-6)
    # With momentum the weights still move by the last velocity, but gradients add nothing.
    if solver == "sgd":
        np.testing.assert_allclose(
            slow._optimizer.velocities[0],
            0.9 * np.asarray(fresh._optimizer.velocities[0]),
            atol=1e-9,
        )


def perceptron_task(x, y, solver="adam"):
    estimator = MLPClassifier((4,), solver=solver, batch_size=100)
    space = {"learning_rate_init": LogGrid(1e-4, 1, 5), "alpha": LogGrid(1e-5, 1, 5)}
    scorers = {"accuracy": get_scorer("accuracy"), "recall": get_scorer("recall")}
    return EstimatorTask(
        estimator, space, scorers, (x, y), (x, y), steps=4, interval=1, classes=np.unique(y)
    )


class TestPerceptronTask(TaskConformance):
    def make(self):
        return perceptron_task(*make_classification(100, random_state=0))


class TestBoostingTask(TaskConformance):
    def make(self):
        x, y = make_classification(100, random_state=0)
        estimator = HistGradientBoostingClassifier(max_leaf_nodes=4, early_stopping=False)
        scorers = {"accuracy": get_scorer("accuracy"), "recall": get_scorer("recall")}
        options = {"steps": 8, "interval": 2, "resource": "max_iter"}
        return EstimatorTask(
            estimator, {"learning_rate": LogGrid(0.01, 1, 6)}, scorers, (x, y), (x, y), **options
        )


def test_a_parameter_without_effect_is_an_error(rows):
    # This estimator copies its classifier in the first step and ignores later parameters.
    inner = OneVsRestClassifier(SGDClassifier())
    with pytest.raises(
        UnreadHyperparameter,
        match="'estimator__alpha' has no effect on OneVsRestClassifier",
    ):
        MOPBTSearch(
            inner, {"estimator__alpha": LogGrid(1e-6, 1, 5)}, scoring=["accuracy"], **SMALL
        ).fit(*rows)


def test_a_parameter_that_matters_for_some_values_of_another_is_allowed(rows):
    space = {"penalty": Ordinal(["l2", "l1", "elasticnet"]), "l1_ratio": Grid(0, 1, 5)}
    assert len(
        MOPBTSearch(SGDClassifier(), space, scoring=["accuracy", "recall"], **SMALL)
        .fit(*rows)
        .front_
    )


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (
            MOPBTSearch(LinearRegression(), ALPHA, scoring=["r2"]),
            "LinearRegression has no `partial_fit`",
        ),
        (
            MOPBTSearch(make_pipeline(StandardScaler(), SGDClassifier()), ALPHA, scoring=["r2"]),
            "Pipeline has no `partial_fit`",
        ),
        (classifier(resource="trees"), "SGDClassifier has no 'trees'"),
        (
            MOPBTSearch(GaussianNB(), ALPHA, scoring=["accuracy"]),
            "`space` names 'alpha', .* it has priors",
        ),
        (
            classifier(scoring="accuracy"),
            r"`scoring` must be a list of scorer names, such as .* got 'accuracy'",
        ),
        (classifier(validation=2), "`validation` must be a fraction between 0 and 1, .* got 2"),
        (classifier(validation="0.2"), "`validation` must be a fraction .* got '0.2'"),
        (classifier(n_jobs=0), "`n_jobs` must be an integer other than 0 .*, got 0"),
        (classifier(rule="f1"), r"`rule` must be 'knee', an objective \('precision', .* got 'f1'"),
        (classifier(rule="nee"), "got 'nee'; did you mean 'knee'"),
        (classifier(rule=None), "`rule` must be 'knee', .* got None"),
        (classifier(rule={"recal": 1}), "got 'recal'; did you mean 'recall'"),
        (classifier(rule={}), "at least one of 'precision', 'recall' more than 0, got {}"),
        (classifier(rule=lambda front: 3), "`rule` must return a point of the front, .* got 3"),
        (classifier(steps=3, interval=2), "`steps` must be a multiple of `interval`"),
    ],
)
def test_bad_arguments_raise_an_error(search, message, rows):
    if "scoring" in message:
        search.set_params(scoring="accuracy")
    with pytest.raises((ValueError, TypeError), match=message):
        search.fit(*rows)


def test_regression_beats_the_mean_and_keeps_column_names():
    pandas = pytest.importorskip("pandas")
    x, y = make_regression(200, 3, noise=5.0, random_state=0)
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    search = MOPBTSearch(SGDRegressor(), ALPHA, scoring=["r2", "neg_max_error"], **SMALL)
    train, test, y_train, y_test = train_test_split(frame, y, random_state=0)
    assert search.fit(train, y_train).score(test, y_test) > 0.5
    assert list(search.feature_names_in_) == ["a", "b", "c"]


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "mopbt.integrations.sklearn")
    with pytest.raises(
        MissingExtra, match=r"MOPBTSearch needs scikit-learn: pip install 'mopbt\[sklearn\]'"
    ):
        importlib.import_module("mopbt.integrations.sklearn")


@pytest.mark.slow
def test_a_front_has_the_errors_of_its_scores(rows):
    search = classifier(errors=True, steps=2).fit(*rows)
    assert all(set(point.errors) == {"precision", "recall"} for point in search.front_)


@pytest.mark.parametrize("name", ["accuracy", "roc_auc", "neg_log_loss"])
def test_scores_have_the_error_of_a_jackknife_from_one_prediction(name):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = x[:, 0] + rng.normal(size=200) > 0
    model = LogisticRegression().fit(x, y)
    scorer = get_scorer(name)
    own = {"own": lambda model, x, y: 0.5, "known": lambda model, x, y: Estimate(0.5, 0.1)}
    task = EstimatorTask(model, {}, {name: scorer} | own, (x, y), (x, y), 1, 1)
    measured = task.evaluate(model)
    expected = Estimate.jackknife(lambda a, b: scorer(model, a, b), x, y)
    assert measured[name] == pytest.approx(expected.mean)
    assert measured[name].stderr == pytest.approx(expected.stderr)
    assert type(measured["own"]) is float
    assert measured["known"].stderr == 0.1
    plain = dataclasses.replace(task, errors=False).evaluate(model)
    assert all(type(score) is float for score in plain.values())
