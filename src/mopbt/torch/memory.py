"""Compute in parts that fit into memory, by measured bytes per row and per member."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mopbt.engines.seeding import global_seeds
from mopbt.torch.device import free_memory, is_out_of_memory, release_unused_memory

Result = TypeVar("Result")

# Memory for the intermediate results of one call. On a CPU, more than its caches hold is slower.
CPU_BYTES = 2**24
ACCELERATOR_BYTES = 2**31
# The share of free memory that one call may take, and a stack with all that its training needs.
CALL_SHARE = 0.25
STACK_SHARE = 0.5
# Rows that a measurement computes. It repeats them twice, to tell rows from constant parts.
PROBE_ROWS = 8


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of the tensors that are created within it, and their peak.

    Unlike the memory of the process, this does not depend on what ran before, and it is the same
    on every device. Workspaces inside of operators are not counted.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default PyTorch imports its compiler for a mode, which takes a second.
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count the results that need memory of their own."""
        given = {_key_of(tensor) for tensor in _tensors((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if _key_of(tensor) not in given | self._counted:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = storage.nbytes()
        self._counted.add(key)
        self._now += size
        self.peak = max(self.peak, self._now)
        finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self._now -= size


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def _key_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class Limits:
    """How many rows or members a model computes at a time, by computation."""

    def __init__(self) -> None:
        self._limits: dict[Hashable, int] = {}
        self._warned = False

    def find(self, kind: Hashable, measure: Callable[[], int]) -> int:
        """Return a limit, which `measure` determines the first time."""
        if kind not in self._limits:
            self._limits[kind] = measure()
        return self._limits[kind]

    def halve(self, kind: Hashable, tried: int, what: str) -> int:
        """Return half of what did not fit into memory, and warn the first time."""
        self._limits[kind] = max(tried // 2, 1)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{what} ran out of memory with {tried}; it continues with "
                f"{self._limits[kind]} at a time. This is reported once.",
                RuntimeWarning,
                stacklevel=3,
            )
        return self._limits[kind]


_limits: WeakKeyDictionary[nn.Module, Limits] = WeakKeyDictionary()


def limits_of(module: nn.Module) -> Limits:
    """Return the limits of a model, which last as long as the model."""
    return _limits.setdefault(module, Limits())


def map_rows(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    *,
    module: nn.Module,
    device: torch.device,
    kind: Hashable = "",
    dim: int = 0,
) -> Tensor:
    """Compute a function of rows in parts that fit into memory, and join its results.

    Args:
        function: A function of tensors on the device, each of whose results belongs to one row.
        tensors: Tensors with the same number of rows, on any device.
        module: The model that the function calls.
        device: The device to compute on.
        kind: Tells computations of different size apart that the same model makes.
        dim: The dimension of the rows in the result.
    """
    limits = limits_of(module)
    key = (kind, *((t.dtype, t.shape[1:]) for t in tensors))
    n = len(tensors[0])

    def compute(begin: int, end: int) -> Tensor:
        return function(*(t[begin:end].to(device) for t in tensors))

    # Few rows are computed together, and say nothing about how many others fit.
    rows = max(n, 1)
    if n > 2 * PROBE_ROWS:
        rows = limits.find(key, lambda: _measure_rows(compute, device))
    parts: list[Tensor] = []
    begin = 0
    while begin < n or not parts:
        part = attempt(partial(compute, begin, begin + rows), device, final=rows == 1)
        if part is None:
            rows = limits.halve(key, min(rows, n), "Computing rows")
            continue
        parts.append(part)
        begin += rows
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def map_members(
    function: Callable[[slice], list[Result]],
    n: int,
    *,
    module: nn.Module,
    device: torch.device,
    measure: Callable[[], int],
) -> list[Result]:
    """Compute a function of members in stacks that fit, and join its results.

    Args:
        function: A function of consecutive members.
        n: The number of members.
        module: The model of the members.
        device: The device to compute on.
        measure: Returns how many bytes each member of a stack needs.
    """
    limits = limits_of(module)
    size = limits.find("stack", lambda: _members_that_fit(n, measure(), device))
    results: list[Result] = []
    while len(results) < n:
        part = slice(len(results), len(results) + size)
        done = attempt(partial(function, part), device, final=size == 1)
        if done is None:
            size = limits.halve("stack", min(size, n), "Training members as a stack")
        else:
            results += done
    return results


def _members_that_fit(n: int, needed: int, device: torch.device) -> int:
    """Return how many members may be stacked, and warn if these are not all."""
    free = STACK_SHARE * free_memory(device)
    if needed * n <= free:
        return n
    size = max(int(free // needed), 1)
    warnings.warn(
        f"a stack of {n} members needs about {needed * n / 2**30:.1f} GiB of memory; {size} of "
        f"them train at a time",
        RuntimeWarning,
        stacklevel=2,
    )
    return size


def attempt(
    compute: Callable[[], Result], device: torch.device, *, final: bool = False
) -> Result | None:
    """Compute something, or return None if there is not enough memory.

    Args:
        compute: What to compute.
        device: Where it is computed.
        final: Raise the error for want of memory instead.
    """
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        if final or not is_out_of_memory(error):
            raise
    # The error has held the tensors of the attempt until here.
    release_unused_memory(device)
    return None


def _measure_rows(compute: Callable[[int, int], Any], device: torch.device) -> int:
    """Return how many rows fit into the memory of one call, a power of 2."""
    peaks = []
    with global_seeds(0):
        for rows in (PROBE_ROWS, 2 * PROBE_ROWS):
            with live_bytes() as counted:
                if attempt(partial(compute, 0, rows), device) is None:
                    return PROBE_ROWS
            peaks.append(counted.peak)
    per_row = max((peaks[1] - peaks[0]) / PROBE_ROWS, 1.0)
    constant = max(peaks[0] - per_row * PROBE_ROWS, 0.0)
    largest = CPU_BYTES if device.type == "cpu" else ACCELERATOR_BYTES
    rows = int((min(largest, CALL_SHARE * free_memory(device)) - constant) / per_row)
    # Powers of 2 make the parts, and thus the rounding, depend less on the free memory.
    return 1 << max(rows.bit_length() - 1, 0) if rows > 0 else 1


@contextmanager
def live_bytes() -> Iterator[LiveBytes]:
    """Count the bytes of tensors that are created and alive at the same time."""
    counted = LiveBytes()
    with counted:
        yield counted
