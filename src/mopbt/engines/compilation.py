"""Decide whether compiling the training of a run pays, from short measurements."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mopbt.engines.base import Engine, StackingEngine, WorkerEngine
from mopbt.engines.devices import available_cores
from mopbt.engines.trial import Trial
from mopbt.problem import CompilingTask

# Compiled updates must be so many times as fast.
WORTH = 1.2
# What they save over the run must be so many times what compilation takes.
REPAID = 2.0
# Gradients of compiled and usual training may differ by this much, relative to the largest.
AGREEMENT = 1e-3
# What is assumed before anything is compiled, to spare the compilation where it cannot pay: seconds
# of a fast compilation, and the largest gain that was seen.
FAST_COMPILATION = 15.0
LARGEST_GAIN = 2.0


@dataclass(frozen=True)
class Compilation:
    """Whether a run compiles its training, and why, as `run.toml` records it."""

    compiled: bool
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Convert the choice to plain values."""
        return {"compiled": self.compiled, "why": self.why}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Compilation | None":
        """Read a choice that `to_dict` converted; None if there is none."""
        if not data:
            return None
        return Compilation(bool(data["compiled"]), str(data.get("why", "")))


@dataclass(frozen=True)
class CompilationTrial:
    """What a short trial of compiled training measured.

    Attributes:
        seconds: What compilation took.
        usual: Seconds of an update without compilation.
        compiled: Seconds of a compiled update.
        failure: Why training cannot be compiled; empty if it can.
    """

    seconds: float
    usual: float
    compiled: float
    failure: str = ""


def may_repay(training: float) -> bool:
    """Return whether a fast compilation with a large gain would pay off.

    Args:
        training: Seconds that a worker trains without compilation.
    """
    return training * (1 - 1 / LARGEST_GAIN) >= REPAID * FAST_COMPILATION


def choose_compilation(trial: CompilationTrial, updates: float) -> Compilation:
    """Choose compilation if its updates are faster and repay it.

    Args:
        trial: What was measured.
        updates: The updates that a worker makes, each of a member or of a stack.
    """
    if trial.failure:
        return Compilation(False, f"training cannot be compiled ({trial.failure})")
    gain = trial.usual / trial.compiled
    why = f"compiled updates are {gain:.2f} times as fast"
    if gain < WORTH:
        return Compilation(False, f"{why}, which is not worth it")
    saved = updates * (trial.usual - trial.compiled)
    repaid = f"save {saved:.0f} s of {updates * trial.usual:.0f} s and take {trial.seconds:.0f} s"
    if saved < REPAID * trial.seconds:
        return Compilation(False, f"{why}, but {repaid} to compile")
    return Compilation(True, f"{why}, {repaid} to compile")


def too_short(training: float) -> Compilation:
    """Return the choice for a training that cannot repay any compilation."""
    return Compilation(False, f"a worker trains for about {training:.0f} s, too short to compile")


@dataclass(frozen=True)
class CompilationChooser:
    """Chooses whether a run compiles its training, or finds what was chosen before.

    Attributes:
        trial: Where the task is tried.
        jobs: The intervals of all members.
        parallel: How many members can train at the same time.
        seconds: How long the run may take.
        announce: Called with a text before something is compiled.
    """

    trial: Trial
    jobs: float
    parallel: int
    seconds: float = math.inf
    announce: Callable[[str], None] = lambda text: None

    def choose(self, engine: Engine, recorded: Mapping[str, Any]) -> Compilation | None:
        """Return the choice for an engine; None if the task is not to be compiled."""
        task = self.trial.task
        if not isinstance(task, CompilingTask) or task.compile is False:
            return None
        if recorded:
            return Compilation.from_dict(recorded)
        self.announce("measuring whether compiled training pays off; this can take a minute")
        stack = min(engine.stack if isinstance(engine, StackingEngine) else 1, self.parallel)
        intervals = intervals_of_a_worker(engine, self.jobs, self.parallel)
        chosen = self.trial.call("choose_compilation", stack, intervals, self.seconds)
        return Compilation(chosen.compiled, chosen.why)


def intervals_of_a_worker(engine: Engine, jobs: float, parallel: int) -> float:
    """Return how many intervals, of a stack or a member, a worker trains in a run.

    Args:
        engine: The engine.
        jobs: The intervals of all members.
        parallel: How many members can train at the same time.
    """
    stack = min(engine.stack if isinstance(engine, StackingEngine) else 1, parallel)
    workers = 1
    if isinstance(engine, WorkerEngine):
        workers = engine.workers or available_cores()
    return jobs / stack / min(workers, math.ceil(parallel / stack))


def as_chosen(task: Any, chosen: Compilation | None) -> Any:
    """Return a task that is compiled as chosen, or as it is without a choice."""
    if chosen is None or not isinstance(task, CompilingTask):
        return task
    return task.with_compile(chosen.compiled)
