"""Measure the runs of a comparison.

Measures are fronts, hypervolume over time, coverage and the value of choosing.

All runs of a task share one reference point and one HV*. Tables and figures show the measures.
Arrays of objectives are larger-is-better.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mopbt.compare.collect import Comparison
from mopbt.compare.plan import AlgorithmEntry, slug
from mopbt.compare.run_data import RunData
from mopbt.metrics import (
    best_hypervolume,
    coverage,
    coverage_units,
    hypervolume,
    non_dominated,
    own_reference,
)
from mopbt.problem import Problem

Array = NDArray[np.float64]

# Label that the others are tested against. Without it, the first of the comparison.
BASELINE = "MO-PBT"
# Number of times at which hypervolumes are measured, at most.
TIMES = 128
# A set of preferences has about this many.
PREFERENCES = 101
# Ties go to the model that is better in the other objectives.
TIE_BREAK = 1e-9
RELATIONS = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}


@dataclass(frozen=True)
class Choice:
    """The mean utility of chosen models: `claimed`, and `actual` on test data."""

    claimed: float
    actual: float


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run and its measures.

    Rows that failed, violate a constraint or are not finite do not count.

    Attributes:
        data: The evaluations.
        front: Rows of the final front on validation data.
        hypervolumes: Hypervolume (T,) at the task's times.
        test_hypervolumes: Hypervolume (T,) on test data, of the front on validation data at each
            time. NaN before the end where models of that front were not measured on test data. None
            if the task has no test scores.
        coverage: Coverage of the final front, for two objectives.
        honest_test: Hypervolume on test data of the final pessimistic front. None if the task has
            no test scores or its objectives have no errors.
        choice: What choosing from the front is worth; from the pessimistic one if there are
            errors. None if the task has no test scores.
    """

    data: RunData
    front: NDArray[np.intp]
    hypervolumes: Array
    test_hypervolumes: Array | None
    coverage: float | None
    honest_test: float | None = None
    choice: Choice | None = None


@dataclass(frozen=True, eq=False)
class MeasuredTask:
    """All runs of a task, and what they have in common.

    Attributes:
        name: The task, as in the experiment.
        title: The task's own name, or `name` if another task has the same.
        slug: The title as part of a file name.
        problem: The problem without constraints of single algorithms.
        signs: 1 for each objective to maximize and -1 for each to minimize, (K,).
        reference: Reference point (K,), larger is better: the task's own, or else that of all runs.
        ideal: The best value (K,) of each objective on the fronts of all runs, larger is better.
            None if it is not above the reference point.
        best: HV*, the hypervolume of all runs together.
        best_test: The same on test data. None if the task has no test scores.
        times: Times (T,) at which hypervolumes are measured.
        runs: Runs by algorithm, in the order of their seeds.
        entries: All algorithms of the experiment.
        complete: Whether all planned runs are finished.
        scaled: Whether coverage is measured in units of the objectives' ranges.
    """

    name: str
    title: str
    slug: str
    problem: Problem
    signs: Array
    reference: Array
    best: float
    best_test: float | None
    times: Array
    runs: Mapping[str, tuple[MeasuredRun, ...]]
    entries: Mapping[str, AlgorithmEntry]
    complete: bool = True
    scaled: bool = False
    ideal: Array | None = None


def measure(comparison: Comparison) -> tuple[MeasuredTask, ...]:
    """Measure all runs of a comparison; skip tasks without a valid evaluation."""
    entries = comparison.experiment.entries
    slugs = Counter(slug(problem.name) for problem in comparison.problems.values())
    measured = []
    for task, problem in comparison.problems.items():
        runs = [run for run in comparison.runs if run.task == task]
        if any(np.isfinite(valid_objectives(run, problem)).all(axis=1).any() for run in runs):
            is_unique = slugs[slug(problem.name)] == 1
            of_task = measure_task(task, problem, runs, entries)
            title = problem.name if is_unique else task
            complete = all(run.task != task for run in comparison.missing)
            measured.append(replace(of_task, title=title, slug=slug(title), complete=complete))
    return tuple(measured)


