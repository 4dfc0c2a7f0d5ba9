"""Scalarizations: turn objectives into one score by a weight vector (section 3.2).

Larger is better, for objectives and for scores. Objectives (n, K) with weights (K,) or (n, K) give
scores (n,).

The scores depend on where an objective is 0. All objectives of the paper are positive: a gap enters
as 1 minus the gap, which `above_zero` computes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from mopbt.arguments import check_count

Scores = NDArray[np.float64]
Weights = NDArray[np.float64]

# Section 6.3.2 of the paper: |W| of the maximum scalarization.
VECTORS = 100


def above_zero(objectives: ArrayLike, minimized: Sequence[int]) -> NDArray[np.float64]:
    """Shift minimized objectives so that they are not negative; return (n, K).

    A minimized metric becomes 1 minus the metric, or the worst metric minus it if the worst is
    above 1. Without the shift, a minimized objective alone would decide min_i w_i f_i for all
    weights, and Golovin's score would always be 0.

    Args:
        objectives: Larger is better, (n, K); a minimized metric enters as its negative.
        minimized: The columns of the minimized metrics.
    """
    f = np.array(objectives, dtype=float)
    for k in minimized:
        f[:, k] -= f[:, k].min(initial=-1.0)
    return f


def weighted_sum(objectives: ArrayLike, weights: ArrayLike) -> Scores:
    """Compute sum_i w_i f_i of objectives (n, K) with weights (K,) or (n, K)."""
    f, w = _check_shapes(objectives, weights)
    return np.asarray((w * f).sum(axis=-1))


def chebyshev(objectives: ArrayLike, weights: ArrayLike) -> Scores:
    """Compute min_i w_i f_i of objectives (n, K) with weights (K,) or (n, K)."""
    f, w = _check_shapes(objectives, weights)
    return np.asarray((w * f).min(axis=-1))


def parego(objectives: ArrayLike, weights: ArrayLike, rho: float = 0.05) -> Scores:
    """Compute the augmented Chebyshev score, rho sum_i w_i f_i + min_i w_i f_i."""
    return rho * weighted_sum(objectives, weights) + chebyshev(objectives, weights)


def golovin(objectives: ArrayLike, weights: ArrayLike, *, authors_variant: bool = False) -> Scores:
    """Compute min_i max(0, f_i / w_i)^K of objectives (n, K).

    Args:
        objectives: Larger is better, (n, K).
        weights: Not negative, (K,) or (n, K). An objective with weight 0 does not limit the score
            unless it is negative.
        authors_variant: Follow the authors' code: the exponent is 2 for every K, and negative
            objectives are squared instead of clipped.
    """
    f, w = _check_shapes(objectives, weights)
    # Where w is 0, the ratio is the limit of f / w as w falls to 0.
    limits = np.where(f < 0, -np.inf, np.inf)
    lengths = np.broadcast_to(limits, np.broadcast_shapes(f.shape, w.shape)).copy()
    np.divide(f, w, out=lengths, where=w > 0)
    if authors_variant:
        return np.asarray((lengths**2).min(axis=-1))
    return np.asarray(np.maximum(lengths, 0.0).min(axis=-1) ** f.shape[-1])


def unit_weights(n: int, K: int, rng: Generator) -> Weights:
    """Draw weight vectors (n, K) uniformly from the positive part of the unit sphere.

    These are the weights of the paper: w >= 0 and ||w||_2 = 1.
    """
    weights = np.abs(rng.standard_normal((n, K)))
    return np.asarray(weights / np.linalg.norm(weights, axis=1, keepdims=True))


def simplex_weights(n: int, K: int, rng: Generator) -> Weights:
    """Draw weight vectors (n, K) of uniform numbers divided by their sum.

    These are the weights of the authors' code.
    """
    # Numbers in (0, 1] have no sum of 0.
    weights = 1.0 - rng.random((n, K))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def random_scalarization(
    objectives: ArrayLike, rng: Generator, *, per_member: bool = False
) -> Scores:
    """Compute the ParEGO scores (n,) of objectives (n, K) for random weights.

    Args:
        objectives: Larger is better, (n, K).
        rng: Draws the weights.
        per_member: Follow the authors' code and draw weights for each row. The paper draws one
            vector for all rows.
    """
    f = np.asarray(objectives, dtype=float)
    return parego(f, simplex_weights(len(f) if per_member else 1, f.shape[1], rng))


def maximum_scalarization(
    objectives: ArrayLike, rng: Generator, *, vectors: int = VECTORS, authors_variant: bool = False
) -> Scores:
    """Compute the largest Golovin score of each row over random weights; return (n,).

    Args:
        objectives: Larger is better, (n, K).
        rng: Draws the weights.
        vectors: The number of weight vectors, |W| in the paper.
        authors_variant: Follow the authors' code and draw vectors that sum to 1 for each row. The
            paper's unit vectors are shared by all rows.
    """
    check_count("vectors", vectors, 1)
    f = np.asarray(objectives, dtype=float)
    n, K = f.shape
    if authors_variant:
        weights = simplex_weights(n * vectors, K, rng).reshape(n, vectors, K)
    else:
        weights = unit_weights(vectors, K, rng)
    return np.asarray(golovin(f[:, None, :], weights, authors_variant=authors_variant).max(axis=1))


def _check_shapes(objectives: ArrayLike, weights: ArrayLike) -> tuple[NDArray[np.float64], Weights]:
    f = np.asarray(objectives, dtype=float)
    w = np.asarray(weights, dtype=float)
    if f.ndim < 2:
        raise ValueError(f"`objectives` must have shape (n, K), got {f.shape}")
    if w.ndim < 1 or w.shape[-1] != f.shape[-1]:
        raise ValueError(
            f"`weights` must have shape (K,) or (n, K) with K = {f.shape[-1]}, got {w.shape}"
        )
    if not (w >= 0).all():
        raise ValueError(f"`weights` must not be negative, got {w.min()}")
    return f, w
