"""Store several members in one set of tensors.

Trained parameters and optimizer state are flat rows, one row per member. All other state is
stacked along a first axis.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mopbt.errors import TaskError
from mopbt.torch.precision import Scaling

Tree = dict[str, Any]


class OwnedTree(dict[str, Any]):
    """A member that nothing else refers to, so a stack may take its memory."""


# A member's parameters (P,), its optimizer slots (P,), and its number of updates.
Row = tuple[Tensor, Mapping[str, Tensor], Tensor]


@dataclass(frozen=True)
class Span:
    """The part of a row that holds one parameter."""

    begin: int
    end: int
    shape: torch.Size

    def of(self, rows: Tensor) -> Tensor:
        """Return the parameter as a view of rows (N, P) or of one row (P,)."""
        return rows[..., self.begin : self.end].view((*rows.shape[:-1], *self.shape))


@dataclass(frozen=True)
class Cell:
    """The entry of a module's dictionary that stores one tensor of the model's state."""

    tensors: dict[str, Any]
    key: str
    name: str

    @staticmethod
    def find(module: nn.Module, name: str) -> "Cell":
        """Find the entry of a parameter or a buffer, given its name in the state_dict."""
        owner, _, key = name.rpartition(".")
        part = module.get_submodule(owner)
        return Cell(part._parameters if key in part._parameters else part._buffers, key, name)

    def get(self) -> Any:
        """Return the stored tensor."""
        return self.tensors[self.key]

    def set(self, tensor: Any) -> None:
        """Store another tensor."""
        self.tensors[self.key] = tensor


@dataclass(frozen=True)
class Layout:
    """How a model's state is stored: trained parameters in a row, the rest by name.

    Attributes:
        spans: The part of a row for each trained parameter.
        others: Buffers and frozen parameters in the state_dict.
        aliases: Further names of tied parameters and shared modules, with the first name of each.
        tied: The aliases that are separate entries of a module. Replacing the state of a model
            must replace them too.
        size: Number of trained parameters P.
        dtype: Their type.
    """

    spans: Mapping[str, Span]
    others: tuple[str, ...]
    aliases: Mapping[str, str]
    tied: Mapping[str, str]
    size: int
    dtype: torch.dtype

    @staticmethod
    def of(module: nn.Module) -> "Layout":
        """Lay out the state of a model."""
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise TaskError("the model has no parameters to train")
        dtypes = {p.dtype for p in trained.values()}
        if len(dtypes) > 1:
            raise TaskError(
                f"the model's parameters must be of one type, got {sorted(map(str, dtypes))}"
            )
        spans = {}
        size = 0
        for name, p in trained.items():
            spans[name] = Span(size, size + p.numel(), p.shape)
            size += p.numel()
        aliases = _find_aliases(module)
        stored = spans.keys() | aliases.keys()
        others = tuple(name for name in module.state_dict() if name not in stored)
        tied = _separate_entries(module, aliases)
        return Layout(spans, others, aliases, tied, size, dtypes.pop())

    def by_name(self, rows: Tensor) -> dict[str, Tensor]:
        """Split rows (N, P) or one row (P,) into parameters."""
        return {name: span.of(rows) for name, span in self.spans.items()}

    def by_parameter(self, module: nn.Module, row: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Pair the trained parameters of a model with their parts of a row (P,)."""
        return [
            (p, self.spans[name].of(row))
            for name, p in module.named_parameters()
            if name in self.spans
        ]

    def cells(self, module: nn.Module, more: Iterable[str] = ()) -> list[Cell]:
        """Find the entries that store a model's state and the buffers in `more`.

        The entries of tied state come last and carry the name of the tensor they are tied to.
        """
        cells = [Cell.find(module, name) for name in (*self.spans, *self.others, *more)]
        for alias, name in self.tied.items():
            entry = Cell.find(module, alias)
            cells.append(Cell(entry.tensors, entry.key, name))
        return cells

    def write_row(self, tensors: Mapping[str, Tensor], out: Tensor) -> None:
        """Copy the tensors of all trained parameters into a row (P,)."""
        for name, span in self.spans.items():
            if name not in tensors or tensors[name].shape != span.shape:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise TaskError(
                    f"the parameter {name!r} must have the shape {tuple(span.shape)} in every "
                    f"member, got {got}; `model` must build the same architecture every time"
                )
            span.of(out).copy_(tensors[name])

    def attach(self, module: nn.Module, stack: "Stack", member: int) -> None:
        """Make a model share its state with a member; training it trains the member."""
        for parameter, part in self.by_parameter(module, stack.parameters[member]):
            parameter.data = part
            parameter.grad = None
        for name in self.others:
            cell = Cell.find(module, name)
            tensor = stack.others[name][member]
            if isinstance(cell.get(), nn.Parameter):
                cell.get().data = tensor
            else:
                cell.set(tensor)

    def keep_buffers(self, module: nn.Module, stack: "Stack", member: int) -> None:
        """Copy reassigned buffers into the stack, as after ``self.mean = ...`` in a model."""
        for name in self.others:
            cell = Cell.find(module, name)
            tensor = stack.others[name][member]
            if cell.get().data_ptr() != tensor.data_ptr():
                cell.set(tensor.copy_(cell.get().detach()))


@contextmanager
def swap_parameters(cells: Sequence[Cell], state: Mapping[str, Tensor]) -> Iterator[None]:
    """Run a model with another state, also inside `vmap`.

    Tensors that the model assigns can be read from the cells until the context ends.
    """
    before = [cell.get() for cell in cells]
    for cell in cells:
        cell.set(state[cell.name])
    try:
        yield
    finally:
        for cell, tensor in zip(cells, before, strict=True):
            cell.set(tensor)


