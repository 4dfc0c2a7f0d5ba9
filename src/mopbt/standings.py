"""The order of results that come one by one, without ranking all each time.

`standings_of` gives the standings that fit a ranking. Standings hold results by id. Their `order`
equals the one that the ranking returns for the finite results by ascending id, but only the
requested parts of it are computed. A decision about one member of a population needs only the side
of a cut on which the member is, and the member at one place.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.chain import ScatteredChain
from mopbt.ranking import Cuts, Objectives, Rank, by_domination, ranks, to_unit_range
from mopbt.staircases import Staircases
from mopbt.state import Result

Ids = NDArray[np.intp]

# All ranks are recomputed if more than one of so many results changed at once. One change costs
# about as much as ranking this many results.
CHANGES_PER_RESULT = 400
# The size from which on the scattered order of the best front is kept up to date.
SMALLEST_CHAIN = 128
# The largest table of comparisons between points, in cells.
CELLS = 1 << 20


class ResultOrder(Protocol):
    """The order of the finite results, best first, at one moment."""

    def at(self, place: int) -> int:
        """Return the id in a place, 0 for the best."""

    def first(self, n: int) -> Ids:
        """Return the ids in the first `n` places, in any order."""

    def precedes(self, id: int, place: int) -> bool:
        """Return whether an id is before a place."""


class Standings(Protocol):
    """Results by id, and their order."""

    def update(self, changes: Sequence[tuple[int, Result | None]]) -> None:
        """Replace results by id; None removes one."""

    def __len__(self) -> int:
        """Return the number of finite results."""

    @property
    def failed(self) -> int:
        """Return the number of other results."""

    def order(self, cuts: Cuts, generator: Callable[[], Generator]) -> ResultOrder:
        """Return the order as the ranking makes it with these cuts and this generator."""


def standings_of(rank: Rank) -> Standings:
    """Return empty standings for a ranking."""
    if isinstance(rank, by_domination):
        return DominationStandings(rank)
    return RecomputedStandings(rank)


class Fronts:
    """The Pareto ranks of points that come and go, by id.

    A point that comes moves points that it dominates to the next front, and those may move others.
    Mostly this ends after a few fronts (Li et al. 2017, efficient non-domination level update).
    """

    def __init__(self) -> None:
        # -infinity in place of a missing point: it dominates nothing.
        self._columns: Objectives = np.empty((0, 0))
        # The number is -1 for a missing point.
        self.numbers = np.empty(0, dtype=np.int32)
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return sum(self.sizes)

    def number(self, id: int) -> int:
        """Return the number of a point's front, 0 for the best; -1 if there is no point."""
        return int(self.numbers[id]) if id < len(self.numbers) else -1

    def reset(self, ids: Ids, points: Objectives) -> None:
        """Replace all points by points (n, K) with these ids."""
        self._columns[:] = -np.inf
        self.numbers[:] = -1
        self.sizes = []
        if len(ids):
            self._make_room(int(ids.max()), points.shape[1])
            self._columns[:, ids] = points.T
            self.numbers[ids] = ranks(points)
            self.sizes = np.bincount(self.numbers[ids]).tolist()

    def insert(self, id: int, point: Sequence[float]) -> None:
        """Add a point (K,) under an id that has none."""
        self._make_room(id, len(point))
        new = np.array(point)
        above = self._columns[0] >= new[0]
        for column, value in zip(self._columns[1:], new[1:], strict=True):
            above &= column >= value
        rows = np.flatnonzero(above)
        # An identical point has the same number, and a dominating one a lower number.
        dominating = (self._columns[:, rows] != new[:, None]).any(axis=0)
        number = int((self.numbers[rows] + dominating).max(initial=0))
        moving = np.array([id])
        self._columns[:, id] = new
        while len(moving):
            here = np.flatnonzero(self.numbers == number)
            self._move(moving, number)
            moving = here[self._dominated(here, self._columns[:, moving])]
            number += 1

    def remove(self, id: int) -> None:
        """Remove the point of an id."""
        number = int(self.numbers[id])
        gone = self._columns[:, [id]]
        self._move(np.array([id]), -1)
        self._columns[:, id] = -np.inf
        while True:
            below = np.flatnonzero(self.numbers == number + 1)
            below = below[self._dominated(below, gone)]
            if not len(below):
                break
            here = np.flatnonzero(self.numbers == number)
            moving = below[~self._dominated(below, self._columns[:, here])]
            self._move(moving, number)
            gone = self._columns[:, moving]
            number += 1
        while self.sizes and not self.sizes[-1]:
            self.sizes.pop()

    def _move(self, ids: Ids, number: int) -> None:
        """Put ids, all of the same front or of none, on another front."""
        if not len(ids):
            return
        before = int(self.numbers[ids[0]])
        if before >= 0:
            self.sizes[before] -= len(ids)
        if number == len(self.sizes):
            self.sizes.append(0)
        if number >= 0:
            self.sizes[number] += len(ids)
        self.numbers[ids] = number

    def _dominated(self, ids: Ids, others: Objectives) -> NDArray[np.bool_]:
        """Return which of the points of ids (m,) one of the others (K, r) dominates."""
        dominated = np.zeros(len(ids), dtype=bool)
        points = self._columns[:, ids]
        step = max(1, CELLS // max(len(ids), 1))
        for begin in range(0, others.shape[1], step):
            part = others[:, begin : begin + step]
            covers = part[0][:, None] >= points[0]
            exceeds = part[0][:, None] > points[0]
            for column, mine in zip(part[1:], points[1:], strict=True):
                covers &= column[:, None] >= mine
                exceeds |= column[:, None] > mine
            dominated |= (covers & exceeds).any(axis=0)
        return dominated

    def _make_room(self, id: int, k: int) -> None:
        size = len(self.numbers)
        if id >= size:
            more = max(id + 1 - size, size, 16)
            old = self._columns if size else np.empty((k, 0))
            self._columns = np.concatenate([old, np.full((k, more), -np.inf)], axis=1)
            self.numbers = np.concatenate([self.numbers, np.full(more, -1, dtype=np.int32)])


class _Results:
    """Results by id in columns that grow."""

    def __init__(self) -> None:
        self._results: dict[int, Result] = {}
        self._failed: set[int] = set()
        self.objectives: Objectives = np.empty((0, 0))
        self.violations = np.empty(0)
        self.is_finite = np.empty(0, dtype=bool)

    def __len__(self) -> int:
        return len(self._results) - len(self._failed)

    @property
    def failed(self) -> int:
        return len(self._failed)

    def put(self, changes: Sequence[tuple[int, Result | None]]) -> list[int]:
        """Replace results; return the ids of those that differ and are or were finite."""
        changed = []
        for id, result in changes:
            if result is self._results.get(id):
                continue
            was_finite = id in self._results and id not in self._failed
            self._put(id, result)
            if was_finite or (result is not None and result.is_finite):
                changed.append(id)
        return changed

    def _put(self, id: int, result: Result | None) -> None:
        self._results.pop(id, None)
        self._failed.discard(id)
        if id < len(self.is_finite):
            self.is_finite[id] = False
        if result is None:
            return
        self._results[id] = result
        if result.objectives is None or not result.is_finite:
            self._failed.add(id)
            return
        self._make_room(id, len(result.objectives))
        self.objectives[id] = result.objectives
        self.violations[id] = result.violation
        self.is_finite[id] = True

    def _make_room(self, id: int, k: int) -> None:
        size = len(self.is_finite)
        if id >= size:
            more = max(id + 1 - size, size, 16)
            old = self.objectives if size else np.empty((0, k))
            self.objectives = np.concatenate([old, np.zeros((more, k))])
            self.violations = np.concatenate([self.violations, np.zeros(more)])
            self.is_finite = np.concatenate([self.is_finite, np.zeros(more, dtype=bool)])


class RecomputedStandings:
    """Standings for any ranking, which ranks all results each time."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._rows = _Results()

    def update(self, changes: Sequence[tuple[int, Result | None]]) -> None:
        """Replace results by id; None removes one."""
        self._rows.put(changes)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def failed(self) -> int:
        """Return the number of results that are not finite."""
        return self._rows.failed

    def order(self, cuts: Cuts, generator: Callable[[], Generator]) -> "CompleteOrder":
        """Rank all results."""
        rows = self._rows
        ids = np.flatnonzero(rows.is_finite)
        order = self._rank(rows.objectives[ids], rows.violations[ids], generator(), cuts)
        return CompleteOrder(ids[order])


class CompleteOrder:
    """An order of which all places are known."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def at(self, place: int) -> int:
        """Return the id in a place."""
        return int(self._ids[place])

    def first(self, n: int) -> Ids:
        """Return the ids in the first `n` places."""
        return self._ids[:n]

    def precedes(self, id: int, place: int) -> bool:
        """Return whether an id is before a place."""
        return bool((self._ids[:place] == id).any())


class DominationStandings:
    """Standings by domination, with the fronts of all results kept up to date."""

    def __init__(self, rank: by_domination) -> None:
        self.rank = rank
        self.rows = _Results()
        self.fronts: Fronts | Staircases = Fronts()
        self._chain = ScatteredChain()

    def update(self, changes: Sequence[tuple[int, Result | None]]) -> None:
        """Replace results by id; None removes one."""
        rows = self.rows
        changed = rows.put(changes)
        if rows.objectives.shape[1] == 2 and not isinstance(self.fronts, Staircases):
            self.fronts = Staircases()
        if len(changed) * CHANGES_PER_RESULT > len(self):
            ids = np.flatnonzero(rows.is_finite & (rows.violations == 0))
            self.fronts.reset(ids, rows.objectives[ids])
            return
        for id in changed:
            if self.fronts.number(id) >= 0:
                self.fronts.remove(id)
            if rows.is_finite[id] and rows.violations[id] == 0:
                self.fronts.insert(id, rows.objectives[id])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def failed(self) -> int:
        """Return the number of results that are not finite."""
        return self.rows.failed

    def chain(self) -> ScatteredChain | None:
        """Return the scattered order of the best front, if it is a large chain."""
        is_scattered = self.rank.within == "scattered" and not self.rank.scale
        if not is_scattered or self.rows.objectives.shape[1] != 2:
            return None
        if not self.fronts.sizes or self.fronts.sizes[0] < SMALLEST_CHAIN:
            return None
        self._chain.update(self.rows.objectives, self.fronts.numbers == 0)
        return self._chain

    def order(self, cuts: Cuts, generator: Callable[[], Generator]) -> "FrontOrder":
        """Return the order, which needs no generator. It is valid until the next update."""
        return FrontOrder(self, cuts)


class FrontOrder:
    """An order by fronts, of which only the fronts in question are put in order.

    As in `by_domination`, rows of a front are sorted by descending f1 and ascending id. Only a
    front that a cut divides is ordered by the second criterion.
    """

    def __init__(self, standings: DominationStandings, cuts: Cuts) -> None:
        self._rows = standings.rows
        self._rank = standings.rank
        self._standings = standings
        self._fronts = standings.fronts
        self._cuts = cuts
        self._ends = np.cumsum(standings.fronts.sizes, dtype=np.intp)
        self._feasible = len(standings.fronts)
        # Infeasible rows follow all fronts, in levels of equal violation.
        rows = self._rows
        self._infeasible = np.flatnonzero(rows.is_finite & (rows.violations > 0))
        self._violations = rows.violations[self._infeasible]
        # Sorted fronts by their first place.
        self._ordered: dict[int, Ids] = {}

    def at(self, place: int) -> int:
        """Return the id in a place."""
        begin, ids = self._front_at(place)
        if chain := self._chain(begin, ids):
            return chain.at(place)
        return int(self._in_order(begin, ids)[place - begin])

    def first(self, n: int) -> Ids:
        """Return the ids in the first `n` places, in any order."""
        n = min(n, len(self._rows))
        if n <= 0:
            return np.empty(0, dtype=np.intp)
        begin, ids = self._front_at(n - 1)
        if chain := self._chain(begin, ids):
            return chain.first(n)
        return np.concatenate([self._before(ids), self._in_order(begin, ids)[: n - begin]])

    def precedes(self, id: int, place: int) -> bool:
        """Return whether an id is before a place."""
        number = self._fronts.number(id)
        begin, ids = self._front(number) if number >= 0 else self._level(self._rows.violations[id])
        if not begin < place < begin + len(ids):
            return begin < place
        if chain := self._chain(begin, ids):
            return chain.place_of(id) < place
        return bool((self._in_order(begin, ids)[: place - begin] == id).any())

    def _front_at(self, place: int) -> tuple[int, Ids]:
        """Return the front that a place belongs to: its first place, and its ids."""
        if place < self._feasible:
            return self._front(int(self._ends.searchsorted(place, side="right")))
        nth = place - self._feasible
        return self._level(np.partition(self._violations, nth)[nth])

    def _front(self, number: int) -> tuple[int, Ids]:
        begin = int(self._ends[number - 1]) if number else 0
        return begin, np.flatnonzero(self._fronts.numbers == number)

    def _level(self, violation: np.float64) -> tuple[int, Ids]:
        begin = self._feasible + int(np.count_nonzero(self._violations < violation))
        return begin, self._infeasible[self._violations == violation]

    def _before(self, ids: Ids) -> Ids:
        """Return the ids of all fronts before that of these ids."""
        numbers = self._fronts.numbers
        number = self._fronts.number(int(ids[0]))
        if number >= 0:
            return np.flatnonzero((numbers >= 0) & (numbers < number))
        less = self._violations < self._rows.violations[ids[0]]
        return np.concatenate([np.flatnonzero(numbers >= 0), self._infeasible[less]])

    def _is_divided(self, begin: int, ids: Ids) -> bool:
        end = begin + len(ids)
        return self._cuts is None or any(begin < cut < end for cut in self._cuts)

    def _chain(self, begin: int, ids: Ids) -> ScatteredChain | None:
        """Return the chain of a front that is to be scattered, if there is one."""
        return self._standings.chain() if begin == 0 and self._is_divided(begin, ids) else None

    def _in_order(self, begin: int, ids: Ids) -> Ids:
        """Return the ids of a front in order."""
        if begin not in self._ordered:
            # The sort is stable, and ids ascend.
            ids = ids[np.argsort(-self._rows.objectives[ids, 0], kind="stable")]
            if self._is_divided(begin, ids):
                points = self._points()
                ids = ids[self._rank.order_front(points[ids], points[self._before(ids)])]
            self._ordered[begin] = ids
        return self._ordered[begin]

    def _points(self) -> Objectives:
        """Return the objectives by id (n, K), scaled if the ranking does so."""
        objectives = self._rows.objectives
        if not self._rank.scale:
            return objectives
        finite = np.flatnonzero(self._rows.is_finite)
        scaled = np.zeros_like(objectives)
        scaled[finite] = to_unit_range(objectives[finite])
        return scaled
