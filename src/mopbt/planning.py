"""What a run will take before it starts: time, memory, disk and the engine."""

import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mopbt.algorithms import MOPBT, Algorithm, RandomSearch, as_trained_by
from mopbt.callbacks import Callback
from mopbt.engines.auto import EngineSpec, check_options, engine_spec
from mopbt.engines.base import Engine
from mopbt.engines.devices import assign_devices, available_cores
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.trial import Trial, measure_start, open_trial
from mopbt.errors import StopRun, TaskFailed
from mopbt.function_task import as_task
from mopbt.member import TrainingFunction
from mopbt.messages import byte_size
from mopbt.opening import EngineName, trial_environment
from mopbt.problem import (
    PlannedTask,
    Problem,
    ReducibleTask,
    Task,
    problem_of,
    suggested_population,
)
from mopbt.reduction import reduced_bytes
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.runner import bounded_budget, check_before_training, choose_algorithm, run
from mopbt.schedulers.base import PopulationScheduler, Scheduler
from mopbt.serialization import rewrite
from mopbt.session import Budget
from mopbt.state import Report

# What a worker that has imported PyTorch takes before it has built anything.
PROCESS_BYTES = 480 * 2**20
# A time limit is so many times the expected time, and at least so many seconds.
TIMEOUT_FACTOR = 10
SHORTEST_TIMEOUT = 60


@dataclass(frozen=True)
class Plan:
    """What a run will take, extrapolated from a short measurement on this machine.

    Attributes:
        task: The name of the task.
        algorithm: The name of the algorithm.
        members: How many members can train at the same time.
        steps: Steps of training of each member.
        interval: Steps between two decisions.
        jobs: Intervals of training of the whole run; None if the algorithm does not know.
        engine: The engine, which is chosen as in `run`.
        why: Why this engine was chosen; empty if it was named.
        workers: Worker processes.
        stack: Members that a worker trains as one program; 1 for none.
        seconds_per_interval: Seconds of an interval of one member, or its share of a stack.
        seconds: Seconds of the whole run: the start of its workers, all intervals with evaluation
            and checkpoints, and the evaluation of as many models on further rows as there are
            members.
        work_seconds: The same as work of all workers together, such as CPU or GPU seconds.
        flops: Floating point operations of the whole run; None if they cannot be counted.
        checkpoint_bytes: The size of a checkpoint.
        model_bytes: The size of a checkpoint that only the front needs.
        checkpoints: The most checkpoints that are on disk at the same time.
        disk_bytes: The space that they take.
        memory_bytes: The memory of a worker, about.
        timeout: The time limit of an interval: the given one, or a suggestion for
            `run(timeout=...)`.
        keep: How many models of the front keep their weights; None for all.
    """

    task: str
    algorithm: str
    members: int
    steps: int
    interval: int
    jobs: int | None
    engine: str
    why: str
    workers: int
    stack: int
    seconds_per_interval: float
    seconds: float | None
    work_seconds: float | None
    flops: float | None
    checkpoint_bytes: int
    model_bytes: int
    checkpoints: int | None
    disk_bytes: int | None
    memory_bytes: int
    timeout: float
    keep: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        jobs = "an unknown number of" if self.jobs is None else f"{self.jobs:,}"
        stacks = f", in stacks of {self.stack}" if self.stack > 1 else ""
        engine = f"{self.engine}, {self.workers} workers{stacks}"
        limit = "all models of the front" if self.keep is None else f"`keep` of {self.keep}"
        number = "unknown" if self.checkpoints is None else f"{self.checkpoints:,}"
        disk = _or_unknown(self.disk_bytes, byte_size)
        lines = {
            "task": f"{self.task}, {self.algorithm}, {self.members} members",
            "training": f"{self.steps:,} steps in intervals of {self.interval}, {jobs} intervals",
            "engine": f"{engine} ({self.why})" if self.why else engine,
            "an interval": f"{_duration(self.seconds_per_interval)} per member",
            "time": _or_unknown(self.seconds, _duration),
            "work": f"{_or_unknown(self.work_seconds, _duration)} of all workers together",
            "operations": _or_unknown(self.flops, _operations),
            "checkpoint": self._checkpoint_text(),
            "disk": f"at most {disk} ({number} checkpoints, {limit})",
            "memory": f"about {_or_unknown(self.memory_bytes or None, byte_size)} per worker",
            "timeout": f"{self.timeout:g} s per interval",
        }
        return "\n".join(f"{name:12} {text}" for name, text in lines.items())

    def _checkpoint_text(self) -> str:
        if self.model_bytes == self.checkpoint_bytes:
            return byte_size(self.checkpoint_bytes)
        model = byte_size(self.model_bytes)
        return f"{byte_size(self.checkpoint_bytes)}, {model} if only the front needs it"


