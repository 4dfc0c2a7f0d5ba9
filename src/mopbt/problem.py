"""The `Task` protocol, optional parts of a task, and the `Problem` it poses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Protocol, TypeVar, runtime_checkable

from mopbt.arguments import check_count
from mopbt.errors import UnknownHyperparameter, UnreadHyperparameter
from mopbt.messages import did_you_mean
from mopbt.objectives import (
    Constraint,
    Direction,
    Objective,
    parse_constraints,
    parse_objectives,
    signed_reference,
)
from mopbt.space import Config, Domain, Space

Model = TypeVar("Model")


class Task(Protocol[Model]):
    """Anything that trains step by step.

    A task may also have a `name`, `constraints`, a `reference` for the hypervolume, and a
    `population` that suits it.

    `train` trains a model from step `begin` to step `end` and returns it, or None if it trained the
    model in place. All randomness must come from `seed`, so that an interval can be repeated with
    the same outcome; the global generators of `random`, numpy and PyTorch are seeded with it too.
    `dump` must return everything that further training needs.
    """

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the domains of the tuned hyperparameters, by name."""

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the objectives with directions: ``{"accuracy": "max", "dsp": "min"}``."""

    @property
    def interval(self) -> int:
        """Return the number of steps between two decisions."""

    @property
    def steps(self) -> int:
        """Return the number of steps of a full training."""

    def init(self, seed: int) -> Model:
        """Return a fresh model."""

    def train(
        self, model: Model, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Model | None:
        """Train a model with these hyperparameters; each must be read."""

    def evaluate(self, model: Model) -> Mapping[str, float]:
        """Return the metrics of a model: at least the objectives and those of constraints."""

    def dump(self, model: Model) -> bytes:
        """Return the complete state of a model as bytes.

        The same state gives the same bytes.
        """

    def load(self, data: bytes) -> Model:
        """Return the model that `dump` serialized."""


# What a task may offer in addition. A task declares an ability by having its members.


@runtime_checkable
class NamedTask(Protocol):
    """A task with a name of its own; other tasks are named after their class."""

    @property
    def name(self) -> str:
        """Return the name of the task."""


@runtime_checkable
class ConstrainedTask(Protocol):
    """A task whose models must satisfy constraints."""

    @property
    def constraints(self) -> Sequence[str | Constraint]:
        """Return the constraints on metrics, such as ``["accuracy >= 0.7"]``."""


@runtime_checkable
class ReferencedTask(Protocol):
    """A task with a fixed reference point of the hypervolume."""

    @property
    def reference(self) -> Mapping[str, float] | None:
        """Return the reference point by objective, in their original direction."""


@runtime_checkable
class PopulationTask(Protocol):
    """A task that suggests the size of its population."""

    @property
    def population(self) -> int | None:
        """Return the size of the population, or None for the algorithm's default."""


@runtime_checkable
class Trainable(Protocol):
    """An object that trains models.

    What lacks `train` but can be called is a function.
    """

    def train(self, *arguments: Any) -> Any:
        """Train a model."""


@runtime_checkable
class RowsTask(Protocol):
    """A task that evaluates models on rows that do not guide the search.

    Test data are an example.

    At the end of a run, the models on its front are evaluated on all of these rows. The results go
    to `evaluations.jsonl`; no algorithm sees them.
    """

    @property
    def rows(self) -> Sequence[str]:
        """Return the names of these rows, such as ``("test",)``.

        "validation" is not among them.
        """

    def evaluate_rows(
        self, model: Any, hp: Mapping[str, Any], step: int, rows: str, seed: int
    ) -> Mapping[str, Any]:
        """Return the metrics of a model on named rows, and leave the model unchanged.

        `hp` are the hyperparameters of the model's last interval, which ended at `step`. All
        randomness must come from `seed`, as in `train`.
        """


@runtime_checkable
class StreamingTask(Protocol):
    """A task that writes and reads checkpoints in parts.

    This suits models that fill the memory.

    The bytes are those of `dump` and `load`. An engine streams them where the storage can.
    """

    def dump_to(self, model: Any, file: IO[bytes]) -> None:
        """Write the complete state of a model to a file.

        The file can only be written at its end.
        """

    def load_from(self, file: IO[bytes]) -> Any:
        """Return the model that `dump_to` wrote.

        It belongs to the caller alone and is trained at most once, so `train` may take its memory.
        """


@runtime_checkable
class ReducibleTask(Protocol):
    """A task whose checkpoints are made by `mopbt.dumps` and hold more than a model.

    A model that only the front needs is then stored without the rest.
    """

    def without_training_state(self, tree: Any) -> Any:
        """Return the tree of a checkpoint without what only further training needs.

        Each array and tensor is a placeholder, which the result may contain or not. `load` and
        `evaluate_rows` must accept the result.
        """


