"""`mopbt run` and `mopbt resume`."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mopbt.algorithms import ALGORITHMS, algorithm_by_name, algorithm_of, options_of
from mopbt.cli.app import EXIT_CODES, JsonOption, QuietOption, RunArgument, Terminated, app
from mopbt.cli.output import out, point_json, print_front, print_json, summary_of
from mopbt.engines.auto import ENGINES
from mopbt.problem import problem_of
from mopbt.registry import find_task, task_fingerprint
from mopbt.run_config import RunConfig
from mopbt.run_directory import read_run_config
from mopbt.runner import execute_run
from mopbt.session import Budget

EngineOption = Annotated[
    str, typer.Option(help=f"Where intervals are trained: auto, {', '.join(ENGINES)}.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        help="Worker processes [default: one for each core], Ray actors, or virtual workers of a simulation.",
        show_default=False,
    ),
]
CostOption = Annotated[
    str | None,
    typer.Option(
        help="Of a simulation: virtual seconds per step, or 'measured' [default: 1].",
        show_default=False,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="Of the Ray cluster: auto, or HOST:PORT [default: what runs here, else its own].",
        show_default=False,
    ),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Where checkpoints are kept: a folder or a URL like s3://bucket/run [default: in --out].",
        show_default=False,
    ),
]
SecondsOption = Annotated[
    float | None, typer.Option(help="Stop after this many seconds of work, over all sessions.")
]
JobsOption = Annotated[int | None, typer.Option(help="Stop after this many intervals.")]
StepsOption = Annotated[
    int | None, typer.Option(help="Stop after this many training steps over all members.")
]


@app.command(epilog=EXIT_CODES)
def run(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A registered task (toy, adult-linear), package.module:object, or file.py:object.",
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--out", help="The run's directory [default: runs/NAME].", show_default=False),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="The size of a task of the paper: paper, small or smoke [default: paper].",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}; see `mopbt algorithms`.")
    ] = "mo-pbt",
    population: Annotated[
        int | None,
        typer.Option(help="Members of the population [default: 32].", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Names all randomness of the run.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of the algorithm, such as -o fraction=0.1 -o asynchronous=true.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    address: AddressOption = None,
    storage: StorageOption = None,
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
    made = algorithm_by_name(algorithm, getattr(found, "population", None), **chosen)
    settings = RunConfig(
        problem_of(found), options_of(made), seed, origin, task_fingerprint=task_fingerprint(origin)
    )
    directory = directory or Path("runs") / settings.problem.name
    budget = Budget(seconds=budget_seconds, jobs=budget_jobs, steps=budget_steps)
    where = {
        "engine": engine,
        "workers": workers,
        "cost": cost,
        "address": address,
        "storage": storage,
    }
    resume_hint = "run the same command again to go on"
    _conduct(
        found,
        settings,
        directory,
        where,
        budget,
        quiet=quiet,
        as_json=as_json,
        resume_hint=resume_hint,
    )


@app.command(epilog=EXIT_CODES)
def resume(
    path: RunArgument,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    address: AddressOption = None,
    budget_seconds: SecondsOption = None,
    budget_jobs: JobsOption = None,
    budget_steps: StepsOption = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Make up for damaged lines of the journal: their jobs are ordered again, their reports count as failed, and all "
            "else stands.",
        ),
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run from where it stands, with the settings that it was started with."""
    from mopbt.compare.collect import comparison_of

    settings = read_run_config(path)
    if comparison := comparison_of(path):
        raise ValueError(
            f"{path} belongs to a comparison, in which all runs have the time that the experiment gives them: "
            f"`mopbt compare {comparison / 'experiment.toml'} --out {comparison}` goes on with it (in its --scale)"
        )
    if not settings.task_reference:
        raise ValueError(
            f"{path} was started from a Python program, which holds its task: run that program again to go on"
        )
    found = _task_of(path, settings)
    settings = replace(
        settings,
        problem=problem_of(found),
        task_fingerprint=task_fingerprint(settings.task_reference),
        engine={},
        storage="",
    )
    budget = Budget(seconds=budget_seconds, jobs=budget_jobs, steps=budget_steps)
    where = {"engine": engine, "workers": workers, "cost": cost, "address": address}
    resume_hint = f"mopbt resume {path} goes on"
    _conduct(
        found,
        settings,
        path,
        where,
        budget,
        repair=repair,
        quiet=quiet,
        as_json=as_json,
        resume_hint=resume_hint,
    )


def _conduct(
    task: Any,
    settings: RunConfig,
    path: Path,
    where: Mapping[str, Any],
    budget: Budget,
    *,
    quiet: bool,
    as_json: bool,
    resume_hint: str,
    repair: bool = False,
) -> None:
    algorithm = algorithm_of(dict(settings.algorithm))
    told: dict[str, Any] = {"progress": not quiet, "repair": repair, "resume_hint": resume_hint}
    try:
        results = execute_run(task, algorithm, settings, out=path, **where, budget=budget, **told)
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    if as_json:
        points = [point_json(results, point) for point in results.front()]
        print_json({"outcome": results.outcome, **summary_of(results), "front": points})
    else:
        print_front(results, path, 20)
        out.print(
            f"The models are in {results.settings.storage or path / 'checkpoints'}; `mopbt front {path}` lists them all.",
            soft_wrap=True,
        )
    if results.outcome == "budget":
        raise typer.Exit(3)


def _task_of(path: Path, settings: RunConfig) -> Any:
    """Return the task of a run, or say how to go on where its file is not where it was."""
    file, _, name = settings.task_reference.rpartition(":")
    if file.endswith(".py") and not Path(file).is_file():
        raise ValueError(
            f"the task of {path} was in {file}, which is not there; put it back, or go on from where it is now with "
            f"`mopbt run NEWPLACE/{Path(file).name}:{name} --out {path}`, and the algorithm, seed and options that "
            f"`mopbt show {path}` lists"
        )
    return find_task(settings.task_reference)[0]


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
