"""Inspect runs: `mopbt show`, `front`, `lineage` and `list`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mopbt.cli.application import JsonOption, ModelArgument, RunArgument, app
from mopbt.cli.options import suggest
from mopbt.cli.output import (
    as_text,
    out,
    plain,
    point_json,
    print_claims,
    print_front,
    print_json,
    print_table,
    print_warning,
    shortfall,
    summary_of,
)
from mopbt.errors import MopbtError
from mopbt.front import Ancestor
from mopbt.html.run_data import check_comparable
from mopbt.messages import byte_size, column_texts, did_you_mean, shortened
from mopbt.plots.against import describe_differences, shared_reference
from mopbt.progress_display import clock
from mopbt.results import Results

# The columns of the list of runs.
COLUMNS = ("run", "task", "algorithm", "seed", "intervals", "front", "hypervolume", "state")
# The same as people read them: what a narrow terminal shows first comes first.
LISTED = ("run", "state", "intervals", "front", "hypervolume", "task", "algorithm", "seed")

STATES = ("running", "interrupted", "done", "unreadable")

PlotOption = Annotated[
    Path | None,
    typer.Option(help="Draw the front into this file (png, pdf or svg).", show_default=False),
]
AgainstOption = Annotated[
    Path | None,
    typer.Option(help="Another run of the same task to compare with.", show_default=False),
]
ObservedOption = Annotated[
    bool,
    typer.Option("--observed", help="Compare models by what they measured, ignoring errors."),
]
ClaimsOption = Annotated[
    bool,
    typer.Option(
        "--claims",
        help="Correct the metrics for having been selected from many evaluations, and print how "
        "likely each model is truly on the front.",
    ),
]
DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory to search.")]
SortOption = Annotated[
    str,
    typer.Option(
        help=f"Column to sort by, numbers from large to small: {', '.join(COLUMNS)}.",
        autocompletion=suggest(*COLUMNS),
    ),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        help=f"Only runs in this state: {', '.join(STATES)}.",
        show_default=False,
        autocompletion=suggest(*STATES),
    ),
]
TaskOption = Annotated[
    str | None, typer.Option(help="Only runs of the task with this name.", show_default=False)
]


@app.command()
def show(path: RunArgument, as_json: JsonOption = False) -> None:
    """Show the settings and the state of a run.

    The run may still be running.
    """
    results = Results.open(path)
    summary = summary_of(results)
    if as_json:
        print_json(summary | {"warning": results.noise_warning(), "advice": results.advice()})
        return
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, value in _readable(summary).items():
        table.add_row(key, shortened(as_text(value)))
    out.print(table)
    if lacks := shortfall(results):
        out.print(lacks, style="yellow", markup=False, soft_wrap=True)
    print_warning(results)
    for sentence in results.advice():
        out.print(f"advice: {sentence}", style="yellow", markup=False, soft_wrap=True)
    for job, error in list(results.failures.items())[-3:]:
        out.print(
            f"interval {job} failed: {error.strip().splitlines()[-1]}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


def _readable(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary with units instead of plain numbers."""
    readable = dict(summary)
    total = readable.pop("intervals_in_all")
    if total is not None:
        readable["intervals"] = f"{summary['intervals']} of {total}"
    readable["seconds"] = clock(summary["seconds"])
    if "bytes" in summary:
        readable["bytes"] = byte_size(summary["bytes"])
    names = {"seconds": "time", "bytes": "disk"}
    return {names.get(key, key): value for key, value in readable.items()}


@app.command()
def front(
    path: RunArgument,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    against: AgainstOption = None,
    observed: ObservedOption = False,
    claims: ClaimsOption = False,
) -> None:
    """List the models on the front of a run.

    Where metrics have errors, models are compared at the bounds of their intervals. With --json,
    the list includes the files of their checkpoints.
    """
    results = Results.open(path)
    other = None if against is None else Results.open(against)
    if other is not None:
        check_comparable([results, other])
    if plot is not None:
        from mopbt.plots.front import plot_front

        plot_front(results, plot, against=other)
    if as_json:
        points = results.front(observed=observed)
        print_json([point_json(results, point) for point in points])
        return
    if claims:
        print_claims(results)
        return
    if other is None:
        print_front(results, path, observed=observed)
    else:
        print_front(results, path, 12, shared_reference([results, other]))
        for said in describe_differences(results, other):
            out.print(said, soft_wrap=True, markup=False)
    if plot is not None:
        out.print(f"Drawn into {plot}.", soft_wrap=True)


