"""Short runs that are attacked, each with everything that its comparison needs."""

import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import attack.remote  # noqa: F401  (registers its file system)
import mopbt
from attack.record import WatchedDisk
from attack.virtual import World, replaced, virtual_cluster, virtual_processes
from mopbt import filesystem, reduction, runner
from mopbt.algorithms import algorithm_of
from mopbt.archive import Archive, entry_of
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import Lognormal, SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import TaskFailed
from mopbt.evaluations import read_evaluations
from mopbt.run_directory import read_run_config
from mopbt.runner import execute_run
from mopbt.serialization import dump_to, load_from
from mopbt.session import Budget
from mopbt.state import State, with_jobs
from mopbt.stores.base import load_model
from mopbt.stores.journal import read_damaged, read_journal
from mopbt.tasks.toy import ToyTask
from mopbt.verify import verify

POPULATION = 4


@dataclass(frozen=True)
class AttackedToy(ToyTask):
    """A toy with test rows, which end in `evaluations.jsonl`, that can be stacked.

    Attributes:
        fails_from: The step from which on training fails.
        installs: A disk that worker processes use.
    """

    fails_from: float = math.inf
    installs: Any = field(default=None, compare=False)

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.installs is not None:
            filesystem.disk = self.installs

    def train(self, model, hp, begin, end, seed):
        if begin >= self.fails_from:
            raise ZeroDivisionError("the mount is gone")
        return super().train(model, hp, begin, end, seed)

    def train_many(self, models, hp, begins, seeds):
        members = zip(models, hp, begins, seeds, strict=True)
        return [self.train(m, h, b, b + self.interval, seed) for m, h, b, seed in members]

    def evaluate_many(self, models):
        return [self.evaluate(model) for model in models]

    @property
    def rows(self):
        return ("test",)

    def evaluate_rows(self, model, hp, step, rows, seed):
        return {name: value / 2 for name, value in self.evaluate(model).items()}


@dataclass(frozen=True)
class StreamedToy(AttackedToy):
    """A toy whose checkpoints are written and read in parts, and lose their momentum at the end."""

    name: str = "streamed"

    def dump_to(self, model, file):
        dump_to(model, file)

    def load_from(self, file):
        return load_from(file)

    def without_training_state(self, tree):
        return {"place": tree["place"]}


class Shown(mopbt.Callback):
    """Tells the disk which reports the user was shown."""

    def on_report(self, run, reports):
        if isinstance(filesystem.disk, WatchedDisk):
            for report in reports:
                if not report.error:
                    filesystem.disk.shown(report.job)


ENGINES = {
    "local": lambda: LocalEngine(warm_bytes=0),
    "simulated": lambda: SimulatedEngine(3, Lognormal(), engine=LocalEngine(warm_bytes=0)),
    "pool": lambda: PoolEngine(2, warm_bytes=10_000),
    "vectorized": lambda: VectorizedEngine(2, stack=2, warm_bytes=10_000),
    "ray": lambda: RayEngine(2, warm_bytes=10_000),
    "processes": lambda: PoolEngine(2, warm_bytes=10_000),
}
ALGORITHMS = {
    "mo-pbt": partial(mopbt.MOPBT, population=POPULATION),
    "asynchronous": partial(mopbt.MOPBT, population=POPULATION, asynchronous=True),
    "random-search": partial(mopbt.RandomSearch, population=POPULATION),
    "mo-asha": mopbt.MOASHA,
}
JOBS = 20  # of an algorithm that never ends by itself


@dataclass(frozen=True)
class Scenario:
    """A run that is attacked.

    Attributes:
        name: What the output calls it.
        engine: One of `ENGINES`. Worker processes and actors are virtual, except for "processes".
        algorithm: One of `ALGORITHMS`.
        storage: Where checkpoints are: "" (in the run), "folder" or "remote".
        story: What happens: "", "failures" (rolled back), "repair", "extend" or "warm start".
        keep: How many models of the front keep their weights.
        streamed: Whether checkpoints are streamed, and reduced for the front.
        identical: Whether an interrupted run must equal an unbroken one.
        steps: How long members train.
    """

    name: str
    engine: str = "local"
    algorithm: str = "mo-pbt"
    storage: str = ""
    story: str = ""
    keep: int | None = None
    streamed: bool = False
    identical: bool = True
    steps: int = 8

    def prepare(self, root):
        """Make what exists before the attack."""
        calm = replace(self, engine="local", story="")
        if self.story == "repair":
            calm.execute(root, budget=Budget(jobs=2 * POPULATION + 2))
            damage(root / "run" / "journal.jsonl")
        elif self.story == "extend":
            calm.execute(root)
        elif self.story == "warm start":
            replace(calm, storage="", steps=4).execute(root, out="old")

    def attack(self, root, **options):
        """Execute the run from its beginning to its end, with its own trouble."""
        if self.story == "failures":
            with suppress(TaskFailed):
                self.execute(root, fails_from=2, **options)
        return self.execute(root, **options)

    def execute(self, root, *, out="run", fails_from=math.inf, budget=None, installs=None):
        """Start or resume the run in `root`."""
        kind = StreamedToy if self.streamed else AttackedToy
        task = kind(steps=self.steps, fails_from=fails_from, installs=installs)
        options = {
            "out": root / out,
            "progress": False,
            "callbacks": [Shown()],
            "budget": budget or Budget(jobs=JOBS if self.algorithm == "mo-asha" else None),
        }
        # Comparing the code of the task takes as long as a tenth of the run.
        unchanged = replaced(runner, code_of=lambda task: "unchanged")
        with self.world(), unchanged, replaced(reduction, LARGE_CHECKPOINT=1):
            engine = ENGINES[self.engine]()
            if self.story == "repair":
                return _repair(task, engine, options)
            return mopbt.run(
                task,
                algorithm=ALGORITHMS[self.algorithm](),
                engine=engine,
                storage=self.storage_in(root),
                keep=self.keep,
                extend={"steps": self.steps + 6} if self.story == "extend" else None,
                warm_start=root / "old" if self.story == "warm start" else None,
                **options,
            )

    def storage_in(self, root):
        """Return where the checkpoints are; None for the run's directory."""
        return {"folder": root / "far", "remote": f"attack://{root}/remote"}.get(self.storage)

    def world(self):
        """Return what virtual workers live in."""
        if self.engine in ("pool", "vectorized"):
            return virtual_processes(World(self.name))
        if self.engine == "ray":
            return virtual_cluster(World(self.name))
        return nullcontext()


