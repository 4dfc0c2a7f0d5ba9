"""Choose what the fast lane runs: which parameters of a test, how many random examples."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def slow_except(fast: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of which all but `fast` are marked slow.

    A tuple stands for several parameters.
    """
    values = list(values)
    missing = [value for value in fast if value not in values]
    assert not missing, f"no such parameters: {missing}"
    return [value if value in fast else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)


def examples(number: int) -> settings:
    """Try `number` random examples, or as many as the lane allows if these are fewer."""
    return settings(max_examples=min(number, settings.default.max_examples))
