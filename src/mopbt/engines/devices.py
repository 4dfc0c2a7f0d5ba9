"""Cores and accelerators of this machine, and their assignment to workers.

This process never initializes an accelerator: discovery asks a child process. A worker sees only
its own device, through the variable in its environment that the vendor's library reads.
"""

import importlib.metadata
import json
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from mopbt.device import assign_device
from mopbt.errors import TaskError
from mopbt.problem import FunctionBasedTask, PlacedTask

# The variable that tells a worker and its subprocesses their device.
VARIABLE = "MOPBT_DEVICE"
# The variable that hides the other devices from a worker, by the kind of its device.
MASKS = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
# Packages that compute on accelerators.
_FRAMEWORKS = {"torch", "jax", "tensorflow", "cupy"}
_SECONDS_TO_DISCOVER = 120.0
# Run in a child process: kind, free bytes and name of each device that PyTorch sees there.
_ASK_TORCH = """
import json, torch
found = []
if torch.cuda.is_available():
    kind = "rocm" if torch.version.hip else "cuda"
    for i in range(torch.cuda.device_count()):
        found.append([kind, torch.cuda.mem_get_info(i)[0], torch.cuda.get_device_name(i)])
elif torch.xpu.is_available():
    for i in range(torch.xpu.device_count()):
        found.append(["xpu", torch.xpu.mem_get_info(i)[0], torch.xpu.get_device_name(i)])
elif torch.backends.mps.is_available():
    found.append(["mps", torch.mps.recommended_max_memory(), "Apple GPU"])
print(json.dumps(found))
"""

DeviceNames = Literal["auto"] | Sequence[int | str]


