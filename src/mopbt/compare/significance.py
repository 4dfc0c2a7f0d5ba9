"""What tells a difference from chance: a paired test over seeds, corrected for the number of algorithms, and places."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.rng import stream

Array = NDArray[np.float64]

EXACT = 20  # up to so many pairs all signs are tried, and beyond them ...
FLIPS = 2**17  # ... so many that are drawn
AT_ONCE = 2**12  # of them: all together take a gigabyte where there are many pairs


def sign_flip_test(differences: ArrayLike) -> float:
    """Return the two-sided p-value of paired differences (n,): how often random signs move their sum as far from 0.

    If chance alone says which of a pair is the better one, every pattern of signs is as likely as the one seen. Up to 20 pairs all
    patterns are tried; beyond them some are drawn, always the same, and the pattern seen is counted among them.
    """
    numbers = np.asarray(differences, dtype=float)
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(
            f"`differences` must be finite and have shape (n,), got {numbers.tolist()}"
        )
    if not len(numbers):
        return math.nan
    far = (
        abs(numbers.sum()) - 1e-9 * np.abs(numbers).sum()
    )  # sums of the same numbers in another order are equal
    if len(numbers) <= EXACT:
        return float((np.abs(_signed_sums(numbers)) >= far).mean())
    rng, as_far = stream(0, "sign flips", len(numbers)), 0
    for _ in range(FLIPS // AT_ONCE):
        signs = 1 - 2 * rng.integers(0, 2, size=(AT_ONCE, len(numbers)), dtype=np.int8)
        as_far += int((np.abs(signs @ numbers) >= far).sum())
    return (1 + as_far) / (1 + FLIPS)


def holm(p: ArrayLike) -> Array:
    """Return p-values (n,) after Holm's correction for testing all of them at once; NaN stands for no test and stays."""
    numbers = np.asarray(p, dtype=float)
    order = np.argsort(numbers)[: np.isfinite(numbers).sum()]  # NaN is sorted to the end
    corrected = np.full(len(numbers), np.nan)
    raised = numbers[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return corrected


def places(values: ArrayLike) -> Array:
    """Return the place (n,) of each of values (n,), 1 for the largest; equal values share the mean of their places."""
    numbers = np.asarray(values, dtype=float)
    before = (numbers[None, :] > numbers[:, None]).sum(axis=1)
    equal = (numbers[None, :] == numbers[:, None]).sum(axis=1)
    return np.asarray(before + (equal + 1) / 2)


def paired_differences(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> dict[int, float]:
    """Return values less the baseline's by seed, of the seeds that both have; where they have none in common, in their order."""
    seeds = sorted(values.keys() & baseline.keys())
    if seeds:
        return {seed: values[seed] - baseline[seed] for seed in seeds}
    pairs = enumerate(
        zip(sorted(values), sorted(baseline), strict=False)
    )  # independent runs: any pairs will do
    return {i: values[a] - baseline[b] for i, (a, b) in pairs}


def _signed_sums(numbers: Array) -> Array:
    """Return the sums (2**(n-1),) of numbers (n,) under all patterns of signs; the other half of them are these, negated."""
    sums = numbers[:1]
    for number in numbers[1:]:
        sums = np.concatenate([sums + number, sums - number])
    return sums
