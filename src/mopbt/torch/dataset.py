"""Load batches from a `Dataset`, for training data that does not fit in memory."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    default_collate,
    get_worker_info,
)

from mopbt.rng import stream
from mopbt.torch.data import Augment, Batch, Batches
from mopbt.torch.vectorize import cannot_stack

Collate = Callable[[list[Any]], Any]


@runtime_checkable
class Rows(Protocol):
    """A data set that returns its rows by number, such as a map-style Dataset."""

    def __getitem__(self, row: int) -> Any:
        """Return a row."""

    def __len__(self) -> int:
        """Return the number of rows."""


class DatasetBatches(Batches):
    """Training data that a map-style `Dataset` loads row by row, in random batches.

    The order of the rows depends on a member's seed and step only, as in `Batches`, so it is the
    same on every engine and with any number of loader workers.

    Args:
        dataset: An object with `__len__` and `__getitem__`, such as
            `torchvision.datasets.ImageFolder`. Its rows should not be random: use `augment`.
        batch_size: Rows in a batch.
        updates: Batches in a step. By default a step is one pass over the rows.
        shared: Give all members the same batches at the same step.
        augment: A function of a batch and the hyperparameters that returns the batch to train on.
        collate_fn: Turns the rows of a batch into a tensor or a tuple of tensors. A stack needs
            tensors of the same shape for all members.
        loader_workers: Processes that load rows for each worker of the engine. With 0, the worker
            loads them itself.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        updates: int | None = None,
        shared: bool = False,
        augment: Augment | None = None,
        collate_fn: Collate | None = None,
        loader_workers: int = 0,
    ) -> None:
        has_rows = isinstance(dataset, Rows)
        if isinstance(dataset, IterableDataset | DataLoader) or not has_rows:
            raise TypeError(
                f"`dataset` must have numbered rows (`__len__` and `__getitem__`), because each "
                f"member has its own order, got {type(dataset).__name__}; pass the map-style "
                f"Dataset itself, not its DataLoader, or an iterable one to IterableBatches"
            )
        if not isinstance(loader_workers, int) or loader_workers < 0:
            raise ValueError(
                f"`loader_workers` must be an integer of at least 0, got {loader_workers!r}"
            )
        self._set_rows(len(dataset), batch_size, updates)  # type: ignore[arg-type]
        self.tensors = ()
        self.shared = shared
        self.augment = augment
        self.dataset = dataset
        self.collate_fn = collate_fn or default_collate
        self.loader_workers = loader_workers
        self._device = torch.device("cpu")
        self._loader: DataLoader[Any] | None = None
        self._order = _Order()

    def to(self, device: torch.device) -> "DatasetBatches":
        """Return the same data, whose batches are moved to a device."""
        moved = DatasetBatches(
            self.dataset,
            batch_size=self.batch_size,
            updates=self.updates,
            shared=self.shared,
            augment=self.augment,
            collate_fn=self.collate_fn,
            loader_workers=self.loader_workers,
        )
        moved._device = device
        return moved

    def head(self, n: int) -> Batch:
        """Return the first `n` rows."""
        rows = [self.dataset[i] for i in range(min(n, self.rows))]
        return tuple(t.to(self._device) for t in _as_tuple(self.collate_fn(rows)))

    def iter_batches(self, seeds: Sequence[int], steps: Sequence[int]) -> Iterator[Batch]:
        """Iterate over the batches of one step of N members, as `Batches` does."""
        orders = self._draw_orders(seeds, steps)
        self._order.batches = [rows.reshape(-1).tolist() for rows in orders]
        # Loader processes serve all steps. A generator of its own keeps the loader from drawing
        # random numbers of the run.
        self._loader = self._loader or DataLoader(
            self.dataset,
            batch_sampler=self._order,
            collate_fn=_CollateMembers(self.collate_fn, self.batch_size),
            num_workers=self.loader_workers,
            persistent_workers=self.loader_workers > 0,
            generator=torch.Generator().manual_seed(0),
        )
        for batch in self._loader:
            tensors = (t.to(self._device) for t in batch)
            yield tuple(tensors) if orders.dim() == 3 else tuple(t[0] for t in tensors)


@runtime_checkable
class Reshuffled(Protocol):
    """An iterable data set that changes its order, such as a shuffled one."""

    def set_epoch(self, epoch: int) -> None:
        """Iterate in another order from now on, which follows from this number."""


