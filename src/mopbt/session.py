"""A run while a process executes it: ask, record, submit; collect, record, tell."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from mopbt.algorithms import POPULATION
from mopbt.engines.base import ClockedEngine, Engine, RunContext
from mopbt.errors import Stalled, StopRun, TaskFailed
from mopbt.history import History, advanced
from mopbt.problem import Problem
from mopbt.progress import Progress, Watch
from mopbt.reduction import Reduction
from mopbt.retention import Retention, models_with_weights
from mopbt.schedulers.base import PopulationScheduler, Scheduler, extendable_by
from mopbt.stall import stalled_generations
from mopbt.state import Job, Report, State, required_checkpoints
from mopbt.stores.base import Exchange, Store

# Looking for obsolete checkpoints visits all trials, so it happens once per this many trials.
TRIALS_PER_SWEEP = 64
# After so many failures in a row, a run stops.
FEWEST_FAILURES = 3
FEWEST_DIVERGED = 8


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a run stops before its algorithm is done.

    A budget counts over resumes: the same call with a larger budget continues the run. `seconds`
    counts work, `jobs` intervals, `total_steps` training steps of all members together. `stall`
    stops a run whose hypervolume has not grown by more than its error for this many generations.
    """

    seconds: float | None = None
    jobs: int | None = None
    total_steps: int | None = None
    stall: int | None = None

    def __post_init__(self) -> None:
        kinds = {"seconds": int | float, "jobs": int, "total_steps": int, "stall": int}
        for name, kind in kinds.items():
            value = vars(self)[name]
            is_number = isinstance(value, kind) and not isinstance(value, bool)
            if value is not None and not (is_number and value > 0):
                what = "a number" if name == "seconds" else "a whole number"
                raise ValueError(
                    f"`{name}` must be {what} above 0, or None for no limit, got {value!r}"
                )

    def jobs_left(self, jobs: int, interval: int) -> float:
        """Return how many more jobs may start."""
        by_jobs = math.inf if self.jobs is None else self.jobs
        by_steps = math.inf if self.total_steps is None else self.total_steps // interval
        return min(by_jobs, by_steps) - jobs


