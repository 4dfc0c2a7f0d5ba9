"""The command line: `mopbt run`, `resume`, `show`, `front`, `lineage`, `list`, `pick`, `replay`, `report`, `dashboard` and more."""

import os
import signal
import sys
import traceback
from types import FrameType

from mopbt.cli import run  # isort: skip  # the commands, in the order in which `mopbt --help` lists them
from mopbt.cli import inspect  # isort: skip
from mopbt.cli import report  # isort: skip
from mopbt.cli import pick  # isort: skip
from mopbt.cli import export  # isort: skip
from mopbt.cli import list  # isort: skip
from mopbt.cli import compare  # isort: skip
from mopbt.cli.app import Terminated, app
from mopbt.errors import MopbtError

__all__ = [
    "app",
    "pick",
    "compare",
    "export",
    "list",
    "main",
    "inspect",
    "run",
    "report",
]


def main() -> None:
    """Run the command line: errors are messages, and become exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(
            args=[argument for argument in sys.argv[1:] if argument != "--traceback"],
            prog_name="mopbt",
        )
    except (MopbtError, ValueError, TypeError, OSError) as error:
        where = (
            "; the same command with --traceback shows where it comes from"
            if hasattr(error, "__notes__")
            else ""
        )
        _explain(error, f"{error}{where}")
        sys.exit(2 if isinstance(error, ValueError | TypeError) else 1)
    except Exception as error:  # of a task's own code, or a defect
        _explain(
            error,
            f"{type(error).__name__}: {error}; the same command with --traceback shows where it comes from",
        )
        sys.exit(1)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _explain(error: Exception, message: str) -> None:
    if "--traceback" in sys.argv or os.environ.get("MOPBT_TRACEBACK"):
        traceback.print_exception(error)
    print(f"mopbt: {message}", file=sys.stderr)
