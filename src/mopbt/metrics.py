"""Metrics: how good a set of evaluated solutions is (paper, section 6.2 and appendix F).

Objectives are arrays (n, K), larger is better. Rows with NaN or an infinity count for nothing.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.ranking import Objectives, Order, all_finite, as_objectives

RHO = 0.1  # paper, section 6.2: the share of the range by which the reference point lies below the worst values
LINES = 360  # paper, appendix F: M of the coverage metric
FAR = 10.0  # ranges of objectives that differ more than so many times are no shares alike
MARGIN = 1e-6  # the authors' code adds it to HV*, so that the best run has a logarithm; the paper does not mention it
PRUNE = 64  # an archive is rid of dominated points each time it has grown by so many


def non_dominated(objectives: ArrayLike) -> Order:
    """Return the indices of the rows of objectives (n, K) that no other row dominates; equal rows are all kept."""
    points = as_objectives(objectives)
    if all_finite(points):
        return np.flatnonzero(moocore.is_nondominated(-points, keep_weakly=True))
    rows = np.flatnonzero(np.isfinite(points).all(axis=1))
    return np.asarray(rows[moocore.is_nondominated(-points[rows], keep_weakly=True)])


def hypervolume(objectives: ArrayLike, reference: ArrayLike) -> float:
    """Return the volume that objectives (n, K) dominate above a reference point (K,); points not better than it add nothing."""
    points = as_objectives(objectives)
    corner = _as_reference(reference, points.shape[1])
    if not all_finite(points):  # moocore does not come back from NaN where K >= 4
        points = _finite(points)
    if not len(points):
        return 0.0
    # `maximise` as an array, as moocore would make one of a plain False, at a tenth of the cost of the whole call.
    return float(
        moocore.hypervolume(-points, ref=-corner, maximise=np.zeros(points.shape[1], dtype=bool))
    )


def reference_point(fronts: Iterable[ArrayLike], rho: float = RHO) -> NDArray[np.float64]:
    """Return the point (K,) that lies below the worst values of all fronts by a share of their range (paper, section 6.2).

    Args:
        fronts: The non-dominated fronts (n, K) of all runs of all algorithms, at all times at which they are compared.
        rho: The share of each objective's range.
    """
    points = _union(fronts, "fronts")
    worst, best = points.min(axis=0), points.max(axis=0)
    return np.asarray(worst - rho * (best - worst))


def own_reference(objectives: ArrayLike) -> NDArray[np.float64]:
    """Return a reference point (K,) for points (n, K) of one run: the paper's rule, below them also where all are equal."""
    points = np.atleast_2d(np.asarray(objectives, dtype=float))
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return np.zeros(points.shape[1])
    flat = np.ptp(points, axis=0) == 0
    return reference_point([points]) - np.where(flat, RHO * np.maximum(np.abs(points[0]), 1.0), 0.0)


def best_hypervolume(sets: Iterable[ArrayLike], reference: ArrayLike) -> float:
    """Return HV*, the hypervolume above a reference point (K,) of all sets of objectives (n, K) together (paper, section 6.2)."""
    return hypervolume(_union(sets, "sets"), reference)


def log_hypervolume_difference(
    best: float, hypervolumes: ArrayLike, *, margin: float = MARGIN
) -> NDArray[np.float64]:
    """Return log10(HV* - HV + margin) of hypervolumes of any shape, smaller is better (paper, section 6.2).

    Args:
        best: HV*, which no hypervolume exceeds.
        hypervolumes: Of one run at many times, or of many runs.
        margin: From the authors' code; with the paper's own 0 the best run has the value minus infinity.
    """
    differences = best - np.asarray(hypervolumes, dtype=float)
    if (differences < -max(margin, 1e-9 * abs(best))).any():
        raise ValueError(
            f"`best` must be at least the largest hypervolume, {best - differences.min()}, got {best}"
        )
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
    """Return the share of equal sectors above a reference point (2,) that hold a non-dominated row of objectives (n, 2).

    Args:
        objectives: Larger is better, (n, 2).
        reference: Where the lines start.
        units: What each objective is measured in (2,); see `coverage_units`.
        lines: How many lines there are, M in the paper; they make M + 1 sectors.
        authors_variant: As in the authors' code: M sectors, of which the number is still divided by M + 1.
    """
    points = as_objectives(objectives)
    if points.shape[1] != 2:
        raise ValueError(
            f"`objectives` must have shape (n, 2), got {points.shape}; coverage knows two objectives only"
        )
    if not isinstance(lines, int) or isinstance(lines, bool) or lines < 1:
        raise ValueError(f"`lines` must be a whole number of at least 1, got {lines!r}")
    above = (points[non_dominated(points)] - _as_reference(reference, 2)) / np.asarray(
        units, dtype=float
    )
    above = above[(above >= 0).all(axis=1) & (above > 0).any(axis=1)]
    sectors = lines if authors_variant else lines + 1
    shares = np.arctan2(above[:, 0], above[:, 1]) / (np.pi / 2)  # 0: along f2, 1: along f1
    held = np.minimum(
        (shares * sectors).astype(np.intp), sectors - 1
    )  # 90 degrees belong to the last sector
    return len(np.unique(held)) / (lines + 1)