@runtime_checkable
class StackableTask(Protocol):
    """A task that trains and evaluates several models as one program.

    The `VectorizedEngine`, and the `RayEngine` with a `stack` above 1, need it.
    """

    def train_many(
        self,
        models: Sequence[Any],
        hp: Sequence[Mapping[str, Any]],
        begins: Sequence[int],
        seeds: Sequence[int],
    ) -> Sequence[Any]:
        """Train models for one interval and return them; each hyperparameter must be read."""

    def evaluate_many(self, models: Sequence[Any]) -> Sequence[Mapping[str, float]]:
        """Return the metrics of each model."""


@runtime_checkable
class CheckedTask(Protocol):
    """A task that checks itself before a run starts."""

    def check(self) -> None:
        """Raise an error that says what is wrong with the task and how to fix it."""


@runtime_checkable
class StackCheckedTask(Protocol):
    """A task that checks, before a run starts, whether its models can be stacked."""

    def check_stack(self) -> None:
        """Raise CannotStack, with the reason, if models cannot be trained as a stack."""


class StackProbe(Protocol):
    """What a probe measures: whether a stack is faster than a loop, and correct."""

    @property
    def loop(self) -> float:
        """Return the seconds per update of one member, trained alone."""

    @property
    def stack(self) -> float:
        """Return the seconds per update of one member, trained in a stack."""

    @property
    def disagreement(self) -> float:
        """Return the relative difference of stacked gradients from single ones.

        It is relative to the largest gradient.
        """

    @property
    def bytes_per_member(self) -> int:
        """Return the memory that each member of a stack takes."""


@runtime_checkable
class ProbedTask(Protocol):
    """A task that measures whether stacks pay, so that the engine "auto" can choose."""

    def probe(self, members: int) -> StackProbe:
        """Train a few updates of up to `members` members, alone and as a stack."""


class UpdateCost(Protocol):
    """What an update of a member that trains alone takes."""

    @property
    def seconds(self) -> float:
        """Return the seconds of an update."""

    @property
    def bytes(self) -> int:
        """Return the memory that the member takes on its device."""


@runtime_checkable
class MeasuredTask(Protocol):
    """A task that measures its updates, so that the engine "auto" can share a device."""

    def measure_update(self) -> UpdateCost:
        """Train a few updates of one member alone."""


class IntervalCost(Protocol):
    """What an interval of a member alone takes, extrapolated from a part of it."""

    @property
    def updates(self) -> int:
        """Return the number of updates of an interval."""

    @property
    def update(self) -> float:
        """Return the seconds of an update."""

    @property
    def evaluation(self) -> float:
        """Return the seconds of an evaluation."""

    @property
    def flops(self) -> float:
        """Return the floating point operations of an interval, 0 if unknown.

        They include its evaluation.
        """

    @property
    def bytes(self) -> int:
        """Return the memory that the member and the data take."""

    @property
    def checkpoint(self) -> int:
        """Return the size of a checkpoint in bytes."""

    @property
    def saving(self) -> float:
        """Return the seconds in which a checkpoint is made and read again."""

    @property
    def other_rows(self) -> float:
        """Return the seconds of an evaluation on all rows besides those of validation."""

    @property
    def model(self) -> int:
        """Return the size of a checkpoint without what only training needs, in bytes."""


@runtime_checkable
class PlannedTask(Protocol):
    """A task that measures a part of an interval.

    A plan then need not train all of it.
    """

    def measure_interval(self) -> IntervalCost:
        """Train a few updates of one member and evaluate it on few rows."""


@runtime_checkable
class PlacedTask(Protocol):
    """A task that says where it computes.

    `device` is "auto" for the device that the engine assigns, or a name such as "cuda" or "cpu".
    """

    @property
    def device(self) -> str:
        """Return where the task computes."""


@runtime_checkable
class PreciseTask(Protocol):
    """A task that trains in a precision which can be chosen, such as "fp32" or "bf16"."""

    @property
    def precision(self) -> str:
        """Return the precision of training."""

    def with_precision(self, precision: str) -> Any:
        """Return the same task in another precision.

        Raises ValueError if there is no such precision.
        """


class CompilationChoice(Protocol):
    """Whether a run compiles its training, and why."""

    @property
    def compiled(self) -> bool:
        """Return whether training is compiled."""

    @property
    def why(self) -> str:
        """Return the reason."""


@runtime_checkable
class CompilingTask(Protocol):
    """A task that can compile its training.

    `compile` is True, False, or "auto" to have a run choose what is faster.
    """

    @property
    def compile(self) -> Any:
        """Return whether training is compiled."""

    def with_compile(self, compile: Any) -> Any:
        """Return the same task, compiled or not."""

    def choose_compilation(
        self, members: int, intervals: float, seconds: float
    ) -> CompilationChoice:
        """Choose for workers that train so many intervals, for at most so many seconds.

        Each interval is one of a stack of `members` members, or of a single one.
        """


