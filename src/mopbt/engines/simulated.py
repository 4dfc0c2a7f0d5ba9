"""Any number of workers under a virtual clock.

Another engine trains the jobs, in whatever order suits it. A cost model says how long each job
takes, so a run shows on one machine how it would proceed on a cluster.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mopbt.arguments import check_count
from mopbt.engines.base import Engine, InProcessEngine, RunContext, StackingEngine
from mopbt.engines.local import LocalEngine
from mopbt.rng import stream
from mopbt.state import Job, Report

# A job that only evaluates a model is charged as this share of an interval.
EVALUATION = 0.5


def charged_steps(context: RunContext, job: Job) -> float:
    """Return how many steps of training a job is charged as."""
    return (job.end - job.begin) or EVALUATION * context.problem.interval


@dataclass(frozen=True)
class PerStep:
    """Charges the same time for every step, and a fixed time for every job."""

    seconds: float = 1.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, self.seconds > 0, "a number above 0")
        _check("overhead", self.overhead, self.overhead >= 0, "a number of at least 0")

    def __call__(self, context: RunContext, job: Job) -> float:
        """Return the seconds of a job."""
        return self.overhead + self.seconds * charged_steps(context, job)


@dataclass(frozen=True)
class PerConfiguration:
    """Charges for a step what a function of the hyperparameters returns.

    An example is ``PerConfiguration(lambda hp: 0.1 * hp["layers"])``.
    """

    seconds: Callable[[Mapping[str, Any]], float]

    def __call__(self, context: RunContext, job: Job) -> float:
        """Return the seconds of a job."""
        seconds = self.seconds(context.problem.space.decode(job.config))
        _check("seconds", seconds, seconds > 0, "a function whose values are above 0")
        return seconds * charged_steps(context, job)


@dataclass(frozen=True)
class Lognormal:
    """Charges random times, with a median of `seconds` per step.

    The logarithm varies from job to job with a standard deviation of `spread`.
    """

    seconds: float = 1.0
    spread: float = 0.25

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, self.seconds > 0, "a number above 0")
        _check("spread", self.spread, self.spread >= 0, "a number of at least 0")

    def __call__(self, context: RunContext, job: Job) -> float:
        """Return the seconds of a job."""
        factor = stream(context.seed, "cost", job.trial, job.begin).lognormal(0.0, self.spread)
        return self.seconds * float(factor) * charged_steps(context, job)


@dataclass(frozen=True)
class Measured:
    """Charges the time that a job takes on this machine, times a factor.

    Such runs are only as repeatable as this machine is.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check("factor", self.factor, self.factor > 0, "a number above 0")


Cost = Callable[[RunContext, Job], float]


@dataclass(frozen=True)
class _Placement:
    """A job on a virtual worker, from the virtual moment at which it began."""

    job: Job
    worker: int
    began: float


