"""What the runs of a comparison are measured by: their fronts, hypervolume over time, on validation and on test data, and coverage.

One pass over all runs of a task finds the reference point and HV*, which they have in common; tables and figures show the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import moocore
import numpy as np
from numpy.typing import NDArray

from mopbt import metrics
from mopbt.compare import AlgorithmEntry, Comparison, RunData
from mopbt.problem import Problem

Array = NDArray[np.float64]

BASELINE = "MO-PBT"  # the label that others are tested against; without it, the comparison's first
APART = 0.05  # times of algorithms that differ by less are called equal
TIMES = 128  # at most so many at which hypervolumes are taken
RELATIONS = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run, measured as all runs of its task are; rows that violate a constraint, failed or are not finite count for nothing."""

    data: RunData
    front: NDArray[np.intp]  # the rows of the final front, by validation
    hypervolumes: Array  # (T,), at the task's times
    test_hypervolumes: (
        Array | None
    )  # (T,), of the front by validation at each time, with its values on test data
    coverage: float | None  # for two objectives


@dataclass(frozen=True, eq=False)
class MeasuredTask:
    """All runs of a task by algorithm, with the reference point (K,), HV* and the times (T,) that they have in common."""

    name: str
    problem: Problem
    reference: Array
    best: float  # HV*
    best_test: float | None
    times: Array
    runs: Mapping[str, tuple[MeasuredRun, ...]]  # by algorithm, in the order of their seeds
    entries: Mapping[str, AlgorithmEntry]
    complete: bool = True  # all planned runs are there
    scaled: bool = False  # for coverage, to the ranges of the objectives


def measure(comparison: Comparison) -> tuple[MeasuredTask, ...]:
    """Measure all runs of a comparison; a task is left out as long as it has no evaluation that counts."""
    entries = comparison.experiment.entries
    measured = []
    for task, problem in comparison.problems.items():
        runs = [run for run in comparison.runs if run.task == task]
        alone = without_own_constraints(problem, entries[runs[0].algorithm])
        if any(np.isfinite(counted(run, alone)).all(axis=1).any() for run in runs):
            complete = all(run.task != task for run in comparison.missing)
            measured.append(replace(measure_task(task, alone, runs, entries), complete=complete))
    return tuple(measured)


def measure_task(
    name: str, problem: Problem, runs: Sequence[RunData], entries: Mapping[str, AlgorithmEntry]
) -> MeasuredTask:
    """Measure the runs of one task: one pass for the reference point and HV*, and one for the runs' own measures."""
    points = [counted(run, problem) for run in runs]
    once = [
        once_on_front(objectives, run.seconds) for objectives, run in zip(points, runs, strict=True)
    ]
    fronts = [objectives[rows] for objectives, rows in zip(points, once, strict=True)]
    reference = metrics.own_reference(np.concatenate(fronts))
    units = (
        metrics.coverage_units(np.concatenate(fronts), reference)
        if len(reference) == 2
        else np.ones(2)
    )
    times = moments([run.seconds for run in runs])
    measured = [
        _measure_run(*of_run, reference, units, times)
        for of_run in zip(runs, points, once, strict=True)
    ]
    tests = [
        run.test[rows]
        for run, rows in zip(runs, once, strict=True)
        if run.test is not None and len(rows)
    ]
    by_label = {label: _of_label(measured, label) for label in entries}
    return MeasuredTask(
        name=name,
        problem=problem,
        reference=reference,
        best=metrics.best_hypervolume(fronts, reference),
        best_test=metrics.hypervolume(np.concatenate(tests), reference) if tests else None,
        times=times,
        runs={label: of_label for label, of_label in by_label.items() if of_label},
        entries=entries,
        scaled=bool((units != 1).any()),
    )


def without_own_constraints(problem: Problem, entry: AlgorithmEntry) -> Problem:
    """Return the task's problem as all algorithms have it, from that of a contender's run, whose own constraints come last."""
    return replace(
        problem,
        constraints=problem.constraints[: len(problem.constraints) - len(entry.constraints)],
    )


