"""Measure what a driver does per job, without training, for 1,000 and 10,000 trials.

Run it with ``python benchmarks/schedulers.py``; the exit code is 1 if a target is missed. A session
runs with a scheduler, a journal and a front. Only its engine is made up: it invents the metrics of
the oldest job. There is a worker for every ten trials. Targets are CPU milliseconds per job, their
growth from 1,000 to 10,000 trials, and durable reports per second, which include the time of the
disk. That rate is measured several times; each time, the CPU time of the driver and the time of the
flushes to the disk are measured apart, because elapsed time includes waiting for a core.
``--members 100000`` measures other sizes. ``--simulate`` simulates 10,000 members on 1,000 workers
for 100 intervals, a million jobs, with training, journal and front.
"""

import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from measuring import Row, argument_parser, show

from mopbt import MOPBT, SimulatedEngine, run
from mopbt.algorithms import MOASHA, Algorithm
from mopbt.engines.base import RunContext
from mopbt.engines.simulated import Lognormal, PerStep
from mopbt.filesystem import disk
from mopbt.history import History
from mopbt.problem import problem_of
from mopbt.progress import Progress
from mopbt.rng import stream
from mopbt.schedulers.base import Scheduler
from mopbt.session import Budget, Session
from mopbt.state import Job, Report, State
from mopbt.stores.base import Store
from mopbt.stores.directory import DirectoryStore
from mopbt.stores.memory import MemoryStore
from mopbt.tasks.synthetic import TradeOff

SIZES = (1_000, 10_000)
JOBS = 1_500  # measured after each trial has reported once
PROBLEM = problem_of(TradeOff(steps=100))

# The objectives of a job.
Invent = Callable[[Job], tuple[float, ...]]
ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "synchronous MO-PBT": lambda n: MOPBT(population=n),
    "asynchronous MO-PBT": lambda n: MOPBT(population=n, asynchronous=True),
    "MO-ASHA": lambda n: MOASHA(),
    "MO-ASHA, promotion": lambda n: MOASHA(kind="promotion"),
}


def anywhere(job: Job) -> tuple[float, ...]:
    """Return random objectives: a population of many fronts."""
    return tuple(stream(0, "invented", job.id).random(2).tolist())


def on_one_front(job: Job) -> tuple[float, ...]:
    """Return objectives on a quarter of a circle: a population that has converged."""
    first = float(stream(0, "invented", job.id).random())
    return first, (1 - first**2) ** 0.5


@dataclass
class InventingEngine:
    """Reports invented metrics, `batch` jobs at a time or `rate` jobs per second.

    Given a rate, all reports that are due are collected together, as from a real engine. `cpu` is
    the engine's own share of the CPU time.
    """

    capacity: int
    invent: Invent
    batch: int
    rate: float | None = None
    cpu: float = 0.0
    _jobs: deque[Job] = field(default_factory=deque)
    _clock: float = 0.0
    _next: float | None = None

    def start(self, context: RunContext) -> None:
        """Do nothing."""

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Accept jobs."""
        self._jobs.extend(jobs)

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Report the oldest jobs."""
        began = time.process_time()
        reports = []
        for _ in range(self._due()):
            job = self._jobs.popleft()
            self._clock += 0.001
            objectives = self.invent(job)
            scores = dict(zip(("first", "second"), objectives, strict=True))
            report = Report(job.id, objectives, scores=scores, checksum=f"{job.id:032x}")
            reports.append(replace(report, seconds=self._clock, duration=1.0))
        self.cpu += time.process_time() - began
        return reports

    def _due(self) -> int:
        """Return how many reports have arrived, at least one."""
        if self.rate is None:
            return min(self.batch, len(self._jobs))
        now = time.perf_counter()
        if self._next is None:
            self._next = now
        time.sleep(max(self._next - now, 0))
        due = min(1 + int(max(now - self._next, 0) * self.rate), len(self._jobs))
        # Workers that wait for a job do not catch up.
        self._next = max(self._next + due / self.rate, now)
        return due

    def elapsed(self) -> float:
        """Return the time of the newest report."""
        return self._clock

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class AfterFirstGeneration:
    """A scheduler whose first generation is synchronous, which takes less time to prepare."""

    first: Scheduler
    then: Scheduler
    population: int
    total_jobs: int | None = None
    needs_budget: bool = True
    decides_together: bool = False

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Return the jobs of the measured scheduler."""
        return self.then.ask(state, slots)

    def tell(self, state: State, report: Report) -> State:
        """Return the state after a report."""
        is_first = state.jobs <= self.population
        return (self.first if is_first else self.then).tell(state, report)

    def done(self, state: State) -> bool:
        """Return whether no job is left to order."""
        return self.then.done(state)


def scheduler_of(algorithm: Algorithm, n: int) -> Scheduler:
    """Return the scheduler to measure after `n` jobs."""
    scheduler = algorithm.scheduler(PROBLEM)
    if isinstance(algorithm, MOPBT) and algorithm.asynchronous:
        first = replace(algorithm, asynchronous=False).scheduler(PROBLEM)
        return AfterFirstGeneration(first, scheduler, n)
    return scheduler


class Times(NamedTuple):
    """What jobs took: CPU seconds, elapsed seconds, and flushes of the journal with their time."""

    cpu: float
    wall: float
    flushes: float
    flushing: float

    def minus(self, other: "Times") -> "Times":
        """Return the difference."""
        return Times(*(mine - its for mine, its in zip(self, other, strict=True)))


@dataclass
class Clock:
    """Measures the time of the driver, without that of its engine."""

    engine: InventingEngine
    flushes: int = 0
    flushing: float = 0.0

    def now(self) -> Times:
        """Return the times since the start of the process."""
        cpu = time.process_time() - self.engine.cpu
        return Times(cpu, time.perf_counter(), self.flushes, self.flushing)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count flushes to the disk and add up their time."""
        flush = disk.sync

        def timed(fd: int) -> None:
            began = time.perf_counter()
            flush(fd)
            self.flushing += time.perf_counter() - began
            self.flushes += 1

        disk.sync = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            disk.sync = flush  # type: ignore[method-assign]


