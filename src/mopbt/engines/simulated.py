"""Any number of workers under a virtual clock: jobs are trained here, in whatever order, and take the time that a model says."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mopbt.engines.base import Engine, RunContext
from mopbt.engines.local import LocalEngine
from mopbt.rng import stream
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange


@dataclass(frozen=True)
class PerStep:
    """Every step takes the same time, with a fixed time for a job on top of it."""

    seconds: float = 1.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, self.seconds > 0, "a number above 0")
        _check("overhead", self.overhead, self.overhead >= 0, "a number of at least 0")

    def __call__(self, work: RunContext, job: Job) -> float:
        """Return the seconds of a job."""
        return self.overhead + self.seconds * (job.end - job.begin)


@dataclass(frozen=True)
class PerConfiguration:
    """A step takes the time that a function says of the hyperparameters' values, such as ``lambda v: 0.1 * v["layers"]``."""

    seconds: Callable[[Mapping[str, Any]], float]

    def __call__(self, work: RunContext, job: Job) -> float:
        """Return the seconds of a job."""
        seconds = self.seconds(work.problem.space.decode(job.config))
        _check("seconds", seconds, seconds > 0, "a function whose values are above 0")
        return seconds * (job.end - job.begin)


@dataclass(frozen=True)
class Lognormal:
    """A step takes `seconds` in the median; the logarithm varies from job to job with a deviation of `spread`."""

    seconds: float = 1.0
    spread: float = 0.25

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, self.seconds > 0, "a number above 0")
        _check("spread", self.spread, self.spread >= 0, "a number of at least 0")

    def __call__(self, work: RunContext, job: Job) -> float:
        """Return the seconds of a job."""
        factor = stream(work.seed, "cost", job.trial, job.begin).lognormal(0.0, self.spread)
        return self.seconds * float(factor) * (job.end - job.begin)


