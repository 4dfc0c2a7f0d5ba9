"""A worker of a comparison: prepares or measures a task, or executes a run.

The code of a task runs only here, because it may take much memory or a device.
"""

import json
import queue
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from mopbt.algorithms import (
    POPULATION,
    CheckedAlgorithm,
    algorithm_of,
    as_trained_by,
    options_of,
)
from mopbt.compare.directory import Marker
from mopbt.compare.measures import recorded_rows
from mopbt.compare.plan import LEAST, Experiment, PlannedRun
from mopbt.compare.run_data import run_data, write_record
from mopbt.engines.auto import EngineSpec, check_stackable, engine_spec
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.devices import adopt_device
from mopbt.engines.execution import run_job
from mopbt.engines.supervisor import exit_at_once, open_channel, receive, send
from mopbt.engines.worker import keep_memory
from mopbt.errors import (
    CannotStack,
    CorruptCheckpoint,
    CorruptJournal,
    DataMissing,
    MopbtError,
    RunMismatch,
    StorageFull,
    TaskFailed,
)
from mopbt.evaluations import evaluate_front
from mopbt.filesystem import remove_directory, sync, write_atomically
from mopbt.messages import did_you_mean
from mopbt.objectives import parse_constraints
from mopbt.opening import open_session
from mopbt.problem import (
    CheckedTask,
    ProbedTask,
    Problem,
    problem_of,
    rows_of,
    suggested_population,
)
from mopbt.progress import Progress
from mopbt.registry import TaskFamily, find_family, find_task, split_scale, task_fingerprint
from mopbt.rng import stream
from mopbt.run_config import RunConfig
from mopbt.run_directory import OpenRun, open_run
from mopbt.schedulers.base import Scheduler
from mopbt.session import Budget
from mopbt.state import Job, required_checkpoints
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.version import __version__

# What a worker answers. One key says what it is about:
#   "share": how much of the run is done. More answers follow.
#   "finished": the marker of the finished run.
#   "prepared": what the runs of a task need, see `prepare_task`.
#   "measured": cost and engine of a task.
#   "failed": the error, with its class as "kind", its traceback as "trace", and "stop" if no other
#       run can succeed.
Answer = Mapping[str, Any]
# Seconds between two reports of how much of a run is done.
SHARE_INTERVAL = 0.5


@dataclass(frozen=True)
class RunSpec:
    """A run, in plain values that can be sent to another process.

    Attributes:
        path: Directory of the run.
        task: Reference of the task.
        algorithm: Name and options of the algorithm.
        constraints: Constraints in addition to those of the task.
        seed: Seed of the run.
        workers: Workers of the virtual machine.
        cost: Virtual seconds of a step.
        stack: Members trained as one program. 1 means that each is trained alone.
        seconds: Budget in virtual seconds. None means that the algorithm ends by itself.
        keep_models: Whether to keep the models of the finished run.
        task_fingerprint: Code of the task when the comparison started.
        version: Version of mopbt. Another one may decide differently.
        isolated: Whether to train in a separate process. If that process dies, only the job that
            killed it is lost.
        timeout: Seconds that an interval may take, 0 for no limit.
        cluster: The engine on a Ray cluster that trains, as in run.toml; empty for this machine.
    """

    path: str
    task: str
    algorithm: Mapping[str, Any]
    constraints: Sequence[str]
    seed: int
    workers: int
    cost: float
    stack: int
    seconds: float | None
    keep_models: bool
    task_fingerprint: str
    version: str = __version__
    isolated: bool = False
    timeout: float = 0
    cluster: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> str:
        """Return as JSON what decides the evaluations, apart from the task's code.

        It is the "order" in finished.json. Runs with the same identity are interchangeable.
        """
        values = asdict(self)
        for key in ("path", "keep_models", "isolated", "task_fingerprint", "timeout", "cluster"):
            del values[key]
        # Only the name of a task's file counts, because a project may be moved.
        place, colon, name = self.task.rpartition(":")
        if place.endswith(".py"):
            place = Path(place).name
        values["task"] = place + colon + name
        return json.dumps(values, sort_keys=True)


def serve() -> None:
    """Answer messages of a `WorkerPool` until it closes the channel."""
    keep_memory()
    adopt_device()
    source, sink = open_channel()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()

    def send_answer(answer: Answer) -> None:
        try:
            send(sink, json.dumps(answer).encode())
        except BrokenPipeError:
            # The pool is gone. The journal has all reports of the run.
            exit_at_once()

    while True:
        message = json.loads(inbox.get())
        send_answer(answer_message(message, lambda share: send_answer({"share": share})))


