"""Comparisons: tasks x algorithms x seeds under a virtual clock, as one plan that can be stopped at any moment and goes on.

An `Experiment` is a small TOML file. Each of its runs is a run's directory below ``OUT/runs``, and finished ones are not repeated.
Time is virtual (`SimulatedEngine`), so that all algorithms have the same machine, whatever else this one does meanwhile; those
without an end of their own get the time of the slowest run of another one (paper, section 6.4). Runs are carried out side by side,
each in a process and on a core of its own.
"""

import csv
import datetime
import gzip
import importlib
import io
import json
import math
import os
import platform
import queue
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from importlib import metadata
from itertools import chain, product, repeat
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import tomli_w
from numpy.typing import NDArray

from mopbt.algorithms import POPULATION, Algorithm, algorithm_of, check_choice, check_count, options_of, options_with_defaults
from mopbt.catalogue import find_task, registered
from mopbt.engines.base import Warm, Work, perform
from mopbt.engines.choosing import Plan, planned
from mopbt.engines.pool import available_cores
from mopbt.engines.worker import keep_memory
from mopbt.errors import MissingExtra, MopbtError, RunMismatch, StoreError, TaskFailed
from mopbt.objectives import parse_constraints
from mopbt.progress import Progress
from mopbt.results import read_settings
from mopbt.rng import stream
from mopbt.run import Budget, Session, open_run
from mopbt.settings import Settings
from mopbt.space import Float
from mopbt.state import Job, Report, State
from mopbt.stores.directory import DirectoryStore, write_atomically
from mopbt.stores.journal import read_journal
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.task import Problem, problem_of
from mopbt.version import __version__

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Marker = Mapping[str, Any]  # what the directory of a finished run says of it

LEAST = 1e-4  # virtual seconds of a step: a journal counts microseconds, so its cost is a good many of them
SLACK = 1e-6  # seconds: sums of costs are off in their last digits, and no last interval may be lost by that
EVERY = 10.0  # seconds between lines of progress where there is no terminal
PACKAGES = ("numpy", "moocore", "torch", "botorch", "scikit-learn")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")


# What a comparison is


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, a row for each of its n evaluations in the order in which they ended; K objectives, d hyperparameters.

    The rows of evaluations that failed are NaN in `objectives`, `test` and `scores`, and infinite in `violations`.
    """

    task: str  # as the experiment names it
    algorithm: str  # its label in the experiment
    seed: int  # as the experiment has it, without the algorithm's `seed_offset`: runs of the same seed are pairs
    objectives: Floats  # (n, K), larger is better
    test: Floats | None  # (n, K), the same objectives on test data, larger is better; None: the task does not measure them
    seconds: Floats  # (n,), when the evaluation was over, by the virtual clock
    steps: Ints  # (n,), of training that the evaluated model has behind it
    violations: Floats  # (n,), of the constraints; 0: feasible
    positions: Floats  # (n, d), of the last interval's hyperparameters, as `Space` has them; the columns are in its order
    scores: Mapping[str, Floats]  # each (n,): all that was measured, in its own sense, by name
    jobs: Ints  # (n,)
    trials: Ints  # (n,)
    took: Floats  # (n,), real seconds of training and evaluation
    errors: Mapping[int, str]  # of those rows that failed

    def __len__(self) -> int:
        """Return n, the number of evaluations."""
        return len(self.jobs)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The finished runs of an experiment, in the order of its tasks, algorithms and seeds, and what is still missing."""

    experiment: "Experiment"
    problems: Mapping[str, Problem]  # by task, of those that have runs, in the experiment's order
    runs: tuple[RunData, ...]
    missing: tuple["PlannedRun", ...] = ()  # not finished yet
    failures: Mapping["PlannedRun", str] = field(default_factory=dict)  # those that failed in this session, with the reason

    @staticmethod
    def open(out: Path | str) -> "Comparison":
        """Read a comparison from the journals of its runs; tasks and data are not needed."""
        out = Path(out)
        experiment = _recorded_experiment(out)
        tasks, labels = list(experiment.tasks), list(experiment.algorithms)
        plan = sorted(experiment.plan(), key=lambda run: (tasks.index(run.task), labels.index(run.algorithm)))
        finished = dict.fromkeys(run for run in plan if marker_of(out, run) is not None)
        problems: dict[str, Problem] = {}
        for run in finished:
            if run.task not in problems:
                problems[run.task] = read_settings(out / run.directory).problem
        runs = tuple(read_run(out, run, problems[run.task]) for run in finished)
        return Comparison(experiment, problems, runs, tuple(run for run in plan if run not in finished))

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return the labels of those algorithms that have runs, in the experiment's order."""
        present = {run.algorithm for run in self.runs}
        return tuple(label for label in self.experiment.algorithms if label in present)

    def evaluations(self) -> dict[str, NDArray[Any]]:
        """Return the tidy table of all evaluations as columns (n,); NaN, or "" for texts, where a task does not have a column."""
        tables = [_columns(run, self.problems[run.task]) for run in self.runs]
        return {name: _joined(name, tables) for name in _header(tables)}


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    task: str
    algorithm: str
    seed: int

    @property
    def directory(self) -> Path:
        """Return the run's directory within the comparison's."""
        return Path("runs", _slug(self.task), _slug(self.algorithm), str(self.seed))

    def __str__(self) -> str:
        return f"{self.task}, {self.algorithm}, seed {self.seed}"


