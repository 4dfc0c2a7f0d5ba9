"""How a job runs: restore or build a model, train it, evaluate it, save it.

All engines execute jobs with the functions of this module, so a run gives the same models
whichever engine it uses.
"""

import math
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import IO, Any, cast

from mopbt.engines.base import EvaluationJob, ModelCache, RunContext
from mopbt.engines.seeding import global_seeds, seed_globals
from mopbt.errors import CannotStack, CorruptCheckpoint, MopbtError, StoreError, TaskError
from mopbt.estimate import Estimate, as_estimate
from mopbt.messages import shortened
from mopbt.objectives import signed, total_violation
from mopbt.problem import (
    BlendableTask,
    FunctionalTask,
    Hyperparameters,
    Problem,
    RowsTask,
    StackableTask,
    StreamingTask,
    Task,
)
from mopbt.rng import derived_seed
from mopbt.state import ErrorBar, Job, Report
from mopbt.stores.base import (
    Checkpoints,
    PendingCheckpoint,
    ReducibleCheckpoints,
    StreamedCheckpoints,
    load_model,
)

# The checksums of the checkpoints that a job starts from.
Checksums = Mapping[int, str]
# Jobs that are trained as one program.
Stack = list[tuple[Job, Checksums]]


def make_stacks(jobs: Iterable[Job], checksums: Checksums, stack_size: int = 1) -> list[Stack]:
    """Group jobs into stacks of at most `stack_size`.

    The stack of a job follows from its trial alone, so the same members are stacked together in
    every generation and after a crash.
    """
    in_order = sorted(jobs, key=lambda job: (job.trial, job.id))
    stacks = []
    for _, members in groupby(in_order, key=lambda job: job.trial // stack_size):
        stacks.append([(job, start_checksums(job, checksums)) for job in members])
    return stacks


def start_checksums(job: Job, checksums: Checksums) -> Checksums:
    """Return the checksums of the checkpoints that a job starts from."""
    return {start: checksums.get(start, "") for start in job.starts}


def require_stackable(task: Any, name: str, remedy: str) -> None:
    """Raise CannotStack if a task does not declare how models are trained together."""
    if not isinstance(task, StackableTask):
        raise CannotStack(
            f"the task {name!r} has no `train_many` and `evaluate_many`, so it cannot be stacked; "
            f"{remedy}"
        )


@dataclass(frozen=True)
class TrainedJob:
    """A job before its checkpoint is written: metrics and model, or its error."""

    job: Job
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)
    data: bytes | PendingCheckpoint = b""
    error: str = ""
    # The error for which the stack of this job was trained one by one.
    stack_error: str = ""


@dataclass(frozen=True)
class Answer:
    """What a worker sends to the driver after it executed a stack."""

    reports: list[Report]
    stack_error: str = ""


def run_job(context: RunContext, job: Job, checksums: Checksums, cache: ModelCache) -> Report:
    """Train a model for one interval, evaluate it and save it."""
    return save(context, _train_alone(context, job, checksums, cache))


