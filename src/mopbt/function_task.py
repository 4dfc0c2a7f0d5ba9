"""Tasks from a training function, for code that already has its own training loop.

The function is called once per interval. It builds its objects and passes them to `track`, which
restores them from the checkpoint of the last interval (after an exploit: the donor's). It then
loops over `steps` and reports its metrics.
"""

import copy
import importlib
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mopbt.device import assigned_device
from mopbt.errors import TaskError, UnreadHyperparameter
from mopbt.estimate import as_estimate
from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Direction, unsigned
from mopbt.problem import (
    Hyperparameters,
    Problem,
    Task,
    is_training_function,
    problem_of,
    rows_of,
)
from mopbt.serialization import dumps, loads
from mopbt.space import Domain

# The entry of a checkpoint that records how tracked objects were built. The dot keeps it apart from
# their names, which are keywords of `track`.
_BUILT = "mopbt.built"

# The rows whose metrics guide the search.
VALIDATION = "validation"

# Objects that members of this process have tracked, by id.
_SEEN: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


# What a tracked object may be. The objects of PyTorch fulfill these protocols.


@runtime_checkable
class Stateful(Protocol):
    """An object that `track` can save and restore."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state by name."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore the state that `state_dict` returned."""


@runtime_checkable
class Optimizer(Protocol):
    """An object with settings per group of parameters, such as an optimizer of PyTorch."""

    param_groups: list[dict[str, Any]]


@runtime_checkable
class LrScheduler(Protocol):
    """A learning rate scheduler with a base rate per group of parameters."""

    base_lrs: list[Any]


@runtime_checkable
class CompositeScheduler(Protocol):
    """A learning rate scheduler that consists of others, such as PyTorch's `SequentialLR`."""

    _schedulers: Sequence[Any]


@runtime_checkable
class Shaped(Protocol):
    """An array or a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Return the size in each dimension."""


