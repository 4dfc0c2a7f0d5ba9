"""What a run was started with, as `run.toml` holds it: enough to read the run without the task's code."""

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import tomli_w

from mopbt.errors import IncompatibleRun
from mopbt.objectives import unsigned
from mopbt.space import Categorical, Domain, Float, Grid, Int, LogGrid, Ordinal
from mopbt.task import Problem, make_problem
from mopbt.version import __version__

FORMAT = 1  # of the run's directory; raised when an older version could not read what is written
_DOMAINS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Grid, LogGrid, Ordinal, Categorical, Float, Int)}


@dataclass(frozen=True)
class Settings:
    """All that decides what a run does, apart from the task's code."""

    problem: Problem
    algorithm: Mapping[str, Any]
    seed: int
    origin: str = ""  # how the command line finds the task again; empty for a run that was started from Python
    engine: Mapping[str, Any] = field(default_factory=dict)  # what it was started on; another engine may go on with it

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ValueError(f"`seed` must be a whole number of at least 0, got {self.seed!r}")

    def to_toml(self) -> str:
        """Return the text of `run.toml`."""
        problem = self.problem
        task: dict[str, Any] = {"name": problem.name, "interval": problem.interval, "max_step": problem.max_step}
        if self.origin:
            task["origin"] = self.origin
        task["constraints"] = [str(c) for c in problem.constraints]
        task["objectives"] = {o.name: o.direction for o in problem.objectives}
        if problem.reference is not None:
            task["reference"] = unsigned(problem.objectives, problem.reference)
        task["space"] = {name: _domain_to_toml(domain) for name, domain in problem.space.items()}
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        head = {"format": FORMAT, "mopbt": __version__, "created": now, "seed": self.seed}
        return tomli_w.dumps({**head, "algorithm": dict(self.algorithm), "engine": dict(self.engine), "task": task})

    @staticmethod
    def from_toml(text: str, origin: Path) -> "Settings":
        """Read `run.toml`; what this version does not understand is an error that says so."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise IncompatibleRun(f"{origin} cannot be read: {error}; put back the file that the run was started with") from None
        if data.get("format") != FORMAT:
            raise IncompatibleRun(
                f"{origin} has format {data.get('format')!r} (mopbt {data.get('mopbt', 'unknown')}); mopbt {__version__} reads "
                f"format {FORMAT}; install the version that wrote it, or start a new run in another directory"
            )
        try:
            task = dict(data["task"])
            problem = make_problem(
                name=task["name"],
                space={name: _domain_from_toml(domain) for name, domain in task["space"].items()},
                objectives=task["objectives"],
                constraints=task["constraints"],
                interval=task["interval"],
                max_step=task["max_step"],
                reference=task.get("reference"),
            )
            return Settings(problem, dict(data["algorithm"]), data["seed"], task.get("origin", ""), data.get("engine", {}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise IncompatibleRun(
                f"{origin} is not a run's settings: {type(error).__name__}: {error}; put back the file it was started with"
            ) from None

    def differences(self, other: "Settings") -> list[str]:
        """Return how other settings differ from these, one readable line for each."""
        mine, theirs = self._flat(), other._flat()
        if mine["task"] != theirs["task"]:
            return [f"task is {theirs['task']!r}, it was {mine['task']!r}"]
        return [
            f"{key} is {theirs.get(key, 'not set')}, it was {mine.get(key, 'not set')}"
            for key in dict.fromkeys([*mine, *theirs])
            if mine.get(key) != theirs.get(key)
        ]

    def _flat(self) -> dict[str, Any]:
        problem = self.problem
        flat: dict[str, Any] = {"seed": self.seed, "task": problem.name, "interval": problem.interval, "max_step": problem.max_step}
        flat |= {"objectives": [(o.name, o.direction) for o in problem.objectives]}
        if problem.reference is not None:
            flat["reference"] = unsigned(problem.objectives, problem.reference)
        flat |= {"constraints": [str(c) for c in problem.constraints]}
        flat |= {f"space[{name!r}]": domain for name, domain in problem.space.items()}
        flat |= {"order of the space": list(problem.space)}
        return flat | {f"algorithm {key}": value for key, value in self.algorithm.items()}


def _domain_to_toml(domain: Domain) -> dict[str, Any]:
    kind = type(domain).__name__
    if kind not in _DOMAINS:
        raise ValueError(f"a domain must be one of {', '.join(_DOMAINS)}, got {domain!r}")
    values = asdict(domain)  # type: ignore[call-overload]
    return {"kind": kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}}


def _domain_from_toml(data: Mapping[str, Any]) -> Domain:
    kind = _DOMAINS[data["kind"]]
    domain: Domain = kind(**{f.name: data[f.name] for f in fields(kind)})
    return domain