@runtime_checkable
class FunctionBasedTask(Protocol):
    """A task that calls a training function.

    Engines learn from it what the task may compute on.
    """

    @property
    def function(self) -> Callable[[Any], None]:
        """Return the training function."""


@runtime_checkable
class FunctionalTask(Protocol):
    """A task that says whether training leaves its argument unchanged.

    If `functional` is true, several jobs can start from the same model in memory.
    """

    @property
    def functional(self) -> bool:
        """Return whether `train` returns a new model and leaves its argument unchanged."""


@runtime_checkable
class BlendableTask(Protocol):
    """A task whose models can be averaged.

    A member may then start between two others.
    """

    def blend(
        self, models: Sequence[Any], weights: Sequence[float], hp: Mapping[str, Any], seed: int
    ) -> Any:
        """Return a new model whose state is the weighted mean of those of models.

        The weights sum to 1. The models are relatives: their weights have a common ancestor.
        """


@runtime_checkable
class AdaptableTask(Protocol):
    """A task that trains or measures in another way if an algorithm asks for it.

    `ema` asks for a moving average of the weights with this decay, which is evaluated and kept,
    `fresh_rows` for metrics on a share of the validation rows that is drawn for each interval, and
    `folds` for metrics on so many parts of these rows. A task ignores what it cannot do, and what
    it was given explicitly stays as it is.
    """

    def adapted(
        self,
        *,
        ema: float | None = None,
        fresh_rows: float | None = None,
        folds: int | None = None,
    ) -> Any:
        """Return the task as the algorithm asks for it."""


@dataclass(frozen=True)
class Problem:
    """What an algorithm knows of a task.

    `reference` is the reference point of the hypervolume, larger is better. None derives it from
    the first interval of each trial and the front. `initial` holds the configurations with which
    the first trials start; the algorithm proposes all others. `blendable` says whether models can
    be averaged.
    """

    name: str
    space: Space
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    interval: int
    steps: int
    reference: tuple[float, ...] | None = None
    initial: tuple[Config, ...] = ()
    blendable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"the `name` of a task must be a non-empty string, got {self.name!r}")
        check_count("interval", self.interval, 1)
        check_count("steps", self.steps, 1)
        if self.steps % self.interval:
            nearest = self.steps // self.interval * self.interval or self.interval
            raise ValueError(
                f"`steps` must be a multiple of `interval` ({self.interval}), got {self.steps}; "
                f"use {nearest}, for example"
            )


def is_training_function(subject: Any) -> bool:
    """Return whether an object is a training function, and not a task or a class."""
    return callable(subject) and not isinstance(subject, type | Trainable)


def adapt_task(task: Any, **options: Any) -> Any:
    """Return a task with the given options of `AdaptableTask`, if it can adapt."""
    given = {name: value for name, value in options.items() if value is not None}
    return task.adapted(**given) if given and isinstance(task, AdaptableTask) else task


def suggested_population(task: Any) -> int | None:
    """Return the size of the population that a task suggests, or None."""
    return task.population if isinstance(task, PopulationTask) else None


def with_precision(task: Any, precision: str | None) -> Any:
    """Return a task in a precision, or as it is without one."""
    if precision is None:
        return task
    if not isinstance(task, PreciseTask):
        raise ValueError(
            f"`precision` is for tasks that let it be chosen, such as a TorchTask, got "
            f"{precision!r} for {problem_of(task).name!r}; leave it out"
        )
    return task if task.precision == precision else task.with_precision(precision)


def with_compile(task: Any, compile: str | None) -> Any:
    """Return a task that is compiled as an option says, or as it is for None."""
    if compile is None:
        return task
    values: dict[str, bool | str] = {"auto": "auto", "true": True, "false": False}
    if compile not in values:
        raise ValueError(f"`compile` must be auto, true or false, got {compile!r}")
    if not isinstance(task, CompilingTask):
        raise ValueError(
            f"`compile` is for tasks that can be compiled, such as a TorchTask, got {compile!r} "
            f"for {problem_of(task).name!r}; leave it out"
        )
    return task.with_compile(values[compile])


def rows_of(task: Any) -> tuple[str, ...]:
    """Return the names of the rows besides "validation" of a task."""
    if not isinstance(task, RowsTask):
        return ()
    rows = task.rows
    is_list = isinstance(rows, Sequence) and not isinstance(rows, str)
    names = tuple(rows) if is_list else ()
    is_valid = all(isinstance(name, str) and name for name in names) and "validation" not in names
    if not is_list or not is_valid or len(set(names)) < len(names):
        raise ValueError(
            "the `rows` of a task must be different names other than 'validation', such as "
            f"('test',), got {rows!r}"
        )
    return names


