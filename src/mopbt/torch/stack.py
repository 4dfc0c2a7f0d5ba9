"""Members side by side: parameters and optimizer state as flat rows, everything else stacked along a first axis."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mopbt.errors import TaskError

Tree = dict[str, Any]
Row = tuple[
    Tensor, Mapping[str, Tensor], Tensor
]  # a member's parameters (P,), its slots (P,), and how many updates it has had


@dataclass(frozen=True)
class Place:
    """Where a parameter stands in a row."""

    begin: int
    end: int
    shape: torch.Size

    def of(self, rows: Tensor) -> Tensor:
        """Return the parameter's part of rows (N, P) or of one row (P,)."""
        return rows[..., self.begin : self.end].view((*rows.shape[:-1], *self.shape))


@dataclass(frozen=True)
class Layout:
    """How a model's state is laid out: trained parameters in a row, all other state by name."""

    places: Mapping[str, Place]
    others: tuple[str, ...]  # buffers and frozen parameters that belong to the state_dict
    aliases: Mapping[str, str]  # further names of tied parameters and of shared modules' state
    tied: Mapping[
        str, str
    ]  # those of the further names under which a stacked call must be given the state again
    size: int
    dtype: torch.dtype

    @staticmethod
    def of(module: nn.Module) -> "Layout":
        """Return the layout of a model."""
        places, begin = {}, 0
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise TaskError("the model has no parameters to train")
        kinds = {(p.dtype, p.is_complex()) for p in trained.values()}
        if len(kinds) > 1:
            raise TaskError(
                f"the model's parameters must be of one type, got {sorted(str(dtype) for dtype, _ in kinds)}"
            )
        for name, p in trained.items():
            places[name] = Place(begin, begin + p.numel(), p.shape)
            begin += p.numel()
        named = dict(module.named_parameters(remove_duplicate=False)) | dict(
            module.named_buffers(remove_duplicate=False)
        )
        kept = list(module.state_dict())
        if strange := [name for name in kept if name not in named]:
            raise TaskError(
                f"the model's state must be parameters and buffers, got {strange[0]!r} in its state_dict"
            )
        first: dict[int, str] = {}
        for name in kept:
            first.setdefault(id(named[name]), name)
        aliases = {name: first[id(named[name])] for name in kept if first[id(named[name])] != name}
        others = tuple(name for name in kept if name not in places and name not in aliases)
        return Layout(
            places,
            others,
            aliases,
            _in_other_modules(module, aliases),
            begin,
            next(iter(trained.values())).dtype,
        )

    def by_name(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parts of rows by parameter."""
        return {name: place.of(rows) for name, place in self.places.items()}

    def by_parameter(self, module: nn.Module, row: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Return a model's parameters, each with its part of a row (P,)."""
        return [
            (p, self.places[name].of(row))
            for name, p in module.named_parameters()
            if name in self.places
        ]

    def cells(self, module: nn.Module, names: Sequence[str]) -> list["Cell"]:
        """Return where a model keeps the pieces of state of these names, those that are tied to them included."""
        tied = [alias for alias, name in self.tied.items() if name in names]
        return [
            Cell(_holder(module, name), name.rpartition(".")[2], self.tied.get(name, name))
            for name in (*names, *tied)
        ]

    def row(self, tensors: Mapping[str, Tensor], out: Tensor) -> None:
        """Write the tensors of all parameters into a row (P,)."""
        for name, place in self.places.items():
            if name not in tensors or tensors[name].shape != place.shape:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise TaskError(
                    f"the parameter {name!r} must have the shape {tuple(place.shape)} in every member, got {got}; build the same "
                    f"model every time"
                )
            place.of(out).copy_(tensors[name])

    def attach(self, module: nn.Module, stack: "Stack", member: int) -> None:
        """Let a model's parameters and buffers be a member's: changing them then changes that member."""
        for parameter, own in self.by_parameter(module, stack.parameters[member]):
            parameter.data, parameter.grad = own, None
        for name in self.others:
            holder, leaf, own = (
                _holder(module, name),
                name.rpartition(".")[2],
                stack.others[name][member],
            )
            if isinstance(holder[leaf], nn.Parameter):
                holder[leaf].data = own
            else:
                holder[leaf] = own

    def keep_buffers(self, module: nn.Module, stack: "Stack", member: int) -> None:
        """Take over the buffers that a model did not change in place but assigned anew, as in ``self.mean = ...``."""
        for name in self.others:
            holder, leaf, own = (
                _holder(module, name),
                name.rpartition(".")[2],
                stack.others[name][member],
            )
            if holder[leaf].data_ptr() != own.data_ptr():
                holder[leaf] = own.copy_(holder[leaf].detach())


@dataclass(frozen=True)
class Cell:
    """Where a model keeps a piece of its state."""

    holder: dict[str, Any]  # a module's own parameters or buffers
    leaf: str
    name: str  # of the piece in a state


@contextmanager
def swap_parameters(cells: Sequence[Cell], state: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a model compute with a state that is not its own, also inside a stacked program; what it assigns stays in the cells."""
    own = [cell.holder[cell.leaf] for cell in cells]
    for cell in cells:
        cell.holder[cell.leaf] = state[cell.name]
    try:
        yield
    finally:
        for cell, piece in zip(cells, own, strict=True):
            cell.holder[cell.leaf] = piece


@dataclass
class Stack:
    """N members: rows of parameters and slots (N, P), other state (N, ...), and how many updates each has had."""

    layout: Layout
    parameters: Tensor
    slots: dict[str, Tensor]
    others: dict[str, Tensor]
    updates: Tensor  # (N,)

    @staticmethod
    def of(
        members: Sequence[Tree], layout: Layout, slots: Sequence[str], device: torch.device
    ) -> "Stack":
        """Copy members into a stack; what they were is left alone."""
        rows = {
            name: torch.zeros(len(members), layout.size, dtype=layout.dtype, device=device)
            for name in ("", *slots)
        }
        for i, member in enumerate(members):
            layout.row(member["model"], rows[""][i])
            for slot in slots:
                if member["optimizer"]:
                    layout.row(member["optimizer"][slot], rows[slot][i])
        others = {
            name: torch.stack([member["model"][name].to(device) for member in members])
            for name in layout.others
        }
        updates = torch.tensor([float(member["updates"]) for member in members], device=device)
        return Stack(layout, rows.pop(""), rows, others, updates)

    def is_broken(self, member: int) -> bool:
        """Tell whether any of a member's parameters is NaN or infinite."""
        return not bool(torch.isfinite(self.parameters[member]).all())

    @cached_property
    def rows(self) -> list[Row]:
        """Return what an optimizer updates in place, member by member."""
        slots = [
            {name: rows[i] for name, rows in self.slots.items()} for i in range(len(self.updates))
        ]
        return list(zip(self.parameters.unbind(), slots, self.updates.unbind(), strict=True))

    def members(self) -> list[Tree]:
        """Return each member as a tree of its own; the tensors are rows of the stack, which nobody changes any more."""
        return [self._member(i) for i in range(len(self.updates))]

    def _member(self, i: int) -> Tree:
        model = self.layout.by_name(self.parameters[i])
        model |= {name: stacked[i] for name, stacked in self.others.items()}
        model |= {alias: model[name] for alias, name in self.layout.aliases.items()}
        optimizer = {slot: self.layout.by_name(rows[i]) for slot, rows in self.slots.items()}
        return {"model": model, "optimizer": optimizer, "updates": int(self.updates[i])}


def _holder(module: nn.Module, name: str) -> dict[str, Any]:
    """Return the dictionary in which a model keeps a parameter or a buffer."""
    owner, _, leaf = name.rpartition(".")
    part = module.get_submodule(owner)
    return part._parameters if leaf in part._parameters else part._buffers


def _in_other_modules(module: nn.Module, aliases: Mapping[str, str]) -> dict[str, str]:
    """Leave out the names of modules that stand in several places: to such a module state is given once."""

    def place(name: str) -> tuple[int, str]:
        return id(_holder(module, name)), name.rpartition(".")[2]

    seen, tied = {place(name) for name in aliases.values()}, {}
    for alias, name in aliases.items():
        if place(alias) not in seen:
            seen.add(place(alias))
            tied[alias] = name
    return tied
