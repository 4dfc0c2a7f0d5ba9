"""The program itself: its options, how it ends, and what its commands share."""

from pathlib import Path
from typing import Annotated

import typer

from mopbt.version import __version__

EXIT_CODES = """
Exit codes: 0 done; 1 the run or its directory is in trouble; 2 wrong arguments; 3 stopped by its budget before it was done;
130 interrupted, 143 terminated. After 130 and 143 the same command goes on, after 3 with a larger budget."""

app = typer.Typer(
    name="mopbt",
    help="Train a population under several conflicting objectives, and get a front of trained models.",
    epilog="Start with: mopbt run adult-linear --out runs/demo\n\n" + EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mopbt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from (anywhere).")
    ] = False,
) -> None:
    """Train a population under several conflicting objectives, and get a front of trained models."""
