"""Start and resume runs: `mopbt run` and `mopbt resume`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mopbt.algorithms import algorithm_of, options_of
from mopbt.cli.application import (
    EXIT_CODES,
    JsonOption,
    QuietOption,
    RunArgument,
    Terminated,
    TrustOption,
    app,
    check_trusted,
)
from mopbt.cli.options import (
    BudgetOptions,
    CompileOption,
    EngineOptions,
    KeepOption,
    KeepPrecisionOption,
    PrecisionOption,
    ResourceOptions,
    TaskOptions,
    expand_options,
)
from mopbt.cli.output import database_url, out, point_json, print_front, print_json, summary_of
from mopbt.estimate import CONFIDENCE
from mopbt.fingerprint import code_of
from mopbt.messages import counted, did_you_mean
from mopbt.problem import (
    Problem,
    problem_of,
    with_compile,
    with_constraints,
    with_initial,
    with_precision,
)
from mopbt.registry import (
    find_task,
    registered,
    split_scale,
    task_fingerprint,
)
from mopbt.run_config import RunConfig, as_recorded, recorded_precision
from mopbt.run_directory import RunDirectory, locked_run
from mopbt.runner import DEFAULT_OUT, default_directory, execute_run
from mopbt.session import Budget
from mopbt.trackers import MLflow, TensorBoard, Tracker, WandB
from mopbt.warm_start import with_warm_start

TRACKERS: dict[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": lambda place: MLflow(database_url(place, "mlflow.db")),
    "wandb": WandB,
}

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help=f"Directory of the run [default: {DEFAULT_OUT}].", show_default=False
    ),
]
SeedOption = Annotated[int, typer.Option(help="Random seed of the run.")]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Where to keep checkpoints: a directory, or a URL like s3://bucket/run [default: in "
        "--out].",
        show_default=False,
    ),
]
ConstraintOption = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint",
        help='A constraint on a metric, such as --constraint "accuracy > 0.52", in addition to '
        "those of the task; can be repeated.",
        metavar="CONSTRAINT",
    ),
]
InitialOption = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with a list of configurations, by hyperparameter, with which the first "
        "trials start.",
        show_default=False,
    ),
]
WarmStartOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of an earlier run, from whose models on the front the first trials start.",
        show_default=False,
    ),
]
MoreStepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps", help="Extend the training of each member to this many steps.", show_default=False
    ),
]
MoreMembersOption = Annotated[
    int | None,
    typer.Option(
        "--population",
        help="Extend the population to this many members.",
        show_default=False,
    ),
]
OnChangeOption = Annotated[
    str,
    typer.Option(
        help="What to do if the run was started with other code of its task: error, or continue "
        "to train the rest with the code as it is."
    ),
]
ConfidenceOption = Annotated[
    float,
    typer.Option(help="The confidence of the intervals of metrics that have an error."),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help=f"Log the run while it executes: {', '.join(TRACKERS)}, with a directory (for mlflow "
        "also a URL), such as --track tensorboard=logs; can be repeated.",
        metavar="TRACKER=PLACE",
    ),
]
RepairOption = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="Repair damaged lines of the journal: their jobs are repeated, their reports count "
        "as failed, and everything else stays.",
    ),
]


@app.command(epilog=EXIT_CODES)
@expand_options
def run(
    *,
    wanted: TaskOptions,
    directory: OutOption = None,
    seed: SeedOption = 0,
    initial: InitialOption = None,
    warm_start: WarmStartOption = None,
    constraint: ConstraintOption = None,
    engine: EngineOptions,
    resources: ResourceOptions,
    precision: PrecisionOption = None,
    compile: CompileOption = None,
    storage: StorageOption = None,
    keep: KeepOption = None,
    keep_precision: KeepPrecisionOption = None,
    limits: BudgetOptions,
    confidence: ConfidenceOption = CONFIDENCE,
    on_change: OnChangeOption = "error",
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a population on TASK. Rerun the same command to resume a run.

    Example: mopbt run trade-off --population 16 --seed 1 --out runs/trade-off-1
    """
    found, reference = wanted.load_task(quiet=quiet)
    found = with_compile(with_precision(found, precision), compile)
    chosen = wanted.make_algorithm(found)
    fingerprint = _fingerprint(found, reference)
    problem = with_initial(problem_of(found), [] if initial is None else _read_initial(initial))
    settings = RunConfig(
        with_constraints(problem, constraint or ()),
        options_of(chosen),
        seed,
        reference,
        task_fingerprint=fingerprint,
        confidence=confidence,
        keep=keep,
        keep_precision=keep_precision,
        precision=recorded_precision(found),
    )
    directory = directory or default_directory(settings)
    _execute(
        found,
        with_warm_start(settings, warm_start, directory),
        directory,
        limits.budget(),
        as_json=as_json,
        engine=engine.name,
        engine_options=engine.settings(resources),
        storage=storage,
        progress=not quiet,
        on_change=on_change,
        callbacks=_parse_trackers(track),
        resume_hint="rerun the same command to resume",
    )