@dataclass(frozen=True)
class Device:
    """A device, as this process sees it.

    Attributes:
        kind: "cuda", "rocm", "xpu", "mps", "cpu", or another type of PyTorch's devices.
        index: Its position among the devices that this process sees; -1 if it is unknown.
        id: What selects it in the mask of a worker; empty if its kind has no mask.
        free: Free memory in bytes; infinity if it is unknown.
        model: What the vendor calls it.
    """

    kind: str
    index: int = 0
    id: str = ""
    free: float = math.inf
    model: str = ""

    @property
    def type(self) -> str:
        """Return the type in PyTorch's names, which calls AMD's devices "cuda" as well."""
        return "cuda" if self.kind == "rocm" else self.kind

    @property
    def name(self) -> str:
        """Return the name that is valid inside the worker, which sees no other device."""
        if self.kind in MASKS:
            return f"{self.type}:0"
        return self.kind if self.kind in ("cpu", "mps") else f"{self.kind}:{self.index}"

    @property
    def name_here(self) -> str:
        """Return the name that is valid in this process."""
        return f"{self.type}:{self.index}" if self.kind in MASKS else self.name

    def environment(self, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a worker on this device, given those of its parent."""
        own = {VARIABLE: self.name}
        if self.kind == "cpu":
            return own | {MASKS["cuda"]: "-1", MASKS["rocm"]: "-1"}
        if self.kind in MASKS:
            own[MASKS[self.kind]] = self.id
        if self.kind == "rocm" and MASKS["cuda"] in parent:
            # AMD's library reads this one as well.
            own[MASKS["cuda"]] = self.id
        return own


CPU = Device("cpu")


def available_cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def adopt_device() -> None:
    """Assign the device in this process's environment, if there is one."""
    assign_device(os.environ.get(VARIABLE, ""))


def mask_entries(kind: str, environment: Mapping[str, str]) -> list[str] | None:
    """Return the devices that a mask leaves visible, or None without a mask.

    An entry is an index, a UUID, or the id of a MIG instance. As in CUDA, the first entry that is
    none of these hides all that follow.
    """
    text = environment.get(MASKS[kind])
    if text is None and kind == "rocm":
        text = environment.get(MASKS["cuda"])
    if text is None:
        return None
    entries = []
    for entry in map(str.strip, text.split(",")):
        if not re.fullmatch(r"\d+(\.\d+)?|(GPU|MIG)-.+", entry):
            break
        entries.append(entry)
    return entries


_last_found: dict[str, tuple[Device, ...]] = {}


def discover(*, refresh: bool = False) -> tuple[Device, ...]:
    """Return the accelerators that this process may use, without initializing them.

    The result is kept for this process and its masks; `refresh` measures free memory again.
    """
    key = json.dumps([os.environ.get(mask) for mask in MASKS.values()])
    if refresh or key not in _last_found:
        _last_found[key] = _discover(dict(os.environ)) if _may_have_accelerator() else ()
    return _last_found[key]


def _may_have_accelerator() -> bool:
    """Check for drivers.

    A machine without an accelerator then starts no child process.
    """
    build = _torch_build()
    if build == "cpu":
        return False
    if sys.platform == "darwin":
        return build is not None
    drivers = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg"]
    if build == "xpu":
        drivers.append("/dev/dri")
    return any(Path(driver).exists() for driver in drivers) or bool(shutil.which("nvidia-smi"))


def _torch_build() -> str | None:
    """Return the build of the installed PyTorch, such as "cu128", or None."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    return version.partition("+")[2]


def _discover(environment: dict[str, str]) -> tuple[Device, ...]:
    if _torch_build() is None:
        return _from_nvidia_smi(environment)
    entries = mask_entries("cuda", environment)
    if entries is None:
        entries = mig_instances(_nvidia_smi("-L"))
    if any(entry.startswith("MIG-") for entry in entries):
        # A process sees at most one MIG instance, so each is asked for by itself.
        asked = [_ask_torch({**environment, MASKS["cuda"]: entry})[:1] for entry in entries]
        return tuple(
            replace(device, index=index, id=entry)
            for index, (entry, found) in enumerate(zip(entries, asked, strict=True))
            for device in found
        )
    return _ask_torch(environment)


def _ask_torch(environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices that PyTorch sees in a child process with this environment."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS_TO_DISCOVER,
        ).stdout
        found = json.loads(answer.strip().rpartition("\n")[2])
    except (subprocess.SubprocessError, ValueError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        reason = (output or str(error)).strip().rpartition("\n")[2]
        warnings.warn(
            f"cannot find out which accelerators this machine has ({reason}); training uses the "
            f"CPU unless the engine's `devices` names others",
            RuntimeWarning,
            stacklevel=3,
        )
        return ()
    return tuple(
        Device(kind, index, _id_of(kind, index, environment), float(free), model)
        for index, (kind, free, model) in enumerate(found)
    )


def _id_of(kind: str, index: int, environment: Mapping[str, str]) -> str:
    """Return what selects a visible device in the mask of a worker."""
    if kind not in MASKS:
        return ""
    entries = mask_entries(kind, environment)
    return str(index) if entries is None else entries[index]


def mig_instances(listing: str) -> list[str]:
    """Return the UUIDs in the output of ``nvidia-smi -L``.

    There are none if no GPU is partitioned.

    A GPU that is partitioned counts by its MIG instances only.
    """
    ids: list[str] = []
    for line in listing.splitlines():
        if match := re.search(r"UUID: ((GPU|MIG)-[^)]+)\)", line):
            if match[2] == "MIG" and ids and ids[-1].startswith("GPU-"):
                ids.pop()
            ids.append(match[1])
    return ids if any(id.startswith("MIG-") for id in ids) else []


def _nvidia_smi(*arguments: str) -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(
        ["nvidia-smi", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_TO_DISCOVER,
    )
    return done.stdout if done.returncode == 0 else ""


def _from_nvidia_smi(environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Return NVIDIA's devices where PyTorch is not installed."""
    table = _nvidia_smi("--query-gpu=index,uuid,memory.free,name", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",", 3)] for line in table.splitlines()]
    entries = mask_entries("cuda", environment)
    if entries is None:
        entries = [row[0] for row in rows]
    found: list[Device] = []
    for entry in entries:
        row = next((r for r in rows if r[0] == entry or r[1].startswith(entry)), None)
        if row is not None:
            found.append(Device("cuda", len(found), entry, float(row[2]) * 2**20, row[3]))
    return tuple(found)


