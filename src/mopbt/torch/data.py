"""Training data that knows of the population: each member draws an order of its own, or all share one."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mopbt.rng import stream

Batch = tuple[Tensor, ...]
Augment = Callable[[Batch, Mapping[str, Tensor]], Batch]


class Batches:
    """Tensors with a common first dimension, in random batches.

    A step goes once through the rows, in a new order (incomplete last batches are left out), or makes `updates` batches of them.
    The order belongs to a member's seed and step, so it is the same on every engine. With `shared`, all members see the same
    batches at the same step, which reads them once for a whole stack.
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
                f"Batches takes tensors with rows, such as Batches(inputs, labels, batch_size=256), got {got}; "
                f"torch.as_tensor(...) makes one of an array"
            )
        if len({len(t) for t in tensors}) > 1:
            raise ValueError(
                f"the tensors must have equally many rows, got {[len(t) for t in tensors]}; a row is an example"
            )
        if not isinstance(batch_size, int) or not 1 <= batch_size <= len(tensors[0]):
            raise ValueError(
                f"`batch_size` must be a whole number from 1 to the number of rows {len(tensors[0])}, got {batch_size!r}"
            )
        if updates is not None and (not isinstance(updates, int) or updates < 1):
            raise ValueError(
                f"`updates` must be a whole number of at least 1, or None for a whole pass, got {updates!r}"
            )
        self.tensors = tensors
        self.batch_size = batch_size
        self.updates = updates or len(tensors[0]) // batch_size
        self.shared = shared
        self.augment = augment

    def to(self, device: torch.device) -> "Batches":
        """Return the same data on a device."""
        moved = (t.to(device) for t in self.tensors)
        return Batches(
            *moved,
            batch_size=self.batch_size,
            updates=self.updates,
            shared=self.shared,
            augment=self.augment,
        )

    def head(self, n: int) -> Batch:
        """Return the first rows, for checks."""
        return tuple(t[:n] for t in self.tensors)

    def is_shared(self, steps: Sequence[int]) -> bool:
        """Tell whether members at these steps see the same batches."""
        return self.shared and len(set(steps)) == 1

    def of_members(self, seeds: Sequence[int], steps: Sequence[int]) -> Iterator[Batch]:
        """Go through the batches of one step of several members: tensors (N, B, ...), or (B, ...) where all share them."""
        if self.is_shared(steps):
            orders = self._order(0, steps[0])
        else:
            own = [0] * len(seeds) if self.shared else seeds
            orders = torch.stack(
                [self._order(seed, step) for seed, step in zip(own, steps, strict=True)], dim=1
            )
        for rows in orders:
            yield tuple(
                t.index_select(0, rows.reshape(-1)).view(*rows.shape, *t.shape[1:])
                for t in self.tensors
            )

    def _order(self, seed: int, step: int) -> Tensor:
        """Return the rows of a step's batches, shape (updates, batch_size)."""
        rng, rows, wanted = (
            stream(seed, "batches", step),
            len(self.tensors[0]),
            self.updates * self.batch_size,
        )
        whole = rows // self.batch_size * self.batch_size  # of a pass
        passes = [rng.permutation(rows)[:whole] for _ in range(-(-wanted // whole))]
        order = torch.cat([torch.from_numpy(p) for p in passes])[:wanted]
        return order.view(self.updates, self.batch_size)
