"""Words in messages: which name was probably meant where one is misspelt, and counts of things."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Return ``"; perhaps 'lr' was meant"`` where one of the known names is near, else nothing.

    >>> meant("acuracy", ["accuracy", "dsp"])
    "; perhaps 'accuracy' was meant"
    """
    names = {str(k).lower(): str(k) for k in known}
    near = get_close_matches(str(name).lower(), names, n=1)
    return f"; perhaps {names[near[0]]!r} was meant" if near else ""


def counted(count: int, what: str) -> str:
    """Return a count with its noun: ``"1 model"``, ``"1,203 models"``."""
    return f"{count:,} {what}{'s' * (count != 1)}"
