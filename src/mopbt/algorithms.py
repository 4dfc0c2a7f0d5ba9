"""The algorithms by the paper's names: settings that make a scheduler for a problem."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import Any, ClassVar, Literal, Protocol, get_args

from mopbt.explore import Explore, Local, RandomMutation
from mopbt.messages import did_you_mean
from mopbt.problem import Problem
from mopbt.proposals import botorch, nsga2
from mopbt.proposals.base import Propose
from mopbt.proposals.tpe import Tpe
from mopbt.proposals.uniform import Stratified, Uniform
from mopbt.ranking import (
    Rank,
    Within,
    by_domination,
    by_max_scalarization,
    by_objective,
    by_random_scalarization,
)
from mopbt.scalarization import VECTORS
from mopbt.schedulers.asha import Asha, AshaKind
from mopbt.schedulers.base import Scheduler
from mopbt.schedulers.full_training import FullTraining
from mopbt.schedulers.pbt import Pbt
from mopbt.successive_halving import ETA

Exploring = Literal["local", "random"]
Start = Literal["stratified", "iid"]
POPULATION = 32  # paper, section 6.1


class Algorithm(Protocol):
    """Settings (a frozen dataclass with a name) that make a scheduler for a problem."""

    name: ClassVar[str]
    section: ClassVar[str]  # of the paper

    @property
    def max_parallel(self) -> int:
        """Return how many intervals may be under way together: engines are sized by it."""

    def scheduler(self, problem: Problem) -> Scheduler:
        """Return the scheduler of these settings."""


@dataclass(frozen=True, kw_only=True)
class _PopulationBased(ABC):
    """What the variants of population based training share: they differ in how members are ranked."""

    population: int = POPULATION
    fraction: float = 0.25  # τ: the share of the population that is replaced
    explore: Exploring = "local"
    resample: float = 0.2  # the probability of a fresh value in the local explore
    asynchronous: bool = False
    inherit_step: bool = False  # an exploiting member takes its donor's step where that is ahead, not only its weights
    start: Start = "stratified"

    def __post_init__(self) -> None:
        check_count("population", self.population, 2)
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 0.5:
            raise ValueError(f"`fraction` must be in (0, 0.5], got {self.fraction!r}")
        for name, allowed in (("explore", Exploring), ("start", Start)):
            check_choice(name, getattr(self, name), get_args(allowed))
        for name in ("asynchronous", "inherit_step"):
            check_choice(name, getattr(self, name), (True, False))
        Local(self.resample)

    @property
    def max_parallel(self) -> int:
        """Return the population: all members may train together."""
        return self.population

    def scheduler(self, problem: Problem) -> Pbt:
        """Return the scheduler of these settings."""
        explore: Explore = Local(self.resample) if self.explore == "local" else RandomMutation()
        return Pbt(
            problem,
            rank=self.rank(problem),
            explore=explore,
            population=self.population,
            fraction=self.fraction,
            asynchronous=self.asynchronous,
            inherit_step=self.inherit_step,
            start=self.start,
        )

    @abstractmethod
    def rank(self, problem: Problem) -> Rank:
        """Return how members are ranked."""


@dataclass(frozen=True, kw_only=True)
class MOPBT(_PopulationBased):
    """Multi-objective population based training: non-dominated sort, then the most scattered first."""

    name: ClassVar[str] = "mo-pbt"
    section: ClassVar[str] = "section 4"

    within: Within = "scattered"  # the order within a front
    scale: bool = False  # divide objectives by their range before distances are taken

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self.within, self.scale)

    def rank(self, problem: Problem) -> Rank:
        """Return the ranking by domination."""
        return by_domination(within=self.within, scale=self.scale)


@dataclass(frozen=True, kw_only=True)
class PBT(_PopulationBased):
    """Population based training by one objective alone, named or counted from 0."""

    name: ClassVar[str] = "pbt"
    section: ClassVar[str] = "section 6.3.2"

    objective: str | int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.objective, bool) or not isinstance(self.objective, str | int):
            raise ValueError(
                f"`objective` must be an objective's name or number, got {self.objective!r}"
            )

    def rank(self, problem: Problem) -> Rank:
        """Return the ranking by the objective."""
        names = [objective.name for objective in problem.objectives]
        if self.objective in names:
            return by_objective(names.index(str(self.objective)))
        if isinstance(self.objective, int) and 0 <= self.objective < len(names):
            return by_objective(self.objective)
        allowed = f"one of {', '.join(map(repr, names))} or a number from 0 to {len(names) - 1}"
        raise ValueError(
            f"`objective` must be {allowed}, got {self.objective!r}{did_you_mean(self.objective, names)}"
        )


@dataclass(frozen=True, kw_only=True)
class RandomScalarizationPBT(_PopulationBased):
    """Population based training by a weighted score (ParEGO's) under weights drawn anew for every ranking."""

    name: ClassVar[str] = "pbt-random-scalarization"
    section: ClassVar[str] = "section 6.3.2"

    per_member: bool = False  # weights of its own for each member, as in the authors' code

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("per_member", self.per_member, (True, False))

    def rank(self, problem: Problem) -> Rank:
        """Return the ranking by random scalarization."""
        return by_random_scalarization(per_member=self.per_member, minimized=_minimized(problem))


@dataclass(frozen=True, kw_only=True)
class MaxScalarizationPBT(_PopulationBased):
    """Population based training by the largest of a hundred weighted scores (Golovin's)."""

    name: ClassVar[str] = "pbt-max-scalarization"
    section: ClassVar[str] = "section 6.3.2"

    vectors: int = VECTORS  # |W|
    authors_variant: bool = False  # as in the authors' code, where it differs from the paper

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("authors_variant", self.authors_variant, (True, False))
        by_max_scalarization(vectors=self.vectors)

    def rank(self, problem: Problem) -> Rank:
        """Return the ranking by maximum scalarization."""
        return by_max_scalarization(
            vectors=self.vectors,
            authors_variant=self.authors_variant,
            minimized=_minimized(problem),
        )


def _minimized(problem: Problem) -> tuple[int, ...]:
    return tuple(
        k for k, objective in enumerate(problem.objectives) if objective.direction == "min"
    )


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Random search: a population of random configurations, each trained to the end."""

    name: ClassVar[str] = "random-search"
    section: ClassVar[str] = "section 6.3.1"

    population: int = POPULATION
    start: Start = "stratified"

    def __post_init__(self) -> None:
        check_count("population", self.population, 2)
        check_choice("start", self.start, get_args(Start))

    @property
    def max_parallel(self) -> int:
        """Return the population: all of it may train together."""
        return self.population

    def scheduler(self, problem: Problem) -> FullTraining:
        """Return the scheduler of these settings."""
        propose: Propose = Stratified() if self.start == "stratified" else Uniform()
        return FullTraining(
            problem,
            propose,
            first=self.population,
            batch=self.population,
            trainings=self.population,
        )


@dataclass(frozen=True, kw_only=True)
class MOASHA:
    """Multi-objective asynchronous successive halving: many start, and one of three goes on from each rung."""

    name: ClassVar[str] = "mo-asha"
    section: ClassVar[str] = "section 6.3.3"

    eta: int = ETA
    grace: int = 1  # intervals before the first rung
    kind: AshaKind = "stopping"  # the authors'; ASHA itself is of the promotion kind
    within: Within = "scattered"
    scale: bool = False
    trials: int | None = None  # how many to start; without it the budget ends the run

    def __post_init__(self) -> None:
        check_count("eta", self.eta, 2)
        check_count("grace", self.grace, 1)
        check_choice("kind", self.kind, get_args(AshaKind))
        check_order(self.within, self.scale)
        if self.trials is not None:
            check_count("trials", self.trials, 1)

    @property
    def max_parallel(self) -> int:
        """Return as many as a population of the paper: there is no end to the trials that could start."""
        return POPULATION if self.trials is None else min(self.trials, POPULATION)

    def scheduler(self, problem: Problem) -> Asha:
        """Return the scheduler of these settings."""
        return self._scheduler(problem, Uniform(), None)

    def _scheduler(self, problem: Problem, propose: Propose, enough: int | None) -> Asha:
        rank = by_domination(within=self.within, scale=self.scale)
        grace = min(self.grace, problem.steps // problem.interval)
        return Asha(problem, rank, propose, self.kind, self.eta, grace, self.trials, enough)


@dataclass(frozen=True, kw_only=True)
class BOMOASHA(MOASHA):
    """MO-ASHA whose new configurations are proposed by a multi-objective Parzen estimator (TPE) of what the rungs have shown."""

    name: ClassVar[str] = "bo-mo-asha"

    gamma: float = 0.10  # the share of the results that counts as good
    candidates: int = 24
    random: float = 1 / 6  # the probability of a random configuration

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tpe()

    def scheduler(self, problem: Problem) -> Asha:
        """Return the scheduler of these settings."""
        return self._scheduler(problem, self._tpe(), 2 * len(problem.space) + 2)

    def _tpe(self) -> Tpe:
        return Tpe(gamma=self.gamma, candidates=self.candidates, random=self.random)


@dataclass(frozen=True, kw_only=True)
class QNEHVI:
    """Bayesian optimization in batches by noisy expected hypervolume improvement (BoTorch), each training to the end."""

    name: ClassVar[str] = "qnehvi"
    section: ClassVar[str] = "appendix D"

    batch: int = 8  # the authors' code; the paper has 16 for tabular data and 12 for images
    trainings: int | None = None  # how many in all; without it the budget ends the run
    asynchronous: bool = False  # propose whenever there is room, knowing those still on the way

    def __post_init__(self) -> None:
        check_count("batch", self.batch, 1)
        check_choice("asynchronous", self.asynchronous, (True, False))
        if self.trainings is not None:
            check_count("trainings", self.trainings, 1)

    @property
    def max_parallel(self) -> int:
        """Return the batch."""
        return self.batch

    def check(self) -> None:
        """Raise MissingExtra where BoTorch is not installed."""
        botorch.check_installed()

    def scheduler(self, problem: Problem) -> FullTraining:
        """Return the scheduler of these settings."""
        first = _first(problem, self.trainings)
        return FullTraining(
            problem, botorch.QNEHVIProposal(), first, self.batch, self.trainings, self.asynchronous
        )


@dataclass(frozen=True, kw_only=True)
class ParEGO:
    """ParEGO: Bayesian optimization of randomly weighted scores (BoTorch), one training after the other, each to the end."""

    name: ClassVar[str] = "parego"
    section: ClassVar[str] = "appendix E"

    trainings: int = POPULATION

    def __post_init__(self) -> None:
        check_count("trainings", self.trainings, 1)

    @property
    def max_parallel(self) -> int:
        """Return 1: only the first trainings may run together."""
        return 1

    def check(self) -> None:
        """Raise MissingExtra where BoTorch is not installed."""
        botorch.check_installed()

    def scheduler(self, problem: Problem) -> FullTraining:
        """Return the scheduler of these settings."""
        return FullTraining(
            problem, botorch.ParEGOProposal(), _first(problem, self.trainings), 1, self.trainings
        )


@dataclass(frozen=True, kw_only=True)
class NSGA2:
    """NSGA-II: generation after generation of configurations by selection, crossover and mutation, each trained to the end."""

    name: ClassVar[str] = "nsga2"
    section: ClassVar[str] = "appendix E"

    population: int = 8
    trainings: int = POPULATION

    def __post_init__(self) -> None:
        check_count("population", self.population, 2)
        check_count("trainings", self.trainings, 1)

    @property
    def max_parallel(self) -> int:
        """Return the population: a generation may train together."""
        return self.population

    def scheduler(self, problem: Problem) -> FullTraining:
        """Return the scheduler of these settings."""
        return FullTraining(
            problem,
            nsga2.NSGA2Proposal(population=self.population),
            self.population,
            self.population,
            self.trainings,
        )


_ALL: tuple[type[Any], ...] = (
    *(MOPBT, RandomSearch, PBT, RandomScalarizationPBT, MaxScalarizationPBT),
    *(MOASHA, BOMOASHA, QNEHVI, ParEGO, NSGA2),
)
ALGORITHMS: dict[str, type[Any]] = {kind.name: kind for kind in _ALL}


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm's name and settings as plain values; those that are None are left out."""
    options = asdict(algorithm)  # type: ignore[call-overload]
    return {
        "name": algorithm.name,
        **{key: value for key, value in options.items() if value is not None},
    }


def options_with_defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the options of an algorithm's class with their defaults."""
    return {f.name: f.default for f in fields(kind)}


def algorithm_of(options: dict[str, Any]) -> Algorithm:
    """Return the algorithm of a name and settings; wrong ones are errors that list the right ones."""
    name = options.get("name")
    if name not in ALGORITHMS:
        raise ValueError(
            f"`algorithm` must be one of {', '.join(ALGORITHMS)}, got {name!r}{did_you_mean(name, ALGORITHMS)}"
        )
    kind = ALGORITHMS[name]
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(options) - known - {"name"})
    if unknown:
        near = did_you_mean(unknown[0], known)
        raise ValueError(
            f"{name} has no option {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}{near}"
        )
    made: Algorithm = kind(**{key: value for key, value in options.items() if key != "name"})
    return made


def named(name: str, suited: int | None, /, **options: Any) -> Algorithm:
    """Return an algorithm by its name, with the population that suits the task where it would have the paper's."""
    kind = ALGORITHMS.get(name)
    if (
        suited is not None
        and kind is not None
        and options_with_defaults(kind).get("population") == POPULATION
    ):
        options = {"population": suited} | options
    return algorithm_of({"name": name, **options})


def check_count(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless this is a whole number that is large enough."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        remedy = (
            f"; int({name}) is one"
            if isinstance(value, Integral) and not isinstance(value, int)
            else ""
        )  # numpy's
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}, got {value!r}{remedy}"
        )


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless a value is one of those allowed."""
    if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
        near = did_you_mean(value, allowed)
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, allowed))}, got {value!r}{near}"
        )


def check_order(within: Any, scale: Any) -> None:
    """Raise ValueError unless this is an order within a front."""
    check_choice("within", within, get_args(Within))
    check_choice("scale", scale, (True, False))
    by_domination(within=within, scale=scale)


def _first(problem: Problem, trainings: int | None) -> int:
    """Return the size of the first design of Bayesian optimization: 2 (d + 1) points."""
    size = 2 * (len(problem.space) + 1)
    return size if trainings is None else min(size, trainings)