class SimulatedEngine:
    """Simulates `workers` workers under a virtual clock, while another engine trains.

    Args:
        workers: The number of jobs that run at a time.
        cost: How long a job takes: `PerStep`, `PerConfiguration`, `Lognormal`, `Measured`, or a
            function of the `RunContext` and a job.
        speeds: The speed of each worker. 1 is usual; 0.5 is a straggler that takes twice as long.
        deaths: The probability that a worker dies during a job and restarts it.
        retries: How often a job is repeated before it is reported as failed.
        restart: The seconds until a worker that died is back.
        engine: The engine that trains; by default a `LocalEngine`.
    """

    def __init__(
        self,
        workers: int,
        cost: Cost | Measured | None = None,
        *,
        speeds: Sequence[float] | None = None,
        deaths: float = 0.0,
        retries: int = 2,
        restart: float = 0.0,
        engine: Engine | None = None,
    ) -> None:
        check_count("workers", workers, 1)
        _check("deaths", deaths, 0 <= deaths < 1, "a probability below 1")
        check_count("retries", retries, 0)
        _check("restart", restart, restart >= 0, "a number of at least 0")
        if speeds is not None:
            fit = len(speeds) == workers and all(speed > 0 for speed in speeds)
            _check("speeds", speeds, fit, f"a number above 0 for each of the {workers} workers")
        is_model = cost is None or isinstance(cost, Measured) or callable(cost)
        models = "PerStep(1.5), Measured(), or a function of a RunContext and a job"
        _check("cost", cost, is_model, models)
        self.capacity = workers
        self._cost = cost or PerStep()
        self._speeds = list(speeds or [1.0] * workers)
        self._deaths = deaths
        self._retries = retries
        self._restart = restart
        self._engine = engine or LocalEngine()

    @property
    def stack(self) -> int:
        """Return the largest number of jobs in a stack of the engine that trains."""
        return self._engine.stack if isinstance(self._engine, StackingEngine) else 1

    @property
    def in_process(self) -> bool:
        """Return whether all training happens in this process."""
        return isinstance(self._engine, InProcessEngine) and self._engine.in_process

    def start(self, context: RunContext) -> None:
        """Prepare for a run."""
        self._context = context
        self._now = 0.0
        self._began = 0.0
        # A heap, so that the free worker with the lowest number takes the next job.
        self._free = list(range(self.capacity))
        self._placements: dict[int, _Placement] = {}
        # A heap of the moments at which jobs end, with the ids of the jobs.
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        # Jobs whose workers die too often.
        self._lost: set[int] = set()
        # Reports of jobs that are trained, but not over by the virtual clock.
        self._reports: dict[int, Report] = {}
        self._engine.start(context)

    def restore_clock(self, recorded: Iterable[Job | Report], seconds: float) -> None:
        """Repeat recorded jobs and reports.

        Unfinished jobs then end when they would have.
        """
        for event in recorded:
            if isinstance(event, Job):
                self._place(event)
                continue
            if isinstance(self._cost, Measured):
                self._schedule_end(event.job, event.duration)
            self._lost.discard(event.job)
            self._finish(event.job)
        self._began = max(self._began, seconds)
        self._now = max(self._now, self._began)
        self._ends = [(end, id) for end, id in self._ends if id in self._placements]
        heapq.heapify(self._ends)

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Give each job to a free worker, and have it trained."""
        jobs = list(jobs)
        for job in jobs:
            # A job of an earlier session has its worker already.
            if job.id not in self._placements:
                self._place(job)
        self._engine.submit([job for job in jobs if job.id not in self._lost], checksums)

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Return the reports of the jobs that end next, all at the same virtual moment.

        If that moment is more than `timeout` virtual seconds ahead, return an empty list.
        """
        if isinstance(self._cost, Measured):
            self._train(set(self._placements) - self._reports.keys())
        end = self._ends[0][0]
        if timeout is not None and end > self._now + timeout:
            self._now += timeout
            return []
        over = []
        while self._ends and self._ends[0][0] == end:
            over.append(heapq.heappop(self._ends)[1])
        self._train(set(over) - self._lost - self._reports.keys())
        for id in over:
            self._finish(id)
        return [replace(self._pop_report(id), seconds=end - self._began) for id in sorted(over)]

    def elapsed(self) -> float:
        """Return the virtual seconds since the start of the session."""
        return self._now - self._began

    def close(self) -> None:
        """Close the engine that trains."""
        self._engine.close()

    def _place(self, job: Job) -> None:
        """Give a job to a free worker."""
        if not self._free:
            raise ValueError(
                f"a simulated run must resume with as many workers as it began with, "
                f"got {self.capacity}, which is too few; use more"
            )
        self._placements[job.id] = _Placement(job, heapq.heappop(self._free), self._now)
        # The end of a measured job is known only after it is trained.
        if not isinstance(self._cost, Measured):
            self._schedule_end(job.id)

    def _schedule_end(self, id: int, duration: float = 0.0) -> None:
        """Enter when a job ends; `duration` is the time that its training really took."""
        placement = self._placements[id]
        if isinstance(self._cost, Measured):
            seconds = self._cost.factor * duration
        else:
            seconds = self._cost(self._context, placement.job)
        spent = self._simulate_deaths(placement.job, seconds / self._speeds[placement.worker])
        self._end_of[id] = placement.began + spent
        heapq.heappush(self._ends, (self._end_of[id], id))

    def _simulate_deaths(self, job: Job, seconds: float) -> float:
        """Return how long a job of `seconds` occupies its worker, with repetitions."""
        if not self._deaths:
            return seconds
        rng = stream(self._context.seed, "deaths", job.trial, job.begin)
        spent = 0.0
        for _ in range(self._retries + 1):
            if rng.random() >= self._deaths:
                return spent + seconds
            spent += float(rng.random()) * seconds + self._restart
        self._lost.add(job.id)
        return spent

    def _finish(self, id: int) -> None:
        """Advance the clock to the end of a job, and free its worker."""
        self._now = max(self._now, self._end_of.pop(id))
        heapq.heappush(self._free, self._placements.pop(id).worker)

    def _train(self, wanted: set[int]) -> None:
        """Collect reports until all wanted jobs are trained.

        Reports of other jobs may arrive before them.
        """
        while wanted:
            for report in self._engine.collect():
                self._reports[report.job] = report
                wanted.discard(report.job)
                if isinstance(self._cost, Measured):
                    self._schedule_end(report.job, report.duration)

    def _pop_report(self, id: int) -> Report:
        if id not in self._lost:
            return self._reports.pop(id)
        self._lost.discard(id)
        times = "once" if self._retries == 0 else f"{self._retries + 1} times"
        return Report(id, error=f"simulated: the worker of job {id} died {times}")


def _check(name: str, value: Any, fits: bool, allowed: str) -> None:
    if not fits:
        raise ValueError(f"`{name}` must be {allowed}, got {value!r}")