@dataclass(frozen=True)
class Measured:
    """A job takes the time that it really duration here, times a factor. Runs are then as repeatable as this machine is."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check("factor", self.factor, self.factor > 0, "a number above 0")


Cost = Callable[[RunContext, Job], float]


class SimulatedEngine:
    """`workers` workers under a virtual clock, while an engine of this machine does the training.

    Args:
        workers: How many jobs are under way at a time.
        cost: How long a job takes: `PerStep`, `PerConfiguration`, `Lognormal`, `Measured`, or a function of the work and a job.
        speeds: Of each worker, 1 being the usual; 0.5 is a straggler that needs twice the time.
        deaths: The probability that a worker dies in the middle of a job and begins it again, up to `retries` times.
        retries: How often a job is begun again before it is reported as failed.
        restart: Seconds until a worker that died is back.
        engine: What does the training; by default this process.
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
        _check(
            "workers",
            workers,
            isinstance(workers, int) and workers >= 1,
            "a whole number of at least 1",
        )
        _check("deaths", deaths, 0 <= deaths < 1, "a probability below 1")
        _check(
            "retries",
            retries,
            isinstance(retries, int) and retries >= 0,
            "a whole number of at least 0",
        )
        _check("restart", restart, restart >= 0, "a number of at least 0")
        if speeds is not None:
            fit = len(speeds) == workers and all(speed > 0 for speed in speeds)
            _check("speeds", speeds, fit, f"a number above 0 for each of the {workers} workers")
        models = "PerStep(1.5), Measured(), or a function of the work and a job"
        _check("cost", cost, cost is None or isinstance(cost, Measured) or callable(cost), models)
        self.capacity = workers
        self._cost = cost or PerStep()
        self._speeds = list(speeds or [1.0] * workers)
        self._deaths, self._retries, self._restart = deaths, retries, restart
        self._engine = engine or LocalEngine()

    @property
    def stack(self) -> int:
        """Return how many jobs the engine that trains puts into a stack."""
        return int(getattr(self._engine, "stack", 1))

    @property
    def in_process(self) -> bool:
        """Tell whether the training happens in this process."""
        return bool(getattr(self._engine, "in_process", False))

    def start(self, work: RunContext) -> None:
        """Get ready for a run."""
        self._work = work
        self._now = self._began = 0.0
        self._free = list(range(self.capacity))  # a heap: the first free worker takes the next job
        self._placed: dict[
            int, tuple[Job, int, float]
        ] = {}  # with the worker and the time at which it began
        self._ends: list[tuple[float, int]] = []  # a heap of the times at which jobs end
        self._end_of: dict[int, float] = {}
        self._lost: set[int] = set()
        self._reports: dict[int, Report] = {}  # trained, but not yet over by the virtual clock
        self._engine.start(work)

    def recall(self, exchanges: Iterable[Exchange]) -> None:
        """Let the clock run as it did in the sessions before, so that jobs under way end when they would have."""
        for exchange in exchanges:
            for job in exchange.jobs:
                self._place(job)
                if not isinstance(self._cost, Measured):
                    self._time(job.id, 0.0)
            for report in exchange.reports:
                if isinstance(self._cost, Measured):
                    self._time(report.job, report.duration)
                self._lost.discard(report.job)
                self._finish(report.job)
            self._began = max(
                [self._began, exchange.stopped, *(report.seconds for report in exchange.reports)]
            )
        self._now = max(self._now, self._began)
        self._ends = [(end, id) for end, id in self._ends if id in self._placed]
        heapq.heapify(self._ends)

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Give each job to a free worker, and have it trained."""
        jobs = list(jobs)
        for job in jobs:
            if job.id in self._placed:  # under way since an earlier session
                continue
            self._place(job)
            if not isinstance(self._cost, Measured):
                self._time(job.id, 0.0)
        self._engine.submit([job for job in jobs if job.id not in self._lost], checksums)

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Return the reports of the jobs that end next, all at the same moment; none if that is after the timeout."""
        if isinstance(self._cost, Measured):
            self._train(set(self._placed) - self._reports.keys())
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
        return [replace(self._report(id), seconds=end - self._began) for id in sorted(over)]

    def elapsed(self) -> float:
        """Return the virtual seconds since the start of the session."""
        return self._now - self._began

    def close(self) -> None:
        """Close the engine that did the training."""
        self._engine.close()

    def _place(self, job: Job) -> None:
        if not self._free:
            raise ValueError(
                f"a simulated run must go on with as many workers as it began with, got {self.capacity}, too few; take more"
            )
        self._placed[job.id] = (job, heapq.heappop(self._free), self._now)

    def _time(self, id: int, duration: float) -> None:
        """Enter when a job ends."""
        job, worker, began = self._placed[id]
        cost = (
            self._cost.factor * duration
            if isinstance(self._cost, Measured)
            else self._cost(self._work, job)
        )
        spent = self._lived(job, cost / self._speeds[worker])
        self._end_of[id] = began + spent
        heapq.heappush(self._ends, (began + spent, id))

    def _lived(self, job: Job, seconds: float) -> float:
        """Return how long a job keeps its worker, with all the times that it is begun again."""
        if not self._deaths:
            return seconds
        rng, spent = stream(self._work.seed, "deaths", job.trial, job.begin), 0.0
        for _ in range(self._retries + 1):
            if rng.random() >= self._deaths:
                return spent + seconds
            spent += float(rng.random()) * seconds + self._restart
        self._lost.add(job.id)
        return spent

    def _finish(self, id: int) -> None:
        self._now = max(self._now, self._end_of.pop(id))
        heapq.heappush(self._free, self._placed.pop(id)[1])

    def _train(self, wanted: set[int]) -> None:
        """Have jobs trained; others may come back before them."""
        while wanted:
            for report in self._engine.collect():
                self._reports[report.job] = report
                wanted.discard(report.job)
                if isinstance(self._cost, Measured):
                    self._time(report.job, report.duration)

    def _report(self, id: int) -> Report:
        if id not in self._lost:
            return self._reports.pop(id)
        self._lost.discard(id)
        return Report(id, error=f"simulated: the worker of job {id} died {self._retries + 1} times")


def _check(name: str, value: Any, fits: bool, allowed: str) -> None:
    if not fits:
        raise ValueError(f"`{name}` must be {allowed}, got {value!r}")
