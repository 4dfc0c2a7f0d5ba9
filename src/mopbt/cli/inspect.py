"""What a run found, for people and programs: `mopbt show`, `front`, `lineage`, `list`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mopbt.cli.app import JsonOption, RunArgument, app
from mopbt.cli.output import (
    as_text,
    out,
    plain,
    point_json,
    print_front,
    print_json,
    shortfall,
    summary_of,
    table_of,
)
from mopbt.errors import MopbtError
from mopbt.html.run_data import check_comparable
from mopbt.plots.against import describe_differences, shared_reference
from mopbt.results import Results

COLUMNS = (
    "run",
    "task",
    "algorithm",
    "seed",
    "intervals",
    "front",
    "hypervolume",
    "state",
)  # of the list of runs


@app.command()
def show(path: RunArgument, as_json: JsonOption = False) -> None:
    """Show what a run is and where it stands, also while it goes on."""
    results = Results.open(path)
    summary = summary_of(results)
    if as_json:
        print_json(summary)
        return
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, value in summary.items():
        table.add_row(key.replace("_", " "), as_text(value))
    out.print(table)
    if lacks := shortfall(results):
        out.print(lacks, style="yellow", markup=False, soft_wrap=True)
    for job, error in list(results.failures().items())[-3:]:
        out.print(
            f"interval {job} failed: {error.strip().splitlines()[-1]}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


@app.command()
def front(
    path: RunArgument,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the front into this file (png, pdf or svg).", show_default=False),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="Another run of the same task, to hold against this one.", show_default=False
        ),
    ] = None,
) -> None:
    """List the models on the front of a run, with their hyperparameters; --json also has their files."""
    results = Results.open(path)
    other = None if beside is None else Results.open(beside)
    if other is not None:
        check_comparable([results, other])
    if plot is not None:
        from mopbt.plots.front import plot_front

        plot_front(results, plot, against=other)
    if as_json:
        print_json([point_json(results, point) for point in results.front()])
        return
    if other is None:
        print_front(results, path, max(len(results.front()), 1))
    else:
        print_front(results, path, 12, shared_reference([results, other]))
        for said in describe_differences(results, other):
            out.print(said, soft_wrap=True, markup=False)
    if plot is not None:
        out.print(f"drawn into {plot}", soft_wrap=True)


@app.command()
def lineage(
    path: RunArgument,
    job: Annotated[
        int,
        typer.Argument(
            metavar="JOB", help="The job of a model, as `mopbt front` lists it.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show how a model came to be: the intervals that trained it, through every exploit."""
    results = Results.open(path)
    ancestors = results.lineage(job)
    if as_json:
        keys = ("job", "trial", "begin", "end", "exploited", "hp", "scores")
        print_json([{key: plain(getattr(a, key)) for key in keys} for a in ancestors])
        return
    names, objectives = list(results.problem.space), [o.name for o in results.problem.objectives]
    table = table_of(["steps", "job", "trial", *objectives, *names])
    for a in ancestors:
        trial = f"{a.trial} (duration over)" if a.exploited else str(a.trial)
        scores, values = (
            [as_text(a.scores.get(n, "lost")) for n in objectives],
            [as_text(a.hp[n]) for n in names],
        )
        table.add_row(f"{a.begin}-{a.end}", str(a.job), trial, *scores, *values)
    out.print(table)


@app.command("list")
def list_runs(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to look for runs.")
    ] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the runs below a directory.

    A hypervolume is listed only where the task names its reference point: others cannot be compared.
    """
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}; name the one that holds your runs")
    summaries = [_row(file.parent) for file in sorted(directory.rglob("run.toml"))]
    if as_json:
        print_json(summaries)
        return
    if not summaries:
        out.print(f"no runs below {directory}")
        return
    table = table_of(COLUMNS)
    for summary in summaries:
        table.add_row(*("–" if summary[key] is None else as_text(summary[key]) for key in COLUMNS))
    out.print(table)


def _row(path: Path) -> dict[str, Any]:
    """Return a run's line in the list; a run that cannot be read is listed with the reason."""
    try:
        results = Results.open(path)
    except MopbtError as error:
        return dict.fromkeys(COLUMNS, "") | {"run": str(path), "state": f"unreadable: {error}"}
    summary = summary_of(results) | ({} if results.problem.reference else {"hypervolume": None})
    return {key: summary[key] for key in COLUMNS}
