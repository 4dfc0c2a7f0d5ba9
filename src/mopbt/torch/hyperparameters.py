"""Hyperparameters as a loss sees them, one member at a time or inside a stacked program."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mopbt.errors import CannotStack


class TensorHyperparameters(Mapping[str, Any]):
    """Hyperparameters as a loss sees them: numbers as tensors without dimensions, everything else as it is."""

    def __init__(self, hp: Mapping[str, Any], device: torch.device) -> None:
        self._values, self._device = hp, device

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return torch.tensor(float(value), device=self._device) if _is_number(value) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class StackedHyperparameters:
    """Hyperparameters of many members, those that are numbers as one tensor, of which a stacked loss sees one row."""

    def __init__(self, hp: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        self._values = hp
        plain = [getattr(v, "plain", v) for v in hp]  # looking is not reading
        numeric = [name for name in hp[0] if all(_is_number(own[name]) for own in plain)]
        self._columns = {name: i for i, name in enumerate(numeric)}
        self.numbers = torch.tensor(
            [[float(own[name]) for name in numeric] for own in plain], device=device
        )  # (N, columns)
        self._read: set[str] = set()

    def of_member(self, numbers: Tensor) -> Mapping[str, Any]:
        """Return the view of one member inside a stacked program; reading from it is reading for all."""
        return _MemberHyperparameters(self, numbers)

    def column(self, name: str) -> int:
        """Return where a hyperparameter stands, and note that it is read."""
        if name not in self._read:
            for own in self._values:
                own[name]
            self._read.add(name)
        if (
            name not in self._columns
        ):  # also where it is the same in all just now: it may differ in the next interval
            raise CannotStack(cannot_stack(f"the hyperparameter {name!r} is no number"))
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values[0])

    def __len__(self) -> int:
        return len(self._values[0])


class _MemberHyperparameters(Mapping[str, Any]):
    def __init__(self, stacked: StackedHyperparameters, numbers: Tensor) -> None:
        self._stacked, self._numbers = stacked, numbers

    def __getitem__(self, name: str) -> Any:
        return self._numbers[self._stacked.column(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stacked)

    def __len__(self) -> int:
        return len(self._stacked)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextmanager
def unstackable_named() -> Iterator[None]:
    """Turn what PyTorch says of an operation that cannot be stacked into an error that says what will do."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(
            sign in text for sign in ("vmap", "functorch", "data-dependent", "BatchedTensor")
        ):
            raise
        raise CannotStack(cannot_stack(text.strip().splitlines()[0])) from error


def cannot_stack(why: str) -> str:
    """Return the message of an error that says what will do."""
    return f"the model or its loss cannot be stacked: {why.strip().rstrip('.')}. The engine 'pool' will do."
