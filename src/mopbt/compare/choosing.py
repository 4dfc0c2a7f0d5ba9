"""Measure what choosing from a front is worth: claimed on validation data, actual on test data.

A user has a preference, and takes the model of the front that suits it best by validation data.
Arrays are larger-is-better. Utilities are 1 at the ideal point and 0 at the reference point.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# A set of preferences has about this many.
PREFERENCES = 101
# Ties go to the model that is better in the other objectives.
TIE_BREAK = 1e-9


@dataclass(frozen=True)
class Choice:
    """The mean utility of chosen models: as `claimed`, and the `actual` one on test data."""

    claimed: float
    actual: float


def preferences(objectives: int) -> Array:
    """Return a fixed set of weights (m, K) that sum to 1: all multiples of one fraction.

    There are 101 for two objectives and 105 for three.
    """
    if objectives < 2:
        return np.ones((1, objectives))
    # The number of parts that brings the size of the lattice closest to PREFERENCES.
    parts = min(
        range(1, PREFERENCES + 1),
        key=lambda n: abs(comb(n + objectives - 1, objectives - 1) - PREFERENCES),
    )
    weights = []
    slots = parts + objectives - 1
    for bars in combinations(range(slots), objectives - 1):
        edges = np.array([-1, *bars, slots])
        weights.append((np.diff(edges) - 1) / parts)
    return np.array(weights)


def utilities(values: ArrayLike, reference: ArrayLike, ideal: ArrayLike, weights: Array) -> Array:
    """Return the Chebyshev utility (n, m) of values (n, K) for each preference (m, K).

    It is 1 minus the largest weighted shortfall from the ideal point, where the distance from the
    reference point to the ideal point is 1 in each objective.
    """
    best = np.asarray(ideal, dtype=float)
    span = best - np.asarray(reference, dtype=float)
    if not (span > 0).all():
        raise ValueError(f"`ideal` must be above `reference` in each objective, got {span} more")
    shortfall = (best - np.asarray(values, dtype=float)) / span
    return np.asarray(1 - (shortfall[:, None, :] * weights[None, :, :]).max(axis=2))


def value_of_choosing(
    compared: ArrayLike, test: ArrayLike, reference: ArrayLike, ideal: ArrayLike
) -> Choice | None:
    """Return the mean utility, over all preferences, of the models chosen from a front.

    Args:
        compared: The objectives (n, K) by which a user chooses: measured values, or their bounds.
        test: The same objectives (n, K) on test data. Models without them cannot be chosen.
        reference: Where an objective is worth 0, (K,).
        ideal: Where it is worth 1, (K,).

    Returns:
        None if no model can be chosen.
    """
    known = np.isfinite(np.asarray(test, dtype=float)).all(axis=1)
    shown = np.asarray(compared, dtype=float)[known]
    if not len(shown):
        return None
    weights = preferences(shown.shape[1])
    claimed = utilities(shown, reference, ideal, weights)
    actual = utilities(np.asarray(test, dtype=float)[known], reference, ideal, weights)
    span = np.asarray(ideal, dtype=float) - np.asarray(reference, dtype=float)
    tie_break = TIE_BREAK * (shown / span).sum(axis=1)
    chosen = np.argmax(claimed + tie_break[:, None], axis=0)
    columns = np.arange(len(weights))
    return Choice(float(claimed[chosen, columns].mean()), float(actual[chosen, columns].mean()))
