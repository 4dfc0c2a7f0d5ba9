"""Tasks from a training function: for people who have a loop and want to keep it.

The function is called once for each interval. It builds its objects, hands them to `track`, which restores what an earlier
interval left (its own, or the donor's after an exploit), and goes through `steps`.
"""

import copy
import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from mopbt import serialization
from mopbt.errors import TaskError
from mopbt.messages import did_you_mean
from mopbt.objectives import Constraint, Direction
from mopbt.space import Domain

_BUILT = "mopbt.built"  # beside the tracked objects in a checkpoint; no keyword of `track` reads like this
_SEEN: "weakref.WeakValueDictionary[int, Any]" = (
    weakref.WeakValueDictionary()
)  # what members of this process have tracked, by id


class Member:
    """What a training function sees of its place in the population."""

    def __init__(
        self,
        hp: Mapping[str, Any],
        begin: int,
        end: int,
        seed: int,
        restored: Mapping[str, Any] | None,
    ) -> None:
        self.hp = hp
        self.begin = begin
        self.end = end
        self.seed = seed
        self.step = begin
        self._restored = restored
        self._tracked: dict[str, Any] = {}
        self._built: dict[str, Any] = {}
        self._bound: list[tuple[Any, Mapping[str, str]]] = []
        self._rates: list[tuple[Any, list[Any]]] = []
        self._reported_at: int | None = None
        self._first: dict[str, Any] = {}
        self._scores: dict[str, float] | None = None
        self._looped = False
        self._finished = False

    def track(self, *unnamed: Any, **objects: Any) -> None:
        """Save these objects after the interval and restore them now, if they were saved before.

        An object has `state_dict` and `load_state_dict` (models, optimizers, schedulers of PyTorch and others), or it is a numpy
        array or a dict, which are filled in place.
        """
        if unnamed:
            raise TaskError(
                f"track takes objects by name, as in track(model=model), got {_kinds(unnamed)} without a name"
            )
        if self._looped:
            raise TaskError(
                "track(...) came after `steps()`: restoring now would undo the training; track first, then loop"
            )
        for name, tracked in objects.items():
            if not _is_trackable(tracked):
                raise TaskError(
                    f"track({name}=...) takes objects with `state_dict` and `load_state_dict`, numpy arrays and dicts, got "
                    f"{type(tracked).__name__}; put plain values into a dict"
                )
            self._check_fresh(name, tracked)
            self._tracked[name] = tracked
            if any((built := hyperparameters_of(tracked)).values()):
                self._built[name] = built
            if self._restored is not None:
                self._restore(name, tracked)
            self._first[name] = (
                copy.deepcopy(tracked) if isinstance(tracked, np.ndarray | dict) else None
            )
        self._apply_bound()  # after restoring, or the donor's values would win

    def bind(self, optimizer: Any, **fields: str) -> None:
        """Set fields of an optimizer's parameter groups to hyperparameters, now and at every step: ``bind(opt, lr="lr")``.

        A bound field does not follow a scheduler: to schedule a tuned rate, build the optimizer with it and track the scheduler.
        """
        if not hasattr(optimizer, "param_groups"):
            raise TaskError(
                f"bind takes an optimizer with `param_groups`, got {type(optimizer).__name__}; what is no optimizer reads `hp` "
                f"itself"
            )
        for field, name in fields.items():
            if name not in self.hp:
                raise TaskError(
                    f"bind({field}={name!r}): no hyperparameter {name!r}; the space has {', '.join(map(repr, self.hp))}: add it "
                    f"there, or correct the name{did_you_mean(name, self.hp)}"
                )
            for group in optimizer.param_groups:
                if field not in group:
                    known = ", ".join(sorted(set(group) - {"params"}))
                    raise TaskError(
                        f"bind({field}={name!r}): the optimizer has no field {field!r}; bind one of {known}{did_you_mean(field, group)}"
                    )
        self._bound.append((optimizer, fields))
        self._apply_bound()

    def steps(self) -> Iterator[int]:
        """Go through the steps of this interval, once and to the end."""
        if self._looped:
            raise TaskError(
                "the training function went through `steps()` twice; an interval is trained once"
            )
        self._looped = True
        for step in range(self.begin, self.end):
            self.step = step
            self._apply_bound()
            yield step
        self._finished = True

    def report(self, *unnamed: Any, **scores: float) -> None:
        """Tell what was measured; the last report of an interval counts, and must come after its last step has begun."""
        if unnamed:
            raise TaskError(
                f"report takes scores by name, as in report(accuracy=0.9) or report(**scores), got {_kinds(unnamed)}"
            )
        self._scores, self._reported_at = dict(scores), self.step

    def _check_fresh(self, name: str, tracked: Any) -> None:
        """Raise TaskError where a new member gets an object that another one has trained: its weights would pass on unseen."""
        try:
            is_known, _SEEN[id(tracked)] = id(tracked) in _SEEN, tracked
        except TypeError:  # of a kind that cannot be remembered
            return
        if self._restored is None and is_known:
            raise TaskError(
                f"track({name}=...): another member has trained this very object, so a new one would begin with its weights; make "
                f"it inside of the training function, or track a copy of it (copy.deepcopy)"
            )

    def _restore(self, name: str, tracked: Any) -> None:
        assert self._restored is not None
        if name not in self._restored:
            raise TaskError(
                f"track({name}=...): the checkpoint holds only {', '.join(repr(n) for n in self._restored if n != _BUILT)}; "
                f"track the same in every interval"
            )
        state = self._restored[name]
        if isinstance(tracked, np.ndarray):
            if tracked.shape != np.shape(state):
                raise TaskError(_other_shape(name, "the array", np.shape(state), tracked.shape))
            tracked[...] = state
        elif isinstance(tracked, dict):
            tracked.clear()
            tracked.update(state)
        else:
            _load(name, tracked, state)
            then = self._restored.get(_BUILT, {}).get(name)
            if name in self._built and then is not None:
                merge_hyperparameters(tracked, self._built[name], then)
            self._keep_rates(tracked)

    def _warn_if_nothing_changed(self) -> None:
        """Say so where arrays and dicts are all that is tracked and none of them changed: `w = w - ...` makes another array."""
        plain = all(isinstance(tracked, np.ndarray | dict) for tracked in self._tracked.values())
        if plain and all(
            _same(self._first[name], tracked) for name, tracked in self._tracked.items()
        ):
            names = ", ".join(map(repr, self._tracked))
            warnings.warn(
                f"training changed nothing of {names}: change them in place, as in `w -= ...`",
                stacklevel=2,
            )

    def _keep_rates(self, tracked: Any) -> None:
        """Put back the rates of optimizers that were restored before: a scheduler that is built on one changes them."""
        if hasattr(tracked, "param_groups"):
            self._rates.append((tracked, [group.get("lr") for group in tracked.param_groups]))
        elif hasattr(tracked, "base_lrs") or hasattr(tracked, "_schedulers"):
            for optimizer, rates in self._rates:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate

    def _apply_bound(self) -> None:
        for optimizer, fields in self._bound:
            for group in optimizer.param_groups:
                group.update({field: self.hp[name] for field, name in fields.items()})

    @property
    def _diverged(self) -> bool:
        """Tell whether the last report is not finite: such a model is never ranked nor copied, and needs no more training."""
        return self._scores is not None and not all(map(_is_finite, self._scores.values()))

    def _outcome(self) -> "Snapshot":
        if not self._looped:
            raise TaskError(
                "the training function never went through `steps()`; loop over it once: for step in m.steps(): ..."
            )
        if not self._finished and not self._diverged:
            raise TaskError(
                f"the training function left the loop over `steps()` at step {self.step}, the interval ends at {self.end}; "
                f"go through all of them; to give up this interval, report NaN, or raise an exception"
            )
        if self._scores is None:
            raise TaskError(
                "the training function never called `report(...)`; call it after the last step, with each objective by name (what "
                "the function returns is not read)"
            )
        if self._reported_at != self.end - 1 and not self._diverged:
            raise TaskError(
                f"the last report came at step {self._reported_at}, the interval ends at {self.end}: the scores would be those of "
                f"another model than the one that is saved; report after the last step"
            )
        if not self._tracked:
            raise TaskError(
                "the training function never called `track(...)`: nothing would be left of what it trained; call "
                "track(model=..., optimizer=...) before the loop"
            )
        forgotten = [
            name for name in self._restored or () if name not in self._tracked and name != _BUILT
        ]
        if forgotten:
            raise TaskError(
                f"the checkpoint holds {', '.join(map(repr, forgotten))}, not tracked now; track the same in every interval"
            )
        self._warn_if_nothing_changed()
        state = {name: _state_of(tracked) for name, tracked in self._tracked.items()}
        return Snapshot(
            serialization.dumps(state | ({_BUILT: self._built} if self._built else {})),
            self._scores,
        )


