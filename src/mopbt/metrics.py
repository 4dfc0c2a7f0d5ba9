"""Measure the quality of a set of solutions (paper, section 6.2 and appendix F).

Objectives are arrays (n, K), larger is better. Rows with NaN or an infinity are ignored.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.arguments import check_count
from mopbt.ranking import Objectives, Order, all_finite, as_objectives

# Distance of the reference point from the worst values, as a share of the range (section 6.2).
RHO = 0.1

# M of the coverage metric (appendix F).
LINES = 360

# Objectives whose ranges differ by a larger factor are not comparable shares.
FAR = 10.0

# The authors' code adds it to HV*, so that the best run has a finite logarithm. The paper does not
# mention it.
MARGIN = 1e-6

# An archive drops dominated points each time it has grown by this many.
PRUNE = 64


def non_dominated(objectives: ArrayLike) -> Order:
    """Return the indices of the non-dominated rows of objectives (n, K).

    Equal rows are all kept.
    """
    points = as_objectives(objectives)
    if all_finite(points):
        return np.flatnonzero(moocore.is_nondominated(-points, keep_weakly=True))
    rows = np.flatnonzero(np.isfinite(points).all(axis=1))
    return np.asarray(rows[moocore.is_nondominated(-points[rows], keep_weakly=True)])


def hypervolume(objectives: ArrayLike, reference: ArrayLike) -> float:
    """Compute the volume that objectives (n, K) dominate above a reference (K,).

    Points that are not better than the reference point in all objectives add nothing.
    """
    points = as_objectives(objectives)
    corner = _as_reference(reference, points.shape[1])
    # With NaN and K >= 4, moocore does not return.
    if not all_finite(points):
        points = _keep_finite(points)
    if not len(points):
        return 0.0
    # Converting a plain False to this array would cost moocore a tenth of the call.
    maximize = np.zeros(points.shape[1], dtype=bool)
    return float(moocore.hypervolume(-points, ref=-corner, maximise=maximize))


def reference_point(fronts: Iterable[ArrayLike], rho: float = RHO) -> NDArray[np.float64]:
    """Compute a reference point (K,) below the worst of all fronts (section 6.2).

    Args:
        fronts: The non-dominated fronts (n, K) of all runs of all algorithms, at all times at
            which they are compared.
        rho: The distance from the worst values, as a share of each objective's range.
    """
    points = _concatenate(fronts, "fronts")
    worst = points.min(axis=0)
    best = points.max(axis=0)
    return np.asarray(worst - rho * (best - worst))


def own_reference(objectives: ArrayLike) -> NDArray[np.float64]:
    """Compute a reference point (K,) for the points (n, K) of a single run.

    It follows the paper's rule, and lies below the points also in objectives that do not vary.
    """
    points = np.atleast_2d(np.asarray(objectives, dtype=float))
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return np.zeros(points.shape[1])
    constant = np.ptp(points, axis=0) == 0
    offsets = np.where(constant, RHO * np.maximum(np.abs(points[0]), 1.0), 0.0)
    return reference_point([points]) - offsets


def best_hypervolume(sets: Iterable[ArrayLike], reference: ArrayLike) -> float:
    """Compute HV*, the hypervolume of the union of all sets (n, K) (section 6.2)."""
    return hypervolume(_concatenate(sets, "sets"), reference)


def log_hypervolume_difference(
    best: float, hypervolumes: ArrayLike, *, margin: float = MARGIN
) -> NDArray[np.float64]:
    """Compute log10(HV* - HV + margin), smaller is better (section 6.2).

    Args:
        best: HV*, which no hypervolume exceeds.
        hypervolumes: Of one run over time, or of several runs; any shape.
        margin: From the authors' code. The paper has none, so that the value of the best run is
            minus infinity.
    """
    differences = best - np.asarray(hypervolumes, dtype=float)
    if (differences < -max(margin, 1e-9 * abs(best))).any():
        largest = best - differences.min()
        raise ValueError(f"`best` must be at least the largest hypervolume, {largest}, got {best}")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log10(np.maximum(differences, 0.0) + margin))


def coverage(
    objectives: ArrayLike,
    reference: ArrayLike,
    *,
    units: ArrayLike = (1.0, 1.0),
    lines: int = LINES,
    authors_variant: bool = False,
) -> float:
    """Compute the share of sectors that contain a non-dominated point (appendix F).

    Args:
        objectives: Larger is better, (n, 2).
        reference: The point (2,) from which the lines start.
        units: The unit (2,) in which each objective is measured; see `coverage_units`.
        lines: The number of lines, M in the paper. They make M + 1 sectors.
        authors_variant: Follow the authors' code: M sectors, whose count is divided by M + 1.
    """
    points = as_objectives(objectives)
    if points.shape[1] != 2:
        raise ValueError(
            f"`objectives` must have shape (n, 2), got {points.shape}; "
            f"coverage is defined for two objectives only"
        )
    check_count("lines", lines, 1)
    above = points[non_dominated(points)] - _as_reference(reference, 2)
    above /= np.asarray(units, dtype=float)
    above = above[(above >= 0).all(axis=1) & (above > 0).any(axis=1)]
    sectors = lines if authors_variant else lines + 1
    # The angle is 0 along f2 and 1 along f1. An angle of exactly 1 belongs to the last sector.
    angles = np.arctan2(above[:, 0], above[:, 1]) / (np.pi / 2)
    occupied = np.minimum((angles * sectors).astype(np.intp), sectors - 1)
    return len(np.unique(occupied)) / (lines + 1)


def coverage_units(objectives: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Choose the units (2,) in which the coverage of points (n, 2) is meaningful.

    The units are 1, as in the paper, whose objectives are all shares. If the ranges of the two
    objectives differ more than tenfold, as those of an accuracy and a number of weights do, all
    points would lie in one sector. The units are then the ranges above the reference point (2,).
    """
    points = _keep_finite(as_objectives(objectives))
    best = points.max(axis=0) if len(points) else np.zeros(2)
    ranges = best - _as_reference(reference, 2)
    return ranges if 0 < FAR * ranges.min() < ranges.max() else np.ones(2)


