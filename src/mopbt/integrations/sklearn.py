"""`MOPBTSearch`: tune scikit-learn estimators while they train, as one estimator.

An estimator trains step by step through `partial_fit`, or grows through `warm_start`. Checkpoints
are pickles, because scikit-learn has no other format for an arbitrary estimator with its losses,
optimizers and random states. They are loaded only from where the search itself wrote them.
"""

import inspect
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mopbt.algorithms import Algorithm
from mopbt.engines.devices import available_cores
from mopbt.engines.pool import PoolEngine
from mopbt.errors import MissingExtra, UnreadHyperparameter
from mopbt.estimate import Estimate
from mopbt.front import Front, Point
from mopbt.messages import did_you_mean
from mopbt.objectives import Direction, Objective
from mopbt.rng import derived_seed, stream
from mopbt.run_directory import read_run_config
from mopbt.runner import run
from mopbt.selection import checked_weights
from mopbt.space import Domain, Space

try:
    import joblib
    from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
    from sklearn.metrics import get_scorer
    from sklearn.metrics._scorer import _BaseScorer
    from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
    from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d
except ImportError:
    raise MissingExtra("MOPBTSearch needs scikit-learn: pip install 'mopbt[sklearn]'") from None


@runtime_checkable
class Splitter(Protocol):
    """A splitter of scikit-learn, such as `KFold`, or an object like one."""

    def split(self, x: Any, y: Any) -> Iterable[tuple[Any, Any]]:
        """Yield the indices of the rows for training and for validation."""

    def get_n_splits(self, x: Any, y: Any) -> int:
        """Return the number of splits."""


Rule = str | Mapping[str, float] | Callable[[Front], Point]

# Rows on which `EstimatorTask.check` tests that each hyperparameter affects training.
PROBE_ROWS = 1000

# Methods of an estimator that return a prediction for each row.
RESPONSES = ("predict", "predict_proba", "decision_function", "predict_log_proba")


