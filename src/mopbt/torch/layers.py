"""Hyperparameters inside a model: values that differ between the members of a population, also when these are stacked."""

from typing import Any

import torch
from torch import Tensor, nn


class Tuned(nn.Module):
    """A hyperparameter inside a model: calling it gives its value as a tensor without dimensions.

    The structure of a model must not depend on a hyperparameter; its arithmetic may, through modules of this kind. The value is
    part of the state_dict, so that a loaded model computes what was measured, unless only training uses it (`training_only`).
    """

    value: Tensor

    def __init__(self, name: str, *, training_only: bool = False) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"Tuned takes the name of a hyperparameter, got {name!r}")
        self.name = name
        self.was_read = False  # since somebody last asked; a module that is never called tunes nothing
        self.register_buffer("value", torch.zeros(()), persistent=not training_only)

    def forward(self) -> Tensor:
        """Return the value that this member has now."""
        self.was_read = True
        return self.value

    def extra_repr(self) -> str:
        """Return the hyperparameter's name, for printing."""
        return repr(self.name)


class Dropout(nn.Module):
    """Dropout whose probability is a hyperparameter by name, ``Dropout("dropout")``, or a number, and which is cheap on a CPU.

    Masks take 16 random bits an element from 64-bit draws, a fraction of the cost of a draw for each element; a probability is
    therefore a multiple of 1/65536.
    """

    constant: Tensor

    def __init__(self, p: float | str) -> None:
        super().__init__()
        if not isinstance(p, str) and not 0 <= p < 1:
            raise ValueError(f"`p` must be in [0, 1), or name a hyperparameter, got {p!r}")
        self.p = Tuned(p, training_only=True) if isinstance(p, str) else None
        if self.p is None:
            self.register_buffer("constant", torch.tensor(float(p)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements while training, and nothing while evaluating."""
        if not self.training:
            return x
        mask: Tensor = torch.ops.mopbt.mask_like(x.detach(), self.constant if self.p is None else self.p())
        return x * mask

    def extra_repr(self) -> str:
        """Return the probability, for printing."""
        return "" if self.p is not None else f"p={float(self.constant):g}"


def keep_scale(shape: torch.Size, p: Tensor) -> Tensor:
    """Return 1 / (1 - p) where an element is kept and 0 where it is dropped; `p` broadcasts to the shape."""
    if p.device.type != "cpu":
        return (torch.rand(shape, device=p.device) >= p) * _scale(p)
    n, kept = shape.numel(), torch.empty(shape)
    draws = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    threshold = (p * 65536 - 32768).round().clamp(-32768, 32767).to(torch.int16)
    torch.ge(draws.view(torch.int16)[:n].view(shape), threshold, out=kept)  # straight into floats: a quarter of the time
    return kept.mul_(_scale(p))


def _scale(p: Tensor) -> Tensor:
    return torch.where(p < 1, 1 / (1 - p), 0.0)  # a probability of 1 drops all, as PyTorch's own does


# An operation of its own, which knows how to be stacked: all members' masks come from one draw. (A torch.autograd.Function does the
# same at twice the cost of a call; torch.library.custom_op imports the compiler at its first call, which takes a second.)
LIBRARY = torch.library.Library("mopbt", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("mask_like(Tensor x, Tensor p) -> Tensor")  # type: ignore[no-untyped-call]


def mask_like(x: Tensor, p: Tensor) -> Tensor:
    """Return what an input is to be multiplied by."""
    return keep_scale(x.shape, p).to(x.dtype)


def stacked_masks(info: Any, in_dims: Any, x: Tensor, p: Tensor) -> tuple[Tensor, int]:
    """Return the masks of a whole stack."""
    x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    p = p if in_dims[1] is None else p.reshape(-1, *[1] * (x.dim() - 1))
    return torch.ops.mopbt.mask_like(x, p), 0  # through the dispatcher, so that it draws below the stack


LIBRARY.impl("mask_like", mask_like, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_vmap("mopbt::mask_like", stacked_masks, lib=LIBRARY)
torch.library.register_fake("mopbt::mask_like", lambda x, p: torch.empty_like(x), lib=LIBRARY)
