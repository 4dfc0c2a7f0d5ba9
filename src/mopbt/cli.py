"""The command line: `mopbt run`, `resume`, `show`, `front`, `lineage`, `list`, `algorithms`, `compare`."""

import json
import math
import os
import signal
import sys
import tomllib
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from mopbt.algorithms import ALGORITHMS, algorithm_of, named, options_of, options_with_defaults
from mopbt.catalogue import find_task, registered
from mopbt.display import clock
from mopbt.engines.choosing import ENGINES
from mopbt.errors import MopbtError
from mopbt.objectives import signed
from mopbt.results import Point, Results, read_settings
from mopbt.run import Budget, conduct
from mopbt.settings import Settings
from mopbt.task import problem_of
from mopbt.version import __version__

EXIT_CODES = """
Exit codes: 0 done; 1 the run or its directory is in trouble; 2 wrong arguments; 3 stopped by its budget before it was done;
130 interrupted, 143 terminated. After 3, 130 and 143 the same command goes on."""

app = typer.Typer(
    name="mopbt",
    help="Train a population under several conflicting objectives, and get a front of trained models.",
    epilog="Start with: mopbt run adult-linear --out runs/demo\n\n" + EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console(highlight=False, width=None if sys.stdout.isatty() else 240)  # what goes into a file or a pipe is not cut

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
EngineOption = Annotated[str, typer.Option(help=f"Where intervals are trained: auto, {', '.join(ENGINES)}.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Worker processes [default: one for each core], or virtual workers of a simulation.", show_default=False),
]
CostOption = Annotated[
    str | None,
    typer.Option(help="Of a simulation: virtual seconds per step, or 'measured' [default: 1].", show_default=False),
]
SecondsOption = Annotated[float | None, typer.Option(help="Stop after this many seconds of work, over all sessions.")]
JobsOption = Annotated[int | None, typer.Option(help="Stop after this many intervals.")]
StepsOption = Annotated[int | None, typer.Option(help="Stop after this many training steps over all members.")]
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
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    show_traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from (anywhere).")] = False,
) -> None:
    """Train a population under several conflicting objectives, and get a front of trained models."""


@app.command(epilog=EXIT_CODES)
def run(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="A registered task (toy, adult-linear), package.module:object, or file.py:object.")
    ],
    directory: Annotated[
        Path | None, typer.Option("--out", help="The run's directory [default: runs/NAME].", show_default=False)
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="The size of a task of the paper: paper, small or smoke [default: paper].", show_default=False),
    ] = None,
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}; see `mopbt algorithms`.")] = "mo-pbt",
    population: Annotated[int | None, typer.Option(help="Members of the population [default: 32].", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Names all randomness of the run.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", help="An option of the algorithm, such as -o fraction=0.1 -o asynchronous=true.", metavar="KEY=VALUE"
        ),
    ] = None,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    budget_seconds: SecondsOption = None,
    budget_jobs: JobsOption = None,
    budget_steps: StepsOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a population on TASK. The same command goes on with a run that was stopped or killed.

    Example: mopbt run adult-linear --population 16 --seed 1 --out runs/adult-1
    """
    found, origin = find_task(task if scale is None else f"{task}@{scale}")
    chosen = _options(option or []) | ({} if population is None else {"population": population})
    made = named(algorithm, getattr(found, "population", None), **chosen)
    settings = Settings(problem_of(found), options_of(made), seed, origin)
    directory = directory or Path("runs") / settings.problem.name
    budget = Budget(seconds=budget_seconds, jobs=budget_jobs, steps=budget_steps)
    go_on = "run the same command again to go on"
    _conduct(found, settings, directory, engine, workers, cost, budget, quiet=quiet, as_json=as_json, go_on=go_on)


@app.command(epilog=EXIT_CODES)
def resume(
    path: RunArgument,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    budget_seconds: SecondsOption = None,
    budget_jobs: JobsOption = None,
    budget_steps: StepsOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Where a line of the journal is damaged, go on from the lines before it.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run from where it stands, with the settings that it was started with."""
    settings = read_settings(path)
    if not settings.origin:
        raise ValueError(f"{path} was started from a Python program, which holds its task: run that program again to go on")
    found, _ = find_task(settings.origin)
    settings = Settings(problem_of(found), settings.algorithm, settings.seed, settings.origin)
    budget = Budget(seconds=budget_seconds, jobs=budget_jobs, steps=budget_steps)
    _conduct(
        found,
        settings,
        path,
        engine,
        workers,
        cost,
        budget,
        repair=repair,
        quiet=quiet,
        as_json=as_json,
        go_on=f"mopbt resume {path} goes on",
    )


