"""What the judges measure: the sizes, fixed before the first run, and the reasons for them.

- The first two parts use COCO's 55 functions in five dimensions, with three instances of each. The
  evaluations are 500 per dimension for NSGA-II, which is made for thousands, and 100 per dimension
  for TPE, whose time grows with the square of their number.
- `grids` has the same functions on 20 values per variable, the size of the paper's grids doubled,
  and one instance.
- `bayes` has every sixth function, one instance and 100 evaluations.
- `halving` has 20 seeds, each with its own optima.
- `arlbench` has populations of 8 and 5 seeds, because every interval compiles for seconds.

One row was added later: "NSGA-II, index 20" after the first lines of `nsga2` had shown pymoo ahead.
Its index, which is pymoo's, was tried on instance 4, which no part uses.

All algorithms of a problem have the same seed. The seed of a COCO problem is 1000 times its
function plus its instance; all other seeds count from 0.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from judging import curves

Key = dict[str, Any]

NSGA2 = ("NSGA-II", "NSGA-II, index 20", "Optuna NSGA-II", "pymoo NSGA-II", "random search")
TPE = ("MO-TPE", "Optuna TPE", "Optuna TPE, multivariate", "random search")
ORDERED = ("MO-TPE", "MO-TPE, ordered", "Optuna TPE", "random search")
BAYES = ("qNEHVI", "ParEGO", "BoTorch qLogNEHVI", "Optuna GP", "random search")
PARTS = ("nsga2", "grids", "halving", "tpe", "bayes", "arlbench")


class Size(NamedTuple):
    """The numbers that differ between the full measurement and a test of the script.

    Attributes:
        functions: COCO's functions.
        bayes_functions: Those of the part `bayes`.
        instances: COCO's instances.
        nsga2: Evaluations of NSGA-II.
        tpe: Evaluations of TPE.
        bayes: Evaluations of Bayesian optimization.
        seeds: Seeds of successive halving.
        population: Members of ARLBench's populations.
        intervals: Intervals of ARLBench's trainings.
        arlbench_seeds: Seeds of ARLBench.
    """

    functions: tuple[int, ...] = tuple(range(1, 56))
    bayes_functions: tuple[int, ...] = tuple(range(1, 56, 6))
    instances: tuple[int, ...] = (1, 2, 3)
    nsga2: int = 2500
    tpe: int = 500
    bayes: int = 100
    seeds: int = 20
    population: int = 8
    intervals: int = 10
    arlbench_seeds: int = 5


FULL = Size()
QUICK = Size(
    functions=(1, 2),
    bayes_functions=(1,),
    instances=(1,),
    nsga2=100,
    tpe=30,
    bayes=14,
    seeds=1,
    population=2,
    intervals=1,
    arlbench_seeds=1,
)


def keys_of(part: str, size: Size, algorithms: dict[str, dict[str, Any]]) -> list[Key]:
    """Return the keys of all units of a part, in the order in which they are measured.

    Args:
        part: One of `PARTS`.
        size: The sizes.
        algorithms: Labels and options of the algorithms of the part `arlbench`.
    """
    if part == "halving":
        return list(_halving(size))
    if part == "arlbench":
        return [
            {
                "part": part,
                "label": label,
                "algorithm": options,
                "seed": seed,
                "population": size.population,
                "intervals": size.intervals,
            }
            for seed in range(size.arlbench_seeds)
            for label, options in algorithms.items()
        ]
    names, budget, functions, instances = {
        "nsga2": (NSGA2, size.nsga2, size.functions, size.instances),
        "tpe": (TPE, size.tpe, size.functions, size.instances),
        "grids": (ORDERED, size.tpe, size.functions, size.instances[:1]),
        "bayes": (BAYES, size.bayes, size.bayes_functions, size.instances[:1]),
    }[part]
    return [
        {"part": part, "algorithm": name, "function": f, "instance": i, "budget": budget}
        for i in instances
        for f in functions
        for name in names
    ]


def _halving(size: Size) -> Iterator[Key]:
    single = [(problem, 1, tuple(curves.SINGLE)) for problem in curves.KINDS]
    rivals = (*curves.MULTI, "random search")
    double = [(problem, 2, rivals) for problem in curves.KINDS]
    several = [
        (name, len(problem().objectives), rivals) for name, problem in curves.SYNTHETIC.items()
    ]
    for seed in range(size.seeds):
        for problem, K, names in (*single, *double, *several):
            for name in names:
                yield {
                    "part": "halving",
                    "algorithm": name,
                    "problem": problem,
                    "objectives": K,
                    "seed": seed,
                }
