"""Metrics with their errors: a number, its standard error and its interval.

An `Estimate` is a float, so it can be used wherever a metric is. What is known about its error
depends on how it was measured; each way is a constructor.
"""

import inspect
import math
import sys
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any, Protocol, SupportsFloat, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.errors import TaskError
from mopbt.messages import with_error
from mopbt.rng import stream
from mopbt.state import ErrorBar

Floats = NDArray[np.float64]
Limits = Callable[[float], tuple[float, float]]
Metric = Callable[..., Any]

# The confidence of the interval that a report records. It is about one standard error to each side.
CONFIDENCE = 0.68

# From fewer rows than this, an error of zero is taken for luck and replaced by a lower bound.
FEWEST_ROWS = 30

# A spread below this share of the mean is rounding.
ROUNDING = 1e-12

# Repetitions of a bootstrap.
REPEATS = 200
# Groups of a jackknife.
GROUPS = 20
# How many numbers a vectorized bootstrap resamples at a time.
CELLS = 2**22


@runtime_checkable
class Detachable(Protocol):
    """A tensor of PyTorch.

    It warns if it is converted while it requires a gradient.
    """

    def detach(self) -> Any:
        """Return the same value without a gradient."""


class Estimate(float):
    """A metric and its standard error, such as ``Estimate(0.91, stderr=0.004)``.

    It is a float with the value of its mean. Adding a number to it, or multiplying it by one,
    keeps the error. Combining two estimates gives a plain float, because their errors may depend
    on each other: bootstrap the combination instead.
    """

    __slots__ = ("_limits", "_stderr")
    _limits: Limits
    _stderr: float

    def __new__(
        cls, mean: SupportsFloat, stderr: SupportsFloat, *, rows: int | None = None
    ) -> "Estimate":
        """Create an estimate whose interval is that of the normal distribution.

        Args:
            mean: The measured value.
            stderr: Its standard error. Both may be NaN, for a model that diverged.
            rows: The number of rows or repetitions that it was measured on, if known. Fewer than 30
                never give an error of zero: it is at least ``abs(mean) / (2 * (rows + 1))``, or
                ``1 / (2 * (rows + 1))`` if the mean is 0.
        """
        value = float(mean)
        error = float(stderr)
        is_error = 0 <= error < math.inf or (math.isnan(error) and not math.isfinite(value))
        if not is_error:
            raise ValueError(f"`stderr` must be a finite number of at least 0, got {error}")
        return _symmetric(value, error, rows, math.inf)

    @property
    def mean(self) -> float:
        """The measured value as a plain float."""
        return float.__add__(self, 0.0)

    @property
    def stderr(self) -> float:
        """The standard error: half the width of the interval of one standard error."""
        return self._stderr

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the bounds between which the true value lies with this confidence."""
        check_confidence(confidence)
        return self._limits(confidence)

    def error_bar(self, confidence: float = CONFIDENCE) -> ErrorBar:
        """Return the standard error and the bounds of the interval with this confidence."""
        return ErrorBar(self._stderr, *self.interval(confidence))

    @staticmethod
    def from_samples(values: ArrayLike) -> "Estimate":
        """Estimate the mean of independent measurements: folds, seeds or episodes.

        The interval is Student's.
        """
        samples = np.asarray(values, dtype=float).ravel()
        if len(samples) < 2:
            raise ValueError(
                "`values` must have at least 2 measurements to estimate their spread, got "
                f"{len(samples)}"
            )
        stderr = float(samples.std(ddof=1)) / math.sqrt(len(samples))
        return _symmetric(float(samples.mean()), stderr, len(samples), len(samples) - 1)

    @staticmethod
    def ratio(hits: float, n: float) -> "Estimate":
        """Estimate a probability from `hits` among `n` independent rows.

        An accuracy is an example.

        The interval is Wilson's, so 3 of 3 is not 1.00 ± 0. Without rows, the mean is 0 and the
        interval is [0, 1].
        """
        if not 0 <= hits <= n < math.inf:
            raise ValueError(f"`hits` must be between 0 and `n`, got {hits} of {n}")
        mean = hits / n if n else 0.0
        return make_estimate(mean, partial(_wilson, mean, n))

    @staticmethod
    def bootstrap(
        metric: Metric, *arrays: ArrayLike, repeats: int = REPEATS, seed: int = 0
    ) -> "Estimate":
        """Estimate the error of any metric by drawing rows with replacement.

        Args:
            metric: Returns a number for arrays of rows. If it has a parameter `axis`, it is called
                once for many draws, with arrays (draws, rows, ...) and ``axis=1``.
            *arrays: The arguments of the metric, all with the same number of rows.
            repeats: The number of draws.
            seed: Random seed of the draws.
        """
        columns = _as_columns(arrays)
        if repeats < 2:
            raise ValueError(f"`repeats` must be at least 2, got {repeats}")
        n = len(columns[0])
        draws = stream(seed, "bootstrap", n).integers(n, size=(repeats, n))
        values = _redrawn_values(metric, columns, draws)
        finite = values[np.isfinite(values)]
        if 2 * len(finite) < repeats:
            raise ValueError(
                f"`metric` must be finite for most draws of rows, got {len(finite)} finite values "
                f"in {repeats}; use more rows, or Estimate.ratio for a share of few rows"
            )
        # Draws from n rows vary as if there were one row less.
        stderr = float(finite.std(ddof=1)) * math.sqrt(n / (n - 1))
        return _resampled(metric, columns, stderr, n - 1)

    @staticmethod
    def jackknife(metric: Metric, *arrays: ArrayLike, groups: int = GROUPS) -> "Estimate":
        """Estimate the error of any smooth metric by leaving out groups of rows in turn.

        Rows are assigned to groups in a fixed random order. It calls the metric `groups` + 1 times.
        """
        columns = _as_columns(arrays)
        n = len(columns[0])
        groups = min(groups, n)
        if groups < 2:
            raise ValueError(f"`groups` must be at least 2, got {groups}")
        parts = _random_groups(n, groups)
        values = []
        for part in parts:
            rest = np.delete(np.arange(n), part)
            values.append(float(metric(*(column[rest] for column in columns))))
        spread = float(np.std(values)) * math.sqrt(groups - 1)
        return _resampled(metric, columns, spread, groups - 1)

    def __repr__(self) -> str:
        return f"Estimate({self.mean!r}, stderr={self._stderr!r})"

    def __str__(self) -> str:
        return with_error(self.mean, self._stderr)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.mean, self._stderr, self._limits)

    def __neg__(self) -> "Estimate":
        return self._affine(-1.0, 0.0)

    def __pos__(self) -> "Estimate":
        return self

    def __add__(self, other: Any) -> Any:
        return self._affine(1.0, other) if _is_plain(other) else float.__add__(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._affine(1.0, -other) if _is_plain(other) else float.__sub__(self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._affine(-1.0, other) if _is_plain(other) else float.__rsub__(self, other)

    def __mul__(self, other: Any) -> Any:
        return self._affine(other, 0.0) if _is_plain(other) else float.__mul__(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if _is_plain(other) and other:
            return self._affine(1.0 / other, 0.0)
        return float.__truediv__(self, other)

    def __round__(self, ndigits: SupportsIndex | None = None) -> Any:
        return round(self.mean, ndigits)

    def _affine(self, slope: float, offset: float) -> "Estimate":
        mean = slope * self.mean + offset
        limits = partial(_affine_limits, self._limits, slope, offset)
        return _restore(mean, abs(slope) * self._stderr, limits)


def make_estimate(mean: float, limits: Limits, *, stderr: float | None = None) -> Estimate:
    """Create an estimate from the function that returns its bounds for a confidence.

    By default, its standard error is half the width of the interval of one standard error.
    """
    if stderr is None:
        lower, upper = limits(_ONE_STDERR)
        stderr = (upper - lower) / 2
    return _restore(mean, stderr, limits)


def as_estimate(name: object, score: Any) -> Any:
    """Convert a metric that was reported as a pair of mean and standard error.

    Anything else is returned unchanged. TaskError if a tuple is no such pair.
    """
    if isinstance(score, Detachable):
        return score.detach()
    if not isinstance(score, tuple):
        return score
    try:
        mean, stderr = (part.detach() if isinstance(part, Detachable) else part for part in score)
        return Estimate(mean, stderr)
    except (TypeError, ValueError):
        raise TaskError(
            f"the metric {name!r} must be a number, an Estimate, or a pair of mean and standard "
            f"error, got {score!r}"
        ) from None


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless a confidence is between 0 and 1."""
    is_number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    if not is_number or not 0 < confidence < 1:
        raise ValueError(f"`confidence` must be between 0 and 1, such as 0.9, got {confidence!r}")


