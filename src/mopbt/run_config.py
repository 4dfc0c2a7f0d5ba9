"""What a run was started with, as `run.toml` holds it: enough to read the run without the task's code."""

import datetime
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import tomli_w

from mopbt.algorithms import check_count
from mopbt.errors import IncompatibleRun
from mopbt.messages import did_you_mean
from mopbt.objectives import unsigned
from mopbt.problem import Problem, make_problem
from mopbt.space import Categorical, Domain, Float, Grid, Int, LogGrid, Ordinal
from mopbt.version import __version__

FORMAT = 1  # of the run's directory; raised when an older version could not read what is written
_DOMAINS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Grid, LogGrid, Ordinal, Categorical, Float, Int)
}


@dataclass(frozen=True)
class RunConfig:
    """All that decides what a run does, apart from the task's code."""

    problem: Problem
    algorithm: Mapping[str, Any]
    seed: int
    task_reference: str = ""  # how the command line finds the task again; empty for a run that was started from Python
    engine: Mapping[str, Any] = field(
        default_factory=dict
    )  # what it was started on; another engine may go on with it
    task_fingerprint: str = ""  # what the task was made of then, see `task_fingerprint` of the catalog; empty: not known
    storage: str = ""  # where its checkpoints are; empty: in the run's directory

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)

    def to_toml(self) -> str:
        """Return the text of `run.toml`."""
        problem = self.problem
        task: dict[str, Any] = {
            "name": problem.name,
            "interval": problem.interval,
            "steps": problem.steps,
        }
        task |= {
            key: value
            for key, value in (
                ("task_reference", self.task_reference),
                ("task_fingerprint", self.task_fingerprint),
            )
            if value
        }
        task["constraints"] = [str(c) for c in problem.constraints]
        task["objectives"] = {o.name: o.direction for o in problem.objectives}
        if problem.reference is not None:
            task["reference"] = unsigned(problem.objectives, problem.reference)
        task["space"] = {name: _domain_to_toml(domain) for name, domain in problem.space.items()}
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        head = {"format": FORMAT, "mopbt": __version__, "created": now, "seed": self.seed}
        head |= {"storage": self.storage} if self.storage else {}
        return tomli_w.dumps(
            {**head, "algorithm": dict(self.algorithm), "engine": dict(self.engine), "task": task}
        )

    @staticmethod
    def from_toml(text: str, path: Path) -> "RunConfig":
        """Read `run.toml`; what this version does not understand is an error that says so."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise IncompatibleRun(
                f"{path} cannot be read: {error}; put back the file that the run was started with"
            ) from None
        if data.get("format") != FORMAT:
            raise IncompatibleRun(
                f"{path} has format {data.get('format')!r} (mopbt {data.get('mopbt', 'unknown')}); mopbt {__version__} reads "
                f"format {FORMAT}; install the version that wrote it, or start a new run in another directory"
            )
        try:
            _check_keys(
                "it",
                data,
                ("format", "mopbt", "created", "seed", "storage", "algorithm", "engine", "task"),
            )
            task = dict(data["task"])
            keys = (
                "name",
                "interval",
                "steps",
                "task_reference",
                "task_fingerprint",
                "constraints",
                "objectives",
                "reference",
                "space",
            )
            _check_keys("its [task]", task, keys)
            problem = make_problem(
                name=task["name"],
                space={name: _domain_from_toml(domain) for name, domain in task["space"].items()},
                objectives=task["objectives"],
                constraints=task["constraints"],
                interval=task["interval"],
                steps=task["steps"],
                reference=task.get("reference"),
            )
            algorithm = {"name": data["algorithm"]["name"], **data["algorithm"]}
            where = {
                "task_reference": task.get("task_reference", ""),
                "task_fingerprint": task.get("task_fingerprint", ""),
            }
            where |= {"engine": data.get("engine", {}), "storage": data.get("storage", "")}
            return RunConfig(problem, algorithm, data["seed"], **where)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            lacking = (
                f"it lacks {error}"
                if isinstance(error, KeyError)
                else f"{type(error).__name__}: {error}"
            )
            why = str(error) if isinstance(error, ValueError) else lacking
            raise IncompatibleRun(
                f"{path} is not a run's settings: {why}; put back the file that the run was started with"
            ) from None

    def differences(self, other: "RunConfig") -> list[str]:
        """Return how other settings differ from these, one readable line for each."""
        mine, theirs = self._flat(), other._flat()
        if mine["task"] != theirs["task"]:
            return [f"task is {theirs['task']!r}, it was {mine['task']!r}"]
        files = [_file(settings.task_reference) for settings in (self, other)]
        other_file = (
            [f"task is {other.task_reference}, it was {self.task_reference}"]
            if all(files) and files[0] != files[1]
            else []
        )
        return other_file + [
            f"{key} is {theirs.get(key, 'not set')}, it was {mine.get(key, 'not set')}"
            for key in dict.fromkeys([*mine, *theirs])
            if mine.get(key) != theirs.get(key)
        ]

    def _flat(self) -> dict[str, Any]:
        problem = self.problem
        flat: dict[str, Any] = {
            "seed": self.seed,
            "task": problem.name,
            "interval": problem.interval,
            "steps": problem.steps,
        }
        flat |= {"objectives": [(o.name, o.direction) for o in problem.objectives]}
        if problem.reference is not None:
            flat["reference"] = unsigned(problem.objectives, problem.reference)
        flat |= {"constraints": [str(c) for c in problem.constraints]}
        flat |= {f"space[{name!r}]": domain for name, domain in problem.space.items()}
        flat |= {"order of the space": list(problem.space)}
        return flat | {f"algorithm {key}": value for key, value in self.algorithm.items()}


def _file(task_reference: str) -> tuple[str, ...]:
    """Return the name of an task_reference's file, which may be moved, and what it names there; nothing where it is not in a file."""
    place, _, name = task_reference.rpartition(":")
    return (Path(place).name, name) if place.endswith(".py") else ()


def _check_keys(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError where there is more than this version would heed: leaving it unread could change what the run does."""
    unknown = [key for key in given if key not in known]
    if unknown:
        near = did_you_mean(unknown[0], known)
        raise ValueError(
            f"{what} has {unknown[0]!r}, mopbt {__version__} knows {', '.join(known)}{near}"
        )


def _domain_to_toml(domain: Domain) -> dict[str, Any]:
    kind = type(domain).__name__
    if kind not in _DOMAINS:
        raise ValueError(f"a domain must be one of {', '.join(_DOMAINS)}, got {domain!r}")
    values = asdict(domain)  # type: ignore[call-overload]
    return {
        "kind": kind,
        **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()},
    }


def _domain_from_toml(data: Mapping[str, Any]) -> Domain:
    if data["kind"] not in _DOMAINS:
        raise ValueError(
            f"`kind` of a domain must be one of {', '.join(_DOMAINS)}, got {data['kind']!r}"
        )
    kind = _DOMAINS[data["kind"]]
    domain: Domain = kind(**{f.name: data[f.name] for f in fields(kind)})
    return domain
