"""Measure the CPU time of ask and tell per job, for 32, 1,000 and 10,000 trials.

Run it with ``python benchmarks/schedulers.py``; the exit code is 1 if the cost per job grows faster
than n log n. Reports are made up, so that only the scheduler is measured. There is a worker for
every ten trials, and workers report one by one. ``--simulate`` simulates 10,000 members on 1,000
workers for 100 intervals, a million jobs, with training, journal and front.
"""

import math
import sys
import time
from dataclasses import dataclass, replace

from measuring import Row, argument_parser, show

from mopbt import MOPBT, SimulatedEngine, run
from mopbt.algorithms import MOASHA, Algorithm
from mopbt.engines.simulated import Lognormal, PerStep
from mopbt.problem import problem_of
from mopbt.rng import stream
from mopbt.schedulers.base import Scheduler
from mopbt.state import Report, State, with_jobs
from mopbt.tasks.synthetic import TradeOff

SIZES = (32, 1_000, 10_000)
# Asynchronous algorithms are measured for this many jobs per worker and at least 100 jobs, so that
# trials are at all rungs; a synchronous one is measured for n jobs.
TURNS = 3
PROBLEM = problem_of(TradeOff(steps=100))


@dataclass
class DryRun:
    """Drive a scheduler without training; the oldest job reports made-up objectives."""

    scheduler: Scheduler
    workers: int
    state: State
    seconds: float = 0.0
    jobs: int = 0

    def step(self) -> None:
        """Fill all workers with jobs, and report one job."""
        begin = time.process_time()
        asked = self.scheduler.ask(self.state, self.workers - len(self.state.outstanding))
        self.seconds += time.process_time() - begin
        self.state = with_jobs(self.state, asked)
        job = next(iter(self.state.outstanding.values()))
        objectives = tuple(stream(0, "invented", job.id).random(2).tolist())
        report = Report(job.id, objectives, checksum="0")
        begin = time.process_time()
        self.state = self.scheduler.tell(self.state, report)
        self.seconds += time.process_time() - begin
        self.jobs += 1


def cost(algorithm: Algorithm, n: int, jobs: int) -> float:
    """Return the scheduler's CPU seconds per job after `n` trials have reported."""
    scheduler = algorithm.scheduler(PROBLEM)
    # A synchronous first generation makes no decisions, which would take most of the time.
    first = scheduler
    if isinstance(algorithm, MOPBT):
        first = replace(algorithm, asynchronous=False).scheduler(PROBLEM)
    dry_run = DryRun(first, max(n // 10, 3), State(0))
    while len(dry_run.state.trials) < n or dry_run.jobs < n:
        dry_run.step()
    dry_run.scheduler = scheduler
    dry_run.seconds = 0.0
    dry_run.jobs = 0
    for _ in range(jobs):
        dry_run.step()
    return dry_run.seconds / dry_run.jobs


def growth() -> list[Row]:
    """Measure how the cost per job grows with the number of trials."""
    rows: list[Row] = []
    kinds = {
        "synchronous MO-PBT": lambda n: MOPBT(population=n),
        "asynchronous MO-PBT": lambda n: MOPBT(population=n, asynchronous=True),
        "MO-ASHA": lambda n: MOASHA(),
        "MO-ASHA, promotion": lambda n: MOASHA(kind="promotion"),
    }
    for name, make in kinds.items():
        costs = {}
        for n in SIZES:
            jobs = n if name.startswith("sync") else max(TURNS * n // 10, 100)
            costs[n] = cost(make(n), n, jobs)
        shown = ", ".join(f"{1000 * c:.3f} ms per job at n = {n:,}" for n, c in costs.items())
        print(f"{name}: {shown}", flush=True)
        for small, large in ((32, 1_000), (1_000, 10_000)):
            allowed = large * math.log(large) / (small * math.log(small))
            ratio = costs[large] / costs[small]
            label = f"{name}: cost a job, n = {large:,} / n = {small:,}"
            rows.append(Row(label, ratio, f"<= {allowed:.1f}", ratio <= allowed))
    return rows


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
        sys.exit(show(growth(), arguments.json))
