"""Select one model from a front: the knee, by weights, or the best within limits."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Objective
from mopbt.state import ErrorBar

Array = np.ndarray[tuple[int, int], np.dtype[np.float64]]

# The weight of the summed shortfalls next to the worst one. It breaks ties in favor of the model
# that is better in the other objectives.
_TIE_BREAK = 1e-6


def scaled(front: Array) -> Array:
    """Scale larger-is-better objectives (n, K) to [0, 1], worst to best on the front."""
    low = front.min(axis=0)
    high = front.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    result: Array = np.where(high > low, (front - low) / span, 1.0)
    return result


def knee(scaled: Array) -> int:
    """Return the row farthest from the line (or plane) through the ends of a front."""
    return int(np.argmax(scaled.sum(axis=1)))


def weighted(scaled: Array, weights: Sequence[float]) -> int:
    """Return the row with the smallest weighted Chebyshev distance to the best scores.

    Unlike a weighted sum, this can select every model of a front that is not convex.
    """
    shortfall = (1.0 - scaled) * np.asarray(weights, dtype=float)
    return int(np.argmin(shortfall.max(axis=1) + _TIE_BREAK * shortfall.sum(axis=1)))


def best(scaled: Array, objective: int) -> int:
    """Return the row that is best in one objective; ties go to the best in the others."""
    leaders = np.flatnonzero(scaled[:, objective] == scaled[:, objective].max())
    return int(leaders[np.argmax(scaled[leaders].sum(axis=1))])


def within(
    limits: Sequence[Constraint],
    scores: Sequence[Mapping[str, float]],
    errors: Sequence[Mapping[str, ErrorBar]] | None = None,
) -> list[int]:
    """Return the rows that satisfy all limits; raise ValueError if there are none.

    With errors, the bounds of a metric's interval must satisfy them.
    """
    known = sorted({name for row in scores for name in row})
    for limit in limits:
        if limit.name not in known:
            raise ValueError(
                f"`where` must name one of {', '.join(map(repr, known))}, got {limit.name!r}"
                f"{did_you_mean(limit.name, known)}"
            )
    columns = [_limited_values(limit, scores, errors) for limit in limits]
    kept = []
    for i, values in enumerate(zip(*columns, strict=True)):
        if all(limit.violation(x) == 0 for limit, x in zip(limits, values, strict=True)):
            kept.append(i)
    if kept or not limits:
        return kept or list(range(len(scores)))
    wanted = " and ".join(map(str, limits))
    pairs = zip(limits, columns, strict=True)
    reached = ", ".join(f"{limit.name} {_best_value(limit, column):.4g}" for limit, column in pairs)
    together = " (not in one model)" if len(limits) > 1 else ""
    sure = "" if errors is None else " at the bound of its interval"
    raise ValueError(
        f"no model of the front has {wanted}{sure}; it reaches {reached}{together}: relax `where`, "
        f"or train longer"
    )


def _limited_values(
    limit: Constraint,
    scores: Sequence[Mapping[str, float]],
    errors: Sequence[Mapping[str, ErrorBar]] | None,
) -> list[float]:
    """Return the metric that a limit concerns, or the bound of its interval.

    A missing metric is NaN.
    """
    values = [row.get(limit.name, math.nan) for row in scores]
    for i, bars in enumerate(errors or ()):
        if limit.name in bars:
            bar = bars[limit.name]
            values[i] = bar.lower if limit.relation.startswith(">") else bar.upper
    return values


def _best_value(limit: Constraint, measured: Sequence[float]) -> float:
    """Return the value on the front that comes closest to satisfying a limit."""
    values = [value for value in measured if not math.isnan(value)]
    choose = max if limit.relation.startswith(">") else min
    return choose(values, default=math.nan)


def checked_weights(objectives: Sequence[Objective], weights: Mapping[str, float]) -> list[float]:
    """Check named weights and return one per objective, 0 for those not named."""
    names = [o.name for o in objectives]
    for name, weight in weights.items():
        if name not in names:
            raise ValueError(
                f"weights must name objectives ({', '.join(map(repr, names))}), got {name!r}"
                f"{did_you_mean(name, names)}"
            )
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < float("inf"):
            raise ValueError(
                f"the weight of {name!r} must be a number of at least 0, got {weight!r}"
            )
    if not any(weights.values()):
        raise ValueError(
            f"weights must give at least one of {', '.join(map(repr, names))} more than 0, got "
            f"{dict(weights)!r}"
        )
    return [float(weights.get(name, 0.0)) for name in names]


def trade(
    objectives: Sequence[Objective], chosen: Mapping[str, float], other: Mapping[str, float]
) -> str:
    """Describe what a model gives up and gains compared with another.

    For example: "gives up 0.004 of accuracy for 0.09 of dsp".
    """
    changes = [(o, o.sign * (chosen[o.name] - other[o.name])) for o in objectives]
    losses = [f"{_format_amount(-change)} of {o.name}" for o, change in changes if change < 0]
    gains = [f"{_format_amount(change)} of {o.name}" for o, change in changes if change > 0]
    if losses and gains:
        return f"gives up {_join(losses)} for {_join(gains)}"
    if losses:
        return f"gives up {_join(losses)} for nothing"
    return f"gains {_join(gains)} at no cost" if gains else "is equally good"


def _format_amount(change: float) -> str:
    return f"{change:,.0f}" if 100 <= change < 1e9 else f"{change:.2g}"


def _join(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