# What is compared


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An algorithm of an experiment, with what sets its runs apart."""

    options: Mapping[str, Any]  # of the algorithm, with its name, as they are written
    tasks: tuple[str, ...] = ()  # the only ones that it is run on; none: all
    time_of: str | None = None  # the label whose slowest run says how long it may take, as it has no end of its own
    seed_offset: int = 0  # added to every seed
    constraints: tuple[str, ...] = ()  # beside those of the task

    @staticmethod
    def of(label: str, entry: Mapping[str, Any]) -> "Contender":
        """Read an entry of an experiment's algorithms: the algorithm's name and options, and the fields of this class."""
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise ValueError(f'algorithm {label!r} must be a table with a name, such as {{ name = "mo-pbt" }}, got {entry!r}')
        own = {f.name for f in fields(Contender)} - {"options"}
        options = {key: value for key, value in entry.items() if key not in own}
        try:
            return Contender(options=options, **{key: _frozen(value) for key, value in entry.items() if key in own})
        except ValueError as error:
            raise ValueError(f"algorithm {label!r}: {error}; an entry may also have {', '.join(sorted(own))}") from None

    def __post_init__(self) -> None:
        algorithm_of(dict(self.options))
        _check_names("tasks", self.tasks)
        _check_names("constraints", self.constraints)
        check_count("seed_offset", self.seed_offset, 0)
        parse_constraints(self.constraints)

    def algorithm(self, population: int = POPULATION) -> Algorithm:
        """Return the algorithm; what is as large as the paper's population by default is as large as this one."""
        defaults = options_with_defaults(type(algorithm_of(dict(self.options))))
        sized = {key: population for key in ("population", "trainings") if defaults.get(key) == POPULATION}
        return algorithm_of(sized | dict(self.options))

    def problem(self, problem: Problem) -> Problem:
        """Return a task's problem with the constraints of this entry."""
        return replace(problem, constraints=(*problem.constraints, *parse_constraints(self.constraints)))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is to be compared with what; each field is a key of the TOML file."""

    name: str
    tasks: tuple[str, ...]  # as `mopbt run` takes them
    algorithms: Mapping[str, Mapping[str, Any]]  # by label: name, options, and the fields of `Contender`
    about: str = ""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # or how many, from 0 on
    workers: int = 16  # of the virtual machine
    cost: float | Literal["measured"] = 1.0  # virtual seconds of a step; or what it takes here, measured once for each task
    time_of: str | None = None  # the label whose slowest run says how long those may take that have no end of their own
    engine: Literal["auto", "local", "vectorised"] = "auto"  # what really trains
    keep_models: bool = False  # of finished runs
    figures: tuple[str, ...] = ()  # those of the report; none: all that make sense
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by scale: its own `seeds`, `workers`, or labels
    source: str = field(default="", compare=False, repr=False)  # the file's text

    def __post_init__(self) -> None:
        if isinstance(self.seeds, int) and not isinstance(self.seeds, bool):
            object.__setattr__(self, "seeds", tuple(range(self.seeds)))
        for key in ("tasks", "seeds", "figures"):
            object.__setattr__(self, key, _frozen(getattr(self, key)))
        _check_experiment(self)

    @staticmethod
    def read(file: Path | str) -> "Experiment":
        """Read an experiment's file; wrong and unknown keys are errors that list the right ones."""
        try:
            text = Path(file).read_text(encoding="utf-8")
            data = tomllib.loads(text)
        except FileNotFoundError:
            raise ValueError(f"there is no file {file}; name an experiment's file, such as experiments/self-check.toml") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is not TOML: {error}") from None
        try:
            _check_keys("an experiment", data, [f.name for f in fields(Experiment) if f.name != "source"])
            missing = [key for key in ("name", "tasks", "algorithms") if key not in data]
            if missing:
                raise ValueError(f"an experiment needs {', '.join(f'`{key}`' for key in missing)} as well")
            return Experiment(**data, source=text)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    def at(self, scale: str | None) -> "Experiment":
        """Return the experiment as it is in a scale."""
        own = dict(self.scales.get(scale or "", {}))
        kept = own.pop("algorithms", list(self.algorithms))
        return replace(self, algorithms={label: self.algorithms[label] for label in kept}, **own)

    @cached_property
    def contenders(self) -> dict[str, Contender]:
        """Return the algorithms by label."""
        return {label: Contender.of(label, entry) for label, entry in self.algorithms.items()}

    def plan(self) -> tuple[PlannedRun, ...]:
        """Return all runs: task by task, first those of which others need the time."""
        timers = {self.timer(label) for label in self.contenders}
        labels = sorted(self.contenders, key=lambda label: label not in timers)
        runs = (PlannedRun(*run) for run in product(self.tasks, labels, self.seeds))
        return tuple(run for run in runs if self.has(run.task, run.algorithm))

    def has(self, task: str, label: str) -> bool:
        """Tell whether an algorithm is run on a task."""
        only = self.contenders[label].tasks
        return not only or task in only

    def timer(self, label: str) -> str | None:
        """Return the label whose time an algorithm gets if it has no end of its own."""
        return self.contenders[label].time_of or self.time_of

    def to_toml(self) -> str:
        """Return the text of the experiment's file."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "source"}
        return self.source or tomli_w.dumps({key: value for key, value in values.items() if value is not None})

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
        return {key: getattr(self, key) for key in keys} | {f"algorithm {key!r}": value for key, value in self.algorithms.items()}


def _check_experiment(experiment: Experiment) -> None:
    for key in ("name", "about"):
        value = getattr(experiment, key)
        if not isinstance(value, str) or (key == "name" and not _slug(value)):
            raise ValueError(f"`{key}` must be a text, got {value!r}")
    for key, least in (("tasks", 1), ("figures", 0)):
        _check_names(key, getattr(experiment, key), least)
    seeds, cost = experiment.seeds, experiment.cost
    if not isinstance(seeds, tuple) or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be a whole number of at least 1, or a list of different ones, got {_said(seeds)}")
    for seed in seeds:
        check_count("seeds", seed, 0)
    check_count("workers", experiment.workers, 1)
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if cost != "measured" and not (is_number and LEAST <= cost < math.inf and round(cost, 6) == cost):
        raise ValueError(f"`cost` must be seconds, at least {LEAST} and with up to six decimals, or 'measured', got {cost!r}")
    check_choice("engine", experiment.engine, ("auto", "local", "vectorised"))
    check_choice("keep_models", experiment.keep_models, (True, False))
    _check_algorithms(experiment)
    _check_scales(experiment)


def _check_algorithms(experiment: Experiment) -> None:
    if not isinstance(experiment.algorithms, Mapping) or not experiment.algorithms:
        raise ValueError(f"`algorithms` must be a table with an entry for each label, got {experiment.algorithms!r}")
    for key, names in (("tasks", experiment.tasks), ("algorithms", tuple(experiment.algorithms))):
        slugs = [_slug(name) for name in names]
        if len(set(slugs)) < len(slugs) or not all(slugs):
            raise ValueError(f"`{key}` must differ in letters and digits, as directories are named after them, got {_said(names)}")
    for label, contender in experiment.contenders.items():
        for task in contender.tasks:
            check_choice(f"tasks of {label}", task, experiment.tasks)
        if experiment.timer(label) is not None:
            check_choice("time_of", experiment.timer(label), tuple(experiment.algorithms))


def _check_scales(experiment: Experiment) -> None:
    if not isinstance(experiment.scales, Mapping) or not all(isinstance(own, Mapping) for own in experiment.scales.values()):
        raise ValueError(f"`scales` must be a table for each scale, such as [scales.small], got {experiment.scales!r}")
    for scale, own in experiment.scales.items():
        _check_keys(f"the scale {scale!r}", own, ["seeds", "workers", "algorithms"])
        for label in own.get("algorithms", ()):
            check_choice(f"algorithms of {scale}", label, tuple(experiment.algorithms))
        replace(experiment, scales={}, **{key: value for key, value in own.items() if key != "algorithms"})


def _check_keys(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"{what} has no {', '.join(map(repr, unknown))}; it has {', '.join(known)}")


def _check_names(key: str, names: Any, least: int = 0) -> None:
    if not isinstance(names, tuple) or len(names) < least or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"`{key}` must be a list of texts{', at least one of them' * (least > 0)}, got {_said(names)}")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _said(value: Any) -> str:
    """Return a value as it would stand in the file."""
    return repr(list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


# The whole


def compare(
    experiment: Experiment | Path | str,
    *,
    out: Path | str,
    scale: str | None = None,
    jobs: int | None = None,
    progress: bool = True,
    parquet: bool = False,
) -> Comparison:
    """Carry out what is missing of an experiment, write the table of all evaluations, and return the comparison.

    Args:
        experiment: The experiment or its file.
        out: The comparison's directory; the same call goes on with one that was stopped.
        scale: The size of those tasks that come in several, such as "small".
        jobs: How many runs are carried out side by side (default: one for each core).
        progress: Whether to show progress on standard error.
        parquet: Whether to write the table as Parquet as well; needs pyarrow.
    """
    whole = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
    jobs = available_cores() if jobs is None else jobs
    check_count("jobs", jobs, 1)
    if parquet:
        _parquet()  # before hours of work
    out, here = Path(out).absolute(), whole.at(scale)
    check_same(out, whole, scale)
    finished = {run: marker for run in here.plan() if (marker := marker_of(out, run)) is not None}
    failures: dict[PlannedRun, str] = {}
    if len(finished) < len(here.plan()):
        tasks = dict.fromkeys(run.task for run in here.plan() if run not in finished)
        subjects = {task: _subject(here, task, scale) for task in tasks}
        out.mkdir(parents=True, exist_ok=True)
        record = _Record(out, whole.name, scale, jobs, finished)
        write_atomically(out / "experiment.toml", whole.to_toml().encode())  # last: with it, this is a comparison
        with _Board(here, finished, jobs, shown=progress) as board, _crew(jobs) as crew:
            stage = _Stage(here, out, subjects, dict(finished), board, record)
            stage.measure(crew)
            failures = stage.carry_out(crew, jobs)
    comparison = replace(Comparison.open(out), failures=failures)
    write_evaluations(comparison, out, parquet=parquet)
    return comparison


def recompute(
    experiment: Experiment | Path | str, *, out: Path | str, scale: str | None = None, parquet: bool = False
) -> Comparison:
    """Read a comparison of this experiment from the journals of its finished runs, and write its table anew; nothing is run."""
    whole = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
    check_same(Path(out), whole, scale or _scale_of(Path(out)))
    comparison = Comparison.open(out)
    write_evaluations(comparison, Path(out), parquet=parquet)
    return comparison


def check_same(out: Path, experiment: Experiment, scale: str | None) -> None:
    """Raise RunMismatch where a directory holds something else than this experiment in this scale."""
    if not (out / "experiment.toml").exists():
        if out.is_dir() and any(not file.name.startswith("about.json") for file in out.iterdir()):
            raise RunMismatch(f"{out} is not a comparison and not empty; use another directory for `out`")
        return
    before = _scale_of(out)
    if before != scale:
        raise RunMismatch(f"{out} was started in another scale: it is {scale}, it was {before}; use it again, or another directory")
    differences = _recorded_experiment(out).differences(experiment.at(scale))
    if differences:
        raise RunMismatch(
            f"{out} was started with another experiment: {'; '.join(differences)}; use it again, or another directory"
        )


def marker_of(out: Path, run: PlannedRun) -> Marker | None:
    """Return what a finished run's directory says of it; None if it is not finished."""
    try:
        marker: Marker = json.loads((out / run.directory / "finished.json").read_bytes())
    except FileNotFoundError:
        return None
    return marker


