"""Runs in virtual time, in worlds where everything goes wrong that can, each from one seed.

Messages are lost, late, repeated and out of order. Workers die in every phase of a job, come back
with stale reports, or are taken for dead and keep working. Clocks jump. The process that
executes the run is killed at any call to the disk, and resumed with another number of workers.
"""

import gc
import heapq
import random
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import mopbt
from attack.disks import CutDisk, Killed, disk
from attack.record import WatchedDisk
from attack.scenarios import ALGORITHMS, AttackedToy, Scenario, Shown, outcome, sound_reports
from attack.virtual import Faults, World, virtual_cluster, virtual_processes
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import Lognormal, SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import TaskFailed, WorkerFailed

SEEDS = 400  # of each kind
SESSIONS = 60  # at most, of one run
STEPS = 8
# Why a session may end without being killed.
ACCEPTED = ("before they are ready", "in a row failed", "evaluations failed")
UNITS = ("pool", "vectorized", "ray", "simulated", "any engine")


class ShownReports(WatchedDisk):
    """A disk that remembers which reports the user was shown."""

    def __init__(self):
        self.jobs = set()

    def shown(self, job):
        self.jobs.add(job)


class HostileEngine:
    """An engine that keeps nothing of the contract but that a job reports in the end.

    It repeats reports, also those of earlier sessions, returns them in any order and for jobs that
    do not exist, returns nothing, and its clock jumps in both directions.
    """

    in_process = True

    def __init__(self, world, capacity, past):
        self.capacity = capacity
        self._world = world
        self._past = past  # reports of all sessions
        self._inner = LocalEngine(warm_bytes=0)

    def start(self, context):
        self._inner.start(context)
        self._ends = []

    def submit(self, jobs, checksums):
        for job in jobs:
            end = self._world.clock.now + self._world.rng.uniform(0.1, 5.0)
            heapq.heappush(self._ends, (end, job.id, job, dict(checksums)))

    def collect(self, timeout=None):
        rng = self._world.rng
        if rng.random() < 0.1:
            return []
        reports = []
        for _ in range(rng.randint(1, 3)):
            if self._ends:
                end, _, job, checksums = heapq.heappop(self._ends)
                self._world.clock.now = max(self._world.clock.now, end)
                self._inner.submit([job], checksums)
                reports += self._inner.collect()
        self._past += [report for report in reports if report.objectives]
        if self._past and rng.random() < 0.3:
            reports += rng.choices(self._past, k=rng.randint(1, 3))
        if rng.random() < 0.1:
            reports.append(mopbt.state.Report(10**9, error="of a job that does not exist"))
        rng.shuffle(reports)
        return [replace(report, seconds=self.elapsed()) for report in reports]

    def elapsed(self):
        return self._world.clock.now + self._world.rng.choice([0.0, 0.0, -5.0, 1e6])

    def close(self):
        self._inner.close()


def make_engine(kind, world, rng, past):
    """Return an engine of a session, and what it lives in."""
    workers = rng.randint(1, 4)
    limits = {"timeout": 20.0 if world.faults.lost else None, "retries": rng.choice([0, 2, 50])}
    limits["warm_bytes"] = rng.choice([0, 2000, 10**6])
    if kind == "ray":
        stack = rng.choice([1, 1, 3])
        asked = rng.choice([None, workers])
        return RayEngine(asked, stack=stack, patience=1e9, **limits), virtual_cluster(world)
    if kind == "pool":
        return PoolEngine(workers, **limits), virtual_processes(world)
    if kind == "vectorized":
        engine = VectorizedEngine(workers, stack=rng.randint(1, 3), **limits)
        return engine, virtual_processes(world)
    if kind == "simulated":
        inner = PoolEngine(workers, **limits)
        # A simulated run resumes with at least as many workers as it began with.
        engine = SimulatedEngine(5, Lognormal(), deaths=0.2, retries=50, engine=inner)
        return engine, virtual_processes(world)
    return HostileEngine(world, workers, past), nullcontext()


def make_faults(rng):
    """Return how often what goes wrong; some worlds lack some of it."""
    often = {"death": 0.15, "false_start": 0.1, "lost": 0.05, "late": 0.1, "stale": 0.1}
    often["jump"] = 0.02
    return Faults(**{name: rng.choice([0.0, chance]) for name, chance in often.items()})


def unbroken(bench):
    """Return the outcome of synchronous runs in a calm world, by storage."""
    outcomes = {}
    for storage in ("", "remote"):
        root = bench.fresh()
        Scenario("calm", storage=storage, steps=STEPS).execute(root)
        outcomes[storage] = outcome(root)
    return outcomes


def cases(name, bench):
    """Yield one world for each seed."""
    expected = bench.kept(unbroken, bench)
    for seed in range(SEEDS):
        yield f"seed {seed}", partial(live, name, f"{name} {seed}", bench, expected)


def live(kind, seed, bench, expected):
    """Execute a run in a hostile world until it is done, whatever happens to its process."""
    rng = random.Random(seed)
    world = World(seed, make_faults(rng))
    scenario = Scenario(
        kind,
        algorithm=rng.choice(["mo-pbt", "mo-pbt", "asynchronous"]),
        storage=rng.choice(["", "", "remote"]),
        steps=STEPS,
    )
    root = bench.fresh()
    watched = ShownReports()
    past = []
    for _ in range(SESSIONS):
        left = rng.choice([rng.randint(1, 300), 10**9])
        is_over = run_session(kind, scenario, world, rng, past, root, CutDisk(watched, left))
        # The operating system releases the lock of a killed process.
        gc.collect()
        kept = sound_reports(root)
        lost = [job for job in watched.jobs if job not in kept]
        assert not lost, f"the reports of jobs {lost} are lost"
        if is_over:
            break
    else:
        raise AssertionError(f"the run is not over after {SESSIONS} sessions")
    # Workers that were given up may still write.
    while world.next_moment() < float("inf"):
        world.proceed()
    scenario.execute(root)
    check(scenario, root, expected)


def run_session(kind, scenario, world, rng, past, root, cut):
    """Execute a run until it is done, or its process is killed; return whether it is done."""
    engine, place = make_engine(kind, world, rng, past)
    try:
        with disk(cut), place:
            mopbt.run(
                AttackedToy(steps=STEPS),
                out=root / "run",
                algorithm=ALGORITHMS[scenario.algorithm](),
                engine=engine,
                storage=scenario.storage_in(root),
                progress=False,
                callbacks=[Shown()],
            )
        return True
    except Killed:
        return False
    except (WorkerFailed, TaskFailed) as error:
        # Without retries, each death fails a job.
        if not any(text in str(error) for text in ACCEPTED):
            raise
        return False
    finally:
        cut.end()


def check(scenario, root, expected):
    """Check that nothing is missing; a synchronous run without failures is the unbroken one."""
    reached = outcome(root)
    failed = [job for job, (objectives, _, _) in reached.reports.items() if objectives is None]
    if scenario.algorithm == "mo-pbt" and not failed:
        assert reached == expected[scenario.storage], "the run differs from the unbroken one"
