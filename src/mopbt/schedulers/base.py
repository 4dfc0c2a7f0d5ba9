"""The `Scheduler` protocol, and the order that all schedulers give: one more interval of these trials."""

from collections.abc import Iterable
from typing import Protocol

from mopbt.problem import Problem
from mopbt.state import Job, Report, State, Trial


class Scheduler(Protocol):
    """An algorithm: a frozen value that looks at the table and orders intervals of training.

    `mopbt.testing.SchedulerConformance` says what a run relies on.
    """

    @property
    def total_jobs(self) -> int | None:
        """Return how many jobs a whole run has; None where that is not known beforehand."""

    @property
    def needs_budget(self) -> bool:
        """Tell whether only a budget ends a run."""

    @property
    def decides_together(self) -> bool:
        """Return whether all trials are decided when the last of a generation has reported.

        Otherwise, a report decides about its own trial alone, at once.
        """

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Return at most `slots` jobs; an empty tuple means wait. Pure: the same state gives the same jobs."""

    def tell(self, state: State, report: Report) -> State:
        """Return the state that knows of a report. Pure."""

    def done(self, state: State) -> bool:
        """Tell whether nothing is left to order."""


def next_intervals(state: State, trials: Iterable[Trial], problem: Problem) -> tuple[Job, ...]:
    """Return a job for each of these trials: one more interval from where it stands."""
    return tuple(
        Job(
            state.jobs + i,
            trial.id,
            trial.config,
            trial.checkpoint,
            trial.step,
            trial.step + problem.interval,
        )
        for i, trial in enumerate(trials)
    )
