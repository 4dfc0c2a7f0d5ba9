"""Run an algorithm on a task: one call starts a run, resumes it, and returns its front."""

import math
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
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
    check_count,
    options_of,
)
from mopbt.callbacks import Callback, CallbackList, check_callbacks
from mopbt.engines.auto import (
    ENGINES,
    EngineSpec,
    check_options,
    check_stackable,
    engine_spec,
    with_timeout,
)
from mopbt.engines.base import (
    Engine,
    InProcessEngine,
    PlacingEngine,
    RunContext,
    StackingEngine,
)
from mopbt.engines.compilation import Compilation, CompilationChooser, as_chosen
from mopbt.engines.devices import assign_devices, check_devices
from mopbt.engines.early import EarlyWorkers
from mopbt.engines.pool import PoolEngine
from mopbt.engines.trial import Trial, open_trial
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import RunMismatch
from mopbt.estimate import CONFIDENCE
from mopbt.evaluations import Evaluations, evaluate_front
from mopbt.filesystem import exists
from mopbt.fingerprint import code_of, is_changed
from mopbt.function_task import as_task, reference_of
from mopbt.history import History
from mopbt.member import TrainingFunction
from mopbt.objectives import Constraint, Direction
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
from mopbt.progress import Outcome, Watch
from mopbt.repair import repair_journal
from mopbt.results import Results
from mopbt.retention import Retention
from mopbt.run_config import RunConfig, recorded_precision
from mopbt.run_directory import RunDirectory, absolute_storage, initial_models, open_run
from mopbt.schedulers.base import Scheduler, extend_scheduler
from mopbt.session import Budget, Session
from mopbt.space import Domain
from mopbt.stores.base import Exchange
from mopbt.stores.directory import DirectoryStore, Repair
from mopbt.stores.fsspec import check_reachable
from mopbt.stores.memory import MemoryStore
from mopbt.warm_start import copy_models, with_warm_start

if TYPE_CHECKING:
    from mopbt.progress_display import Display

