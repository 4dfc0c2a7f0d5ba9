"""`MOPBTSearch`: a population of scikit-learn estimators that are tuned while they learn, as one estimator.

An estimator learns step by step through `partial_fit`, or grows through `warm_start`. Checkpoints are pickles, as scikit-learn
has no other way to keep an arbitrary estimator whole (its losses, optimizers and random states are objects): they are read
back only from where the search itself wrote them.
"""

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mopbt.algorithms import Algorithm
from mopbt.engines.pool import PoolEngine, available_cores
from mopbt.errors import MissingExtra, UnreadHyperparameter
from mopbt.objectives import Constraint, Direction
from mopbt.progress import Watch
from mopbt.results import Front, Point
from mopbt.rng import derived_seed, stream
from mopbt.run_directory import read_run_config
from mopbt.runner import run
from mopbt.space import Domain, Space

try:
    import joblib
    from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
    from sklearn.metrics import get_scorer
    from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
    from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d
except ImportError:
    raise MissingExtra("MOPBTSearch needs scikit-learn: pip install 'mopbt[sklearn]'") from None

Rule = str | Mapping[str, float] | Callable[[Front], Point]
PROBED = 1000  # rows on which it is tried whether each hyperparameter reaches training


@dataclass(frozen=True)
class EstimatorTask:
    """An estimator as a task: a step is a pass of `partial_fit` over the training rows, or one more of `resource`."""

    estimator: Any
    space: Mapping[str, Domain]
    scorers: Mapping[str, Callable[..., float]]
    train_rows: tuple[Any, Any]  # X and y; y is None where there is none
    validation_rows: tuple[Any, Any]
    steps: int
    interval: int
    resource: str | None = None
    classes: Any = None
    name: str = "estimator"

    functional: ClassVar[bool] = True  # training leaves the estimator that it starts from as it is

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the scorers' names: of a scorer larger is better."""
        return dict.fromkeys(self.scorers, "max")

    def init(self, seed: int) -> Any:
        """Return the estimator, not fitted."""
        return clone(self.estimator)

    def train(self, model: Any, hp: Mapping[str, Any], begin: int, end: int, seed: int) -> Any:
        """Set the hyperparameters, and let the estimator learn from the training rows."""
        model = self.load(self.dump(model)).set_params(
            **hp
        )  # its bytes must not tell whether it came from a checkpoint
        _reach_optimizer(model)
        if self.resource is not None:
            model.set_params(
                **{"warm_start": True, self.resource: end}, **_random_states(model, seed)
            )
            return model.fit(*self._learned_from)
        for step in range(begin, end):
            model.set_params(**_random_states(model, derived_seed(seed, "partial_fit", step)))
            model.partial_fit(*self._learned_from, **self._classes(model))
        return model

    def evaluate(self, model: Any) -> Mapping[str, float]:
        """Score the estimator on the validation rows."""
        return {
            name: float(scorer(model, *self.validation_rows))
            for name, scorer in self.scorers.items()
        }

    def dump(self, model: Any) -> bytes:
        """Return the estimator as a pickle; once through it, so that equal states give equal bytes."""
        return pickle.dumps(pickle.loads(pickle.dumps(model)))

    def load(self, data: bytes) -> Any:
        """Read the estimator back."""
        return pickle.loads(data)

    def check(self) -> None:
        """Raise an error that names a hyperparameter which the estimator lacks, or which does not reach its training.

        Some estimators read a parameter once and keep what they made of it. So from one trained state an interval is trained with
        two values of a hyperparameter: if what was learned is the same for every pair, tuning it would change nothing. What is
        wrong with the rows shows here, too, with the estimator's own message.
        """
        known = self.estimator.get_params()
        if unknown := [name for name in self.space if name not in known]:
            raise ValueError(
                f"`space` names {unknown[0]!r}, which the estimator lacks; it has {', '.join(sorted(known))}"
            )
        n = _num_samples(self.train_rows[0])
        probe = replace(
            self,
            train_rows=_rows(self.train_rows, np.linspace(0, n - 1, min(n, PROBED), dtype=int)),
        )
        configs = [
            Space(self.space).decode(config)
            for config in Space(self.space).stratified(8, stream(0, "probe"))
        ]
        self.evaluate(probe.train(self.init(0), configs[0], 0, self.interval, 0))
        for name in self.space:
            if not any(probe._has_effect(name, values, configs) for values in configs):
                raise UnreadHyperparameter(
                    f"{name!r} changes nothing of what {type(self.estimator).__name__} learns once it has begun: take it out of "
                    f"the space, or tune a parameter that the estimator reads anew in each step"
                )

    def _has_effect(
        self, name: str, hp: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
    ) -> bool:
        others = [config[name] for config in configs if config[name] != hp[name]]
        start = self.dump(self.train(self.init(0), hp, 0, self.interval, 0))
        learned = [self._learned(start, {**hp, name: value}) for value in (hp[name], *others[:1])]
        return len(set(learned)) > 1 or not others

    def _learned(self, start: bytes, hp: Mapping[str, Any]) -> bytes:
        model = self.train(self.load(start), hp, self.interval, 2 * self.interval, 1)
        told = {"_optimizer", *model.get_params(deep=False)}  # these change by being told
        return self.dump({name: value for name, value in vars(model).items() if name not in told})

    @property
    def _learned_from(self) -> tuple[Any, ...]:
        x, y = self.train_rows
        return (x,) if y is None else (x, y)

    def _classes(self, model: Any) -> dict[str, Any]:
        return (
            {"classes": self.classes}
            if "classes" in inspect.signature(model.partial_fit).parameters
            else {}
        )


