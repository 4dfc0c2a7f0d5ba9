"""Compare the hypervolume and its curve with moocore and moarchiving in CPU time.

Run it with ``python benchmarks/hypervolume.py``; the exit code is 1 if a target is missed. It needs
moarchiving.
"""

import sys
from collections.abc import Callable

import moocore
import numpy as np
from measuring import Row, argument_parser, cpu_times, show
from moarchiving import BiobjectiveNondominatedSortedList

from mopbt.metrics import hypervolume, hypervolume_curve

Points = np.ndarray


def random_points(n: int, K: int) -> Points:
    """Return uniform points (n, K)."""
    return np.random.default_rng(0).random((n, K))


def front_points(n: int, K: int) -> Points:
    """Return points (n, K) of one front in random order, so that each is accepted."""
    points = np.abs(np.random.default_rng(0).standard_normal((n, K)))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def value_against_moocore(n: int, K: int) -> Row:
    """Compare the hypervolume of random points with moocore's."""
    objectives = random_points(n, K)
    reference = np.zeros(K)
    ours, theirs = cpu_times(
        lambda: hypervolume(objectives, reference),
        lambda: moocore.hypervolume(-objectives, ref=-reference),
        number=max(20, 200_000 // (n * K)),
        repeats=15,
    )
    name = f"hypervolume / moocore, n = {n:,}, K = {K}"
    return Row(name, ours / theirs, "<= 1.2", ours <= 1.2 * theirs)


def curve_by_moarchiving(objectives: Points) -> list[float]:
    """Compute the curve with moarchiving."""
    archive = BiobjectiveNondominatedSortedList(reference_point=[0, 0])
    values = []
    for losses in (-objectives).tolist():
        archive.add(losses)
        values.append(float(archive.hypervolume))
    return values


def curve_by_recomputation(objectives: Points) -> list[float]:
    """Compute the curve with moocore, once per change of the archive."""
    reference = np.zeros(objectives.shape[1])
    archive = np.empty((0, objectives.shape[1]))
    value = 0.0
    values = []
    for losses in -objectives:
        if not (archive <= losses).all(axis=1).any():
            archive = np.vstack([archive[~(losses <= archive).all(axis=1)], losses])
            value = moocore.hypervolume(archive, ref=reference)
        values.append(value)
    return values


def curve(
    name: str, objectives: Points, peer: Callable[[Points], list[float]], target: float
) -> Row:
    """Compare our curve with another one."""
    reference = np.zeros(objectives.shape[1])
    assert np.allclose(hypervolume_curve(objectives, reference), peer(objectives))
    ours, theirs = cpu_times(
        lambda: hypervolume_curve(objectives, reference), lambda: peer(objectives)
    )
    n, K = objectives.shape
    name = f"{name}, n = {n:,}, K = {K}"
    return Row(name, theirs / ours, f">= {target:g}", theirs >= target * ours)


def main() -> int:
    """Print all rows."""
    file = argument_parser(__doc__.splitlines()[0]).parse_args().json
    rows = [value_against_moocore(n, K) for n in (100, 1_000) for K in (2, 3, 4)]
    rows += [
        curve("moarchiving / curve, random", random_points(100_000, 2), curve_by_moarchiving, 3),
        curve(
            "moarchiving / curve, all accepted", front_points(100_000, 2), curve_by_moarchiving, 3
        ),
        curve(
            "recomputation / curve, random", random_points(10_000, 3), curve_by_recomputation, 1.7
        ),
        curve(
            "recomputation / curve, all accepted",
            front_points(2_000, 3),
            curve_by_recomputation,
            1.7,
        ),
    ]
    return show(rows, file)


if __name__ == "__main__":
    sys.exit(main())
