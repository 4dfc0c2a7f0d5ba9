"""Compute the metrics of the paper's tasks from the logits of a complete data set.

Non-finite logits give NaN, so that a diverged model does not look like one that always predicts
class 0.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mopbt.tasks.losses import EPSILON, EVALUATION_STEPS, STEP, evaluation_mode, gap, pgd
from mopbt.torch.memory import map_rows

# Rows whose random starts are drawn together.
BATCH_SIZE = 500


def precision_recall(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Return precision, recall and accuracy of logits (n, 2).

    Precision is 0 if no row is predicted positive.
    """
    predicted = decisions(logits)
    positive = y.bool()
    hits = (predicted & positive).sum().item()
    scores = {
        "precision": hits / max(predicted.sum().item(), 1),
        "recall": hits / max(positive.sum().item(), 1),
        "accuracy": (predicted == positive).double().mean().item(),
    }
    return _nan_unless_finite(scores, logits)


def fairness(logits: Tensor, y: Tensor, sensitive: Tensor) -> dict[str, float]:
    """Return accuracy, DSP and DEO of logits (n, 2).

    DSP and DEO are differences of probabilities, as in the paper's experiments.
    """
    p = probabilities(logits)
    scores = {
        "accuracy": (decisions(logits) == y.bool()).double().mean().item(),
        "dsp": dsp(p, sensitive),
        "deo": deo(p, y, sensitive),
    }
    return _nan_unless_finite(scores, logits)


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
    """Return the accuracy on images (n, ...) with and without a PGD attack.

    Images are in [0, 1]. `seed` sets the random start of the attack, which is the same for every
    model and on every device. The images may be on another device than the model.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)

    def logits_of(rows: Tensor, labels: Tensor, start: Tensor) -> Tensor:
        attacked = pgd(model, rows, labels, start, epsilon=epsilon, step=step, steps=steps)
        return torch.stack([model(rows), model(attacked)])

    parts: list[Tensor] = []
    with evaluation_mode(model), torch.no_grad():
        for rows, labels in zip(
            torch.split(x, BATCH_SIZE), torch.split(y, BATCH_SIZE), strict=True
        ):
            uniform = torch.rand(rows.shape, generator=generator, dtype=rows.dtype)
            start = rows.cpu() + epsilon * (uniform * 2 - 1)
            parts.append(
                map_rows(
                    logits_of,
                    [rows, labels, start],
                    module=model,
                    device=device,
                    kind=("attack", steps),
                    dim=1,
                )
            )
    natural_logits, robust_logits = torch.cat(parts, dim=1)
    y = y.to(device)
    scores = {
        "accuracy": accuracy(natural_logits, y),
        "robust_accuracy": accuracy(robust_logits, y),
    }
    return _nan_unless_finite(scores, natural_logits + robust_logits)


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the share of rows whose largest logit (n, classes) is their class."""
    return (logits.argmax(-1) == y).double().mean().item()


def dsp(p: Tensor, sensitive: Tensor) -> float:
    """Return the difference in statistical parity of p (n,).

    `p` contains probabilities of class 1, or decisions for it as 0 and 1.
    """
    group = sensitive.bool()
    return gap(p.double(), group, ~group).item()


def deo(p: Tensor, y: Tensor, sensitive: Tensor) -> float:
    """Return the difference in equalized odds of p (n,), summed over both classes."""
    group = sensitive.bool()
    classes = (y == 0, y == 1)
    return sum(gap(p.double(), group & rows, ~group & rows).item() for rows in classes)


def probabilities(logits: Tensor) -> Tensor:
    """Return the probabilities (n,) of class 1 of logits (n, 2)."""
    return logits.double().softmax(-1)[:, 1]


def decisions(logits: Tensor) -> Tensor:
    """Return whether class 1 of logits (n, 2) is the more probable one, shape (n,)."""
    return probabilities(logits) > 0.5


def _nan_unless_finite(scores: Mapping[str, float], logits: Tensor) -> dict[str, float]:
    return dict(scores) if bool(torch.isfinite(logits).all()) else dict.fromkeys(scores, math.nan)