def _reach_optimizer(model: Any) -> None:
    """Hand new rates on to the optimizer that a multi-layer perceptron keeps from its first step on."""
    optimizer: Any = getattr(model, "_optimizer", None)
    for name, value in model.get_params(deep=False).items() if optimizer is not None else ():
        if (
            name in vars(optimizer)
            and getattr(optimizer, name) != value
            and not isinstance(value, str)
        ):
            setattr(optimizer, name, value)
            if name == "learning_rate_init":
                optimizer.learning_rate = value


def _random_states(model: Any, seed: int) -> dict[str, int]:
    names = [
        name
        for name in model.get_params()
        if name == "random_state" or name.endswith("__random_state")
    ]
    return {name: seed % 2**32 for name in names}


def _rows(parts: tuple[Any, Any], indices: Any) -> tuple[Any, Any]:
    x, y = (None if part is None else _safe_indexing(part, indices) for part in parts)
    return x, y


def _chosen_has(method: str) -> Callable[["MOPBTSearch"], bool]:
    def check(search: "MOPBTSearch") -> bool:
        getattr(
            search.best_estimator_ if hasattr(search, "best_estimator_") else search.estimator,
            method,
        )
        return True

    return check


class MOPBTSearch(MetaEstimatorMixin, BaseEstimator):
    """Train a population of an estimator under several scorers, keep the front, and predict with the model that a rule picks.

    Args:
        estimator: An estimator with `partial_fit`, or one with `warm_start` (see `resource`).
        space: The parameters that are tuned, by name, such as ``{"alpha": LogGrid(1e-6, 1, 10)}``.
        scoring: The objectives: names of scorers, or a mapping of names to scorers or their names.
        rule: Which model of the front predicts: "knee", the name of an objective (the best in it), weights on the objectives,
            or a function of the `Front` that returns a point. `choice_` is the point, and says why.
        population: How many estimators are trained.
        steps: Steps of training of each: passes of `partial_fit` over the training rows, or the final value of `resource`.
        interval: Steps between decisions.
        resource: For an estimator that grows with `warm_start`: the parameter that counts its steps, such as "max_iter".
        algorithm: An algorithm of mopbt, or the name of one; None is MO-PBT.
        validation: The share of the rows on which the scorers measure, or a splitter, of which the first split is taken.
        random_state: Names all randomness.
        n_jobs: Worker processes; None is this process alone, -1 is one for each core.
        out: A directory that keeps the run, to look at it with `mopbt report`, and from which the same `fit` goes on.
        progress: Whether to show progress, or a function that is called with each `Progress`.
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
        progress: bool | Watch = False,
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

    def fit(self, X: Any, y: Any = None) -> "MOPBTSearch":
        """Train the population on most of the rows, measure it on the others, and pick a model.

        Args:
            X: The rows, shape (n, features), as the estimator takes them.
            y: The targets, shape (n,) or (n, outputs); None where the estimator needs none.
        """
        seed = self._seed()
        task = self._task(X, y, seed)
        engine = "local" if self._workers == 1 else PoolEngine(self._workers)
        how: dict[str, Any] = {
            "algorithm": self.algorithm,
            "population": self.population,
            "engine": engine,
        }
        results = run(task, out=self.out, seed=seed, progress=self.progress, **how)
        results.task = replace(
            task, train_rows=(None, None), validation_rows=(None, None)
        )  # the rows are the caller's
        self.results_, self.front_ = results, results.front()
        self.choice_ = self._ruled(self.front_)
        self.estimators_ = [results.load(point) for point in self.front_]
        self.best_estimator_ = results.load(self.choice_)
        self.best_params_ = dict(self.choice_.hp)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(self.best_estimator_, name):
                setattr(self, name, getattr(self.best_estimator_, name))
        return self

    def pick(
        self,
        how: Any = None,
        *,
        where: str | Constraint | Sequence[str | Constraint] = (),
        best: str | None = None,
    ) -> Any:
        """Return the trained estimator of another choice, as `Front.pick` makes it; the search itself predicts as before."""
        check_is_fitted(self)
        return self.estimators_[
            [point.job for point in self.front_].index(
                self.front_.pick(how, where=where, best=best).job
            )
        ]

    @available_if(_chosen_has("predict"))
    def predict(self, X: Any) -> Any:
        """Predict with the model that was picked; X has the shape (n, features)."""
        return self._chosen.predict(X)

    @available_if(_chosen_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Return probabilities of the model that was picked, shape (n, classes)."""
        return self._chosen.predict_proba(X)

    @available_if(_chosen_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Return the decision function of the model that was picked, shape (n,) or (n, classes)."""
        return self._chosen.decision_function(X)

    @available_if(_chosen_has("transform"))
    def transform(self, X: Any) -> Any:
        """Transform with the model that was picked; X has the shape (n, features)."""
        return self._chosen.transform(X)

    @available_if(_chosen_has("score"))
    def score(self, X: Any, y: Any = None) -> float:
        """Return the own score of the model that was picked."""
        return float(self._chosen.score(X, y))

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        for name in (
            "estimator_type",
            "classifier_tags",
            "regressor_tags",
            "transformer_tags",
            "target_tags",
            "input_tags",
        ):
            setattr(tags, name, deepcopy(getattr(own, name)))
        return tags

    @property
    def _chosen(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_

    @property
    def _workers(self) -> int:
        if self.n_jobs is None:
            return 1
        if not isinstance(self.n_jobs, int) or isinstance(self.n_jobs, bool) or self.n_jobs == 0:
            raise ValueError(
                f"`n_jobs` must be a whole number, -1 for all cores, or None, got {self.n_jobs!r}"
            )
        return self.n_jobs if self.n_jobs > 0 else max(available_cores() + 1 + self.n_jobs, 1)

    def _seed(self) -> int:
        """Return the seed of split and search: where it is left to chance, that of the run that `out` has already."""
        begun = self.out is not None and (Path(self.out) / "run.toml").is_file()
        if begun and not isinstance(self.random_state, Integral):
            return read_run_config(Path(self.out)).seed  # type: ignore[arg-type]
        return int(check_random_state(self.random_state).randint(2**31))

    def _task(self, x: Any, y: Any, seed: int) -> EstimatorTask:
        x, y = indexable(x, y)
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"{type(self.estimator).__name__} requires y to be passed, but the target y is None; use fit(X, y)"
            )
        if is_classifier(self.estimator):
            check_classification_targets(y)
            y = (
                column_or_1d(y, warn=True) if np.ndim(y) == 2 and np.shape(y)[1] == 1 else y
            )  # a column is split by class, too
        self._check_estimator()
        train, validation = self._split(x, y, seed)
        return EstimatorTask(
            estimator=self.estimator,
            space=self.space,
            scorers=_scorers(self.scoring),
            train_rows=_rows((x, y), train),
            validation_rows=_rows((x, y), validation),
            steps=self.steps,
            interval=self.interval,
            resource=self.resource,
            classes=np.unique(y) if is_classifier(self.estimator) else None,
            name=type(self.estimator).__name__ + (self._fingerprint(x, y) if self.out else ""),
        )

    def _fingerprint(self, x: Any, y: Any) -> str:
        """Return what tells a run that is kept from one about other rows, or with another estimator, scoring or split."""
        scoring = self.scoring if isinstance(self.scoring, Mapping) else dict.fromkeys(self.scoring)
        scorers = {name: _identity(scorer) for name, scorer in scoring.items()}
        how = (_identity(clone(self.estimator)), scorers, _identity(self.validation), self.resource)
        return f" (rows {joblib.hash((x, y))[:8]}, search {joblib.hash(how)[:8]})"

    def _check_estimator(self) -> None:
        kind = type(self.estimator).__name__
        if self.resource is None and not hasattr(self.estimator, "partial_fit"):
            raise TypeError(
                f"the estimator must learn step by step: {kind} has no `partial_fit`; if it has `warm_start`, name with `resource` "
                f"the parameter that counts its steps, such as 'max_iter'; of a pipeline, prepare the rows first, and search its "
                f"last step"
            )
        wanted = [] if self.resource is None else ["warm_start", self.resource]
        if missing := [name for name in wanted if name not in self.estimator.get_params()]:
            raise ValueError(
                f"`resource` must count the steps of an estimator with `warm_start`; {kind} has no {missing[0]!r}"
            )
        if self.resource is not None and self.resource in self.space:
            raise ValueError(
                f"`resource` {self.resource!r} counts the steps, so it cannot be tuned; take it out of `space`"
            )

    def _split(self, x: Any, y: Any, seed: int) -> tuple[Any, Any]:
        """Return the rows for training and for validation."""
        if hasattr(self.validation, "split"):
            train, validation = next(iter(self.validation.split(x, y)))
            return train, validation
        if not isinstance(self.validation, float) or not 0 < self.validation < 1:
            raise ValueError(
                f"`validation` must be a share between 0 and 1, such as 0.25, or a splitter, got {self.validation!r}"
            )
        counts = (
            np.unique(y, return_counts=True)[1]
            if is_classifier(self.estimator) and np.ndim(y) == 1
            else np.ones(1)
        )
        kind = (
            StratifiedShuffleSplit if counts.min() > 1 else ShuffleSplit
        )  # each class must be in both parts
        train, validation = next(kind(1, test_size=self.validation, random_state=seed).split(x, y))
        return train, validation

    def _ruled(self, front: Front) -> Point:
        """Return the point that the rule picks, once the front is known."""
        if callable(self.rule):
            return self.rule(front)
        is_objective = isinstance(self.rule, str) and self.rule != "knee"
        return front.pick(best=self.rule) if is_objective else front.pick(self.rule)  # type: ignore[arg-type]


def _identity(part: Any) -> str:
    """Return what tells a part of a search from another one: its state, or its name where that cannot be kept."""
    try:
        return str(joblib.hash(part))
    except (pickle.PicklingError, AttributeError, TypeError):  # of a function in a function
        return str(getattr(part, "__qualname__", type(part).__qualname__))


def _scorers(scoring: Any) -> dict[str, Callable[..., float]]:
    """Return the scorers by name."""
    named = (
        scoring
        if isinstance(scoring, Mapping)
        else {name: name for name in scoring}
        if isinstance(scoring, list | tuple)
        else {}
    )
    if not named:
        raise ValueError(
            f"`scoring` must be a list of scorers' names, such as ['accuracy', 'recall'], or a mapping of names to scorers, "
            f"got {scoring!r}"
        )
    return {name: get_scorer(scorer) for name, scorer in named.items()}
