"""Where a task computes: its device, free memory, and out-of-memory errors."""

from typing import Any

import torch

from mopbt.device import assigned_device
from mopbt.engines.auto import available_memory
from mopbt.errors import TaskError

# Words by which an error for want of memory is recognized, besides its type.
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")


def find_device(name: str) -> torch.device:
    """Return a device by name; "auto" is the one that the engine assigned.

    Without an assigned device, "auto" is a GPU if there is one, and the CPU otherwise. In a worker
    that sees only its own device, an index in `name` counts among the devices of the driver.
    """
    assigned = assigned_device()
    automatic = assigned or _find_automatic()
    try:
        device = torch.device(automatic if name == "auto" else name)
        if assigned:
            _check_assigned(device, torch.device(assigned))
            device = torch.device(assigned)
        # PyTorch accepts names of devices that are missing until something is placed on them. The
        # tensor also has the number of the device, which "cuda" leaves out.
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"`device` must be 'auto' or a device that PyTorch finds on this machine, such as "
            f"{automatic!r}, got {name!r}: {str(error).splitlines()[0]}"
        ) from None


def _check_assigned(device: torch.device, assigned: torch.device) -> None:
    if device.type != assigned.type:
        raise TaskError(
            f"the task sets device={str(device)!r}, but the engine assigned {str(assigned)!r} to "
            f"this worker; leave `device` at 'auto', or choose the engine's `devices`"
        )


def _find_automatic() -> str:
    # Metrics are computed in double precision, which "mps" does not support.
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "mps" or not torch.accelerator.is_available():
        return "cpu"
    return accelerator.type


def free_memory(device: torch.device) -> float:
    """Return the free memory of a device in bytes, or infinity if it is not known."""
    module = _device_module(device)
    if not hasattr(module, "mem_get_info"):
        return available_memory()
    free, _ = module.mem_get_info(device)
    # PyTorch keeps blocks that it does not use.
    if hasattr(module, "memory_reserved"):
        free += module.memory_reserved(device) - module.memory_allocated(device)
    return float(free)


def release_unused_memory(device: torch.device) -> None:
    """Return the blocks that PyTorch keeps but does not use to the device."""
    module = _device_module(device)
    if hasattr(module, "empty_cache"):
        module.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error was raised for want of memory on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _MEMORY_WORDS)


def _device_module(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.get_device_module(device)
