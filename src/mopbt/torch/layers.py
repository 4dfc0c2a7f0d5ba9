"""Use hyperparameters inside a model, also when members are stacked."""

from typing import Any

import torch
from torch import Tensor, nn


class Hyperparameter(nn.Module):
    """A hyperparameter inside a model.

    A call returns the member's value as a tensor without dimensions. The architecture of a
    model must not depend on hyperparameters. What it computes may, through modules of this kind.

    Args:
        name: Name of the hyperparameter in the task's space.
        training_only: Leave the value out of the state_dict. By default it is included, so that
            a loaded model computes the outputs that were evaluated.
    """

    value: Tensor

    def __init__(self, name: str, *, training_only: bool = False) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"Hyperparameter takes the name of a hyperparameter, got {name!r}")
        self.name = name
        # A task resets this before training. If it stays False, the hyperparameter has no effect.
        self.was_read = False
        self.register_buffer("value", torch.zeros(()), persistent=not training_only)

    def forward(self) -> Tensor:
        """Return the current member's value."""
        self.was_read = True
        return self.value

    def extra_repr(self) -> str:
        """Return the name of the hyperparameter."""
        return repr(self.name)


class Dropout(nn.Module):
    """Dropout with a tunable probability, faster than PyTorch's on a CPU.

    Masks use 16 random bits per element, so the probability is rounded to a multiple of 1/65536.

    Args:
        p: The probability, or the name of a hyperparameter: ``Dropout("dropout")``.
    """

    constant: Tensor

    def __init__(self, p: float | str) -> None:
        super().__init__()
        if not isinstance(p, str) and not 0 <= p < 1:
            raise ValueError(f"`p` must be in [0, 1) or the name of a hyperparameter, got {p!r}")
        self.p = Hyperparameter(p, training_only=True) if isinstance(p, str) else None
        if self.p is None:
            self.register_buffer("constant", torch.tensor(float(p)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements in training mode; return the input unchanged in evaluation mode."""
        if not self.training:
            return x
        return x * draw_mask(x, self.constant if self.p is None else self.p())

    def extra_repr(self) -> str:
        """Return a constant probability; a tuned one is shown as a submodule."""
        return "" if self.p is not None else f"p={float(self.constant):g}"


def draw_mask(x: Tensor, p: Tensor) -> Tensor:
    """Draw a dropout mask of the shape of `x`.

    An element is 0 with the probability `p` (without dimensions), else 1 / (1 - p). In a
    stack, one draw gives the masks of all members.
    """
    p = p.float()
    # With p = 1 everything is dropped, as in PyTorch; the bound avoids 0 / 0.
    keep = (1 - p).clamp(min=2**-16)
    if p.device.type != "cpu":
        return ((torch.rand(x.shape, device=p.device) >= p) / keep).to(x.dtype)
    # A 64-bit draw gives four elements their 16 bits. It is made from `p` and not from `x`: `p`
    # is stacked, so that members get different masks even on shared inputs.
    n = x.numel()
    draws = p.new_empty((n + 3) // 4, dtype=torch.int64)
    draws = random_bits(draws) if torch.compiler.is_compiling() else draws.random_(-(2**63), None)
    bits = draws.view(torch.int16)[:n].view(x.shape)
    # Draws up to this threshold drop their element. All are integers, so clamping to [0, 1]
    # turns their distance to the threshold into the mask.
    threshold = (p * 65536).round() - 32769
    return bits.float().sub_(threshold).clamp(0, 1).mul_(keep.reciprocal()).to(x.dtype)


@torch.library.custom_op("mopbt::random_bits", mutates_args=())
def random_bits(like: Tensor) -> Tensor:
    """Draw all bits of integers at random.

    `torch.compile` has no such operation of its own.
    """
    return torch.empty_like(like).random_(-(2**63), None)


@random_bits.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty_like(like)


@random_bits.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], like: Tensor) -> tuple[Tensor, int]:
    # Every member gets its own draws.
    (axis,) = in_dims
    stacked = like.expand(info.batch_size, *like.shape) if axis is None else like.movedim(axis, 0)
    return random_bits(stacked), 0
