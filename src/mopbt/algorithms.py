"""The algorithms under the names of their papers.

An algorithm is a frozen dataclass of options. It builds the scheduler for a problem.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from mopbt.arguments import check_choice, check_count, check_share
from mopbt.explore import Explore, Local, RandomMutation
from mopbt.limits import POPULATION as LARGEST_POPULATION
from mopbt.messages import did_you_mean
from mopbt.problem import Problem, adapt_task
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

ExploreKind = Literal["local", "random"]
Start = Literal["stratified", "iid"]

# The population size of the paper, section 6.1.
POPULATION = 32


@runtime_checkable
class Algorithm(Protocol):
    """Build a scheduler for a problem; a frozen dataclass of options.

    `name` is the name on the command line, and `section` the section of the paper.
    """

    name: ClassVar[str]
    section: ClassVar[str]

    @property
    def max_parallel(self) -> int:
        """Return how many jobs can run at once, which is the useful size of an engine."""

    def scheduler(self, problem: Problem) -> Scheduler:
        """Build the scheduler."""


@runtime_checkable
class CheckedAlgorithm(Protocol):
    """An algorithm that checks what it needs, before a run starts."""

    def check(self) -> None:
        """Raise an error, such as MissingExtra, if the algorithm cannot run here."""


@runtime_checkable
class AdaptingAlgorithm(Protocol):
    """An algorithm that asks a task to train or measure in another way."""

    def adapt(self, task: Any) -> Any:
        """Return the task as it is trained, which is the same task if it cannot adapt."""


def as_trained_by(algorithm: Algorithm, task: Any) -> Any:
    """Return a task as an algorithm trains it."""
    return algorithm.adapt(task) if isinstance(algorithm, AdaptingAlgorithm) else task


@dataclass(frozen=True, kw_only=True)
class _PopulationBased(ABC):
    """Share the options of all variants of population based training.

    The variants differ in how they rank members.
    """

    population: int = POPULATION
    fraction: float = 0.25
    explore: ExploreKind = "local"
    resample: float = 0.2
    asynchronous: bool = False
    inherit_step: bool = False
    start: Start = "stratified"

    def __post_init__(self) -> None:
        check_count("population", self.population, 2, LARGEST_POPULATION)
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 0.5:
            raise ValueError(f"`fraction` must be in (0, 0.5], got {self.fraction!r}")
        check_choice("explore", self.explore, get_args(ExploreKind))
        check_choice("start", self.start, get_args(Start))
        check_choice("asynchronous", self.asynchronous, (True, False))
        check_choice("inherit_step", self.inherit_step, (True, False))
        # The constructor checks the probability.
        Local(self.resample)

    @property
    def max_parallel(self) -> int:
        """Return the population size: all members can train at once."""
        return self.population

    def scheduler(self, problem: Problem) -> Pbt:
        """Build the scheduler."""
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
    """MO-PBT: multi-objective population based training.

    Members are ranked by non-dominated sorting, then by greedy scattered subset selection.

    Args:
        population: The number of members.
        fraction: τ, the share of the population that is replaced after each interval.
        explore: `"local"` moves each hyperparameter to the vicinity of its value (Algorithm 3).
            `"random"` resamples each of the P hyperparameters with probability 1/P.
        resample: The probability with which `"local"` resamples a hyperparameter instead.
        asynchronous: Decide at each report instead of once per generation.
        inherit_step: Continue a replaced member at its donor's step if that is ahead. By default
            it takes over the weights and hyperparameters only.
        start: `"stratified"` spreads the initial configurations evenly, `"iid"` draws them
            independently.
        within: The order within a front: `"scattered"`, `"crowded"` or `"hypervolume"`.
        scale: Divide objectives by their range before computing distances.
        pessimistic: Compare members at the bounds of metrics that have an error. None, like false,
            compares what they measured, as the paper does.
        margin: Replace a member only by a donor that is nowhere worse, and somewhere better by this
            many standard errors of the difference. By default, any donor replaces it.
        interpolate: Start a replaced member between its donor and the donor's nearest relative: a
            random mean of their weights, optimizer states and hyperparameters. The task must be
            able to blend models, otherwise members copy single donors.
        candidates: After the training, evaluate so many means of neighbors on the front.
        fresh_rows: Decide by the metrics on this share of the validation rows, such as 0.5, which a
            `TorchTask` draws for each interval. Other tasks can report metrics on rows of their own
            choice, with names such as `fresh/accuracy`; without any, all rows decide.
        ema: Evaluate and keep a moving average of the weights, with this decay per update, such as
            0.98. A `TorchTask` can; other tasks train as they are.
        folds: Let a `TorchTask` measure on so many parts of the validation rows, such as 8, so that
            `margin` takes the error of a difference on the same rows. By default, the errors of two
            models count as independent.
        sparse_donors: Draw donors in proportion to their distance from the nearest other donor. By
            default, all are equally likely.
        cooling: Replace fewer members, and resample fewer hyperparameters, toward the end.
        lineage: How many of the last evaluations of a lineage are averaged for a decision.
        frequencies: Divide the members into groups that decide after each so many intervals, such
            as (1, 5): slow groups keep members that pay off later. The members of a group are
            compared with each other, and its worst one copies one of the best of all.
    """

    name: ClassVar[str] = "mo-pbt"
    section: ClassVar[str] = "section 4"

    within: Within = "scattered"
    scale: bool = False
    pessimistic: bool | None = None
    margin: float | None = None
    interpolate: bool = False
    candidates: int = 0
    fresh_rows: float | None = None
    ema: float | None = None
    folds: int | None = None
    sparse_donors: bool = False
    cooling: bool = False
    lineage: int = 1
    frequencies: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(self.within, self.scale)
        check_choice("pessimistic", self.pessimistic, (None, True, False))
        is_number = isinstance(self.margin, int | float) and not isinstance(self.margin, bool)
        if self.margin is not None and not (is_number and 0 <= self.margin < math.inf):
            raise ValueError(
                f"`margin` must be a number of standard errors of at least 0, got {self.margin!r}"
            )
        check_choice("interpolate", self.interpolate, (True, False))
        check_choice("sparse_donors", self.sparse_donors, (True, False))
        check_choice("cooling", self.cooling, (True, False))
        check_count("folds", self.folds, 2, optional=True)
        if self.folds is not None and self.margin is None:
            raise ValueError(f"`folds` needs a `margin`, such as 1, got folds={self.folds}")
        check_share("fresh_rows", self.fresh_rows)
        check_share("ema", self.ema)
        check_count("candidates", self.candidates, 0)
        check_count("lineage", self.lineage, 1)
        self._check_frequencies()

    def scheduler(self, problem: Problem) -> Pbt:
        """Build the scheduler."""
        return replace(
            super().scheduler(problem),
            pessimistic=bool(self.pessimistic),
            margin=self.margin,
            interpolate=self.interpolate,
            candidates=self.candidates,
            fresh_rows=self.fresh_rows is not None,
            sparse_donors=self.sparse_donors,
            cooling=self.cooling,
            lineage=self.lineage,
            frequencies=self.frequencies,
        )

    def adapt(self, task: Any) -> Any:
        """Return a task with the averages and fresh rows of the options, if it can."""
        return adapt_task(task, ema=self.ema, fresh_rows=self.fresh_rows, folds=self.folds)

    def _check_frequencies(self) -> None:
        frequencies = self.frequencies
        is_list = isinstance(frequencies, tuple | list) and len(frequencies) > 0
        if not is_list or not all(type(f) is int and f >= 1 for f in frequencies):
            raise ValueError(
                f"`frequencies` must be whole numbers of at least 1, such as (1, 5), got "
                f"{frequencies!r}"
            )
        if len(frequencies) > 1 and self.asynchronous:
            raise ValueError(
                "`frequencies` need decisions of the whole population, got asynchronous=True; "
                "leave out one of the two"
            )
        if 2 * len(frequencies) > self.population:
            raise ValueError(
                f"each of {len(frequencies)} `frequencies` needs two members, got a population of "
                f"{self.population}"
            )
        # A list from a file; frozen values need a tuple.
        object.__setattr__(self, "frequencies", tuple(frequencies))

    def rank(self, problem: Problem) -> Rank:
        """Rank by domination."""
        return by_domination(within=self.within, scale=self.scale)


@dataclass(frozen=True, kw_only=True)
class PBT(_PopulationBased):
    """PBT: population based training on a single objective.

    See `MOPBT` for the other options.

    Args:
        objective: The name of the objective, or its number, counted from 0.
    """

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
        """Rank by the objective."""
        names = [objective.name for objective in problem.objectives]
        if self.objective in names:
            return by_objective(names.index(str(self.objective)))
        if isinstance(self.objective, int) and 0 <= self.objective < len(names):
            return by_objective(self.objective)
        raise ValueError(
            f"`objective` must be one of {', '.join(map(repr, names))} "
            f"or a number from 0 to {len(names) - 1}, "
            f"got {self.objective!r}{did_you_mean(self.objective, names)}"
        )


@dataclass(frozen=True, kw_only=True)
class RandomScalarizationPBT(_PopulationBased):
    """PBT on a random scalarization (ParEGO), with new weights for every ranking.

    See `MOPBT` for the other options.

    Args:
        per_member: Draw weights for each member, as in the authors' code.
    """

    name: ClassVar[str] = "pbt-random-scalarization"
    section: ClassVar[str] = "section 6.3.2"

    per_member: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("per_member", self.per_member, (True, False))

    def rank(self, problem: Problem) -> Rank:
        """Rank by random scalarization."""
        return by_random_scalarization(
            per_member=self.per_member, minimized=_minimized_columns(problem)
        )


@dataclass(frozen=True, kw_only=True)
class MaxScalarizationPBT(_PopulationBased):
    """PBT on the maximum of many random scalarizations (Golovin).

    See `MOPBT` for the other options.

    Args:
        vectors: The number of weight vectors, |W|.
        authors_variant: Follow the authors' code where it differs from the paper.
    """

    name: ClassVar[str] = "pbt-max-scalarization"
    section: ClassVar[str] = "section 6.3.2"

    vectors: int = VECTORS
    authors_variant: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("authors_variant", self.authors_variant, (True, False))
        # The constructor checks the number of vectors.
        by_max_scalarization(vectors=self.vectors)

    def rank(self, problem: Problem) -> Rank:
        """Rank by maximum scalarization."""
        return by_max_scalarization(
            vectors=self.vectors,
            authors_variant=self.authors_variant,
            minimized=_minimized_columns(problem),
        )


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Random search: train a population of random configurations to the end.

    Args:
        population: The number of configurations.
        start: `"stratified"` spreads the configurations evenly, `"iid"` draws them independently.
        ema: Evaluate and keep a moving average of the weights, as `MOPBT` does.
    """

    name: ClassVar[str] = "random-search"
    section: ClassVar[str] = "section 6.3.1"

    population: int = POPULATION
    start: Start = "stratified"
    ema: float | None = None

    def __post_init__(self) -> None:
        check_count("population", self.population, 2, LARGEST_POPULATION)
        check_choice("start", self.start, get_args(Start))
        check_share("ema", self.ema)

    def adapt(self, task: Any) -> Any:
        """Return a task with the averages that the options ask for, if it can."""
        return adapt_task(task, ema=self.ema)

    @property
    def max_parallel(self) -> int:
        """Return the population size: all configurations can train at once."""
        return self.population

    def scheduler(self, problem: Problem) -> FullTraining:
        """Build the scheduler."""
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
    """MO-ASHA: multi-objective asynchronous successive halving.

    Many trials start, and by default one of three continues at each rung.

    Args:
        eta: One of `eta` trials continues at each rung.
        grace: The number of intervals before the first rung.
        kind: `"stopping"` stops trials at a rung, as the authors' code does. `"promotion"` pauses
            them there, as ASHA does.
        within: The order within a front: `"scattered"`, `"crowded"` or `"hypervolume"`.
        scale: Divide objectives by their range before computing distances.
        trials: How many trials to start. By default the budget ends the run.
    """

    name: ClassVar[str] = "mo-asha"
    section: ClassVar[str] = "section 6.3.3"

    eta: int = ETA
    grace: int = 1
    kind: AshaKind = "stopping"
    within: Within = "scattered"
    scale: bool = False
    trials: int | None = None

    def __post_init__(self) -> None:
        check_count("eta", self.eta, 2)
        check_count("grace", self.grace, 1)
        check_choice("kind", self.kind, get_args(AshaKind))
        _check_order(self.within, self.scale)
        if self.trials is not None:
            check_count("trials", self.trials, 1)

    @property
    def max_parallel(self) -> int:
        """Return the number of trials, at most the paper's population size.

        There is no natural limit, because new trials can always start.
        """
        return POPULATION if self.trials is None else min(self.trials, POPULATION)

    def scheduler(self, problem: Problem) -> Asha:
        """Build the scheduler."""
        return self._build_scheduler(problem, Uniform(), None)

    def _build_scheduler(self, problem: Problem, propose: Propose, min_results: int | None) -> Asha:
        return Asha(
            problem,
            by_domination(within=self.within, scale=self.scale),
            propose,
            kind=self.kind,
            eta=self.eta,
            grace=min(self.grace, problem.steps // problem.interval),
            trials=self.trials,
            min_results=min_results,
        )


@dataclass(frozen=True, kw_only=True)
class BOMOASHA(MOASHA):
    """BO-MO-ASHA: MO-ASHA with configurations from a Parzen estimator (TPE).

    The estimator learns from the results at the rungs. See `MOASHA` for the other options.

    Args:
        gamma: The share of the results that counts as good.
        candidates: The number of candidates per hyperparameter.
        random: The probability of a random configuration.
        ordered: Let the estimator use the order of grids and ordinals. The paper's does not.
    """

    name: ClassVar[str] = "bo-mo-asha"

    gamma: float = 0.10
    candidates: int = 24
    random: float = 1 / 6
    ordered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Its constructor checks the options.
        self._build_tpe()

    def scheduler(self, problem: Problem) -> Asha:
        """Build the scheduler."""
        return self._build_scheduler(problem, self._build_tpe(), 2 * len(problem.space) + 2)

    def _build_tpe(self) -> Tpe:
        return Tpe(
            gamma=self.gamma,
            candidates=self.candidates,
            random=self.random,
            ordered=self.ordered,
        )


@dataclass(frozen=True, kw_only=True)
class QNEHVI:
    """qNEHVI: Bayesian optimization by noisy expected hypervolume improvement.

    Configurations are proposed in batches with BoTorch and trained to the end.

    Args:
        batch: The number of configurations per batch. 8 is the value of the authors' code; the
            paper states 16 for tabular data and 12 for images.
        trainings: The total number of trainings. By default the budget ends the run.
        asynchronous: Propose as soon as a slot is free, given the pending configurations.
    """

    name: ClassVar[str] = "qnehvi"
    section: ClassVar[str] = "appendix D"

    batch: int = 8
    trainings: int | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        check_count("batch", self.batch, 1)
        check_choice("asynchronous", self.asynchronous, (True, False))
        if self.trainings is not None:
            check_count("trainings", self.trainings, 1)

    @property
    def max_parallel(self) -> int:
        """Return the batch size."""
        return self.batch

    def check(self) -> None:
        """Raise MissingExtra if BoTorch is not installed."""
        botorch.check_installed()

    def scheduler(self, problem: Problem) -> FullTraining:
        """Build the scheduler."""
        return FullTraining(
            problem,
            botorch.QNEHVIProposal(),
            first=_initial_design_size(problem, self.trainings),
            batch=self.batch,
            trainings=self.trainings,
            asynchronous=self.asynchronous,
        )


@dataclass(frozen=True, kw_only=True)
class ParEGO:
    """ParEGO: Bayesian optimization of randomly weighted scores.

    Configurations are proposed one at a time with BoTorch and trained to the end.

    Args:
        trainings: The total number of trainings.
    """

    name: ClassVar[str] = "parego"
    section: ClassVar[str] = "appendix E"

    trainings: int = POPULATION

    def __post_init__(self) -> None:
        check_count("trainings", self.trainings, 1)

    @property
    def max_parallel(self) -> int:
        """Return 1: only the initial trainings can run at once."""
        return 1

    def check(self) -> None:
        """Raise MissingExtra if BoTorch is not installed."""
        botorch.check_installed()

    def scheduler(self, problem: Problem) -> FullTraining:
        """Build the scheduler."""
        return FullTraining(
            problem,
            botorch.ParEGOProposal(),
            first=_initial_design_size(problem, self.trainings),
            batch=1,
            trainings=self.trainings,
        )


@dataclass(frozen=True, kw_only=True)
class NSGA2:
    """NSGA-II: evolve configurations by selection, crossover and mutation.

    All configurations are trained to the end.

    Args:
        population: The size of a generation.
        trainings: The total number of trainings.
        index: The distribution index of the mutation. A larger one makes smaller moves: 20 is
            better for thousands of trainings.
    """

    name: ClassVar[str] = "nsga2"
    section: ClassVar[str] = "appendix E"

    population: int = 8
    trainings: int = POPULATION
    index: float = nsga2.INDEX

    def __post_init__(self) -> None:
        check_count("population", self.population, 2, LARGEST_POPULATION)
        check_count("trainings", self.trainings, 1)
        # Its constructor checks the index.
        self._build_proposal()

    @property
    def max_parallel(self) -> int:
        """Return the population size: a generation can train at once."""
        return self.population

    def scheduler(self, problem: Problem) -> FullTraining:
        """Build the scheduler."""
        return FullTraining(
            problem,
            self._build_proposal(),
            first=self.population,
            batch=self.population,
            trainings=self.trainings,
        )

    def _build_proposal(self) -> nsga2.NSGA2Proposal:
        return nsga2.NSGA2Proposal(population=self.population, index=self.index)


_ALL: tuple[type[Any], ...] = (
    *(MOPBT, RandomSearch, PBT, RandomScalarizationPBT, MaxScalarizationPBT),
    *(MOASHA, BOMOASHA, QNEHVI, ParEGO, NSGA2),
)
ALGORITHMS: dict[str, type[Any]] = {kind.name: kind for kind in _ALL}


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return the name and the options of an algorithm, without those that are None."""
    return {"name": algorithm.name, **_as_recorded(asdict(algorithm))}  # type: ignore[call-overload]


def default_options(name: str) -> dict[str, Any]:
    """Return the options that an algorithm has by default, as a run records them.

    An unknown algorithm has none.
    """
    kind = ALGORITHMS.get(name)
    if kind is None:
        return {}
    defaults = options_with_defaults(kind)
    return _as_recorded({key: value for key, value in defaults.items() if value is not MISSING})


def _as_recorded(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as a file holds them, without those that are None."""
    given = {key: value for key, value in options.items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}


def options_with_defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the options of an algorithm class with their defaults."""
    return {f.name: f.default for f in fields(kind)}


def algorithm_of(options: dict[str, Any]) -> Algorithm:
    """Build an algorithm from its name and options, or raise ValueError."""
    name = options.get("name")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ValueError(
            f"`algorithm` must be one of {', '.join(ALGORITHMS)}, "
            f"got {name!r}{did_you_mean(name, ALGORITHMS)}"
        )
    kind = ALGORITHMS[name]
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(options) - known - {"name"})
    if unknown:
        raise ValueError(
            f"{name} has no option {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(sorted(known))}{did_you_mean(unknown[0], known)}"
        )
    algorithm: Algorithm = kind(**{key: value for key, value in options.items() if key != "name"})
    return algorithm


def algorithm_by_name(name: str, task_population: int | None, /, **options: Any) -> Algorithm:
    """Build an algorithm from its name, with a population size that suits the task.

    `task_population` replaces the default of algorithms that would use the paper's population size.
    """
    if task_population is not None and name in ALGORITHMS:
        defaults = options_with_defaults(ALGORITHMS[name])
        if defaults.get("population") == POPULATION:
            options = {"population": task_population} | options
    return algorithm_of({"name": name, **options})


def _check_order(within: Any, scale: Any) -> None:
    check_choice("within", within, get_args(Within))
    check_choice("scale", scale, (True, False))
    # The constructor checks that the two are compatible.
    by_domination(within=within, scale=scale)


def _minimized_columns(problem: Problem) -> tuple[int, ...]:
    directions = [objective.direction for objective in problem.objectives]
    return tuple(k for k, direction in enumerate(directions) if direction == "min")


def _initial_design_size(problem: Problem, trainings: int | None) -> int:
    """Return 2 (d + 1), the size of the initial design of Bayesian optimization."""
    size = 2 * (len(problem.space) + 1)
    return size if trainings is None else min(size, trainings)
