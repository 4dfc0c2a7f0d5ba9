"""Measure which hyperparameters moved which objective.

Importance as Optuna measures it explains the value of a finished trial by its one configuration. In
population based training a value is the outcome of many configurations, so the unit here is the
interval: a random forest predicts how much an interval changed an objective, from the
hyperparameters of the interval, the step at which it began, and the objectives that it started
from. The importance of a hyperparameter is what the forest loses, on intervals that it was not
fitted to, when the values of that hyperparameter are shuffled. scikit-learn has the forest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import MissingExtra
from mopbt.history import History
from mopbt.problem import Problem
from mopbt.rng import stream
from mopbt.space import Categorical, Domain

# A forest learns nothing from fewer intervals.
FEWEST = 40
# A sample of more intervals says the same.
MOST = 1500
TREES = 64
SHUFFLES = 4
# Changes beyond these percentiles are cut: one member that diverged would be all that counts.
CUT = (1, 99)

Array = NDArray[np.float64]
# Forests, each with the rows that it was not fitted to.
Forests = list[tuple[Any, NDArray[np.intp]]]


@dataclass(frozen=True)
class Importance:
    """What the hyperparameters explain of the changes of one objective.

    Attributes:
        objective: The name of the objective.
        explained: The share of the variance of its changes that a forest predicts, at most 1. Near
            0, the changes are noise, and no importance can be trusted.
        shares: The part of each hyperparameter in what the forest loses without them; they sum to 1
            unless no hyperparameter matters.
        shifts: How much more an interval changes the objective with large values of a
            hyperparameter (the upper third) than with small ones (the lower third). None for
            categories.
        intervals: How many intervals this rests on.
    """

    objective: str
    explained: float
    shares: Mapping[str, float]
    shifts: Mapping[str, float | None]
    intervals: int


@dataclass(frozen=True)
class Intervals:
    """What intervals started with (n, m), and what they changed (n, K).

    Hyperparameters come first.
    """

    problem: Problem
    inputs: Array
    changes: Array


def importance_of(intervals: Intervals) -> list[Importance]:
    """Return the importance of all hyperparameters for each objective.

    The list may be empty.

    It is empty while fewer than 40 intervals can be explained.
    """
    inputs = intervals.inputs
    changes = intervals.changes
    if len(inputs) < FEWEST:
        return []
    problem = intervals.problem
    rng = stream(0, "importance")
    if len(inputs) > MOST:
        kept = rng.choice(len(inputs), MOST, replace=False)
        inputs = inputs[kept]
        changes = changes[kept]
    found = []
    for k, objective in enumerate(problem.objectives):
        change = objective.sign * np.clip(changes[:, k], *np.percentile(changes[:, k], CUT))
        found.append(_explain(objective.name, inputs, change, problem.space, rng))
    return found


def intervals_of(history: History) -> Intervals:
    """Return the intervals that started from a reported model.

    If there are too few of them, return the first intervals, with their objectives as changes.
    """
    reports = history.reports
    objectives = reports.objectives()
    rows = np.flatnonzero(np.isfinite(objectives).all(axis=1))
    jobs = reports.jobs()[rows]
    starts = history.jobs.start_ids()[jobs]
    row_of = np.full(len(history.jobs), -1, dtype=np.int64)
    row_of[reports.jobs()] = np.arange(len(reports))
    before = np.where(starts >= 0, row_of[starts], -1)
    is_finite = np.asarray(np.isfinite(objectives).all(axis=1))
    continues = (before >= 0) & is_finite[before]
    units = _units(history, jobs)
    if continues.sum() < FEWEST:
        first = starts < 0
        return Intervals(history.problem, units[first], objectives[rows[first]])
    begins = history.jobs.begins()[jobs[continues], None]
    started = objectives[before[continues]]
    # A tree sees only the order of values. Ranks have no overflow.
    ranks = started.argsort(axis=0).argsort(axis=0)
    inputs = np.hstack([units[continues], begins, ranks])
    return Intervals(history.problem, inputs, objectives[rows[continues]] - started)


def _units(history: History, jobs: NDArray[np.int64]) -> Array:
    """Return the hyperparameters of jobs (n, d) on a scale from 0 to 1."""
    configs = history.jobs.configs()[jobs]
    units = np.empty_like(configs)
    for k, domain in enumerate(history.problem.space.values()):
        positions, inverse = np.unique(configs[:, k], return_inverse=True)
        scale = np.array([_unit(domain, position) for position in positions.tolist()], dtype=float)
        units[:, k] = scale[inverse] if len(positions) else 0.0
    return units


def _unit(domain: Domain, position: float) -> float:
    return position if isinstance(domain, Categorical) else domain.to_unit(position)


def _explain(
    name: str, inputs: Array, change: Array, space: Mapping[str, Domain], rng: np.random.Generator
) -> Importance:
    """Explain the changes of one objective."""
    scale = float(np.abs(change).max()) or 1.0
    change = change / scale
    variance = float(change.var())
    losses = dict.fromkeys(space, 0.0)
    shifts: dict[str, float | None] = dict.fromkeys(space)
    explained = 0.0
    if variance > 0:
        forests = _fit_forests(inputs, change, rng)
        error = _error(forests, inputs, change)
        explained = max(0.0, 1 - error / variance)
        for k, (hyperparameter, domain) in enumerate(space.items()):
            shuffled = [_error(forests, _shuffled(inputs, k, rng), change) for _ in range(SHUFFLES)]
            losses[hyperparameter] = max(0.0, float(np.mean(shuffled)) - error)
            if not isinstance(domain, Categorical):
                shifts[hyperparameter] = scale * _shift(forests, inputs, k)
    total = sum(losses.values())
    shares = {key: loss / total if total > 0 else 0.0 for key, loss in losses.items()}
    return Importance(name, explained, shares, shifts, len(inputs))


def _fit_forests(inputs: Array, change: Array, rng: np.random.Generator) -> Forests:
    """Fit a forest to each half of the intervals."""
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        raise MissingExtra(
            "the importance of hyperparameters needs scikit-learn: pip install 'mopbt[sklearn]'"
        ) from None
    halves = np.array_split(rng.permutation(len(inputs)), 2)
    forests = []
    for fitted, held_out in (halves, halves[::-1]):
        forest = RandomForestRegressor(TREES, min_samples_leaf=3, random_state=0)
        forests.append((forest.fit(inputs[fitted], change[fitted]), held_out))
    return forests


def _error(forests: Forests, inputs: Array, change: Array) -> float:
    """Return the mean squared error on intervals that a forest was not fitted to."""
    errors = [forest.predict(inputs[rows]) - change[rows] for forest, rows in forests]
    return float(np.mean(np.concatenate(errors) ** 2))


def _shuffled(inputs: Array, column: int, rng: np.random.Generator) -> Array:
    changed = inputs.copy()
    changed[:, column] = rng.permutation(changed[:, column])
    return changed


def _shift(forests: Forests, inputs: Array, column: int) -> float:
    """Return the difference in predicted change between large and small values."""
    values = np.sort(inputs[:, column])
    means = []
    for part in (values[-len(values) // 3 :], values[: len(values) // 3]):
        changed = inputs.copy()
        changed[:, column] = np.resize(part, len(values))
        predicted = [forest.predict(changed[rows]) for forest, rows in forests]
        means.append(float(np.mean(np.concatenate(predicted))))
    return means[0] - means[1]