@dataclass(frozen=True)
class EstimatorTask:
    """A scikit-learn estimator as a task.

    Args:
        estimator: The estimator, not fitted.
        space: The tuned parameters by name.
        scorers: The objectives; larger is better.
        train_rows: X and y for training; y is None for estimators without a target.
        validation_rows: X and y for the scorers.
        steps: Total steps of training. A step is a pass of `partial_fit` over the training rows,
            or an increase of `resource` by one.
        interval: Steps between two decisions.
        resource: The parameter that counts the steps of an estimator with `warm_start`.
        classes: The labels of a classifier, for `partial_fit`.
        errors: Report the errors of scores.
        name: The name of the task.
    """

    estimator: Any
    space: Mapping[str, Domain]
    scorers: Mapping[str, Callable[..., float]]
    train_rows: tuple[Any, Any]
    validation_rows: tuple[Any, Any]
    steps: int
    interval: int
    resource: str | None = None
    classes: Any = None
    errors: bool = True
    name: str = "estimator"

    # Training does not change the estimator that it starts from.
    functional: ClassVar[bool] = True

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the names of the scorers, all of them to maximize."""
        return dict.fromkeys(self.scorers, "max")

    def init(self, seed: int) -> Any:
        """Return an unfitted copy of the estimator."""
        return clone(self.estimator)

    def train(self, model: Any, hp: Mapping[str, Any], begin: int, end: int, seed: int) -> Any:
        """Set the hyperparameters and train a copy of the estimator on the training rows."""
        # The copy goes through bytes, so that a cached estimator and one from a checkpoint are
        # the same.
        model = self.load(self.dump(model)).set_params(**hp)
        _update_optimizer(model)
        x, y = self.train_rows
        rows = (x,) if y is None else (x, y)
        if self.resource is not None:
            growth = {"warm_start": True, self.resource: end}
            model.set_params(**growth, **_random_states(model, seed))
            return model.fit(*rows)
        takes_classes = "classes" in inspect.signature(model.partial_fit).parameters
        options = {"classes": self.classes} if takes_classes else {}
        for step in range(begin, end):
            model.set_params(**_random_states(model, derived_seed(seed, "partial_fit", step)))
            model.partial_fit(*rows, **options)
        return model

    def evaluate(self, model: Any) -> Mapping[str, float]:
        """Score the estimator on the validation rows, with errors where they are known."""
        if not self.errors:
            return {
                name: float(scorer(model, *self.validation_rows))
                for name, scorer in self.scorers.items()
            }
        predictions = _Predictions(model, self.validation_rows[0])
        return {
            name: _score(scorer, model, self.validation_rows, predictions)
            for name, scorer in self.scorers.items()
        }

    def dump(self, model: Any) -> bytes:
        """Pickle the estimator; equal states give equal bytes."""
        # The bytes of a pickle depend on which objects are identical. Unpickling once settles this.
        return pickle.dumps(pickle.loads(pickle.dumps(model)))

    def load(self, data: bytes) -> Any:
        """Unpickle the estimator."""
        return pickle.loads(data)

    def check(self) -> None:
        """Check that the estimator has all hyperparameters and that each has an effect.

        Some estimators read a parameter once and keep what they derived from it. For each
        hyperparameter, the check trains an interval from the same state with two values. If the
        results are equal for all tested configurations, tuning would have no effect.
        """
        known = self.estimator.get_params()
        unknown = [name for name in self.space if name not in known]
        if unknown:
            raise ValueError(
                f"`space` names {unknown[0]!r}, which is not a parameter of the estimator; "
                f"it has {', '.join(sorted(known))}"
            )
        n = _num_samples(self.train_rows[0])
        indices = np.linspace(0, n - 1, min(n, PROBE_ROWS), dtype=int)
        probe = replace(self, train_rows=_select_rows(self.train_rows, indices))
        space = Space(self.space)
        configs = [space.decode(config) for config in space.stratified(8, stream(0, "probe"))]
        # Errors of the estimator about the rows are raised here.
        self.evaluate(probe.train(self.init(0), configs[0], 0, self.interval, 0))
        for name in self.space:
            if not any(probe._has_effect(name, hp, configs) for hp in configs):
                raise UnreadHyperparameter(
                    f"{name!r} has no effect on {type(self.estimator).__name__} after training "
                    f"has started; remove it from the space, or tune a parameter that the "
                    f"estimator reads in every step"
                )

    def _has_effect(
        self, name: str, hp: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Check whether another value of a hyperparameter changes what an interval learns."""
        others = [config[name] for config in configs if config[name] != hp[name]]
        start = self.dump(self.train(self.init(0), hp, 0, self.interval, 0))
        learned = [self._learned(start, {**hp, name: value}) for value in (hp[name], *others[:1])]
        return len(set(learned)) > 1 or not others

    def _learned(self, start: bytes, hp: Mapping[str, Any]) -> bytes:
        """Return what the second interval learns, without parameters, which always differ."""
        model = self.train(self.load(start), hp, self.interval, 2 * self.interval, 1)
        parameters = {"_optimizer", *model.get_params(deep=False)}
        learned = {name: value for name, value in vars(model).items() if name not in parameters}
        return self.dump(learned)


class _Predictions:
    """An estimator that looks up predictions that were made once, by row."""

    def __init__(self, model: Any, x: Any) -> None:
        self._model = model
        self._x = x
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if name not in RESPONSES:
            return found

        def predict(rows: NDArray[np.int64]) -> Any:
            if name not in self._made:
                self._made[name] = np.asarray(found(self._x))
            return self._made[name][rows]

        predict.__name__ = name
        return predict


def _score(scorer: Any, model: Any, rows: tuple[Any, Any], predictions: _Predictions) -> float:
    """Score an estimator; the error is that of a jackknife over groups of rows.

    A scorer of the user's own may depend on the inputs, so it has the error that it returns.
    """
    score = scorer(model, *rows)
    y = rows[1]
    if isinstance(score, Estimate) or not isinstance(scorer, _BaseScorer) or y is None:
        return score if isinstance(score, Estimate) else float(score)
    targets = np.asarray(y)
    try:
        estimate = Estimate.jackknife(
            lambda chosen: scorer(predictions, chosen, targets[chosen]), np.arange(len(targets))
        )
    except Exception:
        # The score may be undefined without some rows, because a class is missing then.
        return float(score)
    return estimate if math.isfinite(estimate.stderr) else float(score)


