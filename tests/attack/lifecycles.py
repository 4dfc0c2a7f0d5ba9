"""Drive runs through everything that can happen to them, against a model of what must remain.

A hypothesis state machine runs, kills, stops, resumes with other engines and other numbers of
workers, damages, repairs, extends and copies a run, in an order that a seed chooses.
"""

import gc
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mopbt
from attack.disks import CutDisk, Killed, disk
from attack.record import WatchedDisk
from attack.scenarios import ALGORITHMS, AttackedToy, Scenario, Shown, _repair, outcome
from attack.scenarios import sound_reports as reports_in
from attack.virtual import World, virtual_cluster, virtual_processes
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.session import Budget
from mopbt.verify import verify

SEEDS = 100
LIVES = 4  # of each seed
STEPS_OF_LIFE = 12
UNITS = ("any engine",)
STEPS = 6
LONGEST = 12


class StopAfter(mopbt.Callback):
    """Stops a run after some exchanges."""

    def __init__(self, exchanges):
        self.left = exchanges

    def on_report(self, run, reports):
        self.left -= 1
        if self.left <= 0:
            raise mopbt.StopRun


class Model(WatchedDisk):
    """What must be true of a run: which reports it has, and how long it trains."""

    def __init__(self):
        self.shown_jobs = set()
        self.steps = STEPS
        # Whether lost reports count as failed, so that the run differs from an unbroken one.
        self.has_losses = False

    def shown(self, job):
        self.shown_jobs.add(job)

    def copy(self):
        other = Model()
        other.__dict__.update(self.__dict__ | {"shown_jobs": set(self.shown_jobs)})
        return other


@cache
def unbroken(steps):
    """Return the outcome of a run that nothing happens to."""
    with tempfile.TemporaryDirectory() as folder:
        Scenario("calm", steps=steps).execute(Path(folder))
        return outcome(Path(folder))


engines = st.one_of(
    st.just(("local", 1)),
    st.tuples(st.sampled_from(["pool", "vectorized", "ray"]), st.integers(1, 4)),
    # A simulated run needs a worker for each job that is under way.
    st.tuples(st.just("simulated"), st.integers(8, 10)),
)


