"""Processes that carry out the runs of a comparison, and what they do."""

import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from mopbt.algorithms import algorithm_of, options_of
from mopbt.compare.collect import Marker
from mopbt.compare.plan import LEAST
from mopbt.engines.auto import EngineSpec, engine_spec
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import run_job
from mopbt.engines.pool import THREADS
from mopbt.engines.worker import keep_memory
from mopbt.errors import (
    CorruptCheckpoint,
    CorruptJournal,
    MopbtError,
    RunMismatch,
    StorageFull,
    TaskFailed,
)
from mopbt.filesystem import sync, write_atomically
from mopbt.objectives import parse_constraints
from mopbt.problem import problem_of
from mopbt.progress import Progress
from mopbt.registry import find_task, task_fingerprint
from mopbt.rng import stream
from mopbt.run_config import RunConfig
from mopbt.run_directory import OpenRun, open_run, read_run_config
from mopbt.schedulers.base import Scheduler
from mopbt.session import Budget, Session
from mopbt.state import Job, required_checkpoints
from mopbt.stores.directory import DirectoryStore
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.version import __version__


@dataclass(frozen=True)
class Order:
    """A run as it is given to a process that carries it out."""

    path: str
    task: str
    algorithm: Mapping[str, Any]
    constraints: Sequence[str]
    seed: int
    workers: int
    cost: float
    stack: int  # how many members are trained as one program; 1: none
    seconds: float | None  # the virtual time that it gets; None: until it is done
    keep_models: bool
    task_fingerprint: str  # the task, where the experiment was read
    version: str = __version__  # of mopbt: another one may decide otherwise
    guarded: bool = False  # whether to train in a process of its own: one that dies costs the job that killed it, not the run


def identity(order: Order) -> str:
    """Return what decides which evaluations a run has but for the task's code, as a text; orders with the same have the same."""
    apart = ("path", "keep_models", "guarded", "task_fingerprint")
    decisive = {key: value for key, value in asdict(order).items() if key not in apart}
    place, colon, name = order.task.rpartition(":")  # a project may have moved
    return json.dumps(
        decisive | {"task": (Path(place).name if place.endswith(".py") else place) + colon + name},
        sort_keys=True,
    )


class WorkerPool:
    """Processes that carry out orders, one after the other each; one that dies is replaced."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)  # a thread waits for each process
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._hands = [_Worker() for _ in range(jobs)]
        for hand in self._hands:
            self._idle.put(hand)

    def submit(
        self, message: Mapping[str, Any], tell: Callable[[float], None] | None = None
    ) -> Future[Mapping[str, Any]]:
        """Have an order carried out; `tell` hears which share of it is done."""
        return self._pool.submit(self._execute, message, tell)

    def close(self) -> None:
        """End all processes at once; what they were doing is in the journals."""
        for hand in self._hands:
            hand.kill()
        self._pool.shutdown(cancel_futures=True)
        for hand in self._hands:
            hand.bury()

    def _execute(
        self, message: Mapping[str, Any], tell: Callable[[float], None] | None
    ) -> Mapping[str, Any]:
        hand = self._idle.get()
        try:
            answer = hand.execute_order(message, tell)
            if (
                "died" in answer and "order" in message
            ):  # of the run's code, perhaps: the next one trains in a process of its own
                answer = hand.execute_order({"order": message["order"] | {"guarded": True}}, tell)
            return (
                {"failed": f"its process died (exit code {answer['died']})"}
                if "died" in answer
                else answer
            )
        finally:
            self._idle.put(hand)


@contextmanager
def crew_of(jobs: int) -> Iterator[WorkerPool]:
    """Lend a crew, and end it."""
    crew = WorkerPool(jobs)
    try:
        yield crew
    finally:
        crew.close()


class _Worker:
    """One process of a crew, started with its first order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_over = False

    def execute_order(
        self, message: Mapping[str, Any], tell: Callable[[float], None] | None
    ) -> Mapping[str, Any]:
        """Hand an order over, and wait for the answer."""
        with self._lock:
            if self._is_over:
                return {"failed": "interrupted"}
            process = self._process = self._process or _started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            answer: Mapping[str, Any] = json.loads(line)
            if "share" not in answer:
                return answer
            if tell is not None:
                tell(answer["share"])
        return {"died": self.bury()}

    def kill(self) -> None:
        """End the process, and start none again."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.kill()

    def bury(self) -> int:
        """Forget a process that has ended, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):  # what could not be written any more
                cast(IO[str], pipe).close()
        return process.wait()


