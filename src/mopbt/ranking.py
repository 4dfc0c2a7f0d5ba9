"""Rankings: which members of a population are better than others (Alg. 1 and its alternatives).

Objectives are arrays (n, K), larger is better. An *order* is an array of indices, best first; a *rank* is a number per row, 0
for the best; a *front* is an array of indices. Rows with NaN or an infinity are left out of every sort and come last.

`violations` (n,) say by how much a row misses the constraints. Where they are given, domination is Deb's constraint domination:
rows without a violation are sorted as usual, the others follow by ascending violation.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import moocore
import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from mopbt.scalarization import (
    VECTORS,
    above_zero,
    check_vectors,
    maximum_scalarization,
    random_scalarization,
)

Objectives = NDArray[np.float64]
Violations = NDArray[np.float64] | None
Order = NDArray[np.intp]
Cuts = (
    tuple[int, ...] | None
)  # the places at which an order is going to be cut: who stands on which side is all that matters
Within = Literal["scattered", "crowded", "hypervolume"]

CELLS = 128**2  # of a table of distances, so that memory grows with n and not with n squared
MARGIN = (
    0.1  # of a front's range, from its worst values to the reference point of the hypervolume order
)


def dominates(a: ArrayLike, b: ArrayLike) -> bool:
    """Tell whether a (K,) is nowhere worse than b (K,) and somewhere better (paper, section 3.1)."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"`a` and `b` must have the same shape (K,), got {a.shape} and {b.shape}")
    return bool((a >= b).all() and (a > b).any())


def ranks(objectives: ArrayLike, violations: ArrayLike | None = None) -> NDArray[np.intp]:
    """Return the number of the front of each row of objectives (n, K), from 0; non-finite rows get one more than the largest."""
    return _ranks(*_checked(objectives, violations))


def non_dominated_sort(objectives: ArrayLike, violations: ArrayLike | None = None) -> list[Order]:
    """Return the fronts of objectives (n, K), best first; non-finite rows are the last front."""
    numbers = ranks(objectives, violations)
    order = np.argsort(numbers, kind="stable")
    return [order[begin:end] for begin, end in _spans(_ends(numbers[order]))]


def scattered_order(
    objectives: ArrayLike,
    violations: ArrayLike | None = None,
    *,
    scale: bool = False,
    cuts: Cuts = None,
) -> Order:
    """Return the order (n,) of objectives (n, K): by fronts, and within them by greedy scattered subset selection (Alg. 1).

    Args:
        objectives: Larger is better, (n, K).
        violations: Of the constraints, (n,).
        scale: Divide each objective by its range before distances are taken; the paper does not.
        cuts: Where the order is going to be cut. A front that no cut divides is left in the order of descending f1.
    """
    order, points, ends = _by_front(*_checked(objectives, violations))
    points = _to_unit_range(points) if scale else points
    if cuts is None:
        picks = _scattered(points, ends)
        order[: len(picks)] = order[picks]
        return order
    for begin, end in _divided(ends, cuts):
        order[begin:end] = order[begin:end][_scattered_front(points, begin, end)]
    return order


def crowding_distance(objectives: ArrayLike) -> NDArray[np.float64]:
    """Return the crowding distance (n,) of NSGA-II within one front, objectives (n, K); non-finite rows get 0."""
    front = as_objectives(objectives)
    counted = _finite_rows(front)
    distances = np.zeros(len(front))
    distances[counted] = _crowding(front[counted])
    return distances


def crowded_order(
    objectives: ArrayLike, violations: ArrayLike | None = None, *, cuts: Cuts = None
) -> Order:
    """Return the order (n,) of objectives (n, K): by fronts, and within them by descending crowding distance (NSGA-II)."""
    return _front_by_front(
        objectives, violations, lambda front: np.argsort(-_crowding(front), kind="stable"), cuts
    )


def hypervolume_order(
    objectives: ArrayLike, violations: ArrayLike | None = None, *, cuts: Cuts = None
) -> Order:
    """Return the order (n,) of objectives (n, K): by fronts, and within them by the hypervolume that each adds to those before."""
    return _front_by_front(objectives, violations, _greedy_hypervolume, cuts)


def ranks_of(order: ArrayLike) -> NDArray[np.intp]:
    """Return the place (n,) of each row in an order (n,), 0 for the best.

    >>> ranks_of([2, 0, 1]).tolist()
    [1, 2, 0]
    """
    indices = np.asarray(order, dtype=np.intp)
    places = np.empty(len(indices), dtype=np.intp)
    places[indices] = np.arange(len(indices))
    return places


