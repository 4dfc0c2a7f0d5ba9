"""Build runs, comparisons and tables from plain values."""

import itertools

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
            title=task,
            slug=task,
            problem=problem_of(task),
            signs=np.ones(2),
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


LABELS = ("MO-PBT", "random search", "MO-ASHA")


PRECISION_RECALL = {"precision": "max", "recall": "max"}


FAIR = {"accuracy": "max", "dsp": "min"}


def random_comparison(
    tasks=("a",),
    labels=LABELS,
    *,
    seeds=3,
    n=40,
    K=2,
    test=True,
    algorithms=None,
    problems=None,
    **fields,
):
    """Return a comparison of random runs that get better; the first label is the best."""
    runs = []
    for task, (i, label), seed in itertools.product(tasks, enumerate(labels), range(seeds)):
        rng = np.random.default_rng([len(task), i, seed])
        points = rng.random((n, K)) * np.linspace(0.5, 1 - 0.1 * i, n)[:, None]
        scores = {f"f{k}": points[:, k] for k in range(K)}
        runs.append(
            run_of(
                task,
                label,
                seed,
                points,
                test=points * 0.9 if test else None,
                scores=scores,
                trials=np.arange(n) % 8,
            )
        )
    problems = problems or {
        task: problem_of(task, {f"f{k}": "max" for k in range(K)}) for task in tasks
    }
    return comparison_of(runs, algorithms, problems=problems, **fields)


def only(figures):
    (figure,) = figures.values()
    return figure


def labels_in(legend):
    return [text.get_text() for text in legend.get_texts()]


def lines_by_color(ax):
    return {line.get_color(): line for line in ax.get_lines()}


def curve(line):
    """Return x and y of a line over time, without the extension of its last step."""
    x, y = line.get_xdata(), line.get_ydata()
    np.testing.assert_equal(y[-1], y[-2])
    assert x[-1] >= x[-2]
    return x[:-1], y[:-1]