def _started() -> subprocess.Popen[str]:
    path = [os.path.abspath(entry) for entry in sys.path]
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # at once: Ctrl-C reaches the whole group
    command = f"{ignore}; import sys; sys.path[:] = {path!r}; from mopbt.compare.workers import serve; serve()"
    environment = dict(os.environ) | dict.fromkeys(THREADS, "1")
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "encoding": "utf-8",
    }
    return subprocess.Popen([sys.executable, "-c", command], env=environment, **pipes)


def serve() -> None:
    """Carry out orders from standard input until it ends; answers go to standard output, what tasks print to standard error."""
    keep_memory()
    source, sink = (
        os.fdopen(os.dup(0), encoding="utf-8"),
        os.fdopen(os.dup(1), "w", encoding="utf-8"),
    )
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()

    def answer(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=sink, flush=True)

    while True:
        answer(_answer(inbox.get(), lambda share: answer({"share": share})))


def _listen(source: Iterable[str], inbox: "queue.SimpleQueue[Mapping[str, Any]]") -> None:
    for line in source:
        inbox.put(json.loads(line))
    os._exit(0)  # whoever gave the orders is gone


def _answer(message: Mapping[str, Any], tell: Callable[[float], None]) -> Mapping[str, Any]:
    try:
        if "measure" in message:
            return {"measured": measure(**message["measure"])}
        return {"finished": execute_order(Order(**message["order"]), tell)}
    except (MopbtError, ValueError, TypeError) as error:
        return {
            "failed": str(error),
            "trace": traceback.format_exc(),
            "stop": isinstance(error, StorageFull),
        }
    except Exception:
        return {"failed": traceback.format_exc()}


def execute_order(order: Order, tell: Callable[[float], None]) -> Marker:
    """Start or go on with a run in this process, mark it as finished, and return the mark."""
    began, path = time.perf_counter(), Path(order.path)
    (task, origin, made), algorithm = _task(order.task), algorithm_of(dict(order.algorithm))
    if made != order.task_fingerprint:
        raise RunMismatch(
            f"the code of {order.task} was changed while the comparison ran; the same command goes on with the new code"
        )
    problem = problem_of(task)
    problem = replace(
        problem, constraints=(*problem.constraints, *parse_constraints(order.constraints))
    )
    trainer = EngineSpec("vectorized", 1, order.stack) if order.stack > 1 else EngineSpec("local")
    plan = EngineSpec("simulated", order.workers, cost=repr(order.cost), on=trainer)
    settings = RunConfig(problem, options_of(algorithm), order.seed, origin, plan.to_dict(), made)
    engine = (
        replace(plan, on=EngineSpec("pool", 1)) if order.guarded and order.stack == 1 else plan
    ).engine()  # stacks are in any case
    with ExitStack() as stack:
        run = _opened(path, settings, algorithm.scheduler(problem), order)
        store = run.store
        stack.callback(store.close)
        earlier = float(run.history.reports.durations().sum())
        session = Session(
            *(algorithm.scheduler(problem), problem, store, engine, order.seed),
            Budget(seconds=order.seconds),
            _Share(tell, order.seconds),
            run.history,
        )
        engine.start(RunContext(task, problem, order.seed, store.checkpoints))
        stack.callback(engine.close)
        session.drive()
        if not order.keep_models:
            store.checkpoints.drop(store.checkpoints.kept())
        _make_durable(store)
        marker = {
            "seconds": round(session.elapsed, 6),  # virtual
            "real": round(earlier + time.perf_counter() - began, 3),
            "evaluations": len(run.history.reports),
            "bytes": store.journal.stat().st_size,
            "failures": run.history.failures,
            "order": identity(order),
        }
        write_atomically(path / "finished.json", (json.dumps(marker) + "\n").encode())
    return marker


