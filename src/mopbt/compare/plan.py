"""What is compared with what: an experiment as its TOML file tells it, and the runs that it takes."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import tomli_w

from mopbt.algorithms import (
    POPULATION,
    Algorithm,
    algorithm_of,
    check_choice,
    check_count,
    options_with_defaults,
)
from mopbt.messages import did_you_mean
from mopbt.objectives import parse_constraints
from mopbt.problem import Problem

LONGEST = 200  # letters of a name: directories are named after it
FIGURES = (  # that a report can draw
    *(
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
    ),
)
LEAST = 1e-4  # virtual seconds of a step: a journal counts microseconds, so its cost is a good many of them


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    task: str
    algorithm: str
    seed: int

    @property
    def directory(self) -> Path:
        """Return the run's directory within the comparison's."""
        return Path("runs", slug(self.task), slug(self.algorithm), str(self.seed))

    def __str__(self) -> str:
        return f"{self.task}, {self.algorithm}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class AlgorithmEntry:
    """An algorithm of an experiment, with what sets its runs apart."""

    options: Mapping[str, Any]  # of the algorithm, with its name, as they are written
    tasks: tuple[str, ...] = ()  # the only ones that it is run on; none: all
    time_of: str | None = (
        None  # the label whose slowest run says how long it may take, as it has no end of its own
    )
    seed_offset: int = 0  # added to every seed
    constraints: tuple[str, ...] = ()  # beside those of the task

    @staticmethod
    def of(label: str, entry: Mapping[str, Any]) -> "AlgorithmEntry":
        """Read an entry of an experiment's algorithms: the algorithm's name and options, and the fields of this class."""
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise ValueError(
                f'algorithm {label!r} must be a table with a name, such as {{ name = "mo-pbt" }}, got {entry!r}'
            )
        own = {f.name for f in fields(AlgorithmEntry)} - {"options"}
        options = {key: value for key, value in entry.items() if key not in own}
        try:
            return AlgorithmEntry(
                options=options,
                **{key: _frozen(value) for key, value in entry.items() if key in own},
            )
        except ValueError as error:
            raise ValueError(
                f"algorithm {label!r}: {error}; an entry may also have {', '.join(sorted(own))}"
            ) from None

    def __post_init__(self) -> None:
        algorithm_of(dict(self.options))
        _check_names("tasks", self.tasks)
        _check_names("constraints", self.constraints)
        check_count("seed_offset", self.seed_offset, 0)
        parse_constraints(self.constraints)

    def algorithm(self, population: int = POPULATION) -> Algorithm:
        """Return the algorithm; what is as large as the paper's population by default is as large as this one."""
        defaults = options_with_defaults(type(algorithm_of(dict(self.options))))
        sized = {
            key: population
            for key in ("population", "trainings")
            if defaults.get(key) == POPULATION
        }
        return algorithm_of(sized | dict(self.options))

    def problem(self, problem: Problem) -> Problem:
        """Return a task's problem with the constraints of this entry."""
        return replace(
            problem, constraints=(*problem.constraints, *parse_constraints(self.constraints))
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is to be compared with what; each field is a key of the TOML file."""

    name: str
    tasks: tuple[str, ...]  # as `mopbt run` takes them
    algorithms: Mapping[
        str, Mapping[str, Any]
    ]  # by label: name, options, and the fields of `Contender`
    about: str = ""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # or how many, from 0 on
    workers: int = 16  # of the virtual machine
    cost: float | Literal["measured"] = (
        1.0  # virtual seconds of a step; or what it takes here, measured once for each task
    )
    time_of: str | None = (
        None  # the label whose slowest run says how long those may take that have no end of their own
    )
    engine: Literal["auto", "local", "vectorized"] = "auto"  # what really trains
    keep_models: bool = False  # of finished runs
    figures: tuple[str, ...] = ()  # those of the report; none: all that make sense
    scales: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # by scale: own `seeds`, `workers`, `engine`, or labels
    source: str = field(default="", compare=False, repr=False)  # the file's text

    def __post_init__(self) -> None:
        if isinstance(self.seeds, int) and not isinstance(self.seeds, bool) and self.seeds > 0:
            object.__setattr__(self, "seeds", tuple(range(self.seeds)))
        for key in ("tasks", "seeds", "figures"):
            object.__setattr__(self, key, _frozen(getattr(self, key)))
        _check_experiment(self)

    @staticmethod
    def read(file: Path | str) -> "Experiment":
        """Read an experiment's file; wrong and unknown keys are errors that list the right ones."""
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
            data = tomllib.loads(text)
        except (FileNotFoundError, IsADirectoryError):
            raise ValueError(
                f"there is no file {file}; name an experiment's file, such as experiments/self-check.toml"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f'{file} is not TOML: {error}; texts need quotes there, as in name = "mine"'
            ) from None
        try:
            _check_keys(
                "an experiment", data, [f.name for f in fields(Experiment) if f.name != "source"]
            )
            missing = [key for key in ("name", "tasks", "algorithms") if key not in data]
            if missing:
                raise ValueError(
                    f"an experiment needs {', '.join(f'`{key}`' for key in missing)} as well, got {', '.join(data)}"
                )
            return Experiment(**data, source=text)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    def at(self, scale: str | None) -> "Experiment":
        """Return the experiment as it is in a scale."""
        own = dict(self.scales.get(scale or "", {}))
        kept = own.pop("algorithms", list(self.algorithms))
        return replace(self, algorithms={label: self.algorithms[label] for label in kept}, **own)

    @cached_property
    def entries(self) -> dict[str, AlgorithmEntry]:
        """Return the algorithms by label."""
        return {label: AlgorithmEntry.of(label, entry) for label, entry in self.algorithms.items()}

    def plan(self) -> tuple[PlannedRun, ...]:
        """Return all runs: task by task, first those of which others need the time."""
        timers = {self.timer(label) for label in self.entries}
        labels = sorted(self.entries, key=lambda label: label not in timers)
        runs = (PlannedRun(*run) for run in product(self.tasks, labels, self.seeds))
        return tuple(run for run in runs if self.has(run.task, run.algorithm))

    def has(self, task: str, label: str) -> bool:
        """Tell whether an algorithm is run on a task."""
        only = self.entries[label].tasks
        return not only or task in only

    def timer(self, label: str) -> str | None:
        """Return the label whose time an algorithm gets if it has no end of its own."""
        return self.entries[label].time_of or self.time_of

    def to_toml(self) -> str:
        """Return the text of the experiment's file."""
        if (
            self.source and Experiment(**tomllib.loads(self.source)) == self
        ):  # else it was changed since it was read
            return self.source
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "source"}
        return tomli_w.dumps({key: value for key, value in values.items() if value is not None})

    def differences(self, other: "Experiment") -> list[str]:
        """Return how the runs of another experiment differ, one readable line for each key."""
        mine, theirs = self._flat(), other._flat()
        return [
            f"{key} is {_said(theirs.get(key, 'not there'))}, it was {_said(mine.get(key, 'not there'))}"
            for key in dict.fromkeys([*mine, *theirs])
            if mine.get(key) != theirs.get(key)
        ]

    def _flat(self) -> dict[str, Any]:
        """Return all that decides what the runs do."""
        keys = ("name", "tasks", "seeds", "workers", "cost", "time_of", "engine", "keep_models")
        return {key: getattr(self, key) for key in keys} | {
            f"algorithm {key!r}": value for key, value in self.algorithms.items()
        }


