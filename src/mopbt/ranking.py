"""Rank a population by several objectives (Alg. 1 and alternatives).

Objectives are arrays (n, K), larger is better. An *order* is an array of indices, best first. A
*rank* is a number per row, 0 for the best. A *front* is an array of indices. Rows with NaN or an
infinity are excluded from every sort and come last.

`violations` (n,) measure by how much a row violates the constraints. If they are given, domination
is Deb's constraint domination: feasible rows are sorted as usual, and the others follow by
ascending violation.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import moocore
import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from mopbt.arguments import check_count
from mopbt.scalarization import (
    VECTORS,
    above_zero,
    maximum_scalarization,
    random_scalarization,
)

Objectives = NDArray[np.float64]
Violations = NDArray[np.float64] | None
Order = NDArray[np.intp]
Within = Literal["scattered", "crowded", "hypervolume"]

# Positions at which the caller will split an order. Only the side of a split on which a row lies
# matters, so a front that no split divides need not be ordered within.
Cuts = tuple[int, ...] | None

# The largest table of distances, in cells. It makes memory grow with n and not with n squared.
CELLS = 128**2

# Distance of the reference point of the hypervolume order from the worst values of a front, as a
# share of the front's range.
MARGIN = 0.1


def dominates(a: ArrayLike, b: ArrayLike) -> bool:
    """Check whether a (K,) dominates b (K,) (paper, section 3.1).

    It does if it is nowhere worse and somewhere better.
    """
    a = np.asarray(a, dtype=float)
    b = np.asarray(b, dtype=float)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"`a` and `b` must have the same shape (K,), got {a.shape} and {b.shape}")
    return bool((a >= b).all() and (a > b).any())


def ranks(objectives: ArrayLike, violations: ArrayLike | None = None) -> NDArray[np.intp]:
    """Number the front of each row of objectives (n, K), starting at 0.

    Non-finite rows form an additional last front.
    """
    return _ranks(*_check_inputs(objectives, violations))


def non_dominated_sort(objectives: ArrayLike, violations: ArrayLike | None = None) -> list[Order]:
    """Sort objectives (n, K) into fronts, best first.

    Non-finite rows are the last front.
    """
    numbers = ranks(objectives, violations)
    order = np.argsort(numbers, kind="stable")
    return [order[begin:end] for begin, end in _spans(_front_ends(numbers[order]))]


def scattered_order(
    objectives: ArrayLike,
    violations: ArrayLike | None = None,
    *,
    scale: bool = False,
    cuts: Cuts = None,
) -> Order:
    """Order rows by front, then by greedy scattered subset selection (Alg. 1).

    Args:
        objectives: Larger is better, (n, K).
        violations: Constraint violations, (n,).
        scale: Divide each objective by its range before computing distances. The paper does not.
        cuts: Where the caller splits the order. Fronts that no cut divides stay sorted by f1.
    """
    order, points, ends = _sort_by_front(*_check_inputs(objectives, violations))
    if scale:
        points = to_unit_range(points)
    if cuts is None:
        picks = _scatter_all(points, ends)
        order[: len(picks)] = order[picks]
        return order
    for begin, end in _divided_fronts(ends, cuts):
        order[begin:end] = order[begin:end][_scatter_front(points[begin:end], points[:begin])]
    return order


def crowding_distance(objectives: ArrayLike) -> NDArray[np.float64]:
    """Compute the crowding distance (n,) of NSGA-II within one front (n, K).

    Non-finite rows get 0.
    """
    front = as_objectives(objectives)
    finite = _finite_rows(front)
    distances = np.zeros(len(front))
    distances[finite] = _crowding(front[finite])
    return distances


def crowded_order(
    objectives: ArrayLike, violations: ArrayLike | None = None, *, cuts: Cuts = None
) -> Order:
    """Order rows (n, K) by front, then by descending crowding distance (NSGA-II)."""
    return _order_front_by_front(
        objectives, violations, lambda front: np.argsort(-_crowding(front), kind="stable"), cuts
    )


def hypervolume_order(
    objectives: ArrayLike, violations: ArrayLike | None = None, *, cuts: Cuts = None
) -> Order:
    """Order rows (n, K) by front, then greedily by the hypervolume they add."""
    return _order_front_by_front(objectives, violations, _greedy_hypervolume, cuts)


def ranks_of(order: ArrayLike) -> NDArray[np.intp]:
    """Invert an order (n,) into the position (n,) of each row, 0 for the best.

    >>> ranks_of([2, 0, 1]).tolist()
    [1, 2, 0]
    """
    indices = np.asarray(order, dtype=np.intp)
    places = np.empty(len(indices), dtype=np.intp)
    places[indices] = np.arange(len(indices))
    return places


class Rank(Protocol):
    """Order the rows of a population.

    Given `cuts`, a ranking may skip work that does not change on which side of a cut a row lies.
    """

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""


# The rankings are classes that are used as functions, like `operator.itemgetter`: they can be
# compared, hashed, printed and sent to other processes.


@dataclass(frozen=True, kw_only=True)
class by_domination:
    """Rank by front, and by a second criterion within a front.

    Args:
        within: Greedy scattered subset selection, crowding distance, or hypervolume.
        scale: Divide each objective by its range before computing distances.
    """

    within: Within = "scattered"
    scale: bool = False

    def __post_init__(self) -> None:
        if self.within not in get_args(Within):
            allowed = ", ".join(map(repr, get_args(Within)))
            raise ValueError(f"`within` must be one of {allowed}, got {self.within!r}")
        if self.scale and self.within != "scattered":
            raise ValueError(
                f"`scale` must be False for within={self.within!r}, "
                f"which does not depend on the scale of the objectives"
            )

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        if self.within == "scattered":
            return scattered_order(objectives, violations, scale=self.scale, cuts=cuts)
        if self.within == "crowded":
            return crowded_order(objectives, violations, cuts=cuts)
        return hypervolume_order(objectives, violations, cuts=cuts)

    def order_front(self, front: Objectives, earlier: Objectives) -> Order:
        """Order one front (m, K), sorted by descending f1, by the second criterion.

        `earlier` (r, K) are the points of all better fronts. The caller scales both.
        """
        if self.within == "scattered":
            return _scatter_front(front, earlier)
        if self.within == "crowded":
            return np.argsort(-_crowding(front), kind="stable")
        return _greedy_hypervolume(front)


@dataclass(frozen=True)
class by_objective:
    """Rank by one objective, counted from 0, as in single-objective PBT."""

    k: int

    def __post_init__(self) -> None:
        check_count("k", self.k, 0)

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        return _order_by_score(objectives, violations, self._column)

    def _column(self, objectives: Objectives) -> NDArray[np.float64]:
        if self.k >= objectives.shape[1]:
            raise ValueError(
                f"`k` must be below the number of objectives, {objectives.shape[1]}, got {self.k}"
            )
        return objectives[:, self.k]


@dataclass(frozen=True, kw_only=True)
class by_random_scalarization:
    """Rank by the ParEGO score with random weights, drawn once per ranking.

    Args:
        per_member: Draw weights for every row instead, as the authors' code does.
        minimized: The columns of objectives that are minimized.
    """

    per_member: bool = False
    minimized: tuple[int, ...] = ()

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        return _order_by_score(
            objectives,
            violations,
            lambda rows: random_scalarization(
                above_zero(rows, self.minimized), rng, per_member=self.per_member
            ),
        )


@dataclass(frozen=True, kw_only=True)
class by_max_scalarization:
    """Rank by the largest Golovin score over many random weights.

    Args:
        vectors: The number of weight vectors, |W|.
        authors_variant: Follow the authors' code where it differs from the paper.
        minimized: The columns of objectives that are minimized.
    """

    vectors: int = VECTORS
    authors_variant: bool = False
    minimized: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("vectors", self.vectors, 1)

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        return _order_by_score(objectives, violations, lambda rows: self._scores(rows, rng))

    def _scores(self, objectives: Objectives, rng: Generator) -> NDArray[np.float64]:
        positive = above_zero(objectives, self.minimized)
        return maximum_scalarization(
            positive, rng, vectors=self.vectors, authors_variant=self.authors_variant
        )


def as_objectives(objectives: ArrayLike) -> Objectives:
    """Convert objectives to an array of floats (n, K), or raise ValueError."""
    array = np.asarray(objectives, dtype=float)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"`objectives` must have shape (n, K), got {array.shape}")
    return array


def all_finite(values: NDArray[np.float64]) -> bool:
    """Check quickly that no value is NaN or infinite.

    True is certain. False may also mean that values are so large that their squares overflow.
    """
    # The dot product takes a third of the time of `np.isfinite`, but on larger arrays BLAS would
    # start threads for it.
    if values.size > 4096:
        return bool(np.isfinite(values).all())
    return bool(np.vdot(values, values) < np.inf)


def _finite_rows(objectives: Objectives) -> NDArray[np.bool_]:
    if all_finite(objectives):
        return np.ones(len(objectives), dtype=bool)
    return np.asarray(np.isfinite(objectives).all(axis=1))


def _check_inputs(
    objectives: ArrayLike, violations: ArrayLike | None
) -> tuple[Objectives, Violations]:
    array = as_objectives(objectives)
    if violations is None:
        return array, None
    amounts = np.asarray(violations, dtype=float)
    if amounts.shape != array.shape[:1]:
        raise ValueError(
            f"`violations` must have shape ({len(array)},) like the objectives' rows, "
            f"got {amounts.shape}"
        )
    if (amounts < 0).any():
        raise ValueError(f"`violations` must not be negative, got {amounts.min()}")
    return array, amounts


def _rankable_rows(objectives: Objectives, violations: Violations) -> NDArray[np.bool_]:
    finite = _finite_rows(objectives)
    return finite if violations is None else finite & ~np.isnan(violations)


def _ranks(objectives: Objectives, violations: Violations) -> NDArray[np.intp]:
    rankable = _rankable_rows(objectives, violations)
    if violations is None and rankable.all():
        return _pareto_ranks(objectives)
    feasible = rankable if violations is None else rankable & (violations == 0)
    numbers = np.full(len(objectives), -1, dtype=np.intp)
    # NaN in any row would change the ranks of the finite ones.
    numbers[feasible] = _pareto_ranks(objectives[feasible])
    if violations is not None:
        infeasible = rankable & ~feasible
        _, levels = np.unique(violations[infeasible], return_inverse=True)
        numbers[infeasible] = 1 + numbers.max(initial=-1) + levels
    numbers[~rankable] = 1 + numbers.max(initial=-1)
    return numbers


def _pareto_ranks(objectives: Objectives) -> NDArray[np.intp]:
    if not len(objectives):
        return np.empty(0, dtype=np.intp)
    # Negating the objectives is cheaper than passing `maximise=True`.
    return np.asarray(moocore.pareto_rank(-objectives), dtype=np.intp)


def _front_ends(sorted_ranks: NDArray[np.intp]) -> list[int]:
    """Return where each front ends in rows sorted by rank."""
    inner: list[int] = (np.flatnonzero(sorted_ranks[1:] != sorted_ranks[:-1]) + 1).tolist()
    return [*inner, len(sorted_ranks)] if len(sorted_ranks) else []


def _spans(ends: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends], ends, strict=False))


def _sort_by_front(
    objectives: Objectives, violations: Violations
) -> tuple[Order, Objectives, list[int]]:
    """Sort rows by front, and within a front by descending f1.

    Returns:
        The order of all rows, the rankable points (m, K) in this order, and the end of each of
        their fronts.
    """
    rankable = _rankable_rows(objectives, violations)
    numbers = _ranks(objectives, violations)
    first = np.where(rankable, -objectives[:, 0], 0.0)
    order = np.lexsort((first, numbers))
    points = objectives[order[: np.count_nonzero(rankable)]]
    return order, points, _front_ends(numbers[order[: len(points)]])


def _scatter_all(points: Objectives, ends: list[int]) -> Order:
    """Apply Alg. 1 to points (m, K) sorted by front and descending f1."""
    columns = np.ascontiguousarray(points.T)
    picks = np.empty(len(points), dtype=np.intp)
    # An overflow to infinity is harmless: it is a large distance.
    with np.errstate(over="ignore"):
        for fronts in _group_fronts(_spans(ends)):
            begin = fronts[0][0]
            end = fronts[-1][1]
            here = columns[:, begin:end]
            # Alg. 1 measures distances to all points ranked so far, earlier fronts included.
            nearest = _nearest_squares(here, columns[:, :begin])
            picks[begin:end] = _farthest_first(here, nearest, [e - begin for _, e in fronts])
            picks[begin:end] += begin
    return picks


def _scatter_front(front: Objectives, earlier: Objectives) -> Order:
    """Apply Alg. 1 to one front only and return its picks (m,).

    The order within earlier fronts makes no difference, because all of their points are ranked.
    """
    columns = np.ascontiguousarray(front.T)
    with np.errstate(over="ignore"):
        nearest = _nearest_squares(columns, np.ascontiguousarray(earlier.T))
        return np.array(_farthest_first(columns, nearest, [len(front)]), dtype=np.intp)


def _group_fronts(spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group fronts whose distances fit one table; too large a front stays alone."""
    groups: list[list[tuple[int, int]]] = []
    for span in spans:
        if groups and (span[1] - groups[-1][0][0]) ** 2 <= CELLS:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _farthest_first(
    columns: Objectives, nearest: NDArray[np.float64], ends: list[int]
) -> list[int]:
    """Pick the point farthest from all picked so far, front by front (Alg. 1).

    Args:
        columns: The points of one or more fronts, (K, m).
        nearest: Squared distances (m,) to the closest point ranked so far. It is updated in place.
        ends: Where each front ends.
    """
    table = _squares(columns, columns) if len(nearest) ** 2 <= CELLS else None
    if table is None and len(ends) == 1 and _is_chain(columns):
        # A pick is never farther than the one that made its segment. Where both are equally far,
        # it has the higher index, or it would have been picked before.
        on_chain: list[int] = np.argsort(-chain_values(columns, nearest), kind="stable").tolist()
        return on_chain
    picks: list[int] = []
    for begin, end in _spans(ends):
        front = nearest[begin:end]
        for _ in range(begin, end):
            # nextToAdd of Alg. 1. `argmax` returns the first of equals, and fronts are sorted by
            # descending f1, so the very first pick has the largest f1.
            pick = begin + int(front.argmax())
            picks.append(pick)
            if table is None:
                squares = _squares(columns, columns[:, pick : pick + 1])[0]
            else:
                squares = table[pick]
            np.minimum(nearest, squares, out=nearest)
            # A negative distance marks a ranked point; an unranked duplicate of it has 0.
            nearest[pick] = -1.0
    return picks