def coverage_units(objectives: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Return the units (2,) in which the coverage of points (n, 2) above a reference point (2,) says anything.

    They are 1, as in the paper, whose objectives are all shares; but where the ranges of both differ more than tenfold, as those of
    an accuracy and of a number of weights do, all points would lie in one sector, and the ranges are the units.
    """
    points = _finite(as_objectives(objectives))
    ranges = (points.max(axis=0) if len(points) else np.zeros(2)) - _as_reference(reference, 2)
    return ranges if 0 < FAR * ranges.min() < ranges.max() else np.ones(2)


def hypervolume_curve(objectives: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Return the hypervolume (n,) above a reference point (K,) after each of n evaluations, objectives (n, K) in their order."""
    points = as_objectives(objectives)
    corner = _as_reference(reference, points.shape[1])
    candidates = np.flatnonzero((points > corner).all(axis=1) & np.isfinite(points).all(axis=1))
    # With time as one more objective all points that no earlier one dominates or equals are found at once.
    timed = np.column_stack([-points[candidates], candidates])
    accepted = candidates[moocore.is_nondominated(timed)]
    gains = np.zeros(len(points))
    gains[accepted] = (_gains_2d if points.shape[1] == 2 else _gains)(points[accepted] - corner)
    return np.cumsum(gains)


def mean_and_deviation(values: ArrayLike, *, sample: bool = False) -> tuple[float, float]:
    """Return the mean and the standard deviation of values (n,).

    Args:
        values: One number a run.
        sample: Divide by n - 1; the paper's tables divide by n.
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


def _finite(points: Objectives) -> Objectives:
    return np.asarray(points[np.isfinite(points).all(axis=1)])


def _union(sets: Iterable[ArrayLike], name: str) -> Objectives:
    arrays = [as_objectives(s) for s in sets]
    if len({a.shape[1] for a in arrays}) > 1:
        raise ValueError(
            f"`{name}` must have the same number of objectives, got {sorted({a.shape[1] for a in arrays})}"
        )
    points = _finite(np.concatenate(arrays)) if arrays else np.empty((0, 0))
    if not len(points):
        raise ValueError(f"`{name}` must hold at least one finite point, got none")
    return points


def _gains_2d(points: Objectives) -> list[float]:
    """Return what each of the points (m, 2) adds to the area above 0 of those before, none of which dominates it."""
    # The stairs, by ascending x and descending y; what is dominated is cut out, so that each point enters and leaves once.
    xs, ys = [0.0, math.inf], [math.inf, 0.0]
    gains = []
    for x, y in points.tolist():
        right = bisect_right(xs, x)
        left = right - 1
        gain, edge, floor = 0.0, x, ys[right]
        while ys[left] <= y:  # this step is below the new point: its tread ends at its own x
            gain += (edge - xs[left]) * (y - floor)
            edge, floor = xs[left], ys[left]
            left -= 1
        gains.append(gain + (edge - xs[left]) * (y - floor))
        xs[left + 1 : right], ys[left + 1 : right] = [x], [y]
    return gains


def _gains(points: Objectives) -> list[float]:
    """Return what each of the points (m, K) adds to the volume above 0 of those before, none of which dominates it."""
    costs = -points
    archive, clipped = np.empty_like(costs), np.empty_like(costs)
    size, gains, origin = 0, [], np.zeros(points.shape[1])
    for cost, volume in zip(costs, points.prod(axis=1).tolist(), strict=True):
        # What others dominate of a point's box is what they dominate after they are clipped to it.
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