def _check_experiment(experiment: Experiment) -> None:
    if not isinstance(experiment.about, str):
        raise ValueError(f"`about` must be a text, got {experiment.about!r}")
    name, seeds, cost = experiment.name, experiment.seeds, experiment.cost
    if (
        not isinstance(name, str)
        or not slug(name)
        or len(name) > LONGEST
        or {"/", "\\"} & set(name)
    ):
        raise ValueError(
            f"`name` must be a text with a letter of a to z or a digit, of at most {LONGEST} letters and without slashes, as a "
            f"directory is named after it, got {name!r}"
        )
    for key, least in (("tasks", 1), ("figures", 0)):
        _check_names(key, getattr(experiment, key), least)
    for figure in experiment.figures:
        check_choice("figures", figure, FIGURES)
    if not isinstance(seeds, tuple) or not seeds:
        raise ValueError(
            f"`seeds` must be a whole number of at least 1, or a list of different ones, got {_said(seeds)}"
        )
    for seed in seeds:
        check_count("seeds", seed, 0)
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            f"`seeds` must be a whole number of at least 1, or a list of different ones, got {_said(seeds)}"
        )
    check_count("workers", experiment.workers, 1)
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if cost != "measured" and not (
        is_number and LEAST <= cost < math.inf and round(cost, 6) == cost
    ):
        raise ValueError(
            f"`cost` must be seconds, at least {LEAST} and with up to six decimals, or 'measured', got {cost!r}"
        )
    check_choice("engine", experiment.engine, ("auto", "local", "vectorized"))
    check_choice("keep_models", experiment.keep_models, (True, False))
    _check_algorithms(experiment)
    _check_scales(experiment)


