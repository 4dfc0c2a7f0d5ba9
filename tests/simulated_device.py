"""A simulated accelerator: the device "sim", on which misplaced tensors raise an error.

It computes real values, so results can be compared with those of the CPU. See
`simulated_device.cpp` for the rules, which follow CUDA. `load()` compiles it once, in about ten
seconds, and keeps the library in the user's cache. It must be called before the first backward pass
of a process, when PyTorch starts a thread for each device.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NAME = "sim"
SOURCE = Path(__file__).with_suffix(".cpp")


class Unavailable(RuntimeError):
    """The simulated accelerator cannot be built here."""


@cache
def load() -> None:
    """Build and register the device in this process; it is not "available" until `enabled`."""
    torch.ops.load_library(_library())
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())


@contextmanager
def enabled(memory: int = 2**40) -> Iterator[torch.device]:
    """Make the device visible to code that looks for accelerators; it has `memory` bytes."""
    load()
    controls = torch.ops.simulated
    controls.set_available(True)
    controls.set_limit(memory)
    try:
        yield torch.device(f"{NAME}:0")
    finally:
        controls.set_available(False)
        controls.set_limit(2**40)


def operators() -> int:
    """Return how many operators ran on the device."""
    return torch.ops.simulated.count_operators()


def peak_bytes(*, reset: bool = False) -> int:
    """Return the most memory that was in use on the first device."""
    return torch.ops.simulated.memory_peak(0, reset)


def set_memory(limit: int) -> None:
    """Set how many bytes each device has."""
    torch.ops.simulated.set_limit(limit)


def used_bytes() -> int:
    """Return the memory in use on the first device."""
    return torch.ops.simulated.memory_used(0)


def _library() -> str:
    """Compile the backend for this version of PyTorch, once for all processes."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise Unavailable("the simulated accelerator needs a C++ compiler (g++)")
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mopbt-tests"
    home.mkdir(parents=True, exist_ok=True)
    library = home / f"simulated-device-{key}.so"
    with (home / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(compiler, library)
    return str(library)


def _compile(compiler: str, library: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    partial = library.with_suffix(".partial")
    command = [compiler, "-shared", "-fPIC", "-std=c++20", "-O0", "-w", "-o", str(partial)]
    command += [str(SOURCE), *(f"-I{path}" for path in include_paths())]
    command += [*(f"-L{path}" for path in library_paths()), "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"the simulated accelerator does not compile:\n{done.stderr[-2000:]}")
    partial.rename(library)


def _device_module() -> ModuleType:
    """Return what PyTorch expects as `torch.sim`, similar to `torch.cuda`."""
    controls = torch.ops.simulated
    module = ModuleType(f"torch.{NAME}")

    def index(device: Any = None) -> int:
        found = None if device is None else torch.device(device).index
        return controls.get_device() if found is None else found

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        limit = controls.memory_limit()
        return limit - controls.memory_used(index(device)), limit

    functions = {
        "is_available": lambda: controls.is_available(),
        "device_count": lambda: 2 if controls.is_available() else 0,
        "current_device": index,
        "set_device": lambda device: controls.set_device(index(device)),
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda seed: controls.seed_all(seed % 2**63),
        "get_rng_state": lambda device=None: controls.get_rng_state(index(device)),
        "set_rng_state": lambda state, device=None: controls.set_rng_state(index(device), state),
        "mem_get_info": mem_get_info,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