@dataclass(frozen=True)
class _Cost:
    """What was measured of an interval of one member."""

    seconds: float
    flops: float
    checkpoint: int
    model: int
    memory: int
    start: float = 0.0
    other_rows: float = 0.0


def plan(
    task: Task[Any] | TrainingFunction,
    *,
    algorithm: Algorithm | str | None = None,
    population: int | None = None,
    engine: EngineName = "auto",
    engine_options: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    keep: int | None = None,
    keep_precision: str | None = None,
    **description: Any,
) -> Plan:
    """Measure a small part of a run, and predict its time, memory and disk space.

    A `TorchTask` trains a few updates and is evaluated on few rows. Of any other task one interval
    or a few are trained, for about a second. Nothing is kept.

    Args:
        task: A task object, or a training function with its description, as in `run`.
        algorithm: An algorithm, or its name, as in `run`.
        population: Shortcut for the algorithm's `population`.
        engine: The name of the engine, as in `run`.
        engine_options: Options of the engine, such as ``{"workers": 4}``.
        budget: The budget of the run.
        keep: How many models of the front keep their weights on disk.
        keep_precision: The precision of models that only the front needs, as in `run`.
        **description: `space`, `objectives`, `steps` and so on of a training function.
    """
    subject = as_task(task, **description)
    problem = problem_of(subject)
    chosen = choose_algorithm(
        algorithm or MOPBT.name, population, default=suggested_population(subject)
    )
    subject = as_trained_by(chosen, subject)
    scheduler = chosen.scheduler(problem)
    # This checks these two as well.
    settings = RunConfig(
        problem, {"name": chosen.name}, 0, keep=keep, keep_precision=keep_precision
    )
    bounded, _ = bounded_budget(budget or Budget(), scheduler, problem)
    options = {key: value for key, value in (engine_options or {}).items() if value is not None}
    check_options(engine, options)
    with open_trial(subject, trial_environment(subject, engine, options)) as trial:
        check_before_training(trial, chosen)
        spec = engine_spec(engine, subject, chosen.max_parallel, **options, trial=trial)
        trainer = spec.on or spec
        cost = _measure(trial, trainer)
    jobs = _jobs(scheduler, bounded, problem)
    workers = _workers(trainer, subject, chosen.max_parallel)
    members = scheduler.population if isinstance(scheduler, PopulationScheduler) else None
    return _predict(settings, chosen, spec, cost, jobs, workers, members)


def _predict(
    settings: RunConfig,
    algorithm: Algorithm,
    spec: EngineSpec,
    cost: _Cost,
    jobs: int | None,
    workers: int,
    population: int | None,
) -> Plan:
    """Extrapolate the cost of an interval to a run."""
    members = algorithm.max_parallel
    trainer = spec.on or spec
    checkpoints = most_checkpoints(jobs, population, settings.keep)
    model = reduced_bytes(cost.checkpoint, cost.model, settings.keep_precision)
    seconds = None
    work = None
    if jobs is not None:
        # The last workers to finish a generation do not wait, but all others wait for them.
        in_turn = math.ceil(members / workers)
        seconds = cost.start + in_turn * (jobs / members * cost.seconds + cost.other_rows)
        work = workers * cost.start + jobs * cost.seconds + members * cost.other_rows
    return Plan(
        task=settings.problem.name,
        algorithm=algorithm.name,
        members=members,
        steps=settings.problem.steps,
        interval=settings.problem.interval,
        jobs=jobs,
        engine=spec.name,
        why=trainer.why,
        workers=workers,
        stack=max(trainer.stack, 1),
        seconds_per_interval=cost.seconds,
        seconds=seconds,
        work_seconds=work,
        flops=None if jobs is None or not cost.flops else jobs * cost.flops,
        checkpoint_bytes=cost.checkpoint,
        model_bytes=model,
        checkpoints=checkpoints,
        disk_bytes=most_bytes(checkpoints, population, cost.checkpoint, model),
        memory_bytes=cost.memory,
        timeout=trainer.timeout or suggested_timeout(cost.seconds),
        keep=settings.keep,
    )


def most_checkpoints(jobs: int | None, members: int | None, keep: int | None) -> int | None:
    """Return the most checkpoints that a run has on disk at the same time.

    These are those of the front, those that members continue from, those that running jobs write,
    and those that became obsolete with the last reports. Without `keep`, the front has no limit but
    the number of intervals, and neither have the trials of an algorithm without a population.
    """
    if keep is None or members is None:
        return jobs
    most = keep + 3 * members
    return most if jobs is None else min(most, jobs)


