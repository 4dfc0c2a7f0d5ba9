"""Load a task of a comparison, and check that its algorithms can run on it.

This happens in a worker process, because the code of a task may take much memory or a device.
"""

from typing import Any

from mopbt.algorithms import POPULATION, CheckedAlgorithm, options_of
from mopbt.compare.plan import Experiment
from mopbt.engines.auto import check_stackable
from mopbt.errors import CannotStack, DataMissing
from mopbt.messages import did_you_mean
from mopbt.problem import CheckedTask, ProbedTask, Problem, problem_of, suggested_population
from mopbt.registry import TaskFamily, find_family, find_task, split_scale, task_fingerprint
from mopbt.run_config import RunConfig


def prepare_task(experiment: Experiment, task: str, scale: str | None) -> dict[str, Any]:
    """Load and check a task, and return what its runs need, in plain values.

    These are "may_stack", whether members may be trained as a stack, and for each of the
    "algorithms" on the task: the "settings" of its runs as in run.toml, "max_parallel", and whether
    it "needs_budget" because it does not end by itself.
    """
    _check_scale(experiment, scale)
    found, reference, population = _find_task(experiment, task, scale)
    if isinstance(found, CheckedTask):
        found.check()
    if experiment.engine == "vectorized":
        _check_stackable(found, task)
    problem = problem_of(found)
    needs_budget = check_algorithms(experiment, task, problem, population)
    fingerprint = task_fingerprint(reference)
    algorithms = {}
    for label, is_endless in needs_budget.items():
        entry = experiment.entries[label]
        algorithm = entry.algorithm(population)
        settings = RunConfig(
            entry.problem(problem), options_of(algorithm), 0, reference, {}, fingerprint
        )
        algorithms[label] = {
            "settings": settings.to_toml(),
            "max_parallel": algorithm.max_parallel,
            "needs_budget": is_endless,
        }
    return {"may_stack": isinstance(found, ProbedTask), "algorithms": algorithms}


def _check_scale(experiment: Experiment, scale: str | None) -> None:
    """Check that the experiment or one of its tasks has a scale."""
    if scale is None or scale in experiment.scales:
        return
    known = ["paper", *experiment.scales]
    for task in experiment.tasks:
        family = find_family(split_scale(task)[0])
        known += family.scales if isinstance(family, TaskFamily) else ()
    if scale not in known:
        known = list(dict.fromkeys(known))
        raise ValueError(
            f"`scale` must be one of {', '.join(map(repr, known))}, or left out, got {scale!r}"
            f"{did_you_mean(scale, known)}"
        )


def _find_task(experiment: Experiment, task: str, scale: str | None) -> tuple[Any, str, int]:
    """Return a task at a scale, its absolute reference and its default population."""
    try:
        reference, population = task_at_scale(experiment, task, scale)
        return *find_task(reference), population
    except ValueError as error:
        raise ValueError(f"`tasks` of {experiment.name!r}: {error}") from None
    except DataMissing as error:
        remedy = ""
        if len(experiment.tasks) > 1:
            remedy = "; or run other tasks first: `tasks`, or --task NAME"
        raise DataMissing(f"{error}{remedy}") from None


def task_at_scale(experiment: Experiment, task: str, scale: str | None) -> tuple[str, int]:
    """Return the reference and the default population of a task at a scale.

    The scale does not apply to tasks of one size, and not to those that name their own.
    """
    name, wanted = split_scale(task)
    family = find_family(name)
    if not isinstance(family, TaskFamily):
        return task, POPULATION
    only_of_experiment = scale in experiment.scales and scale not in family.scales
    if not wanted and not only_of_experiment:
        wanted = scale
    if wanted is None:
        return name, POPULATION
    population = suggested_population(family.scales.get(wanted))
    return f"{name}@{wanted}", population or POPULATION


def _check_stackable(found: Any, task: str) -> None:
    try:
        check_stackable(found)
    except CannotStack as error:
        # What follows the semicolon is a remedy for single runs.
        why = str(error).split(";")[0]
        raise CannotStack(
            f"engine = 'vectorized' does not suit {task}: {why}; leave it out, or use 'auto'"
        ) from None


def check_algorithms(
    experiment: Experiment, task: str, problem: Problem, population: int
) -> dict[str, bool]:
    """Check the algorithms on a task, and return which of them do not end by themselves.

    Each of those needs another algorithm on the same task that sets its time.
    """
    needs_budget = {
        label: _needs_budget(experiment, task, label, problem, population)
        for label in experiment.entries
        if experiment.has(task, label)
    }
    ends_itself = [label for label, is_endless in needs_budget.items() if not is_endless]
    for label, is_endless in needs_budget.items():
        if not is_endless and experiment.entries[label].time_of is not None:
            raise ValueError(f"{label!r} ends by itself; remove its `time_of`")
        if is_endless and experiment.timer(label) not in ends_itself:
            raise ValueError(
                f"{label!r} does not end by itself: `time_of` must name an algorithm that does "
                f"and is run on {task} ({', '.join(map(repr, ends_itself)) or 'there is none'}), "
                f"got {experiment.timer(label)!r}"
            )
    return needs_budget


def _needs_budget(
    experiment: Experiment, task: str, label: str, problem: Problem, population: int
) -> bool:
    entry = experiment.entries[label]
    algorithm = entry.algorithm(population)
    if isinstance(algorithm, CheckedAlgorithm):
        algorithm.check()
    try:
        return algorithm.scheduler(entry.problem(problem)).needs_budget
    except ValueError as error:
        raise ValueError(f"{label!r} on {task}: {error}") from None
