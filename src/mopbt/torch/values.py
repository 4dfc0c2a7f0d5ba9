"""Hyperparameters as a loss sees them, one member at a time or inside a stacked program."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mopbt.errors import CannotStack


class TensorValues(Mapping[str, Any]):
    """Hyperparameters as a loss sees them: numbers as tensors without dimensions, everything else as it is."""

    def __init__(self, values: Mapping[str, Any], device: torch.device) -> None:
        self._values, self._device = values, device

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return torch.tensor(float(value), device=self._device) if is_number else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class StackedValues:
    """Hyperparameters of many members: numbers as tensors (N,), which a stacked loss sees one by one."""

    def __init__(self, values: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        self._values = values
        plain = [getattr(v, "plain", v) for v in values]  # looking is not reading
        self.numbers = {
            name: torch.tensor([float(p[name]) for p in plain], device=device)
            for name in values[0]
            if all(isinstance(p[name], int | float) and not isinstance(p[name], bool) for p in plain)
        }

    def of_member(self, numbers: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Return the view of one member inside a stacked program; reading from it is reading for all."""
        return _MemberValues(numbers, self._values)


class _MemberValues(Mapping[str, Any]):
    def __init__(self, numbers: Mapping[str, Tensor], values: Sequence[Mapping[str, Any]]) -> None:
        self._numbers, self._values = numbers, values

    def __getitem__(self, name: str) -> Any:
        for own in self._values:
            own[name]
        if name not in self._numbers:  # also where it is the same in all just now: it may differ in the next interval
            raise CannotStack(cannot_stack(f"the hyperparameter {name!r} is no number"))
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values[0])

    def __len__(self) -> int:
        return len(self._values[0])


@contextmanager
def unstackable_named() -> Iterator[None]:
    """Turn what PyTorch says of an operation that cannot be stacked into an error that says what will do."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(sign in text for sign in ("vmap", "functorch", "data-dependent", "BatchedTensor")):
            raise
        raise CannotStack(cannot_stack(text.strip().splitlines()[0])) from error


def cannot_stack(why: str) -> str:
    """Return the message of an error that says what will do."""
    return f"the model or its loss cannot be stacked: {why.strip().rstrip('.')}. The engine 'pool' will do."