def with_initial(problem: Problem, initial: Any) -> Problem:
    """Return a problem whose first trials start with given hyperparameters.

    `initial` is a sequence of mappings from the names of all hyperparameters to their values.
    """
    if isinstance(initial, str | Mapping) or not isinstance(initial, Sequence):
        raise TypeError(
            "`initial` must be a list of hyperparameters by name, such as "
            f"[{{{', '.join(f'{name!r}: ...' for name in problem.space)}}}], got {initial!r}"
        )
    configs = []
    for number, hp in enumerate(initial):
        if not isinstance(hp, Mapping):
            raise TypeError(f"`initial[{number}]` must map names to values, got {hp!r}")
        try:
            configs.append(problem.space.encode(hp))
        except ValueError as error:
            raise ValueError(f"`initial[{number}]`: {error}") from None
    return replace(problem, initial=tuple(configs))


def with_constraints(problem: Problem, constraints: Sequence[str | Constraint]) -> Problem:
    """Return a problem with further constraints than those of its task."""
    new = [c for c in parse_constraints(constraints) if c not in problem.constraints]
    return replace(problem, constraints=(*problem.constraints, *dict.fromkeys(new)))


def problem_of(task: Any) -> Problem:
    """Check that an object is a task, and return its problem."""
    if isinstance(task, type):
        raise TypeError(
            f"the task must be an object, got the class {task.__name__}; pass {task.__name__}()"
        )
    if isinstance(task, str):
        raise TypeError(
            f"the task must be an object or a training function, got the string {task!r}; "
            f"mopbt.registry.find_task({task!r})[0] returns the task that `mopbt run` knows by "
            "this name"
        )
    # Not `isinstance(task, Task)`: the error names what is missing.
    for method in ("init", "train", "evaluate", "dump", "load"):
        if not callable(getattr(task, method, None)):
            raise TypeError(
                f"{type(task).__name__} object is not a task: it has no method `{method}`; see "
                "docs/how-to/task-object.md"
            )
    for attribute in ("space", "objectives", "interval", "steps"):
        if not hasattr(task, attribute):
            raise TypeError(
                f"{type(task).__name__} object is not a task: it has no attribute `{attribute}`; "
                "see docs/how-to/task-object.md"
            )
    return make_problem(
        name=task.name if isinstance(task, NamedTask) else type(task).__name__,
        space=task.space,
        objectives=task.objectives,
        constraints=task.constraints if isinstance(task, ConstrainedTask) else (),
        interval=task.interval,
        steps=task.steps,
        reference=task.reference if isinstance(task, ReferencedTask) else None,
        blendable=isinstance(task, BlendableTask),
    )


def make_problem(
    *,
    name: str,
    space: Mapping[str, Domain],
    objectives: Mapping[str, Direction] | Sequence[Objective],
    constraints: Sequence[str | Constraint],
    interval: int,
    steps: int,
    reference: Mapping[str, float] | None = None,
    blendable: bool = False,
) -> Problem:
    """Parse and check the description of a problem."""
    parsed = parse_objectives(objectives)
    return Problem(
        name=name,
        space=space if isinstance(space, Space) else Space(space),
        objectives=parsed,
        constraints=parse_constraints(constraints),
        interval=interval,
        steps=steps,
        reference=None if reference is None else signed_reference(parsed, reference),
        blendable=blendable,
    )


class Hyperparameters(Mapping[str, Any]):
    """Hyperparameters of a job, which remember which of them were read."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        self._values = dict(hp)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise UnknownHyperparameter(
                f"training reads the unknown hyperparameter {name!r}; the space has "
                f"{', '.join(map(repr, self._values))}: add it there, or correct the name"
                f"{did_you_mean(name, self._values)}"
            )
        self._read.add(name)
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        # Python itself looks for these, perhaps before `__init__` was called.
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"read hyperparameters by key, as in hp[{name!r}], not .{name}; there are "
            f"{', '.join(self._values)}"
        )

    def __contains__(self, name: object) -> bool:
        # A test for membership does not count as reading.
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Hyperparameters({self._values!r})"

    @property
    def plain(self) -> Mapping[str, Any]:
        """Return all values, without counting them as read."""
        return self._values

    @property
    def read(self) -> frozenset[str]:
        """Return the names of hyperparameters that were read."""
        return frozenset(self._read)

    def check_read(self) -> None:
        """Raise UnreadHyperparameter if training did not read all of them."""
        unread = [name for name in self._values if name not in self._read]
        if unread:
            raise UnreadHyperparameter(
                f"training never read {', '.join(map(repr, unread))}: tuning it would change "
                "nothing; use it in training, or remove it from the space (if a value matters only "
                "sometimes, read it before the `if`)"
            )
