"""Jobs in worker processes on this machine.

Workers stay for the run and are replaced if they die.
"""

import functools
import inspect
import io
import math
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from mopbt.arguments import check_count, check_timeout
from mopbt.engines.base import RunContext
from mopbt.engines.crashes import CrashTracker
from mopbt.engines.devices import (
    Device,
    DeviceNames,
    assign_devices,
    available_cores,
    check_devices,
    spread,
)
from mopbt.engines.early import EarlyWorkers, modules_of, start_worker
from mopbt.engines.execution import Answer, Stack, make_stacks, warn_about_stack
from mopbt.engines.supervisor import Supervisor, WorkerProcess
from mopbt.errors import MopbtError, WorkerFailed
from mopbt.state import Job, Report
from mopbt.stores.base import CheckpointFiles

# Environment variables with which numerical libraries limit their threads.
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# A worker gets its second stack in advance, so that it need not wait for the driver between two.
_AHEAD = 2
# This pays only if a stack takes less than so many seconds. Behind a long one, the second stack
# would wait while other workers are idle.
_SHORT = 0.5


@dataclass(eq=False)
class _Worker:
    """A worker process as the driver sees it."""

    process: WorkerProcess
    # Which of the engine's places it takes, which decides its device.
    slot: int
    # The first stack is running.
    stacks: deque[Stack] = field(default_factory=deque)
    # Checkpoints whose models it may have in memory.
    cached: set[int | None] = field(default_factory=set)
    is_ready: bool = False
    # Whether it was killed for a stack whose answer was already on its way.
    is_innocent: bool = False


