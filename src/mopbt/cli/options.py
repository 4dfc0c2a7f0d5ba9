"""Options that several commands share, in groups that are declared once."""

import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Annotated, Any, cast

import typer

from mopbt.algorithms import ALGORITHMS, Algorithm, algorithm_by_name
from mopbt.engines.auto import ENGINES
from mopbt.opening import EngineName
from mopbt.problem import suggested_population
from mopbt.progress_display import Display
from mopbt.registry import (
    PartialDataFamily,
    find_family,
    find_task,
    registered,
    split_scale,
    with_scale,
)
from mopbt.session import Budget


def suggest(*names: str) -> Callable[[str], list[str]]:
    """Return the function with which a shell completes one of these values."""
    # Typer requires this name of the parameter.
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _suggest_task(incomplete: str) -> list[str]:
    return suggest(*registered())(incomplete)


TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A registered task (toy, trade-off), package.module:object, or file.py:object.",
        autocompletion=_suggest_task,
    ),
]
ScaleOption = Annotated[
    str | None,
    typer.Option(
        help="Size of a task of the paper, such as paper, small or smoke; `mopbt tasks` lists them "
        "[default: paper].",
        show_default=False,
        autocompletion=suggest("paper", "medium", "small", "small-1000", "smoke"),
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
    str,
    typer.Option(
        help=f"One of {', '.join(ALGORITHMS)}; see `mopbt algorithms`.",
        autocompletion=suggest(*ALGORITHMS),
    ),
]
PopulationOption = Annotated[
    int | None,
    typer.Option(help="Size of the population [default: 32].", show_default=False),
]
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
    str,
    typer.Option(
        help=f"What executes the training: auto, {', '.join(ENGINES)}.",
        autocompletion=suggest("auto", *ENGINES),
    ),
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
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="What a PyTorch task trains in: fp32, tf32, bf16 or fp16 [default: that of the task].",
        show_default=False,
        autocompletion=suggest("fp32", "tf32", "bf16", "fp16"),
    ),
]
CompileOption = Annotated[
    str | None,
    typer.Option(
        help="Compile the training of a PyTorch task: true, false, or auto to measure whether that "
        "pays [default: that of the task].",
        show_default=False,
        autocompletion=suggest("true", "false", "auto"),
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds that an interval may take before its worker is killed; a stack of n members "
        "may take n times as long [default: no limit].",
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
KeepPrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="Store models that only the front needs in fp16 or bf16 [default: as trained].",
        show_default=False,
        autocompletion=suggest("fp16", "bf16"),
    ),
]
SecondsOption = Annotated[
    float | None, typer.Option(help="Stop after this many seconds of work, over all sessions.")
]
JobsOption = Annotated[int | None, typer.Option(help="Stop after this many intervals.")]
StepsOption = Annotated[
    int | None, typer.Option(help="Stop after this many training steps over all members.")
]
StallOption = Annotated[
    int | None,
    typer.Option(
        help="Stop when the hypervolume has not grown by more than its error for this many "
        "generations."
    ),
]


class OptionGroup:
    """A parameter of a command that stands for several options, one for each field."""


@dataclass(frozen=True)
class TaskOptions(OptionGroup):
    """What to train: a task and an algorithm, with their sizes."""

    task: TaskArgument
    scale: ScaleOption = None
    allow_partial_data: PartialDataOption = False
    algorithm: AlgorithmOption = "mo-pbt"
    population: PopulationOption = None
    option: AlgorithmOptionsOption = None

    def load_task(self, *, quiet: bool) -> tuple[Any, str]:
        """Return the task and its reference; say so before its data is loaded."""
        reference = with_scale(self.task, self.scale, allow_partial_data=self.allow_partial_data)
        # Other protocols of tasks would read the search space, for which some import PyTorch.
        if not quiet and isinstance(find_family(split_scale(reference)[0]), PartialDataFamily):
            Display().note(f"loading the data of {reference}")
        return find_task(reference)

    def make_algorithm(self, task: Any) -> Algorithm:
        """Return the algorithm with its options; a task may suggest a population."""
        options = _parse_options(self.option or [])
        if self.population is not None:
            options["population"] = self.population
        return algorithm_by_name(self.algorithm, suggested_population(task), **options)


@dataclass(frozen=True)
class EngineOptions(OptionGroup):
    """What executes the training of a run."""

    engine: EngineOption = "auto"
    workers: WorkersOption = None
    cost: CostOption = None

    @property
    def name(self) -> EngineName:
        """Return the name of the engine, which is checked where it is used."""
        return cast(EngineName, self.engine)

    def settings(self, resources: "ResourceOptions") -> dict[str, Any]:
        """Return the options of the engine by their names in `engine_spec`."""
        return {"workers": self.workers, "cost": self.cost, **resources.settings()}


@dataclass(frozen=True)
class ResourceOptions(OptionGroup):
    """Where training happens, and how much of a machine or a cluster it takes."""

    address: AddressOption = None
    devices: DevicesOption = None
    workers_per_device: WorkersPerDeviceOption = None
    stack: StackOption = None
    num_cpus: CpusOption = None
    num_gpus: GpusOption = None
    timeout: TimeoutOption = None

    def settings(self) -> dict[str, Any]:
        """Return the options by their names in `engine_spec`."""
        devices = None
        if self.devices is not None and self.devices != "auto":
            devices = [name.strip() for name in self.devices.split(",")]
        return {**asdict(self), "devices": devices}


@dataclass(frozen=True)
class BudgetOptions(OptionGroup):
    """When to stop before the algorithm is done."""

    budget_seconds: SecondsOption = None
    budget_jobs: JobsOption = None
    budget_total_steps: StepsOption = None
    budget_stall: StallOption = None

    def budget(self) -> Budget:
        """Return the budget of the session."""
        return Budget(
            seconds=self.budget_seconds,
            jobs=self.budget_jobs,
            total_steps=self.budget_total_steps,
            stall=self.budget_stall,
        )


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its parameters that are groups."""
    groups: dict[str, type[OptionGroup]] = {}
    expanded: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            expanded.extend(inspect.signature(kind).parameters.values())
        else:
            expanded.append(parameter)

    @wraps(command)
    def with_groups(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in _options_of(kind)})
        command(**given)

    keyword_only = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in expanded]
    with_groups.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return with_groups


def _options_of(group: type[OptionGroup]) -> list[str]:
    return list(inspect.signature(group).parameters)


def _parse_options(pairs: Sequence[str]) -> dict[str, Any]:
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
