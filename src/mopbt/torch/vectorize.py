"""Run models inside `vmap`, and explain which operations it does not support."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mopbt.errors import CannotStack

# Words by which an error message of `vmap` is recognized.
_VMAP_WORDS = ("vmap", "functorch", "data-dependent", "BatchedTensor")


def cannot_stack(reason: str) -> CannotStack:
    """Build the error for a model that cannot be stacked."""
    reason = reason.strip().rstrip(".")
    return CannotStack(
        f"the model or its loss cannot be stacked: {reason}; use engine='pool', which trains "
        f"members one by one"
    )


@contextmanager
def stacking(device: torch.device) -> Iterator[None]:
    """Use attention kernels that `vmap` supports, and raise its errors as CannotStack."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    kernels = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    try:
        with kernels:
            yield
    except RuntimeError as error:
        text = str(error)
        if not any(word in text for word in _VMAP_WORDS):
            raise
        raise cannot_stack(text.strip().splitlines()[0]) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