@dataclass(frozen=True)
class Snapshot:
    """What an interval of a training function leaves: the state of what it tracked, and its scores.

    The state is kept as bytes, even in memory: the function may go on using the objects, and would change it.
    """

    data: bytes | None  # None: fresh weights
    scores: Mapping[str, float]

    @property
    def state(self) -> dict[str, Any] | None:
        """Return the state of each tracked object by name; None before the first interval."""
        return None if self.data is None else visible(serialization.loads(self.data))


def visible(state: Any) -> Any:
    """Return the state of a checkpoint as users see it: what was tracked, without our own notes beside it."""
    return (
        {name: value for name, value in state.items() if name != _BUILT}
        if isinstance(state, dict)
        else state
    )


@dataclass(frozen=True)
class FunctionTask:
    """A task made of a training function."""

    function: Callable[[Member], None]
    _: KW_ONLY
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    steps: int
    interval: int = 1
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(
                self, "name", getattr(self.function, "__name__", type(self.function).__name__)
            )

    def init(self, seed: int) -> Snapshot:
        """Leave the fresh weights to the function, which runs seeded."""
        return Snapshot(None, {})

    def train(
        self, model: Snapshot, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Snapshot:
        """Call the function for one interval."""
        member = Member(
            hp,
            begin,
            end,
            seed,
            None if model.data is None else serialization.loads(model.data),
        )
        self.function(member)
        return member._outcome()

    def evaluate(self, model: Snapshot) -> Mapping[str, float]:
        """Return what the function reported last."""
        return model.scores

    def dump(self, model: Snapshot) -> bytes:
        """Return the tracked state as a safetensors file."""
        assert model.data is not None  # an interval was trained
        return model.data

    def load(self, data: bytes) -> Snapshot:
        """Read the tracked state back."""
        return Snapshot(data, {})


def _kinds(values: Sequence[Any]) -> str:
    return ", ".join(type(value).__name__ for value in values)


def _same(a: Any, b: Any) -> bool:
    return serialization.dumps(a) == serialization.dumps(b)


def _is_trackable(tracked: Any) -> bool:
    has_state = hasattr(tracked, "state_dict") and hasattr(tracked, "load_state_dict")
    return has_state or isinstance(tracked, np.ndarray | dict)


def _load(name: str, tracked: Any, state: Any) -> None:
    """Restore an object; where it cannot be, as it has another shape now, a failed interval would only hide the mistake."""
    try:
        tracked.load_state_dict(state)
    except Exception as error:
        then, now = _shapes(state), _shapes(tracked.state_dict())
        part = next((part for part in then | now if then.get(part) != now.get(part)), None)
        if part is None:
            raise
        raise TaskError(
            _other_shape(name, repr(part), then.get(part, "not there"), now.get(part, "nothing"))
        ) from error


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes of a model's tensors, and how many parameters an optimizer's groups have."""
    shapes: dict[str, Any] = {
        part: tuple(value.shape) for part, value in state.items() if hasattr(value, "shape")
    }
    return shapes | {
        f"group {i}": len(group["params"]) for i, group in enumerate(state.get("param_groups", ()))
    }


def _other_shape(name: str, part: str, then: Any, now: Any) -> str:
    return (
        f"track({name}=...): the checkpoint has another shape: {part} was {then}, got {now}; a hyperparameter that changes shapes "
        f"cannot be tuned while a model trains: take it out of the space, or use an algorithm that never passes weights on, such "
        f"as random-search or mo-asha"
    )


def _state_of(tracked: Any) -> Any:
    if isinstance(tracked, np.ndarray | dict):
        return tracked
    return dict(tracked.state_dict())


def hyperparameters_of(tracked: Any) -> dict[str, Any]:
    """Return the settings that an optimizer or a scheduler was built with, which restoring is about to overwrite."""
    groups = [
        {f: v for f, v in group.items() if is_plain(v)}
        for group in getattr(tracked, "param_groups", ())
    ]
    for group in groups:
        if "lr" in group:
            group.setdefault(
                "initial_lr", group["lr"]
            )  # what a scheduler enters when it is made, perhaps later
    parts = [
        hyperparameters_of(part) for part in getattr(tracked, "_schedulers", ())
    ]  # of a scheduler made of schedulers
    return {
        "groups": groups,
        "base_lrs": [v for v in getattr(tracked, "base_lrs", ()) if is_plain(v)],
        "parts": parts,
    }


def merge_hyperparameters(tracked: Any, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Let new hyperparameters win over restored settings, and let what training changed by itself (a schedule) go on.

    ``AdamW(..., lr=m.hp["lr"])`` before `track` is the natural way to write it; restoring puts the donor's rate in its place. What
    differs between now and then was built with another hyperparameter.
    """
    for group, new, old in zip(
        getattr(tracked, "param_groups", ()), now["groups"], then["groups"], strict=True
    ):
        rate = _settled_rate(new, old, group)
        group.update(
            {f: _settled(new[f], old.get(f, new[f]), group[f]) for f in new if f in group} | rate
        )
    if now["base_lrs"]:
        tracked.base_lrs = list(map(_settled, now["base_lrs"], then["base_lrs"], tracked.base_lrs))
    for part, new, old in zip(
        getattr(tracked, "_schedulers", ()), now["parts"], then["parts"], strict=True
    ):
        merge_hyperparameters(part, new, old)


def _settled_rate(
    new: Mapping[str, Any], old: Mapping[str, Any], group: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a group's learning rate: a schedule, also one that began at 0, goes on where it stood, on the new scale."""
    now, then = new.get("initial_lr"), old.get("initial_lr")
    if (
        not (_is_number(now) and _is_number(then) and _is_number(group.get("lr")))
        or now == then
        or not then
    ):
        return {}
    return {"lr": new["lr"] if group["lr"] == old["lr"] else group["lr"] * now / then}


def _settled(now: Any, then: Any, restored: Any) -> Any:
    if now == then:
        return restored
    scheduled = (
        _is_number(now)
        and _is_number(then)
        and _is_number(restored)
        and restored != then
        and then != 0
    )
    return (
        restored * now / then if scheduled else now
    )  # a schedule stands where it stood, on the new scale


def is_plain(value: Any) -> bool:
    """Tell whether a value is a setting, and not state: a number, a text, nothing, or a list of such."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _is_finite(score: Any) -> bool:
    try:
        return math.isfinite(score)
    except TypeError:  # no number: whoever reads the scores says so
        return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
