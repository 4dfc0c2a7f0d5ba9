"""The algorithms by the paper's names: settings that make a scheduler for a problem."""

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, get_args

from mopbt.explore import Explore, Local, RandomMutation
from mopbt.ranking import Within, by_domination
from mopbt.schedulers.base import Scheduler
from mopbt.schedulers.pbt import Pbt
from mopbt.task import Problem

Exploring = Literal["local", "random"]
Start = Literal["stratified", "iid"]


class Algorithm(Protocol):
    """Settings (a frozen dataclass with a name) that make a scheduler for a problem."""

    name: ClassVar[str]

    def scheduler(self, problem: Problem) -> Scheduler:
        """Return the scheduler of these settings."""


@dataclass(frozen=True, kw_only=True)
class MoPbt:
    """Multi-objective population based training (Section 4): non-dominated sort, then the most scattered first."""

    name: ClassVar[str] = "mo-pbt"

    population: int = 32
    fraction: float = 0.25  # τ: the share of the population that is replaced
    within: Within = "scattered"  # the order within a front
    scale: bool = False  # divide objectives by their range before distances are taken
    explore: Exploring = "local"
    resample: float = 0.2  # the probability of a fresh value in the local explore
    asynchronous: bool = False
    inherit_step: bool = False  # an exploiting member takes its donor's step where that is ahead, not only its weights
    start: Start = "stratified"

    def __post_init__(self) -> None:
        check_population(self.population)
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 0.5:
            raise ValueError(f"`fraction` must be in (0, 0.5], got {self.fraction!r}")
        for name, allowed in (("within", Within), ("explore", Exploring), ("start", Start)):
            check_choice(name, getattr(self, name), get_args(allowed))
        for name in ("scale", "asynchronous", "inherit_step"):
            check_choice(name, getattr(self, name), (True, False))
        Local(self.resample)
        by_domination(within=self.within, scale=self.scale)

    def scheduler(self, problem: Problem) -> Pbt:
        """Return the scheduler of these settings."""
        explore: Explore = Local(self.resample) if self.explore == "local" else RandomMutation()
        return Pbt(
            problem,
            rank=by_domination(within=self.within, scale=self.scale),
            explore=explore,
            population=self.population,
            fraction=self.fraction,
            asynchronous=self.asynchronous,
            inherit_step=self.inherit_step,
            start=self.start,
        )


ALGORITHMS: dict[str, type[MoPbt]] = {MoPbt.name: MoPbt}


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm's name and settings as plain values."""
    return {"name": algorithm.name, **asdict(algorithm)}  # type: ignore[call-overload]


def algorithm_of(options: dict[str, Any]) -> Algorithm:
    """Return the algorithm of a name and settings; wrong ones are errors that list the right ones."""
    name = options.get("name")
    if name not in ALGORITHMS:
        raise ValueError(f"`algorithm` must be one of {', '.join(ALGORITHMS)}, got {name!r}")
    kind = ALGORITHMS[name]
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(options) - known - {"name"})
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}")
    return kind(**{key: value for key, value in options.items() if key != "name"})


def check_population(population: Any) -> None:
    """Raise ValueError unless this is a size that a population can have."""
    if not isinstance(population, int) or isinstance(population, bool) or population < 2:
        raise ValueError(f"`population` must be a whole number of at least 2, got {population!r}")


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless a value is one of those allowed."""
    if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, allowed))}, got {value!r}")
