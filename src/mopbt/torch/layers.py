"""Hyperparameters inside a model: values that differ between the members of a population, also when these are stacked."""

import torch
from torch import Tensor, nn


class Hyperparameter(nn.Module):
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
        self.was_read = (
            False  # since somebody last asked; a module that is never called tunes nothing
        )
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
        self.p = Hyperparameter(p, training_only=True) if isinstance(p, str) else None
        if self.p is None:
            self.register_buffer("constant", torch.tensor(float(p)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements while training, and nothing while evaluating."""
        if not self.training:
            return x
        return x * mask_like(x, self.constant if self.p is None else self.p())

    def extra_repr(self) -> str:
        """Return the probability, for printing."""
        return "" if self.p is not None else f"p={float(self.constant):g}"


def mask_like(x: Tensor, p: Tensor) -> Tensor:
    """Return 1 / (1 - p) where an element of `x` is kept and 0 where it is dropped, for a probability without dimensions.

    Inside a stacked program all members' masks come from one draw, as what is drawn into is made like `p`, which is stacked.
    """
    p = p.float()
    left = (1 - p).clamp(
        min=2**-16
    )  # a probability of 1 drops all, as PyTorch's own does, and must not make 0 / 0 of it
    if p.device.type != "cpu":
        return ((torch.rand(x.shape, device=p.device) >= p) / left).to(x.dtype)
    n = x.numel()
    draws = (
        p.new_empty((n + 3) // 4, dtype=torch.int64)
        .random_(-(2**63), None)
        .view(torch.int16)[:n]
        .view(x.shape)
    )
    dropped = (
        (p * 65536).round() - 32769
    )  # the largest draw that drops; all are whole numbers, so that clamping decides
    return draws.float().sub_(dropped).clamp(0, 1).mul_(left.reciprocal()).to(x.dtype)
