"""Compare ranks and Algorithm 1 with moocore and Syne Tune in CPU time.

Run it with ``python benchmarks/ranking.py``; the exit code is 1 if a target is missed. Rows of
Syne Tune need ``pip install --no-deps syne-tune==0.16.0`` and ``pip install dill``, but none of its
other requirements.
"""

import sys
import tracemalloc

import moocore
import numpy as np
from measuring import Row, argument_parser, cpu_times, show

from mopbt.ranking import ranks, scattered_order

try:
    from syne_tune.optimizer.schedulers.multiobjective.multiobjective_priority import (
        NonDominatedPriority,
    )
    from syne_tune.optimizer.schedulers.multiobjective.non_dominated_priority import (
        nondominated_sort,
    )
except ImportError:
    nondominated_sort = None


def ranks_against_moocore(n: int, K: int) -> Row:
    """Compare ranks of random points with moocore's."""
    objectives = np.random.default_rng(0).random((n, K))
    number = max(1, 100_000 // (n * K))
    ours, theirs = cpu_times(
        lambda: ranks(objectives),
        lambda: moocore.pareto_rank(-objectives),
        number=number,
        repeats=7,
    )
    name = f"ranks / moocore, n = {n:,}, K = {K}"
    return Row(name, ours / theirs, "<= 1.3", ours <= 1.3 * theirs)


def scattered_against_syne_tune(n: int) -> list[Row]:
    """Compare Algorithm 1 with Syne Tune's non-dominated sorting."""
    objectives = np.random.default_rng(0).random((n, 2))
    losses = -objectives
    priority = NonDominatedPriority()
    ours, sort, complete = cpu_times(
        lambda: scattered_order(objectives),
        lambda: nondominated_sort(losses, dim=0),
        lambda: priority(losses),
        number=max(1, 1600 // n),
    )
    return [
        Row(
            f"Syne Tune's {name} / scattered_order, n = {n:,}",
            theirs / ours,
            ">= 8",
            theirs >= 8 * ours,
        )
        for name, theirs in (("nondominated_sort", sort), ("NonDominatedPriority", complete))
    ]


def scattered_memory(n: int, name: str, objectives: np.ndarray) -> Row:
    """Measure the peak memory of Algorithm 1."""
    tracemalloc.start()
    scattered_order(objectives)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ratio = peak / objectives.nbytes
    name = f"scattered_order, peak memory / input, n = {n:,}, {name}"
    return Row(name, ratio, "<= 16", ratio <= 16)


def main() -> int:
    """Print all rows."""
    file = argument_parser(__doc__.splitlines()[0]).parse_args().json
    rows = [ranks_against_moocore(n, K) for n in (1_000, 10_000) for K in (2, 3, 5)]
    if nondominated_sort is None:
        print(
            "skipped Syne Tune, which is not installed: "
            "pip install --no-deps syne-tune==0.16.0 && pip install dill",
            file=sys.stderr,
        )
    else:
        rows += [row for n in (32, 1_000) for row in scattered_against_syne_tune(n)]
    many_fronts = np.random.default_rng(0).random((10_000, 2))
    rows.append(scattered_memory(10_000, "many fronts", many_fronts))
    angles = np.linspace(0, np.pi / 2, 10_000)
    one_front = np.column_stack([np.cos(angles), np.sin(angles)])
    rows.append(scattered_memory(10_000, "one front", one_front))
    return show(rows, file)


if __name__ == "__main__":
    sys.exit(main())
