"""Which engine suits a task on this machine: measured, not guessed."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mopbt.engines.base import Engine
from mopbt.engines.execution import require_stackable
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import Measured, PerStep, SimulatedEngine
from mopbt.engines.supervisor import available_cores
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import CannotStack
from mopbt.messages import did_you_mean
from mopbt.problem import ProbedTask, StackCheckedTask, problem_of

# A stack must be so many times as fast as a loop to be chosen.
WORTH = 1.2
# Gradients of a stack and of a loop may differ by this much, relative to the largest.
AGREEMENT = 1e-3
# Workers of a simulation, as in the paper's experiments.
WORKERS = 16


@dataclass(frozen=True)
class EngineSpec:
    """An engine by name and size, as `run.toml` records it, with the reason for the choice.

    Args:
        name: The name of the engine.
        workers: The number of workers. 0 means one per core of the machine that runs or resumes.
        stack: The number of jobs in a stack, which stays the same on every machine.
        cost: Of a simulation: virtual seconds per step, or "measured".
        address: The address of a Ray cluster.
        on: Of a simulation: the engine that trains.
        why: Why "auto" chose this engine.
    """

    name: str
    workers: int = 0
    stack: int = 0
    cost: str = ""
    address: str = ""
    on: "EngineSpec | None" = None
    why: str = ""

    def engine(self) -> Engine:
        """Build the engine."""
        return ENGINES[self.name](self)

    def to_dict(self) -> dict[str, Any]:
        """Convert the specification to plain values."""
        plain = {key: value for key, value in asdict(self).items() if value}
        if self.on:
            plain["on"] = self.on.to_dict()
        return plain

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "EngineSpec":
        """Read a specification that `to_dict` converted."""
        _check_name(data["name"])
        return EngineSpec(
            name=data["name"],
            workers=data.get("workers", 0),
            stack=data.get("stack", 0),
            cost=data.get("cost", ""),
            address=data.get("address", ""),
            on=EngineSpec.from_dict(data["on"]) if "on" in data else None,
            why=data.get("why", ""),
        )


ENGINES: dict[str, Callable[[EngineSpec], Engine]] = {
    "local": lambda spec: LocalEngine(),
    "pool": lambda spec: PoolEngine(spec.workers or None),
    "vectorized": lambda spec: VectorizedEngine(spec.workers or None, stack=spec.stack or 16),
    "ray": lambda spec: RayEngine(spec.workers or None, address=spec.address or None),
    "simulated": lambda spec: SimulatedEngine(
        spec.workers, _parse_cost(spec.cost), engine=spec.on.engine() if spec.on else None
    ),
}


def engine_spec(
    name: str,
    task: Any,
    population: int,
    workers: int | None = None,
    cost: str | None = None,
    address: str | None = None,
) -> EngineSpec:
    """Specify an engine by name; "auto" trains a few updates to find out which one suits."""
    _check_options(name, workers, cost, address)
    if name == "local":
        return EngineSpec("local")
    if name == "ray":
        return EngineSpec("ray", workers or 0, address=address or "")
    if name == "simulated":
        cost = cost or "1"
        _parse_cost(cost)
        trainer = engine_spec("auto", task, population)
        return EngineSpec("simulated", workers or WORKERS, cost=cost, on=trainer)
    cores = min(workers or available_cores(), population)
    if name == "vectorized":
        check_stackable(task)
        return EngineSpec("vectorized", cores, math.ceil(population / cores))
    spec = EngineSpec("pool")
    if name == "auto" and isinstance(task, ProbedTask):
        spec = _choose_by_probe(task, population, cores)
    if workers and spec.name == "pool":
        # Without `workers`, a resumed run has one worker per core of its new machine.
        spec = replace(spec, workers=cores)
    return spec


def _check_options(name: str, workers: int | None, cost: str | None, address: str | None) -> None:
    if cost is not None and name != "simulated":
        raise ValueError(
            f"`cost` is for the simulated engine, got it for {name!r}; "
            f"leave it out, or use engine='simulated'"
        )
    if address is not None and name != "ray":
        raise ValueError(
            f"`address` is the address of a Ray cluster, for engine='ray', got it for {name!r}"
        )
    _check_name(name)
    if workers is not None and (name == "local" or workers < 1):
        raise ValueError(
            f"`workers` must be at least 1, and is for engines with worker processes, "
            f"got {workers} for {name!r}; leave it out for one worker per core"
        )


def _check_name(name: Any) -> None:
    known = ("auto", *ENGINES)
    if name not in known:
        names = ", ".join(map(repr, known))
        hint = did_you_mean(name, known)
        raise ValueError(f"`engine` must be one of {names} or an engine object, got {name!r}{hint}")


def check_stackable(task: Any) -> None:
    """Raise CannotStack, before a run starts, if a task cannot be trained as a stack."""
    remedy = "use engine='pool', or leave `stack` at 1"
    require_stackable(task, problem_of(task).name, remedy)
    if isinstance(task, StackCheckedTask):
        task.check_stack()


def _parse_cost(text: str) -> PerStep | Measured:
    """Build the cost model of a simulation from its text on the command line."""
    if text == "measured":
        return Measured()
    try:
        return PerStep(float(text))
    except ValueError:
        raise ValueError(
            f"`cost` must be virtual seconds per step above 0, such as 1.5, or 'measured', "
            f"got {text!r}"
        ) from None


def _choose_by_probe(task: ProbedTask, population: int, cores: int) -> EngineSpec:
    """Choose stacks if they are correct, faster and fit into memory, otherwise the pool."""
    stack_size = math.ceil(population / cores)
    if stack_size < 2:
        return EngineSpec("pool", why=f"{population} members on {cores} cores make no stacks")
    try:
        probe = task.probe(min(stack_size, 16))
    except CannotStack as error:
        return EngineSpec("pool", why=str(error))
    # A disagreement of NaN is too large as well.
    if not probe.disagreement <= AGREEMENT:
        why = f"stacked and single gradients differ by {probe.disagreement:.1g}"
        return EngineSpec("pool", why=why)
    gain = probe.loop / probe.stack
    why = f"a stack trains a member {gain:.2f} times as fast as a loop"
    if gain < WORTH:
        return EngineSpec("pool", why=f"{why}, which is not worth it")
    required = probe.bytes_per_member * stack_size * cores
    if required > 0.8 * available_memory():
        need = f"{population} members need about {required / 2**30:.1f} GiB"
        return EngineSpec("pool", why=f"{why}, but {need}")
    return EngineSpec("vectorized", cores, stack_size, why=why)


def available_memory() -> float:
    """Return the free memory in bytes, or infinity if the system does not report it."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return math.inf