def may_use_accelerator(task: Any) -> bool:
    """Return whether a task may compute on an accelerator.

    A task with a `device` says so. Any other one may if a package for accelerators is imported, or
    if its training reads `m.device` or imports such a package itself.
    """
    if isinstance(task, PlacedTask):
        return str(task.device) != "cpu"
    function = task.function if isinstance(task, FunctionBasedTask) else type(task).train
    code = getattr(function, "__code__", None)
    names = set() if code is None else _names_in(code)
    return bool(_FRAMEWORKS & sys.modules.keys() or (_FRAMEWORKS | {"device"}) & names)


def _names_in(code: CodeType) -> set[str]:
    names = {name.partition(".")[0] for name in code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def check_devices(devices: Any) -> None:
    """Raise ValueError unless an option is "auto" or a list of different devices."""
    if isinstance(devices, str) and devices == "auto":
        return
    is_list = isinstance(devices, Iterable) and not isinstance(devices, str)
    entries = list(devices) if is_list else [None]
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int | str) or entry == "":
            raise ValueError(
                f"`devices` must be 'auto' or a list of indices and names, such as [0, 1], "
                f"['cuda:0'] or ['cpu'], got {devices!r}"
            )
    names = [str(entry) for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(
            f"`devices` must name each device once, got {devices!r}; set `workers_per_device` for "
            f"several workers on one device"
        )


def assign_devices(task: Any, devices: DeviceNames, *, refresh: bool = False) -> tuple[Device, ...]:
    """Return the devices on which workers of a task compute.

    There are none if workers use the CPU as it is.

    With "auto", these are the accelerators that this process sees, if the task may use them, or
    those among them that the task names. `refresh` measures their free memory again.
    """
    if devices == "auto":
        if not may_use_accelerator(task):
            return ()
        own = str(task.device) if isinstance(task, PlacedTask) else "auto"
        return tuple(device for device in discover(refresh=refresh) if _suits(device, own))
    chosen = named_devices(devices, refresh=refresh)
    if isinstance(task, PlacedTask) and str(task.device) != "auto":
        _check_conflict(str(task.device), chosen)
    return chosen


def named_devices(devices: Sequence[int | str], *, refresh: bool = False) -> tuple[Device, ...]:
    """Return the devices that a list names; an empty one names the CPU."""
    names = [str(entry) for entry in devices]
    if not names or names == ["cpu"]:
        return (CPU,)
    found = discover(refresh=refresh)
    return tuple(select(name, found) for name in names)


def _suits(device: Device, wanted: str) -> bool:
    if wanted == "auto":
        # PyTorch lacks operations on Apple's devices, so these are used only on request.
        return device.kind != "mps"
    kind, _, index = wanted.partition(":")
    return device.type == kind and index in ("", str(device.index))


def _check_conflict(wanted: str, devices: tuple[Device, ...]) -> None:
    kind, _, index = wanted.partition(":")
    same_kind = all(device.type == kind for device in devices)
    if not same_kind or (index and [str(device.index) for device in devices] != [index]):
        names = ", ".join(device.name_here for device in devices)
        raise TaskError(
            f"the task sets device={wanted!r}, but the engine's `devices` are {names}; leave the "
            f"task's `device` at 'auto', or leave out `devices`"
        )


def select(name: str, found: Sequence[Device]) -> Device:
    """Return the device that a name or an index means among those that were found."""
    if name.startswith(("GPU-", "MIG-")):
        known = next((device for device in found if device.id == name), None)
        return known or Device("cuda", -1, name)
    kind, _, index = name.rpartition(":") if ":" in name or name.isdigit() else (name, "", "0")
    if not index.isdigit():
        raise ValueError(f"`devices` must name devices such as 0 or 'cuda:0', got {name!r}")
    if kind not in ("", "cuda", "rocm", "xpu"):
        return Device(kind, int(index))
    same = [device for device in found if kind in ("", device.type, device.kind)]
    chosen = next((device for device in same if device.index == int(index)), None)
    if chosen is None:
        seen = ", ".join(device.name_here for device in found) or "no accelerator"
        raise ValueError(
            f"`devices` names {name!r}, but this process sees {seen}; indices count the devices "
            f"that {MASKS['cuda']} or its equivalent leaves visible"
        )
    return chosen


def spread(devices: Sequence[Device], workers: int) -> list[Device]:
    """Assign a device to each of `workers` workers, evenly, the first devices first."""
    return [devices[i % len(devices)] for i in range(workers)]
