"""The command line `mopbt`; see `mopbt --help` for its commands."""

import os
import signal
import sys
import traceback
from contextlib import suppress
from types import FrameType

# The order of these imports is the order of the commands in `mopbt --help`.
from mopbt.cli import run  # isort: skip
from mopbt.cli import plan  # isort: skip
from mopbt.cli import inspect  # isort: skip
from mopbt.cli import verify  # isort: skip
from mopbt.cli import report  # isort: skip
from mopbt.cli import pick  # isort: skip
from mopbt.cli import evaluate  # isort: skip
from mopbt.cli import export  # isort: skip
from mopbt.cli import list  # isort: skip
from mopbt.cli import compare  # isort: skip
from mopbt.cli import doctor  # isort: skip
from mopbt.cli.application import Terminated, app
from mopbt.errors import MopbtError
from mopbt.messages import printable, shortened
from mopbt.startup import INTERRUPTED

__all__ = [
    "app",
    "main",
    "run",
    "plan",
    "inspect",
    "verify",
    "report",
    "pick",
    "evaluate",
    "export",
    "list",
    "compare",
    "doctor",
]

_TRACEBACK_HINT = "; add --traceback to see where it comes from"


def main() -> None:
    """Run the command line; turn exceptions into messages and exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    interrupts = _Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    try:
        app(args=arguments, prog_name="mopbt")
    except Exception as error:
        if interrupts.count and not isinstance(error, MopbtError):
            # A package that is being imported may turn Ctrl-C into another error.
            sys.exit(INTERRUPTED)
        sys.exit(_explain(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        if interrupts.count:
            # While Python exits, another Ctrl-C would replace the exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _explain(error: Exception) -> int:
    """Print what is wrong, and return the exit code."""
    if isinstance(error, MopbtError | ValueError | TypeError | OSError):
        hint = _TRACEBACK_HINT if hasattr(error, "__notes__") else ""
        _print_error(error, f"{error}{hint}")
        return 2 if isinstance(error, ValueError | TypeError) else 1
    # Either the task's own code failed, or mopbt has a bug.
    _print_error(error, f"{type(error).__name__}: {error}{_TRACEBACK_HINT}")
    return 1


class _Interrupts:
    """Stop at the first Ctrl-C, ignore the second, and exit at once at the third."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt
        if self.count == 2:
            # The interrupted code may be printing as well.
            with suppress(RuntimeError):
                print("\nmopbt: stopping; press Ctrl-C again to exit at once", file=sys.stderr)
            return
        # A run survives a kill at any moment, and its workers end with it.
        os._exit(INTERRUPTED)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _print_error(error: Exception, message: str) -> None:
    if "--traceback" in sys.argv or os.environ.get("MOPBT_TRACEBACK"):
        traceback.print_exception(error)
    print(f"mopbt: {printable(shortened(message))}", file=sys.stderr)
