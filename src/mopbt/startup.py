"""Ctrl-C while the command line is still being imported ends it quietly.

The package imports this module first. In any other process than the command, it changes nothing.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

# The exit code that shells use.
INTERRUPTED = 130


def is_command(arguments: Sequence[str]) -> bool:
    """Return whether a process with these arguments is `mopbt` or `python -m mopbt`."""
    for place, argument in enumerate(arguments[1:], 1):
        if argument == "-m":
            return list(arguments[place + 1 : place + 2]) == ["mopbt"]
        if not argument.startswith("-"):
            return os.path.basename(argument).removesuffix(".exe") == "mopbt"
    return False


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    # Nothing has begun. An exception would become an ImportError in packages that catch it.
    os._exit(INTERRUPTED)


# A shell starts commands in the background with Ctrl-C ignored, which is left as it is.
if is_command(sys.orig_argv) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _exit_at_once)
