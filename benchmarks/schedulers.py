"""What schedulers cost: CPU time of ask and tell per job, for 32, 1,000 and 10,000 trials.

Run it with ``python benchmarks/schedulers.py``; the exit code is 1 if the cost per job grows by more than n log n. Reports are
invented, so that nothing but the scheduler is measured; a tenth as many workers as trials report one by one. ``--whole`` simulates
10,000 members on 1,000 workers for 100 intervals, with training, journal and front: a million jobs.
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
TURNS = 3  # of all workers, and at least 100 jobs, are measured at each size: trials at all rungs; of a synchronous one all of n
PROBLEM = problem_of(TradeOff(steps=100))


@dataclass
class Play:
    """A run without training: who has been under way longest reports next, with invented objectives."""

    scheduler: Scheduler
    workers: int
    state: State
    seconds: float = 0.0
    jobs: int = 0

    def step(self) -> None:
        """Order what there is room for, and let one job report."""
        begin = time.process_time()
        asked = self.scheduler.ask(self.state, self.workers - len(self.state.outstanding))
        self.seconds += time.process_time() - begin
        self.state = with_jobs(self.state, asked)
        job = next(iter(self.state.outstanding.values()))
        report = Report(
            job.id, tuple(stream(0, "invented", job.id).random(2).tolist()), checksum="0"
        )
        begin = time.process_time()
        self.state = self.scheduler.tell(self.state, report)
        self.seconds += time.process_time() - begin
        self.jobs += 1


def cost(algorithm: Algorithm, n: int, jobs: int) -> float:
    """Return CPU seconds of the scheduler per job, once `n` trials have reported."""
    scheduler = algorithm.scheduler(PROBLEM)
    first = (
        replace(algorithm, asynchronous=False).scheduler(PROBLEM)
        if isinstance(algorithm, MOPBT)
        else scheduler
    )
    play = Play(
        first, max(n // 10, 3), State(0)
    )  # a first generation without decisions: they would take most of the time
    while len(play.state.trials) < n or play.jobs < n:
        play.step()
    play.scheduler, play.seconds, play.jobs = scheduler, 0.0, 0
    for _ in range(jobs):
        play.step()
    return play.seconds / play.jobs


def growth() -> list[Row]:
    rows: list[Row] = []
    kinds = {
        "synchronous MO-PBT": lambda n: MOPBT(population=n),
        "asynchronous MO-PBT": lambda n: MOPBT(population=n, asynchronous=True),
        "MO-ASHA": lambda n: MOASHA(),
        "MO-ASHA, promotion": lambda n: MOASHA(kind="promotion"),
    }
    for name, make in kinds.items():
        costs = {
            n: cost(make(n), n, n if name.startswith("sync") else max(TURNS * n // 10, 100))
            for n in SIZES
        }
        print(
            f"{name}: "
            + ", ".join(f"{1000 * c:.3f} ms a job at n = {n:,}" for n, c in costs.items()),
            flush=True,
        )
        for small, large in ((32, 1_000), (1_000, 10_000)):
            allowed = large * math.log(large) / (small * math.log(small))
            ratio = costs[large] / costs[small]
            label = f"{name}: cost a job, n = {large:,} / n = {small:,}"
            rows.append(Row(label, ratio, f"<= {allowed:.1f}", ratio <= allowed))
    return rows


def whole(asynchronous: bool) -> None:
    for cost_model in (PerStep(), Lognormal()):
        begin, cpu = time.perf_counter(), time.process_time()
        algorithm = MOPBT(population=10_000, asynchronous=asynchronous)
        results = run(
            TradeOff(steps=100),
            out=None,
            algorithm=algorithm,
            engine=SimulatedEngine(1_000, cost_model),
            progress=False,
        )
        minutes, cpu = (time.perf_counter() - begin) / 60, (time.process_time() - cpu) / 60
        print(
            f"{type(cost_model).__name__}: {len(results):,} jobs in {minutes:.1f} min ({cpu:.1f} min CPU), "
            f"{results.seconds:.0f} virtual seconds, hypervolume {results.hypervolume():.4f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="simulate a million jobs, twice")
    parser.add_argument(
        "--asynchronous", action="store_true", help="with --whole: the asynchronous algorithm"
    )
    arguments = parser.parse_args()
    if arguments.whole:
        whole(arguments.asynchronous)
    else:
        sys.exit(show(growth(), arguments.json))
