"""Looking at runs as a page: `mopbt report` and `mopbt dashboard`."""

from pathlib import Path
from typing import Annotated

import typer

from mopbt.cli.app import Terminated, app
from mopbt.cli.output import out

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="The directories of one or more runs.", show_default=False
    ),
]
FileOption = Annotated[Path, typer.Option("--out", help="The HTML file that is written.")]
HostOption = Annotated[
    str,
    typer.Option(help="The address to listen at; any but the loopback address asks for a token."),
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="The port to listen at; 0 takes one that is free.")
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        help="Who has it may look [default: a new one where one is needed].", show_default=False
    ),
]


@app.command("report")
def write_page(runs: RunsArgument, file: FileOption = Path("report.html")) -> None:
    """Write one HTML file about a run, or about several beside each other; it opens without a network.

    Example: mopbt report runs/demo --out demo.html
    """
    from mopbt.html.report import write_report

    out.print(f"written: {write_report(runs, file)}", soft_wrap=True, markup=False)


@app.command("dashboard")
def show_live(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the runs are, or will be.")
    ] = Path("runs"),
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    token: TokenOption = None,
) -> None:
    """Show the runs below a directory as a page that follows them while they go on. Ctrl-C ends it.

    Example: mopbt dashboard runs
    """
    from mopbt.html.dashboard import Dashboard, serve

    try:
        serve(
            Dashboard(directory, host=host, port=port, token=token),
            lambda url: print(f"The runs are at {url}", flush=True),
        )
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
