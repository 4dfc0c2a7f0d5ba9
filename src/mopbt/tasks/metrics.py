"""Compute the metrics of the paper's tasks from the logits of a complete data set.

All metrics carry their errors in closed form.
Non-finite logits give NaN, so that a diverged model does not look like one that always predicts
class 0.
"""

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mopbt.estimate import Estimate, make_estimate
from mopbt.rates import accuracy as estimate_accuracy
from mopbt.rates import deo as estimate_deo
from mopbt.rates import dsp as estimate_dsp
from mopbt.rates import precision, recall
from mopbt.tasks.losses import EPSILON, EVALUATION_STEPS, STEP, evaluation_mode, gap, pgd
from mopbt.torch.memory import map_rows

# Rows whose random starts are drawn together.
BATCH_SIZE = 500


def precision_recall(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Return precision, recall and accuracy of logits (n, 2).

    Precision is 0 if no row is predicted positive.
    """
    if not _is_finite(logits):
        return dict.fromkeys(("precision", "recall", "accuracy"), math.nan)
    predicted = _array(decisions(logits))
    positive = _array(y.bool())
    return {
        "precision": precision(predicted, positive),
        "recall": recall(predicted, positive),
        "accuracy": estimate_accuracy(predicted == positive),
    }


def fairness(logits: Tensor, y: Tensor, sensitive: Tensor) -> dict[str, float]:
    """Return accuracy, DSP and DEO of logits (n, 2).

    DSP and DEO are differences of probabilities, as in the paper's experiments.
    """
    if not _is_finite(logits):
        return dict.fromkeys(("accuracy", "dsp", "deo"), math.nan)
    p = probabilities(logits)
    shares = _array(p)
    positive = _array(y.bool())
    group = _array(sensitive.bool())
    return {
        "accuracy": estimate_accuracy(_array(decisions(logits)) == positive),
        "dsp": _with_mean(dsp(p, sensitive), estimate_dsp(shares, group)),
        "deo": _with_mean(deo(p, y, sensitive), estimate_deo(shares, positive, group)),
    }


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
    if not _is_finite(natural_logits + robust_logits):
        return dict.fromkeys(("accuracy", "robust_accuracy"), math.nan)
    return {
        "accuracy": accuracy(natural_logits, y),
        "robust_accuracy": accuracy(robust_logits, y),
    }


def accuracy(logits: Tensor, y: Tensor) -> Estimate:
    """Estimate the share of rows whose largest logit (n, classes) is their class."""
    return estimate_accuracy(_array(logits.argmax(-1) == y))


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


def _is_finite(logits: Tensor) -> bool:
    return bool(torch.isfinite(logits).all())


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


def _with_mean(mean: float, estimate: Estimate) -> Estimate:
    """Return an estimate with a mean that was summed in another order."""
    return make_estimate(mean, estimate.interval, stderr=estimate.stderr)