def _check_algorithms(experiment: Experiment) -> None:
    if not isinstance(experiment.algorithms, Mapping) or not experiment.algorithms:
        raise ValueError(
            f"`algorithms` must be a table with an entry for each label, got {experiment.algorithms!r}"
        )
    for key, names in (("tasks", experiment.tasks), ("algorithms", tuple(experiment.algorithms))):
        slugs = [slug(name) for name in names]
        if len(set(slugs)) < len(slugs) or not all(slugs) or max(map(len, slugs)) > LONGEST:
            raise ValueError(
                f"`{key}` must differ in the letters a to z and digits, and have at most {LONGEST} of them, as directories are "
                f"named after them, got {_said(names)}"
            )
    for label, entry in experiment.entries.items():
        if not label.isprintable():
            raise ValueError(
                f"`algorithms` must have labels of one line that can be printed, got {label!r}"
            )
        for task in entry.tasks:
            check_choice(f"tasks of {label}", task, experiment.tasks)
        if experiment.timer(label) is not None:
            check_choice("time_of", experiment.timer(label), tuple(experiment.algorithms))


def _check_scales(experiment: Experiment) -> None:
    if not isinstance(experiment.scales, Mapping) or not all(
        isinstance(own, Mapping) for own in experiment.scales.values()
    ):
        raise ValueError(
            f"`scales` must be a table for each scale, such as [scales.small], got {experiment.scales!r}"
        )
    for scale, own in experiment.scales.items():
        _check_keys(f"the scale {scale!r}", own, ["seeds", "workers", "engine", "algorithms"])
        _check_names(f"algorithms of {scale}", _frozen(own.get("algorithms", ())))
        for label in own.get("algorithms", ()):
            check_choice(f"algorithms of {scale}", label, tuple(experiment.algorithms))
        replace(
            experiment,
            scales={},
            **{key: value for key, value in own.items() if key != "algorithms"},
        )


def _check_keys(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(
            f"{what} has no {', '.join(map(repr, unknown))}; it has {', '.join(known)}{did_you_mean(unknown[0], known)}"
        )


def _check_names(key: str, names: Any, least: int = 0) -> None:
    if (
        not isinstance(names, tuple)
        or len(names) < least
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise ValueError(
            f"`{key}` must be a list of texts{', at least one of them' * (least > 0)}, got {_said(names)}"
        )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _said(value: Any) -> str:
    """Return a value as it would stand in the file."""
    return repr(
        list(value)
        if isinstance(value, tuple)
        else dict(value)
        if isinstance(value, Mapping)
        else value
    )


def slug(text: str) -> str:
    """Return a text as a name of files and directories."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
