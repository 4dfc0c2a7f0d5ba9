"""The `Engine` protocol, and how a job is carried out, which is the same wherever it runs."""

import math
import random
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Protocol, cast

import numpy as np

from mopbt.errors import CorruptCheckpoint, MopbtError, TaskError
from mopbt.objectives import signed, total_violation
from mopbt.problem import Hyperparameters, Problem, Task
from mopbt.rng import derived_seed
from mopbt.state import Job, Report
from mopbt.stores.base import Checkpoints


@dataclass(frozen=True)
class RunContext:
    """What an engine works on."""

    task: Task[Any]
    problem: Problem
    seed: int
    checkpoints: Checkpoints


class Engine(Protocol):
    """Carries out jobs. A report is given back only when its checkpoint is durable."""

    @property
    def capacity(self) -> int:
        """Return how many jobs the engine takes at a time."""

    def start(self, work: RunContext) -> None:
        """Get ready for a run."""

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Take jobs, with the checksums of the checkpoints from which they start."""

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for at least one report; after `timeout` seconds return none. `seconds` counts from `start`."""

    def elapsed(self) -> float:
        """Return the seconds since the start, by the engine's clock."""

    def close(self) -> None:
        """Give everything back; jobs that have not reported are abandoned."""


class ModelCache:
    """Models that are still in memory, by the checkpoint that holds the same state; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._models: OrderedDict[int, tuple[Any, int]] = OrderedDict()

    def put(self, id: int, model: Any, size: int) -> None:
        """Keep a model of which the checkpoint takes `size` bytes."""
        self.take(id)
        self._models[id] = (model, size)
        self._size += size
        while self._size > self._limit:
            self._size -= self._models.popitem(last=False)[1][1]

    def take(self, id: int | None) -> Any | None:
        """Return a model and forget it, as training changes it; None if it is not here."""
        model, size = self._models.pop(id, (None, 0)) if id is not None else (None, 0)
        self._size -= size
        return model

    def look(self, id: int | None) -> Any | None:
        """Return a model and keep it, for tasks whose training leaves it as it is; None if it is not here."""
        return self._models[id][0] if id is not None and id in self._models else None


Bundle = list[
    tuple[Job, str]
]  # jobs that are carried out together, each with the checksum of the checkpoint it starts from


def bundled(jobs: Iterable[Job], checksums: Mapping[int, str], stack: int) -> list[Bundle]:
    """Return jobs in bundles of at most `stack`: in every generation, and after a crash, the same members come together."""
    members = groupby(
        sorted(jobs, key=lambda job: (job.trial, job.id)), key=lambda job: job.trial // stack
    )
    return [
        [(job, checksums.get(job.start, "") if job.start is not None else "") for job in bundle]
        for _, bundle in members
    ]


@dataclass(frozen=True)
class Trained:
    """A job that is done but for its checkpoint: what was measured and what is to be saved, or why it failed."""

    job: Job
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)
    data: bytes = b""
    error: str = ""


def run_job(work: RunContext, job: Job, checksum: str, warm: ModelCache) -> Report:
    """Carry out a job: restore or build the model, train it for an interval, evaluate it, and save it."""
    return saved(work, _train_alone(work, job, checksum, warm))


def saved(work: RunContext, trained: Trained) -> Report:
    """Make a trained model durable and return its report."""
    if trained.error:
        return Report(trained.job.id, duration=trained.seconds, error=trained.error)
    began = time.perf_counter()
    checksum = work.checkpoints.save(trained.job.id, trained.data)
    return Report(
        trained.job.id,
        objectives=signed(work.problem.objectives, trained.scores),
        violation=total_violation(work.problem.constraints, trained.scores),
        scores=trained.scores,
        checksum=checksum,
        duration=trained.seconds + time.perf_counter() - began,
    )


def train(work: RunContext, bundle: Bundle, warm: ModelCache) -> list[Trained]:
    """Carry out jobs up to what is to be saved: together where the task can, else one by one.

    What goes wrong in the task's own code makes a failed job; a broken contract ends the run.
    """
    if len(bundle) > 1 and hasattr(work.task, "train_many"):
        try:
            return _train_stack(work, bundle, warm)
        except MopbtError as error:
            if not isinstance(error, CorruptCheckpoint):
                raise
        except Exception:
            pass  # one by one, so that only those fail whose fault it is
    return [_train_alone(work, job, checksum, warm) for job, checksum in bundle]


def _train_alone(work: RunContext, job: Job, checksum: str, warm: ModelCache) -> Trained:
    began = time.perf_counter()
    try:
        had_torch = "torch" in sys.modules
        model, scores, data = _trained_model(work, job, checksum, warm)
        if (
            not had_torch and "torch" in sys.modules
        ):  # imported midway, so it was not seeded: once more, from the same start
            model, scores, data = _trained_model(work, job, checksum, ModelCache(0))
    except CorruptCheckpoint as error:
        return Trained(job, time.perf_counter() - began, error=str(error))
    except MopbtError:
        raise
    except Exception:
        return Trained(job, time.perf_counter() - began, error=traceback.format_exc())
    warm.put(job.id, model, len(data))
    return Trained(job, time.perf_counter() - began, scores, data)


def _trained_model(
    work: RunContext, job: Job, checksum: str, warm: ModelCache
) -> tuple[Any, dict[str, float], bytes]:
    task, values = work.task, Hyperparameters(work.problem.space.decode(job.config))
    seed = _training_seed(work, job)
    with global_seeds(_first_seed(work, job)):
        model = _model(work, job, checksum, warm)
        seed_globals(
            seed
        )  # anew: loading a model may draw random numbers, taking a warm one does not
        trained = task.train(model, values, job.begin, job.end, seed)
        model = model if trained is None else trained
        scores = _measured(work, task.evaluate(model))
        _check_read(work, values, scores)
        return model, scores, _dumped(task, model)


def _train_stack(work: RunContext, bundle: Bundle, warm: ModelCache) -> list[Trained]:
    """Train all jobs of a bundle as one program; its randomness belongs to the bundle, whose jobs are always the same."""
    began, task = time.perf_counter(), cast(Any, work.task)
    jobs = [job for job, _ in bundle]
    values = [Hyperparameters(work.problem.space.decode(job.config)) for job in jobs]
    models = []
    for job, checksum in bundle:
        with global_seeds(_first_seed(work, job)):
            models.append(_model(work, job, checksum, warm))
    with global_seeds(derived_seed(work.seed, "stack", jobs[0].trial, jobs[0].begin, len(jobs))):
        models = task.train_many(
            models, values, [job.begin for job in jobs], [_training_seed(work, job) for job in jobs]
        )
        scores = [_measured(work, measured) for measured in task.evaluate_many(models)]
        for value, own in zip(values, scores, strict=True):
            _check_read(work, value, own)
        data = [_dumped(task, model) for model in models]
    for job, model, dump in zip(jobs, models, data, strict=True):
        warm.put(job.id, model, len(dump))
    seconds = (time.perf_counter() - began) / len(jobs)
    return [
        Trained(job, seconds, own, dump) for job, own, dump in zip(jobs, scores, data, strict=True)
    ]


def _model(work: RunContext, job: Job, checksum: str, warm: ModelCache) -> Any:
    if job.start is None:
        return work.task.init(_first_seed(work, job))
    model = (
        warm.look(job.start) if getattr(work.task, "functional", False) else warm.take(job.start)
    )
    return work.task.load(work.checkpoints.load(job.start, checksum)) if model is None else model


def _first_seed(work: RunContext, job: Job) -> int:
    return derived_seed(work.seed, "init", job.trial)


def _training_seed(work: RunContext, job: Job) -> int:
    return derived_seed(work.seed, "train", job.trial, job.begin)


def _check_read(work: RunContext, values: Hyperparameters, scores: Mapping[str, float]) -> None:
    """Raise UnreadHyperparameter where training has not read all values, unless it diverged and perhaps gave up before."""
    if all(map(math.isfinite, signed(work.problem.objectives, scores))):
        values.check_read()


def _measured(work: RunContext, scores: Any) -> dict[str, float]:
    """Return checked scores, and make sure before anything is saved that nothing is missing from them."""
    checked = checked_scores(scores)
    signed(work.problem.objectives, checked)
    total_violation(work.problem.constraints, checked)
    return checked


def _dumped(task: Task[Any], model: Any) -> bytes:
    data = task.dump(model)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TaskError(
            f"`dump` must return bytes, got {type(data).__name__}; mopbt.dumps(...) makes bytes of arrays and dicts"
        )
    return bytes(data)


def checked_scores(scores: Any) -> dict[str, float]:
    """Return scores as a dict of floats, or raise TaskError saying what is wrong with them."""
    if not isinstance(scores, Mapping):
        raise TaskError(f"`evaluate` must return a mapping of names to numbers, got {scores!r}")
    checked = {}
    for name, score in scores.items():
        try:
            checked[str(name)] = float(score)
        except Exception:  # PyTorch's is a RuntimeError
            raise TaskError(
                f"the score {name!r} must be a number, got {score!r}; take one of it, such as the mean of an array"
            ) from None
    return checked


@contextmanager
def global_seeds(seed: int) -> Iterator[None]:
    """Seed the global generators, and put them back afterwards, as they belong to whoever called us."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if torch:
            torch.set_rng_state(before[2])


