"""Advice on the size of a run: how large, how long, how often.

Population based training needs enough members to choose from, enough decisions to pay off, and
intervals long enough to tell members apart. Advice is for algorithms that exploit.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.algorithms import ALGORITHMS, algorithm_of
from mopbt.history import History
from mopbt.problem import Problem
from mopbt.schedulers.pbt import Pbt
from mopbt.uncertainty import inheritance_test

FEWEST_INTERVALS = 20
SMALLEST_POPULATION = 8
# Generations after which the interval is judged.
GENERATIONS = 3
GUIDE = "see docs/how-to/sizing.md"

Ints = NDArray[np.intp]


def exploiting_population(problem: Problem, algorithm: Mapping[str, Any]) -> int:
    """Return the size of the population, or 0 for an algorithm that never exploits."""
    if algorithm["name"] not in ALGORITHMS:
        return 0
    scheduler = algorithm_of(dict(algorithm)).scheduler(problem)
    return scheduler.population if isinstance(scheduler, Pbt) else 0


def size_advice(problem: Problem, population: int) -> list[str]:
    """Return a sentence for each size that is too small for exploiting."""
    advice = []
    intervals = problem.steps // problem.interval
    if intervals < FEWEST_INTERVALS:
        advice.append(
            f"only {intervals} intervals: with ten, MO-PBT and random search come out level; use "
            f"at least {FEWEST_INTERVALS}, by more `steps` ({problem.steps}) or a shorter "
            f"`interval` ({problem.interval}); {GUIDE}"
        )
    if population < SMALLEST_POPULATION:
        advice.append(
            f"a population of {population} has too few members to copy from; use at least "
            f"{SMALLEST_POPULATION}, and 16 to 32 if you can; {GUIDE}"
        )
    return advice


def interval_advice(history: History, population: int) -> str:
    """Return a sentence if the first intervals cannot tell members apart, else ``""``.

    It follows from the first generations alone, so it does not change later.
    """
    n = GENERATIONS * population
    if not population or len(history.reports) < n:
        return ""
    values = history.reports.objectives()[:n]
    rows = np.flatnonzero(np.isfinite(values).all(axis=1))
    first = rows[rows < population]
    reason = _ties(history, first) or _noise(history, rows) or _forgetting(history, rows)
    if not reason:
        return ""
    interval = history.problem.interval
    return f"{reason}; use a longer `interval` than {interval}; {GUIDE}"


def _ties(history: History, rows: Ints) -> str:
    """Say in which objective most members are equal after their first interval."""
    values = history.reports.objectives()[rows]
    for objective, column in zip(history.problem.objectives, values.T, strict=True):
        most = int(np.unique(column, return_counts=True)[1].max(initial=0))
        if len(rows) >= SMALLEST_POPULATION and 2 * most > len(rows):
            return (
                f"after the first interval {most} of {len(rows)} members have the same "
                f"{objective.name}, so that it does not tell them apart"
            )
    return ""


def _noise(history: History, rows: Ints) -> str:
    """Say if errors explain at least half of the variance of metrics within a step."""
    stderrs = history.reports.stderrs()[rows]
    if not (stderrs > 0).all(axis=0).all() or len(rows) < SMALLEST_POPULATION:
        return ""
    values = history.reports.objectives()[rows]
    steps = history.jobs.ends()[history.reports.jobs()[rows]]
    groups = [values[steps == step] for step in np.unique(steps)]
    variance = np.mean([group.var(axis=0, ddof=1) for group in groups if len(group) > 1], axis=0)
    if (variance > 2 * np.mean(stderrs**2, axis=0)).any():
        return ""
    return "in the first generations members differ by little more than the errors of their metrics"


def _forgetting(history: History, rows: Ints) -> str:
    """Say if the ranks of models have nothing to do with those of an interval earlier."""
    jobs = history.reports.jobs()[rows]
    place = {job: i for i, job in enumerate(jobs.tolist())}
    parents = [place.get(start, -1) for start in history.jobs.start_ids()[jobs].tolist()]
    values = history.reports.objectives()[rows]
    found = inheritance_test(values, parents, history.jobs.ends()[jobs]) if len(rows) else None
    if found is None or not found.is_noise:
        return ""
    return (
        "in the first generations the rank of a model says nothing about its rank one interval "
        "later"
    )