@app.command()
def show(path: RunArgument, as_json: JsonOption = False) -> None:
    """Show what a run is and where it stands, also while it goes on."""
    results = Results.open(path)
    summary = _summary(results)
    if as_json:
        _print_json(summary)
        return
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, value in summary.items():
        table.add_row(key.replace("_", " "), _text(value))
    out.print(table)
    for job, error in list(results.failures().items())[-3:]:
        out.print(f"interval {job} failed: {error.strip().splitlines()[-1]}", style="yellow", markup=False, soft_wrap=True)


@app.command()
def front(
    path: RunArgument,
    as_json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the front into this file (png, pdf or svg).", show_default=False)] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Another run of the same task, to hold against this one.", show_default=False)
    ] = None,
) -> None:
    """List the models on the front of a run, with their hyperparameters and files."""
    results = Results.open(path)
    other = _beside(results, beside)
    if plot is not None:
        from mopbt.report.figures import plot_front

        plot_front(results, plot, beside=other)
    if as_json:
        _print_json([_point_json(results, point) for point in results.front()])
        return
    _print_front(results, path, max(len(results.front()), 1) if other is None else 12)
    if other is not None:
        out.print(_held_against(results, other), soft_wrap=True)
    if plot is not None:
        out.print(f"drawn into {plot}", soft_wrap=True)