def seed_globals(seed: int) -> None:
    """Seed the global generators of `random`, numpy and (where it is loaded) PyTorch, for tasks that draw from them."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the task's code may use it
    if torch := sys.modules.get("torch"):
        (torch.manual_seed if _has_accelerator() else torch.default_generator.manual_seed)(seed)


@cache
def _has_accelerator() -> bool:
    """Tell whether PyTorch has more than the CPU's generator to seed; it takes milliseconds to note down a seed for later."""
    torch = sys.modules["torch"]
    return bool(
        torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
    )


class CrashTracker:
    """How often workers died with which jobs at hand, and what becomes of these.

    Which job killed a worker is not known before one dies with that job alone: while a job is trained, the one before it is still
    being saved. So all that were at hand are suspects, which are tried again one by one, each in a worker that has nothing else.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._times: dict[int, int] = {}

    def is_suspect(self, bundle: Bundle) -> bool:
        """Tell whether a worker has died with one of the jobs at hand."""
        return any(job.id in self._times for job, _ in bundle)

    def count(
        self, bundles: Iterable[Bundle], who: str, why: str
    ) -> tuple[list[Bundle], list[Report]]:
        """Return what is tried again after a death, and reports of what is not; `who` died is told there, and `why`."""
        at_hand = [item for bundle in bundles for item in bundle]
        for job, _ in at_hand:
            self._times[job.id] = self._times.get(job.id, 0) + 1
        if len(at_hand) == 1 and self._times[id := at_hand[0][0].id] > self._retries:
            return [], [
                Report(
                    id,
                    error=f"the {who} died {self._times[id]} times while it carried out this job ({why})",
                )
            ]
        return [[item] for item in at_hand], []
