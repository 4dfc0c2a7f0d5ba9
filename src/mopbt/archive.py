"""The front of a run as it grows: which of all evaluations so far are not dominated by any other.

The front of a run holds each objective vector once, under the job that comes first: identical vectors do not dominate each other,
and a flat metric would otherwise put every evaluation on the front and every checkpoint on the disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from mopbt.metrics import non_dominated
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


def entered(front: tuple[Entry, ...], entry: Entry) -> tuple[Entry, ...]:
    """Return the front after an evaluation; the order in which evaluations come does not matter."""
    for other in front:
        if _beats(other, entry):
            return front
    return (*(other for other in front if not _beats(entry, other)), entry)


def front_of(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the front of all these evaluations at once, in the order of their jobs."""
    entries = sorted(entries, key=lambda entry: entry.job)
    feasible = [entry for entry in entries if not entry.violation]
    if not feasible:
        return tuple(sorted(entries, key=lambda entry: entry.violation)[:1])
    first = {entry.objectives: entry for entry in reversed(feasible)}  # of those that are alike, the first job
    distinct = list(first.values())
    best = non_dominated(np.array([entry.objectives for entry in distinct]))
    return tuple(sorted((distinct[i] for i in best), key=lambda entry: entry.job))


def _beats(a: Entry, b: Entry) -> bool:
    """Tell whether `a` keeps `b` off the front: by constraint domination, or as the first of two that are alike."""
    if a.violation != b.violation:
        return a.violation < b.violation
    if a.violation > 0:
        return a.job <= b.job  # equally infeasible: one of them is enough
    if a.objectives == b.objectives:
        return a.job <= b.job
    return all(x >= y for x, y in zip(a.objectives, b.objectives, strict=True))
