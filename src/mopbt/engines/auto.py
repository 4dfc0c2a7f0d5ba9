"""Which engine suits a task on this machine: measured, not guessed."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

from mopbt.arguments import check_count, check_timeout
from mopbt.engines.base import Engine
from mopbt.engines.devices import CPU, Device, assign_devices, available_cores
from mopbt.engines.execution import require_stackable
from mopbt.engines.local import LocalEngine
from mopbt.engines.placement import (
    AGREEMENT,
    WORTH,
    DeviceTrial,
    choose_placement,
    is_worth_sharing,
    most_sharing,
)
from mopbt.engines.pool import (
    PoolEngine,
    check_exclusive,
)
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import Measured, PerStep, SimulatedEngine
from mopbt.engines.trial import Trial
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import CannotStack, MissingExtra
from mopbt.messages import did_you_mean
from mopbt.problem import MeasuredTask, ProbedTask, StackCheckedTask, problem_of

# Workers of a simulation, as in the paper's experiments.
WORKERS = 16
# Options of `engine_spec` that only some engines have.
_ON_THIS_MACHINE = ("auto", "pool", "vectorized", "simulated")
_OPTIONS = {
    "devices": _ON_THIS_MACHINE,
    "workers_per_device": _ON_THIS_MACHINE,
    "stack": ("vectorized", "ray"),
    "num_cpus": ("ray",),
    "num_gpus": ("ray",),
    "timeout": (*_ON_THIS_MACHINE, "ray"),
}


@dataclass(frozen=True)
class EngineSpec:
    """An engine by name and size, as in `run.toml`, with the reason for the choice.

    Args:
        name: The name of the engine.
        workers: The number of workers. 0 means one per core of the machine that runs or resumes.
        stack: The number of jobs in a stack, which stays the same on every machine.
        cost: Of a simulation: virtual seconds per step, or "measured".
        address: The address of a Ray cluster.
        on: Of a simulation: the engine that trains.
        why: Why "auto" chose this engine.
        devices: Where workers compute; empty for the accelerators of the machine that runs or
            resumes, if the task may use them.
        workers_per_device: How many workers share a device; 0 for one, or for `workers` in all.
        num_cpus: The CPUs of a Ray actor; None for Ray's default.
        num_gpus: The GPUs of a Ray actor.
        timeout: Seconds that an interval may take; 0 for no limit.
    """

    name: str
    workers: int = 0
    stack: int = 0
    cost: str = ""
    address: str = ""
    on: "EngineSpec | None" = None
    why: str = ""
    devices: tuple[str, ...] = ()
    workers_per_device: int = 0
    num_cpus: float | None = None
    num_gpus: float = 0
    timeout: float = 0

    def engine(self) -> Engine:
        """Build the engine."""
        return ENGINES[self.name](self)

    def to_dict(self) -> dict[str, Any]:
        """Convert the specification to plain values."""
        plain = {key: value for key, value in asdict(self).items() if value}
        if self.on:
            plain["on"] = self.on.to_dict()
        if self.devices:
            plain["devices"] = list(self.devices)
        if self.num_cpus is not None:
            plain["num_cpus"] = self.num_cpus
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
            devices=tuple(data.get("devices", ())),
            workers_per_device=data.get("workers_per_device", 0),
            num_cpus=data.get("num_cpus"),
            num_gpus=data.get("num_gpus", 0),
            timeout=data.get("timeout", 0),
        )


def _make_pool(spec: EngineSpec) -> PoolEngine:
    return PoolEngine(
        spec.workers or None,
        devices=spec.devices or "auto",
        workers_per_device=spec.workers_per_device or None,
        timeout=spec.timeout or None,
    )


def _make_vectorized(spec: EngineSpec) -> VectorizedEngine:
    return VectorizedEngine(
        spec.workers or None,
        stack=spec.stack or 16,
        devices=spec.devices or "auto",
        workers_per_device=spec.workers_per_device or None,
        timeout=spec.timeout or None,
    )


def _make_ray(spec: EngineSpec) -> RayEngine:
    return RayEngine(
        spec.workers or None,
        address=spec.address or None,
        num_cpus=1 if spec.num_cpus is None else spec.num_cpus,
        num_gpus=spec.num_gpus,
        stack=spec.stack or 1,
        timeout=spec.timeout or None,
    )


def _make_simulated(spec: EngineSpec) -> SimulatedEngine:
    engine = spec.on.engine() if spec.on else None
    return SimulatedEngine(spec.workers, _parse_cost(spec.cost), engine=engine)


ENGINES: dict[str, Callable[[EngineSpec], Engine]] = {
    "local": lambda spec: LocalEngine(),
    "pool": _make_pool,
    "vectorized": _make_vectorized,
    "ray": _make_ray,
    "simulated": _make_simulated,
}


def engine_spec(
    name: str,
    task: Any,
    population: int,
    workers: int | None = None,
    cost: str | None = None,
    address: str | None = None,
    *,
    devices: Sequence[str] | None = None,
    workers_per_device: int | None = None,
    stack: int | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    timeout: float | None = None,
    trial: Trial | None = None,
) -> EngineSpec:
    """Specify an engine by name.

    "auto" trains a few updates to find out which one suits.

    `trial` is where it trains them; by default, this process.
    """
    options: dict[str, Any] = {"workers": workers, "cost": cost, "address": address}
    options |= {"devices": devices, "workers_per_device": workers_per_device, "stack": stack}
    options |= {"num_cpus": num_cpus, "num_gpus": num_gpus, "timeout": timeout}
    check_options(name, options)
    given = EngineSpec(
        name,
        workers or 0,
        stack or 0,
        address=address or "",
        devices=() if devices is None else tuple(map(str, devices)) or (CPU.name,),
        workers_per_device=workers_per_device or 0,
        num_cpus=num_cpus,
        num_gpus=num_gpus or 0,
        timeout=timeout or 0,
    )
    if name in ("local", "ray"):
        return given
    trial = trial or Trial(task)
    if name == "simulated":
        _parse_cost(cost or "1")
        trainer = _choose(replace(given, name="auto", workers=0), trial, population)
        return EngineSpec(name, workers or WORKERS, cost=cost or "1", on=trainer)
    return _choose(given, trial, population)


def _choose(given: EngineSpec, trial: Trial, population: int) -> EngineSpec:
    """Choose workers and stacks for what is given, on accelerators or on the cores."""
    devices = assign_devices(trial.task, given.devices or "auto")
    if any(device.kind != "cpu" for device in devices):
        return _choose_on_devices(given, trial, population, devices)
    cores = min(given.workers or given.workers_per_device or available_cores(), population)
    if given.name == "vectorized":
        check_stackable(trial.task, trial)
        stack = given.stack or math.ceil(population / cores)
        return replace(given, workers=cores, workers_per_device=0, stack=stack)
    chosen = replace(given, name="pool")
    if given.name == "auto" and isinstance(trial.task, ProbedTask):
        choice = _choose_by_probe(trial, population, cores)
        chosen = replace(choice, devices=given.devices, timeout=given.timeout)
    if (given.workers or given.workers_per_device) and chosen.name == "pool":
        # Without `workers`, a resumed run has one worker per core of its new machine.
        chosen = replace(chosen, workers=cores, workers_per_device=0)
    return chosen


def _choose_on_devices(
    given: EngineSpec, trial: Trial, population: int, devices: Sequence[Device]
) -> EngineSpec:
    """Choose how many workers share a device and how many members they stack."""
    used = min(len(devices), population)
    free = min(device.free for device in devices)
    asked = given.workers or used * given.workers_per_device
    workers = min(asked or used, population)
    if given.name == "vectorized":
        check_stackable(trial.task, trial)
        stack = given.stack or math.ceil(population / workers)
        return replace(given, workers=workers, workers_per_device=0, stack=stack)
    chosen = replace(given, name="pool")
    if given.name == "pool" or not isinstance(trial.task, MeasuredTask):
        if not asked:
            number = "device has" if used == 1 else f"of {used} devices has"
            why = f"each {number} one worker; `workers_per_device` sets more"
            chosen = replace(chosen, why=why)
        return chosen
    if asked:
        # A worker has a place of its own, with its share of the memory.
        free /= math.ceil(workers / used)
        used = workers
    size: dict[str, Any] = {"devices": used, "free": free, "population": population}
    size["cores"] = used if asked else available_cores()
    placement = choose_placement(_measure(trial, **size), **size)
    chosen = replace(chosen, workers=used * placement.workers_per_device, workers_per_device=0)
    if placement.stack > 1:
        chosen = replace(chosen, name="vectorized", stack=placement.stack)
    return replace(chosen, why=placement.why)


def _measure(
    trial: Trial, *, devices: int, free: float, cores: int, population: int
) -> DeviceTrial:
    """Train a few updates on one device: alone, as a stack, and in several workers."""
    alone = trial.call("measure_update")
    measured = DeviceTrial({1: alone.seconds}, float(alone.bytes))
    members = math.ceil(population / devices)
    if members > 1 and isinstance(trial.task, ProbedTask):
        measured = _with_stack(measured, trial, members)
    size: dict[str, Any] = {"devices": devices, "free": free, "population": population}
    size["cores"] = cores
    if choose_placement(measured, **size).stack > 1:
        return measured
    updates = {1: alone.seconds}
    most = most_sharing(measured, **size)
    for fewer, more in ((1, 2), (2, 4)):
        if more > most:
            break
        shared = trial.call_at_once(more, "measure_update")
        updates[more] = max(update.seconds for update in shared)
        if not is_worth_sharing(updates, fewer, more):
            break
    return replace(measured, updates=updates)


def _with_stack(measured: DeviceTrial, trial: Trial, members: int) -> DeviceTrial:
    try:
        probe = trial.call("probe", min(members, 16))
    except CannotStack as error:
        return replace(measured, no_stack=str(error))
    # A disagreement of NaN is too large as well.
    if not probe.disagreement <= AGREEMENT:
        why = f"stacked and single gradients differ by {probe.disagreement:.1g}"
        return replace(measured, no_stack=why)
    return replace(measured, stacked=probe.stack, bytes_stacked=float(probe.bytes_per_member))


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown engine, or an option that it does not have."""
    if options.get("cost") is not None and name != "simulated":
        raise ValueError(
            f"`cost` is for the simulated engine, got it for {name!r}; "
            f"leave it out, or use engine='simulated'"
        )
    if options.get("address") is not None and name != "ray":
        raise ValueError(
            f"`address` is the address of a Ray cluster, for engine='ray', got it for {name!r}"
        )
    _check_name(name)
    for option, engines in _OPTIONS.items():
        value = options.get(option)
        if value is not None and name not in engines:
            names = ", ".join(map(repr, engines))
            raise ValueError(
                f"`{option}` is for the engines {names}, got {value!r} for {name!r}; leave it "
                f"out, or use another engine"
            )
    _check_numbers(name, options)
    if name == "ray" and find_spec("ray") is None:
        raise MissingExtra("the engine 'ray' needs Ray: pip install 'mopbt[ray]'")


