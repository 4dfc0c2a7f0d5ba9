"""Where the runs of a comparison train: on which devices, or on a Ray cluster.

It decides how long a comparison takes. Decisions and virtual times do not depend on it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mopbt.arguments import check_count
from mopbt.engines.auto import EngineSpec, check_options
from mopbt.engines.devices import (
    MASKS,
    VARIABLE,
    Device,
    available_cores,
    check_devices,
    discover,
    named_devices,
)

# Options that apply wherever a comparison trains.
_EVERYWHERE = ("stack", "timeout")


@dataclass(frozen=True)
class Resources:
    """Where the training of a comparison happens.

    Attributes:
        jobs: Number of parallel runs.
        devices: The devices of these runs, in turn; empty for the CPU.
        assigned: Whether tasks must use these devices, because they were named.
        stack: Members in a stack, 0 for as many as the virtual machine has workers.
        timeout: Seconds that an interval may take, 0 for no limit.
        cluster: The engine of each run on a Ray cluster, as in run.toml; empty for this machine.
    """

    jobs: int
    devices: tuple[Device, ...] = ()
    assigned: bool = False
    stack: int = 0
    timeout: float = 0
    cluster: Mapping[str, Any] = field(default_factory=dict)

    def environment(self, number: int) -> dict[str, str]:
        """Return the variables by which a process sees its device.

        Devices are used in turn.
        """
        if not self.devices:
            return {}
        variables = self.devices[number % len(self.devices)].environment(os.environ)
        if not self.assigned:
            # The task decides whether to use it.
            del variables[VARIABLE]
        return variables


def check_stack(resources: Resources, engine: str) -> None:
    """Raise ValueError for a size of stacks in an experiment that has none."""
    if resources.stack and engine == "local":
        raise ValueError(
            f"`stack` is for experiments with engine = 'auto' or 'vectorized', got "
            f"{resources.stack} for engine = 'local'; leave it out"
        )


def find_resources(engine: str, options: Mapping[str, Any], jobs: int | None) -> Resources:
    """Check the options that say where a comparison trains, and find its devices.

    Args:
        engine: "auto" for this machine, or "ray".
        options: Options of `mopbt.engines.auto.engine_spec` for this engine, and `stack`.
        jobs: Number of parallel runs, None for the default.
    """
    if engine not in ("auto", "ray"):
        raise ValueError(
            f"`engine` of a comparison must be 'auto' or 'ray', got {engine!r}; whether members "
            f"are stacked is the `engine` of the experiment"
        )
    given = {name: value for name, value in options.items() if value is not None}
    everywhere = {name: given.pop(name) for name in _EVERYWHERE if name in given}
    check_options("vectorized", everywhere)
    check_options(engine, given)
    check_count("jobs", jobs, 1, optional=True)
    found = _on_ray(given, jobs) if engine == "ray" else _on_this_machine(given, jobs)
    return replace(found, **everywhere)


def _on_ray(given: Mapping[str, Any], jobs: int | None) -> Resources:
    if jobs is not None and jobs > 1 and "workers" not in given:
        raise ValueError(
            f"`jobs` above 1 on Ray needs `workers`, the number of actors of each run, because "
            f"the first run would take the whole cluster; got jobs={jobs}"
        )
    cluster = EngineSpec(
        "ray",
        given.get("workers", 0),
        address=given.get("address", ""),
        num_cpus=given.get("num_cpus"),
        num_gpus=given.get("num_gpus", 0),
    )
    return Resources(jobs or 1, cluster=cluster.to_dict())


def _on_this_machine(given: Mapping[str, Any], jobs: int | None) -> Resources:
    if "workers" in given:
        raise ValueError(
            f"`workers` is for a comparison on Ray, got {given['workers']}; on this machine, "
            f"`jobs` sets how many runs train in parallel, each in its own worker"
        )
    if jobs is not None and "workers_per_device" in given:
        raise ValueError(
            f"set `jobs` or `workers_per_device`, not both, got {jobs} and "
            f"{given['workers_per_device']}; each run has one worker"
        )
    if "devices" in given:
        check_devices(given["devices"])
        devices = named_devices(given["devices"])
    else:
        devices = tuple(device for device in discover() if device.kind in MASKS)
    on_cpu = all(device.kind == "cpu" for device in devices)
    sharing = given.get("workers_per_device", available_cores() if on_cpu else 1)
    return Resources(jobs or max(len(devices), 1) * sharing, devices, "devices" in given)
