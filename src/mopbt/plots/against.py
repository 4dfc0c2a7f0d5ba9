"""Compare two runs of the same task."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mopbt.html.run_data import check_comparable, common_reference
from mopbt.messages import counted
from mopbt.objectives import signed, unsigned
from mopbt.results import Results

Array = NDArray[np.float64]


def describe_differences(results: Results, other: Results) -> list[str]:
    """Describe how two runs differ in hypervolume, domination, scores and speed."""
    runs = (results, other)
    check_comparable(runs)
    name, other_name = names_of(*runs)
    front, other_front = (_feasible_front(run) for run in runs)
    if not len(front) or not len(other_front):
        empty = other_name if len(front) else name
        return [f"{empty} has no feasible model, so the runs cannot be compared"]
    reference = shared_reference(runs)
    volume, other_volume = (run.hypervolume(reference) for run in runs)
    percent = f" ({100 * (volume / other_volume - 1):+.1f} %)" if other_volume else ""
    won = _count_dominated(other_front, by=front)
    lost = _count_dominated(front, by=other_front)
    # Where metrics have errors, the front of a run is another one.
    has_errors = any(run.front().kind != "observed" for run in runs)
    observed = "observed " if has_errors else ""
    where = ", on the observed fronts" if has_errors else ""
    lines = [
        f"{observed}hypervolume: {name} {volume:.5g}, {other_name} {other_volume:.5g}{percent}",
        f"dominated{where}: {won} of the {counted(len(other_front), 'model')} of {other_name} by a "
        f"model of {name}; conversely {lost} of {len(front):,}",
    ]
    if len(results.problem.objectives) == 2:
        lines.append(_compare_at_median(results, front, other_front, (name, other_name)))
    if volume > other_volume:
        curve = results.hypervolume_curve(reference)
        when = next(seconds for seconds, reached in curve if reached > other_volume)
        intervals = sum(record["seconds"] <= when for record in results.records())
        lines.append(
            f"speed: {name} exceeded the hypervolume of {other_name} after {intervals:,} of its "
            f"{len(results):,} intervals"
        )
    return lines


def names_of(results: Results, other: Results) -> tuple[str, str]:
    """Name two runs by their algorithms, or by their directories if those are equal."""
    name, other_name = (str(run.settings.algorithm["name"]) for run in (results, other))
    if name == other_name and results.path and other.path:
        return results.path.name, other.path.name
    return name, other_name


def shared_reference(runs: Sequence[Results]) -> dict[str, float]:
    """Return one reference point, by objective, from which to measure several runs."""
    problems = [run.problem for run in runs]
    reference = common_reference(problems, [_feasible_front(run) for run in runs])
    return unsigned(problems[0].objectives, reference.tolist())


def _feasible_front(results: Results) -> Array:
    """Return the objectives (n, K) of a front's feasible models, larger is better."""
    objectives = results.problem.objectives
    rows = [
        signed(objectives, point.scores)
        for point in results.front(observed=True)
        if not point.violation
    ]
    return np.array(rows, dtype=float).reshape(len(rows), len(objectives))


def _compare_at_median(
    results: Results, front: Array, other_front: Array, names: tuple[str, str]
) -> str:
    """Compare the first objective at the median of the other front's second one."""
    first, second = results.problem.objectives
    level = float(np.sort(other_front[:, 1])[len(other_front) // 2])
    scores = []
    for points in (front, other_front):
        best = points[points[:, 1] >= level, 0].max(initial=-np.inf)
        scores.append(f"{first.sign * best:.4g}" if np.isfinite(best) else "has no such model")
    relation = ">=" if second.direction == "max" else "<="
    return (
        f"{first.name} where {second.name} {relation} {second.sign * level:.4g}: "
        f"{names[0]} {scores[0]}, {names[1]} {scores[1]}"
    )


def _count_dominated(points: Array, by: Array) -> int:
    """Count the points that at least one of the others dominates."""
    dominated = 0
    for point in points:
        dominated += bool(((by >= point).all(axis=1) & (by > point).any(axis=1)).any())
    return dominated
