"""Format parts of messages: suggestions for misspelled names, and counts."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Suggest the known name that is closest to a misspelled one, or return ``""``.

    The suggestion starts with a semicolon, so that it can end any message.

    >>> did_you_mean("acuracy", ["accuracy", "dsp"])
    "; did you mean 'accuracy'?"
    """
    by_lowercase = {str(k).lower(): str(k) for k in known}
    matches = get_close_matches(str(name).lower(), by_lowercase, n=1)
    return f"; did you mean {by_lowercase[matches[0]]!r}?" if matches else ""


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: ``"1 model"``, ``"1,203 models"``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
