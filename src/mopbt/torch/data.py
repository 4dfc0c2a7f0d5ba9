"""Draw batches of training data for the members of a population."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mopbt.rng import stream

Batch = tuple[Tensor, ...]
Augment = Callable[[Batch, Mapping[str, Tensor]], Batch]


class Batches:
    """Training data in random batches.

    The order of the rows depends on a member's seed and step only, so it is the same on every
    engine.

    Args:
        tensors: Inputs, targets and the like, with the rows along their first dimension.
        batch_size: Rows in a batch.
        updates: Batches in a step. By default a step is one pass over the rows, without an
            incomplete last batch.
        shared: Give all members the same batches at the same step. A stack then reads them once.
        augment: A function of a batch and the hyperparameters that returns the batch to train on.
    """

    def __init__(
        self,
        *tensors: Tensor,
        batch_size: int,
        updates: int | None = None,
        shared: bool = False,
        augment: Augment | None = None,
    ) -> None:
        if not tensors or not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
            got = ", ".join(type(t).__name__ for t in tensors) or "nothing"
            raise ValueError(
                f"Batches takes tensors with rows, such as Batches(inputs, labels, "
                f"batch_size=256), got {got}; convert arrays with torch.as_tensor(...)"
            )
        rows = [len(t) for t in tensors]
        if len(set(rows)) > 1:
            raise ValueError(
                f"all tensors must have the same number of rows, one per example, got {rows}"
            )
        self._set_rows(rows[0], batch_size, updates)
        self.tensors: tuple[Tensor, ...] = tensors
        self.shared = shared
        self.augment = augment

    def _set_rows(self, rows: int, batch_size: int, updates: int | None) -> None:
        """Set the number of rows, and of rows and batches that a step takes of them."""
        if not isinstance(batch_size, int) or not 1 <= batch_size <= rows:
            raise ValueError(
                f"`batch_size` must be an integer from 1 to the number of rows {rows}, "
                f"got {batch_size!r}"
            )
        if updates is not None and (not isinstance(updates, int) or updates < 1):
            raise ValueError(
                f"`updates` must be a positive integer, or None for one pass over the rows, "
                f"got {updates!r}"
            )
        self.rows = rows
        self.batch_size = batch_size
        self.updates = updates or rows // batch_size

    def to(self, device: torch.device) -> "Batches":
        """Copy the data to a device."""
        moved = (t.to(device) for t in self.tensors)
        return Batches(
            *moved,
            batch_size=self.batch_size,
            updates=self.updates,
            shared=self.shared,
            augment=self.augment,
        )

    def head(self, n: int) -> Batch:
        """Return the first `n` rows."""
        return tuple(t[:n] for t in self.tensors)

    def is_shared(self, steps: Sequence[int]) -> bool:
        """Check whether members at these steps get the same batches."""
        return self.shared and len(set(steps)) == 1

    def iter_batches(self, seeds: Sequence[int], steps: Sequence[int]) -> Iterator[Batch]:
        """Iterate over the batches of one step of N members.

        Tensors have the shape (N, B, ...), or (B, ...) if the members share the batches.
        """
        # PyTorch's `index_select` takes indices on the device of the data only.
        for rows in self._draw_orders(seeds, steps).to(self.tensors[0].device):
            yield tuple(
                t.index_select(0, rows.reshape(-1)).view(*rows.shape, *t.shape[1:])
                for t in self.tensors
            )

    def _draw_orders(self, seeds: Sequence[int], steps: Sequence[int]) -> Tensor:
        """Draw the rows of N members, shape (updates, N, batch_size), without N if shared."""
        if self.is_shared(steps):
            return self._draw_order(0, steps[0])
        own_seeds = [0] * len(seeds) if self.shared else seeds
        own_orders = [self._draw_order(*own) for own in zip(own_seeds, steps, strict=True)]
        return torch.stack(own_orders, dim=1)

    def _draw_order(self, seed: int, step: int) -> Tensor:
        """Draw the rows of a step's batches, shape (updates, batch_size)."""
        rng = stream(seed, "batches", step)
        needed = self.updates * self.batch_size
        # Every pass over the rows leaves out its incomplete last batch.
        rows_per_pass = self.rows // self.batch_size * self.batch_size
        n_passes = -(-needed // rows_per_pass)
        passes = [
            torch.from_numpy(rng.permutation(self.rows)[:rows_per_pass]) for _ in range(n_passes)
        ]
        return torch.cat(passes)[:needed].view(self.updates, self.batch_size)