def _listen(source: IO[bytes], inbox: "queue.SimpleQueue[bytes]") -> None:
    while (message := receive(source)) is not None:
        inbox.put(message)
    exit_at_once()


def answer_message(message: Mapping[str, Any], report_share: Callable[[float], None]) -> Answer:
    """Execute a run, or prepare or measure a task, and return the last answer."""
    try:
        if "prepare" in message:
            options = message["prepare"]
            experiment = Experiment(**options["experiment"])
            return {"prepared": prepare_task(experiment, options["task"], options["scale"])}
        if "measure" in message:
            return {"measured": measure_task(**message["measure"])}
        return {"finished": execute_run(RunSpec(**message["run"]), report_share)}
    except (MopbtError, ValueError, TypeError) as error:
        return {
            "failed": str(error),
            "kind": type(error).__name__,
            "trace": traceback.format_exc(),
            "stop": isinstance(error, StorageFull),
        }
    except Exception:
        return {"failed": traceback.format_exc()}


# Prepare a task


def prepare_task(experiment: Experiment, task: str, scale: str | None) -> dict[str, Any]:
    """Load and check a task, and return what its runs need, in plain values.

    These are "may_stack", whether members may be trained as a stack, and for each of the
    "algorithms" on the task: the "settings" of its runs as in run.toml, "max_parallel", and whether
    it "needs_budget" because it does not end by itself.
    """
    _check_scale(experiment, scale)
    found, reference, population = _find_task(experiment, task, scale)
    if isinstance(found, CheckedTask):
        found.check()
    if experiment.engine == "vectorized":
        _check_stackable(found, task)
    problem = problem_of(found)
    needs_budget = check_algorithms(experiment, task, problem, population)
    fingerprint = task_fingerprint(reference)
    algorithms = {}
    for label, is_endless in needs_budget.items():
        entry = experiment.entries[label]
        algorithm = entry.algorithm(task, population)
        settings = RunConfig(
            entry.problem(problem), options_of(algorithm), 0, reference, {}, fingerprint
        )
        algorithms[label] = {
            "settings": settings.to_toml(),
            "max_parallel": algorithm.max_parallel,
            "needs_budget": is_endless,
        }
    return {"may_stack": isinstance(found, ProbedTask), "algorithms": algorithms}


def _check_scale(experiment: Experiment, scale: str | None) -> None:
    """Check that the experiment or one of its tasks has a scale."""
    if scale is None or scale in experiment.scales:
        return
    known = ["paper", *experiment.scales]
    for task in experiment.tasks:
        family = find_family(split_scale(task)[0])
        known += family.scales if isinstance(family, TaskFamily) else ()
    if scale not in known:
        known = list(dict.fromkeys(known))
        raise ValueError(
            f"`scale` must be one of {', '.join(map(repr, known))}, or left out, got {scale!r}"
            f"{did_you_mean(scale, known)}"
        )


def _find_task(experiment: Experiment, task: str, scale: str | None) -> tuple[Any, str, int]:
    """Return a task at a scale, its absolute reference and its default population."""
    try:
        reference, population = task_at_scale(experiment, task, scale)
        return *find_task(reference), population
    except ValueError as error:
        raise ValueError(f"`tasks` of {experiment.name!r}: {error}") from None
    except DataMissing as error:
        remedy = ""
        if len(experiment.tasks) > 1:
            remedy = "; or run other tasks first: `tasks`, or --task NAME"
        raise DataMissing(f"{error}{remedy}") from None


def task_at_scale(experiment: Experiment, task: str, scale: str | None) -> tuple[str, int]:
    """Return the reference and the default population of a task at a scale.

    The scale does not apply to tasks of one size, and not to those that name their own.
    """
    name, wanted = split_scale(task)
    family = find_family(name)
    if not isinstance(family, TaskFamily):
        return task, POPULATION
    only_of_experiment = scale in experiment.scales and scale not in family.scales
    if not wanted and not only_of_experiment:
        wanted = scale
    if wanted is None:
        return name, POPULATION
    population = suggested_population(family.scales.get(wanted))
    return f"{name}@{wanted}", population or POPULATION


