"""What noise does to a front, and decisions that take it into account.

Values are arrays (n, K), larger is better, with standard errors (n, K); a standard error of 0 means
that a value is exact. Errors of different models and objectives are taken as independent and
normal. Models that were evaluated on the same rows share a part of their luck, so in truth they
differ by less noise, and the corrections here are on the safe side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from mopbt.estimate import CONFIDENCE, check_confidence, normal_quantile
from mopbt.metrics import hypervolume, non_dominated

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# The distribution of true values is estimated from at most this many evaluations.
MOST_ROWS = 1500

# Steps of expectation maximization. More of them concentrate the distribution on a few points,
# and the intervals become too narrow.
STEPS = 20

# The share of a model's error variance that is added to its corrected interval, because the
# distribution of true values is itself an estimate.
PRIOR_SHARE = 0.2

# How rarely a test may call noise a signal.
LEVEL = 0.01
# The number of fronts of pure noise that a front is compared with.
NULL_DRAWS = 200
# Nothing is concluded from fewer pairs of a model and the one that it continues.
FEWEST_PAIRS = 30


def lower_bounds(values: ArrayLike, stderr: ArrayLike, *, confidence: float = CONFIDENCE) -> Floats:
    """Return the lower bounds (n, K) of the intervals of values with this confidence."""
    check_confidence(confidence)
    array, errors = _check_shapes(values, stderr)
    return np.asarray(array - normal_quantile(confidence) * errors)


def pessimistic_front(
    values: ArrayLike, stderr: ArrayLike, *, confidence: float = CONFIDENCE
) -> Ints:
    """Return the rows that are not dominated when every value is its lower bound.

    Whether a row dominates another one depends on these two rows only, so a front of lower bounds
    can grow with each evaluation.
    """
    return non_dominated(lower_bounds(values, stderr, confidence=confidence))


@dataclass(frozen=True)
class Claims:
    """What can be claimed about selected models: corrected values and errors (m, K).

    `probability` (m,) is that of being on the front of true values.
    """

    mean: Floats
    stderr: Floats
    probability: Floats


def corrected_claims(
    values: ArrayLike, stderr: ArrayLike, selected: Sequence[int], rng: Generator, *, draws: int = 0
) -> Claims:
    """Correct the values of selected models for having been selected.

    The best of many noisy values are too good on average. Given the distribution of true values,
    the distribution of one true value given its measurement does not depend on why it was looked
    at (Efron 2011, Tweedie's formula and selection bias). The distribution of true values is
    estimated by nonparametric maximum likelihood (Kiefer and Wolfowitz 1956) with the evaluated
    models as its points, so it follows a front of any shape.

    Args:
        values: All evaluations, not only the selected ones, (n, K).
        stderr: Their standard errors, (n, K).
        selected: The rows to correct, (m,).
        rng: Draws the evaluations used if there are many, and the true values.
        draws: How many sets of true values are drawn for the probabilities; 0 leaves them NaN.
    """
    array, errors = _check_shapes(values, stderr)
    chosen = np.asarray(selected, dtype=np.intp)
    rows = _subset(len(array), chosen, rng)
    posterior = _Posterior.of(array[rows], errors[rows])
    places = np.searchsorted(rows, chosen)
    probability = np.full(len(chosen), math.nan)
    if draws:
        probability = posterior.front_shares(rng, draws)[places]
    return Claims(posterior.mean()[places], posterior.stderr()[places], probability)


@dataclass(frozen=True)
class SpanTest:
    """How far the models of a front differ, and how far by luck alone, (K,).

    `spans` are the differences between the best and the worst value on the front. `ratios` are the
    largest differences of two models in units of their own error: they tell models apart that are
    measured precisely, if other evaluations have large errors. `by_luck` and `ratios_by_luck` are
    those that equally good models exceed once in a hundred times. Objectives without noise are
    NaN.
    """

    evaluations: int
    spans: Floats
    by_luck: Floats
    ratios: Floats
    ratios_by_luck: Floats

    @property
    def is_noise(self) -> bool:
        """Return whether luck alone explains the differences in every noisy objective."""
        noisy = np.isfinite(self.by_luck)
        by_spans = (self.spans[noisy] <= self.by_luck[noisy]).all()
        by_ratios = (self.ratios[noisy] <= self.ratios_by_luck[noisy]).all()
        return bool(noisy.any() and by_spans and by_ratios)


def span_test(values: ArrayLike, stderr: ArrayLike, rng: Generator) -> SpanTest | None:
    """Compare the front with fronts of models that are equally good.

    The null hypothesis is that all evaluations measure the same model. None if the front has only
    one model, which claims no trade-off.
    """
    array, errors = _check_shapes(values, stderr)
    front = non_dominated(array) if len(array) else np.empty(0, dtype=np.intp)
    if len(np.unique(array[front], axis=0)) < 2:
        return None
    noisy = np.flatnonzero((errors > 0).any(axis=0))
    by_luck = np.full(array.shape[1], math.nan)
    ratios_by_luck = by_luck.copy()
    if len(noisy):
        rows = _subset(len(array), np.empty(0, dtype=np.intp), rng, most=4 * MOST_ROWS)
        by_luck[noisy], ratios_by_luck[noisy] = _luck_spans(array[rows], errors[rows], noisy, rng)
    ratios = _largest_ratios(array[front], errors[front])
    return SpanTest(len(array), np.ptp(array[front], axis=0), by_luck, ratios, ratios_by_luck)


@dataclass(frozen=True)
class InheritanceTest:
    """Whether models resemble the models that they continue from, (K,).

    `correlation` is that of ranks within a step. Under pure noise, it exceeds `by_luck` once in a
    hundred times. Constant objectives are NaN.
    """

    pairs: int
    correlation: Floats
    by_luck: Floats

    @property
    def is_noise(self) -> bool:
        """Return whether no objective of a model says anything about its successor."""
        known = np.isfinite(self.correlation)
        return bool(known.any() and (self.correlation[known] <= self.by_luck[known]).all())


def inheritance_test(
    values: ArrayLike, parents: ArrayLike, steps: ArrayLike
) -> InheritanceTest | None:
    """Test whether a model's values are independent of those of its parent.

    A trained model is close to what it was an interval ago, so metrics that mean anything are
    inherited. This needs no standard errors. None if there are too few pairs.

    Args:
        values: All finite evaluations, (n, K).
        parents: The row that each evaluation continues from, -1 for none, (n,).
        steps: The training step of each evaluation, (n,).
    """
    array = np.asarray(values, dtype=float)
    rows = np.asarray(parents, dtype=np.intp)
    groups = np.unique(np.asarray(steps), return_inverse=True)[1]
    children = np.flatnonzero(rows >= 0)
    if len(children) < FEWEST_PAIRS:
        return None
    correlation = np.full(array.shape[1], math.nan)
    by_luck = np.full(array.shape[1], math.nan)
    for k, column in enumerate(array.T):
        ranks = _ranks_within(column, groups)
        products, variance, norm = _permutation(
            ranks[children], ranks[rows[children]], groups[children]
        )
        if variance > 0:
            correlation[k] = products / norm
            # One-sided, and shared between the objectives.
            confidence = 1 - 2 * LEVEL / array.shape[1]
            by_luck[k] = normal_quantile(confidence) * math.sqrt(variance) / norm
    return InheritanceTest(len(children), correlation, by_luck)


def hypervolume_error(
    values: ArrayLike, stderr: ArrayLike, reference: ArrayLike, rng: Generator, *, draws: int = 100
) -> float:
    """Compute the standard error of a hypervolume by redrawing noise."""
    array, errors = _check_shapes(values, stderr)
    if not errors.any():
        return 0.0
    volumes = []
    for _ in range(draws):
        redrawn = array + errors * rng.standard_normal(array.shape)
        volumes.append(hypervolume(redrawn, reference))
    return float(np.std(volumes, ddof=1))


def clear_donors(
    values: ArrayLike,
    stderr: ArrayLike,
    loser: int,
    donors: Sequence[int],
    *,
    margin: float,
    folds: ArrayLike | None = None,
) -> list[int]:
    """Return the donors that are better than a loser by more than noise explains.

    Such a donor is nowhere worse, and somewhere better by at least `margin` standard errors of the
    difference. Without `folds`, the errors of two models are taken as independent.

    Args:
        values: Measured values, (n, K).
        stderr: Their standard errors, (n, K).
        loser: The row that would be replaced.
        donors: The rows that it might copy.
        margin: The number of standard errors.
        folds: The values on F parts of the rows that all models share, (n, F, K). The error of a
            difference then follows from the differences on the parts.
    """
    if not 0 <= margin < math.inf:
        raise ValueError(f"`margin` must be a number of at least 0, got {margin}")
    array, errors = _check_shapes(values, stderr)
    parts = None if folds is None else np.asarray(folds, dtype=float)
    clear = []
    for donor in donors:
        lead = array[donor] - array[loser]
        if parts is None:
            noise = np.hypot(errors[donor], errors[loser])
        else:
            noise = paired_stderr(parts[donor], parts[loser])
        if (lead >= 0).all() and ((lead > 0) & (lead >= margin * noise)).any():
            clear.append(donor)
    return clear


def paired_stderr(one: ArrayLike, other: ArrayLike) -> Floats:
    """Return the standard error (K,) of a difference on the same folds.

    `one` and `other` are their values on the folds, (F, K). Luck that both share cancels out.
    """
    difference = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
    if difference.ndim != 2 or len(difference) < 2:
        raise ValueError(
            f"values must have the shape (F, K) with at least 2 folds, got {difference.shape}"
        )
    return np.asarray(difference.std(axis=0, ddof=1) / math.sqrt(len(difference)))


def lineage_mean(values: ArrayLike, stderr: ArrayLike, *, last: int) -> tuple[Floats, Floats]:
    """Average the newest evaluations of a lineage.

    Returns means and standard errors (K,).

    Rows are in the order of training. Of a lineage with fewer than `last` evaluations, all count.
    """
    if last < 1:
        raise ValueError(f"`last` must be at least 1, got {last}")
    array, errors = _check_shapes(values, stderr)
    if not len(array):
        raise ValueError("a lineage must have at least one evaluation, got none")
    newest = errors[-last:]
    return array[-last:].mean(axis=0), np.sqrt((newest**2).sum(axis=0)) / len(newest)


@dataclass(frozen=True)
class _Posterior:
    """What is known about true values (n, K) after all measurements.

    `weights` (n, m) are the probabilities that the true value of a row is that of an atom (m, K).
    Only noisy objectives have atoms; exact ones keep their values.
    """

    values: Floats
    errors: Floats
    noisy: Ints
    weights: Floats

    @staticmethod
    def of(values: Floats, errors: Floats) -> "_Posterior":
        noisy = np.flatnonzero((errors > 0).any(axis=0))
        likelihood = _likelihood(values[:, noisy], errors[:, noisy])
        mass = np.full(likelihood.shape[1], 1 / max(likelihood.shape[1], 1))
        weights = likelihood * mass
        weights /= weights.sum(axis=1, keepdims=True)
        for _ in range(STEPS):
            np.multiply(likelihood, weights.mean(axis=0), out=weights)
            weights /= weights.sum(axis=1, keepdims=True)
        return _Posterior(values, errors, noisy, weights)

    def mean(self) -> Floats:
        means = self.values.copy()
        means[:, self.noisy] = self.weights @ self.values[:, self.noisy]
        return means

    def stderr(self) -> Floats:
        stderr = np.zeros_like(self.values)
        atoms = self.values[:, self.noisy]
        # Centered first, because the variance is small compared with the squares.
        centered = atoms - atoms.mean(axis=0)
        variance = self.weights @ centered**2 - (self.weights @ centered) ** 2
        own = self.errors[:, self.noisy] ** 2
        stderr[:, self.noisy] = np.sqrt(np.maximum(variance, 0.0) + PRIOR_SHARE * own)
        return stderr

    def front_shares(self, rng: Generator, draws: int) -> Floats:
        """Return in which share of draws of all true values each row is on the front."""
        cumulative = np.cumsum(self.weights, axis=1)
        counts = np.zeros(len(self.values))
        true = self.values.copy()
        for _ in range(draws):
            uniform = rng.random((len(self.values), 1)) * cumulative[:, -1:]
            atoms = (cumulative < uniform).sum(axis=1)
            jitter = rng.standard_normal((len(self.values), len(self.noisy)))
            jitter *= math.sqrt(PRIOR_SHARE) * self.errors[:, self.noisy]
            true[:, self.noisy] = self.values[np.ix_(atoms, self.noisy)] + jitter
            counts[non_dominated(true)] += 1
        return np.asarray(counts / draws)


def _likelihood(values: Floats, errors: Floats) -> Floats:
    """Return how likely each row measures the true value of each other row, (n, n)."""
    logarithm = np.zeros((len(values), len(values)))
    for column, stderr in zip(values.T, errors.T, strict=True):
        # An exact value among noisy ones is only compatible with itself.
        tiny = 1e-9 * (float(np.ptp(column)) or 1.0)
        scaled = (column[:, None] - column[None, :]) / np.maximum(stderr, tiny)[:, None]
        logarithm -= 0.5 * scaled**2
    return np.asarray(np.exp(logarithm))


def _subset(n: int, required: Ints, rng: Generator, most: int = MOST_ROWS) -> Ints:
    """Return sorted rows, at most `most` drawn ones and all that are required."""
    if n <= most:
        return np.arange(n)
    return np.union1d(rng.choice(n, size=most, replace=False), required)


def _luck_spans(
    values: Floats, errors: Floats, noisy: Ints, rng: Generator
) -> tuple[Floats, Floats]:
    """Return spans and ratios that pure noise rarely exceeds.

    Exact objectives keep their values.
    """
    redrawn = values.copy()
    spans = np.empty((NULL_DRAWS, len(noisy)))
    ratios = np.empty((NULL_DRAWS, len(noisy)))
    for draw in range(NULL_DRAWS):
        redrawn[:, noisy] = errors[:, noisy] * rng.standard_normal((len(errors), len(noisy)))
        front = np.ix_(non_dominated(redrawn), noisy)
        spans[draw] = np.ptp(redrawn[front], axis=0)
        ratios[draw] = _largest_ratios(redrawn[front], errors[front])
    # Shared between the objectives.
    level = 1 - LEVEL / len(noisy)
    return np.quantile(spans, level, axis=0), np.quantile(ratios, level, axis=0)


def _largest_ratios(values: Floats, errors: Floats) -> Floats:
    """Return the largest difference of two rows in units of its standard error, (K,).

    Pairs are formed with the rows that are extreme at the bounds of their errors, so that the work
    is linear in the length of a front.
    """
    ratios = np.zeros(values.shape[1])
    for k, (column, error) in enumerate(zip(values.T, errors.T, strict=True)):
        extremes = (column.argmin(), column.argmax(), (column + error).argmin())
        for extreme in (*extremes, (column - error).argmax()):
            difference = np.abs(column - column[extreme])
            scale = np.hypot(error, error[extreme])
            with np.errstate(divide="ignore"):
                found = np.divide(difference, scale, out=np.zeros_like(scale), where=difference > 0)
            ratios[k] = max(ratios[k], float(found.max()))
    return ratios


def _ranks_within(column: Floats, groups: Ints) -> Floats:
    """Return ranks within groups (n,), centered at 0; equal values have equal ranks."""
    ranks = np.zeros(len(column))
    for rows in _rows_by_group(groups):
        ordered = np.sort(column[rows])
        below = np.searchsorted(ordered, column[rows], side="left")
        not_above = np.searchsorted(ordered, column[rows], side="right")
        ranks[rows] = (below + not_above - len(rows)) / (2 * len(rows))
    return ranks


def _rows_by_group(groups: Ints) -> list[Ints]:
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def _permutation(one: Floats, other: Floats, groups: Ints) -> tuple[float, float, float]:
    """Return the sum of products of pairs, its variance and its norm.

    Pairs are centered within groups.

    The variance is that over all permutations of `one` within the groups.
    """
    products = variance = squares = other_squares = 0.0
    for rows in _rows_by_group(groups):
        if len(rows) < 2:
            continue
        first = one[rows] - one[rows].mean()
        second = other[rows] - other[rows].mean()
        products += float(first @ second)
        variance += float((first @ first) * (second @ second)) / (len(rows) - 1)
        squares += float(first @ first)
        other_squares += float(second @ second)
    return products, variance, math.sqrt(squares * other_squares)


def _check_shapes(values: ArrayLike, stderr: ArrayLike) -> tuple[Floats, Floats]:
    array = np.asarray(values, dtype=float)
    errors = np.asarray(stderr, dtype=float)
    if array.ndim != 2 or errors.shape != array.shape:
        raise ValueError(
            f"`values` and `stderr` must have the same shape (n, K), got {array.shape} and "
            f"{errors.shape}"
        )
    if not (errors >= 0).all():
        raise ValueError("`stderr` must not be negative or NaN; use 0 for exact values")
    return array, errors
