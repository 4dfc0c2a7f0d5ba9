"""Compare algorithms: `mopbt compare`."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mopbt.cli.application import EXIT_CODES, QuietOption, Terminated, app
from mopbt.cli.options import ResourceOptions, expand_options
from mopbt.cli.output import out
from mopbt.errors import last_line

if TYPE_CHECKING:
    from mopbt.compare import Comparison


ExperimentArgument = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="TOML file of the experiment.", show_default=False),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Directory of the comparison [default: comparisons/NAME].",
        show_default=False,
    ),
]
ScaleOption = Annotated[
    str | None,
    typer.Option(
        help="Size of the paper's tasks: paper, small or smoke [default: paper].",
        show_default=False,
    ),
]
TaskOption = Annotated[
    list[str] | None,
    typer.Option(help="Run only this task of the experiment; can be repeated.", show_default=False),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        help="Number of parallel runs [default: one per GPU, or one per core; on Ray 1].",
        show_default=False,
    ),
]
EngineOption = Annotated[
    str, typer.Option(help="Where the runs train: auto for this machine, or ray for a cluster.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Number of Ray actors of each run.", show_default=False),
]
OnlyReportOption = Annotated[
    bool,
    typer.Option(
        "--only-report",
        "--recompute",
        help="Recompute everything from the journals, without running anything.",
    ),
]
ParquetOption = Annotated[
    bool,
    typer.Option("--parquet", help="Also write all evaluations as Parquet (needs pyarrow)."),
]
ReuseOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="Directory of other comparisons, whose identical runs are not repeated.",
        show_default=False,
    ),
]


@app.command("compare", epilog=EXIT_CODES)
@expand_options
def compare_algorithms(
    *,
    experiment: ExperimentArgument,
    directory: OutOption = None,
    scale: ScaleOption = None,
    task: TaskOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    resources: ResourceOptions,
    only_report: OnlyReportOption = False,
    parquet: ParquetOption = False,
    reuse: ReuseOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare algorithms over tasks and seeds.

    The command writes tables and figures. A virtual clock times the runs. Rerun the same command
    to resume.

    Example: mopbt compare experiments/self-check.toml --out comparisons/self-check
    """
    from mopbt.compare import Experiment, compare, recompute

    plan = Experiment.read(experiment)
    training: dict[str, Any] = {"jobs": jobs, "workers": workers, **resources.settings()}
    if only_report:
        _check_only_report({"task": task, "reuse": reuse, **training})
    draws = _can_draw()
    suffix = f"-{scale}" if scale and scale != "paper" else ""
    directory = directory or Path("comparisons") / f"{plan.name}{suffix}"
    where: dict[str, Any] = {"out": directory, "scale": scale, "parquet": parquet}
    options: dict[str, Any] = {"tasks": task or (), "reuse": reuse or (), "engine": engine}
    options |= {"jobs": training.pop("jobs"), "engine_options": training}
    try:
        if only_report:
            comparison = recompute(plan, **where)
        else:
            comparison = compare(plan, **where, **options, progress=not quiet)
        if comparison.runs:
            _report(comparison, directory, draws=draws)
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    without = "--task" if task else ""
    _print_problems(comparison, without="--only-report" if only_report else without, quiet=quiet)


def _can_draw() -> bool:
    """Check whether matplotlib is installed, and warn if it is not."""
    draws = importlib.util.find_spec("matplotlib") is not None
    if not draws:
        print(
            "matplotlib is not installed, so only tables are written; for figures: "
            "pip install 'mopbt[plot]'",
            file=sys.stderr,
        )
    return draws


def _check_only_report(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"--only-report recomputes everything from all finished runs: leave out {option}"
            )


def _report(comparison: "Comparison", directory: Path, *, draws: bool) -> None:
    """Print the tables, write tables and figures, and print where they are."""
    from mopbt.compare.report import build_report

    report = build_report(comparison)
    if text := report.text(out.width):
        out.print(text, soft_wrap=True, markup=False, emoji=False)
    files = report.write(directory, figures=draws)
    if any(file.suffix == ".png" for file in files):
        figures = f"figures in {directory / 'figures'}"
    else:
        why = "there is nothing to draw" if draws else "matplotlib is not installed"
        figures = f"no figure: {why}"
    out.print(
        f"Tables of {len(comparison.runs)} runs are in {directory / 'tables.md'}, {figures}.",
        soft_wrap=True,
    )


def _print_problems(comparison: "Comparison", *, without: str, quiet: bool) -> None:
    """Print changed code, missing runs and failures; exit with 1 if runs failed.

    `without` is the option to leave out to complete missing runs.
    """
    from mopbt.compare.report import comparability_warnings

    for sentence in comparability_warnings(comparison):
        out.print(sentence, soft_wrap=True)
    if comparison.changed:
        names = ", ".join(comparison.changed)
        out.print(
            f"The code of {names} has changed since these runs; to run the current code, use "
            f"another directory.",
            soft_wrap=True,
        )
    if comparison.missing:
        command = "the same command" + (f" without {without}" if without else "")
        out.print(
            f"Missing runs: {len(comparison.missing)}; rerun {command} to complete them.",
            soft_wrap=True,
        )
    if comparison.failures:
        if quiet:
            for planned, error in comparison.failures.items():
                print(f"{planned}: {last_line(error)}", file=sys.stderr)
        out.print("The tracebacks of the failures are in about.json.", soft_wrap=True)
        raise typer.Exit(1)