EngineName = Literal["auto", "local", "pool", "vectorized", "ray", "simulated"]
AnyStore = DirectoryStore | MemoryStore
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
        precision=recorded_precision(subject),
    )
    out = default_directory(settings) if out == DEFAULT_OUT else out
    if warm_start is not None:
        settings = with_warm_start(settings, warm_start, out)
    return execute_run(
        subject,
        chosen,
        settings,
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
            choose_engine = _engine_choice(engine, options, trial, algorithm.max_parallel)
            chooser = _compilation_chooser(trial, algorithm, scheduler, budget, settings, display)
            opened = _open(out, storage, settings, choose_engine, chooser, rules)
        if isinstance(opened.driver, PoolEngine):
            opened.driver.early = early
        notes = [budget_note, _check_changed_code(opened, settings, on_change)]
        notes += [_note_engine(opened.spec), _note_compilation(opened.compilation)]
        if display is not None:
            for note in filter(None, notes):
                display.note(note)
            callbacks = [display, *callbacks]
        scheduler = _extend(opened, scheduler, extend or {})
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
    """Start workers of a new run, which import what they need while the run is prepared."""
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
    opened: "_Opened",
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


@contextmanager
def open_session(
    task: Task[Any],
    scheduler: Scheduler,
    settings: RunConfig,
    store: AnyStore,
    history: History,
    engine: Engine,
    budget: Budget,
    watch: Watch,
) -> Iterator[Session]:
    """Start the engine of an open run; at the end, close the engine and then the run.

    Every run is executed in such a session, also those of a comparison.
    """
    problem = settings.problem
    seed = settings.seed
    with ExitStack() as stack:
        stack.callback(store.close)
        retention = None if settings.keep is None else Retention(settings.keep)
        session = Session(
            scheduler, problem, store, engine, seed, budget, watch, history, retention
        )
        path = store.path if isinstance(store, DirectoryStore) else None
        initial = initial_models(path, settings)
        context = RunContext(
            task, problem, seed, store.checkpoints, settings.confidence, initial=initial
        )
        session.context = context
        engine.start(context)
        stack.callback(engine.close)
        yield session


def default_directory(settings: RunConfig) -> Path:
    """Return the directory of a run for which none was given: `DEFAULT_OUT`, filled in."""
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


def trial_environment(
    task: Task[Any], engine: Engine | EngineName, options: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return the environment of workers that try a task; None if it is tried in this process."""
    trains_here = isinstance(engine, InProcessEngine) and engine.in_process
    if engine == "local" or trains_here:
        return None
    requested = options.get("devices", "auto")
    if isinstance(engine, PlacingEngine):
        requested = engine.devices
    check_devices(requested)
    devices = assign_devices(task, requested, refresh=True)
    return devices[0].environment(os.environ) if devices else None


def check_before_training(trial: Trial, algorithm: Algorithm) -> None:
    """Let a task and an algorithm check what they need, before anything is written."""
    if isinstance(trial.task, CheckedTask):
        trial.call("check")
    if isinstance(algorithm, CheckedAlgorithm):
        algorithm.check()


@dataclass(frozen=True)
class _Opened:
    """A run that is about to be executed: where it is recorded, and by what it is trained."""

    store: AnyStore
    history: History
    settings: RunConfig  # as recorded
    driver: Engine
    spec: EngineSpec | None
    compilation: Compilation | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)

    @property
    def extended(self) -> RunConfig:
        """Return the settings after all extensions."""
        return self.settings.extended(self.history.extension)

    def session(
        self, task: Task[Any], scheduler: Scheduler, budget: Budget, watch: Watch
    ) -> AbstractContextManager[Session]:
        store = self.store
        history = self.history
        return open_session(
            task, scheduler, self.extended, store, history, self.driver, budget, watch
        )

    def evaluate_front(self, task: Task[Any]) -> None:
        """Evaluate the front on the rows that a task declares, where that is missing."""
        path = self.store.path if isinstance(self.store, DirectoryStore) else None
        keep = self.settings.keep
        made = evaluate_front(self.driver, task, self.history, keep, path=path)
        self.evaluations.update(made)

    def results(self, task: Task[Any]) -> Results:
        path = self.store.path if isinstance(self.store, DirectoryStore) else None
        results = Results(self.extended, self.store.checkpoints, path, task)
        results.history = self.history
        results.evaluations = self.evaluations
        return results


def _open(
    out: Path | str | RunDirectory | None,
    storage: Path | str | None,
    settings: RunConfig,
    choose_engine: "_EngineChoice",
    chooser: CompilationChooser,
    repair: Repair | None,
) -> _Opened:
    """Open the store of a run: its directory, memory, or a temporary directory for workers."""
    if out is None:
        return _open_unkept(storage, settings, choose_engine, chooser)
    if storage is not None:
        # An unknown file system is an error before anything is written.
        check_reachable(absolute_storage(storage))
    directory = out if isinstance(out, RunDirectory) else RunDirectory(Path(out).absolute())
    try:
        recorded = directory.recorded
        driver, spec = choose_engine({} if recorded is None else recorded.engine)
        compilation = chooser.choose(driver, {} if recorded is None else recorded.compilation)
        settings = _with_engine(settings, spec, directory.storage(storage), compilation)
        run = directory.open(settings, repair=repair)
        copy_models(directory.path, run.settings.warm_start)
    except BaseException:
        directory.close()
        raise
    return _Opened(run.store, run.history, run.settings, driver, spec, compilation)


def _extend(opened: _Opened, scheduler: Scheduler, extend: Mapping[str, int]) -> Scheduler:
    """Record an extension of a run, and return the scheduler after all extensions."""
    settings = opened.extended
    current = {"steps": settings.problem.steps, **settings.algorithm}
    new = {name: value for name, value in extend.items() if value != current.get(name)}
    try:
        for name, value in new.items():
            check_count(name, value, current.get(name, 1))
        extended = extend_scheduler(scheduler, opened.history.extension | new)
        if "population" in new and scheduler.decides_together:
            _check_complete(opened, extend_scheduler(scheduler, opened.history.extension))
        if new:
            exchange = Exchange(extend=new)
            opened.store.append(exchange)
            opened.history.append(exchange)
    except BaseException:
        opened.store.close()
        raise
    return extended


def _check_complete(opened: _Opened, scheduler: Scheduler) -> None:
    """Raise ValueError if members of a generation that decides together are still training."""
    if not scheduler.done(opened.history.state(scheduler, opened.settings.seed)):
        raise ValueError(
            "a synchronous population can get new members only when the run is complete; resume it "
            "to its end first, then extend it"
        )


def _open_unkept(
    storage: Path | str | None,
    settings: RunConfig,
    choose_engine: "_EngineChoice",
    chooser: CompilationChooser,
) -> _Opened:
    if storage is not None:
        raise ValueError(
            f"`storage` needs `out` as well, got {absolute_storage(storage)!r} and None: the "
            "journal in `out` says what the checkpoints are; give `out` a directory"
        )
    driver, spec = choose_engine({})
    compilation = chooser.choose(driver, {})
    settings = _with_engine(settings, spec, "", compilation)
    if isinstance(driver, InProcessEngine) and driver.in_process:
        history = History(settings.problem)
        return _Opened(MemoryStore(), history, settings, driver, spec, compilation)
    path = Path(tempfile.mkdtemp(prefix="mopbt-"))
    run = open_run(path, settings, durable=False)
    # The directory goes with its checkpoints, which the results hold.
    weakref.finalize(run.store.checkpoints, shutil.rmtree, path, ignore_errors=True)
    return _Opened(run.store, run.history, run.settings, driver, spec, compilation)


def _with_engine(
    settings: RunConfig, spec: EngineSpec | None, storage: str, compilation: Compilation | None
) -> RunConfig:
    engine = settings.engine if spec is None else spec.to_dict()
    compiled = {} if compilation is None else compilation.to_dict()
    return replace(settings, engine=engine, storage=storage, compilation=compiled)


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


def _check_changed_code(opened: _Opened, settings: RunConfig, on_change: OnChange) -> str:
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


# Returns the engine, and its specification if it was named, given the recorded specification.
_EngineChoice = Callable[[Mapping[str, Any]], tuple[Engine, EngineSpec | None]]


def _engine_choice(
    engine: Engine | EngineName, options: Mapping[str, Any], trial: Trial, parallel: int
) -> _EngineChoice:
    """Check the engine, and return how it is made.

    A resumed run keeps what "auto" chose for it, unless other options than a time limit are given,
    so that choice waits until the run is locked.
    """
    if isinstance(engine, str):
        if engine == "auto" and options.keys() <= {"timeout"}:
            return partial(_automatic_engine, trial, parallel, options.get("timeout"))
        spec = engine_spec(engine, trial.task, parallel, **options, trial=trial)
        made: tuple[Engine, EngineSpec | None] = (spec.engine(), spec)
        return lambda recorded: made
    if isinstance(engine, type) or not isinstance(engine, Engine):
        remedy = f"; pass {engine.__name__}()" if isinstance(engine, type) else ""
        names = f"'auto', {', '.join(map(repr, ENGINES))}"
        raise TypeError(
            f"`engine` must be one of {names} or an engine object, got {engine!r}{remedy}"
        )
    if options:
        names = ", ".join(f"`{name}`" for name in options)
        raise ValueError(
            f"{names}: for engines that are named, got a {type(engine).__name__} object; set it "
            f"there, as in {type(engine).__name__}({next(iter(options))}=...)"
        )
    if isinstance(engine, StackingEngine) and engine.stack > 1:
        check_stackable(trial.task, trial)
    return lambda recorded: (engine, None)


def _automatic_engine(
    trial: Trial, parallel: int, timeout: float | None, recorded: Mapping[str, Any]
) -> tuple[Engine, EngineSpec | None]:
    if recorded:
        spec = with_timeout(EngineSpec.from_dict(recorded), timeout)
    else:
        spec = engine_spec("auto", trial.task, parallel, timeout=timeout, trial=trial)
    return spec.engine(), spec


def choose_algorithm(
    algorithm: Algorithm | str, population: int | None, default: int | None
) -> Algorithm:
    """Return the algorithm with its population; `default` is the task's own suggestion."""
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