@app.command()
def lineage(
    path: RunArgument,
    job: Annotated[int, typer.Argument(help="The job of a model, as `mopbt front` lists it.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show how a model came to be: the intervals that trained it, through every exploit."""
    results = Results.open(path)
    ancestors = results.lineage(job)
    if as_json:
        keys = ("job", "trial", "begin", "end", "exploited", "values", "scores")
        _print_json([{key: _plain(getattr(a, key)) for key in keys} for a in ancestors])
        return
    names, objectives = list(results.problem.space), [o.name for o in results.problem.objectives]
    table = _table(["steps", "job", "trial", *objectives, *names])
    for a in ancestors:
        trial = f"{a.trial} (took over)" if a.exploited else str(a.trial)
        scores, values = [_text(a.scores[n]) for n in objectives], [_text(a.values[n]) for n in names]
        table.add_row(f"{a.begin}-{a.end}", str(a.job), trial, *scores, *values)
    out.print(table)


@app.command("algorithms")
def list_algorithms(as_json: JsonOption = False) -> None:
    """List the algorithms with their options and defaults, and where the paper has them."""
    listed = [
        {"name": name, "about": str(kind.__doc__), "section": kind.section, "options": options_with_defaults(kind)}
        for name, kind in ALGORITHMS.items()
    ]
    if as_json:
        _print_json(listed)
        return
    for entry in listed:
        out.print(f"[bold]{entry['name']}[/bold]  (paper: {entry['section']})")
        out.print(Padding(entry["about"], (0, 0, 0, 4), expand=False), markup=False)
        options = "  ".join(f"{key}={_option_text(value)}" for key, value in entry["options"].items())
        out.print(Padding(options, (0, 0, 0, 4), expand=False), style="dim", markup=False)
    out.print("Choose one with --algorithm NAME, and options with -o KEY=VALUE, as in: mopbt run toy --algorithm mo-asha -o eta=2")


@app.command("tasks")
def list_tasks(as_json: JsonOption = False) -> None:
    """List the registered tasks with their objectives, hyperparameters, scales, and whether their data are here."""
    listed = [_task_row(name, point) for name, point in registered().items()]
    if as_json:
        _print_json(listed)
        return
    for row in listed:
        scales = f", scales {', '.join(row['scales'])}" if row["scales"] else ""
        out.print(f"[bold]{row['name']}[/bold]  {row['about']}{scales}")
        directions = ", ".join(f"{name} {direction}" for name, direction in row["objectives"].items())
        out.print(Padding(f"{directions}; tunes {', '.join(row['space'])}", (0, 0, 0, 4), expand=False), style="dim", markup=False)
        if row["data"]:
            out.print(Padding(f"data {row['data']}", (0, 0, 0, 4), expand=False), style="dim", markup=False)
    out.print("Run one with: mopbt run NAME --scale small --out runs/mine")


@app.command("list")
def list_runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to look for runs.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the runs below a directory."""
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}; name the one that holds your runs")
    summaries = [_row(file.parent) for file in sorted(directory.rglob("run.toml"))]
    if as_json:
        _print_json(summaries)
        return
    if not summaries:
        out.print(f"no runs below {directory}")
        return
    table = _table(["run", "task", "algorithm", "seed", "intervals", "front", "hypervolume", "state"])
    for s in summaries:
        table.add_row(
            *(_text(s[key]) for key in ("run", "task", "algorithm", "seed", "intervals", "front", "hypervolume", "state"))
        )
    out.print(table)


@app.command("compare", epilog=EXIT_CODES)
def compare_algorithms(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="The experiment's TOML file.", show_default=False)],
    directory: Annotated[
        Path | None, typer.Option("--out", help="The comparison's directory [default: comparisons/NAME].", show_default=False)
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="The size of tasks of the paper: paper, small or smoke [default: paper].", show_default=False)
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs side by side [default: one for each core].", show_default=False)] = None,
    only_report: Annotated[
        bool, typer.Option("--only-report", "--recompute", help="Run nothing; compute everything anew from the journals.")
    ] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write all evaluations as Parquet as well (needs pyarrow).")] = False,
    quiet: QuietOption = False,
) -> None:
    """Compare algorithms over tasks and seeds under a virtual clock; write tables and figures. The same command goes on.

    Example: mopbt compare experiments/self-check.toml --out comparisons/self-check
    """
    from mopbt.compare import Experiment, compare, recompute
    from mopbt.report.comparison import write_report

    read = Experiment.read(experiment)
    directory = directory or Path("comparisons") / "-".join(filter(None, (read.name, scale)))
    try:
        if only_report:
            comparison = recompute(read, out=directory, scale=scale, parquet=parquet)
        else:
            comparison = compare(read, out=directory, scale=scale, jobs=jobs, progress=not quiet, parquet=parquet)
        files = write_report(comparison, directory) if comparison.runs else []
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    if files:
        where = f"{directory / 'tables.md'}, figures in {directory / 'figures'}"
        out.print(f"Tables of {len(comparison.runs)} runs are in {where}.", soft_wrap=True)
    if comparison.missing:
        again = "the same command without --only-report" if only_report else "the same command"
        out.print(f"Missing runs: {len(comparison.missing)}; {again} goes on with them.", soft_wrap=True)
    if comparison.failures:
        for planned, error in comparison.failures.items() if quiet else ():
            print(f"{planned}: {error.strip()}", file=sys.stderr)
        raise typer.Exit(1)


def _conduct(
    task: Any,
    settings: Settings,
    path: Path,
    engine: str,
    workers: int | None,
    cost: str | None,
    budget: Budget,
    *,
    quiet: bool,
    as_json: bool,
    go_on: str,
    repair: bool = False,
) -> None:
    algorithm = algorithm_of(dict(settings.algorithm))
    where: dict[str, Any] = {"out": path, "engine": engine, "workers": workers, "cost": cost}
    try:
        results = conduct(task, algorithm, settings, **where, budget=budget, progress=not quiet, repair=repair, go_on=go_on)
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    if as_json:
        points = [_point_json(results, point) for point in results.front()]
        _print_json({"outcome": results.outcome, **_summary(results), "front": points})
    else:
        _print_front(results, path, 20)
        out.print(f"The models are in {path / 'checkpoints'}; `mopbt front {path}` lists them all.", soft_wrap=True)
    if results.outcome == "budget":
        raise typer.Exit(3)


def _beside(results: Results, path: Path | None) -> Results | None:
    """Open another run of the same task."""
    if path is None:
        return None
    other = Results.open(path)
    mine, theirs = ([(o.name, o.direction) for o in r.problem.objectives] for r in (results, other))
    if mine != theirs:
        raise ValueError(f"{path} has the objectives {theirs}; to be held against each other, both need {mine}")
    return other


def _held_against(results: Results, other: Results) -> str:
    """Return in a sentence what a run has that the other lacks."""
    mine, theirs = (np.array([signed(r.problem.objectives, p.scores) for p in r.front()]) for r in (results, other))
    beaten = sum(bool(((mine >= point).all(axis=1) & (mine > point).any(axis=1)).any()) for point in theirs)
    names = [r.settings.algorithm["name"] for r in (results, other)]
    volumes = f"hypervolume {results.hypervolume():.5g} against {other.hypervolume():.5g}"
    return f"{names[0]} against {names[1]}: {volumes}; {beaten} of the other's {len(theirs)} models are dominated."


def _task_row(name: str, point: Any) -> dict[str, Any]:
    """Return what there is to say of a registered task without loading its data."""
    try:
        task = point.load()
        task = task() if isinstance(task, type) else task
    except Exception as error:  # of somebody's package: the others can still be listed
        return {"name": name, "about": f"cannot be loaded: {error}", "objectives": {}, "space": [], "scales": [], "data": ""}
    about = getattr(task, "about", "") or str(type(task).__doc__).partition("\n")[0]
    data = getattr(task, "data_state", lambda: "")()
    return {
        "name": name,
        "about": about,
        "objectives": dict(task.objectives),
        "space": list(task.space),
        "scales": list(getattr(task, "scales", ())),
        "data": data,
    }


def _option_text(value: Any) -> str:
    if value is None:
        return "none"
    return _text(value).lower() if isinstance(value, bool) else _text(value)


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--option must read KEY=VALUE, as in fraction=0.1, got {pair!r}")
        try:
            options[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = text  # a word without quotes
    return options


def _summary(results: Results) -> dict[str, Any]:
    settings, best, path = results.settings, results.front(), results.path or Path()
    sizes = _sizes(path / "checkpoints")
    return {
        "run": str(path),
        "task": settings.problem.name,
        "algorithm": settings.algorithm["name"],
        "seed": settings.seed,
        "objectives": {o.name: o.direction for o in settings.problem.objectives},
        "constraints": [str(c) for c in settings.problem.constraints],
        "hyperparameters": list(settings.problem.space),
        "options": {k: v for k, v in settings.algorithm.items() if k != "name"},
        "state": _state(results),
        "intervals": len(results),
        "intervals_in_all": results.intervals,
        "failures": len(results.failures()),
        "seconds": results.seconds,
        "front": len(best),
        "best": best.best(),
        "hypervolume": results.hypervolume(),
        "checkpoints": len(sizes),
        "bytes": sum(sizes),
    }


def _state(results: Results) -> str:
    if holder := results.running:
        return f"driven by {holder}"
    return "done" if len(results) == results.intervals else "at rest"


def _sizes(directory: Path) -> list[int]:
    sizes = []
    for file in directory.glob("*.ckpt"):
        with suppress(FileNotFoundError):  # the run goes on, and drops what it needs no more
            sizes.append(file.stat().st_size)
    return sizes


def _row(path: Path) -> dict[str, Any]:
    """Return a run's line in the list; a run that cannot be read is listed with the reason."""
    try:
        results = Results.open(path)
    except MopbtError as error:
        unread = dict.fromkeys(("task", "algorithm", "seed", "intervals", "front", "hypervolume"), "")
        return {"run": str(path), **unread, "state": f"unreadable: {error}"}
    keys = ("run", "task", "algorithm", "seed", "intervals", "front", "hypervolume")
    summary = _summary(results)
    return {key: summary[key] for key in (*keys, "state")}


def _point_json(results: Results, point: Point) -> dict[str, Any]:
    row = {"job": point.job, "trial": point.trial, "step": point.step, "scores": _plain(point.scores), "values": dict(point.values)}
    return row | {"violation": point.violation, "checkpoint": str(results.checkpoint_file(point))}


def _print_front(results: Results, path: Path, most: int) -> None:
    best, problem = results.front(), results.problem
    arrows = {"max": "↑", "min": "↓"}
    table = _table(["job", "trial", "step", *(f"{o.name} {arrows[o.direction]}" for o in problem.objectives), *problem.space])
    shown = best.spread(most)
    for p in shown:
        scores, values = [_text(p.scores[o.name]) for o in problem.objectives], [_text(p.values[n]) for n in problem.space]
        table.add_row(str(p.job), str(p.trial), str(p.step), *scores, *values)
    out.print(table)
    count = f"{len(best)} models on the front" + (f" ({len(shown)} of them shown)" if len(shown) < len(best) else "")
    numbers = f"hypervolume {results.hypervolume():.5g}, {len(results)} intervals, {clock(results.seconds)}"
    out.print(f"{count}, {numbers}.", soft_wrap=True)
    hint = f"Hyperparameters are those of the last interval; `mopbt lineage {path} JOB` shows all that made a model."
    out.print(hint, soft_wrap=True)


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        is_text = column in ("run", "task", "algorithm", "state")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "state")
    return table


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value) if value != "" else "nobody"


def _plain(value: Any) -> Any:
    """Return a value without NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def main() -> None:
    """Run the command line: errors are messages, and become exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(args=[argument for argument in sys.argv[1:] if argument != "--traceback"])
    except (MopbtError, ValueError, TypeError, OSError) as error:
        _explain(error)
        sys.exit(2 if isinstance(error, ValueError | TypeError) else 1)


def _explain(error: Exception) -> None:
    if "--traceback" in sys.argv or os.environ.get("MOPBT_TRACEBACK"):
        traceback.print_exception(error)
    print(f"mopbt: {error}", file=sys.stderr)
