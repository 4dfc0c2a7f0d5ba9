"""What one run has gained over another of the same task."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mopbt.html.run_data import check_comparable, common_reference
from mopbt.messages import counted
from mopbt.objectives import signed, unsigned
from mopbt.results import Results

Array = NDArray[np.float64]


def held_against(results: Results, other: Results) -> list[str]:
    """Return in sentences what a run has that the other lacks: hypervolume, models that dominate, and time."""
    runs = (results, other)
    check_comparable(runs)
    mine, theirs = names_of(*runs)
    front, others = (_points(r) for r in runs)
    if not len(front) or not len(others):
        return [
            f"{theirs if len(front) else mine} has no model that could be held against the other's"
        ]
    objectives, reference = results.problem.objectives, shared_reference(runs)
    volume, of_other = (r.hypervolume(reference) for r in runs)
    more = f" ({100 * (volume / of_other - 1):+.1f} %)" if of_other else ""
    beaten, lost = _dominated(others, by=front), _dominated(front, by=others)
    said = [
        f"hypervolume: {mine} {volume:.5g}, {theirs} {of_other:.5g}{more}",
        f"dominated: {beaten} of the {counted(len(others), 'model')} of {theirs} by one of {mine}; the other way round {lost} of "
        f"{len(front):,}",
    ]
    if len(objectives) == 2:
        level, best = _at_the_middle(front, others)
        first, second = objectives
        sense = ">=" if second.direction == "max" else "<="
        has = [
            f"{first.sign * value:.4g}" if np.isfinite(value) else "has no such model"
            for value in best
        ]
        said.append(
            f"{first.name} where {second.name} {sense} {second.sign * level:.4g}: {mine} {has[0]}, {theirs} {has[1]}"
        )
    if volume > of_other:
        when = next(
            seconds
            for seconds, reached in results.hypervolume_curve(reference)
            if reached > of_other
        )
        after = sum(record["seconds"] <= when for record in results.records())
        said.append(
            f"sooner: {mine} was past the hypervolume of {theirs} after {after:,} of its {len(results):,} intervals"
        )
    return said


def names_of(results: Results, other: Results) -> tuple[str, str]:
    """Return what two runs are called beside each other: by their algorithms, or by their folders where these are the same."""
    mine, theirs = (str(r.settings.algorithm["name"]) for r in (results, other))
    if mine == theirs and results.path and other.path:
        return results.path.name, other.path.name
    return mine, theirs


def shared_reference(runs: Sequence[Results]) -> dict[str, float]:
    """Return the one reference point, by name, above which the hypervolumes of several runs can be compared."""
    return unsigned(
        runs[0].problem.objectives,
        common_reference([r.problem for r in runs], [_points(r) for r in runs]).tolist(),
    )


def _points(results: Results) -> Array:
    rows = [
        signed(results.problem.objectives, p.scores) for p in results.front() if not p.violation
    ]
    return np.array(rows, dtype=float).reshape(len(rows), len(results.problem.objectives))


def _at_the_middle(front: Array, other: Array) -> tuple[float, list[float]]:
    """Return the second objective in the middle of the other front, and the best that each has in the first where it is reached."""
    level = float(np.sort(other[:, 1])[len(other) // 2])
    return level, [
        float(points[points[:, 1] >= level, 0].max(initial=-np.inf)) for points in (front, other)
    ]


def _dominated(points: Array, by: Array) -> int:
    """Count the points that one of the others dominates."""
    return sum(
        bool(((by >= point).all(axis=1) & (by > point).any(axis=1)).any()) for point in points
    )
