"""Measure training one by one against training as a stack."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


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


@dataclass(frozen=True)
class Interval:
    """What an interval of a member that trains alone takes.

    Attributes:
        updates: Updates of an interval.
        update: Seconds of an update.
        evaluation: Seconds of an evaluation.
        flops: Floating point operations of the interval and its evaluation.
        bytes: Memory that a process takes for one member and the data.
        checkpoint: Size of a checkpoint in bytes.
        saving: Seconds in which a checkpoint is made and read again.
        other_rows: Seconds of an evaluation on all rows besides those of validation.
        model: Size of a checkpoint without what only training needs, in bytes.
    """

    updates: int
    update: float
    evaluation: float
    flops: float
    bytes: int
    checkpoint: int
    saving: float
    other_rows: float
    model: int


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating point operations of products, convolutions, attention.

    PyTorch's `FlopCounterMode` also attributes them to modules, which fails with `torch.func`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute an operation and add its cost, if PyTorch knows a formula for it."""
        options = kwargs or {}
        result = func(*args, **options)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flops += count(*args, **options, out_val=result)
        return result


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