def _repair(task, engine, options):
    """Resume a run as `mopbt resume --repair` does."""
    settings = read_run_config(options["out"])
    algorithm = algorithm_of(dict(settings.algorithm))
    settings = replace(settings, engine={}, storage="")
    return execute_run(task, algorithm, settings, engine=engine, repair=True, **options)


def damage(journal):
    """Change a byte in two lines of a journal, one with jobs and one with reports."""
    lines = journal.read_bytes().splitlines(keepends=True)
    for kind in (b'{"jobs"', b'{"reports"'):
        place = [n for n, line in enumerate(lines) if line.startswith(kind)][3]
        line = lines[place]
        lines[place] = line[:20] + bytes([line[20] ^ 1]) + line[21:]
    journal.write_bytes(b"".join(lines))


PBT = "mo-pbt"
ASYNC = "asynchronous"
SCENARIOS = (
    Scenario("local"),
    Scenario("local, asynchronous", algorithm=ASYNC),
    Scenario("simulated", "simulated"),
    Scenario("simulated, asynchronous", "simulated", ASYNC, identical=False),
    Scenario("pool", "pool"),
    Scenario("pool, asynchronous", "pool", ASYNC, identical=False),
    Scenario("pool, real processes", "processes"),
    Scenario("vectorized", "vectorized"),
    Scenario("vectorized, asynchronous", "vectorized", ASYNC, identical=False),
    Scenario("ray", "ray"),
    Scenario("local, storage elsewhere", storage="folder"),
    Scenario("local, remote storage", storage="remote"),
    Scenario("pool, remote storage", "pool", storage="remote"),
    Scenario("simulated, remote storage", "simulated", ASYNC, storage="remote", identical=False),
    Scenario("local, failures rolled back", story="failures", identical=False),
    Scenario("pool, failures rolled back", "pool", story="failures", identical=False),
    Scenario("local, repair", story="repair"),
    Scenario("pool, extend", "pool", story="extend"),
    Scenario("local, warm start", story="warm start"),
    Scenario("vectorized, two models kept", "vectorized", keep=2),
    Scenario("local, random search", algorithm="random-search"),
    Scenario("local, streamed and reduced", streamed=True),
    Scenario("pool, streamed and reduced", "pool", streamed=True),
    Scenario("simulated, mo-asha", "simulated", "mo-asha", identical=False),
)


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
    check_decisions(results, exchanges)
    kept = results.models_with_weights()
    front = {job: weights_of(results, job) for job in kept}
    evaluations = sorted(read_evaluations(root / "run"), key=lambda e: e.key)
    assert {e.model for e in evaluations} >= set(front)
    assert not list(root.rglob("*.tmp"))
    verified = verify(root / "run")
    assert verified.ok, verified.findings
    return Outcome(
        tuple(sorted(jobs, key=lambda job: job.id)),
        {r.job: (r.objectives, r.scores, r.checksum) for r in reports},
        front,
        tuple((e.key, tuple(e.scores.items())) for e in evaluations),
    )


def weights_of(results, job):
    """Return the bytes of a model, without the momentum that a reduced one lacks."""
    data = load_model(results.checkpoints, job, results.history.report(job).checksum)
    if results.problem.name == "streamed":
        return mopbt.loads(data)["place"].tobytes()
    return data


def check_decisions(results, exchanges):
    """Check that each job is what the scheduler asks for, and that the run is done.

    Reports that were lost in a damaged line, and extensions, change what the scheduler sees.
    """
    lost = any("damaged line" in report.error for line in exchanges for report in line.reports)
    if lost or any(exchange.extend for exchange in exchanges):
        return
    settings = read_run_config(results.path)
    scheduler = algorithm_of(dict(settings.algorithm)).scheduler(settings.problem)
    state = State(settings.seed)
    archive = Archive()
    for exchange in exchanges:
        if exchange.jobs:
            asked = scheduler.ask(state, len(exchange.jobs))
            assert asked == exchange.jobs, "a recorded job is not what the scheduler asks for"
            state = with_jobs(state, exchange.jobs)
        for report in exchange.reports:
            state = scheduler.tell(state, report)
            entry = entry_of(report)
            if entry is not None:
                archive.enter(entry)
    assert scheduler.done(state) or scheduler.needs_budget
    assert {entry.job for entry in archive.front} == {point.model for point in results.front()}


def sound_reports(root: Path) -> dict:
    """Return what the journal of an interrupted run says about jobs that did not fail."""
    journal = root / "run" / "journal.jsonl"
    exchanges = [exchange for exchange in read_damaged(journal) if exchange is not None]
    reports = [report for exchange in exchanges for report in exchange.reports]
    return {r.job: (r.objectives, r.scores, r.checksum) for r in reports if not r.error}
