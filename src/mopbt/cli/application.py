"""The application, its global options, and the arguments that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from mopbt.version import __version__

EXIT_CODES = """
Exit codes: 0 done; 1 a problem with the run or its directory; 2 wrong arguments; 3 budget
exhausted before the run was done; 130 interrupted; 143 terminated. To resume, rerun the same
command (after 3 with a larger budget)."""

app = typer.Typer(
    name="mopbt",
    help="Train a population for conflicting objectives; get a front of trained models.",
    epilog="Start with: mopbt run trade-off --out runs/trade-off\n\n" + EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)
]
ModelArgument = Annotated[
    int,
    typer.Argument(
        metavar="MODEL", help="Model id, as listed by `mopbt front`.", show_default=False
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust", help="Execute the file of the task although it is in the run's directory."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
PrivateOption = Annotated[
    bool,
    typer.Option("--private", help="Write no folder, host or user name into files for others."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def check_trusted(run: Path, task_reference: str, trust: bool) -> None:
    """Raise ValueError for a task inside a run's directory that is not trusted.

    Its code would be executed, and the directory may have been downloaded.
    """
    file = task_reference.rpartition(":")[0]
    if not trust and file.endswith(".py") and Path(file).resolve().is_relative_to(run.resolve()):
        raise ValueError(
            f"the task of {run} is the file {file} inside the run itself, whose code would be "
            "executed; read it, then add --trust if you trust it"
        )


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mopbt {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
]
TracebackOption = Annotated[
    bool,
    typer.Option("--traceback", help="Show the traceback of an error (allowed anywhere)."),
]


@app.callback()
def options(version: VersionOption = False, show_traceback: TracebackOption = False) -> None:
    """Train a population for conflicting objectives; get a front of trained models."""
