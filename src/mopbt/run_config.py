"""The settings of a run in `run.toml`: enough to read it without the task's code."""

import datetime
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from mopbt.algorithms import default_options
from mopbt.arguments import check_choice, check_count
from mopbt.engines.compilation import Compilation, as_chosen
from mopbt.errors import IncompatibleRun
from mopbt.estimate import CONFIDENCE, check_confidence
from mopbt.messages import did_you_mean
from mopbt.objectives import unsigned
from mopbt.problem import PreciseTask, Problem, make_problem, with_initial, with_precision
from mopbt.space import Categorical, Domain, Float, Grid, Int, LogGrid, Ordinal
from mopbt.version import __version__

# The format of a run's directory. It grows when an older version could not read what is written.
FORMAT = 1
_DOMAINS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Grid, LogGrid, Ordinal, Categorical, Float, Int)
}
_KEYS = (
    *("format", "mopbt", "run_id", "created", "seed", "confidence", "storage", "keep"),
    *("keep_precision", "initial", "warm_start", "algorithm", "engine", "compilation", "task"),
)
_TASK_KEYS = (
    *("name", "interval", "steps", "task_reference", "task_fingerprint"),
    *("constraints", "objectives", "reference", "blendable", "precision", "space"),
)
USUAL_PRECISION = "fp32"
_REMEDY = "restore the run.toml that the run was started with"


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines what a run does, except the task's code.

    Attributes:
        problem: The search space, the objectives and the length of training.
        algorithm: The name of the algorithm and its settings.
        seed: Random seed of the run.
        task_reference: How the command line finds the task; empty if only a program holds it.
        engine: The engine at the start. A run may be resumed on another one.
        task_fingerprint: The result of `task_fingerprint` at the start; empty if unknown.
        storage: Where checkpoints are kept; empty for the run's directory.
        run_id: The unique id of the run; empty before it is created.
        confidence: The confidence of the intervals of metrics with an error.
        keep: How many models of the front keep their weights; None for all.
        keep_precision: The precision of models that only the front needs; None for that of
            training.
        compilation: Whether training is compiled, and why; empty if the task decides.
        precision: The precision of training; empty for the usual one, or if the task has none.
        warm_start: The run, its id, and the models with checksums that the first trials start from;
            empty for fresh weights.
    """

    problem: Problem
    algorithm: Mapping[str, Any]
    seed: int
    task_reference: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    task_fingerprint: str = ""
    storage: str = ""
    run_id: str = ""
    confidence: float = CONFIDENCE
    keep: int | None = None
    keep_precision: str | None = None
    warm_start: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    compilation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)
        check_confidence(self.confidence)
        check_count("keep", self.keep, 1, optional=True)
        check_choice("keep_precision", self.keep_precision, (None, "fp16", "bf16"))

    def to_toml(self) -> str:
        """Return the text of `run.toml`."""
        data: dict[str, Any] = {
            "format": FORMAT,
            "mopbt": __version__,
            "run_id": self.run_id,
            "created": datetime.datetime.now(datetime.UTC).replace(microsecond=0),
            "seed": self.seed,
            "confidence": self.confidence,
        }
        if self.storage:
            data["storage"] = self.storage
        if self.keep is not None:
            data["keep"] = self.keep
        if self.keep_precision is not None:
            data["keep_precision"] = self.keep_precision
        if self.problem.initial:
            space = self.problem.space
            data["initial"] = [space.decode(config) for config in self.problem.initial]
        if self.warm_start:
            data["warm_start"] = dict(self.warm_start)
        data["algorithm"] = dict(self.algorithm)
        data["engine"] = dict(self.engine)
        if self.compilation:
            data["compilation"] = dict(self.compilation)
        data["task"] = self._task_to_toml()
        return tomli_w.dumps(data)

    def _task_to_toml(self) -> dict[str, Any]:
        problem = self.problem
        task: dict[str, Any] = {
            "name": problem.name,
            "interval": problem.interval,
            "steps": problem.steps,
        }
        if self.task_reference:
            task["task_reference"] = self.task_reference
        if self.task_fingerprint:
            task["task_fingerprint"] = self.task_fingerprint
        task["constraints"] = [str(constraint) for constraint in problem.constraints]
        task["objectives"] = {o.name: o.direction for o in problem.objectives}
        if problem.reference is not None:
            task["reference"] = unsigned(problem.objectives, problem.reference)
        if problem.blendable:
            task["blendable"] = True
        if self.precision:
            task["precision"] = self.precision
        task["space"] = {name: _domain_to_toml(domain) for name, domain in problem.space.items()}
        return task

    @staticmethod
    def from_toml(text: str, path: Path) -> "RunConfig":
        """Read `run.toml`; IncompatibleRun if this version does not understand all of it."""
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise IncompatibleRun(f"{path} cannot be read: {error}; {_REMEDY}") from None
        if data.get("format") != FORMAT:
            raise IncompatibleRun(
                f"{path} has format {data.get('format')!r} (mopbt {data.get('mopbt', 'unknown')}); "
                f"mopbt {__version__} reads format {FORMAT}; install the version that wrote it, or "
                "start a new run in another directory"
            )
        try:
            # A run.toml without an id identifies its run by its content.
            return _from_data({"run_id": _checksum(text), **data})
        except KeyError as error:
            why = f"{error} is missing"
        except ValueError as error:
            why = str(error)
        except (AttributeError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
        raise IncompatibleRun(f"{path} does not hold the settings of a run: {why}; {_REMEDY}")

    def extended(self, extension: Mapping[str, int]) -> "RunConfig":
        """Return the settings after the run was extended by steps or members."""
        if not extension:
            return self
        steps = extension.get("steps", self.problem.steps)
        members = {name: size for name, size in extension.items() if name == "population"}
        problem = replace(self.problem, steps=steps)
        return replace(self, problem=problem, algorithm={**self.algorithm, **members})

    def differences(self, other: "RunConfig") -> list[str]:
        """Describe how other settings differ from these, one line per difference."""
        mine = self._flatten()
        theirs = other._flatten()
        if mine["task"] != theirs["task"]:
            return [f"task is {theirs['task']!r}, it was {mine['task']!r}"]
        if mine["algorithm name"] == theirs["algorithm name"]:
            # A run that is older than an option of its algorithm has the default.
            for key, value in default_options(self.algorithm["name"]).items():
                mine.setdefault(f"algorithm {key}", value)
                theirs.setdefault(f"algorithm {key}", value)
        my_object = _object_in_file(self.task_reference)
        their_object = _object_in_file(other.task_reference)
        if my_object and their_object and my_object != their_object:
            return [f"task is {other.task_reference}, it was {self.task_reference}"]
        lines = []
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key):
                now = theirs.get(key, "not set")
                lines.append(f"{key} is {now}, it was {mine.get(key, 'not set')}")
        return lines

    def _flatten(self) -> dict[str, Any]:
        problem = self.problem
        flat: dict[str, Any] = {
            "seed": self.seed,
            "confidence": self.confidence,
            "task": problem.name,
            "interval": problem.interval,
            "steps": problem.steps,
            "objectives": [(o.name, o.direction) for o in problem.objectives],
        }
        for name in ("keep", "keep_precision", "precision"):
            if vars(self)[name]:
                flat[name] = vars(self)[name]
        if problem.reference is not None:
            flat["reference"] = unsigned(problem.objectives, problem.reference)
        flat["constraints"] = [str(constraint) for constraint in problem.constraints]
        for name, domain in problem.space.items():
            flat[f"space[{name!r}]"] = domain
        if problem.initial:
            flat["initial"] = [problem.space.decode(config) for config in problem.initial]
        if self.warm_start:
            flat["warm_start"] = {key: self.warm_start[key] for key in ("run_id", "models")}
        flat["order of the space"] = list(problem.space)
        for key, value in self.algorithm.items():
            flat[f"algorithm {key}"] = value
        return flat


def _from_data(data: Mapping[str, Any]) -> RunConfig:
    _check_keys("it", data, _KEYS)
    _check_kinds(data, {"run_id": str, "storage": str})
    _check_kinds(data, {"task": dict, "algorithm": dict, "engine": dict, "warm_start": dict})
    task = data["task"]
    _check_keys("its [task]", task, _TASK_KEYS)
    _check_kinds(task, {"name": str, "task_reference": str, "task_fingerprint": str})
    _check_kinds(task, {"space": dict, "objectives": dict, "constraints": list, "blendable": bool})
    problem = make_problem(
        name=task["name"],
        space={name: _domain_from_toml(domain) for name, domain in task["space"].items()},
        objectives=task["objectives"],
        constraints=task["constraints"],
        interval=task["interval"],
        steps=task["steps"],
        reference=task.get("reference"),
        blendable=task.get("blendable", False),
    )
    return RunConfig(
        with_initial(problem, data.get("initial", [])),
        algorithm={"name": data["algorithm"]["name"], **data["algorithm"]},
        seed=data["seed"],
        task_reference=task.get("task_reference", ""),
        engine=data.get("engine", {}),
        task_fingerprint=task.get("task_fingerprint", ""),
        storage=data.get("storage", ""),
        run_id=data["run_id"],
        confidence=data.get("confidence", CONFIDENCE),
        keep=data.get("keep"),
        keep_precision=data.get("keep_precision"),
        warm_start=data.get("warm_start", {}),
        precision=task.get("precision", ""),
        compilation=data.get("compilation", {}),
    )


def recorded_precision(task: Any) -> str:
    """Return what `run.toml` records of a task's precision.

    It is nothing for the usual precision.
    """
    precision = task.precision if isinstance(task, PreciseTask) else USUAL_PRECISION
    return "" if precision == USUAL_PRECISION else precision


def as_recorded(task: Any, settings: RunConfig, precision: str | None = None) -> Any:
    """Return a task that trains as in a run.

    It has the precision of the run, or a given one, and is compiled like it.
    """
    if precision is None and isinstance(task, PreciseTask):
        precision = settings.precision or USUAL_PRECISION
    return as_chosen(with_precision(task, precision), Compilation.from_dict(settings.compilation))


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _object_in_file(task_reference: str) -> tuple[str, ...]:
    """Split a reference into file name and object; empty if the task is not in a file.

    The folder is left out, because a file may be moved between sessions.
    """
    place, _, name = task_reference.rpartition(":")
    return (Path(place).name, name) if place.endswith(".py") else ()


def _check_keys(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError for an unknown key: ignoring it could change what the run does."""
    for key in given:
        if key not in known:
            raise ValueError(
                f"{what} has {key!r}, mopbt {__version__} knows {', '.join(known)}"
                f"{did_you_mean(key, known)}"
            )