class Rank(Protocol):
    """Orders rows; with `cuts` it may save the work that changes nothing on which side of a cut a row stands."""

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""


# Rankings as values. Like `operator.itemgetter` these are classes that are used as functions, so that they can be compared,
# hashed, printed and sent to other processes.


@dataclass(frozen=True, kw_only=True)
class by_domination:
    """Rank by fronts and, within a front, by greedy scattered subset selection, crowding distance or hypervolume."""

    within: Within = "scattered"
    scale: bool = False

    def __post_init__(self) -> None:
        if self.within not in get_args(Within):
            raise ValueError(
                f"`within` must be one of {', '.join(map(repr, get_args(Within)))}, got {self.within!r}"
            )
        if self.scale and self.within != "scattered":
            raise ValueError(
                f"`scale` must be False for within={self.within!r}, which no scale of an objective changes"
            )

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        if self.within == "scattered":
            return scattered_order(objectives, violations, scale=self.scale, cuts=cuts)
        return (crowded_order if self.within == "crowded" else hypervolume_order)(
            objectives, violations, cuts=cuts
        )


@dataclass(frozen=True)
class by_objective:
    """Rank by one objective, counted from 0: single-objective PBT."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0:
            raise ValueError(f"`k` must be a whole number of at least 0, got {self.k!r}")

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        return _by_score(objectives, violations, self._scores)

    def _scores(self, objectives: Objectives) -> NDArray[np.float64]:
        if self.k >= objectives.shape[1]:
            raise ValueError(
                f"`k` must be below the number of objectives, {objectives.shape[1]}, got {self.k}"
            )
        return objectives[:, self.k]


@dataclass(frozen=True, kw_only=True)
class by_random_scalarization:
    """Rank by the ParEGO score under weights drawn anew for every ranking; `per_member`: for every row, as the authors' code."""

    per_member: bool = False
    minimized: tuple[int, ...] = ()  # the columns of objectives whose scores are minimized

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        return _by_score(objectives, violations, lambda f: self._scores(f, rng))

    def _scores(self, objectives: Objectives, rng: Generator) -> NDArray[np.float64]:
        return random_scalarization(
            above_zero(objectives, self.minimized), rng, per_member=self.per_member
        )


@dataclass(frozen=True, kw_only=True)
class by_max_scalarization:
    """Rank by the largest Golovin score over many random weights; `published`: as the authors' code."""

    vectors: int = VECTORS
    authors_variant: bool = False
    minimized: tuple[int, ...] = ()  # the columns of objectives whose scores are minimized

    def __post_init__(self) -> None:
        check_vectors(self.vectors)

    def __call__(
        self, objectives: Objectives, violations: Violations, rng: Generator, cuts: Cuts = None
    ) -> Order:
        """Return the order (n,) of objectives (n, K)."""
        return _by_score(objectives, violations, lambda f: self._scores(f, rng))

    def _scores(self, objectives: Objectives, rng: Generator) -> NDArray[np.float64]:
        positive = above_zero(objectives, self.minimized)
        return maximum_scalarization(
            positive, rng, vectors=self.vectors, authors_variant=self.authors_variant
        )


def as_objectives(objectives: ArrayLike) -> Objectives:
    """Return objectives as an array of floats (n, K), or raise ValueError."""
    array = np.asarray(objectives, dtype=float)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"`objectives` must have shape (n, K), got {array.shape}")
    return array


def all_finite(values: NDArray[np.float64]) -> bool:
    """Tell that no value is NaN or infinite; False is a suspicion only, as huge values raise it too."""
    if values.size > 4096:  # BLAS would start threads
        return bool(np.isfinite(values).all())
    return bool(
        np.vdot(values, values) < np.inf
    )  # a third of the cost, and a guard must cost nothing


def _finite_rows(objectives: Objectives) -> NDArray[np.bool_]:
    if all_finite(objectives):
        return np.ones(len(objectives), dtype=bool)
    return np.asarray(np.isfinite(objectives).all(axis=1))


def _checked(objectives: ArrayLike, violations: ArrayLike | None) -> tuple[Objectives, Violations]:
    array = as_objectives(objectives)
    if violations is None:
        return array, None
    missed = np.asarray(violations, dtype=float)
    if missed.shape != array.shape[:1]:
        raise ValueError(
            f"`violations` must have shape ({len(array)},) like the objectives' rows, got {missed.shape}"
        )
    if (missed < 0).any():
        raise ValueError(f"`violations` must not be negative, got {missed.min()}")
    return array, missed


