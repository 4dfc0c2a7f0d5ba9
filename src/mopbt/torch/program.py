"""Build a task's model on its device, and compute its loss."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mopbt.errors import TaskError
from mopbt.torch.compiler import Compiler
from mopbt.torch.data import Augment, Batch
from mopbt.torch.hyperparameters import without_tracking
from mopbt.torch.layers import Dropout, Hyperparameter
from mopbt.torch.precision import autocast, matmul_precision
from mopbt.torch.stack import Layout

Loss = Callable[[Callable[..., Any], Batch, Mapping[str, Any]], Tensor]


@dataclass(frozen=True)
class Program:
    """A model on its device, with everything that its loss depends on.

    Attributes:
        module: The model; its parameters are replaced by those of the members it computes for.
        layout: The layout of its state.
        device: Where it computes.
        loss: The task's loss.
        augment: Changes a batch by the hyperparameters before the loss sees it.
        precision: The precision of training.
        compiler: Compiles losses; None if training is not compiled.
    """

    module: nn.Module
    layout: Layout
    device: torch.device
    loss: Loss
    augment: Augment | None
    precision: str
    compiler: Compiler | None = None

    def compute_loss(
        self, model: Callable[..., Any], batch: Batch, hp: Mapping[str, Any]
    ) -> Tensor:
        """Augment a batch and compute the loss of a model on it."""
        with autocast(self.precision, self.device):
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

    @contextmanager
    def training(self) -> Iterator[None]:
        """Train in the precision of the task; the model stays in training mode."""
        self.module.train()
        with matmul_precision(self.precision):
            yield

    def free_gradients(self) -> None:
        """Release the gradients of the last update.

        They take as much memory as the model.
        """
        self.module.zero_grad(set_to_none=True)

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