def measure_task(
    name: str, problem: Problem, runs: Sequence[RunData], entries: Mapping[str, AlgorithmEntry]
) -> MeasuredTask:
    """Measure the runs of one task by a common reference point and HV*."""
    points = [valid_objectives(run, problem) for run in runs]
    once = [rows_once_on_front(own, run.seconds) for own, run in zip(points, runs, strict=True)]
    fronts = [own[rows] for own, rows in zip(points, once, strict=True)]
    reference = own_reference(np.concatenate(fronts))
    if problem.reference is not None:
        reference = np.array(problem.reference)
    units = np.ones(2)
    if len(reference) == 2:
        units = coverage_units(np.concatenate(fronts), reference)
    ideal = np.concatenate(fronts).max(axis=0)
    times = measuring_times([run.seconds for run in runs])
    by_label: dict[str, list[MeasuredRun]] = {label: [] for label in entries}
    tests = []
    for run, own, rows in zip(runs, points, once, strict=True):
        of_run = _measure_run(run, own, rows, reference, units, times)
        by_label[run.algorithm].append(_measure_choice(of_run, own, reference, ideal))
        if run.test is not None and len(rows):
            tests.append(run.test[rows])
    return MeasuredTask(
        name=name,
        title=name,
        slug=slug(name),
        problem=problem,
        signs=np.array([float(objective.sign) for objective in problem.objectives]),
        reference=reference,
        best=best_hypervolume(fronts, reference),
        best_test=hypervolume(np.concatenate(tests), reference) if tests else None,
        times=times,
        runs={
            label: tuple(sorted(of_label, key=lambda run: run.data.seed))
            for label, of_label in by_label.items()
            if of_label
        },
        entries=entries,
        scaled=bool((units != 1).any()),
        ideal=ideal if (ideal > reference).all() else None,
    )


def valid_objectives(run: RunData, problem: Problem) -> Array:
    """Return the objectives (n, K) of a run, NaN where a constraint is violated.

    Constraints of single algorithms do not count, so all algorithms are measured alike.
    """
    valid = np.ones(len(run), dtype=bool)
    for constraint in problem.constraints:
        # A score is missing if all evaluations of a run failed.
        scores = run.scores.get(constraint.name, np.full(len(run), np.nan))
        valid &= RELATIONS[constraint.relation](scores, constraint.bound)
    return np.where(valid[:, None], run.objectives, np.nan)


def rows_once_on_front(objectives: Array, seconds: Array) -> NDArray[np.intp]:
    """Return the rows of objectives (n, K) that were on the front at any time.

    With time as one more objective, these are the rows that no earlier or simultaneous row
    dominates or equals.
    """
    rows = np.flatnonzero(np.isfinite(objectives).all(axis=1))
    costs = np.column_stack([-objectives[rows], seconds[rows]])
    return np.asarray(rows[moocore.is_nondominated(costs)])


def pessimistic_front(run: RunData, points: Array) -> NDArray[np.intp]:
    """Return the rows of valid objectives (n, K) on the pessimistic front.

    It is empty if the run has no bounds.
    """
    if run.bounds is None:
        return np.zeros(0, dtype=np.intp)
    valid = np.isfinite(points).all(axis=1) & np.isfinite(run.bounds).all(axis=1)
    rows = np.flatnonzero(valid)
    return np.asarray(rows[non_dominated(run.bounds[rows])])


def recorded_rows(run: RunData, problem: Problem) -> NDArray[np.intp]:
    """Return the rows that the measures of a run need, in their order.

    Args:
        run: All evaluations of the run.
        problem: The problem without constraints of single algorithms.
    """
    points = valid_objectives(run, problem)
    once = rows_once_on_front(points, run.seconds)
    last = np.arange(len(run))[-1:]
    return np.unique(np.concatenate([once, pessimistic_front(run, points), last]))


def measuring_times(seconds: Sequence[Array]) -> Array:
    """Return the times (T,) at which evaluations ended, evenly thinned to at most 128.

    The first and the last time are always among them.
    """
    times = np.unique(np.concatenate(list(seconds)))
    chosen = np.linspace(0, len(times) - 1, min(len(times), TIMES)).round().astype(int)
    return np.asarray(times[chosen])


def _measure_run(
    run: RunData,
    points: Array,
    once: NDArray[np.intp],
    reference: Array,
    units: Array,
    times: Array,
) -> MeasuredRun:
    """Measure a run, from the rows that were once on its front."""
    ends = np.searchsorted(run.seconds[once], times, side="right")
    front = once[:0]
    hypervolumes = np.zeros(len(times))
    tests = np.zeros(len(times))
    # The front does not change after this time.
    last = int(np.searchsorted(ends, len(once)))
    for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if begin < end:
            candidates = np.concatenate([front, once[begin:end]])
            front = candidates[non_dominated(points[candidates])]
            hypervolumes[i] = hypervolume(points[front], reference)
            if run.test is not None:
                tests[i] = hypervolume(run.test[front], reference)
                if not np.isfinite(run.test[front]).all() and i < last:
                    tests[i] = np.nan
        elif i:
            hypervolumes[i] = hypervolumes[i - 1]
            tests[i] = tests[i - 1]
    covered = None
    if points.shape[1] == 2:
        covered = coverage(points[front], reference, units=units)
    return MeasuredRun(run, front, hypervolumes, None if run.test is None else tests, covered)


