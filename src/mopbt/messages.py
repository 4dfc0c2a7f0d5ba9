"""Format parts of messages: suggestions for misspelled names, counts and errors."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from mopbt.limits import MESSAGE_CHARACTERS

# Smaller numbers would have too many zeros.
SMALL = 1e-4


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Suggest the known name that is closest to a misspelled one, or return ``""``.

    The suggestion starts with a semicolon, so that it can end any message.

    >>> did_you_mean("acuracy", ["accuracy", "dsp"])
    "; did you mean 'accuracy'?"
    """
    by_lowercase = {str(k).lower(): str(k) for k in known}
    matches = get_close_matches(str(name).lower(), by_lowercase, n=1)
    return f"; did you mean {by_lowercase[matches[0]]!r}?" if matches else ""


# Codes of control characters; a tab and a line break are harmless.
_CONTROL = dict.fromkeys({*range(32), *range(127, 160)} - {9, 10}, "\ufffd")


def shortened(text: str, most: int = MESSAGE_CHARACTERS) -> str:
    """Leave out the middle of a long text.

    A message may quote a hostile file, for example.

    >>> shortened("a long text", 8)
    'a lo (3 characters) text'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ({len(text) - 2 * half:,} characters) {text[-half:].lstrip()}"


def printable(text: str) -> str:
    r"""Replace control characters except for line breaks.

    They could be commands to a terminal.

    >>> printable("\x1b[2Jname")
    '\ufffd[2Jname'
    """
    return text.translate(_CONTROL)


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: ``"1 model"``, ``"1,203 models"``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def byte_size(count: float) -> str:
    """Format a number of bytes in a readable unit.

    >>> byte_size(150_640), byte_size(12)
    ('150.6 kB', '12 bytes')
    """
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count:.0f} bytes"


def number(value: float, digits: int = 4) -> str:
    """Format a number to significant digits, and a negative zero as zero.

    >>> number(0.912345), number(-0.0), number(-2)
    ('0.9123', '0', '-2')
    """
    # Adding zero turns -0.0 into 0.0 and changes nothing else.
    return f"{value + 0.0:.{digits}g}"


def column_texts(values: Sequence[Any]) -> list[str]:
    """Format the values of a column in one way: all as powers of ten if one needs it.

    >>> column_texts([0.1, 0.003, 0.0]), column_texts([0.1, 3e-6, 0.0]), column_texts(["a", 1])
    (['0.1', '0.003', '0'], ['1.000e-01', '3.000e-06', '0'], ['a', '1'])
    """
    is_small = any(isinstance(v, float) and 0 < abs(v) < SMALL for v in values)
    texts = []
    for value in values:
        if isinstance(value, float):
            texts.append(f"{value:.3e}" if is_small and value else number(value))
        else:
            texts.append(str(value))
    return texts


def with_error(value: float, stderr: float) -> str:
    """Format a number with its standard error, to the digits that are certain.

    >>> with_error(0.92314, 0.0058), with_error(0.92314, 0.0013), with_error(1234.5, 40)
    ('0.923 ± 0.006', '0.9231 ± 0.0013', '1234 ± 40')
    """
    if not 0 < stderr < math.inf or not math.isfinite(value):
        return number(value)
    return f"{to_error(value, stderr)} ± {to_error(stderr, stderr)}"


def to_error(value: float, stderr: float) -> str:
    """Format a number to the decimals that its standard error leaves certain."""
    exponent = math.floor(math.log10(stderr))
    # An error that begins with 1 keeps another digit: 0.0013 and 0.001 differ by a third.
    decimals = max(-exponent + (stderr < 2 * 10.0**exponent), 0)
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text
