"""Successive halving: compare trials at rungs (ASHA, Li et al. 2020)."""

from mopbt.state import Result, State

# Section 6.3.3 of the paper and the authors' code: one of three trials continues.
ETA = 3


def rung_steps(interval: int, steps: int, *, grace: int = 1, eta: int = ETA) -> tuple[int, ...]:
    """Return the steps of all rungs below `steps`.

    The first rung is after `grace` intervals, and each next one after `eta` times as many.

    >>> rung_steps(2, 100)
    (2, 6, 18, 54)
    """
    rungs = []
    step = grace * interval
    while step < steps:
        rungs.append(step)
        step *= eta
    return tuple(rungs)


def at_rung(state: State, step: int) -> dict[int, Result]:
    """Return the finite results at a rung by trial; failed trials are not compared."""
    results = {}
    for trial in state.trials:
        result = trial.results.get(step)
        if result is not None and result.is_finite:
            results[trial.id] = result
    return results


def places_to_stay(n: int, eta: int = ETA) -> int:
    """Return how many of `n` results at a rung may continue: n / eta, rounded up.

    The result that has just arrived counts as one of the `n`.

    >>> [places_to_stay(n) for n in (1, 3, 4, 32)]
    [1, 1, 2, 11]
    """
    return -(-n // eta)


def places_to_promote(n: int, eta: int = ETA) -> int:
    """Return how many of `n` results at a rung are promoted: n / eta, rounded down.

    >>> [places_to_promote(n) for n in (1, 3, 4, 32)]
    [0, 1, 1, 10]
    """
    return n // eta
