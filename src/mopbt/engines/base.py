"""The `Engine` protocol, and how a job is carried out, which is the same wherever it runs."""

import random
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mopbt.errors import CorruptCheckpoint, MopbtError, TaskError
from mopbt.objectives import signed, total_violation
from mopbt.rng import derived_seed
from mopbt.state import Job, Report
from mopbt.stores.base import Checkpoints
from mopbt.task import Problem, Task, Values


@dataclass(frozen=True)
class Work:
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

    def start(self, work: Work) -> None:
        """Get ready for a run."""

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Take jobs, with the checksums of the checkpoints from which they start."""

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for at least one report; after `timeout` seconds return none. `seconds` counts from `start`."""

    def close(self) -> None:
        """Give everything back; jobs that have not reported are abandoned."""


class Warm:
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


def perform(work: Work, job: Job, checksum: str, warm: Warm) -> Report:
    """Carry out a job: restore or build the model, train it for an interval, evaluate it, and save it.

    What goes wrong in the task's own code makes a failed report; a broken contract or a full disk ends the run.
    """
    began = time.perf_counter()
    try:
        had_torch = "torch" in sys.modules
        model, scores, data = _train(work, job, checksum, warm)
        if not had_torch and "torch" in sys.modules:  # imported midway, so it was not seeded: once more, from the same start
            model, scores, data = _train(work, job, checksum, Warm(0))
        saved = work.checkpoints.save(job.id, data)
    except CorruptCheckpoint as error:
        return Report(job.id, took=time.perf_counter() - began, error=str(error))
    except MopbtError:
        raise
    except Exception:
        return Report(job.id, took=time.perf_counter() - began, error=traceback.format_exc())
    warm.put(job.id, model, len(data))
    return Report(
        job.id,
        objectives=signed(work.problem.objectives, scores),
        violation=total_violation(work.problem.constraints, scores),
        scores=scores,
        checksum=saved,
        took=time.perf_counter() - began,
    )


def _train(work: Work, job: Job, checksum: str, warm: Warm) -> tuple[Any, dict[str, float], bytes]:
    task, values = work.task, Values(work.problem.space.decode(job.config))
    seed = derived_seed(work.seed, "train", job.trial, job.begin)
    with global_seeds(derived_seed(work.seed, "init", job.trial)):
        model = _model(work, job, checksum, warm)
        seed_globals(seed)  # anew: loading a model may draw random numbers, taking a warm one does not
        trained = task.train(model, values, job.begin, job.end, seed)
        model = model if trained is None else trained
        values.check_read()
        scores = checked_scores(task.evaluate(model))
        signed(work.problem.objectives, scores), total_violation(work.problem.constraints, scores)  # before anything is saved
        data = task.dump(model)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TaskError(f"`dump` must return bytes, got {type(data).__name__}; mopbt.dumps(...) makes bytes of arrays and dicts")
    return model, scores, bytes(data)


def _model(work: Work, job: Job, checksum: str, warm: Warm) -> Any:
    if job.start is None:
        return work.task.init(derived_seed(work.seed, "init", job.trial))
    model = warm.take(job.start)
    return work.task.load(work.checkpoints.load(job.start, checksum)) if model is None else model


def checked_scores(scores: Any) -> dict[str, float]:
    """Return scores as a dict of floats, or raise TaskError saying what is wrong with them."""
    if not isinstance(scores, Mapping):
        raise TaskError(f"`evaluate` must return a mapping of names to numbers, got {scores!r}")
    checked = {}
    for name, score in scores.items():
        try:
            checked[str(name)] = float(score)
        except Exception:  # PyTorch's is a RuntimeError
            raise TaskError(f"the score {name!r} must be a number, got {score!r}") from None
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
        torch.manual_seed(seed)
