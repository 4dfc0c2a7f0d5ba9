"""Load batches from a `Dataset`, for training data that does not fit in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

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
                f"Dataset itself, not its DataLoader"
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
