"""Rungs: the steps at which successive halving compares trials, and who may go on from one (ASHA, Li et al. 2020)."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from mopbt.ranking import Rank
from mopbt.state import Result, State

ETA = 3  # paper, section 6.3.3 and the authors' code: one of three goes on


def rung_steps(interval: int, steps: int, *, grace: int = 1, eta: int = ETA) -> tuple[int, ...]:
    """Return the steps at which trials are compared: `grace` intervals, then `eta` times as many each time, below `steps`.

    >>> rung_steps(2, 100)
    (2, 6, 18, 54)
    """
    rungs, step = [], grace * interval
    while step < steps:
        rungs.append(step)
        step *= eta
    return tuple(rungs)


def at_rung(state: State, step: int) -> dict[int, Result]:
    """Return the sound results at a rung by trial: whoever failed there is not compared."""
    return {
        t.id: result
        for t in state.trials
        if (result := t.results.get(step)) is not None and result.is_finite
    }


def best_of(results: Sequence[Result], n: int, rank: Rank, rng: Generator) -> list[int]:
    """Return the rows of the `n` best of some sound results."""
    if not 0 < n < len(results):
        return list(range(len(results))) if n > 0 else []
    objectives, violations = (
        np.array([r.objectives for r in results]),
        np.array([r.violation for r in results]),
    )
    return [int(row) for row in rank(objectives, violations, rng, (n,))[:n]]


def places_to_stay(n: int, eta: int = ETA) -> int:
    """Return how many of `n` results at a rung may stay, the one that has just come included: one of `eta`, rounded up.

    >>> [places_to_stay(n) for n in (1, 3, 4, 32)]
    [1, 1, 2, 11]
    """
    return -(-n // eta)


def places_to_promote(n: int, eta: int = ETA) -> int:
    """Return how many of `n` results at a rung are promoted: one of `eta`, rounded down.

    >>> [places_to_promote(n) for n in (1, 3, 4, 32)]
    [0, 1, 1, 10]
    """
    return n // eta