def _check_stackable(found: Any, task: str) -> None:
    try:
        check_stackable(found)
    except CannotStack as error:
        # What follows the semicolon is a remedy for single runs.
        why = str(error).split(";")[0]
        raise CannotStack(
            f"engine = 'vectorized' does not suit {task}: {why}; leave it out, or use 'auto'"
        ) from None


def check_algorithms(
    experiment: Experiment, task: str, problem: Problem, population: int
) -> dict[str, bool]:
    """Check the algorithms on a task, and return which do not end by themselves.

    Each of those needs another algorithm on the same task that sets its time.
    """
    needs_budget = {
        label: _needs_budget(experiment, task, label, problem, population)
        for label in experiment.entries
        if experiment.has(task, label)
    }
    ends_itself = [label for label, is_endless in needs_budget.items() if not is_endless]
    for label, is_endless in needs_budget.items():
        if not is_endless and experiment.entries[label].time_of is not None:
            raise ValueError(f"{label!r} ends by itself; remove its `time_of`")
        if is_endless and experiment.timer(label) not in ends_itself:
            raise ValueError(
                f"{label!r} does not end by itself: `time_of` must name an algorithm that does "
                f"and is run on {task} ({', '.join(map(repr, ends_itself)) or 'there is none'}), "
                f"got {experiment.timer(label)!r}"
            )
    return needs_budget


def _needs_budget(
    experiment: Experiment, task: str, label: str, problem: Problem, population: int
) -> bool:
    entry = experiment.entries[label]
    algorithm = entry.algorithm(task, population)
    if isinstance(algorithm, CheckedAlgorithm):
        algorithm.check()
    try:
        return algorithm.scheduler(entry.problem(problem)).needs_budget
    except ValueError as error:
        raise ValueError(f"{label!r} on {task}: {error}") from None


# Measure a task


def measure_task(task: str, cost: float | str, engine: str, stack: int) -> dict[str, Any]:
    """Return the cost of a step and the engine of a task, measured unless given."""
    loaded, *_ = _load_task(task)
    if engine == "auto":
        is_stacked = engine_spec("auto", loaded, stack, 1).name == "vectorized"
        engine = "vectorized" if is_stacked else "local"
    return {"cost": _measure_cost(loaded) if cost == "measured" else cost, "engine": engine}


def _measure_cost(task: Any) -> float:
    """Return the seconds that a step takes with one thread.

    This is the median of three intervals. One more before them only warms up.
    """
    problem = problem_of(task)
    context = RunContext(task, problem, 0, MemoryCheckpoints())
    configs = problem.space.stratified(4, stream(0, "cost"))
    reports = [
        run_job(context, Job(i, i, config, None, 0, problem.interval), {}, ModelCache(0))
        for i, config in enumerate(configs)
    ]
    durations = [report.duration for report in reports[1:] if not report.error]
    if not durations:
        raise TaskFailed(
            "an interval failed with each of three configurations; fix the task, or set `cost`:",
            reports[-1].error,
        )
    seconds = statistics.median(durations) / problem.interval
    return max(round(float(f"{seconds:.3g}"), 6), LEAST)


# Execute a run


def execute_run(spec: RunSpec, report_share: Callable[[float], None]) -> Marker:
    """Start or resume a run, mark it as finished, and return the marker."""
    began = time.perf_counter()
    task, reference, fingerprint = _load_task(spec.task)
    if fingerprint != spec.task_fingerprint:
        raise RunMismatch(
            f"the code of {spec.task} changed during the comparison; rerun the same command to "
            f"resume with the new code"
        )
    problem = problem_of(task)
    constraints = (*problem.constraints, *parse_constraints(spec.constraints))
    problem = replace(problem, constraints=constraints)
    algorithm = algorithm_of(dict(spec.algorithm))
    task = as_trained_by(algorithm, task)
    scheduler = algorithm.scheduler(problem)
    trainer = EngineSpec("vectorized", 1, spec.stack) if spec.stack > 1 else EngineSpec("local")
    simulated = EngineSpec("simulated", spec.workers, cost=repr(spec.cost), on=trainer)
    config = RunConfig(
        problem, options_of(algorithm), spec.seed, reference, simulated.to_dict(), fingerprint
    )
    # Where the run trains does not matter, so the record names the usual engine.
    simulated = replace(simulated, on=_trainer(spec, trainer))
    budget = Budget(seconds=spec.seconds)
    watch = _ShareReporter(report_share, spec.seconds)
    run = _open_or_restart(spec, config, scheduler)
    earlier = float(run.history.reports.durations().sum())
    engine = simulated.engine()
    with open_session(
        task, scheduler, config, run.store, run.history, engine, budget, watch
    ) as session:
        session.drive()
        # Evaluations of the front are no part of the search, so they take no time of it.
        elapsed = session.elapsed
        if rows_of(task):
            session.free_engine()
            evaluate_front(
                engine, task, run.history, None, run.store.checkpoints, path=run.store.path
            )
        real = earlier + time.perf_counter() - began
        shared = replace(problem, constraints=problem_of(task).constraints)
        return _finish(spec, run, shared, elapsed, real)


