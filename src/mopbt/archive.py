"""The front of a run as it grows: which of all evaluations so far are not dominated by any other.

The front of a run holds each objective vector once, under the job that comes first: identical vectors do not dominate each other,
and a flat metric would otherwise put every evaluation on the front and every checkpoint on the disk.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mopbt.metrics import non_dominated, own_reference
from mopbt.state import Report


@dataclass(frozen=True, slots=True)
class Entry:
    """An evaluation as the front sees it."""

    job: int
    objectives: tuple[float, ...]  # larger is better
    violation: float = 0.0


def entry_of(report: Report) -> Entry | None:
    """Return the entry of a report, or None if it can never be on a front: it failed, or is not finite."""
    if report.objectives is None or not all(map(isfinite, (*report.objectives, report.violation))):
        return None
    return Entry(report.job, report.objectives, report.violation)


class Archive:
    """The front as evaluations come one by one; the order in which they come does not matter."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._entries: list[Entry]
        self._points: NDArray[np.float64]  # of the entries, (n, K), with room for more
        self._front: tuple[Entry, ...] | None
        self._reset(front_of(entries))

    @property
    def front(self) -> tuple[Entry, ...]:
        """Return the entries of the front."""
        if self._front is None:
            self._front = tuple(self._entries)
        return self._front

    def enter(self, entry: Entry) -> None:
        """Take in an evaluation, by constraint domination: feasible before infeasible, and then by the objectives."""
        violation = (
            self._entries[0].violation if self._entries else math.inf
        )  # all of a front have the same
        if entry.violation < violation:
            self._reset([entry])
        elif entry.violation == violation:
            self._compare(entry)

    def _compare(self, entry: Entry) -> None:
        if entry.violation > 0:  # equally infeasible: one of them is enough
            self._reset([min(self._entries[0], entry, key=lambda e: e.job)])
            return
        points, new = self._points[: len(self._entries)], np.array(entry.objectives)
        worse = (points <= new).all(axis=1)
        better = (points >= new).all(axis=1)
        alike = np.flatnonzero(worse & better)
        if better.any() and not (len(alike) and entry.job < self._entries[alike[0]].job):
            return  # of two that are alike, the first job stands for both
        if worse.any():
            keep = np.flatnonzero(~worse)
            self._points[: len(keep)] = points[keep]
            self._entries = [self._entries[i] for i in keep]
        if len(self._entries) == len(self._points):
            self._points = np.concatenate(
                [self._points, np.empty_like(self._points)]
            )  # room for as many again
        self._points[len(self._entries)] = new
        self._entries.append(entry)
        self._front = None

    def _reset(self, entries: Sequence[Entry]) -> None:
        self._entries = list(entries)
        self._points = np.array([entry.objectives for entry in entries], dtype=float)
        self._front = None


def front_of(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the front of all these evaluations at once, in the order of their jobs."""
    entries = sorted(entries, key=lambda entry: entry.job)
    feasible = [entry for entry in entries if not entry.violation]
    if not feasible:
        return tuple(sorted(entries, key=lambda entry: entry.violation)[:1])
    first = {
        entry.objectives: entry for entry in reversed(feasible)
    }  # of those that are alike, the first job
    distinct = list(first.values())
    best = non_dominated(np.array([entry.objectives for entry in distinct]))
    return tuple(sorted((distinct[i] for i in best), key=lambda entry: entry.job))


def reference_of(
    given: Sequence[float] | None, firsts: Sequence[Sequence[float]], front: Sequence[Entry]
) -> NDArray[np.float64]:
    """Return the reference point (K,) of a run's hypervolume: the given one, or else the paper's rule.

    The rule is over the first results of the trials, so that the point stays the same while the front grows, and over the front
    where none of them is finite.
    """
    return (
        np.array(given)
        if given is not None
        else own_reference(firsts or [entry.objectives for entry in front])
    )