def _update_optimizer(model: Any) -> None:
    """Pass new rates to the optimizer that a perceptron creates in its first step."""
    optimizer: Any = vars(model).get("_optimizer")
    if optimizer is None:
        return
    for name, value in model.get_params(deep=False).items():
        if name not in vars(optimizer) or isinstance(value, str):
            continue
        if vars(optimizer)[name] != value:
            setattr(optimizer, name, value)
            if name == "learning_rate_init":
                optimizer.learning_rate = value


def _random_states(model: Any, seed: int) -> dict[str, int]:
    """Return a seed for every random state among the parameters of an estimator."""
    names = [
        name
        for name in model.get_params()
        if name == "random_state" or name.endswith("__random_state")
    ]
    return {name: seed % 2**32 for name in names}


def _select_rows(rows: tuple[Any, Any], indices: Any) -> tuple[Any, Any]:
    """Select rows of X and y; y may be None."""
    x, y = (None if part is None else _safe_indexing(part, indices) for part in rows)
    return x, y


def _best_has(method: str) -> Callable[["MOPBTSearch"], bool]:
    """Build the check of whether the picked or the given estimator has a method."""

    def check(search: "MOPBTSearch") -> bool:
        estimator = vars(search).get("best_estimator_", search.estimator)
        # scikit-learn shows the AttributeError as the reason.
        getattr(estimator, method)
        return True

    return check


