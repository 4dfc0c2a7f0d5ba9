"""The run: the same call starts it, goes on with it, and returns its front."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mopbt.algorithms import (
    ALGORITHMS,
    MOPBT,
    POPULATION,
    Algorithm,
    algorithm_by_name,
    options_of,
)
from mopbt.engines.auto import ENGINES, EngineSpec, check_stackable, engine_spec
from mopbt.engines.base import Engine, InProcessEngine, RunContext, StackingEngine
from mopbt.errors import RunMismatch
from mopbt.fingerprint import code_of
from mopbt.function_task import FunctionTask, Member
from mopbt.history import History
from mopbt.objectives import Constraint, Direction
from mopbt.problem import CheckedTask, Problem, Task, problem_of
from mopbt.progress import Outcome, Progress, Watch
from mopbt.repair import repair_journal
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.run_directory import open_run, read_run_config
from mopbt.schedulers.base import Scheduler
from mopbt.session import Budget, Session
from mopbt.space import Domain
from mopbt.stores.directory import DirectoryStore, Repair
from mopbt.stores.memory import MemoryStore

EngineName = Literal["auto", "local", "pool", "vectorized", "ray", "simulated"]


def run(
    task: Task[Any] | Callable[[Member], None],
    *,
    out: Path | str | None,
    algorithm: Algorithm | str | None = None,
    population: int | None = None,
    seed: int = 0,
    engine: Engine | EngineName = "auto",
    storage: Path | str | None = None,
    budget: Budget | None = None,
    progress: bool | Watch = True,
    name: str | None = None,
    space: Mapping[str, Domain] | None = None,
    objectives: Mapping[str, Direction] | None = None,
    constraints: Sequence[str | Constraint] | None = None,
    reference: Mapping[str, float] | None = None,
    interval: int | None = None,
    steps: int | None = None,
) -> Results:
    """Train a population and return the front of trained models that it found. The same call resumes a run that was stopped.

    Args:
        task: A task object, or a training function that takes a `Member`.
        out: The run's directory; None keeps the run in a temporary directory that goes with the results.
        algorithm: An algorithm such as `MOPBT(fraction=0.1)`, or the name of one; `mopbt algorithms` lists them.
        population: Short for the algorithm's `population`.
        seed: Names all randomness of the run.
        engine: "pool" (worker processes, one for each core), "vectorized" (a stack of members in each of them), "local" (this
            process), "ray" (actors on a Ray cluster), "auto" (stacks where a short trial says that they pay, else the pool), or
            an engine object such as `RayEngine(num_gpus=0.25)`.
        storage: Where the checkpoints are kept, if not in `out`: a folder, or a URL that fsspec reaches, such as
            ``s3://bucket/run``. Each run needs a place of its own.
        budget: When to stop before the algorithm is done.
        progress: Whether to show progress on standard error, or a function that is called with each `Progress`.
        name: For a training function: the task's name (default: the function's).
        space: For a training function: its hyperparameters.
        objectives: For a training function: ``{"accuracy": "max", "dsp": "min"}``.
        constraints: For a training function: ``["accuracy >= 0.7"]``.
        reference: For a training function: the reference point of the hypervolume, such as ``{"accuracy": 0.5, "dsp": 1}``.
        interval: For a training function: steps between decisions (default 1).
        steps: For a training function: steps of training of each member.
    """
    described = {
        "name": name,
        "space": space,
        "objectives": objectives,
        "constraints": constraints,
        "reference": reference,
    }
    subject = as_task(task, **described, interval=interval, steps=steps)
    chosen = _with_population(
        algorithm or MOPBT.name, population, suited=getattr(subject, "population", None)
    )
    settings = RunConfig(
        problem_of(subject), options_of(chosen), seed, task_fingerprint=code_of(subject)
    )
    where: dict[str, Any] = {"out": out, "engine": engine, "storage": storage}
    return execute_run(
        subject, chosen, settings, **where, budget=budget or Budget(), progress=progress
    )


def execute_run(
    task: Task[Any],
    algorithm: Algorithm,
    settings: RunConfig,
    *,
    out: Path | str | None,
    engine: Engine | EngineName,
    budget: Budget,
    progress: bool | Watch,
    workers: int | None = None,
    cost: str | None = None,
    address: str | None = None,
    storage: Path | str | None = None,
    repair: bool = False,
    resume_hint: str = "run the same again to go on",
) -> Results:
    """Start or resume a run in its directory, drive it, and return its results."""
    if not isinstance(budget, Budget):
        raise TypeError(f"`budget` must be a Budget, such as Budget(seconds=3600), got {budget!r}")
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"`progress` must be True, False or a function of a Progress, got {progress!r}"
        )
    if isinstance(task, CheckedTask):
        task.check()
    if callable(check := getattr(algorithm, "check", None)):
        check()
    problem, scheduler = settings.problem, algorithm.scheduler(settings.problem)
    budget, note = _with_an_end(budget, scheduler, problem)
    settings = replace(settings, storage=_storage(out, storage))
    sizes = {"workers": workers, "cost": cost, "address": address}
    crew, plan = _crew(engine, sizes, task, getattr(algorithm, "max_parallel", POPULATION), out)
    mend = partial(repair_journal, scheduler=scheduler, seed=settings.seed) if repair else None
    recorded = replace(settings, engine=plan.to_dict()) if plan else settings
    store, history = _open(out, recorded, crew, mend)
    display = _display(plan, [note, _changed_code(store, settings)]) if progress is True else None
    watch = display or (progress if callable(progress) else _ignore)
    session = Session(scheduler, problem, store, crew, settings.seed, budget, watch, history)
    outcome: Outcome = "interrupted"
    with ExitStack() as stack:
        stack.callback(store.close)
        if display is not None:
            stack.callback(
                lambda: display.finish(
                    outcome, _afterwards(outcome, out, resume_hint, worked=session.worked)
                )
            )
            stack.enter_context(display)
        crew.start(RunContext(task, problem, settings.seed, store.checkpoints))
        stack.callback(crew.close)
        try:
            outcome = session.drive()
        except Exception:
            outcome = "failed"
            raise
    return _results(store, settings, task, outcome)


def _open(
    out: Path | str | None, settings: RunConfig, engine: Engine, mend: Repair | None
) -> tuple[DirectoryStore | MemoryStore, History]:
    """Open the store of a run: its directory, memory, or a temporary directory for workers."""
    if out is not None:
        run = open_run(Path(out).absolute(), settings, mend=mend)
        return run.store, run.history
    if settings.storage:
        raise ValueError(
            f"`storage` needs `out` as well, got {settings.storage!r} and None: the journal says what the checkpoints are; give "
            f"`out` a directory"
        )
    if isinstance(engine, InProcessEngine) and engine.in_process:
        return MemoryStore(), History(settings.problem)
    path = Path(tempfile.mkdtemp(prefix="mopbt-"))
    run = open_run(path, settings, durable=False)
    # The directory goes with its checkpoints, which the results hold.
    weakref.finalize(run.store.checkpoints, shutil.rmtree, path, ignore_errors=True)
    return run.store, run.history


def _storage(out: Path | str | None, storage: Path | str | None) -> str:
    """Return where the checkpoints of a run are: as it was started with, else as given; empty: in its directory."""
    recorded = (
        read_run_config(Path(out)).storage
        if out is not None and (Path(out) / "run.toml").is_file()
        else None
    )
    if storage is None:
        return recorded or ""
    place = str(storage) if "://" in str(storage) else str(Path(storage).absolute())
    if recorded is not None and place != recorded:
        was = recorded or "in the run's directory"
        raise RunMismatch(
            f"{out} keeps its checkpoints {was}, got `storage` {place}; leave it out, or use another directory"
        )
    return place


def _results(
    store: DirectoryStore | MemoryStore, settings: RunConfig, task: Task[Any], outcome: Outcome
) -> Results:
    path = store.path if isinstance(store, DirectoryStore) else None
    results = Results(
        read_run_config(path) if path else settings, store.checkpoints, path, task, outcome
    )
    if isinstance(store, MemoryStore):
        results.history.extend(store.lines())
    results.refresh()
    return results


def _with_an_end(budget: Budget, scheduler: Scheduler, problem: Problem) -> tuple[Budget, str]:
    """Return a budget that ends the run, and what is to be said about it."""
    if not scheduler.needs_budget or budget != Budget():
        return budget, ""
    jobs = POPULATION * problem.steps // problem.interval
    return (
        Budget(jobs=jobs),
        f"budget: {jobs} intervals, as a population of {POPULATION} has; the algorithm has no end of its own",
    )


def _changed_code(store: DirectoryStore | MemoryStore, settings: RunConfig) -> str:
    """Return what is to be said where a run goes on with other code of its task."""
    before = (
        read_run_config(store.path).task_fingerprint if isinstance(store, DirectoryStore) else ""
    )
    if not before or not settings.task_fingerprint or before == settings.task_fingerprint:
        return ""
    return (
        "the file of the task, or one that it imports from its folder, has changed since this run was started; what was reported "
        "before stays as it is"
    )


def _afterwards(outcome: Outcome, out: Path | str | None, resume_hint: str, *, worked: bool) -> str:
    """Return what is to be said at the end of a session."""
    if outcome == "done":
        return (
            ""
            if worked
            else "the run was done before, and nothing was trained now; a new run needs another directory"
        )
    if out is None:
        return "it is not kept, as `out` is None"
    return f"nothing reported is lost: {'raise the budget, or leave it out, to go on' if outcome == 'budget' else resume_hint}"


def _display(plan: EngineSpec | None, notes: Sequence[str]) -> Any:
    from mopbt.progress_display import Display  # here, as worker processes have no use for it

    display = Display()
    for note in filter(None, notes):
        display.note(note)
    if plan is not None and plan.why:
        display.note(f"engine: {plan.name}, as {plan.why}")
    return display


def _ignore(progress: Progress) -> None:
    """Show nothing."""


def _crew(
    engine: Engine | EngineName,
    sizes: Mapping[str, Any],
    task: Any,
    population: int,
    out: Path | str | None,
) -> tuple[Engine, EngineSpec | None]:
    """Return the engine, and the plan by which it was made if it was named; what "auto" once chose for a run is kept."""
    if not isinstance(engine, str):
        if isinstance(engine, type) or not isinstance(engine, Engine):
            remedy = f"; pass {engine.__name__}()" if isinstance(engine, type) else ""
            names = f"'auto', {', '.join(map(repr, ENGINES))}"
            raise TypeError(
                f"`engine` must be one of {names} or an engine object, got {engine!r}{remedy}"
            )
        if isinstance(engine, StackingEngine) and engine.stack > 1:
            check_stackable(task)
        return engine, None
    is_known = (
        engine == "auto"
        and set(sizes.values()) == {None}
        and out is not None
        and (Path(out) / "run.toml").is_file()
    )
    recorded = read_run_config(Path(out)).engine if is_known else {}  # type: ignore[arg-type]
    plan = (
        EngineSpec.from_dict(recorded)
        if recorded
        else engine_spec(engine, task, population, **sizes)
    )
    return plan.engine(), plan


def as_task(task: Any, *, interval: int | None, steps: int | None, **described: Any) -> Task[Any]:
    """Return a task: the object itself, or a training function with what was said about it."""
    described |= {"interval": interval, "steps": steps}
    is_function = callable(task) and not isinstance(task, type) and not hasattr(task, "train")
    if not is_function:
        said = [key for key, value in described.items() if value is not None]
        if said:
            names = ", ".join(f"`{key}`" for key in said)
            raise TypeError(
                f"{names}: for training functions only, got a {type(task).__name__} object, which says this itself; leave it out, "
                f"or set it there"
            )
        problem_of(task)
        return task  # type: ignore[no-any-return]
    missing = [key for key in ("space", "objectives", "steps") if described[key] is None]
    if missing:
        given = (
            ", ".join(f"`{key}=`" for key, value in described.items() if value is not None)
            or "nothing"
        )
        raise TypeError(
            f"a training function needs {', '.join(f'`{key}=`' for key in missing)} as well, got {given}: write "
            f"run(train, space={{...}}, objectives={{...}}, steps=...)"
        )
    return FunctionTask(
        task, **{key: value for key, value in described.items() if value is not None}
    )


def _with_population(
    algorithm: Algorithm | str, population: int | None, *, suited: int | None
) -> Algorithm:
    if isinstance(algorithm, str):
        algorithm = algorithm_by_name(algorithm, suited)
    if isinstance(algorithm, type) or not hasattr(algorithm, "scheduler"):
        remedy = f"; pass {algorithm.__name__}()" if isinstance(algorithm, type) else ""
        names = f"the name of one ({', '.join(ALGORITHMS)})"
        raise TypeError(
            f"`algorithm` must be an object such as MOPBT(population=32), or {names}, got {algorithm!r}{remedy}"
        )
    if population is None:
        return algorithm
    options = options_of(algorithm)
    if "population" not in options:
        others = ", ".join(key for key in options if key != "name")
        raise ValueError(
            f"{algorithm.name} has no population, got {population!r}; leave it out, or set its own options: {others}"
        )
    return replace(algorithm, population=population)  # type: ignore[type-var]