class Lifecycle(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.root = self.folder / "0"
        self.root.mkdir()
        self.model = Model()
        self.places = [(self.root, self.model)]
        self.is_damaged = False

    def execute(self, engine, *, left=10**9, budget=None, callbacks=(), extend=None, repair=False):
        """Execute the run, on one of the engines, until it ends or its process is killed."""
        cut = CutDisk(self.model, left)
        options = {
            "out": self.root / "run",
            "progress": False,
            "callbacks": [Shown(), *callbacks],
            "budget": Budget(jobs=budget),
        }
        task = AttackedToy(steps=STEPS)
        world = World(0)
        try:
            with disk(cut), virtual_processes(world), virtual_cluster(world):
                if repair:
                    return _repair(task, make_engine(*engine), options)
                return mopbt.run(
                    task,
                    algorithm=ALGORITHMS["mo-pbt"](),
                    engine=make_engine(*engine),
                    extend=extend,
                    **options,
                )
        except Killed:
            return None
        finally:
            cut.end()

    @property
    def is_sound(self):
        return not self.is_damaged

    @precondition(lambda self: self.is_sound)
    @rule(engine=engines, jobs=st.integers(1, 40))
    def run_with_a_budget(self, engine, jobs):
        self.execute(engine, budget=jobs)

    @precondition(lambda self: self.is_sound)
    @rule(engine=engines, left=st.integers(0, 250))
    def kill(self, engine, left):
        self.execute(engine, left=left)

    @precondition(lambda self: self.is_sound)
    @rule(engine=engines, exchanges=st.integers(1, 8))
    def stop(self, engine, exchanges):
        self.execute(engine, callbacks=[StopAfter(exchanges)])

    @precondition(lambda self: self.is_sound and self.has_reports and self.model.steps < LONGEST)
    @rule(engine=engines, more=st.integers(1, 3), left=st.integers(0, 120))
    def extend(self, engine, more, left):
        steps = min(self.model.steps + 2 * more, LONGEST)
        self.execute(engine, left=left, extend={"steps": steps})
        recorded = mopbt.Results.open(self.root / "run").problem.steps
        # If the process was killed before the extension was recorded, there is none.
        assert recorded in (self.model.steps, steps)
        self.model.steps = recorded

    @precondition(lambda self: self.is_sound and len(self.lines) > 3)
    @rule(data=st.data())
    def damage(self, data):
        lines = self.lines
        # A damaged last line is what a crash leaves, also if an older incomplete one follows it.
        complete = sum(line.endswith(b"\n") for line in lines)
        place = data.draw(st.integers(0, complete - 2))
        line = lines[place]
        if not line.startswith(b'{"jobs"'):
            gone = set(reports_in(self.root))
            self.write([*lines[:place], b'{"x' + line[3:], *lines[place + 1 :]])
            gone -= set(reports_in(self.root))
            self.model.shown_jobs -= gone
            self.model.has_losses |= bool(gone) or line.startswith(b'{"extend"')
        else:
            self.write([*lines[:place], b'{"x' + line[3:], *lines[place + 1 :]])
        self.is_damaged = True

    @precondition(lambda self: self.is_damaged)
    @rule(engine=engines, left=st.integers(0, 250))
    def repair(self, engine, left):
        with pytest.raises(mopbt.errors.CorruptJournal):
            self.execute(engine)
        self.execute(engine, left=left, repair=True)
        self.is_damaged = not is_intact(self.lines)

    @precondition(lambda self: self.is_sound and self.has_reports)
    @rule(rest=st.binary(min_size=1, max_size=30))
    def tear(self, rest):
        """Leave an incomplete line at the end."""
        self.write([*self.lines, b'{"jobs":' + rest.replace(b"\n", b"")])

    @precondition(lambda self: self.is_sound and self.has_reports and len(self.places) < 3)
    @rule()
    def copy(self):
        place = self.folder / str(len(self.places))
        shutil.copytree(self.root, place)
        self.places.append((place, self.model.copy()))

    @precondition(lambda self: self.is_sound and len(self.places) > 1)
    @rule()
    def switch(self):
        """Continue with another copy."""
        self.places = [*self.places[1:], self.places[0]]
        self.root, self.model = self.places[0]

    @invariant()
    def nothing_shown_is_lost(self):
        # The operating system releases the lock of a killed process.
        gc.collect()
        assert self.model.shown_jobs <= set(reports_in(self.root))

    @invariant()
    def verify_finds_nothing(self):
        if self.has_reports and self.is_sound and not self.model.has_losses:
            verified = verify(self.root / "run")
            assert verified.ok, verified.findings

    @property
    def lines(self):
        journal = self.root / "run" / "journal.jsonl"
        return journal.read_bytes().splitlines(keepends=True) if journal.exists() else []

    def write(self, lines):
        (self.root / "run" / "journal.jsonl").write_bytes(b"".join(lines))

    @property
    def has_reports(self):
        return bool(reports_in(self.root))

    def teardown(self):
        try:
            for place in self.places:
                self.root, self.model = place
                self.finish()
        finally:
            shutil.rmtree(self.folder)

    def finish(self):
        """Execute the run to its end, and compare it with an unbroken one."""
        self.execute(("local", 1), repair=self.is_damaged)
        self.is_damaged = False
        reached = outcome(self.root)
        if not self.model.has_losses:
            assert reached.jobs == unbroken(self.model.steps).jobs
            assert reached.reports == unbroken(self.model.steps).reports
            assert reached.front == unbroken(self.model.steps).front


def make_engine(name, workers):
    if name == "simulated":
        return SimulatedEngine(workers, engine=LocalEngine(warm_bytes=0))
    if name == "pool":
        return PoolEngine(workers)
    if name == "vectorized":
        return VectorizedEngine(workers, stack=2)
    if name == "ray":
        return RayEngine(workers)
    return LocalEngine()


def is_intact(lines):
    return all(mopbt.stores.journal.parse_line(line.rstrip(b"\n")) for line in lines[:-1])


def cases(name, bench):
    """Yield the lives of several runs for each seed."""
    for number in range(SEEDS):
        yield f"seed {number}", partial(live, number)


def live(number):
    """Drive a few runs through lives that a seed chooses."""

    class Seeded(Lifecycle):
        pass

    # A failure prints its steps as they were. Without a database, a seed always gives the same.
    options = settings(
        max_examples=LIVES,
        stateful_step_count=STEPS_OF_LIFE,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(Seeded), settings=options)
