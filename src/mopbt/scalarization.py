"""Scalarizations: a vector of objectives becomes one score by a vector of weights (paper, section 3.2).

Larger is better, for the objectives and for the scores. The functions of a weight vector work along the last axis, the
others broadcast: objectives (n, K) with weights (K,) or (n, K) give scores (n,).

What a score means depends on where an objective is 0. The paper's objectives are all above it: gaps enter as 1 less the gap, which
`above_zero` does.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

Scores = NDArray[np.float64]
Weights = NDArray[np.float64]

VECTORS = 100  # paper, section 6.3.2: |W| of the maximum scalarization


def above_zero(objectives: ArrayLike, minimized: Sequence[int]) -> NDArray[np.float64]:
    """Return objectives (n, K) with 1 less the score where it is minimized, or the worst score less it where that is above 1.

    Without it min_i w_i f_i would be the minimized objective's alone, whatever the weights, and Golovin's score 0 for all.

    Args:
        objectives: Larger is better, (n, K): of a minimized score its negative.
        minimized: The columns of those.
    """
    f = np.array(objectives, dtype=float)
    for k in minimized:
        f[:, k] -= f[:, k].min(initial=-1.0)
    return f


def weighted_sum(objectives: ArrayLike, weights: ArrayLike) -> Scores:
    """Return sum_i w_i f_i for objectives (n, K) and weights (K,) or (n, K); scores (n,)."""
    f, w = _matched(objectives, weights)
    return np.asarray((w * f).sum(axis=-1))


def chebyshev(objectives: ArrayLike, weights: ArrayLike) -> Scores:
    """Return min_i w_i f_i for objectives (n, K) and weights (K,) or (n, K); scores (n,)."""
    f, w = _matched(objectives, weights)
    return np.asarray((w * f).min(axis=-1))


def parego(objectives: ArrayLike, weights: ArrayLike, rho: float = 0.05) -> Scores:
    """Return the augmented Chebyshev score, rho sum_i w_i f_i + min_i w_i f_i, for objectives (n, K); scores (n,)."""
    return rho * weighted_sum(objectives, weights) + chebyshev(objectives, weights)


def golovin(objectives: ArrayLike, weights: ArrayLike, *, authors_variant: bool = False) -> Scores:
    """Return min_i max(0, f_i / w_i)^K for objectives (n, K) and weights (K,) or (n, K); scores (n,).

    Args:
        objectives: Larger is better, (n, K).
        weights: Not negative; an objective with the weight 0 does not limit the score unless it is below 0.
        authors_variant: As in the authors' code: the exponent is 2 for every K, and negative objectives are squared as they are.
    """
    f, w = _matched(objectives, weights)
    unlimited = np.where(f < 0, -np.inf, np.inf)  # the limit of f / w as w falls to 0
    lengths = np.divide(
        f,
        w,
        out=np.broadcast_to(unlimited, np.broadcast_shapes(f.shape, w.shape)).copy(),
        where=w > 0,
    )
    if authors_variant:
        return np.asarray((lengths**2).min(axis=-1))
    return np.asarray(np.maximum(lengths, 0.0).min(axis=-1) ** f.shape[-1])


def unit_weights(n: int, K: int, rng: Generator) -> Weights:
    """Draw n weight vectors, (n, K), uniformly from the directions of the positive orthant: w >= 0, ||w||_2 = 1 (the paper's)."""
    weights = np.abs(rng.standard_normal((n, K)))
    return np.asarray(weights / np.linalg.norm(weights, axis=1, keepdims=True))


def simplex_weights(n: int, K: int, rng: Generator) -> Weights:
    """Draw n weight vectors, (n, K), of independent uniform numbers divided by their sum (the authors' code's)."""
    weights = 1.0 - rng.random((n, K))  # in (0, 1], so that no sum is 0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def random_scalarization(
    objectives: ArrayLike, rng: Generator, *, per_member: bool = False
) -> Scores:
    """Return the ParEGO scores (n,) of objectives (n, K) under random weights.

    Args:
        objectives: Larger is better, (n, K).
        rng: Draws the weights.
        per_member: As in the authors' code: each row has weights of its own, where the paper draws one vector for all.
    """
    f = np.asarray(objectives, dtype=float)
    return parego(f, simplex_weights(len(f) if per_member else 1, f.shape[1], rng))


def maximum_scalarization(
    objectives: ArrayLike, rng: Generator, *, vectors: int = VECTORS, authors_variant: bool = False
) -> Scores:
    """Return for each row of objectives (n, K) its largest Golovin score over random weights; scores (n,).

    Args:
        objectives: Larger is better, (n, K).
        rng: Draws the weights.
        vectors: How many weight vectors there are, |W| in the paper.
        authors_variant: As in the authors' code: each row has vectors of its own, which sum to 1; the paper's unit vectors serve all.
    """
    check_vectors(vectors)
    f = np.asarray(objectives, dtype=float)
    n, K = f.shape
    weights = (
        simplex_weights(n * vectors, K, rng).reshape(n, vectors, K)
        if authors_variant
        else unit_weights(vectors, K, rng)
    )
    return np.asarray(golovin(f[:, None, :], weights, authors_variant=authors_variant).max(axis=1))


def check_vectors(vectors: int) -> None:
    """Raise ValueError unless this is a number of weight vectors."""
    if not isinstance(vectors, int) or isinstance(vectors, bool) or vectors < 1:
        raise ValueError(f"`vectors` must be a whole number of at least 1, got {vectors!r}")


def _matched(objectives: ArrayLike, weights: ArrayLike) -> tuple[NDArray[np.float64], Weights]:
    f, w = np.asarray(objectives, dtype=float), np.asarray(weights, dtype=float)
    if f.ndim < 2:
        raise ValueError(f"`objectives` must have shape (n, K), got {f.shape}")
    if w.ndim < 1 or w.shape[-1] != f.shape[-1]:
        raise ValueError(
            f"`weights` must have shape (K,) or (n, K) with K = {f.shape[-1]}, got {w.shape}"
        )
    if not (w >= 0).all():
        raise ValueError(f"`weights` must not be negative, got {w.min()}")
    return f, w
