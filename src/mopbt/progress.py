"""What a run tells while it goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mopbt.archive import Entry, reference_of
from mopbt.metrics import hypervolume
from mopbt.objectives import unsigned
from mopbt.problem import Problem
from mopbt.state import Report, State

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
    diverged: int  # reports of NaN or infinity
    total: int | None  # intervals in all, where the algorithm knows
    since: tuple[float, int] = (
        0.0,
        0,
    )  # when this session began to train, and how many had reported then

    @property
    def generation(self) -> int:
        """Return how many intervals the trials have behind them, on average where they are not in step."""
        if self.total is not None:
            return self.reported * self.generations // self.total
        return min((t.step for t in self.state.trials), default=0) // self.problem.interval

    @property
    def generations(self) -> int:
        """Return how many intervals a whole training has."""
        return self.problem.steps // self.problem.interval

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate of the seconds to go, at the pace of this session; how long its start duration does not count."""
        began, before = self.since
        if self.total is None or self.reported == before:
            return None
        return (self.elapsed - began) / (self.reported - before) * (self.total - self.reported)

    def best(self) -> dict[str, float]:
        """Return the best of each objective on the front, in its own sense."""
        if not self.front:
            return {}
        return unsigned(
            self.problem.objectives,
            np.max([entry.objectives for entry in self.front], axis=0).tolist(),
        )

    def hypervolume(self) -> float:
        """Return the hypervolume of the front above the task's reference point, or the run's own if the task names none."""
        points = np.array([entry.objectives for entry in self.front if not entry.violation])
        if not len(points):
            return 0.0
        firsts = (next(iter(t.results.values())) for t in self.state.trials if t.results)
        rows = [r.objectives for r in firsts if r.is_finite and r.objectives is not None]
        return hypervolume(points, reference_of(self.problem.reference, rows, self.front))


Watch = Callable[[Progress], None]