def _recorded_experiment(out: Path) -> Experiment:
    if not (out / "experiment.toml").is_file():
        raise StoreError(f"{out} is not a comparison: it has no experiment.toml; `mopbt compare EXPERIMENT --out {out}` makes one")
    return Experiment.read(out / "experiment.toml").at(_scale_of(out))


def _scale_of(out: Path) -> str | None:
    scale: str | None = _about(out).get("scale")
    return scale


def _about(out: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((out / "about.json").read_bytes())
    except FileNotFoundError:
        return {}
    return about


@dataclass(frozen=True)
class _Subject:
    """A task as it is run."""

    reference: str  # by which other processes find it
    problem: Problem
    population: int
    may_stack: bool
    endless: frozenset[str]  # the labels that have no end of their own on it


def _subject(experiment: Experiment, task: str, scale: str | None) -> _Subject:
    """Find a task, and make sure before anything is run that every algorithm can be run on it."""
    reference, population = _in_scale(task, scale)
    found, reference = find_task(reference)
    problem, labels = problem_of(found), [label for label in experiment.contenders if experiment.has(task, label)]
    if callable(check := getattr(found, "check", None)):
        check()
    if experiment.engine == "vectorised":
        planned("vectorised", found, experiment.workers, 1)
    endless = frozenset(label for label in labels if _is_endless(experiment, task, label, problem, population))
    for label in labels:
        _check_time(experiment, task, label, endless, [other for other in labels if other not in endless])
    return _Subject(reference, problem, population, hasattr(found, "probe"), endless)


def _in_scale(task: str, scale: str | None) -> tuple[str, int]:
    """Return the reference of a task in a scale, which tasks of one size only have no use for, and the population there."""
    name, _, own = task.partition("@")
    named = registered().get(name)
    family = None if named is None else named.load()
    if named is not None and not hasattr(family, "at"):
        return task, POPULATION
    wanted = own or scale
    size = getattr(family, "scales", {}).get(wanted)
    return f"{name}@{wanted}" if wanted else name, getattr(size, "population", POPULATION)


def _is_endless(experiment: Experiment, task: str, label: str, problem: Problem, population: int) -> bool:
    contender = experiment.contenders[label]
    algorithm = contender.algorithm(population)
    if callable(check := getattr(algorithm, "check", None)):
        check()
    try:
        return algorithm.scheduler(contender.problem(problem)).endless
    except ValueError as error:
        raise ValueError(f"{label!r} on {task}: {error}") from None


def _check_time(experiment: Experiment, task: str, label: str, endless: frozenset[str], timers: Sequence[str]) -> None:
    if label not in endless and experiment.contenders[label].time_of is not None:
        raise ValueError(f"{label!r} has an end of its own: leave out its `time_of`")
    if label in endless and experiment.timer(label) not in timers:
        raise ValueError(
            f"{label!r} has no end of its own: `time_of` must name one that has, and is run on {task} "
            f"({', '.join(map(repr, timers)) or 'there is none'}), got {experiment.timer(label)!r}"
        )


# Carrying out


@dataclass(frozen=True)
class Order:
    """A run as it is given to a process that carries it out."""

    path: str
    task: str
    algorithm: Mapping[str, Any]
    constraints: Sequence[str]
    seed: int
    workers: int
    cost: float
    stack: int  # how many members are trained as one program; 1: none
    seconds: float | None  # the virtual time that it gets; None: until it is done
    keep_models: bool


@dataclass
class _Stage:
    """The part of a plan that is still to be carried out."""

    experiment: Experiment
    out: Path
    subjects: Mapping[str, _Subject]
    finished: dict[PlannedRun, Marker]
    board: "_Board"
    record: "_Record"
    failures: dict[PlannedRun, str] = field(default_factory=dict)

    def measure(self, crew: "_Crew") -> None:
        """Record what a step of each task costs and which engine trains it: as given, or measured once and for all."""
        for task, subject in self.subjects.items():
            if task in self.record.tasks:
                continue
            engine = self.experiment.engine if subject.may_stack or self.experiment.engine == "vectorised" else "local"
            known: Mapping[str, Any] = {"cost": self.experiment.cost, "engine": engine}
            if known["cost"] == "measured" or engine == "auto":
                self.board.note(f"measuring {task}")
                order = {"task": subject.reference, "stack": self.experiment.workers, **known}
                answer = crew.submit({"measure": order}).result()
                if "failed" in answer:
                    raise TaskFailed(f"{task} cannot be measured: {answer['failed']}")
                known = answer["measured"]
            self.record.tasks[task] = known
            self.record.write(self.out, self.finished)

    def carry_out(self, crew: "_Crew", jobs: int) -> dict[PlannedRun, str]:
        """Carry out all runs that are missing, each as soon as its time is known, and return those that failed."""
        waiting = [run for run in self.experiment.plan() if run not in self.finished]
        under_way: dict[Future[Mapping[str, Any]], PlannedRun] = {}
        while waiting or under_way:
            ready = [run for run in waiting if self._is_ready(run)][: jobs - len(under_way)]
            for run in ready:
                waiting.remove(run)
                self.board.begin(run)
                under_way[crew.submit({"order": asdict(self._order(run))}, partial(self.board.share, run))] = run
            if not under_way:
                self._give_up(waiting)
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                self._end(under_way.pop(future), future.result())
        return self.failures

    def _end(self, run: PlannedRun, answer: Mapping[str, Any]) -> None:
        if "finished" in answer:
            self.finished[run] = answer["finished"]
        else:
            self.failures[run] = answer["failed"]
        self.board.end(run, answer)
        self.record.write(self.out, self.finished)

    def _give_up(self, waiting: Sequence[PlannedRun]) -> None:
        for run in waiting:
            self.failures[run] = f"needs the time of {self.experiment.timer(run.algorithm)!r}, of which a run failed"
            self.board.note(f"{run}: {self.failures[run]}")

    def _timers(self, run: PlannedRun) -> list[PlannedRun]:
        """Return the runs that say how long a run may take; none if it has an end of its own."""
        if run.algorithm not in self.subjects[run.task].endless:
            return []
        timer = cast(str, self.experiment.timer(run.algorithm))
        return [PlannedRun(run.task, timer, seed) for seed in self.experiment.seeds]

    def _is_ready(self, run: PlannedRun) -> bool:
        return all(timer in self.finished for timer in self._timers(run))

    def _order(self, run: PlannedRun) -> Order:
        contender, subject = self.experiment.contenders[run.algorithm], self.subjects[run.task]
        algorithm, measured = contender.algorithm(subject.population), self.record.tasks[run.task]
        times = [self.finished[timer]["seconds"] for timer in self._timers(run)]
        stack = min(self.experiment.workers, algorithm.at_once) if measured["engine"] == "vectorised" else 1
        return Order(
            path=str(self.out / run.directory),
            task=subject.reference,
            algorithm=options_of(algorithm),
            constraints=contender.constraints,
            seed=run.seed + contender.seed_offset,
            workers=self.experiment.workers,
            cost=measured["cost"],
            stack=stack,
            seconds=round(max(times) + SLACK, 6) if times else None,
            keep_models=self.experiment.keep_models,
        )


class _Crew:
    """Processes that carry out orders, one after the other each; one that dies is replaced."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)  # a thread waits for each process
        self._idle: queue.SimpleQueue[_Hand] = queue.SimpleQueue()
        self._hands = [_Hand() for _ in range(jobs)]
        for hand in self._hands:
            self._idle.put(hand)

    def submit(self, message: Mapping[str, Any], tell: Callable[[float], None] | None = None) -> Future[Mapping[str, Any]]:
        """Have an order carried out; `tell` hears which share of it is done."""
        return self._pool.submit(self._carry_out, message, tell)

    def close(self) -> None:
        """End all processes at once; what they were doing is in the journals."""
        for hand in self._hands:
            hand.kill()
        self._pool.shutdown(cancel_futures=True)
        for hand in self._hands:
            hand.bury()

    def _carry_out(self, message: Mapping[str, Any], tell: Callable[[float], None] | None) -> Mapping[str, Any]:
        hand = self._idle.get()
        try:
            return hand.carry_out(message, tell)
        finally:
            self._idle.put(hand)


@contextmanager
def _crew(jobs: int) -> Iterator[_Crew]:
    crew = _Crew(jobs)
    try:
        yield crew
    finally:
        crew.close()


class _Hand:
    """One process of a crew, started with its first order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_over = False

    def carry_out(self, message: Mapping[str, Any], tell: Callable[[float], None] | None) -> Mapping[str, Any]:
        """Hand an order over, and wait for the answer."""
        with self._lock:
            if self._is_over:
                return {"failed": "interrupted"}
            process = self._process = self._process or _started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            answer: Mapping[str, Any] = json.loads(line)
            if "share" not in answer:
                return answer
            if tell is not None:
                tell(answer["share"])
        return {"failed": f"its process died (exit code {self.bury()})"}

    def kill(self) -> None:
        """End the process, and start none again."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.kill()

    def bury(self) -> int:
        """Forget a process that has ended, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):  # what could not be written any more
                cast(IO[str], pipe).close()
        return process.wait()


