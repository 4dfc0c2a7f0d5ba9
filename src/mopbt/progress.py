"""What a run reports while it executes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mopbt.archive import Entry
from mopbt.history import History
from mopbt.objectives import unsigned
from mopbt.problem import Problem
from mopbt.state import Report, State

Outcome = Literal["done", "complete", "budget", "stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class Progress:
    """A run at one moment.

    `reports` are the newest ones. `elapsed` counts seconds of work over all sessions. `diverged`
    counts reports of NaN or infinity. `total` is the number of intervals of the run, if the
    algorithm knows it. `since` says when this session began to train, and how many intervals had
    reported by then. `stalled` says for how many generations the hypervolume has not grown, and how
    many of them end the run, if its budget says so.
    """

    problem: Problem
    state: State
    history: History
    reports: tuple[Report, ...]
    elapsed: float
    reported: int
    failures: int
    diverged: int
    front: tuple[Entry, ...]
    total: int | None
    since: tuple[float, int] = (0.0, 0)
    stalled: tuple[int, int] | None = None

    @property
    def generation(self) -> int:
        """Return how many intervals the trials have completed, on average if they differ."""
        if self.total is not None:
            return self.reported * self.generations // self.total
        return min((t.step for t in self.state.trials), default=0) // self.problem.interval

    @property
    def generations(self) -> int:
        """Return how many intervals a full training has."""
        return self.problem.steps // self.problem.interval

    @property
    def seconds_left(self) -> float | None:
        """Estimate the seconds left at the pace of this session, without its start-up."""
        began, before = self.since
        if self.total is None or self.reported == before:
            return None
        return (self.elapsed - began) / (self.reported - before) * (self.total - self.reported)

    def best(self) -> dict[str, float]:
        """Return the best value of each objective on the front, in its original direction."""
        if not self.front:
            return {}
        best = np.max([entry.objectives for entry in self.front], axis=0)
        return unsigned(self.problem.objectives, best.tolist())

    def hypervolume(self) -> float:
        """Return the hypervolume of the front above the run's reference point."""
        return self.history.hypervolume()


Watch = Callable[[Progress], None]