class Member:
    """A member of the population, as its training function sees it in an interval."""

    def __init__(
        self,
        hp: Mapping[str, Any],
        begin: int,
        end: int,
        seed: int,
        restored: Mapping[str, Any] | None,
        rows: str = VALIDATION,
    ) -> None:
        self.hp = hp
        self.begin = begin
        self.end = end
        self.seed = seed
        self.step = begin
        self._restored = restored
        self._tracked: dict[str, Any] = {}
        self._initial: dict[str, Any] = {}
        self._built: dict[str, Any] = {}
        self._bindings: list[tuple[Any, Mapping[str, str]]] = []
        self._restored_rates: list[tuple[Any, list[Any]]] = []
        self._scores: dict[str, float] | None = None
        self._reported_at: int | None = None
        self._looped = False
        self._finished = False
        self._rows = rows
        self._read_rows = False
        # The hyperparameters that were read when the loop over the steps ended.
        self._read_in_loop: frozenset[str] | None = None
        # The frame that tracked arrays or dicts, and the names of its variables for each of them.
        self._frame: FrameType | None = None
        self._variables: dict[str, list[str]] = {}

    @property
    def rows(self) -> str:
        """The rows to measure metrics on: "validation", or one of those that the task declares.

        On others than "validation" the interval is empty, so that nothing is trained.
        """
        self._read_rows = True
        return self._rows

    @property
    def device(self) -> str:
        """Where to train, as PyTorch names it: "cuda:0" for an assigned GPU, otherwise "cpu"."""
        return assigned_device() or "cpu"

    def track(self, *unnamed: Any, **objects: Any) -> None:
        """Save objects after the interval, and restore them from the last checkpoint.

        Objects need `state_dict` and `load_state_dict`, as PyTorch models, optimizers and
        schedulers have them. Numpy arrays and dicts are tracked too, and restored in place.
        """
        if unnamed:
            raise TaskError(
                f"track takes objects by name, as in track(model=model), got "
                f"{_type_names(unnamed)} without a name"
            )
        if self._looped:
            raise TaskError(
                "track(...) was called after `steps()`, where restoring would undo the training; "
                "call it before the loop"
            )
        for name, tracked in objects.items():
            if not isinstance(tracked, Stateful | np.ndarray | dict):
                raise TaskError(
                    f"track({name}=...) takes objects with `state_dict` and `load_state_dict`, "
                    f"numpy arrays and dicts, got {type(tracked).__name__}; put plain values into "
                    f"a dict"
                )
            self._check_not_shared(name, tracked)
            self._tracked[name] = tracked
            built = hyperparameters_of(tracked)
            if any(built.values()):
                self._built[name] = built
            if self._restored is not None:
                self._restore(name, tracked)
            if isinstance(tracked, np.ndarray | dict):
                self._initial[name] = copy.deepcopy(tracked)
                self._frame = sys._getframe(1)
                variables = self._frame.f_locals.items()
                self._variables[name] = [key for key, value in variables if value is tracked]
        # Bindings apply after restoring, which would overwrite them with the donor's values.
        self._apply_bindings()

    def bind(self, optimizer: Any, **fields: str) -> None:
        """Set fields of an optimizer to hyperparameters, now and at every step.

        ``bind(opt, lr="lr")`` sets ``lr`` in all parameter groups. A bound field does not follow a
        scheduler. To schedule a tuned rate, build the optimizer with it and track the scheduler.
        """
        if not isinstance(optimizer, Optimizer):
            raise TaskError(
                f"bind takes an optimizer with `param_groups`, got {type(optimizer).__name__}; "
                f"read `hp` directly for anything else"
            )
        for field, name in fields.items():
            if name not in self.hp:
                raise TaskError(
                    f"bind({field}={name!r}): no hyperparameter {name!r}; the space has "
                    f"{', '.join(map(repr, self.hp))}: add it there, or correct the name"
                    f"{did_you_mean(name, self.hp)}"
                )
            for group in optimizer.param_groups:
                if field not in group:
                    known = ", ".join(sorted(set(group) - {"params"}))
                    raise TaskError(
                        f"bind({field}={name!r}): the optimizer has no field {field!r}; bind one "
                        f"of {known}{did_you_mean(field, group)}"
                    )
        self._bindings.append((optimizer, fields))
        self._apply_bindings()

    def advance(self) -> int:
        """Return the number of steps of this interval, for a library with its own loop.

        It replaces the loop over `steps()`: ``model.learn(1000 * m.advance())``. The number is 0
        when the function is called only to measure other rows.
        """
        self._start_loop()
        self.step = max(self.end - 1, self.begin)
        self._finished = True
        self._apply_bindings()
        return self.end - self.begin

    def _start_loop(self) -> None:
        if self._looped:
            raise TaskError(
                "the training function used `steps()` or `advance()` twice; use one of them, once "
                "per interval"
            )
        self._looped = True

    def steps(self) -> Iterator[int]:
        """Iterate over the steps of this interval, once and to the end."""
        self._start_loop()
        for step in range(self.begin, self.end):
            self.step = step
            self._apply_bindings()
            yield step
        self._finished = True
        if isinstance(self.hp, Hyperparameters):
            self._read_in_loop = self.hp.read

    def report(self, *unnamed: Any, **scores: float | tuple[float, float]) -> None:
        """Report metrics by name.

        A metric is a number, an `Estimate` with its error, or a pair of mean and standard error.
        The last report of an interval counts. It must come in the last step or after the loop.
        """
        if unnamed:
            raise TaskError(
                f"report takes metrics by name, as in report(accuracy=0.9) or report(**metrics), "
                f"got {_type_names(unnamed)}"
            )
        self._scores = {name: as_estimate(name, score) for name, score in scores.items()}
        self._reported_at = self.step

    def _check_not_shared(self, name: str, tracked: Any) -> None:
        """Raise TaskError if a new member tracks an object that another has trained."""
        is_known = id(tracked) in _SEEN
        try:
            _SEEN[id(tracked)] = tracked
        except TypeError:
            # Some types, such as dict, do not support weak references.
            return
        if self._restored is None and is_known:
            raise TaskError(
                f"track({name}=...): another member has already trained this object, so a new "
                f"member would start from its weights; build the object inside the training "
                f"function, or track a copy of it (copy.deepcopy)"
            )

    def _restore(self, name: str, tracked: Any) -> None:
        assert self._restored is not None
        if name not in self._restored:
            names = ", ".join(repr(n) for n in self._restored if n != _BUILT)
            raise TaskError(
                f"track({name}=...): the checkpoint has only {names}; track the same objects in "
                f"every interval"
            )
        state = self._restored[name]
        if isinstance(tracked, np.ndarray):
            if tracked.shape != np.shape(state):
                raise _shape_error(name, "the array", np.shape(state), tracked.shape)
            tracked[...] = state
        elif isinstance(tracked, dict):
            tracked.clear()
            tracked.update(state)
        else:
            _load_state(name, tracked, state)
            then = self._restored.get(_BUILT, {}).get(name)
            if name in self._built and then is not None:
                merge_hyperparameters(tracked, self._built[name], then)
            self._preserve_rates(tracked)

    def _preserve_rates(self, tracked: Any) -> None:
        """Undo what building a scheduler does to the rates of restored optimizers."""
        if isinstance(tracked, Optimizer):
            rates = [group.get("lr") for group in tracked.param_groups]
            self._restored_rates.append((tracked, rates))
        elif isinstance(tracked, LrScheduler | CompositeScheduler):
            for optimizer, rates in self._restored_rates:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate

    def _apply_bindings(self) -> None:
        for optimizer, fields in self._bindings:
            for group in optimizer.param_groups:
                group.update({field: self.hp[name] for field, name in fields.items()})

    @property
    def _diverged(self) -> bool:
        """Whether the last report is not finite; such a model is never ranked or copied."""
        return self._scores is not None and not all(map(_is_finite, self._scores.values()))

    def _take_snapshot(self) -> "Snapshot":
        """Check that the function kept its contract, and serialize what it tracked."""
        scores = self._check_contract()
        self._check_read_in_loop()
        self._check_not_rebound()
        self._warn_if_nothing_changed()
        state = {name: _state_of(tracked) for name, tracked in self._tracked.items()}
        if self._built:
            state[_BUILT] = self._built
        return Snapshot(dumps(state), scores)

    def _check_contract(self) -> dict[str, float]:
        """Raise TaskError unless all was looped, reported and tracked; return the metrics."""
        if not self._looped:
            raise TaskError(
                "the training function never iterated over `steps()`; loop over it once: "
                "for step in m.steps(): ... (or call `advance()` if a library has its own loop)"
            )
        if not self._finished and not self._diverged:
            raise TaskError(
                f"the training function left the loop over `steps()` at step {self.step}, but the "
                f"interval ends at {self.end}; run all steps; to abandon an interval, report NaN "
                f"or raise an exception"
            )
        if self._scores is None:
            raise TaskError(
                "the training function never called `report(...)`; call it after the last step, "
                "with each objective by name (the function's return value is ignored)"
            )
        if self._reported_at != self.end - 1 and not self._diverged:
            raise TaskError(
                f"the last report came at step {self._reported_at}, but the interval ends at "
                f"{self.end}, so its metrics would not belong to the saved model; report after "
                f"the last step"
            )
        if not self._tracked:
            raise TaskError(
                "the training function never called `track(...)`, so its training would be lost; "
                "call track(model=..., optimizer=...) before the loop"
            )
        missing = (self._restored or {}).keys() - self._tracked.keys() - {_BUILT}
        if missing:
            names = ", ".join(repr(name) for name in self._restored or () if name in missing)
            raise TaskError(
                f"the checkpoint has {names}, not tracked in this interval; track the same objects "
                f"in every interval"
            )
        return self._scores

    def _check_read_in_loop(self) -> None:
        """Raise UnreadHyperparameter for one that was first read when training was over."""
        if self._read_in_loop is None or not isinstance(self.hp, Hyperparameters):
            return
        late = [name for name in self.hp if name in self.hp.read - self._read_in_loop]
        if late and not self._diverged:
            raise UnreadHyperparameter(
                f"training read {', '.join(map(repr, late))} only after the loop over `steps()`, "
                f"where it cannot change the model; read it before or in the loop (if a library "
                f"trains by itself, call `advance()` instead of the loop)"
            )

    def _check_not_rebound(self) -> None:
        """Raise TaskError if a variable of an unchanged tracked object has another value now."""
        frame = self._frame
        self._frame = None
        for name, variables in self._variables.items():
            tracked = self._tracked[name]
            if frame is None or not _is_same(self._initial[name], tracked):
                continue
            for variable in variables:
                value = frame.f_locals.get(variable, tracked)
                if _replaces(value, tracked):
                    raise TaskError(
                        f"track({name}=...): training assigned another object to `{variable}`, so "
                        f"the tracked one was never trained; modify it in place, as in "
                        f"`{variable} -= ...` or `{variable}[...] = ...`"
                    )

    def _take_evaluation(self) -> dict[str, float]:
        """Return the metrics of a function that was called for other rows, without training."""
        if not self._read_rows:
            raise TaskError(
                f"the task declares `rows`, but its training function never reads `m.rows`, so its "
                f"metrics on {self._rows!r} would be those on 'validation'; measure them on the "
                f"rows that `m.rows` names"
            )
        missing = (self._restored or {}).keys() - self._tracked.keys() - {_BUILT}
        if missing:
            raise TaskError(
                f"the checkpoint has {', '.join(map(repr, sorted(missing)))}, not tracked when "
                f"`m.rows` is {self._rows!r}; track the same objects in every interval"
            )
        if self._scores is None:
            raise TaskError(
                f"the training function never called `report(...)` when `m.rows` was "
                f"{self._rows!r}; report after the loop over `steps()`, which is empty then"
            )
        return self._scores

    def _warn_if_nothing_changed(self) -> None:
        """Warn if only arrays and dicts are tracked and training changed none of them.

        The usual mistake is `w = w - ...`, which creates another array.
        """
        plain = all(isinstance(tracked, np.ndarray | dict) for tracked in self._tracked.values())
        if plain and dumps(self._initial) == dumps(self._tracked):
            names = ", ".join(map(repr, self._tracked))
            warnings.warn(
                f"training did not change {names}: modify them in place, as in `w -= ...`",
                stacklevel=2,
            )