class IterableBatches(Batches):
    """Training data that an iterable `Dataset` yields row by row.

    The rows of a member depend on its seed and step only, so they are the same on every engine. A
    data set with a method `set_epoch(number)` is iterated from its begin at each step, in an order
    that follows from a number of the member and the step. Any other is read on where the step
    before ended, from its begin again at its end; for that, earlier rows are read and skipped.

    Args:
        dataset: An `IterableDataset`. Its rows should not be random otherwise: use `augment`.
        batch_size: Rows in a batch.
        updates: Batches in a step.
        buffer: Rows that are held in memory and drawn from at random, in an order of the member.
            With 0, members differ in their order only by `set_epoch`.
        shared: Give all members the same batches at the same step.
        augment: A function of a batch and the hyperparameters that returns the batch to train on.
        collate_fn: Turns the rows of a batch into a tensor or a tuple of tensors. A stack needs
            tensors of the same shape for all members.
        loader_workers: Processes that load rows for each worker of the engine. With several, the
            data set must split its rows by `torch.utils.data.get_worker_info`, and the order
            depends on their number.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        batch_size: int,
        updates: int,
        buffer: int = 1000,
        shared: bool = False,
        augment: Augment | None = None,
        collate_fn: Collate | None = None,
        loader_workers: int = 0,
    ) -> None:
        if not isinstance(dataset, IterableDataset):
            raise TypeError(
                f"`dataset` must be an IterableDataset, got {type(dataset).__name__}; pass one "
                f"with numbered rows to DatasetBatches"
            )
        counts = {"batch_size": batch_size, "updates": updates}
        least = dict.fromkeys(counts, 1)
        counts |= {"buffer": buffer, "loader_workers": loader_workers}
        for name, value in counts.items():
            if not isinstance(value, int) or value < least.get(name, 0):
                raise ValueError(
                    f"`{name}` must be an integer of at least {least.get(name, 0)}, got {value!r}"
                )
        if not buffer and not shared and not isinstance(dataset, Reshuffled):
            raise ValueError(
                "`buffer` must be at least 1 for a dataset without `set_epoch`, because each "
                "member has its own order, got 0; or give all the same with shared=True"
            )
        self.batch_size = batch_size
        self.updates = updates
        self.tensors = ()
        self.shared = shared
        self.augment = augment
        self.dataset = dataset
        self.buffer = buffer
        self.collate_fn = collate_fn or default_collate
        self.loader_workers = loader_workers
        self._device = torch.device("cpu")

    def to(self, device: torch.device) -> "IterableBatches":
        """Return the same data, whose batches are moved to a device."""
        moved = copy.copy(self)
        moved._device = device
        return moved

    def head(self, n: int) -> Batch:
        """Return the first `n` rows."""
        rows = list(itertools.islice(iter(self.dataset), n))
        return tuple(t.to(self._device) for t in _as_tuple(self.collate_fn(rows)))

    def iter_batches(self, seeds: Sequence[int], steps: Sequence[int]) -> Iterator[Batch]:
        """Iterate over the batches of one step of N members, as `Batches` does."""
        is_shared = self.is_shared(steps)
        members = list(zip([0] * len(seeds) if self.shared else seeds, steps, strict=True))
        streams = _MemberStreams(self, members[:1] if is_shared else members)
        # The rows differ from step to step, so each has its own loader processes.
        loader = DataLoader(
            streams,
            batch_size=None,
            num_workers=self.loader_workers,
            generator=torch.Generator().manual_seed(0),
        )
        for batch in itertools.islice(loader, self.updates):
            tensors = (t.to(self._device) for t in batch)
            yield tuple(t[0] for t in tensors) if is_shared else tuple(tensors)


class _MemberStreams(IterableDataset[Batch]):
    """The batches of one step of several members, with an axis of members."""

    def __init__(self, data: IterableBatches, members: Sequence[tuple[int, int]]) -> None:
        self._data = data
        self._members = members
        self._collate = _CollateMembers(data.collate_fn, data.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        data = self._data
        info = get_worker_info()
        # Each loader process yields its share of the batches.
        updates = math.ceil(data.updates / (1 if info is None else info.num_workers))
        streams = [self._rows_of(seed, step, updates) for seed, step in self._members]
        for _ in range(updates):
            rows: list[Any] = []
            for stream_of in streams:
                rows += itertools.islice(stream_of, data.batch_size)
            yield self._collate(rows)

    def _rows_of(self, seed: int, step: int, updates: int) -> Iterator[Any]:
        """Yield the rows of a member's step in its order."""
        data = self._data
        needed = updates * data.batch_size
        rng = stream(seed, "batches", step)
        if isinstance(data.dataset, Reshuffled):
            read = _repeated(data.dataset, 0, int(rng.integers(2**31)))
        else:
            read = _repeated(data.dataset, step * needed)
        rows = itertools.islice(read, needed)
        if not data.buffer:
            yield from rows
            return
        held = list(itertools.islice(rows, data.buffer))
        for row in rows:
            place = int(rng.integers(len(held)))
            yield held[place]
            held[place] = row
        for place in rng.permutation(len(held)):
            yield held[place]


def _repeated(dataset: IterableDataset[Any], first: int, epoch: int | None = None) -> Iterator[Any]:
    """Yield the rows of a data set repeatedly, from a row on, in an epoch's order."""
    left = first
    while True:
        length = 0
        # Another member, whose rows are read by turns with these, may have set its own.
        if epoch is not None and isinstance(dataset, Reshuffled):
            dataset.set_epoch(epoch)
        for row in dataset:
            length += 1
            if left:
                left -= 1
            else:
                yield row
        if not length:
            raise ValueError("the IterableDataset has no rows")
        left %= length


class _Order:
    """The rows of each batch of the current step, which a loader reads."""

    batches: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _CollateMembers:
    """Collate the rows of each member, and stack the batches of all members."""

    def __init__(self, collate_fn: Collate, batch_size: int) -> None:
        self._collate_fn = collate_fn
        self._batch_size = batch_size

    def __call__(self, rows: list[Any]) -> Batch:
        """Return tensors of the shape (N, B, ...)."""
        begins = range(0, len(rows), self._batch_size)
        batches = [
            _as_tuple(self._collate_fn(rows[begin : begin + self._batch_size])) for begin in begins
        ]
        stacked = []
        for tensors in zip(*batches, strict=True):
            shapes = {tuple(t.shape) for t in tensors}
            if len(shapes) > 1:
                raise cannot_stack(f"batches of its members have the shapes {sorted(shapes)}")
            stacked.append(torch.stack(tensors))
        return tuple(stacked)


def _as_tuple(batch: Any) -> Batch:
    tensors = (batch,) if isinstance(batch, Tensor) else batch
    if isinstance(tensors, tuple | list) and all(isinstance(t, Tensor) for t in tensors):
        return tuple(tensors)
    raise TypeError(
        f"a batch must be a tensor or a tuple of tensors, got {type(batch).__name__}; "
        f"convert it in `collate_fn`"
    )
