"""Plan a comparison: read and check its experiment, and list its runs."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import tomli_w

from mopbt.algorithms import (
    POPULATION,
    Algorithm,
    algorithm_of,
    options_with_defaults,
)
from mopbt.arguments import check_choice, check_count
from mopbt.filesystem import read_file
from mopbt.limits import SEEDS, SETTINGS_BYTES
from mopbt.messages import did_you_mean
from mopbt.objectives import parse_constraints
from mopbt.problem import Problem
from mopbt.rng import derived_seed

# Names become names of directories, whose length is limited.
LONGEST = 200
# The figures that a report can draw.
FIGURES = (
    "progress",
    "fronts",
    "searched",
    "attainment",
    "generalization",
    "transfer",
    "final",
    "populations",
    "spaces",
    "trivial",
)
# Least virtual seconds of a step. A journal counts microseconds, so the cost needs many of them.
LEAST = 1e-4


def task_seed(seed: int, task: str) -> int:
    """Return the seed of the runs of one task.

    With the same seed for all tasks, those with the same search space would start from the same
    configurations, and their results would not be independent.
    """
    return derived_seed(seed, "task", task)


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    task: str
    algorithm: str
    seed: int

    @property
    def directory(self) -> Path:
        """Return the run's directory, relative to that of the comparison."""
        return Path("runs", slug(self.task), slug(self.algorithm), str(self.seed))

    def __str__(self) -> str:
        return f"{self.task}, {self.algorithm}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class AlgorithmEntry:
    """An algorithm of an experiment.

    Attributes:
        options: The name and options of the algorithm.
        tasks: The tasks to run it on. Empty means all.
        time_of: Label of the algorithm whose slowest run sets the time budget, for an algorithm
            that does not end by itself.
        seed_offset: Added to every seed.
        constraints: Constraints in addition to those of the task.
        seeds: Number of seeds, the first of the experiment's. None means all.
        by_task: Options that differ on a task, by the name of the task.
    """

    options: Mapping[str, Any]
    tasks: tuple[str, ...] = ()
    time_of: str | None = None
    seed_offset: int = 0
    constraints: tuple[str, ...] = ()
    seeds: int | None = None
    by_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @staticmethod
    def of(label: str, entry: Mapping[str, Any]) -> "AlgorithmEntry":
        """Read an entry of `algorithms`.

        It has fields of this class and options of the algorithm.
        """
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise ValueError(
                f'algorithm {label!r} must be a table with a name, such as {{ name = "mo-pbt" }}, '
                f"got {entry!r}"
            )
        names = {f.name for f in fields(AlgorithmEntry)} - {"options"}
        own = {key: _freeze(value) for key, value in entry.items() if key in names}
        options = {key: value for key, value in entry.items() if key not in names}
        try:
            return AlgorithmEntry(options=options, **own)
        except ValueError as error:
            raise ValueError(
                f"algorithm {label!r}: {error}; an entry may also have {', '.join(sorted(names))}"
            ) from None

    def __post_init__(self) -> None:
        algorithm_of(dict(self.options))
        _check_names("tasks", self.tasks)
        _check_names("constraints", self.constraints)
        check_count("seed_offset", self.seed_offset, 0)
        parse_constraints(self.constraints)
        if self.seeds is not None:
            check_count("seeds", self.seeds, 1)
        if not isinstance(self.by_task, Mapping) or not all(
            isinstance(own, Mapping) for own in self.by_task.values()
        ):
            raise ValueError(
                f"`by_task` must have a table of options for each task, such as "
                f"{{ toy = {{ population = 8 }} }}, got {self.by_task!r}"
            )
        for own in self.by_task.values():
            algorithm_of(dict(self.options) | dict(own))

    @cached_property
    def has_population(self) -> bool:
        """Return whether the algorithm has a population, whose size is an option."""
        return "population" in options_with_defaults(type(algorithm_of(dict(self.options))))

    def algorithm(self, task: str, population: int = POPULATION) -> Algorithm:
        """Build the algorithm for a task, with another default for `population`."""
        defaults = options_with_defaults(type(algorithm_of(dict(self.options))))
        sizes = [key for key in ("population", "trainings") if defaults.get(key) == POPULATION]
        own = dict(self.by_task.get(task, {}))
        return algorithm_of(dict.fromkeys(sizes, population) | dict(self.options) | own)

    def problem(self, problem: Problem) -> Problem:
        """Add the constraints of this entry to the problem of a task."""
        own = parse_constraints(self.constraints)
        return replace(problem, constraints=(*problem.constraints, *own))

    def shared_problem(self, problem: Problem) -> Problem:
        """Remove the constraints of this entry from the problem of a run.

        They come last.
        """
        shared = len(problem.constraints) - len(self.constraints)
        return replace(problem, constraints=problem.constraints[:shared])


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment. Each field is a key of the TOML file.

    Attributes:
        name: Name of the experiment.
        tasks: Tasks, as `mopbt run` takes them.
        algorithms: Algorithms by label: name, options and the fields of `AlgorithmEntry`.
        about: Description for the report.
        seeds: Seeds, or their number.
        workers: Workers of the virtual machine.
        cost: Virtual seconds of a step, or "measured" to measure it once for each task.
        time_of: Label of the algorithm whose slowest run sets the time budget of all algorithms
            that do not end by themselves.
        engine: Engine that executes the training.
        keep_models: Whether to keep the models of finished runs.
        figures: Figures of the report. Empty means all that apply.
        scales: Values of `seeds`, `workers`, `engine` and labels of `algorithms`, by scale.
        source: Text of the file.
    """

    name: str
    tasks: tuple[str, ...]
    algorithms: Mapping[str, Mapping[str, Any]]
    about: str = ""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    workers: int = 16
    cost: float | Literal["measured"] = 1.0
    time_of: str | None = None
    engine: Literal["auto", "local", "vectorized"] = "auto"
    keep_models: bool = False
    figures: tuple[str, ...] = ()
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.seeds, int) and self.seeds > SEEDS:
            raise ValueError(f"`seeds` must be at most {SEEDS:,}, got {self.seeds!r}")
        if isinstance(self.seeds, int) and not isinstance(self.seeds, bool) and self.seeds > 0:
            object.__setattr__(self, "seeds", tuple(range(self.seeds)))
        object.__setattr__(self, "tasks", _freeze(self.tasks))
        object.__setattr__(self, "seeds", _freeze(self.seeds))
        object.__setattr__(self, "figures", _freeze(self.figures))
        _check_experiment(self)

    @staticmethod
    def read(file: Path | str) -> "Experiment":
        """Read an experiment from its file."""
        try:
            text = read_file(Path(file), SETTINGS_BYTES).decode("utf-8-sig")
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and not Path(file).is_dir():
                raise ValueError(f"{file} cannot be read: {error.strerror}") from None
            raise ValueError(
                f"there is no file {file}; pass the file of an experiment, such as "
                f"experiments/self-check.toml"
            ) from None
        except UnicodeDecodeError as error:
            raise _not_toml(file, error) from None
        try:
            return Experiment.parse(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise _not_toml(file, error) from None
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    @staticmethod
    @lru_cache(maxsize=8)
    def parse(text: str) -> "Experiment":
        """Parse the text of an experiment. Equal texts are parsed once."""
        data = tomllib.loads(text)
        known = [f.name for f in fields(Experiment) if f.name != "source"]
        _check_keys("an experiment", data, known)
        missing = [f"`{key}`" for key in ("name", "tasks", "algorithms") if key not in data]
        if missing:
            raise ValueError(
                f"an experiment also needs {', '.join(missing)}, got {', '.join(data)}"
            )
        return Experiment(**data, source=text)

    def at(self, scale: str | None) -> "Experiment":
        """Return the experiment with the values of a scale."""
        own = dict(self.scales.get(scale or "", {}))
        labels = own.pop("algorithms", list(self.algorithms))
        return replace(self, algorithms={label: self.algorithms[label] for label in labels}, **own)

    @cached_property
    def entries(self) -> dict[str, AlgorithmEntry]:
        """Return the algorithms by label."""
        return {label: AlgorithmEntry.of(label, entry) for label, entry in self.algorithms.items()}

    def plan(self) -> tuple[PlannedRun, ...]:
        """Return all runs, task by task, and first those that set the time of others."""
        timers = {self.timer(label) for label in self.entries}
        labels = sorted(self.entries, key=lambda label: label not in timers)
        runs = (PlannedRun(*run) for run in product(self.tasks, labels, self.seeds))
        return tuple(run for run in runs if self._has_run(run))

    def _has_run(self, run: PlannedRun) -> bool:
        own = self.entries[run.algorithm].seeds
        return self.has(run.task, run.algorithm) and run.seed in self.seeds[:own]

    def has(self, task: str, label: str) -> bool:
        """Return whether an algorithm is run on a task."""
        only = self.entries[label].tasks
        return not only or task in only

    def timer(self, label: str) -> str | None:
        """Return the label that sets the time of an algorithm that does not end by itself."""
        return self.entries[label].time_of or self.time_of

    def to_toml(self) -> str:
        """Return the experiment as TOML; the original text if it is unchanged."""
        if self.source and Experiment.parse(self.source) == self:
            return self.source
        return tomli_w.dumps(
            {key: value for key, value in self.to_dict().items() if value is not None}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the values of all keys in plain types."""
        return {f.name: vars(self)[f.name] for f in fields(self) if f.name != "source"}

    def differences(self, other: "Experiment") -> list[str]:
        """Describe how the runs of another experiment differ, in one line for each key."""
        mine = self._run_options()
        theirs = other._run_options()
        lines = []
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key):
                new = _as_written(theirs.get(key, "not there"))
                old = _as_written(mine.get(key, "not there"))
                lines.append(f"{key} is {new}, it was {old}")
        return lines

    def _run_options(self) -> dict[str, Any]:
        """Return everything that affects the runs."""
        keys = ("name", "tasks", "seeds", "workers", "cost", "time_of", "engine", "keep_models")
        options = {key: vars(self)[key] for key in keys}
        for label, entry in self.algorithms.items():
            options[f"algorithm {label!r}"] = entry
        return options


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs that one call of `compare` has to complete.

    Attributes:
        experiment: The experiment with all of its scales, as in its file.
        scaled: The experiment with the values of the scale.
        scale: The scale. None is that of the paper.
        out: Directory of the comparison.
        runs: Runs of the selected tasks, finished or not.
        jobs: Number of parallel runs.
    """

    experiment: Experiment
    scaled: Experiment
    scale: str | None
    out: Path
    runs: tuple[PlannedRun, ...]
    jobs: int


def plan_comparison(
    experiment: Experiment, out: Path, scale: str | None, tasks: Sequence[str], jobs: int
) -> ComparisonPlan:
    """Plan the runs of some tasks, by default all."""
    check_count("jobs", jobs, 1)
    scale = normalize_scale(experiment, scale)
    scaled = experiment.at(scale)
    for task in tasks:
        check_choice("tasks", task, scaled.tasks)
    runs = tuple(run for run in scaled.plan() if not tasks or run.task in tasks)
    return ComparisonPlan(experiment, scaled, scale, out, runs, jobs)


def normalize_scale(experiment: Experiment, scale: str | None) -> str | None:
    """Return a scale as it is recorded: None for "paper", which is the default."""
    return None if scale == "paper" and scale not in experiment.scales else scale


def _not_toml(file: Path | str, error: Exception) -> ValueError:
    return ValueError(
        f'{file} is not valid TOML: {error}; strings need quotes, as in name = "mine"'
    )


def _check_experiment(experiment: Experiment) -> None:
    if not isinstance(experiment.about, str):
        raise ValueError(f"`about` must be a string, got {experiment.about!r}")
    _check_name(experiment.name)
    _check_names("tasks", experiment.tasks, at_least=1)
    _check_names("figures", experiment.figures)
    for figure in experiment.figures:
        check_choice("figures", figure, FIGURES)
    _check_seeds(experiment.seeds)
    check_count("workers", experiment.workers, 1)
    _check_cost(experiment.cost)
    check_choice("engine", experiment.engine, ("auto", "local", "vectorized"))
    check_choice("keep_models", experiment.keep_models, (True, False))
    _check_algorithms(experiment)
    _check_scales(experiment)


def _check_name(name: Any) -> None:
    is_valid = isinstance(name, str) and slug(name) and len(name) <= LONGEST
    if not is_valid or {"/", "\\"} & set(name):
        raise ValueError(
            f"`name` must be a string with a letter from a to z or a digit, at most {LONGEST} "
            f"characters and no slashes, because a directory is named after it, got {name!r}"
        )


def _check_seeds(seeds: Any) -> None:
    if isinstance(seeds, tuple):
        for seed in seeds:
            check_count("seeds", seed, 0)
    if not isinstance(seeds, tuple) or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"`seeds` must be a whole number of at least 1 or a list of different whole numbers, "
            f"got {_as_written(seeds)}"
        )


def _check_cost(cost: Any) -> None:
    if cost == "measured":
        return
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if not is_number or not LEAST <= cost < math.inf or round(cost, 6) != cost:
        raise ValueError(
            f"`cost` must be a number of seconds, at least {LEAST} and with at most six decimals, "
            f"or 'measured', got {cost!r}"
        )


def _check_algorithms(experiment: Experiment) -> None:
    if not isinstance(experiment.algorithms, Mapping) or not experiment.algorithms:
        raise ValueError(
            f"`algorithms` must be a table with an entry for each label, got "
            f"{experiment.algorithms!r}"
        )
    for key, names in (("tasks", experiment.tasks), ("algorithms", tuple(experiment.algorithms))):
        slugs = [slug(name) for name in names]
        if len(set(slugs)) < len(slugs) or not all(slugs) or max(map(len, slugs)) > LONGEST:
            raise ValueError(
                f"`{key}` must differ in letters from a to z and digits, and have at most "
                f"{LONGEST} of them, because directories are named after them, got "
                f"{_as_written(names)}"
            )
    for label, entry in experiment.entries.items():
        if not label.isprintable():
            raise ValueError(
                f"`algorithms` must have labels of one line and printable characters, got {label!r}"
            )
        for task in (*entry.tasks, *entry.by_task):
            check_choice(f"tasks of {label}", task, experiment.tasks)
        if experiment.timer(label) is not None:
            check_choice("time_of", experiment.timer(label), tuple(experiment.algorithms))


def _check_scales(experiment: Experiment) -> None:
    scales = experiment.scales
    if not isinstance(scales, Mapping) or not all(
        isinstance(own, Mapping) for own in scales.values()
    ):
        raise ValueError(
            f"`scales` must have a table for each scale, such as [scales.small], got {scales!r}"
        )
    for scale, own in scales.items():
        _check_keys(f"the scale {scale!r}", own, ["seeds", "workers", "engine", "algorithms"])
        labels = own.get("algorithms", ())
        _check_names(f"algorithms of {scale}", _freeze(labels))
        for label in labels:
            check_choice(f"algorithms of {scale}", label, tuple(experiment.algorithms))
        # Creating the experiment of a scale checks its values.
        values = {key: value for key, value in own.items() if key != "algorithms"}
        replace(experiment, scales={}, **values)


def _check_keys(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(
            f"{what} has no {', '.join(map(repr, unknown))}; it has {', '.join(known)}"
            f"{did_you_mean(unknown[0], known)}"
        )


def _check_names(key: str, names: Any, at_least: int = 0) -> None:
    is_list = isinstance(names, tuple) and all(isinstance(name, str) and name for name in names)
    if not is_list or len(names) < at_least:
        least = ", at least one" if at_least else ""
        raise ValueError(f"`{key}` must be a list of strings{least}, got {_as_written(names)}")


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_written(value: Any) -> str:
    """Return a value as it would be written in the file."""
    if isinstance(value, tuple):
        return repr(list(value))
    if isinstance(value, Mapping):
        return repr(dict(value))
    return repr(value)


def slug(text: str) -> str:
    """Convert a text to a name of files and directories."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
