"""What a run tells while it goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mopbt.archive import Entry
from mopbt.metrics import hypervolume, reference_point
from mopbt.state import Report, State
from mopbt.task import Problem

Outcome = Literal["done", "budget", "interrupted", "failed"]


@dataclass(frozen=True)
class Progress:
    """A run at one moment."""

    problem: Problem
    state: State
    front: tuple[Entry, ...]
    reports: tuple[Report, ...]  # those that have just come
    elapsed: float  # seconds of work, over all sessions
    reported: int
    failures: int
    total: int | None  # intervals in all, where the algorithm knows

    @property
    def generation(self) -> int:
        """Return how many intervals the trials have behind them, on average where they are not in step."""
        if self.total is not None:
            return self.reported * self.generations // self.total
        return min((t.step for t in self.state.trials), default=0) // self.problem.interval

    @property
    def generations(self) -> int:
        """Return how many intervals a whole training has."""
        return self.problem.max_step // self.problem.interval

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate of the seconds to go."""
        if self.total is None or not self.reported:
            return None
        return self.elapsed / self.reported * (self.total - self.reported)

    def best(self) -> dict[str, float]:
        """Return the best of each objective on the front, in its own sense."""
        columns = zip(*(entry.objectives for entry in self.front), strict=True)
        return {o.name: o.sign * max(column) for o, column in zip(self.problem.objectives, columns, strict=False)}

    def hypervolume(self) -> float:
        """Return the hypervolume of the front above the task's reference point, or the run's own if the task names none."""
        points = np.array([entry.objectives for entry in self.front if not entry.violation])
        if not len(points):
            return 0.0
        named = self.problem.reference
        return hypervolume(points, first_reference(self.state) if named is None else np.array(named))


Watch = Callable[[Progress], None]


def first_reference(state: State) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a run's own reference point: the paper's rule over the first result of each trial, so that it stays the same."""
    first = [next(iter(t.results.values())).objectives for t in state.trials if t.results]
    points = np.array([objectives for objectives in first if objectives is not None])
    points = points[np.isfinite(points).all(axis=1)] if len(points) else points
    return reference_point([points if len(points) else np.zeros((1, 1))])
