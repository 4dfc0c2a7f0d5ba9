"""Optimizers with tunable rates, for members whose parameters are flat rows.

A field that is a string names a hyperparameter, so that every member has its own rate. Updates use
PyTorch's fused kernels, one row at a time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

Rate = float | str


class Schedule(Protocol):
    """How the learning rate changes with a member's own step."""

    def __call__(self, position: float) -> float:
        """Return the factor at a position in training, from 0 (its begin) to 1 (its end)."""


@dataclass(frozen=True)
class Constant:
    """Keep the learning rate constant."""

    def __call__(self, position: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """Decrease the learning rate to 0 over the entire training, along half a cosine."""

    def __call__(self, position: float) -> float:
        """Return the factor at a position from 0 to 1."""
        return 0.5 * (1 + math.cos(math.pi * position))


@dataclass(frozen=True)
class Steps:
    """Multiply the learning rate by `factor` at certain positions in training.

    Args:
        at: The positions, as fractions of the entire training.
        factor: What the rate is multiplied by at each position.
    """

    at: tuple[float, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not all(0 < position < 1 for position in self.at):
            raise ValueError(f"`at` must be fractions of the training in (0, 1), got {self.at!r}")

    def __call__(self, position: float) -> float:
        """Return the factor at a position from 0 to 1."""
        return float(self.factor ** sum(position >= at for at in self.at))


@runtime_checkable
class Optimizer(Protocol):
    """An update rule with named slots of state, each with one value per parameter."""

    slots: ClassVar[tuple[str, ...]]

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of the learning rate."""

    def rates(self) -> Mapping[str, Rate]:
        """Return the fields that can be tuned."""

    def update(
        self,
        row: Tensor,
        gradient: Tensor,
        slots: Mapping[str, Tensor],
        updates: Tensor,
        rates: Mapping[str, float],
    ) -> None:
        """Update one member's parameters (P,) and slots (P,) in place.

        `updates` counts the member's updates, including this one.
        """


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
                f"AdamW: `eps` must be a positive number (it cannot be tuned), got {self.eps!r}"
            )
        if len(self.betas) != 2 or any(isinstance(b, str) or not 0 <= b < 1 for b in self.betas):
            raise ValueError(
                f"AdamW: `betas` must be two numbers in [0, 1) (they cannot be tuned), "
                f"got {self.betas!r}"
            )

    def rates(self) -> Mapping[str, Rate]:
        """Return the fields that can be tuned."""
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
            [row],
            [gradient],
            [slots["exp_avg"]],
            [slots["exp_avg_sq"]],
            [],
            [updates],
            lr=rates["lr"],
            weight_decay=rates["weight_decay"],
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with classical or Nesterov momentum."""

    slots: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    lr: Rate = 0.1
    weight_decay: Rate = 0.0
    momentum: Rate = 0.9
    nesterov: bool = False
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        check_rates(self)

    def rates(self) -> Mapping[str, Rate]:
        """Return the fields that can be tuned."""
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
        buffer = slots["momentum_buffer"]
        momentum = rates["momentum"]
        if not momentum:
            # PyTorch's kernel then takes no buffer. Keep ours up to date, because the momentum
            # may be raised in a later interval.
            torch.add(gradient, row, alpha=rates["weight_decay"], out=buffer)
        torch._fused_sgd_(
            [row],
            [gradient],
            [buffer] if momentum else [],
            lr=rates["lr"],
            weight_decay=rates["weight_decay"],
            momentum=momentum,
            dampening=0.0,
            nesterov=self.nesterov and momentum > 0,
            maximize=False,
            is_first_step=False,
        )


def check_rates(optimizer: Any) -> None:
    """Raise ValueError unless all rates and the schedule of an optimizer are valid."""
    for name, rate in optimizer.rates().items():
        if isinstance(rate, str) and rate:
            continue
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise ValueError(
                f"{type(optimizer).__name__}: `{name}` must be a number of at least 0 or the name "
                f"of a hyperparameter, got {rate!r}"
            )
    if not callable(optimizer.schedule) or isinstance(optimizer.schedule, type):
        raise ValueError(
            f"`schedule` must be an object such as Cosine() or Steps((0.5, 0.75)), "
            f"got {optimizer.schedule!r}"
        )


def clip_rows(gradients: Tensor, max_norm: float) -> None:
    """Clip each row of gradients (N, P) in place to a norm of `max_norm`."""
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    gradients.mul_((max_norm / (norms + 1e-6)).clamp_(max=1.0))


def resolve_rates(
    rates: Mapping[str, Rate], hp: Sequence[Mapping[str, Any]]
) -> list[dict[str, float]]:
    """Return each member's rates as numbers; this reads the hyperparameters."""
    resolved = []
    for own in hp:
        values = {name: own[r] if isinstance(r, str) else r for name, r in rates.items()}
        resolved.append({name: float(value) for name, value in values.items()})
    return resolved
