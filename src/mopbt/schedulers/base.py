"""The `Scheduler` protocol and the jobs that all schedulers order."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from mopbt.problem import Problem
from mopbt.space import Config
from mopbt.state import Job, Measurement, Report, Result, State, Trial


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
        """Return whether trials are decided when all of a generation have reported.

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


@runtime_checkable
class ExtendableScheduler(Protocol):
    """A scheduler whose run can be extended, also after it is complete.

    The checkpoints of finished trials are kept, so that they can continue.
    """

    @property
    def extendable(self) -> tuple[str, ...]:
        """Return what can be extended: "steps", "population", both or nothing."""

    def extended(self, extension: Mapping[str, int]) -> "Scheduler":
        """Return the scheduler of the extended run.

        It folds the journal from its start.
        """


@runtime_checkable
class ReportReadingScheduler(Protocol):
    """A scheduler whose decisions may depend on errors or further metrics of a report."""

    @property
    def reads_reports(self) -> bool:
        """Return whether decisions depend on more of a report than its objectives."""

    def result_of(self, report: Report, recent: tuple[Measurement, ...]) -> Result:
        """Return the part of a report that decisions depend on.

        `recent` are the last measurements of the lineage that the job continued.
        """


def extendable_by(scheduler: Scheduler) -> tuple[str, ...]:
    """Return what of a scheduler's run can be extended."""
    return scheduler.extendable if isinstance(scheduler, ExtendableScheduler) else ()


def extend_scheduler(scheduler: Scheduler, extension: Mapping[str, int]) -> Scheduler:
    """Return the scheduler of an extended run.

    Raises ValueError if it cannot be extended.
    """
    if not extension:
        return scheduler
    allowed = extendable_by(scheduler)
    wrong = ", ".join(f"`{name}`" for name in extension if name not in allowed)
    if wrong or not isinstance(scheduler, ExtendableScheduler):
        raise ValueError(
            f"{type(scheduler).__name__} cannot be extended by {wrong}, got {dict(extension)}; it "
            f"can be extended by {' or '.join(allowed) or 'nothing'}: start a new run instead"
        )
    return scheduler.extended(extension)


def start_with_given(problem: Problem, first: int, configs: Sequence[Config]) -> tuple[Config, ...]:
    """Replace proposed configurations of the first trials by the given ones.

    `first` is the trial of the first configuration.
    """
    given = problem.initial[first : first + len(configs)]
    return (*given, *configs[len(given) :])


def check_initial(problem: Problem, trials: int | None) -> None:
    """Raise ValueError if more configurations are given than a run has trials."""
    if trials is not None and len(problem.initial) > trials:
        raise ValueError(
            f"`initial` must have at most as many configurations as the run has trials, {trials}, "
            f"got {len(problem.initial)}; leave some out, or train more trials"
        )


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
            blend=trial.blend,
        )
        for i, trial in enumerate(trials)
    )