def most_bytes(checkpoints: int | None, members: int | None, whole: int, model: int) -> int | None:
    """Return the space of checkpoints.

    Those that only the front needs are models.

    Members need those that they continue from, running jobs write theirs, and those that became
    obsolete or needed only by the front with the last reports are whole, too.
    """
    if checkpoints is None:
        return None
    most_whole = checkpoints if members is None else min(3 * members, checkpoints)
    return most_whole * whole + (checkpoints - most_whole) * model


def suggested_timeout(seconds: float) -> float:
    """Return a generous time limit for an interval, with one significant digit."""
    generous = max(TIMEOUT_FACTOR * seconds, SHORTEST_TIMEOUT)
    unit = 10 ** math.floor(math.log10(generous))
    return float(math.ceil(generous / unit) * unit)


def _jobs(scheduler: Scheduler, budget: Budget, problem: Problem) -> int | None:
    """Return the intervals of a run, within its budget; None if only time ends it."""
    limits = [budget.jobs_left(0, problem.interval)]
    if scheduler.total_jobs is not None:
        limits.append(scheduler.total_jobs)
    fewest = min(limits)
    return int(fewest) if math.isfinite(fewest) else None


def _workers(spec: EngineSpec, task: Any, members: int) -> int:
    """Return how many workers train at the same time."""
    if spec.name == "local":
        return 1
    if spec.workers:
        return min(spec.workers, members)
    devices = assign_devices(task, spec.devices or "auto")
    if any(device.kind != "cpu" for device in devices):
        return min(len(devices) * max(spec.workers_per_device, 1), members)
    return min(available_cores(), members)


def _measure(trial: Trial, spec: EngineSpec) -> _Cost:
    """Measure an interval of one member, in a stack if the engine trains stacks."""
    task = trial.task
    if not isinstance(task, PlannedTask):
        return _measure_intervals(task, spec)
    cost = trial.call("measure_interval")
    update = cost.update
    memory = PROCESS_BYTES + cost.bytes
    if spec.stack > 1:
        probe = trial.call("probe", min(spec.stack, 16))
        update = probe.stack
        memory += (spec.stack - 1) * probe.bytes_per_member
    seconds = cost.updates * update + cost.evaluation + cost.saving
    start = 0.0 if spec.name == "local" else measure_start(task)
    return _Cost(seconds, cost.flops, cost.checkpoint, cost.model, memory, start, cost.other_rows)


class _StopAfter(Callback):
    """Stops a run once the intervals that have reported took some time."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def on_report(self, run: Results, reports: Sequence[Report]) -> None:
        """Raise StopRun when the time is over."""
        self._left -= sum(report.duration for report in reports)
        if self._left <= 0 and any(not report.error for report in reports):
            raise StopRun


def _measure_intervals(task: Any, spec: EngineSpec) -> _Cost:
    """Train a few intervals of two members as a run does, and keep nothing."""
    engine: Engine = LocalEngine()
    if spec.name != "local":
        engine = PoolEngine(1, devices=spec.devices or "auto")
    results = run(
        task,
        out=None,
        algorithm=RandomSearch(population=2),
        engine=engine,
        progress=False,
        callbacks=[_StopAfter(1.0)],
    )
    points = list(results.points())
    if not points:
        error = next(iter(results.failures.values()))
        raise TaskFailed("the interval that was to be measured failed; the error:", error)
    durations = [point.duration for point in points]
    # The first interval also imports and builds what later ones find.
    seconds = statistics.median(durations[1:] or durations)
    sizes = [_sizes(task, results.checkpoint(model)) for model in results.models_with_weights()]
    whole, model = max(sizes)
    in_child = spec.name != "local"
    start = measure_start(task) if in_child else 0.0
    return _Cost(seconds, 0.0, whole, model, _largest_process(in_child=in_child), start)


def _sizes(task: Any, checkpoint: bytes) -> tuple[int, int]:
    """Return the size of a checkpoint, and without what only training needs."""
    if not isinstance(task, ReducibleTask):
        return len(checkpoint), len(checkpoint)
    reduced = io.BytesIO()
    rewrite(io.BytesIO(checkpoint), reduced, task.without_training_state)
    return len(checkpoint), len(reduced.getvalue())


def _largest_process(*, in_child: bool) -> int:
    """Return the most memory that this process, or one of its children, has taken."""
    if sys.platform == "win32":
        # The standard library of Python cannot tell there.
        return 0
    import resource

    who = resource.RUSAGE_CHILDREN if in_child else resource.RUSAGE_SELF
    size = resource.getrusage(who).ru_maxrss
    # Linux counts in kilobytes, macOS in bytes.
    return size if sys.platform == "darwin" else size * 1024


def _or_unknown(value: Any, format_value: Any) -> str:
    return "unknown" if value is None else str(format_value(value))


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.3g} s"


def _operations(flops: float) -> str:
    for unit, length in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= length:
            return f"{flops / length:,.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"
