"""Start and resume runs: `mopbt run` and `mopbt resume`."""

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mopbt.algorithms import ALGORITHMS, algorithm_by_name, algorithm_of, options_of
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
from mopbt.cli.output import database_url, out, point_json, print_front, print_json, summary_of
from mopbt.engines.auto import ENGINES
from mopbt.estimate import CONFIDENCE
from mopbt.fingerprint import code_of
from mopbt.messages import counted, did_you_mean
from mopbt.problem import (
    Problem,
    problem_of,
    suggested_population,
    with_constraints,
    with_initial,
)
from mopbt.progress_display import Display
from mopbt.registry import (
    TaskFamily,
    find_family,
    find_task,
    registered,
    split_scale,
    task_fingerprint,
    with_scale,
)
from mopbt.run_config import RunConfig
from mopbt.run_directory import read_run_config
from mopbt.runner import DEFAULT_OUT, default_directory, execute_run
from mopbt.session import Budget
from mopbt.trackers import MLflow, TensorBoard, Tracker, WandB
from mopbt.warm_start import with_warm_start

TRACKERS: dict[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": lambda place: MLflow(database_url(place, "mlflow.db")),
    "wandb": WandB,
}

TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A registered task (toy, trade-off), package.module:object, or file.py:object.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help=f"Directory of the run [default: {DEFAULT_OUT}].", show_default=False
    ),
]
ScaleOption = Annotated[
    str | None,
    typer.Option(
        help="Size of a task of the paper: paper, small or smoke [default: paper].",
        show_default=False,
    ),
]
PartialDataOption = Annotated[
    bool,
    typer.Option(
        "--allow-partial-data",
        help="Train at scale paper on data that is incomplete or substituted.",
    ),
]
AlgorithmOption = Annotated[
    str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}; see `mopbt algorithms`.")
]
PopulationOption = Annotated[
    int | None,
    typer.Option(help="Size of the population [default: 32].", show_default=False),
]
SeedOption = Annotated[int, typer.Option(help="Random seed of the run.")]
AlgorithmOptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        help="An option of the algorithm, such as -o fraction=0.1 -o asynchronous=true.",
        metavar="KEY=VALUE",
    ),
]
EngineOption = Annotated[
    str, typer.Option(help=f"What executes the training: auto, {', '.join(ENGINES)}.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        help="Number of worker processes [default: one per GPU, or one per core], Ray actors, or "
        "virtual workers of a simulation.",
        show_default=False,
    ),
]
CostOption = Annotated[
    str | None,
    typer.Option(
        help="Virtual seconds per step of a simulation, or 'measured' [default: 1].",
        show_default=False,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster: auto, or HOST:PORT [default: a local cluster if one is running, else a "
        "new one].",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        help="Where workers compute: auto, cpu, or a list such as 0,1 or cuda:0,cuda:1 [default: "
        "auto].",
        show_default=False,
    ),
]
WorkersPerDeviceOption = Annotated[
    int | None,
    typer.Option(help="Number of workers that share a device.", show_default=False),
]
StackOption = Annotated[
    int | None,
    typer.Option(
        help="Members that a vectorized worker or a Ray actor trains as one program.",
        show_default=False,
    ),
]
CpusOption = Annotated[
    float | None, typer.Option("--num-cpus", help="CPUs of a Ray actor [default: 1].")
]
GpusOption = Annotated[
    float | None,
    typer.Option("--num-gpus", help="GPUs of a Ray actor; 0.25 puts four on each [default: 0]."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds that an interval may take before its worker is killed; a stack of n members "
        "may take n times as long [default: no limit].",
        show_default=False,
    ),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Where to keep checkpoints: a directory, or a URL like s3://bucket/run [default: in "
        "--out].",
        show_default=False,
    ),
]
KeepOption = Annotated[
    int | None,
    typer.Option(
        help="How many models of the front keep their weights on disk, a scattered subset "
        "[default: all].",
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
SecondsOption = Annotated[
    float | None, typer.Option(help="Stop after this many seconds of work, over all sessions.")
]
JobsOption = Annotated[int | None, typer.Option(help="Stop after this many intervals.")]
StepsOption = Annotated[
    int | None, typer.Option(help="Stop after this many training steps over all members.")
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
StallOption = Annotated[
    int | None,
    typer.Option(
        help="Stop when the hypervolume has not grown by more than its error for this many "
        "generations."
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
def run(
    task: TaskArgument,
    directory: OutOption = None,
    scale: ScaleOption = None,
    allow_partial_data: PartialDataOption = False,
    algorithm: AlgorithmOption = "mo-pbt",
    population: PopulationOption = None,
    seed: SeedOption = 0,
    option: AlgorithmOptionsOption = None,
    initial: InitialOption = None,
    warm_start: WarmStartOption = None,
    constraint: ConstraintOption = None,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    address: AddressOption = None,
    devices: DevicesOption = None,
    workers_per_device: WorkersPerDeviceOption = None,
    stack: StackOption = None,
    num_cpus: CpusOption = None,
    num_gpus: GpusOption = None,
    timeout: TimeoutOption = None,
    storage: StorageOption = None,
    keep: KeepOption = None,
    budget_seconds: SecondsOption = None,
    budget_jobs: JobsOption = None,
    budget_total_steps: StepsOption = None,
    budget_stall: StallOption = None,
    confidence: ConfidenceOption = CONFIDENCE,
    on_change: OnChangeOption = "error",
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a population on TASK. Rerun the same command to resume a run.

    Example: mopbt run trade-off --population 16 --seed 1 --out runs/trade-off-1
    """
    wanted = with_scale(task, scale, allow_partial_data=allow_partial_data)
    found, reference = load_task(wanted, quiet=quiet)
    options = parse_options(option or [])
    if population is not None:
        options["population"] = population
    chosen = algorithm_by_name(algorithm, suggested_population(found), **options)
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
    )
    directory = directory or default_directory(settings)
    if warm_start is not None:
        settings = with_warm_start(settings, warm_start, directory)
    budget = Budget(
        seconds=budget_seconds, jobs=budget_jobs, total_steps=budget_total_steps, stall=budget_stall
    )
    sizes: dict[str, Any] = {"workers": workers, "cost": cost, "address": address, "stack": stack}
    sizes |= {"devices": parse_devices(devices), "workers_per_device": workers_per_device}
    sizes |= {"num_cpus": num_cpus, "num_gpus": num_gpus, "timeout": timeout}
    where: dict[str, Any] = {"engine": engine, "engine_options": sizes}
    where |= {"storage": storage, "progress": not quiet, "on_change": on_change}
    where["callbacks"] = _parse_trackers(track)
    hint = "rerun the same command to resume"
    _execute(found, settings, directory, budget, as_json=as_json, resume_hint=hint, **where)


def load_task(reference: str, *, quiet: bool) -> tuple[Any, str]:
    """Find a task, and say so before its data is loaded, which may take long."""
    if not quiet and isinstance(find_family(split_scale(reference)[0]), TaskFamily):
        Display().note(f"loading the data of {reference}")
    return find_task(reference)


@app.command(epilog=EXIT_CODES)
def resume(
    path: RunArgument,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    cost: CostOption = None,
    address: AddressOption = None,
    devices: DevicesOption = None,
    workers_per_device: WorkersPerDeviceOption = None,
    stack: StackOption = None,
    num_cpus: CpusOption = None,
    num_gpus: GpusOption = None,
    timeout: TimeoutOption = None,
    budget_seconds: SecondsOption = None,
    budget_jobs: JobsOption = None,
    budget_total_steps: StepsOption = None,
    budget_stall: StallOption = None,
    steps: MoreStepsOption = None,
    population: MoreMembersOption = None,
    repair: RepairOption = False,
    trust: TrustOption = False,
    on_change: OnChangeOption = "error",
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resume a run with the settings it was started with, or extend it.

    Example: mopbt resume runs/trade-off-1 --steps 200
    """
    settings = read_run_config(path)
    found = find_task_of(path, settings, trust=trust)
    settings = replace(
        settings,
        problem=_resumed_problem(problem_of(found), settings.problem),
        task_fingerprint=_fingerprint(found, settings.task_reference),
        engine={},
        storage="",
    )
    budget = Budget(
        seconds=budget_seconds, jobs=budget_jobs, total_steps=budget_total_steps, stall=budget_stall
    )
    sizes: dict[str, Any] = {"workers": workers, "cost": cost, "address": address, "stack": stack}
    sizes |= {"devices": parse_devices(devices), "workers_per_device": workers_per_device}
    sizes |= {"num_cpus": num_cpus, "num_gpus": num_gpus, "timeout": timeout}
    where: dict[str, Any] = {"engine": engine, "engine_options": sizes}
    given = {"steps": steps, "population": population}
    extend = {name: value for name, value in given.items() if value is not None}
    where |= {"progress": not quiet, "repair": repair, "extend": extend}
    where["on_change"] = on_change
    where["callbacks"] = _parse_trackers(track)
    hint = f"run `mopbt resume {path}` to resume"
    _execute(found, settings, path, budget, as_json=as_json, resume_hint=hint, **where)


def _fingerprint(task: Any, reference: str) -> str:
    """Return the version of a registered task; of any other task a fingerprint of its code."""
    if split_scale(reference)[0] in registered():
        return task_fingerprint(reference)
    return code_of(task)


def _resumed_problem(task: Problem, recorded: Problem) -> Problem:
    """Return the problem of a task, with the configurations and constraints given to its run."""
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
    **options: Any,
) -> None:
    """Execute a run and print its front; exit with the code of its outcome."""
    algorithm = algorithm_of(dict(settings.algorithm))
    try:
        results = execute_run(task, algorithm, settings, out=path, budget=budget, **options)
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


def find_task_of(path: Path, settings: RunConfig, *, trust: bool) -> Any:
    """Return the task of a run, or raise ValueError that says how to resume."""
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
    return find_task(settings.task_reference)[0]


def parse_devices(text: str | None) -> list[str] | None:
    """Split a list of devices; None for those that the engine finds."""
    if text is None or text == "auto":
        return None
    return [name.strip() for name in text.split(",")]


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


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read options of an algorithm from pairs such as fraction=0.1."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--option must read KEY=VALUE, as in fraction=0.1, got {pair!r}")
        try:
            options[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            # A word needs no quotes.
            options[key] = text
    return options