def _counted(objectives: Objectives, violations: Violations) -> NDArray[np.bool_]:
    finite = _finite_rows(objectives)
    return finite if violations is None else finite & ~np.isnan(violations)


def _ranks(objectives: Objectives, violations: Violations) -> NDArray[np.intp]:
    counted = _counted(objectives, violations)
    if violations is None and counted.all():
        return _pareto_ranks(objectives)
    feasible = counted if violations is None else counted & (violations == 0)
    numbers = np.full(len(objectives), -1, dtype=np.intp)
    numbers[feasible] = _pareto_ranks(
        objectives[feasible]
    )  # NaN would change the ranks of the finite rows
    if violations is not None:
        infeasible = counted & ~feasible
        numbers[infeasible] = (
            1 + numbers.max(initial=-1) + np.unique(violations[infeasible], return_inverse=True)[1]
        )
    numbers[~counted] = 1 + numbers.max(initial=-1)
    return numbers


def _pareto_ranks(objectives: Objectives) -> NDArray[np.intp]:
    if not len(objectives):
        return np.empty(0, dtype=np.intp)
    return np.asarray(moocore.pareto_rank(-objectives), dtype=np.intp)  # cheaper than maximize=True


def _ends(sorted_ranks: NDArray[np.intp]) -> list[int]:
    """Return the end of each front in rows that are sorted by rank."""
    inner: list[int] = (np.flatnonzero(sorted_ranks[1:] != sorted_ranks[:-1]) + 1).tolist()
    return [*inner, len(sorted_ranks)] if len(sorted_ranks) else []


def _spans(ends: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends], ends, strict=False))


def _by_front(
    objectives: Objectives, violations: Violations
) -> tuple[Order, Objectives, list[int]]:
    """Return all rows front after front, each by descending f1; the points that count in this order; their fronts' ends."""
    counted = _counted(objectives, violations)
    numbers = _ranks(objectives, violations)
    first = np.where(counted, -objectives[:, 0], 0.0)
    order = np.lexsort((first, numbers))
    points = objectives[order[: np.count_nonzero(counted)]]
    return order, points, _ends(numbers[order[: len(points)]])


def _scattered(points: Objectives, ends: list[int]) -> Order:
    """Return the picks (m,) of Alg. 1 from points (m, K) that stand front after front, each by descending f1."""
    columns = np.ascontiguousarray(points.T)
    picks = np.empty(len(points), dtype=np.intp)
    with np.errstate(over="ignore"):  # an infinite distance is a large one
        for fronts in _blocks(_spans(ends)):
            begin, end = fronts[0][0], fronts[-1][1]
            nearest = _nearest(
                columns[:, begin:end], columns[:, :begin]
            )  # earlier fronts count too
            picks[begin:end] = _farthest_first(
                columns[:, begin:end], nearest, [e - begin for _, e in fronts]
            )
            picks[begin:end] += begin
    return picks


