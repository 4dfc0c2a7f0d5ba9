"""The front of a run as it grows: the evaluations that no other one dominates.

A front holds each objective vector once, under the job that comes first. Identical vectors do not
dominate each other, so a flat metric would otherwise put every evaluation on the front and keep
every checkpoint.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mopbt.metrics import non_dominated, own_reference
from mopbt.state import Report

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entry:
    """An evaluation as the front sees it. Objectives are larger-is-better."""

    job: int
    objectives: tuple[float, ...]
    violation: float = 0.0


def entry_of(report: Report) -> Entry | None:
    """Return the entry of a report, or None if it failed or is not finite."""
    if report.objectives is None or not all(map(isfinite, (*report.objectives, report.violation))):
        return None
    return Entry(report.job, report.objectives, report.violation)


class Archive:
    """The front as evaluations arrive; their order does not matter.

    All entries of a front have the same violation: it is 0, or the front is one infeasible entry.
    """

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._entries: list[Entry] = []
        # The objectives of the entries (n, K), with room for more.
        self._points: Floats = np.empty((0, 0))
        self._front: tuple[Entry, ...] | None = None
        self._reset(front_of(entries))

    @property
    def front(self) -> tuple[Entry, ...]:
        """Return the entries of the front."""
        if self._front is None:
            self._front = tuple(self._entries)
        return self._front

    def enter(self, entry: Entry) -> None:
        """Add an evaluation by constrained domination: feasible first, then by objectives."""
        violation = self._entries[0].violation if self._entries else math.inf
        if entry.violation < violation:
            self._reset([entry])
        elif entry.violation == violation:
            self._compare(entry)

    def enter_many(self, jobs: Ints, objectives: Floats, violations: Floats) -> None:
        """Add many evaluations at once: jobs (n,), objectives (n, K), violations (n,)."""
        finite = np.isfinite(objectives).all(axis=1) & np.isfinite(violations)
        rows = np.flatnonzero(finite & (violations == violations[finite].min(initial=math.inf)))
        rows = rows[np.argsort(jobs[rows], kind="stable")]
        if len(rows) > 1 and violations[rows[0]] == 0.0:
            rows = rows[non_dominated(objectives[rows])]
            rows = rows[np.unique(objectives[rows], axis=0, return_index=True)[1]]
        new = [
            Entry(int(jobs[row]), tuple(objectives[row].tolist()), float(violations[row]))
            for row in rows
        ]
        self._reset(front_of([*self._entries, *new]))

    def _compare(self, entry: Entry) -> None:
        if entry.violation > 0:
            # Of equally infeasible entries, one is enough.
            self._reset([min(self._entries[0], entry, key=lambda e: e.job)])
            return
        points = self._points[: len(self._entries)]
        new = np.array(entry.objectives)
        worse = np.ones(len(points), dtype=bool)
        better = worse.copy()
        # Column by column: reducing many rows of two numbers takes ten times as long.
        for column, value in zip(points.T, new, strict=True):
            worse &= column <= value
            better &= column >= value
        alike = np.flatnonzero(worse & better)
        if better.any() and not (len(alike) and entry.job < self._entries[alike[0]].job):
            return
        if worse.any():
            keep = np.flatnonzero(~worse)
            self._points[: len(keep)] = points[keep]
            # Mostly few of many are removed: from the end on, so that indices stay valid.
            for i in np.flatnonzero(worse)[::-1].tolist():
                del self._entries[i]
        if len(self._entries) == len(self._points):
            self._points = np.concatenate([self._points, np.empty_like(self._points)])
        self._points[len(self._entries)] = new
        self._entries.append(entry)
        self._front = None

    def _reset(self, entries: Sequence[Entry]) -> None:
        self._entries = list(entries)
        self._points = np.array([entry.objectives for entry in entries], dtype=float)
        self._front = None


def front_of(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the front of these evaluations, ordered by job."""
    entries = sorted(entries, key=lambda entry: entry.job)
    feasible = [entry for entry in entries if not entry.violation]
    if not feasible:
        return tuple(sorted(entries, key=lambda entry: entry.violation)[:1])
    # Reversed, so that of identical vectors the first job remains.
    distinct = list({entry.objectives: entry for entry in reversed(feasible)}.values())
    best = non_dominated(np.array([entry.objectives for entry in distinct]))
    return tuple(sorted((distinct[i] for i in best), key=lambda entry: entry.job))


def reference_of(
    given: Sequence[float] | None, firsts: Sequence[Sequence[float]], front: Sequence[Entry]
) -> Floats:
    """Return the reference point (K,) of a run: the given one, or the paper's rule.

    The rule is applied to the first results of the trials and to the front. Without the front, a
    model that is worse than every first result in one objective would add no hypervolume, however
    good it is in the others.
    """
    if given is not None:
        return np.array(given)
    return own_reference([*firsts, *(entry.objectives for entry in front)])
