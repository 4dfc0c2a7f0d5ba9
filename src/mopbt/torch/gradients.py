"""Compute gradients of one member, or of all members of a stack at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from mopbt.errors import TaskError
from mopbt.torch.data import Batch
from mopbt.torch.hyperparameters import StackedHyperparameters, TensorHyperparameters
from mopbt.torch.precision import stacked_autocast
from mopbt.torch.program import Program
from mopbt.torch.stack import Cell, Stack, swap_parameters


class Gradients(Protocol):
    """The gradients of a stack with given hyperparameters."""

    def __call__(self, batch: Batch, *, shared: bool) -> Tensor:
        """Return the gradients (N, P) of the members' losses, which the stack may scale.

        The tensors of a batch have the shape (N, B, ...), or (B, ...) if all members share it.
        """


GradientMethod = Callable[[Program, Stack, Sequence[Mapping[str, Any]]], Gradients]


class LoopGradients:
    """Compute the gradient (1, P) of a single member by a backward pass."""

    def __init__(self, program: Program, stack: Stack, hp: Sequence[Mapping[str, Any]]) -> None:
        self._program = program
        self._stack = stack
        self._hp = TensorHyperparameters(hp[0], program.device)
        self._gradients = torch.zeros_like(stack.parameters)
        program.layout.attach(program.module, stack, 0)
        self._parts = program.layout.by_parameter(program.module, self._gradients[0])
        for name, value in program.tuned_buffers(hp).items():
            program.module.get_buffer(name).copy_(value[0])

    def __call__(self, batch: Batch, *, shared: bool) -> Tensor:
        """Return the gradient of the member's loss."""
        loss = self._compute_loss(batch if shared else tuple(t[0] for t in batch))
        if not loss.requires_grad:
            raise TaskError(
                "`loss` does not depend on any parameter of the model; compute it from the "
                "model's outputs"
            )
        if self._stack.scaling is not None:
            loss = loss * self._stack.scaling.scales[0]
        self._gradients.zero_()
        # A loss may have replaced or cleared gradients itself, as adversarial attacks do.
        for parameter, part in self._parts:
            parameter.grad = part
        loss.backward()  # type: ignore[no-untyped-call]
        self._program.layout.keep_buffers(self._program.module, self._stack, 0)
        return self._gradients

    def _compute_loss(self, batch: Batch) -> Tensor:
        """Return the member's loss."""
        return self._program.compute_loss(self._program.module, batch, self._hp)


class StackedGradients:
    """Compute the gradients (N, P) of all members of a stack with `vmap`.

    `vmap` calls `member_loss` once with tensors that stand for those of all members. During this
    call, the model's own state is replaced by three groups of tensors with a first axis of N:

    - trained parameters, with respect to which the gradients are taken,
    - other state of the stack, which the model may change, such as running statistics,
    - values of tuned modules that are not part of the state_dict.
    """

    def __init__(self, program: Program, stack: Stack, hp: Sequence[Mapping[str, Any]]) -> None:
        self._program = program
        self._stack = stack
        self._hp = StackedHyperparameters(hp, program.device)
        self._parameters = {
            name: part.detach().requires_grad_()
            for name, part in program.layout.by_name(stack.parameters).items()
        }
        self._tuned = program.tuned_buffers(hp)
        # Tuned values in the state_dict belong to the stack, which writes them to checkpoints.
        for name in stack.others.keys() & self._tuned.keys():
            stack.others[name] = self._tuned.pop(name)
        self._cells = program.layout.cells(program.module, self._tuned)
        self._other_cells = [Cell.find(program.module, name) for name in stack.others]

    def __call__(self, batch: Batch, *, shared: bool) -> Tensor:
        """Return the gradients of the members' losses, and update the stack's other state."""
        losses, others = self._compute_losses(batch, shared=shared)
        self._stack.others |= {name: tensor.contiguous() for name, tensor in others.items()}

        if self._stack.scaling is not None:
            losses = losses * self._stack.scaling.scales
        # A member's loss depends on its own row only, so the sum gives each row its gradient.
        leaves = list(self._parameters.values())
        parts = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        rows = []
        for leaf, part in zip(leaves, parts, strict=True):
            gradient = torch.zeros_like(leaf) if part is None else part
            rows.append(gradient.reshape(len(self._stack), -1))
        return torch.cat(rows, dim=1)

    def _compute_losses(self, batch: Batch, *, shared: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses (N,) of all members, and their other state after the call."""
        losses_of = self._losses_of(self._hp.of_member, shared=shared)
        return losses_of(batch, self._hp.numbers, self._state())

    def _state(self) -> dict[str, Tensor]:
        """Return the tensors that replace the model's own state."""
        return self._parameters | self._stack.others | self._tuned

    def _losses_of(
        self, hp_of_member: Callable[[Tensor], Mapping[str, Any]], *, shared: bool
    ) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
        """Return the losses as a function that does not refer to this stack."""
        program = self._program
        cells = self._cells
        other_cells = self._other_cells
        axes = (None if shared else 0, 0, 0)

        def member_loss(
            batch: Batch, numbers: Tensor, state: Mapping[str, Tensor]
        ) -> tuple[Tensor, dict[str, Tensor]]:
            with swap_parameters(cells, state):
                with stacked_autocast(program.precision, program.device):
                    loss = program.compute_loss(program.module, batch, hp_of_member(numbers))
                # The model may have assigned new tensors to its buffers.
                others = {cell.name: cell.get().detach() for cell in other_cells}
            return loss, others

        def losses_of(
            batch: Batch, numbers: Tensor, state: Mapping[str, Tensor]
        ) -> tuple[Tensor, dict[str, Tensor]]:
            stacked = vmap(member_loss, in_dims=axes, randomness="different")
            found: tuple[Tensor, dict[str, Tensor]] = stacked(batch, numbers, state)
            return found

        return losses_of