def _check_numbers(name: str, options: Mapping[str, Any]) -> None:
    workers = options.get("workers")
    workers_per_device = options.get("workers_per_device")
    check_count("workers_per_device", workers_per_device, 1, optional=True)
    check_count("stack", options.get("stack"), 1, optional=True)
    check_timeout(options.get("timeout"))
    if workers is not None and (name == "local" or workers < 1):
        raise ValueError(
            f"`workers` must be at least 1, and is for engines with worker processes, "
            f"got {workers} for {name!r}; leave it out for one worker per core"
        )
    check_exclusive(workers, workers_per_device)


def _check_name(name: Any) -> None:
    known = ("auto", *ENGINES)
    if name not in known:
        names = ", ".join(map(repr, known))
        hint = did_you_mean(name, known)
        raise ValueError(f"`engine` must be one of {names} or an engine object, got {name!r}{hint}")


def with_timeout(spec: EngineSpec, timeout: float | None) -> EngineSpec:
    """Return a recorded specification with another time limit, if one is given."""
    if timeout is None:
        return spec
    if spec.on is not None:
        return replace(spec, on=with_timeout(spec.on, timeout))
    check_options(spec.name, {"timeout": timeout})
    return replace(spec, timeout=timeout)


def check_stackable(task: Any, trial: Trial | None = None) -> None:
    """Raise CannotStack, before a run starts, if a task cannot be trained as a stack."""
    remedy = "use engine='pool', or leave `stack` at 1"
    require_stackable(task, problem_of(task).name, remedy)
    if isinstance(task, StackCheckedTask):
        (trial or Trial(task)).call("check_stack")


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


def _choose_by_probe(trial: Trial, population: int, cores: int) -> EngineSpec:
    """Choose stacks if they are correct, faster and fit, otherwise the pool."""
    stack_size = math.ceil(population / cores)
    if stack_size < 2:
        return EngineSpec("pool", why=f"{population} members on {cores} cores make no stacks")
    try:
        probe = trial.call("probe", min(stack_size, 16))
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