def hypervolume_curve(objectives: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Compute the hypervolume (n,) after each of n evaluations.

    Args:
        objectives: Larger is better, (n, K), in the order of evaluation.
        reference: The reference point, (K,).
    """
    points = as_objectives(objectives)
    corner = _as_reference(reference, points.shape[1])
    candidates = np.flatnonzero((points > corner).all(axis=1) & np.isfinite(points).all(axis=1))
    # With time as an additional objective, one call finds all points that no earlier point
    # dominates or equals.
    timed = np.column_stack([-points[candidates], candidates])
    accepted = candidates[moocore.is_nondominated(timed)]
    compute_gains = _gains_2d if points.shape[1] == 2 else _gains
    gains = np.zeros(len(points))
    gains[accepted] = compute_gains(points[accepted] - corner)
    return np.cumsum(gains)


def mean_and_deviation(values: ArrayLike, *, sample: bool = False) -> tuple[float, float]:
    """Compute the mean and the standard deviation of values (n,).

    Args:
        values: One number per run.
        sample: Divide by n - 1. The paper's tables divide by n.
    """
    numbers = np.asarray(values, dtype=float)
    if numbers.ndim != 1 or len(numbers) < 1 + sample:
        raise ValueError(
            f"`values` must have shape (n,) with n of at least {1 + sample}, got {numbers.shape}"
        )
    return float(numbers.mean()), float(numbers.std(ddof=int(sample)))


def _as_reference(reference: ArrayLike, K: int) -> NDArray[np.float64]:
    corner = np.asarray(reference, dtype=float)
    if corner.shape != (K,):
        raise ValueError(
            f"`reference` must have shape ({K},) like the objectives' columns, got {corner.shape}"
        )
    if not all(map(math.isfinite, corner.tolist())):
        raise ValueError(f"`reference` must be finite, got {corner.tolist()}")
    return corner


def _keep_finite(points: Objectives) -> Objectives:
    return np.asarray(points[np.isfinite(points).all(axis=1)])


def _concatenate(sets: Iterable[ArrayLike], name: str) -> Objectives:
    """Join sets of points (n, K), without non-finite rows."""
    arrays = [as_objectives(s) for s in sets]
    counts = sorted({a.shape[1] for a in arrays})
    if len(counts) > 1:
        raise ValueError(f"`{name}` must have the same number of objectives, got {counts}")
    points = _keep_finite(np.concatenate(arrays)) if arrays else np.empty((0, 0))
    if not len(points):
        raise ValueError(f"`{name}` must contain at least one finite point, got none")
    return points


def _gains_2d(points: Objectives) -> list[float]:
    """Compute the area above 0 that each of points (m, 2) adds to those before it.

    No point is dominated by an earlier one.
    """
    # The archive is a staircase with ascending x and descending y. Dominated steps are removed, so
    # each point enters and leaves once.
    xs = [0.0, math.inf]
    ys = [math.inf, 0.0]
    gains = []
    for x, y in points.tolist():
        right = bisect_right(xs, x)
        left = right - 1
        gain = 0.0
        edge = x
        floor = ys[right]
        # Steps below the new point are dominated. Each one bounds a rectangle of the new area.
        while ys[left] <= y:
            gain += (edge - xs[left]) * (y - floor)
            edge = xs[left]
            floor = ys[left]
            left -= 1
        gains.append(gain + (edge - xs[left]) * (y - floor))
        xs[left + 1 : right] = [x]
        ys[left + 1 : right] = [y]
    return gains


def _gains(points: Objectives) -> list[float]:
    """Compute the volume above 0 that each of points (m, K) adds to those before it.

    No point is dominated by an earlier one.
    """
    costs = -points
    origin = np.zeros(points.shape[1])
    archive = np.empty_like(costs)
    clipped = np.empty_like(costs)
    size = 0
    gains = []
    for cost, volume in zip(costs, points.prod(axis=1).tolist(), strict=True):
        # The part of a point's box that others dominate is what they dominate when clipped to it.
        others = np.maximum(archive[:size], cost, out=clipped[:size])
        shared = float(moocore.hypervolume(others, ref=origin)) if size else 0.0
        gains.append(max(volume - shared, 0.0))
        archive[size] = cost
        size += 1
        if size % PRUNE == 0:
            kept = archive[:size][moocore.is_nondominated(archive[:size])]
            size = len(kept)
            archive[:size] = kept
    return gains