def normal_quantile(confidence: float) -> float:
    """Return how many standard errors an interval extends to each side of its mean."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def student_quantile(confidence: float, degrees: float) -> float:
    """Return the standard errors from the mean to a bound of Student's interval."""
    z = normal_quantile(confidence)
    if degrees < FEWEST_ROWS:
        return _invert_student(confidence, int(degrees))
    # Abramowitz and Stegun, 26.7.5. From 30 degrees of freedom on, it is right to 5 digits.
    v = float(degrees)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def wilson_interval(mean: float, n: float, z: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of n rows, z standard errors to each side."""
    if n == 0:
        return 0.0, 1.0
    center = mean + z * z / (2 * n)
    half = z * math.sqrt(max(mean * (1 - mean), 0.0) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Rounding must not exclude the mean, which is a bound if it is 0 or 1.
    return min((center - half) / scale, mean), max((center + half) / scale, mean)


def _wilson(mean: float, n: float, confidence: float) -> tuple[float, float]:
    return wilson_interval(mean, n, normal_quantile(confidence))


def _student(mean: float, stderr: float, degrees: float, confidence: float) -> tuple[float, float]:
    half = stderr * student_quantile(confidence, degrees)
    return mean - half, mean + half


def _affine_limits(
    limits: Limits, slope: float, offset: float, confidence: float
) -> tuple[float, float]:
    one, other = (slope * bound + offset for bound in limits(confidence))
    return min(one, other), max(one, other)


def _restore(mean: float, stderr: float, limits: Limits) -> Estimate:
    estimate = float.__new__(Estimate, mean)
    estimate._stderr = float(stderr)
    estimate._limits = limits
    return estimate


def _symmetric(mean: float, stderr: float, rows: int | None, degrees: float) -> Estimate:
    if rows is not None and rows < FEWEST_ROWS and stderr <= ROUNDING * abs(mean):
        # Wilson's interval of a share of 0 or 1 has this standard error.
        stderr = max((abs(mean) or 1.0) / (2 * (rows + 1)), sys.float_info.min)
    return _restore(mean, stderr, partial(_student, mean, stderr, degrees))


def _resampled(
    metric: Metric, columns: list[NDArray[Any]], stderr: float, degrees: int
) -> Estimate:
    """Return the estimate of a metric on all rows, given the error of its draws."""
    mean = float(metric(*columns))
    rows = len(columns[0])
    if stderr <= ROUNDING * abs(mean):
        rows = _effective_rows(metric, columns, mean)
    return _symmetric(mean, stderr, rows, degrees)


def _effective_rows(metric: Metric, columns: list[NDArray[Any]], mean: float) -> int:
    """Return a lower bound on the rows that a metric without spread depends on.

    The precision of a model that calls three rows positive depends on three rows, and most groups
    of rows alone do not give its value.
    """
    n = len(columns[0])
    groups = _random_groups(n, min(FEWEST_ROWS, n))
    alike = 0
    for rows in groups:
        try:
            alike += float(metric(*(column[rows] for column in columns))) == mean
        except Exception:
            # A metric may be undefined for few rows. Such a group does not give its value.
            continue
    return n if alike == len(groups) else alike


def _random_groups(n: int, groups: int) -> list[NDArray[np.intp]]:
    return np.array_split(stream(0, "groups", n).permutation(n), groups)


def _redrawn_values(
    metric: Metric, columns: list[NDArray[Any]], draws: NDArray[np.int64]
) -> Floats:
    if not _has_axis(metric):
        return np.array([float(metric(*(column[rows] for column in columns))) for rows in draws])
    largest = max(column.size for column in columns)
    at_once = max(1, CELLS // largest)
    values = []
    for first in range(0, len(draws), at_once):
        rows = draws[first : first + at_once]
        values.append(np.asarray(metric(*(column[rows] for column in columns), axis=1)))
    return np.concatenate(values).astype(float)


def _has_axis(metric: Metric) -> bool:
    try:
        return "axis" in inspect.signature(metric).parameters
    except (TypeError, ValueError):
        # Some functions written in C have no signature.
        return False


def _as_columns(arrays: tuple[ArrayLike, ...]) -> list[NDArray[Any]]:
    columns = [np.asarray(array) for array in arrays]
    lengths = [len(column) if column.ndim else 0 for column in columns]
    if not lengths or min(lengths) < 2 or min(lengths) != max(lengths):
        raise ValueError(
            f"the arrays must have the same number of rows, at least 2, got {lengths or 'none'}"
        )
    return columns


def _is_plain(other: Any) -> bool:
    is_number = isinstance(other, int | float | np.integer | np.floating)
    return is_number and not isinstance(other, Estimate)


def _student_mass(t: float, degrees: int) -> float:
    """Return the probability that Student's t is in [-t, t], for whole degrees.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _invert_student(confidence: float, degrees: int) -> float:
    low = 0.0
    high = 1.0
    while _student_mass(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_mass(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


_ONE_STDERR = math.erf(1 / math.sqrt(2))