def _blocks(spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group fronts so that all distances within a group fit a table; a front that is too large stands alone."""
    blocks: list[list[tuple[int, int]]] = []
    for span in spans:
        if blocks and (span[1] - blocks[-1][0][0]) ** 2 <= CELLS:
            blocks[-1].append(span)
        else:
            blocks.append([span])
    return blocks


def _farthest_first(
    columns: Objectives, nearest: NDArray[np.float64], ends: list[int]
) -> list[int]:
    """Return the picks of Alg. 1 from fronts of points (K, m), given their squared distances (m,) to all ranked before."""
    table = _squares(columns, columns) if len(nearest) ** 2 <= CELLS else None
    picks = []
    for begin, end in _spans(ends):
        front = nearest[begin:end]
        for _ in range(begin, end):
            pick = begin + int(
                front.argmax()
            )  # nextToAdd: the first of equals, so the very first has the largest f1
            picks.append(pick)
            squares = (
                _squares(columns, columns[:, pick : pick + 1])[0] if table is None else table[pick]
            )
            np.minimum(nearest, squares, out=nearest)
            nearest[pick] = -1.0  # ranked; a duplicate of it still has 0
    return picks


def _nearest(columns: Objectives, others: Objectives) -> NDArray[np.float64]:
    """Return the squared distances (m,) of points (K, m) to the closest of others (K, r)."""
    nearest = np.full(columns.shape[1], np.inf)
    step = max(1, CELLS // len(nearest))
    for begin in range(0, others.shape[1], step):
        np.minimum(
            nearest, _squares(columns, others[:, begin : begin + step]).min(axis=0), out=nearest
        )
    return nearest


def _squares(columns: Objectives, others: Objectives) -> NDArray[np.float64]:
    """Return the squared distances (r, m) between points (K, m) and others (K, r)."""
    # Differences, not |a|^2 - 2ab + |b|^2, which loses all digits far from the origin.
    gaps = others[:, :, None] - columns[:, None, :]
    np.multiply(gaps, gaps, out=gaps)
    return np.asarray(np.add.reduce(gaps, axis=0))


def _scattered_front(points: Objectives, begin: int, end: int) -> Order:
    """Return the picks (m,) of Alg. 1 from one front alone: earlier fronts count as a whole, in whatever order they are."""
    columns = np.ascontiguousarray(points.T)
    with np.errstate(over="ignore"):
        nearest = _nearest(columns[:, begin:end], columns[:, :begin])
        return np.array(
            _farthest_first(columns[:, begin:end], nearest, [end - begin]), dtype=np.intp
        )


def _divided(ends: list[int], cuts: Cuts) -> list[tuple[int, int]]:
    """Return the spans of the fronts that a cut divides; all of them where no cuts are known."""
    return [(b, e) for b, e in _spans(ends) if cuts is None or any(b < cut < e for cut in cuts)]


def _front_by_front(
    objectives: ArrayLike,
    violations: ArrayLike | None,
    within: Callable[[Objectives], Order],
    cuts: Cuts,
) -> Order:
    order, points, ends = _by_front(*_checked(objectives, violations))
    for begin, end in _divided(ends, cuts):
        order[begin:end] = order[begin:end][within(points[begin:end])]
    return order


def _to_unit_range(points: Objectives) -> Objectives:
    """Shift and scale each objective to [0, 1]; one that does not vary becomes 0."""
    if not len(points):
        return points
    halves = points * 0.5  # so that the range of huge values is still a number
    lowest = halves.min(axis=0)
    span = halves.max(axis=0) - lowest
    return np.asarray((halves - lowest) / np.where(span > 0, span, 1.0))


def _crowding(front: Objectives) -> NDArray[np.float64]:
    distances = np.zeros(len(front))
    if len(front) <= 2:
        return distances + np.inf
    for column in _to_unit_range(front).T:
        if not column.any():
            continue  # an objective that does not vary has no ends
        order = np.argsort(column, kind="stable")
        distances[order[[0, -1]]] = np.inf
        distances[order[1:-1]] += column[order[2:]] - column[order[:-2]]
    return distances


def _greedy_hypervolume(front: Objectives) -> Order:
    """Return the members of a front (m, K), by descending f1 before, each as the one that then adds the most hypervolume."""
    # The order is the same on any scale, so the front's best values become 0, its worst 1 and the reference point 1.1.
    losses = 1.0 - _to_unit_range(front)
    picked, order = np.empty_like(losses), np.empty(len(front), dtype=np.intp)
    # What a member adds only falls as others are picked: a gain from earlier is a bound, and most need not be renewed.
    heap = [(-_added(loss, picked[:0]), member, 0) for member, loss in enumerate(losses)]
    heapq.heapify(heap)
    for place in range(len(front)):
        while heap[0][2] < place:
            member = heap[0][1]
            heapq.heapreplace(heap, (-_added(losses[member], picked[:place]), member, place))
        order[place] = heapq.heappop(heap)[1]
        picked[place] = losses[order[place]]
    return order


def _added(loss: Objectives, picked: Objectives) -> float:
    """Return what a point adds to the hypervolume of those picked; to 12 decimals, so that equals are equal."""
    volume = float(np.prod(1 + MARGIN - loss))
    if len(picked):
        volume -= float(moocore.hypervolume(np.maximum(picked, loss), ref=1 + MARGIN))
    return round(volume, 12)


def _by_score(
    objectives: ArrayLike,
    violations: ArrayLike | None,
    score: Callable[[Objectives], NDArray[np.float64]],
) -> Order:
    """Return the order of descending score, first of the feasible rows, then by ascending violation."""
    array, missed = _checked(objectives, violations)
    counted = _counted(array, missed)
    # Rows that do not count are scored as zeros, not left out: a row's random weights must not depend on other rows.
    with np.errstate(over="ignore"):  # an infinite score is a large one
        scores = score(np.where(counted[:, None], array, 0.0))
    missed = np.zeros(len(array)) if missed is None else np.where(counted, missed, 0.0)
    return np.lexsort((-scores, missed, ~counted))
