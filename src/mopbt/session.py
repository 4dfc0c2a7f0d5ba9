"""A run while a process drives it: ask, write down, submit; collect, write down, tell."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from mopbt.algorithms import POPULATION
from mopbt.archive import Archive, entry_of
from mopbt.engines.base import ClockedEngine, Engine
from mopbt.errors import Stalled, TaskFailed
from mopbt.problem import Problem
from mopbt.progress import Progress, Watch
from mopbt.schedulers.base import Scheduler
from mopbt.state import Job, Report, State, required_checkpoints, with_jobs
from mopbt.stores.base import Exchange, Store

SWEEP = 64  # obsolete checkpoints are looked for after one report for so many trials: looking goes through all of them


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a run stops before it is done. It counts over resumes: the same call with a larger budget goes on."""

    seconds: float | None = None  # of work, over all sessions
    jobs: int | None = None  # intervals ordered
    steps: int | None = None  # training steps, over all members

    def __post_init__(self) -> None:
        for name, kind in (("seconds", int | float), ("jobs", int), ("steps", int)):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, kind) or not value > 0
            ):
                what = "a number" if name == "seconds" else "a whole number"
                raise ValueError(
                    f"`{name}` must be {what} above 0, or None for no limit, got {value!r}"
                )

    def jobs_left(self, with_jobs: int, interval: int) -> float:
        """Return how many more jobs may be ordered."""
        by_jobs = math.inf if self.jobs is None else self.jobs
        by_steps = math.inf if self.steps is None else self.steps // interval
        return min(by_jobs, by_steps) - with_jobs


