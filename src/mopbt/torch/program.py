"""Build a task's model on its device, and compute its loss."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mopbt.errors import TaskError
from mopbt.torch.data import Augment, Batch
from mopbt.torch.hyperparameters import without_tracking
from mopbt.torch.layers import Dropout, Hyperparameter
from mopbt.torch.stack import Layout

Loss = Callable[[Callable[..., Any], Batch, Mapping[str, Any]], Tensor]


@dataclass(frozen=True)
class Program:
    """A model on its device, with everything that its loss depends on.

    Attributes:
        module: The model; its parameters are replaced by those of the members it computes for.
        call: The same model, compiled if the task asks for it.
        layout: The layout of its state.
        device: Where it computes.
        loss: The task's loss.
        augment: Changes a batch by the hyperparameters before the loss sees it.
        autocast: The type for mixed precision; None for full precision.
    """

    module: nn.Module
    call: Callable[..., Any]
    layout: Layout
    device: torch.device
    loss: Loss
    augment: Augment | None
    autocast: torch.dtype | None

    def compute_loss(
        self, model: Callable[..., Any], batch: Batch, hp: Mapping[str, Any]
    ) -> Tensor:
        """Augment a batch and compute the loss of a model on it."""
        with self._precision():
            loss = self.loss(model, self.augmented(batch, hp), hp)
        if not isinstance(loss, Tensor):
            got = repr(loss)
        elif loss.dim():
            got = f"a tensor of shape {tuple(loss.shape)}"
        else:
            return loss
        raise TaskError(
            f"`loss` must return a tensor without dimensions, got {got}; take its mean or sum"
        )

    def augmented(self, batch: Batch, hp: Mapping[str, Any]) -> Batch:
        """Return a batch as the loss sees it."""
        return batch if self.augment is None else self.augment(batch, hp)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def tuned_buffers(self, hp: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the members' values (N,) for the buffers of tuned modules.

        `record_reads` then records only those modules that are called from here on.
        """
        plain = without_tracking(hp)
        buffers = {}
        for path, part in self.module.named_modules():
            prefix = f"{path}." if path else ""
            if isinstance(part, Hyperparameter):
                part.was_read = False
                values = [float(own[part.name]) for own in plain]
                buffers[f"{prefix}value"] = torch.tensor(values, device=self.device)
            elif isinstance(part, Dropout) and part.p is None:
                # With one value per member, masks differ even where members share their inputs.
                buffers[f"{prefix}constant"] = part.constant.repeat(len(hp))
        return buffers

    def record_reads(self, hp: Sequence[Mapping[str, Any]]) -> None:
        """Mark the hyperparameters of those tuned modules that were called as read."""
        for part in self.module.modules():
            if isinstance(part, Hyperparameter) and part.was_read:
                for own in hp:
                    own[part.name]
