"""Which engine suits a task on this machine: measured, not guessed."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mopbt.engines.base import Engine
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine, available_cores
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import Measured, PerStep, SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import CannotStack
from mopbt.messages import did_you_mean

WORTH = 1.2  # how much faster a stack must be
WORKERS = 16  # of a simulation, as in the paper's experiments
AGREEMENT = 1e-3  # how far gradients may differ, relative to the largest


@dataclass(frozen=True)
class EngineSpec:
    """An engine by name and size, as `run.toml` records it, and why it was chosen."""

    name: str
    workers: int = 0  # 0: as many as there are cores, also where a run goes on elsewhere; a stack's size stays as it was
    stack: int = 0
    cost: str = ""  # of a simulation: virtual seconds per step, or "measured"
    address: str = ""  # of a Ray cluster
    on: "EngineSpec | None" = None  # of a simulation: what trains
    why: str = ""

    def engine(self) -> Engine:
        """Return the engine."""
        return ENGINES[self.name](self)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        plain = {key: value for key, value in asdict(self).items() if value}
        return plain | ({"on": self.on.to_dict()} if self.on else {})

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "EngineSpec":
        """Read a plan back."""
        _check_name(data["name"])
        on = EngineSpec.from_dict(data["on"]) if "on" in data else None
        where = {key: data.get(key, "") for key in ("cost", "address", "why")}
        return EngineSpec(
            data["name"], data.get("workers", 0), data.get("stack", 0), on=on, **where
        )


ENGINES: dict[str, Callable[[EngineSpec], Engine]] = {
    "local": lambda plan: LocalEngine(),
    "pool": lambda plan: PoolEngine(plan.workers or None),
    "vectorized": lambda plan: VectorizedEngine(plan.workers or None, stack=plan.stack or 16),
    "ray": lambda plan: RayEngine(plan.workers or None, address=plan.address or None),
    "simulated": lambda plan: SimulatedEngine(
        plan.workers, _cost(plan.cost), engine=plan.on.engine() if plan.on else None
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
    """Return the plan of an engine by name; "auto" measures on two members and a few updates which one suits the task."""
    _check(name, workers, cost, address)
    if name == "simulated":
        _cost(cost or "1")
        return EngineSpec(
            "simulated",
            workers or WORKERS,
            cost=cost or "1",
            on=engine_spec("auto", task, population),
        )
    if name == "ray":
        return EngineSpec("ray", workers or 0, address=address or "")
    cores = min(workers or available_cores(), population)
    if name == "local":
        return EngineSpec("local")
    if name == "vectorized":
        check_stackable(task)
        return EngineSpec("vectorized", cores, math.ceil(population / cores))
    plan = (
        EngineSpec("pool")
        if name == "pool" or not hasattr(task, "probe")
        else _measured(task, population, cores)
    )
    return replace(plan, workers=cores) if workers and plan.name == "pool" else plan


def _check(name: str, workers: int | None, cost: str | None, address: str | None) -> None:
    if cost is not None and name != "simulated":
        raise ValueError(
            f"`cost` is for the simulated engine, got it for {name!r}; leave it out, or use engine='simulated'"
        )
    if address is not None and name != "ray":
        raise ValueError(
            f"`address` is that of a Ray cluster, for engine='ray', got it for {name!r}"
        )
    _check_name(name)
    if workers is not None and (name == "local" or workers < 1):
        raise ValueError(
            f"`workers` must be at least 1, and is for the engines with worker processes, got {workers} for {name!r}; leave it out "
            f"for as many as there are cores"
        )


def _check_name(name: Any) -> None:
    known = ("auto", *ENGINES)
    if name not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(
            f"`engine` must be one of {names} or an engine object, got {name!r}{did_you_mean(name, known)}"
        )


def check_stackable(task: Any) -> None:
    """Raise CannotStack, before anything is started, where a task cannot be trained as a stack."""
    if not hasattr(task, "train_many"):
        raise CannotStack(
            f"the task {getattr(task, 'name', type(task).__name__)!r} has no `train_many`, so it cannot be stacked; use "
            f"engine='pool', or leave `stack` at 1"
        )
    if callable(check := getattr(task, "check_stack", None)):
        check()


def _cost(text: str) -> PerStep | Measured:
    """Return the cost model of a simulation: virtual seconds per step, or what jobs really take."""
    if text == "measured":
        return Measured()
    try:
        return PerStep(float(text))
    except ValueError:
        raise ValueError(
            f"`cost` must be virtual seconds per step above 0, such as 1.5, or 'measured', got {text!r}"
        ) from None


def _measured(task: Any, population: int, cores: int) -> EngineSpec:
    stack = math.ceil(population / cores)
    if stack < 2:
        return EngineSpec("pool", why=f"{population} members on {cores} cores make no stacks")
    try:
        probe = task.probe(min(stack, 16))
    except CannotStack as error:
        return EngineSpec("pool", why=str(error))
    gain, needed = probe.loop / probe.stack, probe.bytes_per_member * stack * cores
    seen = f"a stack trains a member {gain:.2f} times as fast as a loop"
    if not probe.disagreement <= AGREEMENT:  # also where it is NaN
        return EngineSpec(
            "pool", why=f"stacked and single gradients differ by {probe.disagreement:.1g}"
        )
    if gain < WORTH:
        return EngineSpec("pool", why=f"{seen}, which is not worth it")
    if needed > 0.8 * available_memory():
        return EngineSpec(
            "pool", why=f"{seen}, but {population} members need about {needed / 2**30:.1f} GiB"
        )
    return EngineSpec("vectorized", cores, stack, why=seen)


def available_memory() -> float:
    """Return the bytes of memory that are free to use; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return math.inf
