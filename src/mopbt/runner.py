"""Run an algorithm on a task: start or resume a run, and return its front."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mopbt.algorithms import (
    ALGORITHMS,
    MOPBT,
    POPULATION,
    Algorithm,
    CheckedAlgorithm,
    algorithm_by_name,
    as_trained_by,
    options_of,
)
from mopbt.callbacks import Callback, CallbackList, check_callbacks
from mopbt.engines.auto import EngineSpec, check_options
from mopbt.engines.base import Engine
from mopbt.engines.compilation import Compilation, CompilationChooser, as_chosen
from mopbt.engines.early import EarlyWorkers
from mopbt.engines.pool import PoolEngine
from mopbt.engines.trial import Trial, open_trial
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import RunMismatch
from mopbt.estimate import CONFIDENCE
from mopbt.filesystem import exists
from mopbt.fingerprint import code_of, is_changed
from mopbt.function_task import as_task, reference_of
from mopbt.member import TrainingFunction
from mopbt.objectives import Constraint, Direction
from mopbt.opening import (
    EngineName,
    EngineRun,
    engine_choice,
    extend_run,
    open_with_engine,
    trial_environment,
)
from mopbt.problem import (
    CheckedTask,
    Problem,
    Task,
    is_training_function,
    problem_of,
    rows_of,
    suggested_population,
    with_constraints,
    with_initial,
)
from mopbt.progress import Outcome
from mopbt.reduction import KeepPrecision
from mopbt.repair import repair_journal
from mopbt.results import Results
from mopbt.run_config import RunConfig, recorded_precision
from mopbt.run_directory import RunDirectory
from mopbt.schedulers.base import Scheduler
from mopbt.session import Budget
from mopbt.space import Domain
from mopbt.stores.directory import DirectoryStore
from mopbt.warm_start import with_warm_start

if TYPE_CHECKING:
    from mopbt.progress_display import Display

OnChange = Literal["error", "continue"]
DEFAULT_OUT = "runs/<task>/<algorithm>-seed<seed>"


def run(
    task: Task[Any] | TrainingFunction,
    *,
    out: Path | str | None = DEFAULT_OUT,
    algorithm: Algorithm | str | None = None,
    population: int | None = None,
    seed: int = 0,
    engine: Engine | EngineName = "auto",
    timeout: float | None = None,
    storage: Path | str | None = None,
    keep: int | None = None,
    keep_precision: KeepPrecision | None = None,
    budget: Budget | None = None,
    initial: Sequence[Mapping[str, Any]] = (),
    warm_start: Path | str | None = None,
    extend: Mapping[str, int] | None = None,
    on_change: OnChange = "error",
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    confidence: float = CONFIDENCE,
    name: str | None = None,
    space: Mapping[str, Domain] | None = None,
    objectives: Mapping[str, Direction] | None = None,
    constraints: Sequence[str | Constraint] | None = None,
    reference: Mapping[str, float] | None = None,
    interval: int | None = None,
    steps: int | None = None,
    rows: Sequence[str] | None = None,
) -> Results:
    """Train a population and return its front of trained models.

    The same call resumes a run that was stopped, and returns a run that is already complete; then
    `outcome` of the results is "complete". The last eight arguments describe a training function; a
    task object has them as attributes.

    Args:
        task: A task object, or a training function that takes a `Member`.
        out: The run's directory. The default is made of the names of the task and the algorithm
            and of the seed, for example ``runs/adult/mo-pbt-seed0``. None keeps the run in memory,
            or in a temporary directory that is removed with the results.
        algorithm: An algorithm such as `MOPBT(fraction=0.1)`, or its name (see
            `mopbt algorithms`).
        population: Shortcut for the algorithm's `population`.
        seed: Random seed of the run.
        engine: "pool" (one worker process per GPU, or per core without GPUs), "vectorized" (a
            stack of members in each worker), "local" (this process), "ray" (actors on a Ray
            cluster), "simulated" (a virtual clock), "auto" (stacks if a short trial shows that
            they pay off, otherwise the pool), or an engine object such as
            `RayEngine(num_gpus=0.25)`.
        timeout: Seconds that an interval may take; a stack of n members may take n times as long.
            A worker that takes longer is killed, its job is repeated once and then reported as
            failed. An engine object has its own `timeout`.
        storage: Where to keep checkpoints, if not in `out`: a folder, or a URL that fsspec
            supports, such as ``s3://bucket/run``. Each run needs its own.
        keep: How many models of the front keep their weights on disk, by default all. Beyond it, a
            scattered subset keeps them. The other models stay in the results without weights;
            `replay` trains one again.
        keep_precision: Store models that only the front needs in "fp16" or "bf16", by default in
            the precision of training.
        budget: When to stop before the algorithm is done.
        initial: Hyperparameters with which the first trials start, such as a configuration that is
            known to be good. The algorithm proposes all others.
        warm_start: The directory of an earlier run. The first trials start from the models on its
            front, a scattered subset, with their hyperparameters.
        extend: Raise the `steps` or the `population` of a run that was started before:
            ``{"steps": 60}``.
        on_change: What to do if `out` holds a run of the same task with other code: "error", or
            "continue" to train the rest of it with the code as it is.
        progress: Whether to show progress on standard error.
        callbacks: Objects that follow the run, such as `mopbt.trackers.TensorBoard("logs")` or your
            own `Callback`.
        confidence: The confidence of the intervals of metrics that are reported with an error. The
            front compares models by the bounds of these intervals.
        name: Name of the task (default: the function's name).
        space: Hyperparameters of the task.
        objectives: Objectives with their directions: ``{"accuracy": "max", "dsp": "min"}``.
        constraints: Constraints on metrics: ``["accuracy >= 0.7"]``. A task object may be given
            further ones.
        reference: Reference point of the hypervolume, such as ``{"accuracy": 0.5, "dsp": 1}``.
        interval: Steps between two decisions (default 1).
        steps: Steps of training of each member.
        rows: Names of further rows, such as ``("test",)``, on which the function measures the
            models on the front at the end of the run: `m.rows` names them.
    """
    subject = as_task(
        task,
        name=name,
        space=space,
        objectives=objectives,
        constraints=constraints if is_training_function(task) else None,
        reference=reference,
        interval=interval,
        steps=steps,
        rows=rows,
    )
    chosen = choose_algorithm(algorithm or MOPBT.name, population, suggested_population(subject))
    problem = with_constraints(with_initial(problem_of(subject), initial), constraints or ())
    settings = RunConfig(
        problem,
        options_of(chosen),
        seed,
        task_reference=reference_of(subject),
        task_fingerprint=code_of(subject),
        confidence=confidence,
        keep=keep,
        keep_precision=keep_precision,
        precision=recorded_precision(subject),
    )
    out = default_directory(settings) if out == DEFAULT_OUT else out
    return execute_run(
        subject,
        chosen,
        with_warm_start(settings, warm_start, out),
        out=out,
        engine=engine,
        engine_options={"timeout": timeout},
        storage=storage,
        budget=budget or Budget(),
        progress=progress,
        extend=extend,
        on_change=on_change,
        callbacks=callbacks,
    )


def execute_run(
    task: Task[Any],
    algorithm: Algorithm,
    settings: RunConfig,
    *,
    out: Path | str | RunDirectory | None,
    engine: Engine | EngineName,
    budget: Budget,
    progress: bool,
    callbacks: Sequence[Callback] = (),
    engine_options: Mapping[str, Any] | None = None,
    storage: Path | str | None = None,
    extend: Mapping[str, int] | None = None,
    on_change: OnChange = "error",
    repair: bool = False,
    resume_hint: str = "rerun the same call to resume",
) -> Results:
    """Start or resume a run in its directory, execute it, and return its results.

    `out` may be a directory that is already locked. `engine_options` are those of `engine_spec`,
    for an engine that is named.
    `extend` raises the `steps` or the `population` of a run that was started before.
    """
    _check_arguments(budget, progress, on_change)
    rows_of(task)
    task = as_trained_by(algorithm, task)
    check_callbacks(callbacks)
    scheduler = algorithm.scheduler(settings.problem)
    budget, budget_note = bounded_budget(budget, scheduler, settings.problem)
    rules = None
    if repair:
        problem = settings.problem
        rules = partial(repair_journal, problem=problem, scheduler=scheduler, seed=settings.seed)
    options = {key: value for key, value in (engine_options or {}).items() if value is not None}
    if isinstance(engine, str):
        check_options(engine, options)
    place = out.path if isinstance(out, RunDirectory) else out
    display = None
    if progress:
        display = _make_display(partial(_closing_note, out=place, resume_hint=resume_hint))
    environment = trial_environment(task, engine, options)
    with _early_workers(task, engine, options, place, algorithm.max_parallel) as early:
        with open_trial(task, environment) as trial:
            _announce_check(task, settings, display)
            check_before_training(trial, algorithm)
            choose_engine = engine_choice(engine, options, trial, algorithm.max_parallel)
            chooser = _compilation_chooser(trial, algorithm, scheduler, budget, settings, display)
            opened = open_with_engine(out, storage, settings, choose_engine, chooser, rules)
        if isinstance(opened.driver, PoolEngine):
            opened.driver.early = early
        notes = [budget_note, _check_changed_code(opened, settings, on_change)]
        notes += [_note_engine(opened.spec), _note_compilation(opened.compilation)]
        notes.append(opened.note_lost_models())
        if display is not None:
            for note in filter(None, notes):
                display.note(note)
            callbacks = [display, *callbacks]
        scheduler = extend_run(opened, scheduler, extend or {})
        task = as_chosen(task, opened.compilation)
        return _drive(opened, task, scheduler, budget, callbacks)


def _announce_check(task: Task[Any], settings: RunConfig, display: "Display | None") -> None:
    if display is not None and isinstance(task, CheckedTask):
        display.note(f"checking {settings.problem.name}: one update and an evaluation")


@contextmanager
def _early_workers(
    task: Task[Any],
    engine: Engine | EngineName,
    options: Mapping[str, Any],
    out: Path | str | None,
    parallel: int,
) -> Iterator[EarlyWorkers | None]:
    """Start workers of a new run.

    They import what they need while the run is prepared.
    """
    is_new = out is None or not exists(Path(out) / "run.toml")
    if engine in ("auto", "pool", "vectorized") and "devices" not in options:
        engine = VectorizedEngine(options.get("workers"), stack=options.get("stack", 1))
    early = None
    if is_new and isinstance(engine, PoolEngine):
        early = engine.start_early(task, parallel)
    try:
        yield early
    finally:
        if early is not None:
            early.close()


def _drive(
    opened: EngineRun,
    task: Task[Any],
    scheduler: Scheduler,
    budget: Budget,
    callbacks: Sequence[Callback],
) -> Results:
    """Execute an open run to its end, and tell the callbacks how it ended."""
    results = opened.results(task)
    watch = CallbackList(callbacks, results)
    outcome: Outcome = "interrupted"
    with ExitStack() as stack:
        stack.callback(lambda: watch.end(outcome))
        session = stack.enter_context(opened.session(task, scheduler, budget, watch))
        try:
            outcome = session.drive()
            if outcome == "done" and rows_of(task):
                session.free_engine()
                opened.evaluate_front(task)
        except Exception:
            outcome = "failed"
            raise
        if outcome == "done" and not session.worked:
            outcome = "complete"
    return results


def default_directory(settings: RunConfig) -> Path:
    """Return the default directory of a run: `DEFAULT_OUT`, filled in."""
    task = _path_name(settings.problem.name)
    algorithm = _path_name(settings.algorithm["name"])
    return Path("runs", task, f"{algorithm}-seed{settings.seed}")


def _path_name(name: str) -> str:
    """Return a name without the characters that are special in paths or shells."""
    return re.sub(r"[^\w.-]+", "-", name)[:100].strip("-.") or "unnamed"


def _check_arguments(budget: Any, progress: Any, on_change: Any) -> None:
    if not isinstance(budget, Budget):
        raise TypeError(f"`budget` must be a Budget, such as Budget(seconds=3600), got {budget!r}")
    if not isinstance(progress, bool):
        remedy = "; pass a Callback in `callbacks`" if callable(progress) else ""
        raise TypeError(f"`progress` must be True or False, got {progress!r}{remedy}")
    if on_change not in get_args(OnChange):
        raise ValueError(f"`on_change` must be 'error' or 'continue', got {on_change!r}")


def check_before_training(trial: Trial, algorithm: Algorithm) -> None:
    """Let a task and an algorithm check what they need, before anything is written."""
    if isinstance(trial.task, CheckedTask):
        trial.call("check")
    if isinstance(algorithm, CheckedAlgorithm):
        algorithm.check()


def _compilation_chooser(
    trial: Trial,
    algorithm: Algorithm,
    scheduler: Scheduler,
    budget: Budget,
    settings: RunConfig,
    display: "Display | None",
) -> CompilationChooser:
    """Return what chooses compilation, by the length of the run."""
    jobs = budget.jobs_left(0, settings.problem.interval)
    return CompilationChooser(
        trial,
        jobs if scheduler.total_jobs is None else min(jobs, scheduler.total_jobs),
        algorithm.max_parallel,
        math.inf if budget.seconds is None else budget.seconds,
        (lambda text: None) if display is None else display.note,
    )


def bounded_budget(budget: Budget, scheduler: Scheduler, problem: Problem) -> tuple[Budget, str]:
    """Return a budget that ends the run, and a note if it was chosen here."""
    if not scheduler.needs_budget or budget != Budget():
        return budget, ""
    jobs = POPULATION * problem.steps // problem.interval
    note = (
        f"budget: {jobs} intervals, as many as a population of {POPULATION} has; the algorithm "
        "itself never ends"
    )
    return Budget(jobs=jobs), note


def _check_changed_code(opened: EngineRun, settings: RunConfig, on_change: OnChange) -> str:
    """Return a note if a run continues with changed code, or raise RunMismatch."""
    if not is_changed(opened.settings.task_fingerprint, settings.task_fingerprint):
        return ""
    name = settings.problem.name
    if on_change == "continue":
        return f"the code of {name!r} has changed since this run was started; earlier reports stay"
    opened.store.close()
    path = opened.store.path if isinstance(opened.store, DirectoryStore) else "the run"
    raise RunMismatch(
        f"{path} was started with other code of {name!r}: its function or class, or a function or "
        "constant that it uses, has changed; name another `out` (--out) for a new run, restore the "
        'code, or continue with on_change="continue" (--on-change continue), which keeps earlier '
        "reports"
    )


def _note_engine(spec: EngineSpec | None) -> str:
    return f"engine: {spec.name}, as {spec.why}" if spec is not None and spec.why else ""


def _note_compilation(compilation: Compilation | None) -> str:
    if compilation is None:
        return ""
    return f"compilation: {'yes' if compilation.compiled else 'no'}, as {compilation.why}"


def _closing_note(outcome: Outcome, *, out: Path | str | None, resume_hint: str) -> str:
    """Return what the display says at the end of a session."""
    if outcome == "done":
        return ""
    if outcome == "complete":
        return f"the run is already complete, in {out}; a new run needs another directory"
    if out is None:
        return "the run is not kept, because `out` is None"
    if outcome == "budget":
        return "nothing reported is lost: raise the budget, or leave it out, to resume"
    return f"nothing reported is lost: {resume_hint}"


def _make_display(closing_note: Callable[[Outcome], str]) -> "Display":
    # Imported here, because worker processes do not need it.
    from mopbt.progress_display import Display

    return Display(closing_note=closing_note)


def choose_algorithm(
    algorithm: Algorithm | str, population: int | None, default: int | None
) -> Algorithm:
    """Return the algorithm with its population.

    `default` is the task's own suggestion.
    """
    if isinstance(algorithm, str):
        algorithm = algorithm_by_name(algorithm, default)
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        remedy = f"; pass {algorithm.__name__}()" if isinstance(algorithm, type) else ""
        names = f"the name of one ({', '.join(ALGORITHMS)})"
        raise TypeError(
            f"`algorithm` must be an object such as MOPBT(population=32), or {names}, "
            f"got {algorithm!r}{remedy}"
        )
    if population is None:
        return algorithm
    options = options_of(algorithm)
    if "population" not in options:
        others = ", ".join(key for key in options if key != "name")
        raise ValueError(
            f"{algorithm.name} has no population, got {population!r}; leave it out, or set its "
            f"own options: {others}"
        )
    return replace(algorithm, population=population)  # type: ignore[type-var]
