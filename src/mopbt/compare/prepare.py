"""Check what a comparison has to run, and load its tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt.algorithms import POPULATION, check_choice
from mopbt.compare.directory import check_directory, check_runs_exist
from mopbt.compare.plan import Experiment, PlannedRun
from mopbt.engines.auto import check_stackable
from mopbt.errors import CannotStack, DataMissing
from mopbt.messages import did_you_mean
from mopbt.problem import CheckedTask, ProbedTask, Problem, problem_of
from mopbt.registry import find_family, find_task, split_scale, task_fingerprint


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs that one call of `compare` has to complete.

    Attributes:
        experiment: The experiment with all of its scales, as in its file.
        scaled: The experiment with the values of the scale.
        scale: The scale. None is that of the paper.
        out: Directory of the comparison.
        runs: Runs of the selected tasks, finished or not.
    """

    experiment: Experiment
    scaled: Experiment
    scale: str | None
    out: Path
    runs: tuple[PlannedRun, ...]


def plan_comparison(
    experiment: Experiment, out: Path, scale: str | None, tasks: Sequence[str]
) -> ComparisonPlan:
    """Plan the runs of some tasks, by default all, and check the directory."""
    scale = normalize_scale(experiment, scale)
    _check_scale(experiment, scale)
    scaled = experiment.at(scale)
    for task in tasks:
        check_choice("tasks", task, scaled.tasks)
    check_directory(out, experiment, scale)
    check_runs_exist(out)
    runs = tuple(run for run in scaled.plan() if not tasks or run.task in tasks)
    return ComparisonPlan(experiment, scaled, scale, out, runs)


def normalize_scale(experiment: Experiment, scale: str | None) -> str | None:
    """Return a scale as it is recorded: None for "paper", which is the default."""
    return None if scale == "paper" and scale not in experiment.scales else scale


def _check_scale(experiment: Experiment, scale: str | None) -> None:
    """Check that the experiment or one of its tasks has a scale."""
    if scale is None or scale in experiment.scales:
        return
    known = ["paper", *experiment.scales]
    for task in experiment.tasks:
        family = find_family(split_scale(task)[0])
        # Such a family does not list its scales, so it checks them itself.
        if hasattr(family, "at") and not hasattr(family, "scales"):
            return
        known += getattr(family, "scales", ())
    if scale not in known:
        known = list(dict.fromkeys(known))
        raise ValueError(
            f"`scale` must be one of {', '.join(map(repr, known))}, or left out, got {scale!r}"
            f"{did_you_mean(scale, known)}"
        )


@dataclass(frozen=True)
class PreparedTask:
    """A task of a comparison that all of its algorithms can run on.

    Attributes:
        reference: How worker processes find the task.
        task_fingerprint: Code of the task.
        problem: Problem of the task, without the constraints of algorithms.
        population: Default population at the scale.
        may_stack: Whether members may be trained as a stack.
        needs_budget: Labels of the algorithms that do not end by themselves.
    """

    reference: str
    task_fingerprint: str
    problem: Problem
    population: int
    may_stack: bool
    needs_budget: frozenset[str]


def prepare_task(experiment: Experiment, task: str, scale: str | None) -> PreparedTask:
    """Load a task, and check that every algorithm can run on it."""
    found, reference, population = _find_task(experiment, task, scale)
    if isinstance(found, CheckedTask):
        found.check()
    if experiment.engine == "vectorized":
        _check_stackable(found, task)
    problem = problem_of(found)
    return PreparedTask(
        reference=reference,
        task_fingerprint=task_fingerprint(reference),
        problem=problem,
        population=population,
        may_stack=isinstance(found, ProbedTask),
        needs_budget=check_algorithms(experiment, task, problem, population),
    )


def task_at_scale(experiment: Experiment, task: str, scale: str | None) -> tuple[str, int]:
    """Return the reference and the default population of a task at a scale.

    The scale does not apply to tasks of one size, and not to those that name their own.
    """
    name, wanted = split_scale(task)
    family = find_family(name)
    sizes = getattr(family, "scales", {})
    only_of_experiment = scale in experiment.scales and sizes and scale not in sizes
    if not wanted and hasattr(family, "at") and not only_of_experiment:
        wanted = scale
    population = getattr(sizes.get(wanted), "population", POPULATION)
    return f"{name}@{wanted}" if wanted else name, population


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
) -> frozenset[str]:
    """Check all algorithms on a task, and return those that do not end by themselves.

    Each of them needs another algorithm on the same task that sets its time.
    """
    labels = [label for label in experiment.entries if experiment.has(task, label)]
    needs_budget = frozenset(
        label for label in labels if _needs_budget(experiment, task, label, problem, population)
    )
    ends_itself = [label for label in labels if label not in needs_budget]
    for label in labels:
        if label in ends_itself and experiment.entries[label].time_of is not None:
            raise ValueError(f"{label!r} ends by itself; remove its `time_of`")
        if label in needs_budget and experiment.timer(label) not in ends_itself:
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
    if callable(check := getattr(algorithm, "check", None)):
        check()
    try:
        return algorithm.scheduler(entry.problem(problem)).needs_budget
    except ValueError as error:
        raise ValueError(f"{label!r} on {task}: {error}") from None
