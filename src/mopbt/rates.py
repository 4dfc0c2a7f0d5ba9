"""Errors of metrics that count rows, in closed form.

Among them are accuracy, precision, F1 and gaps.

All of them hold for few rows. The precision of a model that calls three rows positive has the wide
interval of three rows, whatever the size of the data set.
"""

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.estimate import Estimate, Limits, make_estimate, normal_quantile, wilson_interval

Mask = NDArray[np.bool_]


def accuracy(correct: ArrayLike) -> Estimate:
    """Estimate the share of rows (n,) that are correct, also under an attack."""
    rows = np.asarray(correct, dtype=bool)
    return Estimate.ratio(int(rows.sum()), rows.size)


def precision(predicted: ArrayLike, actual: ArrayLike) -> Estimate:
    """Estimate the precision of predictions (n,); the mean is 0 if none is positive."""
    said, true = _masks(predicted, actual)
    # Given how many rows are called positive, the correct ones are binomial.
    return Estimate.ratio(int((said & true).sum()), int(said.sum()))


def recall(predicted: ArrayLike, actual: ArrayLike) -> Estimate:
    """Estimate the recall of predictions (n,); the mean is 0 without positive rows."""
    said, true = _masks(predicted, actual)
    return Estimate.ratio(int((said & true).sum()), int(true.sum()))


def f1(predicted: ArrayLike, actual: ArrayLike) -> Estimate:
    """Estimate the F1 score of predictions (n,).

    It is 2q / (1 + q), where q is the share of correct rows among those that are positive or
    called so. Given their number, the correct ones are binomial, so the bounds follow from those
    of q.
    """
    said, true = _masks(predicted, actual)
    share = Estimate.ratio(int((said & true).sum()), int((said | true).sum()))
    return make_estimate(_f1_of_share(share.mean), partial(_f1_limits, share.interval))


def dsp(p: ArrayLike, sensitive: ArrayLike) -> Estimate:
    """Estimate the difference in statistical parity of p (n,).

    `p` holds probabilities or decisions.
    """
    group = np.asarray(sensitive, dtype=bool)
    return gap(p, group, ~group)


def deo(p: ArrayLike, y: ArrayLike, sensitive: ArrayLike) -> Estimate:
    """Estimate the difference in equalized odds of p (n,), summed over both classes."""
    group = np.asarray(sensitive, dtype=bool)
    positive = np.asarray(y, dtype=bool)
    parts = [gap(p, group & rows, ~group & rows) for rows in (~positive, positive)]
    mean = math.fsum(part.mean for part in parts)
    return make_estimate(mean, partial(_sum_limits, tuple(parts)))


def gap(p: ArrayLike, one: ArrayLike, other: ArrayLike) -> Estimate:
    """Estimate the absolute difference of the means of p (n,) over two masks (n,).

    Values of `p` are in [0, 1].

    Without rows in one of the masks, the mean is 0 and the interval is [0, 1].
    """
    values = np.asarray(p, dtype=float)
    first, second = _masks(one, other)
    if not first.any() or not second.any():
        return Estimate.ratio(0, 0)
    means = _bounded_mean(values[first]), _bounded_mean(values[second])
    difference = means[0].mean - means[1].mean
    # Folding at zero must not shrink the standard error, so it is that of the signed difference.
    signed = make_estimate(difference, partial(_difference_limits, means))
    return abs_estimate(signed)


def abs_estimate(estimate: Estimate) -> Estimate:
    """Return the absolute value of an estimate.

    Its interval begins at 0 if it contains 0.
    """
    limits = partial(_folded_limits, estimate.interval)
    return make_estimate(abs(estimate.mean), limits, stderr=estimate.stderr)


def _masks(one: ArrayLike, other: ArrayLike) -> tuple[Mask, Mask]:
    first = np.asarray(one, dtype=bool)
    second = np.asarray(other, dtype=bool)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"both arrays must have the same shape (n,), got {first.shape} and {second.shape}"
        )
    return first, second


def _bounded_mean(values: NDArray[np.float64]) -> Estimate:
    """Estimate the mean of values in [0, 1] by Wilson's interval of a share.

    The equivalent share has the same mean and variance. One more row with the largest possible
    variance is added to the observed ones, so few equal values do not have an error of zero. For
    values that are 0 or 1, this is Wilson's interval itself.
    """
    n = len(values)
    mean = min(max(float(values.mean()), 0.0), 1.0)
    largest = mean * (1 - mean)
    variance = (n * float(values.var()) + largest) / (n + 1)
    rows = n * largest / variance if variance > 0 else n
    return make_estimate(mean, partial(_share_limits, mean, max(rows, n)))


def _share_limits(mean: float, rows: float, confidence: float) -> tuple[float, float]:
    return wilson_interval(mean, rows, normal_quantile(confidence))


def _f1_of_share(share: float) -> float:
    return 2 * share / (1 + share)


def _f1_limits(limits: Limits, confidence: float) -> tuple[float, float]:
    lower, upper = limits(confidence)
    return _f1_of_share(lower), _f1_of_share(upper)


def _difference_limits(means: tuple[Estimate, Estimate], confidence: float) -> tuple[float, float]:
    """Return the bounds of a difference of means (Newcombe 1998, method 10).

    The means are independent.
    """
    one, other = means
    low, high = one.interval(confidence)
    other_low, other_high = other.interval(confidence)
    difference = one.mean - other.mean
    below = math.hypot(one.mean - low, other_high - other.mean)
    above = math.hypot(high - one.mean, other.mean - other_low)
    return difference - below, difference + above


def _sum_limits(parts: tuple[Estimate, ...], confidence: float) -> tuple[float, float]:
    bounds = [part.interval(confidence) for part in parts]
    below = math.hypot(*(p.mean - low for p, (low, _) in zip(parts, bounds, strict=True)))
    above = math.hypot(*(high - p.mean for p, (_, high) in zip(parts, bounds, strict=True)))
    mean = math.fsum(part.mean for part in parts)
    return mean - below, mean + above


def _folded_limits(limits: Limits, confidence: float) -> tuple[float, float]:
    lower, upper = limits(confidence)
    nearest = 0.0 if lower <= 0 <= upper else min(abs(lower), abs(upper))
    return nearest, max(abs(lower), abs(upper))
