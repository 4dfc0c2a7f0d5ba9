"""Compute losses and attacks of the paper's tasks, for one member or a stack.

A hyperparameter is a tensor without dimensions. Nothing here branches on the value of a single
member of a stack.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn import functional as F

# The largest change of a pixel by an attack; images are in [0, 1].
EPSILON = 0.031
STEP = 0.003
# Steps of the attack inside the TRADES loss.
TRAINING_STEPS = 10
EVALUATION_STEPS = 20

# An nn.Module, or its replacement inside a stack: callable for logits, with `training`, `train`
# and `eval`.
Model = Any


def weighted_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the cross entropy of logits (n, 2) with weighted classes.

    Class 0 has the weight `weight`, class 1 has 1 - `weight`. A small `weight` favors recall.
    """
    return F.cross_entropy(logits, y, weight=torch.stack([weight, 1 - weight]))


def fair_cross_entropy(logits: Tensor, y: Tensor, sensitive: Tensor, strength: Tensor) -> Tensor:
    """Return the cross entropy of logits (n, 2) plus a fairness penalty.

    The penalty is `strength` times the gap between the groups' mean probabilities of class 1.
    """
    group = sensitive.bool()
    return F.cross_entropy(logits, y) + strength * gap(logits.softmax(-1)[..., 1], group, ~group)


def gap(p: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return the absolute difference of the means of p (n,) over two masks (n,).

    It is 0 if a mask selects no rows.
    """
    difference = (_masked_mean(p, one) - _masked_mean(p, other)).abs()
    return difference * (one.any() & other.any())


def _masked_mean(p: Tensor, rows: Tensor) -> Tensor:
    return (p * rows).sum() / rows.sum().clamp(min=1)


def trades(
    model: Model,
    x: Tensor,
    y: Tensor,
    beta: Tensor,
    *,
    epsilon: float = EPSILON,
    step: float = STEP,
    steps: int = TRAINING_STEPS,
) -> Tensor:
    """Return the TRADES loss (Zhang et al. 2019) of images (n, ...) in [0, 1].

    The loss is cross entropy + beta KL(f(x) || f(x')). The attack x' is computed in evaluation
    mode. Like the authors' code, the loss then passes natural, attacked and natural images through
    the model in training mode, whatever beta is. BatchNorm statistics therefore have the same
    shares of natural and attacked images in each member, alone and in a stack.
    """
    attacked = _trades_attack(model, x, epsilon, step, steps)
    natural_loss = F.cross_entropy(model(x), y)
    attacked_logits = model(attacked)
    return natural_loss + beta * divergence(model(x), attacked_logits)


def divergence(logits: Tensor, others: Tensor) -> Tensor:
    """Return KL(softmax(logits) || softmax(others)), the mean over rows (n, classes)."""
    ours = logits.log_softmax(-1)
    theirs = others.log_softmax(-1)
    # F.kl_div is slow in a stack.
    return (ours.exp() * (ours - theirs)).sum(-1).mean()


def pgd(
    model: Model,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    *,
    epsilon: float = EPSILON,
    step: float = STEP,
    steps: int = EVALUATION_STEPS,
) -> Tensor:
    """Attack images (n, ...) by projected gradient ascent from `start`.

    The attack increases the cross entropy. The result is within `epsilon` of `x` and in [0, 1].
    """
    return _ascend(model, x, start, lambda logits: F.cross_entropy(logits, y), epsilon, step, steps)


def _trades_attack(model: Model, x: Tensor, epsilon: float, step: float, steps: int) -> Tensor:
    with evaluation_mode(model), torch.no_grad():
        target = model(x)
    # At x itself the gradient of the divergence is 0.
    start = x + 0.001 * torch.randn_like(x)
    return _ascend(model, x, start, lambda logits: divergence(target, logits), epsilon, step, steps)


def _ascend(
    model: Model,
    x: Tensor,
    at: Tensor,
    loss: Callable[[Tensor], Tensor],
    epsilon: float,
    step: float,
    steps: int,
) -> Tensor:
    """Maximize the loss of the logits by projected gradient ascent from `at`."""
    low = (x - epsilon).clamp(min=0)
    high = (x + epsilon).clamp(max=1)
    with evaluation_mode(model), torch.no_grad():
        for _ in range(steps):
            direction = _gradient(lambda images: loss(model(images)), at).sign()
            at = torch.minimum(torch.maximum(at + step * direction, low), high)
    return at


def _gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the gradient of a scalar function, also in a stack and under `no_grad`."""
    # `torch.func.grad` would also prepare for second derivatives.
    value, pull_back = cast(Any, vjp(function, at))
    return cast(Tensor, pull_back(torch.ones_like(value))[0])


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