def _started() -> subprocess.Popen[str]:
    path = [os.path.abspath(entry) for entry in sys.path]
    command = f"import sys; sys.path[:] = {path!r}; from mopbt.compare import serve; serve()"
    environment = dict(os.environ) | dict.fromkeys(THREADS, "1")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen([sys.executable, "-c", command], env=environment, **pipes)


# In a process of the crew


def serve() -> None:
    """Carry out orders from standard input until it ends; answers go to standard output, what tasks print to standard error."""
    keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the one who gives the orders decides
    source, sink = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()

    def answer(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=sink, flush=True)

    while True:
        answer(_answer(inbox.get(), lambda share: answer({"share": share})))


def _listen(source: Iterable[str], inbox: "queue.SimpleQueue[Mapping[str, Any]]") -> None:
    for line in source:
        inbox.put(json.loads(line))
    os._exit(0)  # whoever gave the orders is gone


def _answer(message: Mapping[str, Any], tell: Callable[[float], None]) -> Mapping[str, Any]:
    try:
        if "measure" in message:
            return {"measured": measure(**message["measure"])}
        return {"finished": carry_out(Order(**message["order"]), tell)}
    except (MopbtError, ValueError, TypeError) as error:
        return {"failed": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}


def carry_out(order: Order, tell: Callable[[float], None]) -> Marker:
    """Start or go on with a run in this process, mark it as finished, and return the mark."""
    began, path = time.perf_counter(), Path(order.path)
    task, algorithm = _task(order.task), algorithm_of(dict(order.algorithm))
    problem = problem_of(task)
    problem = replace(problem, constraints=(*problem.constraints, *parse_constraints(order.constraints)))
    trainer = Plan("vectorised", 1, order.stack) if order.stack > 1 else Plan("local")
    plan = Plan("simulated", order.workers, cost=repr(order.cost), on=trainer)
    settings = Settings(problem, options_of(algorithm), order.seed, engine=plan.to_dict())
    engine = plan.engine()
    with ExitStack() as stack:
        store = open_run(path, settings, durable=False)  # waiting for the disk takes longer than training what is small
        stack.callback(store.close)
        earlier = sum(report.took for exchange in store.read() for report in exchange.reports)
        session = Session(
            *(algorithm.scheduler(problem), problem, store, engine, State(order.seed)),
            Budget(seconds=order.seconds),
            _Share(tell, order.seconds),
        )
        engine.start(Work(task, problem, order.seed, store.checkpoints))
        stack.callback(engine.close)
        session.drive()
        if not order.keep_models:
            store.checkpoints.drop(store.checkpoints.kept())
        _make_durable(store)
        marker = {
            "seconds": round(session.elapsed, 6),  # virtual
            "real": round(earlier + time.perf_counter() - began, 3),
            "evaluations": session.reports,
            "failures": session.failures,
        }
        write_atomically(path / "finished.json", (json.dumps(marker) + "\n").encode())
    return marker