def counted(run: RunData, problem: Problem) -> Array:
    """Return the objectives (n, K) of a run, with NaN in the rows that violate a constraint of the task.

    What an algorithm alone was told to keep does not count: all are measured alike.
    """
    kept = np.ones(len(run), dtype=bool)
    for constraint in problem.constraints:
        scores = run.scores.get(
            constraint.name, np.full(len(run), np.nan)
        )  # not there where all evaluations failed
        kept &= RELATIONS[constraint.relation](scores, constraint.bound)
    return np.where(kept[:, None], run.objectives, np.nan)


def once_on_front(objectives: Array, seconds: Array) -> NDArray[np.intp]:
    """Return the rows of objectives (n, K) that were on the front when their evaluation was over, or at any time after it."""
    rows = np.flatnonzero(np.isfinite(objectives).all(axis=1))
    # With time as one more objective: no row dominates or equals them that was there before or at the same time.
    return np.asarray(
        rows[moocore.is_nondominated(np.column_stack([-objectives[rows], seconds[rows]]))]
    )


def moments(seconds: Sequence[Array]) -> Array:
    """Return the times (T,) at which evaluations ended; where they are many, some of them, evenly chosen, with the last."""
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
    until = np.searchsorted(run.seconds[once], times, side="right")
    front, hypervolumes, tests = once[:0], np.zeros(len(times)), np.zeros(len(times))
    for i, (begin, end) in enumerate(zip([0, *until], until, strict=False)):
        if begin == end:
            hypervolumes[i], tests[i] = (hypervolumes[i - 1], tests[i - 1]) if i else (0.0, 0.0)
            continue
        candidates = np.concatenate([front, once[begin:end]])
        front = candidates[metrics.non_dominated(points[candidates])]
        hypervolumes[i] = metrics.hypervolume(points[front], reference)
        tests[i] = 0.0 if run.test is None else metrics.hypervolume(run.test[front], reference)
    coverage = (
        metrics.coverage(points[front], reference, units=units) if points.shape[1] == 2 else None
    )
    return MeasuredRun(run, front, hypervolumes, None if run.test is None else tests, coverage)


def _of_label(runs: Iterable[MeasuredRun], label: str) -> tuple[MeasuredRun, ...]:
    return tuple(
        sorted((run for run in runs if run.data.algorithm == label), key=lambda run: run.data.seed)
    )


def final_hypervolumes(runs: Sequence[MeasuredRun]) -> Array:
    """Return the hypervolume (R,) of each run at its end."""
    return np.array([run.hypervolumes[-1] for run in runs])


def mean_hypervolume(runs: Sequence[MeasuredRun]) -> float:
    """Return the mean hypervolume, by which others are divided; 1 where it is 0."""
    return float(final_hypervolumes(runs).mean()) or 1.0


def unequal_times(measured: Sequence[MeasuredTask]) -> dict[str, dict[str, float]]:
    """Return the virtual seconds of each algorithm's slowest run, by task, where they are not the same but for some intervals."""
    ends = {
        task.name: {
            label: max(float(run.data.seconds.max(initial=0.0)) for run in runs)
            for label, runs in task.runs.items()
        }
        for task in measured
    }
    return {
        task: of_task
        for task, of_task in ends.items()
        if max(of_task.values()) > (1 + APART) * min(of_task.values())
    }


def labels_of(measured: Sequence[MeasuredTask]) -> tuple[str, ...]:
    """Return the labels of the algorithms that have runs on any of the tasks, in the experiment's order."""
    return tuple(
        label
        for label in (measured[0].entries if measured else ())
        if any(label in task.runs for task in measured)
    )


def baseline_of(algorithms: Sequence[str]) -> str:
    """Return the label that others are tested against and that figures give the strong color: MO-PBT, or the first."""
    return BASELINE if BASELINE in algorithms or not algorithms else algorithms[0]


def fronts_of(comparison: Comparison, measured: Iterable[MeasuredTask]) -> Comparison:
    """Return the comparison with the models of the runs' final fronts alone."""
    runs = (run for task in measured for of_label in task.runs.values() for run in of_label)
    return replace(comparison, runs=tuple(run.data.only(run.front) for run in runs))