def _trainer(spec: RunSpec, usual: EngineSpec) -> EngineSpec:
    """Return the engine that trains a run."""
    if spec.cluster:
        usual = replace(EngineSpec.from_dict(spec.cluster), stack=spec.stack)
    elif usual.name == "local" and (spec.isolated or spec.timeout):
        usual = EngineSpec("pool", 1)
    return replace(usual, timeout=spec.timeout)


def _finish(spec: RunSpec, run: OpenRun, problem: Problem, seconds: float, real: float) -> Marker:
    """Drop models that are not kept, write the record, and mark a run as finished.

    The marker is written last and after the journal is on the disk, so that it is never wrong.
    """
    store = run.store
    if not spec.keep_models:
        store.checkpoints.drop(store.checkpoints.kept())
    sync(store.journal)
    path = Path(spec.path)
    label = PlannedRun(spec.task, "", spec.seed)
    data = run_data(label, run.history, path)
    write_record(path, data, recorded_rows(data, problem))
    marker = {
        "seconds": round(seconds, 6),
        "real": round(real, 3),
        "evaluations": len(run.history.reports),
        "bytes": store.journal.stat().st_size,
        "failures": run.history.failures,
        "order": spec.identity(),
    }
    write_atomically(path / "finished.json", (json.dumps(marker) + "\n").encode())
    return marker


# The next run is probably about the same task.
@lru_cache(maxsize=2)
def _load_task(reference: str) -> tuple[Any, str, str]:
    """Return a task, its absolute reference and its fingerprint."""
    return *find_task(reference), task_fingerprint(reference)


def _open_or_restart(spec: RunSpec, config: RunConfig, scheduler: Scheduler) -> OpenRun:
    """Open a run, and restart it if it cannot be resumed as specified.

    Without `keep_models`, writing does not wait for the disk, because that takes longer than
    training small models. After a power cut, the journal may then name checkpoints that were never
    written. Resuming with failed intervals would give another run.
    """
    path = Path(spec.path)
    try:
        run = open_run(path, config, durable=spec.keep_models)
        reason = _why_restart(run, spec, config, scheduler)
        if not reason:
            return run
        run.close()
    except CorruptJournal:
        reason = "its journal is damaged"
    print(f"{path} restarts: {reason}", file=sys.stderr)
    remove_directory(path)
    return open_run(path, config, durable=spec.keep_models)


def _why_restart(run: OpenRun, spec: RunSpec, config: RunConfig, scheduler: Scheduler) -> str:
    """Return why an unfinished run cannot be resumed as specified, or ""."""
    recorded = run.settings
    if recorded.task_fingerprint != config.task_fingerprint:
        return "the code of its task has changed"
    if recorded.engine != config.engine:
        return "it was started with another cost of a step, or another engine"
    reports = run.history.reports
    last = float(reports.seconds().max(initial=0.0))
    if spec.seconds is not None and last > spec.seconds:
        return f"it has run for {last:g} virtual seconds, but its budget is {spec.seconds:g}"
    try:
        for id in required_checkpoints(run.history.state(scheduler, config.seed)):
            run.store.checkpoints.load(id, reports.checksum(reports.row(id)))
    except CorruptCheckpoint:
        return "a checkpoint that it needs is missing or damaged"
    return ""


class _ShareReporter:
    """Watches a run and reports from time to time which share of it is done."""

    def __init__(self, report: Callable[[float], None], seconds: float | None) -> None:
        self._report = report
        self._seconds = seconds
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last < SHARE_INTERVAL:
            return
        self._last = time.monotonic()
        if self._seconds:
            share = progress.elapsed / self._seconds
        elif progress.total:
            share = progress.reported / progress.total
        else:
            share = 0.0
        self._report(min(share, 1.0))
