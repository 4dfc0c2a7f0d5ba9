"""The Pareto ranks of points with two objectives that come and go.

By ascending f1, the points of a front descend in f2, like a staircase. What a point dominates on
a front, and what it leaves without a dominating point, is therefore a slice of the staircase that
binary search finds. A change moves such a slice from one front to the next, where it takes the
place of another slice that moves on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mopbt.ranking import Objectives, ranks

Ids = NDArray[np.intp]


@dataclass
class Steps:
    """Points of one front: f1 ascending, minus f2 ascending, and their ids."""

    firsts: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def swap(self, begin: int, end: int, new: "Steps") -> "Steps":
        """Replace a slice by other points, and return the slice."""
        old = Steps(self.firsts[begin:end], self.losses[begin:end], self.ids[begin:end])
        self.firsts[begin:end] = new.firsts
        self.losses[begin:end] = new.losses
        self.ids[begin:end] = new.ids
        return old

    def dominates(self, first: float, loss: float) -> bool:
        """Return whether one of the points dominates a point."""
        # Of the points with at least this f1, the next one has the largest f2.
        place = bisect_left(self.firsts, first)
        if place == len(self.ids) or self.losses[place] > loss:
            return False
        return self.firsts[place] > first or self.losses[place] < loss


class Staircases:
    """The fronts of points with two objectives, by id."""

    def __init__(self) -> None:
        self._fronts: list[Steps] = []
        self._points: dict[int, tuple[float, float]] = {}
        # The number is -1 for a missing point.
        self.numbers = np.empty(0, dtype=np.int32)
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._points)

    def number(self, id: int) -> int:
        """Return the number of a point's front, 0 for the best; -1 if there is no point."""
        return int(self.numbers[id]) if id < len(self.numbers) else -1

    def reset(self, ids: Ids, points: Objectives) -> None:
        """Replace all points by points (n, 2) with these ids."""
        self.numbers[:] = -1
        self._fronts = []
        self._points = {}
        self.sizes = []
        if not len(ids):
            return
        self._make_room(int(ids.max()))
        losses = -points[:, 1]
        pairs = zip(points[:, 0].tolist(), losses.tolist(), strict=True)
        self._points = dict(zip(ids.tolist(), pairs, strict=True))
        numbers = ranks(points)
        self.numbers[ids] = numbers
        order = np.lexsort((points[:, 0], numbers))
        self.sizes = np.bincount(numbers).tolist()
        ends = np.cumsum(self.sizes)
        for rows in np.split(order, ends[:-1]):
            front = Steps(points[rows, 0].tolist(), losses[rows].tolist(), ids[rows].tolist())
            self._fronts.append(front)

    def insert(self, id: int, point: Sequence[float]) -> None:
        """Add a point (2,) under an id that has none."""
        self._make_room(id)
        first = float(point[0])
        loss = -float(point[1])
        self._points[id] = (first, loss)
        number = self._front_for(first, loss)
        moving = Steps([first], [loss], [id])
        while moving:
            self.numbers[moving.ids] = number
            if number == len(self._fronts):
                self._fronts.append(Steps())
                self.sizes.append(0)
            front = self._fronts[number]
            # The moving points are next to each other on their staircase, so what is below and
            # behind all of them is dominated by one of them.
            begin = bisect_left(front.losses, moving.losses[0])
            end = bisect_right(front.firsts, moving.firsts[-1])
            if begin < end and (front.firsts[begin], front.losses[begin]) == (first, loss):
                # Identical points stay, and dominate nothing else here.
                end = begin
            self.sizes[number] += len(moving) - (end - begin)
            moving = front.swap(begin, end, moving)
            number += 1

    def remove(self, id: int) -> None:
        """Remove the point of an id."""
        number = int(self.numbers[id])
        self.numbers[id] = -1
        front = self._fronts[number]
        place = bisect_left(front.firsts, self._points.pop(id)[0])
        # Only identical points have the same f1 on a front.
        place = front.ids.index(id, place)
        front.swap(place, place + 1, Steps())
        self.sizes[number] -= 1
        while number + 1 < len(self._fronts):
            # Points of the next front stay there if a neighbor of the gap dominates them.
            below = self._fronts[number + 1]
            begin = bisect_right(below.firsts, front.firsts[place - 1]) if place else 0
            end = len(below)
            if place < len(front):
                end = bisect_left(below.losses, front.losses[place])
            if begin >= end:
                break
            moving = below.swap(begin, end, Steps())
            self.numbers[moving.ids] = number
            self.sizes[number] += len(moving)
            self.sizes[number + 1] -= len(moving)
            front.swap(place, place, moving)
            front = below
            place = begin
            number += 1
        if not self.sizes[-1]:
            self._fronts.pop()
            self.sizes.pop()

    def _front_for(self, first: float, loss: float) -> int:
        """Return the number of the best front that does not dominate a point."""
        low = 0
        high = len(self._fronts)
        while low < high:
            middle = (low + high) // 2
            if self._fronts[middle].dominates(first, loss):
                low = middle + 1
            else:
                high = middle
        return low

    def _make_room(self, id: int) -> None:
        size = len(self.numbers)
        if id >= size:
            more = max(id + 1 - size, size, 16)
            self.numbers = np.concatenate([self.numbers, np.full(more, -1, dtype=np.int32)])
