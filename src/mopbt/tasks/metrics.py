"""The scores of the paper's tasks, of a model's logits on a whole set.

Logits that are not finite give NaN, as a broken model must not look like one that always says no.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mopbt.tasks.losses import EPSILON, EVALUATION_STEPS, STEP, evaluating, gap, pgd

ROWS_AT_A_TIME = 500


def precision_recall(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Return precision, recall and accuracy of logits (n, 2); precision is 0 where nothing is called positive."""
    said, positive = decisions(logits), y.bool()
    hits = (said & positive).sum().item()
    scores = {
        "precision": hits / max(said.sum().item(), 1),
        "recall": hits / max(positive.sum().item(), 1),
        "accuracy": (said == positive).double().mean().item(),
    }
    return _told(scores, logits)


def fairness(logits: Tensor, y: Tensor, sensitive: Tensor) -> dict[str, float]:
    """Return accuracy, DSP and DEO of logits (n, 2); the gaps are those of probabilities, as in the paper's experiments."""
    p = probabilities(logits)
    scores = {"accuracy": (decisions(logits) == y.bool()).double().mean().item()}
    return _told(scores | {"dsp": dsp(p, sensitive), "deo": deo(p, y, sensitive)}, logits)


def robustness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float = EPSILON,
    step: float = STEP,
    steps: int = EVALUATION_STEPS,
    seed: int = 0,
) -> dict[str, float]:
    """Return the accuracy on images (n, ...) as they are, in [0, 1], and under a PGD attack, whose start the seed says."""
    generator = torch.Generator(x.device).manual_seed(
        seed
    )  # the same for every model: it is measured, not trained
    natural, robust = [], []
    with evaluating(model), torch.no_grad():
        for rows, labels in zip(
            torch.split(x, ROWS_AT_A_TIME), torch.split(y, ROWS_AT_A_TIME), strict=True
        ):
            noise = (
                torch.rand(rows.shape, generator=generator, device=x.device, dtype=rows.dtype) * 2
                - 1
            )
            attacked = pgd(
                model, rows, labels, rows + epsilon * noise, epsilon=epsilon, step=step, steps=steps
            )
            natural.append(model(rows))
            robust.append(model(attacked))
    logits, attacked = torch.cat(natural), torch.cat(robust)
    scores = {"accuracy": accuracy(logits, y), "robust_accuracy": accuracy(attacked, y)}
    return _told(scores, logits + attacked)


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the share of rows whose largest logit (n, classes) is that of their class."""
    return (logits.argmax(-1) == y).double().mean().item()


def dsp(p: Tensor, sensitive: Tensor) -> float:
    """Return the difference in statistical parity of p (n,): probabilities of class 1, or decisions for it as 0 and 1."""
    group = sensitive.bool()
    return gap(p.double(), group, ~group).item()


def deo(p: Tensor, y: Tensor, sensitive: Tensor) -> float:
    """Return the difference in equalized odds of p (n,), summed over both classes: from 0 to 2."""
    group, classes = sensitive.bool(), (y == 0, y == 1)
    return sum(gap(p.double(), group & rows, ~group & rows).item() for rows in classes)


def probabilities(logits: Tensor) -> Tensor:
    """Return the probabilities (n,) of class 1 of logits (n, 2)."""
    return logits.double().softmax(-1)[:, 1]


def decisions(logits: Tensor) -> Tensor:
    """Return where class 1 of logits (n, 2) is more probable than not, shape (n,)."""
    return probabilities(logits) > 0.5


def _told(scores: Mapping[str, float], logits: Tensor) -> dict[str, float]:
    return dict(scores) if bool(torch.isfinite(logits).all()) else dict.fromkeys(scores, math.nan)