@app.command()
def lineage(path: RunArgument, model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show the intervals that trained a model.

    Exploits are followed back to the first interval.
    """
    results = Results.open(path)
    ancestors = results.lineage(model)
    if as_json:
        print_json([_ancestor_json(ancestor) for ancestor in ancestors])
        return
    names = list(results.problem.space)
    objectives = [o.name for o in results.problem.objectives]
    rows = []
    columns = [column_texts([a.hp[name] for a in ancestors]) for name in names]
    for row, a in enumerate(ancestors):
        trial = f"{a.trial} (exploit)" if a.exploited else str(a.trial)
        scores = [as_text(a.scores.get(name, "lost")) for name in objectives]
        values = [column[row] for column in columns]
        rows.append([f"{a.begin}-{a.end}", str(a.model), trial, *scores, *values])
    print_table(["steps", "model", "trial", *objectives, *names], rows)


def _ancestor_json(ancestor: Ancestor) -> dict[str, Any]:
    return {
        "model": ancestor.model,
        "trial": ancestor.trial,
        "begin": ancestor.begin,
        "end": ancestor.end,
        "exploited": ancestor.exploited,
        "hp": plain(dict(ancestor.hp)),
        "scores": plain(dict(ancestor.scores)),
    }


@app.command("list")
def list_runs(
    directory: DirectoryArgument = Path("runs"),
    sort: SortOption = "run",
    state: StateOption = None,
    task: TaskOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs below a directory.

    The hypervolume is shown only for tasks that name a reference point; others are not comparable.

    Example: mopbt list runs --task adult-fairness --state done --sort hypervolume
    """
    for option, value, allowed in (("--sort", sort, COLUMNS), ("--state", state, STATES)):
        if value is not None and value not in allowed:
            names = ", ".join(allowed)
            hint = did_you_mean(value, allowed)
            raise ValueError(f"{option} must be one of {names}, got {value!r}{hint}")
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}; name the one that holds your runs")
    summaries = [_summarize_run(file.parent) for file in sorted(directory.rglob("run.toml"))]
    summaries = [
        summary
        for summary in summaries
        if task in (None, summary["task"]) and _is_in_state(summary, state)
    ]
    summaries.sort(key=lambda summary: _sort_key(summary[sort]))
    if as_json:
        print_json(summaries)
        return
    if not summaries:
        wanted = [f"{name} {value}" for name, value in (("task", task), ("state", state)) if value]
        out.print(f"no runs {'of ' if wanted else ''}{' and '.join(wanted)} below {directory}")
        return
    rows = []
    for summary in summaries:
        shown = summary | {"run": _short_path(summary["run"])}
        rows.append(["–" if shown[key] is None else as_text(shown[key]) for key in LISTED])
    print_table(LISTED, rows)


def _short_path(path: str) -> str:
    """Return a path relative to the working directory, if it is below."""
    place = Path(path)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else path


def _is_in_state(summary: dict[str, Any], state: str | None) -> bool:
    """Check the first word of a state, which may be followed by a process or an error."""
    return state is None or summary["state"].partition(":")[0] == state


def _sort_key(value: Any) -> tuple[int, float, str]:
    """Put the largest numbers first, then text in its order, then what is missing."""
    if isinstance(value, int | float):
        return 0, -value, ""
    return (1, 0.0, value) if value else (2, 0.0, "")


def _summarize_run(path: Path) -> dict[str, Any]:
    """Return the columns of a run, or the reason why it cannot be read."""
    try:
        results = Results.open(path)
        summary = summary_of(results)
    except Exception as error:
        # Whatever is wrong with one run must not hide the others.
        reason = str(error) if isinstance(error, MopbtError) else f"{type(error).__name__}: {error}"
        return dict.fromkeys(COLUMNS, "") | {
            "run": str(path),
            "state": f"unreadable: {shortened(reason)}",
        }
    if not results.problem.reference:
        summary["hypervolume"] = None
    return {key: summary[key] for key in COLUMNS}
