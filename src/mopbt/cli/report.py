"""Show runs as HTML pages: `mopbt report` and `mopbt dashboard`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mopbt.cli.application import PrivateOption, Terminated, app
from mopbt.cli.output import out
from mopbt.run_directory import read_run_config

RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Directories of one or more runs.", show_default=False),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="HTML file to write [default: report.html in the run, or next to several runs].",
        show_default=False,
    ),
]
DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory of the runs; it may still be empty.")
]
HostOption = Annotated[
    str,
    typer.Option(help="Address to listen on; all but the loopback address require a token."),
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        help="Token that grants access [default: a new one if one is required].",
        show_default=False,
    ),
]


@app.command("report")
def write_page(runs: RunsArgument, file: FileOption = None, private: PrivateOption = False) -> None:
    """Write an HTML report of one or more runs.

    Several runs are shown side by side. The file opens without a network.

    Example: mopbt report runs/demo --out demo.html
    """
    from mopbt.html.report import write_report

    if file is None:
        for run in runs:
            # A wrong name is reported as such, not as that of a file.
            read_run_config(run)
        directories = [run.absolute() for run in runs]
        if len(runs) > 1:
            directories = [directory.parent for directory in directories]
        file = Path(os.path.commonpath(directories), "report.html")
    out.print(f"written: {write_report(runs, file, private=private)}", soft_wrap=True, markup=False)


@app.command("dashboard")
def show_live(
    directory: DirectoryArgument = Path("runs"),
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    token: TokenOption = None,
) -> None:
    """Serve a page that follows all runs in a directory. Ctrl-C stops it.

    Example: mopbt dashboard runs
    """
    from mopbt.html.dashboard import Dashboard, serve

    dashboard = Dashboard(directory, host=host, port=port, token=token)
    try:
        serve(dashboard, lambda url: print(f"The runs are at {url}", flush=True))
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
