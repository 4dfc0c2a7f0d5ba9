"""Optimizers over flat rows of parameters: one row a member, each with a learning rate and a weight decay of its own.

A field that is a string names a hyperparameter. The arithmetic is PyTorch's own fused update, a row at a time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

Rate = float | str
Slots = Mapping[str, Tensor]


class Schedule(Protocol):
    """How a learning rate changes with a member's own step."""

    def __call__(self, position: float) -> float:
        """Return the factor at a position in training, from 0 at its beginning to 1 at its end."""


@dataclass(frozen=True)
class Constant:
    """The rate stays as it is."""

    def __call__(self, position: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """The rate falls to 0 over the whole training, along half a cosine."""

    def __call__(self, position: float) -> float:
        """Return the factor at a position from 0 to 1."""
        return 0.5 * (1 + math.cos(math.pi * position))


@dataclass(frozen=True)
class Steps:
    """The rate is multiplied by `factor` at each of the positions `at`, which are shares of the whole training."""

    at: tuple[float, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not all(0 < position < 1 for position in self.at):
            raise ValueError(f"`at` must be shares of the training in (0, 1), got {self.at!r}")

    def __call__(self, position: float) -> float:
        """Return the factor at a position from 0 to 1."""
        return float(self.factor ** sum(position >= at for at in self.at))


class Optimizer(Protocol):
    """An update rule with named slots of state, one value for each parameter."""

    slots: ClassVar[tuple[str, ...]]

    @property
    def schedule(self) -> Schedule:
        """Return how the learning rate changes."""

    def rates(self) -> Mapping[str, Rate]:
        """Return the fields that may be hyperparameters."""

    def update(
        self,
        row: Tensor,
        gradient: Tensor,
        slots: Mapping[str, Tensor],
        updates: Tensor,
        rates: Mapping[str, float],
    ) -> None:
        """Update one member's parameters (P,) and slots (P,) in place; `updates` counts its updates, this one included."""


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter)."""

    slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    lr: Rate = 1e-3
    weight_decay: Rate = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        check_rates(self)
        if isinstance(self.eps, str) or not self.eps > 0:
            raise ValueError(
                f"AdamW: `eps` must be a number above 0 (it cannot be tuned), got {self.eps!r}"
            )
        if len(self.betas) != 2 or any(
            isinstance(beta, str) or not 0 <= beta < 1 for beta in self.betas
        ):
            raise ValueError(
                f"AdamW: `betas` must be two numbers in [0, 1) (they cannot be tuned), got {self.betas!r}"
            )

    def rates(self) -> Mapping[str, Rate]:
        """Return the fields that may be hyperparameters."""
        return {"lr": self.lr, "weight_decay": self.weight_decay}

    def update(
        self,
        row: Tensor,
        gradient: Tensor,
        slots: Mapping[str, Tensor],
        updates: Tensor,
        rates: Mapping[str, float],
    ) -> None:
        """Update one member's parameters (P,) and slots (P,) in place."""
        torch._fused_adamw_(
            [row], [gradient], [slots["exp_avg"]], [slots["exp_avg_sq"]], [], [updates],
            amsgrad=False, maximize=False, lr=rates["lr"], weight_decay=rates["weight_decay"],
            beta1=self.betas[0], beta2=self.betas[1], eps=self.eps,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum, Nesterov's or the classical one."""

    slots: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    lr: Rate = 0.1
    weight_decay: Rate = 0.0
    momentum: Rate = 0.9
    nesterov: bool = False
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        check_rates(self)

    def rates(self) -> Mapping[str, Rate]:
        """Return the fields that may be hyperparameters."""
        return {"lr": self.lr, "weight_decay": self.weight_decay, "momentum": self.momentum}

    def update(
        self,
        row: Tensor,
        gradient: Tensor,
        slots: Mapping[str, Tensor],
        updates: Tensor,
        rates: Mapping[str, float],
    ) -> None:
        """Update one member's parameters (P,) and slots (P,) in place."""
        buffer, momentum = slots["momentum_buffer"], rates["momentum"]
        if not momentum:  # PyTorch then wants no buffer; ours is what it would be, for when the momentum is raised
            torch.add(gradient, row, alpha=rates["weight_decay"], out=buffer)
        torch._fused_sgd_(
            [row], [gradient], [buffer] if momentum else [], is_first_step=False, maximize=False, dampening=0.0,
            lr=rates["lr"], weight_decay=rates["weight_decay"], momentum=momentum, nesterov=self.nesterov and momentum > 0,
        )  # fmt: skip


def check_rates(optimizer: Any) -> None:
    """Raise ValueError unless every rate is a number of at least 0 or names a hyperparameter."""
    for name, rate in optimizer.rates().items():
        if isinstance(rate, str) and rate:
            continue
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            kind = type(optimizer).__name__
            raise ValueError(
                f"{kind}: `{name}` must be a number of at least 0, or name a hyperparameter, got {rate!r}"
            )
    if not callable(optimizer.schedule) or isinstance(optimizer.schedule, type):
        raise ValueError(
            f"`schedule` must be an object such as Cosine() or Steps((0.5, 0.75)), got {optimizer.schedule!r}"
        )


def clip_rows(gradients: Tensor, most: float) -> None:
    """Scale each row of gradients (N, P) so that its norm is at most `most`, in place; rows do not touch each other."""
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    gradients.mul_((most / (norms + 1e-6)).clamp_(max=1.0))


def resolved(rates: Mapping[str, Rate], hp: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return each member's rates as numbers; reading a hyperparameter here counts as reading it."""
    return [
        {
            name: float(v[rate]) if isinstance(rate, str) else float(rate)
            for name, rate in rates.items()
        }
        for v in hp
    ]