@dataclass
class Stack:
    """The state of N members.

    Attributes:
        layout: The layout that all members share.
        parameters: Trained parameters, shape (N, P).
        slots: Optimizer state by name, each of shape (N, P).
        others: Buffers and frozen parameters by name, each of shape (N, ...).
        updates: Number of updates of each member, shape (N,).
        averages: Moving averages of the parameters, shape (N, P), if the task keeps them.
        scaling: The scales of the losses, if the task trains in fp16.
    """

    layout: Layout
    parameters: Tensor
    slots: dict[str, Tensor]
    others: dict[str, Tensor]
    updates: Tensor
    averages: Tensor | None = None
    scaling: Scaling | None = None

    @staticmethod
    def of(
        members: Sequence[Tree],
        layout: Layout,
        slots: Sequence[str],
        device: torch.device,
        *,
        averaged: bool = False,
        scaled: bool = False,
        take: bool = False,
    ) -> "Stack":
        """Copy members into a stack.

        With `averaged`, it continues their training: the parameters are the trained ones, and the
        model of each member is the average of them. Otherwise, the parameters are the model's. With
        `scaled`, the losses of the members are scaled. With `take`, the tensors of an `OwnedTree`
        are freed as they are copied.
        """

        def zeros() -> Tensor:
            return torch.zeros(len(members), layout.size, dtype=layout.dtype, device=device)

        parameters = zeros()
        averages = zeros() if averaged else None
        slot_rows = {slot: zeros() for slot in slots}
        others = {
            name: torch.stack([member["model"][name].to(device) for member in members])
            for name in layout.others
        }
        scaling = Scaling.of(members, device) if scaled else None
        for i, member in enumerate(members):
            if averages is not None:
                layout.write_row(member["model"], averages[i])
            # A member that was never trained has no weights but its model's.
            is_trained = averaged and "trained" in member
            layout.write_row(member["trained" if is_trained else "model"], parameters[i])
            is_taken = take and isinstance(member, OwnedTree)
            if is_taken:
                member["model"].clear()
                member.pop("trained", None)
            # A fresh member has no optimizer state: it starts from zeros.
            if member["optimizer"]:
                for slot, rows in slot_rows.items():
                    layout.write_row(member["optimizer"][slot], rows[i])
                    if is_taken:
                        member["optimizer"][slot].clear()
        updates = torch.tensor([float(member["updates"]) for member in members], device=device)
        return Stack(layout, parameters, slot_rows, others, updates, averages, scaling)

    def __len__(self) -> int:
        return len(self.updates)

    def is_finite(self, member: int) -> bool:
        """Check that none of a member's parameters is NaN or infinite."""
        return bool(torch.isfinite(self.parameters[member]).all())

    @cached_property
    def rows(self) -> list[Row]:
        """Return views of what an optimizer updates in place, one row per member."""
        slots = [{name: rows[i] for name, rows in self.slots.items()} for i in range(len(self))]
        return list(zip(self.parameters.unbind(), slots, self.updates.unbind(), strict=True))

    def update_averages(self, decay: float, updated: Tensor | None) -> None:
        """Move the averages toward the parameters, after an update of all or some members.

        The first values weigh as little as they would after a long training, so that a young
        average is not biased toward the weights at the start.
        """
        assert self.averages is not None
        share = (1 - decay) / (1 - decay**self.updates)
        if updated is not None:
            share = torch.where(updated, share, 0.0)
        self.averages.lerp_(self.parameters, share.to(self.averages.dtype)[:, None])

    def members(self) -> list[Tree]:
        """Return the members as trees whose tensors are views of this stack.

        The stack must not be trained afterwards.
        """
        return [self._member(i) for i in range(len(self))]

    def _member(self, i: int) -> Tree:
        rows = self.parameters if self.averages is None else self.averages
        model = self.layout.by_name(rows[i])
        model |= {name: stacked[i] for name, stacked in self.others.items()}
        model |= {alias: model[name] for alias, name in self.layout.aliases.items()}
        optimizer = {slot: self.layout.by_name(rows[i]) for slot, rows in self.slots.items()}
        member = {"model": model, "optimizer": optimizer, "updates": int(self.updates[i])}
        if self.averages is not None:
            member["trained"] = self.layout.by_name(self.parameters[i])
        if self.scaling is not None:
            member["scaling"] = self.scaling.state(i)
        return member


def _find_aliases(module: nn.Module) -> dict[str, str]:
    """Map every further name of a tensor in the state_dict to its first name."""
    tensors: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    first: dict[int, str] = {}
    aliases = {}
    for name in module.state_dict():
        if name not in tensors:
            raise TaskError(
                f"the model's state must be parameters and buffers, got {name!r} in its state_dict"
            )
        original = first.setdefault(id(tensors[name]), name)
        if original != name:
            aliases[name] = original
    return aliases


def _separate_entries(module: nn.Module, aliases: Mapping[str, str]) -> dict[str, str]:
    """Keep the aliases that are entries of their own, not names of a shared module."""

    def entry(name: str) -> tuple[int, str]:
        cell = Cell.find(module, name)
        return id(cell.tensors), cell.key

    seen = {entry(name) for name in aliases.values()}
    tied = {}
    for alias, name in aliases.items():
        if entry(alias) not in seen:
            seen.add(entry(alias))
            tied[alias] = name
    return tied
