"""Which model of a front to take: its knee, by weights, or the best within limits; and in a sentence what that costs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Objective

Array = np.ndarray[tuple[int, int], np.dtype[np.float64]]

_TIE = 1e-6  # weight of the sum beside the worst shortfall: of equal choices the one that is better elsewhere


def scaled(front: Array) -> Array:
    """Return larger-is-better objectives (n, K) with each column from 0, its worst on the front, to 1, its best."""
    low, high = front.min(axis=0), front.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    result: Array = np.where(high > low, (front - low) / span, 1.0)
    return result


def knee(scaled: Array) -> int:
    """Return the row that lies farthest beyond the line (with K objectives the plane) through the ends of a scaled front."""
    return int(np.argmax(scaled.sum(axis=1)))


def weighted(scaled: Array, weights: Sequence[float]) -> int:
    """Return the row whose worst weighted shortfall from the best of each objective, scaled, is least (Chebyshev).

    Unlike a weighted sum it can reach every model, also where the front is hollow.
    """
    shortfall = (1.0 - scaled) * np.asarray(weights, dtype=float)
    return int(np.argmin(shortfall.max(axis=1) + _TIE * shortfall.sum(axis=1)))


def best(scaled: Array, objective: int) -> int:
    """Return the row that is best in one objective; of equal ones the best in the others, scaled."""
    leaders = np.flatnonzero(scaled[:, objective] == scaled[:, objective].max())
    return int(leaders[np.argmax(scaled[leaders].sum(axis=1))])


def within(limits: Sequence[Constraint], scores: Sequence[Mapping[str, float]]) -> list[int]:
    """Return the rows that keep all limits, or raise ValueError saying how near the front comes."""
    for limit in limits:
        known = sorted({name for row in scores for name in row})
        if limit.name not in known:
            near = did_you_mean(limit.name, known)
            raise ValueError(
                f"`where` must name one of {', '.join(map(repr, known))}, got {limit.name!r}{near}"
            )
    kept = [
        i
        for i, row in enumerate(scores)
        if all(limit.violation(row.get(limit.name, math.nan)) == 0 for limit in limits)
    ]
    if kept:
        return kept
    reached = ", ".join(f"{limit.name} {_reached(limit, scores):.4g}" for limit in limits)
    asked = " and ".join(map(str, limits))
    together = " (not in one model)" if len(limits) > 1 else ""
    raise ValueError(
        f"no model of the front has {asked}; it reaches {reached}{together}: relax `where`, or train longer"
    )


def _reached(limit: Constraint, scores: Sequence[Mapping[str, float]]) -> float:
    values = [
        row[limit.name] for row in scores if limit.name in row and not math.isnan(row[limit.name])
    ]
    return (max if limit.relation.startswith(">") else min)(values, default=math.nan)


def checked_weights(objectives: Sequence[Objective], weights: Mapping[str, float]) -> list[float]:
    """Return a weight for each objective, 0 where none is given."""
    names = [o.name for o in objectives]
    for name, weight in weights.items():
        if name not in names:
            raise ValueError(
                f"weights must name objectives ({', '.join(map(repr, names))}), got {name!r}{did_you_mean(name, names)}"
            )
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not 0 <= weight < float("inf")
        ):
            raise ValueError(
                f"the weight of {name!r} must be a number of at least 0, got {weight!r}"
            )
    if not any(weights.values()):
        raise ValueError(
            f"weights must give at least one of {', '.join(map(repr, names))} more than 0, got {dict(weights)!r}"
        )
    return [float(weights.get(name, 0.0)) for name in names]


def trade(
    objectives: Sequence[Objective], chosen: Mapping[str, float], other: Mapping[str, float]
) -> str:
    """Return in a clause what a model gives up and gains beside another: "gives up 0.004 of accuracy for 0.09 of dsp"."""
    changes = [(o, o.sign * (chosen[o.name] - other[o.name])) for o in objectives]
    lost = [f"{_amount(-change)} of {o.name}" for o, change in changes if change < 0]
    won = [f"{_amount(change)} of {o.name}" for o, change in changes if change > 0]
    if lost and won:
        return f"gives up {_joined(lost)} for {_joined(won)}"
    if lost:
        return f"gives up {_joined(lost)} for nothing"
    return f"gains {_joined(won)} for nothing" if won else "is as good"


def _amount(change: float) -> str:
    return f"{change:,.0f}" if 100 <= change < 1e9 else f"{change:.2g}"


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