@lru_cache(maxsize=2)
def _task(reference: str) -> Any:
    """Return a task; kept, as the next run is probably about the same one."""
    return find_task(reference)[0]


def _make_durable(store: DirectoryStore) -> None:
    with open(store.journal, "rb") as file:
        os.fsync(file.fileno())


class _Share:
    """Watches a run and tells now and then which share of it is done."""

    def __init__(self, tell: Callable[[float], None], seconds: float | None) -> None:
        self._tell, self._seconds = tell, seconds
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        done, whole = (progress.elapsed, self._seconds) if self._seconds else (progress.reported, progress.total)
        self._tell(min(done / whole, 1.0) if whole else 0.0)


def measure(task: str, cost: float | str, engine: str, stack: int) -> dict[str, Any]:
    """Return the cost of a step of a task and the engine that suits it, each measured where it is not given."""
    found = _task(task)
    if engine == "auto":
        engine = "vectorised" if planned("auto", found, stack, 1).name == "vectorised" else "local"
    return {"cost": _cost(found) if cost == "measured" else cost, "engine": engine}


def _cost(task: Any) -> float:
    """Return the seconds that a step takes with one thread: the median of three intervals, after one to get warm."""
    problem = problem_of(task)
    work = Work(task, problem, 0, MemoryCheckpoints())
    configs = problem.space.stratified(4, stream(0, "cost"))
    reports = [perform(work, Job(i, i, config, None, 0, problem.interval), "", Warm(0)) for i, config in enumerate(configs)]
    if error := "\n".join(report.error for report in reports if report.error):
        raise TaskFailed(error)
    seconds = statistics.median(report.took for report in reports[1:]) / problem.interval
    return max(round(float(f"{seconds:.3g}"), 6), LEAST)