@lru_cache(maxsize=2)
def _task(reference: str) -> tuple[Any, str, str]:
    """Return a task, how it is found again, and what it is made of; kept, as the next run is probably about the same one."""
    return *find_task(reference), task_fingerprint(reference)


def _opened(path: Path, settings: RunConfig, scheduler: Scheduler, order: Order) -> OpenRun:
    """Open a run's directory, and begin it anew where it cannot go on as the run that was ordered: it says why.

    Waiting for the disk takes longer than training what is small, so after a power cut the journal may know of checkpoints that
    were never written. To go on with failed intervals would make another run of it.
    """
    try:
        run = open_run(path, settings, durable=order.keep_models)
        why = _hindrance(run, settings, scheduler, order)
        if not why:
            return run
        run.close()
    except CorruptJournal:
        why = "its journal is damaged"
    print(f"{path} begins anew: {why}", file=sys.stderr)
    shutil.rmtree(path)
    return open_run(path, settings, durable=order.keep_models)


def _hindrance(run: OpenRun, settings: RunConfig, scheduler: Scheduler, order: Order) -> str:
    """Return why a run that was begun cannot go on as the one that was ordered; nothing if it can."""
    recorded = read_run_config(Path(order.path))
    if recorded.task_fingerprint != settings.task_fingerprint:
        return "the code of its task has changed"
    if recorded.engine != settings.engine:
        return "it was begun with another cost of a step, or another engine"
    last = float(run.history.reports.seconds().max(initial=0.0))
    if order.seconds is not None and last > order.seconds:
        return f"it has gone on to {last:g} virtual seconds, and its time is {order.seconds:g}"
    return (
        ""
        if _is_whole(run, settings, scheduler)
        else "a checkpoint that it needs is missing or damaged"
    )


def _is_whole(run: OpenRun, settings: RunConfig, scheduler: Scheduler) -> bool:
    """Return whether all checkpoints are intact that jobs may still start from."""
    reports = run.history.reports
    try:
        for id in required_checkpoints(run.history.state(scheduler, settings.seed)):
            run.store.checkpoints.load(id, reports.checksum(reports.row(id)))
    except CorruptCheckpoint:
        return False
    return True


def _make_durable(store: DirectoryStore) -> None:
    sync(store.journal)


class _Share:
    """Watches a run and tells now and then which share of it is done."""

    def __init__(self, tell: Callable[[float], None], seconds: float | None) -> None:
        self._tell, self._seconds = tell, seconds
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        done, whole = (
            (progress.elapsed, self._seconds)
            if self._seconds
            else (progress.reported, progress.total)
        )
        self._tell(min(done / whole, 1.0) if whole else 0.0)


def measure(task: str, cost: float | str, engine: str, stack: int) -> dict[str, Any]:
    """Return the cost of a step of a task and the engine that suits it, each measured where it is not given."""
    found, *_ = _task(task)
    if engine == "auto":
        engine = (
            "vectorized" if engine_spec("auto", found, stack, 1).name == "vectorized" else "local"
        )
    return {"cost": _cost(found) if cost == "measured" else cost, "engine": engine}


def _cost(task: Any) -> float:
    """Return the seconds that a step takes with one thread: the median of three intervals, after one to get warm."""
    problem = problem_of(task)
    work = RunContext(task, problem, 0, MemoryCheckpoints())
    configs = problem.space.stratified(4, stream(0, "cost"))
    reports = [
        run_job(work, Job(i, i, config, None, 0, problem.interval), "", ModelCache(0))
        for i, config in enumerate(configs)
    ]
    duration = [report.duration for report in reports[1:] if not report.error]
    if not duration:
        raise TaskFailed(
            "an interval failed with each of three configurations; mend it, or give `cost`:",
            reports[-1].error,
        )
    seconds = statistics.median(duration) / problem.interval
    return max(round(float(f"{seconds:.3g}"), 6), LEAST)
