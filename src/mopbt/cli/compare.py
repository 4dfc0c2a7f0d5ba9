"""`mopbt compare`."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mopbt.cli.app import EXIT_CODES, QuietOption, Terminated, app
from mopbt.cli.output import out
from mopbt.errors import last_line

if TYPE_CHECKING:
    from mopbt.compare import Comparison


@app.command("compare", epilog=EXIT_CODES)
def compare_algorithms(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIMENT", help="The experiment's TOML file.", show_default=False
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The comparison's directory [default: comparisons/NAME].",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="The size of tasks of the paper: paper, small or smoke [default: paper].",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this task of the experiment now, and not the others; can be repeated.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs side by side [default: one for each core].", show_default=False),
    ] = None,
    only_report: Annotated[
        bool,
        typer.Option(
            "--only-report",
            "--recompute",
            help="Run nothing; compute everything anew from the journals.",
        ),
    ] = False,
    parquet: Annotated[
        bool,
        typer.Option("--parquet", help="Write all evaluations as Parquet as well (needs pyarrow)."),
    ] = False,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            help="Where other comparisons are; runs of theirs that are the same are not repeated.",
            show_default=False,
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Compare algorithms over tasks and seeds under a virtual clock; write tables and figures. The same command goes on.

    Example: mopbt compare experiments/self-check.toml --out comparisons/self-check
    """
    from mopbt.compare import Experiment, compare, recompute
    from mopbt.compare.report import write_report

    read = Experiment.read(experiment)
    given = [
        name for name, value in {"--task": task, "--reuse": reuse, "--jobs": jobs}.items() if value
    ]
    if only_report and given:
        raise ValueError(
            f"--only-report computes everything from all finished runs: leave out {given[0]}"
        )
    draws = importlib.util.find_spec("matplotlib") is not None
    if not draws:
        print(
            "no figures will be drawn without matplotlib: pip install 'mopbt[plot]'; tables are written",
            file=sys.stderr,
        )
    directory = directory or Path("comparisons") / "-".join(
        filter(None, (read.name, scale if scale != "paper" else None))
    )
    try:
        if only_report:
            comparison = recompute(read, out=directory, scale=scale, parquet=parquet)
        else:
            comparison = compare(
                read,
                out=directory,
                scale=scale,
                tasks=task or (),
                jobs=jobs,
                progress=not quiet,
                parquet=parquet,
                reuse=reuse or (),
            )
        files = write_report(comparison, directory, figures=draws) if comparison.runs else []
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    if files:
        drawn = any(file.suffix == ".png" for file in files)
        why = "there is nothing to draw" if draws else "matplotlib is not installed"
        figures = f"figures in {directory / 'figures'}" if drawn else f"no figure: {why}"
        out.print(
            f"Tables of {len(comparison.runs)} runs are in {directory / 'tables.md'}, {figures}.",
            soft_wrap=True,
        )
    _tell_what_is_wrong(
        comparison,
        without="--only-report" if only_report else "--task" if task else "",
        quiet=quiet,
    )


def _tell_what_is_wrong(comparison: "Comparison", *, without: str, quiet: bool) -> None:
    """Say what is missing, and which option of the command to leave out to go on with it; exit where runs failed."""
    from mopbt.compare.report import comparability_warnings

    for sentence in comparability_warnings(comparison):
        out.print(sentence, soft_wrap=True)
    if comparison.changed:
        names = ", ".join(comparison.changed)
        out.print(
            f"The code of {names} has changed since these runs; another directory runs it as it is now.",
            soft_wrap=True,
        )
    if comparison.missing:
        again = "the same command" + (f" without {without}" if without else "")
        out.print(
            f"Missing runs: {len(comparison.missing)}; {again} goes on with them.", soft_wrap=True
        )
    if comparison.failures:
        for planned, error in comparison.failures.items() if quiet else ():
            print(f"{planned}: {last_line(error)}", file=sys.stderr)
        out.print("Where the failures came from is in about.json.", soft_wrap=True)
        raise typer.Exit(1)