class SavingTurn:
    """The right of one stack of a worker to have checkpoints that are not saved yet.

    A worker trains the next stack while it saves one. It takes the next turn before it serializes
    models, so that at most one stack is serialized and unsaved.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._is_taken = False

    def take(self) -> None:
        """Wait until the previous stack is saved. Taking a turn again does nothing."""
        if not self._is_taken:
            self._lock.acquire()
            self._is_taken = True

    def give_back(self) -> None:
        """Let the next stack have its turn."""
        if self._is_taken:
            self._is_taken = False
            self._lock.release()


def train(
    context: RunContext, stack: Stack, cache: ModelCache, turn: SavingTurn | None = None
) -> list[TrainedJob]:
    """Train jobs as one program if the task supports it, otherwise one by one.

    The jobs are ready to be saved, for which a worker takes its `turn`.

    An exception in the task's code fails its job. If training a stack raises one, its jobs are
    trained one by one, so that only those fail that caused it. An error of mopbt, such as a
    missing metric, ends the run.
    """
    stack_error = ""
    trains = all(job.begin < job.end for job, _ in stack)
    if len(stack) > 1 and trains and isinstance(context.task, StackableTask):
        try:
            return _train_stack(context, context.task, stack, cache, turn)
        except MopbtError as error:
            if not isinstance(error, CorruptCheckpoint):
                raise
            stack_error = str(error)
        except (Exception, SystemExit) as error:
            stack_error = f"{type(error).__name__}: {error}".partition("\n")[0]
    trained = [_train_alone(context, job, checksums, cache, turn) for job, checksums in stack]
    return [replace(job, stack_error=stack_error) for job in trained]


def save(context: RunContext, trained: TrainedJob) -> Report:
    """Write the checkpoint of a trained job and return its report."""
    if trained.error:
        return Report(trained.job.id, duration=trained.seconds, error=trained.error)
    if isinstance(trained.job, EvaluationJob):
        return Report(
            trained.job.id,
            objectives=(),
            scores={name: float(score) for name, score in trained.scores.items()},
            duration=trained.seconds,
            errors=_error_bars(trained.scores, context.confidence),
        )
    began = time.perf_counter()
    checksum = _save_checkpoint(context, trained)
    return Report(
        trained.job.id,
        objectives=signed(context.problem.objectives, trained.scores),
        violation=total_violation(context.problem.constraints, trained.scores),
        scores={name: float(score) for name, score in trained.scores.items()},
        checksum=checksum,
        duration=trained.seconds + time.perf_counter() - began,
        errors=_error_bars(trained.scores, context.confidence),
    )


def _save_checkpoint(context: RunContext, trained: TrainedJob) -> str:
    """Write a checkpoint.

    If the storage refuses it, the run stops instead of failing a member.
    """
    try:
        if isinstance(trained.data, bytes):
            return context.checkpoints.save(trained.job.id, trained.data)
        return trained.data.commit()
    except MopbtError:
        raise
    except Exception as error:
        raise StoreError(
            f"cannot write checkpoint {trained.job.id} ({type(error).__name__}: {error}); nothing "
            "reported is lost: restore access to the storage, then rerun to resume"
        ) from error


def save_stack(context: RunContext, stack: list[TrainedJob]) -> Answer:
    """Write the checkpoints of trained jobs."""
    return Answer([save(context, trained) for trained in stack], stack[0].stack_error)


def warn_about_stack(problem: Problem, error: str) -> None:
    """Warn that a stack was trained one by one, and why."""
    warnings.warn(
        f"training members of {problem.name!r} as one stack failed ({error}); the members of "
        f"such a stack are trained one by one, which takes longer. This is reported once per run.",
        RuntimeWarning,
        stacklevel=3,
    )


def _train_alone(
    context: RunContext,
    job: Job,
    checksums: Checksums,
    cache: ModelCache,
    turn: SavingTurn | None = None,
) -> TrainedJob:
    began = time.perf_counter()
    try:
        if isinstance(job, EvaluationJob):
            scores = _evaluate_rows(context, job, checksums, cache)
            return TrainedJob(job, time.perf_counter() - began, scores)
        model, scores, data = _train_model(context, job, checksums, cache, turn)
    except CorruptCheckpoint as error:
        return TrainedJob(job, time.perf_counter() - began, error=str(error))
    except MopbtError:
        raise
    except (Exception, SystemExit):
        # A task that calls `sys.exit` must not end the run as if it were complete.
        return TrainedJob(job, time.perf_counter() - began, error=traceback.format_exc())
    cache.put(job.id, model, _size(data))
    return TrainedJob(job, time.perf_counter() - began, scores, data)


def _train_model(
    context: RunContext,
    job: Job,
    checksums: Checksums,
    cache: ModelCache,
    turn: SavingTurn | None,
) -> tuple[Any, dict[str, float], bytes | PendingCheckpoint]:
    task = context.task
    hp = Hyperparameters(context.problem.space.decode(job.config))
    seed = _training_seed(context, job)
    with global_seeds(_init_seed(context, job)):
        model = _restore_or_init(context, job, hp.plain, checksums, cache)
        # Loading a model may draw random numbers, and taking one from the cache does not.
        seed_globals(seed)
        # A job of no steps only evaluates the model that it starts from.
        if job.begin < job.end:
            returned = task.train(model, hp, job.begin, job.end, seed)
            if returned is not None:
                model = returned
        scores = _check_measured(context, task.evaluate(model))
        if job.begin < job.end:
            _check_read(context, hp, scores)
        if turn is not None:
            turn.take()
        return model, scores, _dump(context, job, model)


def _evaluate_rows(
    context: RunContext, job: EvaluationJob, checksums: Checksums, cache: ModelCache
) -> dict[str, float]:
    """Evaluate a checkpoint on named rows, with random numbers that all models share."""
    task = context.task
    if not isinstance(task, RowsTask):
        raise TaskError(
            f"the task {context.problem.name!r} has no `rows` and `evaluate_rows`, so it cannot be "
            f"evaluated on {job.rows!r}; declare them, see docs/how-to/test-data.md"
        )
    hp = context.problem.space.decode(job.config)
    seed = derived_seed(context.seed, "evaluate", job.rows, job.seed)
    with global_seeds(seed):
        assert job.start is not None
        model = cache.peek(job.start)
        if model is None:
            checksum = checksums.get(job.start, "")
            model = load_checkpoint(task, context.checkpoints, job.start, checksum, whole=False)
        # Loading a model may draw random numbers, and taking one from the cache does not.
        seed_globals(seed)
        return check_scores(task.evaluate_rows(model, hp, job.end, job.rows, seed))


def _train_stack(
    context: RunContext,
    task: StackableTask,
    stack: Stack,
    cache: ModelCache,
    turn: SavingTurn | None,
) -> list[TrainedJob]:
    """Train a stack as one program, with random numbers that depend on the stack."""
    began = time.perf_counter()
    jobs = [job for job, _ in stack]
    hp = [Hyperparameters(context.problem.space.decode(job.config)) for job in jobs]
    models: list[Any] = []
    for (job, checksums), own_hp in zip(stack, hp, strict=True):
        with global_seeds(_init_seed(context, job)):
            models.append(_restore_or_init(context, job, own_hp.plain, checksums, cache))
    stack_seed = derived_seed(context.seed, "stack", jobs[0].trial, jobs[0].begin, len(jobs))
    with global_seeds(stack_seed):
        begins = [job.begin for job in jobs]
        seeds = [_training_seed(context, job) for job in jobs]
        models = list(task.train_many(models, hp, begins, seeds))
        scores = [_check_measured(context, measured) for measured in task.evaluate_many(models)]
        for own_hp, own_scores in zip(hp, scores, strict=True):
            _check_read(context, own_hp, own_scores)
        if turn is not None:
            turn.take()
        dumps = _dump_stack(context, jobs, models)
    seconds = (time.perf_counter() - began) / len(jobs)
    trained = []
    for job, model, own_scores, data in zip(jobs, models, scores, dumps, strict=True):
        cache.put(job.id, model, _size(data))
        trained.append(TrainedJob(job, seconds, own_scores, data))
    return trained


def _restore_or_init(
    context: RunContext,
    job: Job,
    hp: Mapping[str, Any],
    checksums: Checksums,
    cache: ModelCache,
) -> Any:
    """Return the model that a job starts from: fresh, restored or blended."""
    task = context.task
    initial = context.initial
    if job.start is None and initial is not None and job.trial < len(initial.checksums):
        return task.load(initial.checkpoints.load(job.trial, initial.checksums[job.trial]))
    if job.start is None:
        return task.init(_init_seed(context, job))
    if not job.blend:
        return _restore(context, job.start, checksums, cache)
    if not isinstance(task, BlendableTask):
        raise TaskError(
            f"job {job.id} starts from {len(job.starts)} checkpoints, but the task "
            f"{context.problem.name!r} has no `blend`; add it, or use an algorithm that copies "
            "single members"
        )
    models = [_restore(context, start, checksums, cache, keep=True) for start in job.starts]
    weights = [weight for _, weight in job.weighted_starts]
    seed = derived_seed(context.seed, "blend", job.trial, job.begin)
    return task.blend(models, weights, hp, seed)


def _restore(
    context: RunContext, id: int, checksums: Checksums, cache: ModelCache, *, keep: bool = False
) -> Any:
    """Return the model of a checkpoint, from memory if it is there.

    With `keep`, the model in memory stays there, because it is not trained.
    """
    task = context.task
    keeps_argument = keep or (isinstance(task, FunctionalTask) and task.functional)
    model = cache.peek(id) if keeps_argument else cache.take(id)
    if model is None:
        model = load_checkpoint(task, context.checkpoints, id, checksums.get(id, ""))
    return model


def load_checkpoint(
    task: Task[Any], checkpoints: Checkpoints, id: int, checksum: str, *, whole: bool = True
) -> Any:
    """Load a model, in parts if that is possible; training needs a `whole` checkpoint."""
    if not whole and isinstance(checkpoints, ReducibleCheckpoints):
        if isinstance(task, StreamingTask):
            with checkpoints.open_model(id, checksum) as file:
                return task.load_from(file)
        return task.load(load_model(checkpoints, id, checksum))
    if isinstance(task, StreamingTask) and isinstance(checkpoints, StreamedCheckpoints):
        with checkpoints.open(id, checksum) as file:
            return task.load_from(file)
    return task.load(checkpoints.load(id, checksum))


def _init_seed(context: RunContext, job: Job) -> int:
    return derived_seed(context.seed, "init", job.trial)


def _training_seed(context: RunContext, job: Job) -> int:
    return derived_seed(context.seed, "train", job.trial, job.begin)


def _check_read(context: RunContext, hp: Hyperparameters, scores: Mapping[str, float]) -> None:
    """Raise UnreadHyperparameter if training never read one of the hyperparameters.

    A training that diverged may have stopped before it read them all, so it is not checked.
    """
    if all(map(math.isfinite, signed(context.problem.objectives, scores))):
        hp.check_read()


def _check_measured(context: RunContext, scores: Any) -> dict[str, float]:
    """Check that metrics are numbers and include all objectives and constraints."""
    checked = check_scores(scores)
    signed(context.problem.objectives, checked)
    total_violation(context.problem.constraints, checked)
    return checked


def check_scores(scores: Any) -> dict[str, float]:
    """Convert metrics to a dict of floats, or raise TaskError with what is wrong.

    Metrics that were reported with an error are estimates, which are floats.
    """
    if not isinstance(scores, Mapping):
        raise TaskError(f"`evaluate` must return a mapping of names to numbers, got {scores!r}")
    checked = {}
    for name, score in scores.items():
        try:
            value = as_estimate(name, score)
            checked[str(name)] = value if isinstance(value, Estimate) else float(value)
        except MopbtError:
            raise
        except Exception:
            # PyTorch raises a RuntimeError for a tensor of several numbers.
            raise TaskError(
                f"the metric {name!r} must be a number, got {shortened(repr(score), 80)}; "
                f"reduce it to one number, such as the mean of an array"
            ) from None
    return checked


def _error_bars(scores: Mapping[str, float], confidence: float) -> dict[str, ErrorBar]:
    """Return the errors of those metrics that have one."""
    bars = {}
    for name, score in scores.items():
        if isinstance(score, Estimate) and math.isfinite(score):
            bars[name] = score.error_bar(confidence)
    return bars


def _dump_stack(
    context: RunContext, jobs: Sequence[Job], models: Sequence[Any]
) -> list[bytes | PendingCheckpoint]:
    dumped: list[bytes | PendingCheckpoint] = []
    try:
        for job, model in zip(jobs, models, strict=True):
            dumped.append(_dump(context, job, model))
    except BaseException:
        for data in dumped:
            if not isinstance(data, bytes):
                data.discard()
        raise
    return dumped


def _dump(context: RunContext, job: Job, model: Any) -> bytes | PendingCheckpoint:
    """Serialize a model: into a file that is not durable yet, if that is possible."""
    task = context.task
    if isinstance(task, StreamingTask) and isinstance(context.checkpoints, StreamedCheckpoints):
        pending = context.checkpoints.create(job.id)
        try:
            task.dump_to(model, cast(IO[bytes], pending))
        except BaseException:
            pending.discard()
            raise
        return pending
    data = task.dump(model)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TaskError(
            f"`dump` must return bytes, got {type(data).__name__}; "
            f"mopbt.dumps(...) converts arrays and dicts to bytes"
        )
    return bytes(data)


def _size(data: bytes | PendingCheckpoint) -> int:
    return len(data) if isinstance(data, bytes) else data.size
