"""Save and restore tracked objects, with new hyperparameters.

The objects of PyTorch fulfill the protocols, but nothing here imports it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mopbt.errors import TaskError
from mopbt.serialization import dumps


@runtime_checkable
class Stateful(Protocol):
    """An object that `track` can save and restore."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state by name."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore the state that `state_dict` returned."""


@runtime_checkable
class Optimizer(Protocol):
    """An object with settings per group of parameters, such as an optimizer."""

    param_groups: list[dict[str, Any]]


@runtime_checkable
class Parameterized(Protocol):
    """An object with parameters that an optimizer can train, such as a module."""

    def parameters(self) -> Iterable[Any]:
        """Return all parameters."""


@runtime_checkable
class LrScheduler(Protocol):
    """A learning rate scheduler with a base rate per group of parameters."""

    base_lrs: list[Any]


@runtime_checkable
class CompositeScheduler(Protocol):
    """A learning rate scheduler that consists of others, such as `SequentialLR`."""

    _schedulers: Sequence[Any]


@runtime_checkable
class Shaped(Protocol):
    """An array or a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Return the size in each dimension."""


def restore_state(name: str, tracked: Any, state: Any) -> None:
    """Restore an object in place; raise TaskError if its shapes have changed.

    Any other error is the object's own and counts as a failure of the interval.
    """
    if isinstance(tracked, dict):
        tracked.clear()
        tracked.update(state)
        return
    if isinstance(tracked, np.ndarray):
        if tracked.shape != np.shape(state):
            raise _shape_error(name, "the array", np.shape(state), tracked.shape)
        tracked[...] = state
        return
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


def state_of(tracked: Any) -> Any:
    """Return what a checkpoint keeps of an object."""
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


def is_same(one: Any, other: Any) -> bool:
    """Check whether two arrays or dicts have the same content."""
    return dumps({"content": one}) == dumps({"content": other})


def replaces(value: Any, tracked: Any) -> bool:
    """Check whether a value looks like a tracked array or dict after more training."""
    if value is tracked or type(value) is not type(tracked):
        return False
    if isinstance(tracked, dict):
        return bool(value.keys() == tracked.keys()) and not is_same(value, tracked)
    is_alike = value.shape == tracked.shape and not np.may_share_memory(value, tracked)
    return is_alike and not is_same(value, tracked)


def losses_of_training(tracked: Mapping[str, Any], variables: Mapping[str, Any]) -> list[str]:
    """Describe what the optimizers of a function train, and no checkpoint holds.

    Args:
        tracked: The tracked objects by name.
        variables: The variables of the training function.
    """
    saved = set()
    for thing in tracked.values():
        if isinstance(thing, Parameterized):
            saved |= {id(parameter) for parameter in thing.parameters()}
        elif isinstance(thing, dict):
            saved |= {id(value) for value in thing.values()}
    known = {id(thing) for thing in tracked.values()}
    # An optimizer may have several names.
    seen = set()
    losses = []
    for variable, optimizer in variables.items():
        is_optimizer = isinstance(optimizer, Optimizer) and isinstance(optimizer, Stateful)
        if not is_optimizer or id(optimizer) in seen:
            continue
        seen.add(id(optimizer))
        parameters = [p for group in optimizer.param_groups for p in group.get("params", ())]
        if not any(id(parameter) in saved for parameter in parameters):
            losses.append(
                f"`{variable}` trains parameters that are not tracked, so they start from new "
                f"weights in every interval; add their model and `{variable}` to track(...)"
            )
        elif id(optimizer) not in known:
            losses.append(
                f"`{variable}` is not tracked, so its state, such as momentum, is lost after every "
                f"interval; add it to track(...)"
            )
    return losses