@app.command(epilog=EXIT_CODES)
@expand_options
def resume(
    *,
    path: RunArgument,
    engine: EngineOptions,
    resources: ResourceOptions,
    precision: PrecisionOption = None,
    limits: BudgetOptions,
    steps: MoreStepsOption = None,
    population: MoreMembersOption = None,
    repair: RepairOption = False,
    trust: TrustOption = False,
    on_change: OnChangeOption = "error",
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resume a run with its recorded settings, or extend it.

    Example: mopbt resume runs/trade-off-1 --steps 200
    """
    given = {"steps": steps, "population": population}
    where: dict[str, Any] = {
        "engine": engine.name,
        "engine_options": engine.settings(resources),
        "progress": not quiet,
        "repair": repair,
        "extend": {name: value for name, value in given.items() if value is not None},
        "on_change": on_change,
        "callbacks": _parse_trackers(track),
        "resume_hint": f"run `mopbt resume {path}` to resume",
    }
    budget = limits.budget()
    with locked_run(path) as (directory, recorded):
        found = find_task_of(path, recorded, trust=trust, precision=precision)
        settings = replace(
            recorded,
            problem=_resumed_problem(problem_of(found), recorded.problem),
            task_fingerprint=_fingerprint(found, recorded.task_reference),
            engine={},
            storage="",
        )
        _execute(found, settings, path, budget, as_json=as_json, directory=directory, **where)


def _fingerprint(task: Any, reference: str) -> str:
    """Return the version of a registered task, or the fingerprint of another one."""
    if split_scale(reference)[0] in registered():
        return task_fingerprint(reference)
    return code_of(task)


def _resumed_problem(task: Problem, recorded: Problem) -> Problem:
    """Return the problem of a task with the configurations and constraints of its run."""
    constraints = task.constraints
    if recorded.constraints[: len(constraints)] == constraints:
        constraints = recorded.constraints
    return replace(task, initial=recorded.initial, constraints=constraints)


def _execute(
    task: Any,
    settings: RunConfig,
    path: Path,
    budget: Budget,
    *,
    as_json: bool,
    directory: RunDirectory | None = None,
    **options: Any,
) -> None:
    """Execute a run and print its front; exit with the code of its outcome.

    `directory` is that of the run if it is already locked.
    """
    algorithm = algorithm_of(dict(settings.algorithm))
    options["out"] = directory or path
    try:
        results = execute_run(task, algorithm, settings, budget=budget, **options)
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    if as_json:
        points = [point_json(results, point) for point in results.front()]
        print_json({"outcome": results.outcome, **summary_of(results), "front": points})
    else:
        print_front(results, path, 20)
        storage = results.settings.storage or path / "checkpoints"
        models = "The models"
        if settings.keep is not None:
            models = f"The weights of {counted(len(results.models_with_weights()), 'model')}"
        where = f"{models} are in {storage}; `mopbt front {path}` lists them all."
        out.print(where, soft_wrap=True)
    if results.outcome == "budget":
        raise typer.Exit(3)


def find_task_of(
    path: Path, settings: RunConfig, *, trust: bool, precision: str | None = None
) -> Any:
    """Return the task of a run, or raise ValueError that says how to resume.

    It has the precision of the run, unless another one is given, and is compiled like it.
    """
    from mopbt.compare.directory import comparison_of

    if comparison := comparison_of(path):
        raise ValueError(
            f"{path} belongs to a comparison, in which the experiment sets the time of each run: "
            f"resume it with `mopbt compare {comparison / 'experiment.toml'} --out {comparison}` "
            f"(and its --scale)"
        )
    if not settings.task_reference:
        raise ValueError(
            f"{path} was started from a Python program, which holds its task: rerun that program "
            f"to resume"
        )
    file, _, name = settings.task_reference.rpartition(":")
    if file.endswith(".py") and not Path(file).is_file():
        raise ValueError(
            f"the task of {path} was in {file}, which does not exist; put it back, or resume from "
            f"its new place with `mopbt run NEWPLACE/{Path(file).name}:{name} --out {path}`, and "
            f"the algorithm, seed and options that `mopbt show {path}` lists"
        )
    check_trusted(path, settings.task_reference, trust)
    return as_recorded(find_task(settings.task_reference)[0], settings, precision)


def _read_initial(file: Path) -> Any:
    """Read configurations from a JSON file; ValueError if it cannot be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--initial must be a JSON file with a list of configurations, got {file}: {error}; "
            'write [{"NAME": VALUE, ...}, ...] with all hyperparameters'
        ) from None


def _parse_trackers(pairs: Sequence[str] | None) -> list[Tracker]:
    trackers = []
    for pair in pairs or ():
        kind, equals, place = pair.partition("=")
        if kind not in TRACKERS or not equals or not place:
            raise ValueError(
                f"--track must read TRACKER=PLACE with one of {', '.join(TRACKERS)}, as in "
                f"tensorboard=logs, got {pair!r}{did_you_mean(kind, TRACKERS)}"
            )
        trackers.append(TRACKERS[kind](place))
    return trackers
