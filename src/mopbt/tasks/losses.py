"""The losses of the paper's tasks and the attacks of its robustness tasks, for one member as for a stack of them.

A hyperparameter comes as a tensor without dimensions. Nothing here branches on what a single member of a stack has.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import debug_unwrap, vjp
from torch.nn import functional as F

EPSILON = 0.031  # how far an attack may move a pixel; images are in [0, 1]
STEP = 0.003
TRAINING_STEPS = 10  # of the attack inside the TRADES loss
EVALUATION_STEPS = 20

Model = Any  # an nn.Module, or what stands for one inside a stack: called for logits, and with `training`, `train` and `eval`


def weighted_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the cross entropy of logits (n, 2) where class 0 weighs `weight` and class 1 the rest to 1: little favors recall."""
    return F.cross_entropy(logits, y, weight=torch.stack([weight, 1 - weight]))


def fair_cross_entropy(logits: Tensor, y: Tensor, sensitive: Tensor, strength: Tensor) -> Tensor:
    """Return the cross entropy of logits (n, 2), plus `strength` times the gap between the groups' mean probability of class 1."""
    group = sensitive.bool()
    return F.cross_entropy(logits, y) + strength * gap(logits.softmax(-1)[..., 1], group, ~group)


def gap(p: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return how far the means of p (n,) over two sets of rows, masks (n,), are apart; 0 where a set is empty."""
    apart = (_mean(p, one) - _mean(p, other)).abs()
    return apart * (one.any() & other.any())


def _mean(p: Tensor, rows: Tensor) -> Tensor:
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
    """Return the TRADES loss (Zhang et al. 2019) of images (n, ...) in [0, 1]: cross entropy + beta KL(f(x) || f(x')).

    The attack x' is computed in evaluation mode. With beta 0 there is none; in a stack, where no member has another beta.
    """
    if _is_zero_everywhere(beta):
        return F.cross_entropy(model(x), y)
    # A member whose beta is 0 looks at its images as they are, so that no attack shows in its BatchNorm statistics.
    attacked = torch.where(beta == 0, x, _trades_attack(model, x, epsilon, step, steps))
    logits = model(x)
    return F.cross_entropy(logits, y) + beta * divergence(logits, model(attacked))


def divergence(logits: Tensor, others: Tensor) -> Tensor:
    """Return KL(softmax(logits) || softmax(others)), the mean over rows (n, classes)."""
    ours, theirs = logits.log_softmax(-1), others.log_softmax(-1)
    return (ours.exp() * (ours - theirs)).sum(-1).mean()  # kl_div of PyTorch is slow in a stack


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
    """Return images (n, ...) within epsilon of `x` and [0, 1] that projected gradient ascent from `start` makes hard to tell."""
    return _ascended(
        model, x, start, lambda logits: F.cross_entropy(logits, y), epsilon, step, steps
    )


def _trades_attack(model: Model, x: Tensor, epsilon: float, step: float, steps: int) -> Tensor:
    with evaluating(model), torch.no_grad():
        target = model(x)
    start = x + 0.001 * torch.randn_like(x)  # at x itself the divergence has no slope
    return _ascended(
        model, x, start, lambda logits: divergence(target, logits), epsilon, step, steps
    )


def _ascended(
    model: Model,
    x: Tensor,
    at: Tensor,
    loss: Callable[[Tensor], Tensor],
    epsilon: float,
    step: float,
    steps: int,
) -> Tensor:
    low, high = (x - epsilon).clamp(min=0), (x + epsilon).clamp(max=1)
    with evaluating(model), torch.no_grad():
        for _ in range(steps):
            at = torch.minimum(
                torch.maximum(
                    at + step * _slope(lambda images: loss(model(images)), at).sign(), low
                ),
                high,
            )
    return at


def _slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the gradient of a number; unlike `backward`, this works in a stack and where gradients are off."""
    value, back = cast(Any, vjp(function, at))  # `grad` would prepare for second derivatives, too
    return cast(Tensor, back(torch.ones_like(value))[0])


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Have a model in evaluation mode for a while: BatchNorm uses its running statistics, and nothing is dropped."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def _is_zero_everywhere(value: Tensor) -> bool:
    """Tell whether a hyperparameter is 0 in all members that are trained together; all of them take the same branch."""
    return not bool(debug_unwrap(value).any())
