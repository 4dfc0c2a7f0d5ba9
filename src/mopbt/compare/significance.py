"""Test whether algorithms differ by more than chance, and rank them."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.rng import stream

Array = NDArray[np.float64]

# Up to EXACT pairs the test enumerates all patterns of signs. Beyond that it draws FLIPS of them,
# BLOCK at a time, because all at once would take a gigabyte for many pairs.
EXACT = 20
FLIPS = 2**17
BLOCK = 2**12
# Of the bootstrap interval of paired differences.
CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST_PAIRS = 5
# Quantiles of the studentized range over the root of 2, at the level 0.05, by algorithms.
NEMENYI = {
    **{2: 1.960, 3: 2.344, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.948},
    **{8: 3.031, 9: 3.102, 10: 3.164, 11: 3.219, 12: 3.268},
}


def sign_flip_test(differences: ArrayLike) -> float:
    """Return the two-sided p-value of paired differences (n,) under random signs.

    If only chance decides which run of a pair is better, every pattern of signs is equally
    likely. The p-value is the share of patterns whose sum is at least as far from 0 as the
    observed one. Up to 20 pairs all patterns are enumerated. Beyond that a fixed random sample is
    used, and the observed pattern counts as one of them.
    """
    numbers = np.asarray(differences, dtype=float)
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(
            f"`differences` must be finite and have shape (n,), got {numbers.tolist()}"
        )
    if not len(numbers):
        return math.nan
    # The tolerance makes sums of the same numbers in another order equal.
    threshold = abs(numbers.sum()) - 1e-9 * np.abs(numbers).sum()
    if len(numbers) <= EXACT:
        return float((np.abs(_signed_sums(numbers)) >= threshold).mean())
    rng = stream(0, "sign flips", len(numbers))
    extreme = 0
    for _ in range(FLIPS // BLOCK):
        signs = 1 - 2 * rng.integers(0, 2, size=(BLOCK, len(numbers)), dtype=np.int8)
        extreme += int((np.abs(signs @ numbers) >= threshold).sum())
    return (1 + extreme) / (1 + FLIPS)


def _signed_sums(numbers: Array) -> Array:
    """Return the sums (2**(n-1),) of numbers (n,), each but the first with + and -.

    The other half of the patterns gives the same sums, negated.
    """
    sums = numbers[:1]
    for number in numbers[1:]:
        sums = np.concatenate([sums + number, sums - number])
    return sums


def bootstrap_interval(
    differences: ArrayLike, *, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the percentile interval of the mean of paired differences (n,).

    Pairs are drawn with replacement. From fewer than 5 pairs it is NaN, because it would be far too
    narrow.
    """
    numbers = np.asarray(differences, dtype=float)
    if len(numbers) < FEWEST_PAIRS:
        return math.nan, math.nan
    rng = stream(0, "paired differences", len(numbers))
    draws = rng.integers(len(numbers), size=(RESAMPLES, len(numbers)))
    tail = 50 * (1 - confidence)
    lower, upper = np.percentile(numbers[draws].mean(axis=1), [tail, 100 - tail])
    return float(lower), float(upper)


def critical_difference(algorithms: int, tasks: int) -> float:
    """Return how far two average ranks must differ to be distinguished at 0.05.

    This is the test of Nemenyi (Demsar 2006). NaN for a single task, or more than 12 algorithms.
    """
    if tasks < 2 or algorithms not in NEMENYI:
        return math.nan
    return NEMENYI[algorithms] * math.sqrt(algorithms * (algorithms + 1) / (6 * tasks))


def holm(p: ArrayLike) -> Array:
    """Correct p-values (n,) for multiple tests by Holm's method.

    NaN means no test and stays NaN.
    """
    numbers = np.asarray(p, dtype=float)
    # argsort puts NaN last.
    order = np.argsort(numbers)[: np.isfinite(numbers).sum()]
    corrected = np.full(len(numbers), np.nan)
    raised = numbers[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return corrected


def average_ranks(values: ArrayLike) -> Array:
    """Rank values (n,), 1 for the largest; equal values share the mean of their ranks."""
    numbers = np.asarray(values, dtype=float)
    larger = (numbers[None, :] > numbers[:, None]).sum(axis=1)
    equal = (numbers[None, :] == numbers[:, None]).sum(axis=1)
    return np.asarray(larger + (equal + 1) / 2)


def paired_differences(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> dict[int, float]:
    """Subtract the baseline's values from those of the same seed.

    Runs without any common seed are independent, so they are paired in the order of their seeds.
    """
    seeds = sorted(values.keys() & baseline.keys())
    if seeds:
        return {seed: values[seed] - baseline[seed] for seed in seeds}
    pairs = enumerate(zip(sorted(values), sorted(baseline), strict=False))
    return {i: values[a] - baseline[b] for i, (a, b) in pairs}
