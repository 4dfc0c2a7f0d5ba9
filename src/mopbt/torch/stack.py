"""Members side by side: parameters and optimizer state as flat rows, everything else stacked along a first axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mopbt.errors import TaskError

Tree = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a parameter stands in a row."""

    begin: int
    end: int
    shape: torch.Size

    def of(self, rows: Tensor) -> Tensor:
        """Return the parameter's part of rows (N, P) or of one row (P,)."""
        return rows[..., self.begin : self.end].view(*rows.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Layout:
    """How a model's state is laid out: trained parameters in a row, all other state by name."""

    places: Mapping[str, Place]
    others: tuple[str, ...]  # buffers and frozen parameters that belong to the state_dict
    aliases: Mapping[str, str]  # further names of tied parameters
    size: int

    @staticmethod
    def of(module: nn.Module) -> "Layout":
        """Return the layout of a model."""
        places, begin = {}, 0
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise TaskError("the model has no parameters to train")
        kinds = {(p.dtype, p.is_complex()) for p in trained.values()}
        if len(kinds) > 1:
            raise TaskError(f"the model's parameters must be of one type, got {sorted(str(dtype) for dtype, _ in kinds)}")
        for name, p in trained.items():
            places[name] = Place(begin, begin + p.numel(), p.shape)
            begin += p.numel()
        first = {id(p): name for name, p in trained.items()}
        named = dict(module.named_parameters(remove_duplicate=False))
        aliases = {name: first[id(p)] for name, p in named.items() if id(p) in first and first[id(p)] != name}
        others = tuple(name for name in module.state_dict() if name not in places and name not in aliases)
        return Layout(places, others, aliases, begin)

    def by_name(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parts of rows by parameter."""
        return {name: place.of(rows) for name, place in self.places.items()}

    def row(self, tensors: Mapping[str, Tensor], out: Tensor) -> None:
        """Write the tensors of all parameters into a row (P,)."""
        for name, place in self.places.items():
            if name not in tensors or tensors[name].shape != place.shape:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise TaskError(f"the parameter {name!r} must have the shape {tuple(place.shape)} in every member, got {got}")
            place.of(out).copy_(tensors[name])

    def attach(self, module: nn.Module, stack: "Stack", member: int, gradients: Tensor | None) -> None:
        """Let a model's parameters, gradients and buffers be a member's: training the model then trains that member."""
        for name, parameter in module.named_parameters():
            if name in self.places:
                parameter.data = self.places[name].of(stack.parameters[member])
                parameter.grad = None if gradients is None else self.places[name].of(gradients[member])
        for name in self.others:
            owner, _, leaf = name.rpartition(".")
            holder = module.get_submodule(owner)
            if leaf in holder._buffers:
                holder._buffers[leaf] = stack.others[name][member]
            else:
                getattr(holder, leaf).data = stack.others[name][member]


@dataclass
class Stack:
    """N members: rows of parameters and slots (N, P), other state (N, ...), and how many updates each has had."""

    layout: Layout
    parameters: Tensor
    slots: dict[str, Tensor]
    others: dict[str, Tensor]
    updates: Tensor  # (N,)

    @staticmethod
    def of(members: Sequence[Tree], layout: Layout, slots: Sequence[str], device: torch.device) -> "Stack":
        """Copy members into a stack; what they were is left alone."""
        first = next(iter(members[0]["model"][name] for name in layout.places))
        rows = {name: torch.zeros(len(members), layout.size, dtype=first.dtype, device=device) for name in ("", *slots)}
        for i, member in enumerate(members):
            layout.row(member["model"], rows[""][i])
            for slot in slots:
                if member["optimizer"]:
                    layout.row(member["optimizer"][slot], rows[slot][i])
        others = {name: torch.stack([member["model"][name].to(device) for member in members]) for name in layout.others}
        updates = torch.tensor([float(member["updates"]) for member in members], device=device)
        return Stack(layout, rows.pop(""), rows, others, updates)

    def members(self) -> list[Tree]:
        """Return each member as a tree of its own; the tensors are rows of the stack, which nobody changes any more."""
        return [self._member(i) for i in range(len(self.updates))]

    def _member(self, i: int) -> Tree:
        model = self.layout.by_name(self.parameters[i])
        model |= {name: stacked[i] for name, stacked in self.others.items()}
        model |= {alias: model[name] for alias, name in self.layout.aliases.items()}
        optimizer = {slot: self.layout.by_name(rows[i]) for slot, rows in self.slots.items()}
        return {"model": model, "optimizer": optimizer, "updates": int(self.updates[i])}
