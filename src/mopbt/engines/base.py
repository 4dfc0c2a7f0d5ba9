"""The `Engine` protocol, and what every engine works with."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from mopbt.estimate import CONFIDENCE
from mopbt.problem import Problem, Task
from mopbt.state import Job, Report
from mopbt.stores.base import Checkpoints


@dataclass(frozen=True)
class InitialModels:
    """The models that the first trials of a run start from, by the id of the trial."""

    checkpoints: Checkpoints
    checksums: tuple[str, ...]


@dataclass(frozen=True)
class RunContext:
    """What an engine needs to know about a run."""

    task: Task[Any]
    problem: Problem
    seed: int
    checkpoints: Checkpoints
    # The confidence of the intervals of metrics with an error.
    confidence: float = CONFIDENCE
    # None if all trials start from fresh weights.
    initial: InitialModels | None = None


@dataclass(frozen=True, slots=True)
class EvaluationJob(Job):
    """Evaluate a checkpoint on named rows, without training.

    Every engine executes it like a job, from the checkpoint `start` and for an empty interval. It
    writes no checkpoint. Its report has metrics, but no objectives, and is not journaled.
    """

    rows: str = ""
    seed: int = 0


@runtime_checkable
class Engine(Protocol):
    """Executes jobs.

    An engine returns a report only after the job's checkpoint is durable.
    """

    @property
    def capacity(self) -> int:
        """Return how many jobs the engine accepts at a time."""

    def start(self, context: RunContext) -> None:
        """Prepare for a run."""

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Accept jobs, with the checksums of the checkpoints that they start from."""

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for at least one report, or return an empty list after `timeout` seconds.

        The `seconds` of a report count from `start`.
        """

    def elapsed(self) -> float:
        """Return the seconds since `start`, by the engine's clock."""

    def close(self) -> None:
        """Release all resources and abandon the jobs that have not reported."""


@runtime_checkable
class InProcessEngine(Protocol):
    """An engine that says whether it trains in this process.

    If `in_process` is true, a run without a directory keeps its checkpoints in memory.
    """

    @property
    def in_process(self) -> bool:
        """Return whether all training happens in this process."""


@runtime_checkable
class StackingEngine(Protocol):
    """An engine that can train several jobs as one program.

    If `stack` is above 1, the task must be a `StackableTask`.
    """

    @property
    def stack(self) -> int:
        """Return the largest number of jobs in a stack."""


@runtime_checkable
class WorkerEngine(Protocol):
    """An engine with worker processes or actors."""

    @property
    def workers(self) -> int | None:
        """Return their number; None if it is not known before the run starts."""


@runtime_checkable
class PlacingEngine(Protocol):
    """An engine whose workers compute on devices of this machine."""

    @property
    def devices(self) -> Literal["auto"] | Sequence[int | str]:
        """Return the devices of the workers, or "auto" for those that the task may use."""


@runtime_checkable
class ClockedEngine(Protocol):
    """An engine with its own clock.

    A resumed run sets the clock before it submits jobs.
    """

    def restore_clock(self, recorded: Iterable[Job | Report], seconds: float) -> None:
        """Repeat what earlier sessions recorded, in its order; they worked for `seconds`."""


class ModelCache:
    """Keeps models in memory, under the checkpoints with the same state.

    The cache holds models whose checkpoints take at most `limit` bytes in total, and drops the
    oldest ones first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._models: OrderedDict[int | None, tuple[Any, int]] = OrderedDict()

    def put(self, id: int, model: Any, size: int) -> None:
        """Keep a model whose checkpoint takes `size` bytes."""
        self.take(id)
        self._models[id] = (model, size)
        self._size += size
        while self._size > self._limit:
            _, (_, dropped) = self._models.popitem(last=False)
            self._size -= dropped

    def take(self, id: int | None) -> Any | None:
        """Remove a model and return it, because training changes it; None if it is absent."""
        if id not in self._models:
            return None
        model, size = self._models.pop(id)
        self._size -= size
        return model

    def peek(self, id: int | None) -> Any | None:
        """Return a model and keep it, for tasks that train a copy; None if it is absent."""
        return self._models[id][0] if id in self._models else None