@dataclass
class Session:
    """A run while a process drives it: the state, and what follows from the journal beside it."""

    scheduler: Scheduler
    problem: Problem
    store: Store
    engine: Engine
    state: State
    budget: Budget
    watch: Watch
    archive: Archive = field(default_factory=Archive)
    checksums: dict[int, str] = field(default_factory=dict)
    elapsed: float = 0.0
    reports: int = 0
    failures: int = 0
    diverged: int = 0
    failed_in_a_row: list[str] = field(default_factory=list)  # the last lines of their errors
    worked: bool = False  # in this session
    _sound: tuple[int, tuple[Report, ...]] = (
        0,
        (),
    )  # the journal before them, and what came with the first of them
    _hopeless: bool = False  # it stops for failures, which are taken back
    _obsolete: Set[int] = frozenset()
    _session_began: float = 0.0
    _since: tuple[float, int] = (0.0, 0)
    _since_dropping: int = 0

    def fold(self, exchange: Exchange) -> None:
        """Take in one exchange, live or on resume; the front follows at once on resume, report by report otherwise."""
        if exchange.jobs:
            self.state = with_jobs(self.state, exchange.jobs)
        self.elapsed = max(self.elapsed, exchange.stopped)
        for report in exchange.reports:
            self.state = self.scheduler.tell(self.state, report)
            self.elapsed = max(self.elapsed, report.seconds)
            self.reports += 1
            self._count(report)
            if report.checksum:
                self.checksums[report.job] = report.checksum

    def _count(self, report: Report) -> None:
        if report.objectives is None:
            self.failures += 1
            self.failed_in_a_row.append(report.error.strip().rpartition("\n")[2])
            return
        self.failed_in_a_row.clear()
        self.diverged += entry_of(report) is None

    def drive(self) -> Literal["done", "budget"]:
        """Go on until the scheduler is done or the budget is spent."""
        self._restore()
        try:
            outcome = self._go_on()
        except BaseException:
            if self._hopeless:
                self._roll_back_failures()
            else:
                self._stop(done=False)
            raise
        self._stop(done=outcome == "done")
        return outcome

    def _stop(self, *, done: bool) -> None:
        """Write down the time that a session duration, also where no report came of it, and that the run is done.

        Where all intervals that it has have reported, both are known.
        """
        if self.worked and not (
            self.scheduler.done(self.state) and self.reports == self.scheduler.total_jobs
        ):
            now = (
                self.elapsed
                if self.scheduler.done(self.state)
                else self._session_began + self.engine.elapsed()
            )
            self.store.append(Exchange(stopped=max(self.elapsed, now), done=done))

    def _roll_back_failures(self) -> None:
        """Take back the failures for which a run stops: once their cause is mended, their jobs are carried out again."""
        mark, before = self._sound
        self.store.rewind(mark)
        if before:
            self.store.append(Exchange(reports=before))

    def _go_on(self) -> Literal["done", "budget"]:
        while not self.scheduler.done(self.state):
            if self._late() or (not self.state.outstanding and self._jobs_left() <= 0):
                return "done" if self.scheduler.needs_budget else "budget"
            self._order()
            if not self.state.outstanding:
                raise Stalled(
                    f"{type(self.scheduler).__name__} orders no work though none is outstanding and it is not done "
                    f"({len(self.state.trials)} trials, {self.state.jobs} jobs so far): this is a defect of the scheduler"
                )
            self._collect()
        return "done"

    def _restore(self) -> None:
        """Fold the journal, and hand out again what had not reported."""
        exchanges = self.store.read()
        for exchange in exchanges:
            self.fold(exchange)
        if isinstance(self.engine, ClockedEngine):
            self.engine.restore_clock(exchanges)
        entries = (entry_of(report) for exchange in exchanges for report in exchange.reports)
        self.archive = Archive([entry for entry in entries if entry is not None])
        self.failed_in_a_row.clear()  # whoever runs it again has perhaps mended the cause
        self._session_began = self.elapsed
        self._since = self.elapsed, self.reports
        reported = {
            id for id in self.store.checkpoints.kept() if id < self.state.jobs
        }  # others are yet to be written (again)
        self._obsolete = reported - self._keep()
        if self.state.outstanding and not self._late():
            self._submit(list(self.state.outstanding.values()))
        self._show(())

    def _order(self) -> None:
        """Ask for jobs, write them down, and only then hand them out."""
        slots = min(self.engine.capacity - len(self.state.outstanding), self._jobs_left())
        jobs = self.scheduler.ask(self.state, int(slots)) if slots > 0 else ()
        if jobs:
            exchange = Exchange(jobs=jobs)
            self.store.append(exchange)
            self.fold(exchange)
            self._submit(jobs)

    def _submit(self, jobs: Sequence[Job]) -> None:
        self.worked = True
        self.engine.submit(jobs, self.checksums)

    def _collect(self) -> None:
        """Wait for reports, write them down, and only then act on them."""
        left = None if self.budget.seconds is None else max(self.budget.seconds - self.elapsed, 0.0)
        reports = self.engine.collect(left)
        if not reports:
            self.elapsed = self.budget.seconds or self.elapsed  # the time is up
            return
        exchange = Exchange(
            reports=tuple(replace(r, seconds=self._session_began + r.seconds) for r in reports)
        )
        if (
            self.reports == self._since[1]
        ):  # the first ones tell when training began, after all that was imported before
            began = min(r.seconds for r in exchange.reports) - sum(
                r.duration for r in exchange.reports
            )  # a stack's share its time
            self._since = max(self._since[0], began), self.reports
        mark = self.store.mark()
        self.store.append(exchange)
        self.fold(exchange)
        self._remember(exchange.reports, mark)
        for report in exchange.reports:
            if (entry := entry_of(report)) is not None:
                self.archive.enter(entry)
        self._since_dropping += len(reports)
        if (
            self._since_dropping * SWEEP >= len(self.state.trials) and not self.failed_in_a_row
        ):  # failures may be taken back
            self._drop()
        self._show(exchange.reports)
        self._abort_if_all_failed(exchange.reports)

    def _remember(self, reports: Sequence[Report], mark: int) -> None:
        """Note where failures in a row begin, if they do in these reports, before which the journal ended at a mark."""
        since = len(reports) - len(self.failed_in_a_row)
        if (
            since >= 0 and self.reports > self.failures + self.diverged
        ):  # if nothing was ever sound, they begin with the run
            self._sound = mark, tuple(reports[:since])

    def _keep(self) -> frozenset[int]:
        return (
            required_checkpoints(self.state)
            | {entry.job for entry in self.archive.front}
            | self.state.outstanding.keys()
        )

    def _drop(self) -> None:
        """Drop checkpoints one exchange after they are obsolete, so that even a lost last line of the journal can be redone."""
        self._since_dropping = 0
        keep = self._keep()
        self.store.checkpoints.drop(self._obsolete - keep)
        self._obsolete = frozenset(self.checksums) - keep
        for job in self._obsolete:
            del self.checksums[job]

    def _late(self) -> bool:
        return self.budget.seconds is not None and self.elapsed >= self.budget.seconds

    def _jobs_left(self) -> float:
        return self.budget.jobs_left(self.state.jobs, self.problem.interval)

    def _abort_if_all_failed(self, reports: Sequence[Report]) -> None:
        """Stop where all intervals fail: after three if nothing ever worked and the error is the same, else after a population.

        A population of which nothing was ever finite is as hopeless.
        """
        errors = self.failed_in_a_row
        population = getattr(self.scheduler, "population", min(len(self.state.trials), POPULATION))
        unsound = [report.scores for report in reports if report.objectives is not None]
        if (
            unsound
            and self.reports == self.failures + self.diverged
            and self.reports >= max(8, population)
        ):
            self._hopeless = True
            raise TaskFailed(_nothing_sound(self.reports, unsound[-1]))
        hopeless = self.failures == self.reports and len(set(errors)) == 1
        if len(errors) >= (3 if hopeless else max(3, population)):
            error = next(r.error for r in reversed(reports) if r.error)
            summary = f"{len(errors)} intervals in a row failed; mend the task and run the same again to go on. The last one:"
            self._hopeless = True
            raise TaskFailed(summary, error)

    def _show(self, reports: Sequence[Report]) -> None:
        self.watch(
            Progress(
                problem=self.problem,
                state=self.state,
                front=self.archive.front,
                reports=tuple(reports),
                elapsed=self.elapsed,
                reported=self.reports,
                failures=self.failures,
                diverged=self.diverged,
                total=self.scheduler.total_jobs or self.budget.jobs,
                since=self._since,
            )
        )


def _nothing_sound(n: int, scores: Mapping[str, float]) -> str:
    """Return what is to be said where none of the first n intervals has finite scores, such as these."""
    unsound = ", ".join(
        f"{name!r} is {value}" for name, value in scores.items() if not math.isfinite(value)
    )
    return (
        f"none of the first {n} intervals has finite scores ({unsound} in the last one); mend the task, or take values out of the "
        f"space that make training diverge, and run the same again to go on"
    )
