"""The `Scheduler` protocol and the jobs that all schedulers order."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from mopbt.problem import Problem
from mopbt.state import Job, Report, State, Trial


class Scheduler(Protocol):
    """Order intervals of training, given the table of trials; a frozen value.

    `mopbt.testing.SchedulerConformance` checks what a run relies on.
    """

    @property
    def total_jobs(self) -> int | None:
        """Return how many jobs a complete run has, or None if that is unknown."""

    @property
    def needs_budget(self) -> bool:
        """Return whether only a budget ends a run."""

    @property
    def decides_together(self) -> bool:
        """Return whether all trials are decided when the last of a generation has reported.

        Otherwise, a report decides about its own trial alone, at once.
        """

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Return at most `slots` jobs; an empty tuple means wait.

        It is pure: the same state gives the same jobs.
        """

    def tell(self, state: State, report: Report) -> State:
        """Return the state after a report. It is pure."""

    def done(self, state: State) -> bool:
        """Return whether no job is left to order."""


@runtime_checkable
class PopulationScheduler(Protocol):
    """A scheduler with a fixed number of members, which train side by side."""

    @property
    def population(self) -> int:
        """Return the number of members."""


def next_intervals(state: State, trials: Iterable[Trial], problem: Problem) -> tuple[Job, ...]:
    """Order one more interval of each trial, from its current step and checkpoint."""
    return tuple(
        Job(
            id=state.jobs + i,
            trial=trial.id,
            config=trial.config,
            start=trial.checkpoint,
            begin=trial.step,
            end=trial.step + problem.interval,
        )
        for i, trial in enumerate(trials)
    )
