"""Open a run to execute it: its store, its engine, and the session that uses both."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mopbt.arguments import check_count
from mopbt.engines.auto import ENGINES, EngineSpec, check_stackable, engine_spec, with_timeout
from mopbt.engines.base import Engine, InProcessEngine, PlacingEngine, RunContext, StackingEngine
from mopbt.engines.compilation import Compilation, CompilationChooser
from mopbt.engines.devices import assign_devices, check_devices
from mopbt.engines.trial import Trial
from mopbt.evaluations import Evaluations, evaluate_front
from mopbt.history import History
from mopbt.limits import POPULATION
from mopbt.problem import Task
from mopbt.progress import Watch
from mopbt.reduction import reduction_of
from mopbt.results import Results
from mopbt.retention import Retention, models_without_weights
from mopbt.run_config import RunConfig
from mopbt.run_directory import (
    RepairRules,
    RunDirectory,
    absolute_storage,
    initial_models,
    open_run,
)
from mopbt.schedulers.base import Scheduler, extend_scheduler
from mopbt.session import Budget, Session
from mopbt.stores.base import Exchange
from mopbt.stores.directory import DirectoryStore
from mopbt.stores.fsspec import check_reachable
from mopbt.stores.memory import MemoryStore
from mopbt.warm_start import copy_models

EngineName = Literal["auto", "local", "pool", "vectorized", "ray", "simulated"]
AnyStore = DirectoryStore | MemoryStore
# Returns the engine, and its specification if it was named, given the recorded specification.
EngineChoice = Callable[[Mapping[str, Any]], tuple[Engine, EngineSpec | None]]


def trial_environment(
    task: Task[Any], engine: Engine | EngineName, options: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return the environment of workers that try a task.

    It is None if the task is tried in this process.
    """
    trains_here = isinstance(engine, InProcessEngine) and engine.in_process
    if engine == "local" or trains_here:
        return None
    requested = options.get("devices", "auto")
    if isinstance(engine, PlacingEngine):
        requested = engine.devices
    check_devices(requested)
    devices = assign_devices(task, requested, refresh=True)
    return devices[0].environment(os.environ) if devices else None


def engine_choice(
    engine: Engine | EngineName, options: Mapping[str, Any], trial: Trial, parallel: int
) -> EngineChoice:
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


@dataclass(frozen=True)
class EngineRun:
    """A run that is about to be executed, its record and its engine."""

    store: AnyStore
    history: History
    # The settings as recorded.
    settings: RunConfig
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
        """Start the engine, in a session with the extended settings."""
        store = self.store
        history = self.history
        return open_session(
            task, scheduler, self.extended, store, history, self.driver, budget, watch
        )

    def evaluate_front(self, task: Task[Any]) -> None:
        """Evaluate the front on the rows that a task declares, where that is missing."""
        path = self.store.path if isinstance(self.store, DirectoryStore) else None
        keep = self.settings.keep
        checkpoints = self.store.checkpoints
        made = evaluate_front(self.driver, task, self.history, keep, checkpoints, path=path)
        self.evaluations.update(made)

    def note_lost_models(self) -> str:
        """Return a note if a repair brought models back to the front without weights."""
        models = models_without_weights(self.history, self.settings.keep, self.store.checkpoints)
        if not models:
            return ""
        path = self.store.path if isinstance(self.store, DirectoryStore) else "RUN"
        names = ", ".join(map(str, sorted(models)))
        return (
            f"no weights: of model {names}, back on the front because a report was lost; train it "
            f"again with `mopbt replay {path} {min(models)} --export model.safetensors`"
        )

    def results(self, task: Task[Any]) -> Results:
        """Return results that grow with the run."""
        path = self.store.path if isinstance(self.store, DirectoryStore) else None
        results = Results(self.extended, self.store.checkpoints, path, task)
        results.history = self.history
        results.evaluations = self.evaluations
        return results


def open_with_engine(
    out: Path | str | RunDirectory | None,
    storage: Path | str | None,
    settings: RunConfig,
    choose_engine: EngineChoice,
    chooser: CompilationChooser,
    repair: RepairRules | None,
) -> EngineRun:
    """Open the store of a run: a directory, memory, or a temporary directory."""
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
    return EngineRun(run.store, run.history, run.settings, driver, spec, compilation)


def _open_unkept(
    storage: Path | str | None,
    settings: RunConfig,
    choose_engine: EngineChoice,
    chooser: CompilationChooser,
) -> EngineRun:
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
        return EngineRun(MemoryStore(), history, settings, driver, spec, compilation)
    path = Path(tempfile.mkdtemp(prefix="mopbt-"))
    run = open_run(path, settings, durable=False)
    # The directory goes with its checkpoints, which the results hold.
    weakref.finalize(run.store.checkpoints, shutil.rmtree, path, ignore_errors=True)
    return EngineRun(run.store, run.history, run.settings, driver, spec, compilation)


def _with_engine(
    settings: RunConfig, spec: EngineSpec | None, storage: str, compilation: Compilation | None
) -> RunConfig:
    engine = settings.engine if spec is None else spec.to_dict()
    compiled = {} if compilation is None else compilation.to_dict()
    return replace(settings, engine=engine, storage=storage, compilation=compiled)


def extend_run(opened: EngineRun, scheduler: Scheduler, extend: Mapping[str, int]) -> Scheduler:
    """Record an extension of a run, and return the scheduler after all extensions."""
    settings = opened.extended
    current = {"steps": settings.problem.steps, **settings.algorithm}
    new = {name: value for name, value in extend.items() if value != current.get(name)}
    try:
        for name, value in new.items():
            most = POPULATION if name == "population" else None
            check_count(name, value, current.get(name, 1), most)
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


def _check_complete(opened: EngineRun, scheduler: Scheduler) -> None:
    """Raise ValueError while members of a joint generation are still training."""
    if not scheduler.done(opened.history.state(scheduler, opened.settings.seed)):
        raise ValueError(
            "a synchronous population can get new members only when the run is complete; resume it "
            "to its end first, then extend it"
        )


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
        session.reduction = reduction_of(task, store.checkpoints, settings.keep_precision)
        path = store.path if isinstance(store, DirectoryStore) else None
        initial = initial_models(path, settings)
        context = RunContext(
            task, problem, seed, store.checkpoints, settings.confidence, initial=initial
        )
        session.context = context
        engine.start(context)
        stack.callback(engine.close)
        yield session