def _measure_choice(
    measured: MeasuredRun, points: Array, reference: Array, ideal: Array
) -> MeasuredRun:
    """Add what is measured on test data of the front that a user chooses from."""
    run = measured.data
    if run.test is None:
        return measured
    compared = points
    front = measured.front
    honest_test = None
    if run.bounds is not None:
        compared = run.bounds
        front = pessimistic_front(run, points)
        honest_test = hypervolume(run.test[front], reference)
    choice = None
    if (ideal > reference).all():
        choice = value_of_choosing(compared[front], run.test[front], reference, ideal)
    return replace(measured, honest_test=honest_test, choice=choice)


# The value of choosing. A user has a preference, and takes the model of the front that suits it
# best by validation data. Utilities are 1 at the ideal point and 0 at the reference point.


def preferences(objectives: int) -> Array:
    """Return a fixed set of weights (m, K) that sum to 1: multiples of one fraction.

    There are 101 for two objectives and 105 for three.
    """
    if objectives < 2:
        return np.ones((1, objectives))
    # The number of parts that brings the size of the lattice closest to PREFERENCES.
    parts = min(
        range(1, PREFERENCES + 1),
        key=lambda n: abs(comb(n + objectives - 1, objectives - 1) - PREFERENCES),
    )
    weights = []
    slots = parts + objectives - 1
    for bars in combinations(range(slots), objectives - 1):
        edges = np.array([-1, *bars, slots])
        weights.append((np.diff(edges) - 1) / parts)
    return np.array(weights)


def utilities(values: ArrayLike, reference: ArrayLike, ideal: ArrayLike, weights: Array) -> Array:
    """Return the Chebyshev utility (n, m) of values (n, K) for each preference (m, K).

    It is 1 minus the largest weighted shortfall from the ideal point, where the distance from the
    reference point to the ideal point is 1 in each objective.
    """
    best = np.asarray(ideal, dtype=float)
    span = best - np.asarray(reference, dtype=float)
    if not (span > 0).all():
        raise ValueError(f"`ideal` must be above `reference` in each objective, got {span} more")
    shortfall = (best - np.asarray(values, dtype=float)) / span
    return np.asarray(1 - (shortfall[:, None, :] * weights[None, :, :]).max(axis=2))


def value_of_choosing(
    compared: ArrayLike, test: ArrayLike, reference: ArrayLike, ideal: ArrayLike
) -> Choice | None:
    """Return the mean utility of the models chosen from a front, over all preferences.

    Args:
        compared: The objectives (n, K) by which a user chooses: measured values, or their bounds.
        test: The same objectives (n, K) on test data. Models without them cannot be chosen.
        reference: Where an objective is worth 0, (K,).
        ideal: Where it is worth 1, (K,).

    Returns:
        None if no model can be chosen.
    """
    known = np.isfinite(np.asarray(test, dtype=float)).all(axis=1)
    shown = np.asarray(compared, dtype=float)[known]
    if not len(shown):
        return None
    weights = preferences(shown.shape[1])
    claimed = utilities(shown, reference, ideal, weights)
    actual = utilities(np.asarray(test, dtype=float)[known], reference, ideal, weights)
    span = np.asarray(ideal, dtype=float) - np.asarray(reference, dtype=float)
    tie_break = TIE_BREAK * (shown / span).sum(axis=1)
    chosen = np.argmax(claimed + tie_break[:, None], axis=0)
    columns = np.arange(len(weights))
    return Choice(float(claimed[chosen, columns].mean()), float(actual[chosen, columns].mean()))


# Summaries


def final_hypervolumes(runs: Sequence[MeasuredRun]) -> Array:
    """Return the final hypervolume (R,) of each run."""
    return np.array([run.hypervolumes[-1] for run in runs])


def mean_hypervolume(runs: Sequence[MeasuredRun]) -> float:
    """Return the mean final hypervolume, or 1 if it is 0, as a divisor for others."""
    return float(final_hypervolumes(runs).mean()) or 1.0


def labels_of(measured: Sequence[MeasuredTask]) -> tuple[str, ...]:
    """Return the algorithms that have runs, in the experiment's order."""
    present = {label for task in measured for label in task.runs}
    entries = measured[0].entries if measured else {}
    return tuple(label for label in entries if label in present)


def baseline_of(algorithms: Sequence[str]) -> str:
    """Return the algorithm to compare others with: MO-PBT, or the first one."""
    return BASELINE if BASELINE in algorithms or not algorithms else algorithms[0]


def keep_fronts(comparison: Comparison, measured: Iterable[MeasuredTask]) -> Comparison:
    """Return the comparison with only the models of the runs' final fronts."""
    runs = (run for task in measured for of_label in task.runs.values() for run in of_label)
    return replace(comparison, runs=tuple(run.data.only(run.front) for run in runs))
