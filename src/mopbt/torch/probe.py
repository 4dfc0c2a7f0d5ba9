"""What is measured before a run chooses between one member at a time and a stack."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Probe:
    """How one member at a time and a stack compare on this machine."""

    loop: float  # seconds for an update of a member
    stack: float
    disagreement: float  # of the gradients, relative to the largest
    bytes_per_member: int  # that a stack takes more


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, as a worker does: two that wait for each other on a busy machine tell nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had so far; 0 where the system does not tell."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