@dataclass
class Session:
    """A run while a process executes it: its history, and the state of its scheduler."""

    scheduler: Scheduler
    problem: Problem
    store: Store
    engine: Engine
    seed: int
    budget: Budget
    watch: Watch
    history: History
    # None keeps all models of the front.
    retention: Retention | None = None
    # What the engine was started with.
    context: RunContext | None = None
    # None keeps checkpoints of the front whole.
    reduction: Reduction | None = None
    state: State = field(init=False)
    worked: bool = field(default=False, init=False)
    # Seconds of work, over all sessions: what the history says, or the time that has run out.
    elapsed: float = field(default=0.0, init=False)
    _checksums: dict[int, str] = field(default_factory=dict, init=False)
    # The first report of this session.
    _first_row: int = field(default=0, init=False)
    _intact: tuple[int, tuple[Report, ...]] = field(default=(0, ()), init=False)
    _rolls_back: bool = field(default=False, init=False)
    _obsolete: Set[int] = field(default=frozenset(), init=False)
    _only_front: Set[int] = field(default=frozenset(), init=False)
    _session_began: float = field(default=0.0, init=False)
    _since: tuple[float, int] = field(default=(0.0, 0), init=False)
    _since_sweep: int = field(default=0, init=False)
    # For how many generations the run has stalled, and after how many reports that was computed.
    _stall: tuple[int, int] | None = field(default=None, init=False)

    def drive(self) -> Literal["done", "budget", "stopped"]:
        """Execute the run until it is done, out of budget, or a callback stops it."""
        self._restore()
        outcome: Literal["done", "budget", "stopped"]
        try:
            self._show(())
            outcome = self._execute()
        except StopRun:
            outcome = "done" if self.scheduler.done(self.state) else "stopped"
        except BaseException:
            if self._rolls_back:
                self._roll_back_failures()
            else:
                self._record_end(done=False)
            raise
        self._record_end(done=outcome == "done")
        return outcome

    def free_engine(self) -> None:
        """Abandon the jobs that have not reported.

        The engine then has room for evaluations.

        A run that a budget ends may have some. The next session repeats them.
        """
        if self.state.outstanding and self.context is not None:
            self.engine.close()
            self.engine.start(self.context)

    def _restore(self) -> None:
        """Rebuild the state from the history, and submit jobs that had not reported."""
        self.state = self.history.state(self.scheduler, self.seed)
        if isinstance(self.engine, ClockedEngine):
            self.engine.restore_clock(self.history.records(), self.history.seconds)
        self.elapsed = self._session_began = self.history.seconds
        self._first_row = len(self.history.reports)
        self._since = self.elapsed, len(self.history.reports)
        reports = self.history.reports
        for row in range(len(reports)):
            if checksum := reports.checksum(row):
                self._checksums[reports.job(row)] = checksum
        # Checkpoints with later ids are of jobs that never reached the journal. Those ids will be
        # used again, which replaces them.
        known = {id for id in self.store.checkpoints.kept() if id < self.state.jobs}
        self._obsolete = known - self._kept()
        if self.state.outstanding and not self._is_late():
            self._submit(list(self.state.outstanding.values()))

    def _execute(self) -> Literal["done", "budget"]:
        while not self.scheduler.done(self.state):
            if self._is_late() or (not self.state.outstanding and self._jobs_left() <= 0):
                return "done" if self.scheduler.needs_budget else "budget"
            self._ask()
            if not self.state.outstanding:
                raise Stalled(
                    f"{type(self.scheduler).__name__} starts no job although none is outstanding "
                    f"and it is not done ({len(self.state.trials)} trials, {self.state.jobs} jobs "
                    "so far): this is a bug in the scheduler"
                )
            self._collect()
        return "done"

    def _ask(self) -> None:
        """Ask for jobs, record them, and only then submit them."""
        slots = min(self.engine.capacity - len(self.state.outstanding), self._jobs_left())
        jobs = self.scheduler.ask(self.state, int(slots)) if slots > 0 else ()
        if jobs:
            exchange = Exchange(jobs=jobs)
            self.store.append(exchange)
            self.history.append(exchange)
            self.state = advanced(self.state, self.scheduler, exchange)
            self._submit(jobs)

    def _submit(self, jobs: Sequence[Job]) -> None:
        self.worked = True
        self.engine.submit(jobs, self._checksums)

    def _collect(self) -> None:
        """Wait for reports, record them, and only then act on them."""
        left = None
        if self.budget.seconds is not None:
            left = max(self.budget.seconds - self.elapsed, 0.0)
        collected = self.engine.collect(left)
        if not collected:
            self.elapsed = self.budget.seconds or self.elapsed
            return
        reports = self._unreported(collected)
        if not reports:
            return
        self._note_start_of_training(reports)
        mark = self.store.mark()
        exchange = Exchange(reports=tuple(reports))
        self.store.append(exchange)
        self._apply(exchange)
        self._remember_intact(reports, mark)
        self._sweep(len(reports))
        self._show(reports)
        self._abort_if_all_failed(reports)

    def _unreported(self, collected: Sequence[Report]) -> list[Report]:
        """Return the reports of outstanding jobs, with seconds over all sessions.

        An engine that lost contact with a worker may report a job twice. The first report counts.
        """
        reports: dict[int, Report] = {}
        for report in collected:
            if report.job in self.state.outstanding:
                seconds = self._session_began + report.seconds
                reports.setdefault(report.job, replace(report, seconds=seconds))
        return list(reports.values())

    def _apply(self, exchange: Exchange) -> None:
        self.history.append(exchange)
        self.elapsed = max(self.elapsed, self.history.seconds)
        self.state = advanced(self.state, self.scheduler, exchange)
        for report in exchange.reports:
            if report.checksum:
                self._checksums[report.job] = report.checksum

    def _note_start_of_training(self, reports: Sequence[Report]) -> None:
        """Estimate from the first reports when training began, after imports and start-up."""
        if len(self.history.reports) == self._since[1]:
            # The members of a stack share its time, so their durations add up.
            began = min(r.seconds for r in reports) - sum(r.duration for r in reports)
            self._since = max(self._since[0], began), self._since[1]

    def _remember_intact(self, reports: Sequence[Report], mark: int) -> None:
        """Note where failures in a row begin, if they begin in these reports.

        `mark` is the end of the journal before these reports. If no report was ever finite, the
        failures begin with the run.
        """
        ever_finite = len(self.history.reports) > self.history.failures + self.history.diverged
        first_failed = len(reports) - len(self._failures_in_a_row())
        if ever_finite and first_failed >= 0:
            self._intact = mark, tuple(reports[:first_failed])

    def _failures_in_a_row(self) -> list[str]:
        """Return the last lines of the newest errors, if the newest jobs failed.

        Only errors of this session count.
        """
        errors = self.history.failures_in_a_row(self._first_row)
        return [error.strip().rpartition("\n")[2] for error in errors]

    def _kept(self) -> frozenset[int]:
        """Return the checkpoints that must stay."""
        if self.retention is None:
            front = models_with_weights(self.history, None)
        else:
            front = self.retention.follow(self.history)
        return self._needed_to_train() | front

    def _needed_to_train(self) -> frozenset[int]:
        """Return the checkpoints that must stay whole."""
        required = required_checkpoints(self.state)
        if "steps" in extendable_by(self.scheduler):
            # A run that is extended continues from these.
            required |= {t.checkpoint for t in self.state.trials if t.checkpoint is not None}
        return required | self.state.outstanding.keys()

    def _sweep(self, new_reports: int) -> None:
        """Drop checkpoints, or reduce them, one exchange after they became obsolete.

        So even a last line that is lost can be executed again. While jobs fail, nothing is
        dropped, because their reports may be rolled back.
        """
        self._since_sweep += new_reports
        is_due = self._since_sweep * TRIALS_PER_SWEEP >= len(self.state.trials)
        if not is_due or self._failures_in_a_row():
            return
        self._since_sweep = 0
        kept = self._kept()
        self.store.checkpoints.drop(self._obsolete - kept)
        self._obsolete = frozenset(self._checksums) - kept
        if self.reduction is not None:
            only_front = kept - self._needed_to_train()
            self.reduction.apply(self._only_front & only_front, self._checksums)
            self._only_front = only_front
        for job in self._obsolete:
            del self._checksums[job]

    def _is_late(self) -> bool:
        return self.budget.seconds is not None and self.elapsed >= self.budget.seconds

    def _jobs_left(self) -> float:
        if self.budget.stall is not None and self._stalled() >= self.budget.stall:
            return 0
        return self.budget.jobs_left(self.state.jobs, self.problem.interval)

    def _stalled(self) -> int:
        """Return for how many generations the hypervolume has not grown."""
        reported = len(self.history.reports)
        if self._stall is None or self._stall[0] != reported:
            self._stall = reported, stalled_generations(self.history, self._population())
        return self._stall[1]

    def _population(self) -> int:
        """Return how many reports make a generation."""
        if isinstance(self.scheduler, PopulationScheduler):
            return self.scheduler.population
        return POPULATION

    def _abort_if_all_failed(self, reports: Sequence[Report]) -> None:
        """Stop a run in which nothing works.

        That is after three failures with the same error if no job ever succeeded, otherwise after
        as many failures in a row as the population has members, or when no member of a population
        ever reported a finite metric.
        """
        total = len(self.history.reports)
        failures = self.history.failures
        population = min(len(self.state.trials), POPULATION)
        if isinstance(self.scheduler, PopulationScheduler):
            population = self.scheduler.population
        diverged = [report.scores for report in reports if report.objectives is not None]
        never_finite = total == failures + self.history.diverged
        if diverged and never_finite and total >= max(FEWEST_DIVERGED, population):
            self._rolls_back = True
            raise TaskFailed(_nothing_finite(total, diverged[-1]))
        errors = self._failures_in_a_row()
        always_the_same = failures == total and len(set(errors)) == 1
        limit = FEWEST_FAILURES if always_the_same else max(FEWEST_FAILURES, population)
        if len(errors) >= limit:
            self._rolls_back = True
            error = next(r.error for r in reversed(reports) if r.error)
            raise TaskFailed(
                f"{len(errors)} intervals in a row failed; fix the task, then rerun to resume. "
                "The last error:",
                error,
            )

    def _roll_back_failures(self) -> None:
        """Remove the failures that stopped the run.

        A resumed run repeats their jobs.
        """
        mark, before = self._intact
        self.store.rewind(mark, Exchange(reports=before) if before else None)

    def _record_end(self, *, done: bool) -> None:
        """Record the time of a session and whether the run is done.

        A session without reports is recorded, too.

        Both follow from the reports once all intervals of the run have reported.
        """
        is_over = self.scheduler.done(self.state)
        if not self.worked or (is_over and len(self.history.reports) == self.scheduler.total_jobs):
            return
        now = self.elapsed if is_over else self._session_began + self.engine.elapsed()
        exchange = Exchange(stopped=max(self.elapsed, now), done=done)
        self.store.append(exchange)
        self.history.append(exchange)

    def _show(self, reports: Sequence[Report]) -> None:
        self.watch(
            Progress(
                problem=self.problem,
                state=self.state,
                history=self.history,
                reports=tuple(reports),
                elapsed=self.elapsed,
                reported=len(self.history.reports),
                failures=self.history.failures,
                diverged=self.history.diverged,
                front=self.history.front,
                total=self.scheduler.total_jobs or self.budget.jobs,
                since=self._since,
                stalled=None if self.budget.stall is None else (self._stalled(), self.budget.stall),
            )
        )


def _nothing_finite(n: int, scores: Mapping[str, float]) -> str:
    """Return the message for a run in which none of the first n intervals was finite."""
    values = ", ".join(
        f"{name!r} is {value}" for name, value in scores.items() if not math.isfinite(value)
    )
    return (
        f"none of the first {n} intervals has finite metrics ({values} in the last one); fix the "
        "task, or remove values from the space that make training diverge, then rerun to resume"
    )
