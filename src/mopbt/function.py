"""Tasks from a training function: for people who have a loop and want to keep it.

The function is called once for each interval. It builds its objects, hands them to `track`, which restores what an earlier
interval left (its own, or the donor's after an exploit), and goes through `steps`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mopbt import tree
from mopbt.errors import TaskError
from mopbt.objectives import Constraint, Direction
from mopbt.space import Domain


class Member:
    """What a training function sees of its place in the population."""

    def __init__(self, hp: Mapping[str, Any], begin: int, end: int, seed: int, restored: Mapping[str, Any] | None) -> None:
        self.hp = hp
        self.begin = begin
        self.end = end
        self.seed = seed
        self.step = begin
        self._restored = restored
        self._tracked: dict[str, Any] = {}
        self._bound: list[tuple[Any, Mapping[str, str]]] = []
        self._scores: dict[str, float] | None = None
        self._looped = False

    def track(self, **objects: Any) -> None:
        """Save these objects after the interval and restore them now, if they were saved before.

        An object has `state_dict` and `load_state_dict` (models, optimizers, schedulers of PyTorch and others), or it is a numpy
        array or a dict, which are filled in place.
        """
        for name, tracked in objects.items():
            if not _is_trackable(tracked):
                raise TaskError(
                    f"track({name}=...) takes objects with `state_dict` and `load_state_dict`, numpy arrays and dicts, got "
                    f"{type(tracked).__name__}"
                )
            self._tracked[name] = tracked
            if self._restored is not None:
                self._restore(name, tracked)
        self._apply_bound()  # after restoring, or the donor's values would win

    def bind(self, optimizer: Any, **fields: str) -> None:
        """Set fields of an optimizer's parameter groups to hyperparameters, now and at every step: ``bind(opt, lr="lr")``."""
        if not hasattr(optimizer, "param_groups"):
            raise TaskError(f"bind takes an optimizer with `param_groups`, got {type(optimizer).__name__}")
        for field, name in fields.items():
            if name not in self.hp:
                raise TaskError(
                    f"bind({field}={name!r}): no hyperparameter {name!r}; the space has {', '.join(map(repr, self.hp))}"
                )
            for group in optimizer.param_groups:
                if field not in group:
                    known = ", ".join(sorted(set(group) - {"params"}))
                    raise TaskError(f"bind({field}={name!r}): the optimizer has no field {field!r}; it has {known}")
        self._bound.append((optimizer, fields))
        self._apply_bound()

    def steps(self) -> Iterator[int]:
        """Go through the steps of this interval."""
        self._looped = True
        for step in range(self.begin, self.end):
            self.step = step
            self._apply_bound()
            yield step

    def report(self, **scores: float) -> None:
        """Tell what was measured; the last report of an interval counts."""
        self._scores = dict(scores)

    def _restore(self, name: str, tracked: Any) -> None:
        assert self._restored is not None
        if name not in self._restored:
            raise TaskError(
                f"track({name}=...): the checkpoint holds only {', '.join(map(repr, self._restored))}; "
                f"track the same in every interval"
            )
        state = self._restored[name]
        if isinstance(tracked, np.ndarray):
            tracked[...] = state
        elif isinstance(tracked, dict):
            tracked.clear()
            tracked.update(state)
        else:
            chosen = _chosen_fields(tracked, self.hp)
            tracked.load_state_dict(state)
            for group, fields in zip(getattr(tracked, "param_groups", ()), chosen, strict=True):
                group.update(fields)

    def _apply_bound(self) -> None:
        for optimizer, fields in self._bound:
            for group in optimizer.param_groups:
                group.update({field: self.hp[name] for field, name in fields.items()})

    def _outcome(self) -> "Snapshot":
        if not self._looped:
            raise TaskError("the training function never went through `steps()`; loop over it once")
        if self._scores is None:
            raise TaskError("the training function never called `report(...)`; call it after the last step at the latest")
        if not self._tracked:
            raise TaskError("the training function never called `track(...)`: nothing would be left of what it trained")
        return Snapshot({name: _state_of(tracked) for name, tracked in self._tracked.items()}, self._scores)


@dataclass(frozen=True)
class Snapshot:
    """What an interval of a training function leaves: the state of what it tracked, and its scores."""

    state: Mapping[str, Any] | None  # None: fresh weights
    scores: Mapping[str, float]


@dataclass(frozen=True)
class FunctionTask:
    """A task made of a training function."""

    function: Callable[[Member], None]
    name: str
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    constraints: Sequence[str | Constraint]
    interval: int
    max_step: int

    def init(self, seed: int) -> Snapshot:
        """Leave the fresh weights to the function, which runs seeded."""
        return Snapshot(None, {})

    def train(self, model: Snapshot, values: Mapping[str, Any], begin: int, end: int, seed: int) -> Snapshot:
        """Call the function for one interval."""
        member = Member(values, begin, end, seed, model.state)
        self.function(member)
        return member._outcome()

    def evaluate(self, model: Snapshot) -> Mapping[str, float]:
        """Return what the function reported last."""
        return model.scores

    def dump(self, model: Snapshot) -> bytes:
        """Return the tracked state as a safetensors file."""
        return tree.dumps(model.state)

    def load(self, data: bytes) -> Snapshot:
        """Read the tracked state back."""
        return Snapshot(tree.loads(data), {})


def _is_trackable(tracked: Any) -> bool:
    has_state = hasattr(tracked, "state_dict") and hasattr(tracked, "load_state_dict")
    return has_state or isinstance(tracked, np.ndarray | dict)


def _state_of(tracked: Any) -> Any:
    if isinstance(tracked, np.ndarray | dict):
        return tracked
    return dict(tracked.state_dict())


def _chosen_fields(tracked: Any, hp: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each parameter group, the fields that were built with a current hyperparameter's value.

    ``AdamW(..., lr=m.hp["lr"])`` before `track` is the natural way to write it; restoring would put the donor's rate in its place.
    """
    read = [hp[name] for name in getattr(hp, "read", ()) if _is_number(hp[name])]
    groups = getattr(tracked, "param_groups", ())
    return [{f: v for f, v in group.items() if _is_number(v) and v in read} for group in groups]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