class MOPBTSearch(MetaEstimatorMixin, BaseEstimator):
    """Train a population of estimators for several scorers and predict with the best.

    The search keeps the front of trained estimators. A rule picks the one that predicts.

    Args:
        estimator: An estimator with `partial_fit`, or with `warm_start` (see `resource`).
        space: The tuned parameters by name, such as ``{"alpha": LogGrid(1e-6, 1, 10)}``.
        scoring: The objectives: a list of scorer names, or a mapping of names to scorers or
            scorer names.
        rule: Picks the model that predicts: "knee", the name of an objective (its best model),
            weights of the objectives, or a function of the `Front` that returns a point. After
            `fit`, `choice_` is the picked point with its reason.
        population: Number of estimators to train.
        steps: Steps of training of each estimator: passes of `partial_fit` over the training rows,
            or the final value of `resource`.
        interval: Steps between two decisions.
        resource: The parameter that counts the steps of an estimator with `warm_start`, such as
            "max_iter".
        algorithm: An algorithm or its name; None is MO-PBT.
        validation: The fraction of the rows for the scorers, or a splitter, whose first split is
            used.
        random_state: Random seed of split and search.
        n_jobs: Number of worker processes. None trains in this process; -1 uses all cores.
        out: A directory to keep the run in, for `mopbt report` and for resuming: another `fit`
            with the same arguments continues it.
        progress: Whether to show progress on standard error.
        errors: Estimate the errors of scikit-learn's scores by a jackknife over 20 groups of
            validation rows, see the page "Can I trust this front?".
    """

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Domain],
        *,
        scoring: Sequence[str] | Mapping[str, Any],
        rule: Rule = "knee",
        population: int = 16,
        steps: int = 20,
        interval: int = 1,
        resource: str | None = None,
        algorithm: Algorithm | str | None = None,
        validation: Any = 0.25,
        random_state: Any = None,
        n_jobs: int | None = None,
        out: Path | str | None = None,
        progress: bool = True,
        errors: bool = True,
    ) -> None:
        self.estimator = estimator
        self.space = space
        self.scoring = scoring
        self.rule = rule
        self.population = population
        self.steps = steps
        self.interval = interval
        self.resource = resource
        self.algorithm = algorithm
        self.validation = validation
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.out = out
        self.progress = progress
        self.errors = errors

    def fit(self, X: Any, y: Any = None) -> "MOPBTSearch":
        """Train the population, score it on held-out rows, and pick a model.

        Args:
            X: The rows, shape (n, features).
            y: The targets, shape (n,) or (n, outputs); None for estimators without a target.
        """
        seed = self._resolve_seed()
        task = self._build_task(X, y, seed)
        workers = self._count_workers()
        results = run(
            task,
            out=self.out,
            seed=seed,
            progress=self.progress,
            algorithm=self.algorithm,
            population=self.population,
            engine="local" if workers == 1 else PoolEngine(workers),
        )
        # Results must not hold the rows: they would be pickled with the search.
        results.task = replace(task, train_rows=(None, None), validation_rows=(None, None))
        self.results_ = results
        self.front_ = results.front()
        self.choice_ = self._apply_rule(self.front_)
        self.estimators_ = [results.load(point) for point in self.front_]
        self.best_estimator_ = results.load(self.choice_)
        self.best_params_ = dict(self.choice_.hp)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(self.best_estimator_, name):
                setattr(self, name, getattr(self.best_estimator_, name))
        return self

    def estimator_of(self, point: Point) -> Any:
        """Return the trained estimator of a point of `front_`.

        The search itself still predicts with `best_estimator_`.
        """
        check_is_fitted(self)
        return self.estimators_[[other.model for other in self.front_].index(point.model)]

    @available_if(_best_has("predict"))
    def predict(self, X: Any) -> Any:
        """Predict with the picked model; X has the shape (n, features)."""
        return self._best.predict(X)

    @available_if(_best_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities of the picked model, shape (n, classes)."""
        return self._best.predict_proba(X)

    @available_if(_best_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Return the decision function of the picked model, shape (n,) or (n, classes)."""
        return self._best.decision_function(X)

    @available_if(_best_has("transform"))
    def transform(self, X: Any) -> Any:
        """Transform with the picked model; X has the shape (n, features)."""
        return self._best.transform(X)

    @available_if(_best_has("score"))
    def score(self, X: Any, y: Any = None) -> float:
        """Return the picked model's own score."""
        return float(self._best.score(X, y))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        own = deepcopy(get_tags(self.estimator))
        tags.estimator_type = own.estimator_type
        tags.classifier_tags = own.classifier_tags
        tags.regressor_tags = own.regressor_tags
        tags.transformer_tags = own.transformer_tags
        tags.target_tags = own.target_tags
        tags.input_tags = own.input_tags
        return tags

    @property
    def _best(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_

    def _count_workers(self) -> int:
        if self.n_jobs is None:
            return 1
        if not isinstance(self.n_jobs, int) or isinstance(self.n_jobs, bool) or self.n_jobs == 0:
            raise ValueError(
                f"`n_jobs` must be an integer other than 0 (-1 for all cores) or None, "
                f"got {self.n_jobs!r}"
            )
        return self.n_jobs if self.n_jobs > 0 else max(available_cores() + 1 + self.n_jobs, 1)

    def _resolve_seed(self) -> int:
        """Return the seed of split and search.

        A `random_state` that is not an integer gives a new seed for each call, so a run that
        already exists in `out` keeps its own.
        """
        if self.out is not None and not isinstance(self.random_state, Integral):
            out = Path(self.out)
            if (out / "run.toml").is_file():
                return read_run_config(out).seed
        return int(check_random_state(self.random_state).randint(2**31))

    def _build_task(self, x: Any, y: Any, seed: int) -> EstimatorTask:
        """Check the rows and the estimator, and split the rows."""
        x, y = indexable(x, y)
        kind = type(self.estimator).__name__
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"{kind} requires y to be passed, but the target y is None; use fit(X, y)"
            )
        if is_classifier(self.estimator):
            check_classification_targets(y)
            # Stratified splits need a flat array of labels.
            if np.ndim(y) == 2 and np.shape(y)[1] == 1:
                y = column_or_1d(y, warn=True)
        self._check_estimator()
        scorers = _parse_scoring(self.scoring)
        self._check_rule(scorers)
        train, validation = self._split(x, y, seed)
        return EstimatorTask(
            estimator=self.estimator,
            space=self.space,
            scorers=scorers,
            errors=self.errors,
            train_rows=_select_rows((x, y), train),
            validation_rows=_select_rows((x, y), validation),
            steps=self.steps,
            interval=self.interval,
            resource=self.resource,
            classes=np.unique(y) if is_classifier(self.estimator) else None,
            name=kind + (self._fingerprint(x, y) if self.out else ""),
        )

    def _fingerprint(self, x: Any, y: Any) -> str:
        """Return a suffix of the task's name that depends on rows and settings."""
        scoring = self.scoring if isinstance(self.scoring, Mapping) else dict.fromkeys(self.scoring)
        scorers = {name: _hash(scorer) for name, scorer in scoring.items()}
        settings = (_hash(clone(self.estimator)), scorers, _hash(self.validation), self.resource)
        return f" (rows {joblib.hash((x, y))[:8]}, search {joblib.hash(settings)[:8]})"

    def _check_estimator(self) -> None:
        """Raise an error unless the estimator can train step by step."""
        kind = type(self.estimator).__name__
        if self.resource is None:
            if not hasattr(self.estimator, "partial_fit"):
                raise TypeError(
                    f"the estimator must train step by step, but {kind} has no `partial_fit`; if "
                    f"it has `warm_start`, set `resource` to the parameter that counts its steps, "
                    f"such as 'max_iter' or 'n_estimators'; for a pipeline, transform the rows "
                    f"first and search its last step"
                )
            return
        for name in ("warm_start", self.resource):
            if name not in self.estimator.get_params():
                raise ValueError(
                    f"`resource` must count the steps of an estimator with `warm_start`, but "
                    f"{kind} has no {name!r}"
                )
        if self.resource in self.space:
            raise ValueError(
                f"`resource` {self.resource!r} counts the steps and cannot be tuned; "
                f"remove it from `space`"
            )

    def _split(self, x: Any, y: Any, seed: int) -> tuple[Any, Any]:
        """Return the indices of the rows for training and for validation."""
        if isinstance(self.validation, Splitter):
            train, validation = next(iter(self.validation.split(x, y)))
            return train, validation
        if not isinstance(self.validation, float) or not 0 < self.validation < 1:
            raise ValueError(
                f"`validation` must be a fraction between 0 and 1, such as 0.25, or a splitter, "
                f"got {self.validation!r}"
            )
        # A stratified split needs two rows of every class, one for each part.
        stratify = False
        if is_classifier(self.estimator) and np.ndim(y) == 1:
            stratify = np.unique(y, return_counts=True)[1].min() > 1
        splitter = StratifiedShuffleSplit if stratify else ShuffleSplit
        split = splitter(1, test_size=self.validation, random_state=seed).split(x, y)
        train, validation = next(split)
        return train, validation

    def _check_rule(self, objectives: Iterable[str]) -> None:
        """Raise an error for a rule that cannot pick a model, before anything is trained."""
        names = list(objectives)
        if callable(self.rule):
            return
        if isinstance(self.rule, Mapping):
            checked_weights([Objective(name, "max") for name in names], self.rule)
        elif self.rule not in ("knee", *names):
            raise ValueError(
                f"`rule` must be 'knee', an objective ({', '.join(map(repr, names))}), weights of "
                f"objectives such as {{{names[0]!r}: 2}}, or a function of the front that returns "
                f"a point, got {self.rule!r}{did_you_mean(self.rule, ('knee', *names))}"
            )

    def _apply_rule(self, front: Front) -> Point:
        """Return the point of the front that the rule picks."""
        if callable(self.rule):
            point = self.rule(front)
            if not isinstance(point, Point):
                raise TypeError(
                    f"the function `rule` must return a point of the front, such as front[0] or "
                    f"front.knee(), got {point!r}"
                )
            return point
        if isinstance(self.rule, Mapping):
            return front.weighted(self.rule)
        return front.knee() if self.rule == "knee" else front.best(self.rule)


def _hash(part: Any) -> str:
    """Hash a part of a search by its state, or name it if it cannot be pickled."""
    try:
        return str(joblib.hash(part))
    # Functions that are defined inside functions raise one of these.
    except (pickle.PicklingError, AttributeError, TypeError):
        named = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
        return str(named.__qualname__)


def _parse_scoring(scoring: Any) -> dict[str, Callable[..., float]]:
    """Return the scorers by name."""
    named: Mapping[str, Any] = {}
    if isinstance(scoring, Mapping):
        named = scoring
    elif isinstance(scoring, list | tuple):
        named = {name: name for name in scoring}
    if not named:
        raise ValueError(
            f"`scoring` must be a list of scorer names, such as ['accuracy', 'recall'], or a "
            f"mapping of names to scorers, got {scoring!r}"
        )
    return {name: get_scorer(scorer) for name, scorer in named.items()}
