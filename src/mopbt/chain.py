"""The scattered order of the best front of two objectives, as points come and go.

Sorted by descending f1, such a front is a chain: of all points that Alg. 1 has picked, the next
one on the left and on the right are the closest. A pick splits its segment of the chain in two
that do not influence each other. A point that comes or goes therefore changes only the segment in
which it is, or would have been, picked.
"""

import numpy as np
from numpy.typing import NDArray

from mopbt.ranking import Objectives, chain_values

Ids = NDArray[np.intp]

# More changes at once than this, and all values are recomputed.
MOST_CHANGES = 8


class ScatteredChain:
    """The points of a front in order of f1, with their distances in Alg. 1.

    A distance is the one at which Alg. 1 picks the point.

    Alg. 1 picks them by descending value; of equals, the first on the chain.
    """

    def __init__(self) -> None:
        self.ids: Ids = np.empty(0, dtype=np.intp)
        self.values = np.empty(0)
        self._points: Objectives = np.empty((2, 0))

    def update(self, objectives: Objectives, is_on_front: NDArray[np.bool_]) -> None:
        """Follow the front: objectives by id (n, 2), and which ids are on it (n,)."""
        kept = is_on_front[self.ids]
        for k in range(2):
            kept &= objectives[self.ids, k] == self._points[k]
        is_new = is_on_front.copy()
        is_new[self.ids[kept]] = False
        gone = np.flatnonzero(~kept)
        new = np.flatnonzero(is_new)
        if len(gone) + len(new) > MOST_CHANGES:
            self._reset(objectives, np.flatnonzero(is_on_front))
            return
        for place in gone[::-1].tolist():
            self._remove(place)
        for id in new.tolist():
            self._insert(id, objectives[id])

    def place_of(self, id: int) -> int:
        """Return how many points are picked before that of an id."""
        at = int(np.flatnonzero(self.ids == id)[0])
        value = self.values[at]
        return int(
            np.count_nonzero(self.values > value) + np.count_nonzero(self.values[:at] == value)
        )

    def first(self, n: int) -> Ids:
        """Return the ids of the first `n` picks, in any order."""
        return self.ids[self._first(n)]

    def at(self, place: int) -> int:
        """Return the id of a pick, counted from 0."""
        before = np.zeros(len(self.ids), dtype=bool)
        before[self._first(place)] = True
        # Of what is left, the first with the highest value.
        return int(self.ids[np.where(before, -1.0, self.values).argmax()])

    def _first(self, n: int) -> Ids:
        if n <= 0:
            return np.empty(0, dtype=np.intp)
        last = np.partition(self.values, len(self.values) - n)[len(self.values) - n]
        above = np.flatnonzero(self.values > last)
        return np.concatenate([above, np.flatnonzero(self.values == last)[: n - len(above)]])

    def _reset(self, objectives: Objectives, ids: Ids) -> None:
        # The sort is stable, and ids ascend.
        self.ids = ids[np.argsort(-objectives[ids, 0], kind="stable")]
        self._points = np.ascontiguousarray(objectives[self.ids].T)
        self.values = np.empty(len(ids))
        self._pick_between(-1, len(ids))

    def _remove(self, place: int) -> None:
        value = self.values[place]
        # The picks before this one that are closest to it.
        left = np.flatnonzero(self.values[:place] >= value)
        right = np.flatnonzero(self.values[place + 1 :] > value)
        low = int(left[-1]) if len(left) else -1
        high = place + 1 + int(right[0]) if len(right) else len(self.ids)
        self.ids = np.delete(self.ids, place)
        self.values = np.delete(self.values, place)
        self._points = np.delete(self._points, place, axis=1)
        self._pick_between(low, high - 1)

    def _insert(self, id: int, point: Objectives) -> None:
        place = self._place_for(id, point)
        low, high = self._segment_for(place, point)
        self.ids = np.insert(self.ids, place, id)
        self.values = np.insert(self.values, place, 0.0)
        self._points = np.insert(self._points, place, point, axis=1)
        self._pick_between(low, high + 1)

    def _place_for(self, id: int, point: Objectives) -> int:
        """Return where on the chain a new point belongs: by descending f1, then by id."""
        descending = -self._points[0]
        begin = int(descending.searchsorted(-point[0], side="left"))
        end = int(descending.searchsorted(-point[0], side="right"))
        return begin + int(self.ids[begin:end].searchsorted(id))

    def _segment_for(self, place: int, point: Objectives) -> tuple[int, int]:
        """Return the picks between which a new point is the next pick."""
        low = -1
        high = len(self.ids)
        while high - low > 1:
            pick = low + 1 + int(self.values[low + 1 : high].argmax())
            value = min(self._distance(low, point), self._distance(high, point))
            if value > self.values[pick] or (value == self.values[pick] and place <= pick):
                break
            if place <= pick:
                high = pick
            else:
                low = pick
        return low, high

    def _pick_between(self, low: int, high: int) -> None:
        """Compute the values of the points between two picks, or an end of the chain."""
        here = self._points[:, low + 1 : high]
        nearest = np.full(here.shape[1], np.inf)
        for end in (low, high):
            if 0 <= end < len(self.ids):
                gaps = here - self._points[:, end : end + 1]
                np.minimum(nearest, np.add.reduce(gaps * gaps, axis=0), out=nearest)
        self.values[low + 1 : high] = chain_values(here, nearest)

    def _distance(self, end: int, point: Objectives) -> float:
        if not 0 <= end < len(self.ids):
            return np.inf
        gaps = self._points[:, end] - point
        return float(np.add.reduce(gaps * gaps))