# What is shown and recorded


class _Board:
    """Shows a plan while it is carried out: bars on a terminal, else a line now and then. Use it as a context manager."""

    def __init__(self, experiment: Experiment, finished: Mapping[PlannedRun, Marker], jobs: int, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True, highlight=False, quiet=not shown)
        columns = BarColumn(16), TextColumn("{task.description}  {task.fields[note]}", markup=False)
        self._bars = Bars(*columns, console=self._console, disable=not self._console.is_terminal, transient=True)
        self._plan, self._jobs = experiment.plan(), jobs
        self._took = {run: float(marker["real"]) for run, marker in finished.items()}
        self._shares: dict[PlannedRun, float] = {}
        self._failed = 0
        self._lock = threading.RLock()  # threads of the crew tell shares
        self._began, self._shown, self._told = time.monotonic(), -math.inf, ""
        self._whole = self._bars.add_task(experiment.name, total=len(self._plan), completed=len(finished), note="")
        self._rows: dict[PlannedRun, Any] = {}

    def __enter__(self) -> "_Board":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._bars.stop()
        if self._line() != self._told:
            self.note(self._line())
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.note("stopped (interrupted); nothing reported is lost: run the same again to go on")

    def note(self, text: str) -> None:
        """Say something in one line."""
        self._console.print(text, soft_wrap=True, markup=False)

    def begin(self, run: PlannedRun) -> None:
        """Show that a run is under way."""
        with self._lock:
            self._shares[run] = 0.0
            self._rows[run] = self._bars.add_task(str(run), total=1.0, note="")

    def share(self, run: PlannedRun, share: float) -> None:
        """Show which share of a run is done."""
        with self._lock:
            self._shares[run] = share
            self._bars.update(self._rows[run], completed=share)
            self._show()

    def end(self, run: PlannedRun, answer: Mapping[str, Any]) -> None:
        """Show that a run is over."""
        with self._lock:
            del self._shares[run]
            self._bars.remove_task(self._rows.pop(run))
            if "finished" in answer:
                self._took[run] = float(answer["finished"]["real"])
            else:
                self._failed += 1
                self.note(f"{run}: failed: {answer['failed'].strip()}")
            self._show()

    def _show(self) -> None:
        self._bars.update(self._whole, completed=len(self._took), note=self._line())
        if not self._console.is_terminal and time.monotonic() - self._shown >= EVERY:
            self._shown, self._told = time.monotonic(), self._line()
            self.note(self._told)

    def _line(self) -> str:
        from mopbt.display import clock

        parts = [f"{len(self._took)}/{len(self._plan)} runs", f"{clock(time.monotonic() - self._began)} elapsed"]
        left = seconds_left(self._plan, self._took, self._shares) / self._jobs
        parts += [f"{clock(left)} left"] if left else []
        return " | ".join([*parts, *([f"{self._failed} failed"] if self._failed else [])])


