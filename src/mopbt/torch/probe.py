"""Measure training one by one against training as a stack."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Probe:
    """How training one by one and as a stack compare on this machine.

    Attributes:
        loop: Seconds per update of a member that trains alone.
        stack: Seconds per update of a member in a stack.
        disagreement: Largest difference between the gradients, relative to the largest gradient.
        bytes_per_member: Memory of the device that a stack needs for each member.
    """

    loop: float
    stack: float
    disagreement: float
    bytes_per_member: int


@dataclass(frozen=True)
class Update:
    """What an update of a member that trains alone takes.

    Attributes:
        seconds: Seconds of an update.
        bytes: Memory that a process takes on its device for one member and the data.
    """

    seconds: float
    bytes: int


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, as a worker does.

    On a busy machine, threads that wait for each other would distort the measurement.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