def driver_time(
    algorithm: Algorithm, n: int, store: Store, invent: Invent = anywhere, rate: float | None = None
) -> tuple[Times, int]:
    """Return what further jobs take after `n` have reported, and their number."""
    engine = InventingEngine(max(n // 10, 3), invent, batch=64)
    clock = Clock(engine)
    began: list[tuple[Times, int]] = []

    def note(progress: Progress) -> None:
        if progress.reported >= n and not began:
            began.append((clock.now(), progress.reported))
            engine.batch = 1
            engine.rate = rate

    budget = Budget(jobs=n + JOBS)
    scheduler = scheduler_of(algorithm, n)
    session = Session(scheduler, PROBLEM, store, engine, 0, budget, note, History(PROBLEM))
    with clock.watching():
        session.drive()
    start, before = began[0]
    return clock.now().minus(start), len(session.history.reports) - before


def costs(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Measure the CPU time per job and its growth with the number of trials."""
    cases: list[tuple[str, Callable[[int], Algorithm], Invent]] = [
        (name, make, anywhere) for name, make in ALGORITHMS.items()
    ]
    converged = "asynchronous MO-PBT, one front"
    cases.append((converged, ALGORITHMS["asynchronous MO-PBT"], on_one_front))
    for name, make, invent in cases:
        seen = []
        for n in sizes:
            times, jobs = driver_time(make(n), n, MemoryStore(), invent)
            seen.append(1000 * times.cpu / jobs)
            yield Row(f"{name}: ms per job, n = {n:,}", seen[-1], "<= 2", seen[-1] <= 2)
            if len(seen) > 1:
                growth = seen[-1] / seen[-2]
                before = sizes[len(seen) - 2]
                label = f"{name}: growth from n = {before:,} to {n:,}"
                yield Row(label, growth, "<= 3", growth <= 3)


def durable(n: int, repeats: int) -> Iterator[Row]:
    """Measure how many of 1,000 reports per second a driver makes durable and answers."""
    rates = []
    for repeat in range(1, repeats + 1):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
            store = DirectoryStore(folder)
            algorithm = MOPBT(population=n, asynchronous=True)
            times, jobs = driver_time(algorithm, n, store, rate=1_000)
            store.close()
        rates.append(jobs / times.wall)
        own = jobs / (times.cpu + times.flushing)
        cost = f"per report {1000 * times.cpu / jobs:.2f} ms of CPU time"
        flush = f"{1000 * times.flushing / jobs:.2f} ms of {times.flushes:.0f} flushes"
        detail = f"{cost} and {flush}, together {own:.0f} per second; load {os.getloadavg()[0]:.1f}"
        yield Row(f"durable reports per second, n = {n:,}, {repeat}", rates[-1], detail=detail)
    median = statistics.median(rates)
    yield Row(f"durable reports per second, n = {n:,}, median", median, ">= 500", median >= 500)


def measure(sizes: tuple[int, ...], repeats: int) -> Iterator[Row]:
    """Measure everything."""
    yield from costs(sizes)
    yield from durable(sizes[-1], repeats)


def simulate(asynchronous: bool) -> None:
    """Simulate a million jobs with each of two cost models."""
    for cost_model in (PerStep(), Lognormal()):
        begin = time.perf_counter()
        begin_cpu = time.process_time()
        algorithm = MOPBT(population=10_000, asynchronous=asynchronous)
        results = run(
            TradeOff(steps=100),
            out=None,
            algorithm=algorithm,
            engine=SimulatedEngine(1_000, cost_model),
            progress=False,
        )
        minutes = (time.perf_counter() - begin) / 60
        cpu = (time.process_time() - begin_cpu) / 60
        print(
            f"{type(cost_model).__name__}: {len(results):,} jobs in {minutes:.1f} min "
            f"({cpu:.1f} min CPU), {results.seconds:.0f} virtual seconds, "
            f"hypervolume {results.hypervolume():.4f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--members", type=int, nargs="+", default=SIZES, help="the numbers of trials to measure"
    )
    parser.add_argument("--repeats", type=int, default=5, help="measurements of durable reports")
    parser.add_argument("--durable", action="store_true", help="measure only durable reports")
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="simulate a million jobs with each of two cost models",
    )
    parser.add_argument(
        "--asynchronous",
        action="store_true",
        help="with --simulate, use the asynchronous algorithm",
    )
    arguments = parser.parse_args()
    if arguments.simulate:
        simulate(arguments.asynchronous)
    else:
        rows = measure(tuple(arguments.members), arguments.repeats)
        if arguments.durable:
            rows = durable(max(arguments.members), arguments.repeats)
        sys.exit(show(rows, arguments.json))
