"""Short runs that are attacked, each with everything that its comparison needs."""

import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import mopbt
from mopbt import filesystem
from mopbt.engines.local import LocalEngine
from mopbt.engines.simulated import SimulatedEngine
from mopbt.errors import TaskFailed
from mopbt.evaluations import read_evaluations
from mopbt.stores.journal import read_journal
from mopbt.tasks.toy import ToyTask


@dataclass(frozen=True)
class RowsToy(ToyTask):
    """A toy with test rows, which end in `evaluations.jsonl`; it may fail from a step on."""

    fails_from: float = math.inf

    def train(self, model, hp, begin, end, seed):
        if begin >= self.fails_from:
            raise ZeroDivisionError("the mount is gone")
        return super().train(model, hp, begin, end, seed)

    @property
    def rows(self):
        return ("test",)

    def evaluate_rows(self, model, hp, step, rows, seed):
        return {name: value / 2 for name, value in self.evaluate(model).items()}


@dataclass(frozen=True)
class Scenario:
    """A run: what executes it, and whether an interrupted one must equal an unbroken one."""

    name: str
    simulated: bool = False
    asynchronous: bool = False
    storage: bool = False
    breaks: bool = False
    identical: bool = True
    algorithm: str = "mo-pbt"
    steps: int = 10

    def execute(self, root, callbacks=(), *, healthy=True):
        """Start or resume the run in `root`."""
        engine = LocalEngine(warm_bytes=0)
        if self.simulated:
            engine = SimulatedEngine(3, engine=engine)
        algorithm = mopbt.RandomSearch(population=5)
        if self.algorithm == "mo-pbt":
            algorithm = mopbt.MOPBT(population=5, asynchronous=self.asynchronous)
        task = RowsToy(steps=self.steps, fails_from=math.inf if healthy else 4)
        return mopbt.run(
            task,
            out=root / "run",
            algorithm=algorithm,
            engine=engine,
            storage=root / "far" if self.storage else None,
            progress=False,
            callbacks=list(callbacks),
        )

    def attack(self, root, callbacks=()):
        """Execute the run from its beginning to its end, with its own trouble."""
        if self.breaks:
            with suppress(TaskFailed):
                self.execute(root, callbacks, healthy=False)
        self.execute(root, callbacks)


SCENARIOS = (
    Scenario("local"),
    Scenario("local, asynchronous", asynchronous=True),
    Scenario("local, storage elsewhere", storage=True),
    Scenario("local, failures rolled back", breaks=True, identical=False),
    Scenario("simulated", simulated=True),
    Scenario("simulated, asynchronous", simulated=True, asynchronous=True, identical=False),
    Scenario("local, random search", algorithm="random-search"),
)


@contextmanager
def disk(replacement):
    """Let all calls go through another disk."""
    original = filesystem.disk
    filesystem.disk = replacement
    try:
        yield replacement
    finally:
        filesystem.disk = original


@dataclass(frozen=True)
class Outcome:
    """What a run decided, measured and kept, without times."""

    jobs: tuple
    reports: dict
    front: dict
    evaluations: tuple


def outcome(root: Path) -> Outcome:
    """Read a finished run; each job must have reported once, and all models must load."""
    exchanges, _ = read_journal(root / "run" / "journal.jsonl")
    jobs = tuple(job for exchange in exchanges for job in exchange.jobs)
    reports = [report for exchange in exchanges for report in exchange.reports]
    assert len({job.id for job in jobs}) == len(jobs)
    assert len({report.job for report in reports}) == len(reports) == len(jobs)
    results = mopbt.Results.open(root / "run")
    front = {point.job: results.checkpoint(point) for point in results.front()}
    evaluations = sorted(read_evaluations(root / "run"), key=lambda e: e.key)
    assert {e.model for e in evaluations} == set(front)
    assert not list(root.rglob("*.tmp"))
    return Outcome(
        tuple(sorted(jobs, key=lambda job: job.id)),
        {r.job: (r.objectives, r.scores, r.checksum) for r in reports},
        front,
        tuple((e.key, tuple(e.scores.items())) for e in evaluations),
    )


def sound_reports(root: Path) -> dict:
    """Return what the journal of an interrupted run says about jobs that did not fail."""
    journal = root / "run" / "journal.jsonl"
    exchanges, _ = read_journal(journal)
    reports = [report for exchange in exchanges for report in exchange.reports]
    return {r.job: (r.objectives, r.scores, r.checksum) for r in reports if not r.error}