class PoolEngine:
    """Executes jobs in worker processes on this machine.

    A worker that dies is replaced and its job repeated. A worker computes only on its own device.

    Args:
        workers: The number of processes. Default: `workers_per_device` for each device, or one per
            core without an accelerator.
        devices: Where workers compute: a list of indices and names, such as ``[0, 1]``, or "auto"
            for all accelerators that this process sees, if the task may use them. Indices count
            the devices that CUDA_VISIBLE_DEVICES or its equivalent leaves visible. An empty list
            keeps workers on the CPU.
        workers_per_device: How many workers share a device (default: 1).
        timeout: Seconds that an interval may take. A worker that takes longer is killed, with
            every process that it started, and the job is repeated once, then reported as failed.
            A stack of n members may take n times as long. Default: no limit.
        threads: The threads of numerical libraries in each worker; None leaves them as they are.
        retries: How often a job whose worker died is repeated before it is reported as failed.
        warm_bytes: The size of the checkpoints whose models a worker keeps in memory.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        devices: DeviceNames = "auto",
        workers_per_device: int | None = None,
        timeout: float | None = None,
        threads: int | None = 1,
        retries: int = 2,
        warm_bytes: int = 2**28,
    ) -> None:
        check_count("workers", workers, 1, optional=True)
        check_count("workers_per_device", workers_per_device, 1, optional=True)
        check_count("threads", threads, 1, optional=True)
        check_count("retries", retries, 0)
        check_devices(devices)
        check_timeout(timeout)
        check_exclusive(workers, workers_per_device)
        self.workers = workers or available_cores()
        self.devices = devices
        self._requested_workers = workers
        self._workers_per_device = workers_per_device
        self._timeout = math.inf if timeout is None else timeout
        self._threads = threads
        self._retries = retries
        self._warm_bytes = warm_bytes
        self._supervisor = Supervisor()
        self._pool: dict[WorkerProcess, _Worker] = {}
        # Workers that started before the run.
        self.early: EarlyWorkers | None = None

    @property
    def stack(self) -> int:
        """Return the largest number of jobs in a stack."""
        return 1

    @property
    def capacity(self) -> int:
        """Return how many jobs the engine accepts at a time."""
        return self.workers * self.stack * _AHEAD

    def start_early(self, task: Any, parallel: int) -> EarlyWorkers | None:
        """Start workers that import what a task needs while its run is still prepared.

        None if they compute on devices, which may still be measured. `parallel` is the number of
        members that train at the same time.
        """
        if assign_devices(task, self.devices):
            return None
        workers = self._requested_workers or available_cores()
        number = min(workers, math.ceil(parallel / self.stack))
        return EarlyWorkers(task, self._thread_limits(), number)

    def start(self, context: RunContext) -> None:
        """Prepare for a run; workers start with the first jobs."""
        self._place(assign_devices(context.task, self.devices))
        try:
            payload = pickle_context(context)
        except Exception as error:
            raise _explain_unsendable(context.task, error) from error
        self._problem = context.problem
        self._checkpoints = context.checkpoints
        self._setup = pickle.dumps((payload, self._warm_bytes))
        self._supervisor = Supervisor() if self.early is None else self.early.supervisor
        self._modules = modules_of(context.task)
        self._pending: deque[Stack] = deque()
        self._crashes = CrashTracker(self._retries)
        self._false_starts = 0
        self._began = time.monotonic()
        self._ahead = _AHEAD
        self._has_warned = False
        self._broken: Exception | None = None

    def _place(self, devices: Sequence[Device]) -> None:
        """Set the number of workers and the environment of each."""
        per_device = self._workers_per_device or (1 if any(d.kind != "cpu" for d in devices) else 0)
        on_devices = per_device * max(len(devices), 1)
        self.workers = self._requested_workers or on_devices or available_cores()
        self._environments: list[dict[str, str]] = [{} for _ in range(self.workers)]
        if devices:
            placed = spread(devices, self.workers)
            self._environments = [device.environment(os.environ) for device in placed]

    def elapsed(self) -> float:
        """Return the seconds since `start`."""
        return time.monotonic() - self._began

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Assign jobs to workers, or queue them."""
        self._pending.extend(make_stacks(jobs, checksums, self.stack))
        busy = sum(len(worker.stacks) > 0 for worker in self._pool.values())
        while len(self._pool) < min(self.workers, len(self._pending) + busy):
            self._spawn()
        self._dispatch()

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for a report, and return it with all others that have arrived."""
        if self._broken is not None:
            raise self._broken
        deadline = None if timeout is None else time.monotonic() + timeout
        reports: list[Report] = []
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            event = self._supervisor.receive(0.0 if reports else left)
            if event is None:
                return reports
            try:
                received = self._handle(*event)
            except MopbtError as error:
                if not reports:
                    raise
                # The next call raises it, after these reports are in the journal.
                self._broken = error
                return reports
            reports += [replace(report, seconds=self.elapsed()) for report in received]
            self._dispatch()

    def close(self) -> None:
        """Kill all workers; they leave no incomplete files."""
        processes = list(self._pool)
        self._pool.clear()
        self._supervisor.close()
        self.early = None
        for process in processes:
            self._remove_leftovers(process)

    def _remove_leftovers(self, process: WorkerProcess) -> None:
        """Remove a checkpoint that a worker was writing when it died."""
        if isinstance(self._checkpoints, CheckpointFiles):
            self._checkpoints.remove_leftovers(process.popen.pid)

    def _spawn(self) -> None:
        taken = {worker.slot for worker in self._pool.values()}
        slot = min(set(range(self.workers)) - taken)
        environment = self._thread_limits() | self._environments[slot]
        process = None if self.early is None else self.early.take(environment)
        if process is None:
            process = start_worker(self._supervisor, environment, self._modules)
        self._pool[process] = _Worker(process, slot)
        process.send(self._setup)

    def _thread_limits(self) -> dict[str, str]:
        return {} if self._threads is None else dict.fromkeys(THREADS, str(self._threads))

    def _dispatch(self) -> None:
        # Every worker gets one stack before any gets a second one.
        for depth in range(1, self._ahead + 1):
            for worker in self._pool.values():
                is_alone = any(map(self._crashes.is_suspect, worker.stacks))
                if len(worker.stacks) < depth and not is_alone:
                    self._assign(worker)

    def _assign(self, worker: _Worker) -> None:
        """Give a worker the stack of which it holds the most models, or the first one.

        A suspect stack runs alone in its worker.
        """
        is_busy = len(worker.stacks) > 0
        fit = [s for s in self._pending if not (is_busy and self._crashes.is_suspect(s))]
        if not fit:
            return
        stack = max(fit, key=lambda stack: sum(job.start in worker.cached for job, _ in stack))
        self._pending.remove(stack)
        worker.stacks.append(stack)
        worker.cached -= {job.start for job, _ in stack}
        worker.process.send(pickle.dumps(stack))
        if not is_busy:
            self._start_clock(worker)

    def _start_clock(self, worker: _Worker) -> None:
        """Give a worker the time that its first stack may take, after it has started."""
        worker.process.deadline = math.inf
        if worker.is_ready and worker.stacks:
            limit = self._timeout * len(worker.stacks[0])
            worker.process.deadline = time.monotonic() + limit

    def _handle(self, process: WorkerProcess, message: bytes | None) -> list[Report]:
        """Return the reports that follow from a message or a death."""
        worker = self._pool[process]
        if message is None:
            return self._replace(worker)
        answer: Answer | Exception | None = pickle.loads(message)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            worker.is_ready = True
            self._false_starts = 0
            self._start_clock(worker)
            return []
        worker.stacks.popleft()
        worker.is_innocent = worker.process.timed_out
        self._start_clock(worker)
        worker.cached |= {report.job for report in answer.reports}
        is_short = sum(report.duration for report in answer.reports) < _SHORT
        self._ahead = _AHEAD if is_short else 1
        if answer.stack_error and not self._has_warned:
            self._has_warned = True
            warn_about_stack(self._problem, answer.stack_error)
        return answer.reports

    def _replace(self, worker: _Worker) -> list[Report]:
        """Replace a worker that died, and repeat its jobs or report them as failed."""
        del self._pool[worker.process]
        code = self._supervisor.reap(worker.process)
        self._remove_leftovers(worker.process)
        repeated = list(worker.stacks)
        reports: list[Report] = []
        if worker.is_innocent:
            pass
        elif worker.process.timed_out:
            repeated, reports = self._crashes.record_timeout(worker.stacks, self._timeout)
        elif worker.is_ready:
            reason = f"exit code {code}"
            repeated, reports = self._crashes.record(repeated, "worker process", reason)
        else:
            self._false_starts += 1
            if self._false_starts > self._retries:
                raise WorkerFailed(
                    f"worker processes end before they are ready (exit code {code}); "
                    f"see what they print above"
                )
        self._pending.extendleft(reversed(repeated))
        self._spawn()
        return reports


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends what a script or a notebook defines by value, with cached functions."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
            parameters = obj.cache_parameters()
            return _make_cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
        return super().reducer_override(obj)


def _make_cached(
    function: Callable[..., Any], maxsize: int | None, typed: bool
) -> Callable[..., Any]:
    return functools.lru_cache(maxsize, typed)(function)


def pickle_context(context: RunContext) -> bytes:
    """Pickle a run's context for other processes.

    A script or a notebook may define its task.
    """
    return _pickle(context)


def pickle_task(task: Any) -> bytes:
    """Pickle a task for worker processes, or raise WorkerFailed with the reason."""
    try:
        return _pickle(task)
    except Exception as error:
        raise _explain_unsendable(task, error) from error


def _explain_unsendable(task: Any, error: Exception) -> WorkerFailed:
    name = _unsendable_name(task, set())
    culprit = f" because of `{name}`" if name else ""
    return WorkerFailed(
        f"the task cannot be sent to worker processes{culprit}: {type(error).__name__}: {error}; "
        "create such objects in the training function, or in a function with `functools.cache` "
        "that it calls, or use engine='local'"
    )


def _unsendable_name(thing: Any, seen: set[int]) -> str:
    """Return the variable or attribute that cannot be pickled, or an empty string."""
    seen.add(id(thing))
    parts: dict[str, Any] = {}
    if inspect.isfunction(thing):
        used = inspect.getclosurevars(thing)
        parts = {**used.globals, **used.nonlocals}
    else:
        # An object may have no dictionary.
        with suppress(TypeError):
            parts = vars(thing)
    for name, value in parts.items():
        # A name may also be an attribute: `xgboost.train` in a function called `train`.
        if id(value) in seen:
            continue
        try:
            _pickle(value)
        except Exception:
            inner = _unsendable_name(value, seen) if inspect.isfunction(value) else ""
            return inner or name
    return ""


def _pickle(thing: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(thing)
    return buffer.getvalue()


def check_exclusive(workers: int | None, workers_per_device: int | None) -> None:
    """Raise ValueError if the number of workers is given twice."""
    if workers is not None and workers_per_device is not None:
        raise ValueError(
            f"`workers` and `workers_per_device` exclude each other, got {workers} and "
            f"{workers_per_device}; leave out one of them"
        )