def seconds_left(plan: Iterable[PlannedRun], took: Mapping[PlannedRun, float], shares: Mapping[PlannedRun, float]) -> float:
    """Return the seconds of work to go, from the runs most like those that are not over; 0 as long as none is."""
    seen: dict[tuple[str, ...], list[float]] = {}
    for run, seconds in took.items():
        for key in ((run.task, run.algorithm), (run.task,), ()):
            seen.setdefault(key, []).append(seconds)
    means = {key: statistics.fmean(seconds) for key, seconds in seen.items()}
    left = [run for run in plan if run not in took]
    keys = [((run.task, run.algorithm), (run.task,), ()) for run in left]
    expected = [next((means[key] for key in alike if key in means), 0.0) for alike in keys]
    return sum(seconds * (1 - shares.get(run, 0.0)) for run, seconds in zip(left, expected, strict=True))


class _Record:
    """What stands beside the runs in about.json: commands, machine, versions, times, and what was measured of the tasks."""

    def __init__(self, out: Path, name: str, scale: str | None, jobs: int, finished: Mapping[PlannedRun, Marker]) -> None:
        about = _about(out)
        self.tasks: dict[str, Any] = about.get("tasks", {})
        self._head = {"experiment": name, "scale": scale}
        self._sessions: list[dict[str, Any]] = about.get("sessions", [])
        self._began = time.monotonic()
        session: dict[str, Any] = {"command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}
        session["started"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._sessions.append(session | {"jobs": jobs, "machine": _machine(), "versions": _versions()})
        self.write(out, finished)

    def write(self, out: Path, finished: Mapping[PlannedRun, Marker]) -> None:
        """Write down how things stand."""
        self._sessions[-1]["seconds"] = round(time.monotonic() - self._began, 3)
        seconds = round(sum(session["seconds"] for session in self._sessions), 3)
        runs = {str(run.directory.relative_to("runs")): dict(marker) for run, marker in finished.items()}
        about = {**self._head, "seconds": seconds, "tasks": self.tasks, "sessions": self._sessions, "runs": runs}
        write_atomically(out / "about.json", (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())


def _machine() -> dict[str, Any]:
    processor = platform.processor()
    with suppress(OSError, TypeError):  # Linux tells it only here, and not of all machines
        processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]  # type: ignore[index]
    return {"cores": available_cores(), "processor": processor, "system": platform.platform()}


def _versions() -> dict[str, str]:
    versions = {"mopbt": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


# The table of all evaluations


def read_run(out: Path, run: PlannedRun, problem: Problem) -> RunData:
    """Read a run's journal."""
    exchanges, _ = read_journal(out / run.directory / "journal.jsonl")
    orders = {job.id: job for exchange in exchanges for job in exchange.jobs}
    reports = [report for exchange in exchanges for report in exchange.reports]
    jobs = [orders[report.job] for report in reports]
    scores = _scores(reports)
    tests = [f"test/{objective.name}" for objective in problem.objectives]
    signs = np.array([objective.sign for objective in problem.objectives])
    K, nothing = len(signs), (math.nan,) * len(signs)
    return RunData(
        task=run.task,
        algorithm=run.algorithm,
        seed=run.seed,
        objectives=np.array([report.objectives or nothing for report in reports]).reshape(-1, K),
        test=np.column_stack([scores[name] for name in tests]) * signs if set(tests) <= set(scores) else None,
        seconds=np.array([report.seconds for report in reports]),
        steps=np.array([job.end for job in jobs], dtype=np.int64),
        violations=np.array([math.inf if report.objectives is None else report.violation for report in reports]),
        positions=np.array([job.config for job in jobs], dtype=float).reshape(-1, len(problem.space)),
        scores=scores,
        jobs=np.array([job.id for job in jobs], dtype=np.int64),
        trials=np.array([job.trial for job in jobs], dtype=np.int64),
        took=np.array([report.took for report in reports]),
        errors={row: report.error for row, report in enumerate(reports) if report.objectives is None},
    )


def _scores(reports: Sequence[Report]) -> dict[str, Floats]:
    names = dict.fromkeys(chain.from_iterable(report.scores for report in reports))
    return {name: np.array([report.scores.get(name, math.nan) for report in reports]) for name in names}


def write_evaluations(comparison: Comparison, out: Path, *, parquet: bool = False) -> None:
    """Write evaluations.csv.gz, and evaluations.parquet if it is asked for."""
    write_atomically(out / "evaluations.csv.gz", _compressed(comparison))
    if parquet:
        table = importlib.import_module("pyarrow").table(comparison.evaluations())
        _parquet().write_table(table, out / "evaluations.parquet")


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra("Parquet needs pyarrow: pip install pyarrow (or use evaluations.csv.gz)") from None


def _compressed(comparison: Comparison) -> bytes:
    """Return the table as compressed CSV; the same evaluations give the same bytes."""
    tables = [_columns(run, comparison.problems[run.task]) for run in comparison.runs]
    header, buffer = _header(tables), io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=3, mtime=0) as file:
        file.write((",".join(map(_quoted, header)) + "\n").encode())
        for table in tables:
            texts = [_texts(table[name]) if name in table else repeat("") for name in header]
            file.write("".join(f"{row}\n" for row in map(",".join, zip(*texts, strict=False))).encode())
    return buffer.getvalue()


def _columns(run: RunData, problem: Problem) -> dict[str, NDArray[Any]]:
    """Return the columns (n,) of a run in the tidy table."""
    n = len(run)
    head = {"task": np.full(n, run.task, object), "algorithm": np.full(n, run.algorithm, object), "seed": np.full(n, run.seed)}
    head |= {"job": run.jobs, "trial": run.trials, "step": run.steps, "seconds": run.seconds, "took": run.took}
    errors = np.full(n, "", object)
    errors[list(run.errors)] = list(run.errors.values())
    scores = {f"score.{name}": column for name, column in run.scores.items()}
    configs = {f"config.{name}": _values(problem, name, run.positions[:, i]) for i, name in enumerate(problem.space)}
    return head | {"violation": run.violations, "error": errors} | scores | configs


def _values(problem: Problem, name: str, positions: Floats) -> NDArray[Any]:
    domain = problem.space[name]
    at, index = np.unique(positions, return_inverse=True)  # to decode each of them once
    values = [domain.decode(position if isinstance(domain, Float) else int(position)) for position in at.tolist()]
    is_mixed = len({type(value) for value in values}) > 1 or isinstance(values[0], str)
    return np.array(values, dtype=object if is_mixed else None)[index]


def _header(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of all tables: what all have, then scores, then configurations."""
    names = dict.fromkeys(chain.from_iterable(tables))
    return sorted(names, key=lambda name: (name.startswith("config."), name.startswith("score.")))


def _joined(name: str, tables: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
    """Return a column of all tables, with NaN or "" for those that do not have it."""
    is_text = any(name in table and table[name].dtype == object for table in tables)
    absent = "" if is_text else math.nan
    return np.concatenate([table[name] if name in table else np.full(len(table["job"]), absent) for table in tables])


def _texts(column: NDArray[Any]) -> list[str]:
    """Return the cells of a column (n,) as they stand in a CSV file; NaN and "" are empty ones."""
    values = column.tolist()
    if column.dtype == float:
        texts = list(map(repr, values))
        return ["" if text == "nan" else text for text in texts] if np.isnan(column).any() else texts
    cells = {value: _quoted(value) if isinstance(value, str) and value else str(value) for value in set(values)}
    return [cells[value] for value in values]


def _quoted(text: str) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow([text])  # what ends a line is quoted
    return buffer.getvalue()[:-2]
