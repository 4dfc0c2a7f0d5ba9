"""A member of the population as its training function sees it."""

import copy
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from mopbt.device import assigned_device
from mopbt.errors import TaskError, UnreadHyperparameter
from mopbt.estimate import as_estimate
from mopbt.messages import did_you_mean
from mopbt.problem import Hyperparameters
from mopbt.serialization import dumps, loads
from mopbt.tracked_objects import (
    CompositeScheduler,
    LrScheduler,
    Optimizer,
    Stateful,
    hyperparameters_of,
    is_same,
    losses_of_training,
    merge_hyperparameters,
    replaces,
    restore_state,
    state_of,
)

# The entry of a checkpoint that records how tracked objects were built. The dot keeps it apart from
# their names, which are keywords of `track`.
_BUILT = "mopbt.built"
# The entry with the names of objects whose state was left out of a checkpoint.
LEFT_OUT = "mopbt.left_out"
_OWN_ENTRIES = frozenset({_BUILT, LEFT_OUT})

# The rows whose metrics guide the search.
VALIDATION = "validation"

# Objects that members of this process have tracked, by id.
_SEEN: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


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
        """The rows to measure metrics on: "validation", or those of the task.

        On others than "validation" the interval is empty, so that nothing is trained.
        """
        self._read_rows = True
        return self._rows

    @property
    def device(self) -> str:
        """Where to train, as PyTorch names it: "cuda:0" for a GPU, else "cpu"."""
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
            self._frame = sys._getframe(1)
            if isinstance(tracked, np.ndarray | dict):
                self._initial[name] = copy.deepcopy(tracked)
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
        if name in self._restored.get(LEFT_OUT, ()):
            return
        if name not in self._restored:
            names = ", ".join(repr(n) for n in self._restored if n not in _OWN_ENTRIES)
            raise TaskError(
                f"track({name}=...): the checkpoint has only {names}; track the same objects in "
                f"every interval"
            )
        restore_state(name, tracked, self._restored[name])
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
        self._warn_if_training_is_lost()
        self._frame = None
        self._warn_if_nothing_changed()
        state = {name: state_of(tracked) for name, tracked in self._tracked.items()}
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
        missing = (self._restored or {}).keys() - self._tracked.keys() - _OWN_ENTRIES
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
        """Raise TaskError if a tracked object is unchanged but its variable is not.

        The variable has another value, which no checkpoint keeps.
        """
        frame = self._frame
        for name, variables in self._variables.items():
            tracked = self._tracked[name]
            if frame is None or not is_same(self._initial[name], tracked):
                continue
            for variable in variables:
                value = frame.f_locals.get(variable, tracked)
                if replaces(value, tracked):
                    raise TaskError(
                        f"track({name}=...): training assigned another object to `{variable}`, so "
                        f"the tracked one was never trained; modify it in place, as in "
                        f"`{variable} -= ...` or `{variable}[...] = ...`"
                    )

    def _take_evaluation(self) -> dict[str, float]:
        """Return the metrics of a function that was called for other rows."""
        if not self._read_rows:
            raise TaskError(
                f"the task declares `rows`, but its training function never reads `m.rows`, so its "
                f"metrics on {self._rows!r} would be those on 'validation'; measure them on the "
                f"rows that `m.rows` names"
            )
        missing = (self._restored or {}).keys() - self._tracked.keys() - _OWN_ENTRIES
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

    def _warn_if_training_is_lost(self) -> None:
        """Warn about optimizers of the function that train what no checkpoint holds."""
        variables = self._frame.f_locals if self._frame is not None else {}
        for loss in losses_of_training(self._tracked, variables):
            warnings.warn(loss, stacklevel=2)

    def _warn_if_nothing_changed(self) -> None:
        """Warn if only arrays and dicts are tracked and training changed none of them.

        The usual mistake is `w = w - ...`, which creates another array.
        """
        plain = all(isinstance(tracked, np.ndarray | dict) for tracked in self._tracked.values())
        if plain and dumps(self._initial) == dumps(self._tracked):
            names = ", ".join(map(repr, self._tracked))
            warnings.warn(
                f"training did not change {names}; modify it in place, as in `w -= ...`",
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
    """Return only the tracked state of a checkpoint, without mopbt's own entries."""
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if name not in _OWN_ENTRIES}


TrainingFunction = Callable[[Member], None]


def _type_names(values: Sequence[Any]) -> str:
    return ", ".join(type(value).__name__ for value in values)


def _is_finite(score: Any) -> bool:
    try:
        return math.isfinite(score)
    except TypeError:
        # Metrics that are not numbers are rejected later, with a message that names them.
        return True