def _check_kinds(given: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raise ValueError for a value of the wrong type."""
    names = {str: "a string", dict: "a table", list: "a list", bool: "true or false"}
    for key, kind in kinds.items():
        if key in given and not isinstance(given[key], kind):
            raise ValueError(f"`{key}` must be {names[kind]}, got {given[key]!r}")


def _domain_to_toml(domain: Domain) -> dict[str, Any]:
    kind = type(domain).__name__
    if kind not in _DOMAINS:
        raise ValueError(f"a domain must be one of {', '.join(_DOMAINS)}, got {domain!r}")
    data: dict[str, Any] = {"kind": kind}
    for name, value in asdict(domain).items():  # type: ignore[call-overload]
        data[name] = list(value) if isinstance(value, tuple) else value
    return data


def _domain_from_toml(data: Any) -> Domain:
    if not isinstance(data, dict):
        raise ValueError(f"a domain must be a table with a `kind`, got {data!r}")
    if str(data["kind"]) not in _DOMAINS:
        raise ValueError(
            f"`kind` of a domain must be one of {', '.join(_DOMAINS)}, got {data['kind']!r}"
        )
    kind = _DOMAINS[data["kind"]]
    domain: Domain = kind(**{f.name: data[f.name] for f in fields(kind)})
    return domain
