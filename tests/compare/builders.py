"""Build runs, comparisons and tables from plain values."""

import numpy as np

from mopbt.compare import Comparison, Experiment, RunData
from mopbt.compare.measures import (
    MeasuredRun,
    MeasuredTask,
)
from mopbt.compare.tables import build_table
from mopbt.problem import make_problem
from mopbt.space import Grid

MAX_MAX = {"gain": "max", "speed": "max"}


def run_of(
    task,
    label,
    seed,
    objectives,
    *,
    test=None,
    seconds=None,
    scores=None,
    steps=None,
    trials=None,
    variables=1,
):
    """Return a run with one evaluation per second by default."""
    objectives = np.asarray(objectives, dtype=float)
    n = len(objectives)
    return RunData(
        task=task,
        algorithm=label,
        seed=seed,
        objectives=objectives,
        test=None if test is None else np.asarray(test, dtype=float),
        seconds=np.arange(1.0, n + 1) if seconds is None else np.asarray(seconds, dtype=float),
        steps=np.arange(1, n + 1) if steps is None else np.asarray(steps),
        violations=np.zeros(n),
        positions=np.zeros((n, variables)),
        scores=scores or {},
        jobs=np.arange(n),
        trials=np.arange(n) if trials is None else np.asarray(trials),
        duration=np.ones(n),
        errors={},
    )


def problem_of(task, objectives=None, *, constraints=(), variables=1):
    space = {f"x{i}": Grid(0, 1, 3) for i in range(variables)}
    return make_problem(
        name=task,
        space=space,
        objectives=objectives or MAX_MAX,
        constraints=constraints,
        interval=1,
        steps=10,
    )


def comparison_of(runs, algorithms=None, *, problems=None, **fields):
    """Return a comparison of runs, by default of MO-PBT under several labels."""
    tasks = tuple(dict.fromkeys(run.task for run in runs))
    labels = dict.fromkeys(run.algorithm for run in runs)
    algorithms = algorithms or {label: {"name": "mo-pbt"} for label in labels}
    experiment = Experiment(name="test", tasks=tasks, algorithms=algorithms, seeds=20, **fields)
    return Comparison(
        experiment, problems or {task: problem_of(task) for task in tasks}, tuple(runs)
    )


def table_of(values, name="hypervolume", *, only=None, first=None):
    """Return the table of values by task, label and seed.

    Args:
        values: The values.
        name: Name of the table.
        only: Tasks of a label, if it does not have all.
        first: Score of the first model of a task, to which the seed is added.
    """
    labels = dict.fromkeys(label for of_task in values.values() for label in of_task)
    algorithms = {
        label: {"name": "mo-pbt", "tasks": (only or {}).get(label, [])} for label in labels
    }
    experiment = Experiment(name="test", tasks=tuple(values), algorithms=algorithms)
    scores = {
        task: lambda seed, score=score: {"accuracy": np.array([score + seed])}
        for task, score in (first or {}).items()
    }
    measured = [
        MeasuredTask(
            name=task,
            problem=problem_of(task),
            reference=np.zeros(2),
            best=1.0,
            best_test=None,
            times=np.ones(1),
            runs={
                label: tuple(
                    MeasuredRun(
                        run_of(
                            task,
                            label,
                            seed,
                            [[0, 0]],
                            scores=scores[task](seed) if task in scores else None,
                        ),
                        np.array([0]),
                        np.array([value]),
                        None,
                        None,
                    )
                    for seed, value in by_seed.items()
                )
                for label, by_seed in of_task.items()
            },
            entries=experiment.entries,
        )
        for task, of_task in values.items()
    ]
    return build_table(name, "A measure × 100", measured, lambda run: run.hypervolumes[-1])


def seeds(*values):
    return dict(enumerate(values))
