"""Test whether an algorithm is better than its rivals on data that no selection used.

``python experiments/research/confirm.py results/better/small results/better/small-1000`` reads the
runs of the comparisons in these directories, computes the measures that ``experiments/better.toml``
describes, and prints a table for each rival, and one test over all tasks.
"""

import argparse
import tomllib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mopbt.compare import Comparison, RunData
from mopbt.compare.measures import pessimistic_front, valid_objectives, value_of_choosing
from mopbt.compare.significance import bootstrap_interval, holm, sign_flip_test
from mopbt.metrics import hypervolume, non_dominated
from mopbt.objectives import signed
from mopbt.problem import Problem

IDEAL = tomllib.loads((Path(__file__).parent / "better.toml").read_text())["ideal"]
KINDS = ("observed", "pessimistic")
MEASURES = ("test hypervolume", "value of choosing")
# Values by place, task, algorithm, seed, measure and kind of front.
Key = tuple[str, str, str, int, str, str]


def measure(run: RunData, problem: Problem) -> dict[tuple[str, str], float]:
    """Return the measures of a run, by measure and kind of front."""
    assert run.test is not None
    assert run.bounds is not None
    reference = np.array(problem.reference)
    ideal = np.array(
        signed(problem.objectives, {o.name: IDEAL[o.name] for o in problem.objectives})
    )
    points = valid_objectives(run, problem)
    finite = np.flatnonzero(np.isfinite(points).all(axis=1))
    fronts = {
        "observed": (finite[non_dominated(points[finite])], points),
        "pessimistic": (pessimistic_front(run, points), run.bounds),
    }
    found = {}
    for kind, (rows, compared) in fronts.items():
        choice = value_of_choosing(compared[rows], run.test[rows], reference, ideal)
        assert choice is not None
        found["test hypervolume", kind] = hypervolume(run.test[rows], reference)
        found["value of choosing", kind] = choice.actual
    return found


def read(places: list[Path]) -> dict[Key, float]:
    """Return all measures of the comparisons in some directories."""
    found = {}
    for place in places:
        comparison = Comparison.open(place)
        for run in comparison.runs:
            own = measure(run, comparison.problems[run.task])
            for (name, kind), value in own.items():
                found[place.name, run.task, run.algorithm, run.seed, name, kind] = value
    return found


def best_values(
    values: dict[Key, float], place: str, task: str, algorithm: str, name: str
) -> dict[int, float]:
    """Return a measure by seed, of the kind of front that is better on average."""
    by_kind = {}
    for kind in KINDS:
        by_kind[kind] = {
            key[3]: value
            for key, value in values.items()
            if (*key[:3], *key[4:]) == (place, task, algorithm, name, kind)
        }
    return max(by_kind.values(), key=lambda own: np.mean(list(own.values())) if own else -np.inf)


def differences(
    values: dict[Key, float], variant: str, rival: str, name: str
) -> dict[tuple[str, str], dict[int, float]]:
    """Return the relative differences by seed, for each scale and task."""
    found = {}
    for place, task in dict.fromkeys(key[:2] for key in values):
        own = best_values(values, place, task, variant, name)
        other = best_values(values, place, task, rival, name)
        seeds = sorted(own.keys() & other.keys())
        if seeds:
            unit = np.mean([other[seed] for seed in seeds])
            found[place, task] = {seed: (own[seed] - other[seed]) / unit for seed in seeds}
    return found


def blocks(found: dict[tuple[str, str], dict[int, float]]) -> NDArray[np.float64]:
    """Return the mean difference of each seed (n,) that has all tasks and scales.

    Each task and scale counts in units of its root mean square over seeds, which does not depend
    on the signs of seeds. Otherwise the task with the noisiest measure would decide alone.
    """
    seeds = sorted(set.intersection(*(set(own) for own in found.values())))
    table = np.array([[own[seed] for seed in seeds] for own in found.values()])
    sizes = np.sqrt((table**2).mean(axis=1, keepdims=True))
    return np.asarray((table / np.where(sizes > 0, sizes, 1.0)).mean(axis=0))


def print_comparison(values: dict[Key, float], variant: str, rivals: list[str]) -> None:
    """Print differences in percent, their intervals, and the tests."""
    tests = []
    for rival in rivals:
        for name in MEASURES:
            found = differences(values, variant, rival, name)
            if not found:
                continue
            print(f"\n{variant} against {rival}: {name}, difference in %")
            for (place, task), own in found.items():
                numbers = 100 * np.array(list(own.values()))
                lower, upper = bootstrap_interval(numbers)
                won = f"{(numbers > 0).sum()} of {len(numbers)}"
                text = f"{numbers.mean():+7.2f} [{lower:+.2f}, {upper:+.2f}]  {won}"
                print(f"  {place:12} {task:26} {text}")
            of_seeds = blocks(found)
            mean = np.mean([list(own.values()) for own in found.values()])
            tests.append((rival, name, sign_flip_test(of_seeds), 100 * mean))
    print()
    for (rival, name, p, mean), corrected in zip(tests, holm([t[2] for t in tests]), strict=True):
        print(f"{rival}, {name}: {mean:+.2f} %, p = {p:.4f}, corrected {corrected:.4f}")


def main() -> None:
    """Print the tables of comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--rivals", nargs="+", default=["MO-PBT, EMA", "random search, EMA"])
    arguments = parser.parse_args()
    print_comparison(read(arguments.places), arguments.variant, arguments.rivals)


if __name__ == "__main__":
    main()