def _is_chain(columns: Objectives) -> bool:
    """Check whether points (2, m) descend in f1 and ascend in f2, as a front does."""
    if len(columns) != 2:
        return False
    return bool((np.diff(columns[0]) <= 0).all() and (np.diff(columns[1]) >= 0).all())


def chain_values(columns: Objectives, nearest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared distance (m,) at which Alg. 1 picks each point (2, m).

    `nearest` are the initial distances (m,); they are updated in place. On a chain, the closest
    picks are the next one on the left and on the right. A pick therefore splits its segment in two
    that do not influence each other, and all segments are split at once.
    """
    values = np.zeros(len(nearest))
    # The points that are left, ascending, and where their segments start.
    left = np.flatnonzero(nearest > 0)
    starts = np.zeros(min(len(left), 1), dtype=np.intp)
    while len(left):
        highest = np.maximum.reduceat(nearest[left], starts)
        segments = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(left)))
        farthest = np.flatnonzero(nearest[left] == highest[segments])
        # The first of equals, as `argmax` returns it.
        farthest = farthest[np.diff(segments[farthest], prepend=-1) > 0]
        picks = left[farthest]
        values[picks] = highest
        closest = picks[segments]
        nearest[left] = np.minimum(nearest[left], _distances(columns, left, closest))
        # What is at no distance is picked last: it needs no segment.
        far = nearest[left] > 0
        left = left[far]
        closest = closest[far]
        segments = segments[far]
        halves = 2 * segments + (left > closest)
        starts = np.flatnonzero(np.diff(halves, prepend=-1))
    return values


def _distances(columns: Objectives, a: Order, b: Order) -> NDArray[np.float64]:
    """Compute squared distances (n,) between the points of two index arrays (n,)."""
    gaps = columns[:, a] - columns[:, b]
    return np.asarray(np.add.reduce(gaps * gaps, axis=0))


def _nearest_squares(columns: Objectives, others: Objectives) -> NDArray[np.float64]:
    """Compute squared distances (m,) of points (K, m) to the closest of (K, r)."""
    nearest = np.full(columns.shape[1], np.inf)
    step = max(1, CELLS // len(nearest))
    for begin in range(0, others.shape[1], step):
        squares = _squares(columns, others[:, begin : begin + step])
        np.minimum(nearest, squares.min(axis=0), out=nearest)
    return nearest


def _squares(columns: Objectives, others: Objectives) -> NDArray[np.float64]:
    """Compute the squared distances (r, m) between points (K, m) and others (K, r)."""
    # Differences are exact; |a|^2 - 2ab + |b|^2 loses all digits far from the origin.
    gaps = others[:, :, None] - columns[:, None, :]
    np.multiply(gaps, gaps, out=gaps)
    return np.asarray(np.add.reduce(gaps, axis=0))


def _divided_fronts(ends: list[int], cuts: Cuts) -> list[tuple[int, int]]:
    """Return the spans of the fronts that a cut divides; without cuts, of all."""
    if cuts is None:
        return _spans(ends)
    return [(begin, end) for begin, end in _spans(ends) if any(begin < cut < end for cut in cuts)]


def _order_front_by_front(
    objectives: ArrayLike,
    violations: ArrayLike | None,
    order_front: Callable[[Objectives], Order],
    cuts: Cuts,
) -> Order:
    order, points, ends = _sort_by_front(*_check_inputs(objectives, violations))
    for begin, end in _divided_fronts(ends, cuts):
        order[begin:end] = order[begin:end][order_front(points[begin:end])]
    return order


def to_unit_range(points: Objectives) -> Objectives:
    """Shift and scale each objective to [0, 1]; a constant one becomes 0."""
    if not len(points):
        return points
    # The range of huge values would overflow; that of their halves does not.
    halves = points * 0.5
    lowest = halves.min(axis=0)
    span = halves.max(axis=0) - lowest
    return np.asarray((halves - lowest) / np.where(span > 0, span, 1.0))


def _crowding(front: Objectives) -> NDArray[np.float64]:
    distances = np.zeros(len(front))
    if len(front) <= 2:
        return distances + np.inf
    for column in to_unit_range(front).T:
        # A constant objective has no extreme points.
        if not column.any():
            continue
        order = np.argsort(column, kind="stable")
        distances[order[[0, -1]]] = np.inf
        distances[order[1:-1]] += column[order[2:]] - column[order[:-2]]
    return distances


def _greedy_hypervolume(front: Objectives) -> Order:
    """Order a front (m, K) greedily by the hypervolume that each member adds.

    Of equal members the first comes first; the caller sorts them by descending f1.
    """
    # The order does not depend on the scale, so the best values of the front become 0, the worst
    # become 1, and the reference point is 1.1.
    losses = 1.0 - to_unit_range(front)
    picked = np.empty_like(losses)
    order = np.empty(len(front), dtype=np.intp)
    # What a member adds only shrinks as others are picked. An outdated gain is therefore an upper
    # bound, and most gains need not be recomputed.
    heap = [(-_hypervolume_gain(loss, picked[:0]), i, 0) for i, loss in enumerate(losses)]
    heapq.heapify(heap)
    for place in range(len(front)):
        while heap[0][2] < place:
            member = heap[0][1]
            gain = _hypervolume_gain(losses[member], picked[:place])
            heapq.heapreplace(heap, (-gain, member, place))
        order[place] = heapq.heappop(heap)[1]
        picked[place] = losses[order[place]]
    return order


def _hypervolume_gain(loss: Objectives, picked: Objectives) -> float:
    """Compute the hypervolume that a point (K,) adds to the picked ones (m, K).

    It is rounded to 12 decimals, so that equal gains compare equal.
    """
    volume = float(np.prod(1 + MARGIN - loss))
    if len(picked):
        volume -= float(moocore.hypervolume(np.maximum(picked, loss), ref=1 + MARGIN))
    return round(volume, 12)


def _order_by_score(
    objectives: ArrayLike,
    violations: ArrayLike | None,
    score: Callable[[Objectives], NDArray[np.float64]],
) -> Order:
    """Order rows by ascending violation, then by descending score."""
    array, amounts = _check_inputs(objectives, violations)
    rankable = _rankable_rows(array, amounts)
    # Other rows are scored as zeros instead of being left out, because the random weights of a row
    # must not depend on other rows. An overflow to infinity is a large score.
    with np.errstate(over="ignore"):
        scores = score(np.where(rankable[:, None], array, 0.0))
    amounts = np.zeros(len(array)) if amounts is None else np.where(rankable, amounts, 0.0)
    return np.lexsort((-scores, amounts, ~rankable))
