"""Check arguments and settings.

Every check raises ValueError with the value that it received.
"""

import math
from numbers import Integral, Real
from typing import Any

from mopbt.messages import did_you_mean


def check_count(
    name: str, value: Any, least: int, most: int | None = None, *, optional: bool = False
) -> None:
    """Check that a value is a whole number in [least, most].

    An optional value may also be None.
    """
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        # Integers of numpy are not instances of int.
        is_convertible = isinstance(value, Integral) and not isinstance(value, int)
        remedy = f"; pass int({name})" if is_convertible else ""
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}, got {value!r}{remedy}"
        )
    if most is not None and value > most:
        raise ValueError(f"`{name}` must be at most {most:,}, got {value!r}")


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Check that a value is one of the allowed ones."""
    # Comparing by identity keeps 1 from passing as True.
    if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
        choices = ", ".join(map(repr, allowed))
        hint = did_you_mean(value, allowed)
        raise ValueError(f"`{name}` must be one of {choices}, got {value!r}{hint}")


def check_share(name: str, value: Any) -> None:
    """Check that a value is None or a number between 0 and 1."""
    if value is not None and not (isinstance(value, float) and 0 < value < 1):
        raise ValueError(f"`{name}` must be between 0 and 1, or None, got {value!r}")


def check_timeout(timeout: Any) -> None:
    """Check that a time limit is None or a number of seconds above 0."""
    if timeout is None:
        return
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ValueError(f"`timeout` must be a number of seconds above 0, got {timeout!r}")