@dataclass(frozen=True)
class Snapshot:
    """Hold the state of the tracked objects after an interval, and its metrics.

    The state is kept as bytes, even in memory, because the function may keep using its objects.
    Before the first interval `data` is None: the function initializes the weights.
    """

    data: bytes | None
    scores: Mapping[str, float]

    @property
    def state(self) -> dict[str, Any] | None:
        """The state of each tracked object by name, or None before the first interval."""
        return None if self.data is None else visible(loads(self.data))


def visible(state: Any) -> Any:
    """Return only the tracked state of a checkpoint, without mopbt's own entry."""
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if name != _BUILT}


TrainingFunction = Callable[[Member], None]


@dataclass(frozen=True)
class FunctionTask:
    """A task that calls a training function.

    `task` makes one with a decorator.
    """

    function: TrainingFunction
    _: KW_ONLY
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    steps: int
    interval: int = 1
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    name: str = ""
    rows: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.name:
            # A partial and an object with `__call__` have no name of their own.
            name = getattr(self.function, "__name__", type(self.function).__name__)
            object.__setattr__(self, "name", name)

    def __call__(self, member: Member) -> None:
        """Call the training function."""
        self.function(member)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the object that a decorator left in a module by its name, as for a function.

        The name of the function leads to this object, so the function cannot be sent by its name.
        """
        function = self.function
        if isinstance(function, FunctionType) and function.__module__ != "__main__":
            module = sys.modules.get(function.__module__)
            if module is not None and vars(module).get(function.__qualname__) is self:
                return find_decorated, (function.__module__, function.__qualname__)
        return super().__reduce_ex__(protocol)

    def init(self, seed: int) -> Snapshot:
        """Return an empty snapshot: the function initializes the weights, with seeds set."""
        return Snapshot(None, {})

    def train(
        self, model: Snapshot, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Snapshot:
        """Call the function for one interval."""
        restored = None if model.data is None else loads(model.data)
        member = Member(hp, begin, end, seed, restored)
        self.function(member)
        return member._take_snapshot()

    def evaluate(self, model: Snapshot) -> Mapping[str, float]:
        """Return the metrics of the last report."""
        return model.scores

    def evaluate_rows(
        self, model: Snapshot, hp: Mapping[str, Any], step: int, rows: str, seed: int
    ) -> Mapping[str, Any]:
        """Call the function with an empty interval, in which `m.rows` names the rows."""
        assert model.data is not None
        member = Member(hp, step, step, seed, loads(model.data), rows)
        self.function(member)
        return member._take_evaluation()

    def dump(self, model: Snapshot) -> bytes:
        """Return the tracked state as a safetensors file."""
        assert model.data is not None
        return model.data

    def load(self, data: bytes) -> Snapshot:
        """Wrap the bytes of `dump`; `train` restores the tracked objects from them."""
        return Snapshot(data, {})


def task(
    *,
    space: Mapping[str, Domain],
    objectives: Mapping[str, Direction],
    steps: int,
    interval: int = 1,
    constraints: Sequence[str | Constraint] = (),
    reference: Mapping[str, float] | None = None,
    name: str = "",
    rows: Sequence[str] = (),
) -> Callable[[TrainingFunction], FunctionTask]:
    """Turn a training function into a task, as a decorator.

    ``mopbt.run(train)`` and ``mopbt run file.py:train`` execute it.

    Args:
        space: Hyperparameters of the task.
        objectives: Objectives with their directions: ``{"accuracy": "max", "dsp": "min"}``.
        steps: Steps of training of each member.
        interval: Steps between two decisions.
        constraints: Constraints on metrics: ``["accuracy >= 0.7"]``.
        reference: Reference point of the hypervolume, such as ``{"accuracy": 0.5, "dsp": 1}``.
        name: Name of the task (default: the function's name).
        rows: Names of further rows, such as ``("test",)``, on which the function measures the
            models on the front at the end of a run: `m.rows` names them.
    """

    def decorate(function: TrainingFunction) -> FunctionTask:
        decorated = FunctionTask(
            function,
            space=space,
            objectives=objectives,
            steps=steps,
            interval=interval,
            constraints=constraints,
            reference=reference,
            name=name,
            rows=rows,
        )
        problem_of(decorated)
        rows_of(decorated)
        return decorated

    return decorate


def as_task(subject: Any, **description: Any) -> Task[Any]:
    """Return a task object as it is, or make one of a training function and its description."""
    given = {key: value for key, value in description.items() if value is not None}
    if not is_training_function(subject):
        if given:
            names = ", ".join(f"`{key}`" for key in given)
            raise TypeError(
                f"{names}: for training functions only, got a {type(subject).__name__} object, "
                "which has its own; leave it out, or set it there"
            )
        problem_of(subject)
        return subject  # type: ignore[no-any-return]
    missing = [key for key in ("space", "objectives", "steps") if key not in given]
    if missing:
        needed = ", ".join(f"`{key}=`" for key in missing)
        received = ", ".join(f"`{key}=`" for key in given) or "nothing"
        raise TypeError(
            f"a training function needs {needed} as well, got {received}: write "
            "run(train, space={...}, objectives={...}, steps=...), or decorate it with @mopbt.task"
        )
    return FunctionTask(subject, **given)


def described_by(problem: Problem, subject: Any) -> Task[Any]:
    """Return a task object as it is, or make one of a training function and the run's problem."""
    if not is_training_function(subject):
        return subject  # type: ignore[no-any-return]
    reference = problem.reference
    return FunctionTask(
        subject,
        name=problem.name,
        space=problem.space,
        objectives={objective.name: objective.direction for objective in problem.objectives},
        constraints=problem.constraints,
        interval=problem.interval,
        steps=problem.steps,
        reference=None if reference is None else unsigned(problem.objectives, reference),
    )


def reference_of(task: Any) -> str:
    """Return how the command line finds a decorated function; empty if it cannot.

    A function in a file is named by the file, one in a package by its module.
    """
    function = task.function if isinstance(task, FunctionTask) else None
    if not isinstance(function, FunctionType):
        return ""
    module = sys.modules.get(function.__module__)
    name = function.__qualname__
    if module is None or vars(module).get(name) is not task:
        return ""
    if "." in module.__name__:
        return f"{module.__name__}:{name}"
    file = Path(vars(module).get("__file__") or "").resolve()
    return f"{file}:{name}" if file.suffix == ".py" and file.is_file() else ""


def find_decorated(module: str, name: str) -> Any:
    """Return the task that the decorator left in a module under the name of its function."""
    return vars(importlib.import_module(module))[name]


def _is_same(one: Any, other: Any) -> bool:
    """Check whether two arrays or dicts have the same content."""
    return dumps({"content": one}) == dumps({"content": other})


def _replaces(value: Any, tracked: Any) -> bool:
    """Check whether a value looks like a tracked array or dict after more training."""
    if value is tracked or type(value) is not type(tracked):
        return False
    if isinstance(tracked, dict):
        return bool(value.keys() == tracked.keys()) and not _is_same(value, tracked)
    is_alike = value.shape == tracked.shape and not np.may_share_memory(value, tracked)
    return is_alike and not _is_same(value, tracked)


def _type_names(values: Sequence[Any]) -> str:
    return ", ".join(type(value).__name__ for value in values)


def _load_state(name: str, tracked: Any, state: Any) -> None:
    """Restore an object; raise TaskError if its shapes have changed.

    Any other error is the object's own and counts as a failure of the interval.
    """
    try:
        tracked.load_state_dict(state)
    except Exception as error:
        then = _shapes(state)
        now = _shapes(tracked.state_dict())
        part = next((part for part in then | now if then.get(part) != now.get(part)), None)
        if part is None:
            raise
        was = then.get(part, "missing")
        got = now.get(part, "nothing")
        raise _shape_error(name, repr(part), was, got) from error


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes of a model's tensors, or the sizes of an optimizer's groups."""
    shapes: dict[str, Any] = {
        part: tuple(value.shape) for part, value in state.items() if isinstance(value, Shaped)
    }
    for i, group in enumerate(state.get("param_groups", ())):
        shapes[f"group {i}"] = len(group["params"])
    return shapes


def _shape_error(name: str, part: str, then: Any, now: Any) -> TaskError:
    return TaskError(
        f"track({name}=...): the checkpoint has a different shape: {part} was {then}, got {now}; "
        f"a hyperparameter that changes shapes cannot be tuned during training: remove it from "
        f"the space, or use an algorithm that never copies weights, such as random-search or "
        f"mo-asha"
    )


def _state_of(tracked: Any) -> Any:
    if isinstance(tracked, np.ndarray | dict):
        return tracked
    return dict(tracked.state_dict())


def hyperparameters_of(tracked: Any) -> dict[str, Any]:
    """Record the settings that an optimizer or a scheduler was built with."""
    groups = []
    for group in tracked.param_groups if isinstance(tracked, Optimizer) else ():
        settings = {field: value for field, value in group.items() if is_plain(value)}
        # A scheduler adds `initial_lr` when it is built, which may be after this record.
        if "lr" in settings:
            settings.setdefault("initial_lr", settings["lr"])
        groups.append(settings)
    rates = tracked.base_lrs if isinstance(tracked, LrScheduler) else ()
    return {
        "groups": groups,
        "base_lrs": [rate for rate in rates if is_plain(rate)],
        "parts": [hyperparameters_of(part) for part in _parts_of(tracked)],
    }


def _parts_of(tracked: Any) -> Sequence[Any]:
    """Return the schedulers that a scheduler consists of."""
    return tracked._schedulers if isinstance(tracked, CompositeScheduler) else ()


def merge_hyperparameters(tracked: Any, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Apply hyperparameters that changed since the checkpoint to a restored object.

    ``AdamW(..., lr=m.hp["lr"])`` before `track` is the natural way to write a training function,
    but restoring replaces that rate by the donor's. A setting that is built differently `now` and
    `then` follows a hyperparameter, so its new value wins. All other settings keep their restored
    values, so that a learning rate schedule continues.

    Args:
        tracked: An optimizer or a scheduler whose state has been restored.
        now: Its `hyperparameters_of`, recorded before it was restored.
        then: The same record from the checkpoint.
    """
    groups = tracked.param_groups if isinstance(tracked, Optimizer) else ()
    for group, new, old in zip(groups, now["groups"], then["groups"], strict=True):
        _merge_group(group, new, old)
    if now["base_lrs"]:
        tracked.base_lrs = list(map(_merge, now["base_lrs"], then["base_lrs"], tracked.base_lrs))
    for part, new, old in zip(_parts_of(tracked), now["parts"], then["parts"], strict=True):
        merge_hyperparameters(part, new, old)


def _merge_group(group: dict[str, Any], new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Merge the settings of one parameter group of an optimizer."""
    rate: Any = group.get("lr")
    for field in new:
        if field in group:
            group[field] = _merge(new[field], old.get(field, new[field]), group[field])
    # The scale of a scheduled rate is `initial_lr`, not the `lr` it was built with: a warmup may
    # start at 0.
    initial = new.get("initial_lr")
    old_initial = old.get("initial_lr")
    if _are_numbers(initial, old_initial, rate) and initial != old_initial and old_initial != 0:
        is_scheduled = rate != old["lr"]
        group["lr"] = rate * initial / old_initial if is_scheduled else new["lr"]


def _merge(now: Any, then: Any, restored: Any) -> Any:
    """Return the value of a setting that was built as `now` and `then`."""
    if now == then:
        return restored
    # A schedule has changed the restored value: it keeps its progress, on the scale of the new one.
    if _are_numbers(now, then, restored) and restored != then and then != 0:
        return restored * now / then
    return now


def is_plain(value: Any) -> bool:
    """Check whether a value is a setting and not state.

    Settings are None, numbers, strings, and lists or tuples of these.
    """
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _is_finite(score: Any) -> bool:
    try:
        return math.isfinite(score)
    except TypeError:
        # Metrics that are not numbers are rejected later, with a message that names them.
        return True
