"""Present hyperparameters to a loss, for one member or for all members of a stack."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mopbt.problem import Hyperparameters
from mopbt.torch.vectorize import cannot_stack


class TensorHyperparameters(Mapping[str, Any]):
    """Hyperparameters of one member, with numbers as tensors without dimensions.

    Attributes:
        read: The names of those that were read.
    """

    def __init__(self, hp: Mapping[str, Any], device: torch.device) -> None:
        self._hp = hp
        self._device = device
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._hp[name]
        self.read.add(name)
        return self._convert(value)

    def _convert(self, value: Any) -> Any:
        return torch.tensor(float(value), device=self._device) if _is_number(value) else value

    @cached_property
    def untracked(self) -> dict[str, Any]:
        """Return all hyperparameters, without a record of what is read."""
        plain = without_tracking([self._hp])[0]
        return {name: self._convert(plain[name]) for name in plain}

    def __iter__(self) -> Iterator[str]:
        return iter(self._hp)

    def __len__(self) -> int:
        return len(self._hp)


class StackedHyperparameters:
    """Hyperparameters of N members; a stacked loss sees one row of their numbers.

    Attributes:
        numbers: The numeric hyperparameters, shape (N, columns).
        read: The names of those that were read.
    """

    def __init__(self, hp: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        self._hp = hp
        self.read: set[str] = set()
        plain = without_tracking(hp)
        numeric = [name for name in hp[0] if all(_is_number(own[name]) for own in plain)]
        self._columns = {name: i for i, name in enumerate(numeric)}
        rows = [[float(own[name]) for name in numeric] for own in plain]
        self.numbers = torch.tensor(rows, device=device)

    def of_member(self, numbers: Tensor) -> Mapping[str, Any]:
        """Return one member's hyperparameters; reading them counts for all members."""
        return _MemberHyperparameters(self, numbers)

    @cached_property
    def untracked(self) -> Callable[[Tensor], Mapping[str, Tensor]]:
        """Return a function like `of_member` that does not refer to these members."""
        columns = self._columns

        def of_member(numbers: Tensor) -> Mapping[str, Tensor]:
            return {name: numbers[column] for name, column in columns.items()}

        return of_member

    def column(self, name: str) -> int:
        """Return the column of a hyperparameter, and mark it as read by all members."""
        if name not in self.read:
            for own in self._hp:
                own[name]
            self.read.add(name)
        # Equal values do not help: they may differ in the next interval.
        if name not in self._columns:
            raise cannot_stack(f"the hyperparameter {name!r} is not a number")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hp[0])

    def __len__(self) -> int:
        return len(self._hp[0])


class _MemberHyperparameters(Mapping[str, Any]):
    """Hyperparameters of one member inside `vmap`."""

    def __init__(self, stacked: StackedHyperparameters, numbers: Tensor) -> None:
        self._stacked = stacked
        self._numbers = numbers

    def __getitem__(self, name: str) -> Any:
        return self._numbers[self._stacked.column(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stacked)

    def __len__(self) -> int:
        return len(self._stacked)


def without_tracking(hp: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each member's hyperparameters without the record of what is read."""
    return [own.plain if isinstance(own, Hyperparameters) else own for own in hp]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
