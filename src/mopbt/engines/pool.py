"""Jobs in worker processes on this machine: persistent, one thread each, replaced when they die."""

import functools
import io
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from mopbt.engines.base import Bundle, CrashTracker, RunContext, bundled
from mopbt.engines.worker import receive, send
from mopbt.errors import MopbtError, WorkerFailed
from mopbt.state import Job, Report

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_AHEAD = 2  # bundles a worker has at hand: the next one is there before the driver has written down the last
_SHORT = 0.5  # seconds that a bundle takes for this to pay


@dataclass(eq=False)
class _Worker:
    """A worker process as the driver sees it."""

    process: subprocess.Popen[bytes]
    bundles: deque[Bundle] = field(default_factory=deque)  # the first one is running
    warm: set[int | None] = field(
        default_factory=set
    )  # checkpoints of which it may still hold the model
    ready: bool = False
    outbox: "queue.SimpleQueue[bytes | None]" = field(
        default_factory=queue.SimpleQueue
    )  # None ends its speaker
    listener: threading.Thread | None = None


class PoolEngine:
    """Carries out jobs in `workers` processes (one for each core by default) with `threads` threads each.

    A worker that dies is replaced and its job runs again, at most `retries` times; then the job is reported as failed.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        threads: int | None = 1,
        retries: int = 2,
        warm_bytes: int = 2**28,
    ) -> None:
        for name, value, least in (
            ("workers", workers, 1),
            ("threads", threads, 1),
            ("retries", retries, 0),
        ):
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < least
            ):
                raise ValueError(
                    f"`{name}` must be a whole number of at least {least}, got {value!r}"
                )
        self.workers = workers or available_cores()
        self._threads = threads
        self._retries = retries
        self._warm_bytes = warm_bytes
        self._crew: list[_Worker] = []

    @property
    def stack(self) -> int:
        """Return how many jobs make a bundle that a worker carries out together."""
        return 1

    @property
    def capacity(self) -> int:
        """Return how many jobs the engine takes at a time."""
        return self.workers * self.stack * _AHEAD

    def start(self, work: RunContext) -> None:
        """Get ready for a run; workers start with the first jobs."""
        try:
            payload = pickled(work)
        except Exception as error:
            raise WorkerFailed(
                f"the task cannot be sent to worker processes: {type(error).__name__}: {error}; keep open files, locks and "
                f"connections out of it (open them where they are used), or use engine='local'"
            ) from error
        self._path = [os.path.abspath(entry) for entry in sys.path]
        self._setup = pickle.dumps((payload, self._warm_bytes))
        self._inbox: queue.SimpleQueue[tuple[_Worker, bytes | None]] = queue.SimpleQueue()
        self._pending: deque[Bundle] = deque()
        self._deaths = CrashTracker(self._retries)
        self._false_starts = 0
        self._began = time.monotonic()
        self._ahead = _AHEAD
        self._broken: Exception | None = None

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Hand jobs to workers, or put them in line."""
        self._pending.extend(bundled(jobs, checksums, self.stack))
        while len(self._crew) < min(
            self.workers, len(self._pending) + sum(len(w.bundles) > 0 for w in self._crew)
        ):
            self._spawn()
        self._dispatch()

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for a report, and take all others that are there."""
        if self._broken is not None:
            raise self._broken
        deadline = None if timeout is None else time.monotonic() + timeout
        reports: list[Report] = []
        while True:
            try:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                worker, message = self._inbox.get(timeout=0.0 if reports else left)
            except queue.Empty:
                return reports
            try:
                heard = (
                    self._died(worker)
                    if message is None
                    else self._heard(worker, pickle.loads(message))
                )
            except MopbtError as error:
                if not reports:
                    raise
                self._broken = error  # first what is done, then this
                return reports
            reports += [replace(report, seconds=self.elapsed()) for report in heard]
            self._dispatch()

    def close(self) -> None:
        """End all workers at once; they leave nothing half written."""
        crew, self._crew = self._crew, []
        for worker in crew:
            worker.process.kill()
        for worker in crew:
            _reap(worker)

    def _spawn(self) -> None:
        environment = dict(os.environ)
        if self._threads is not None:
            environment |= dict.fromkeys(THREADS, str(self._threads))
        command = f"import sys; sys.path[:] = {self._path!r}; from mopbt.engines.worker import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        worker = _Worker(process)
        self._crew.append(worker)
        worker.listener = threading.Thread(target=_listen, args=(worker, self._inbox), daemon=True)
        worker.listener.start()
        threading.Thread(target=_speak, args=(worker,), daemon=True).start()
        worker.outbox.put(self._setup)

    def _dispatch(self) -> None:
        for depth in range(1, self._ahead + 1):  # first a bundle for each, then a second one
            for worker in self._crew:
                if len(worker.bundles) < depth and not any(
                    map(self._deaths.is_suspect, worker.bundles)
                ):
                    self._assign(worker)

    def _assign(self, worker: _Worker) -> None:
        """Give a worker the bundle of which it still has the most models in memory, else the first one; suspects by themselves."""
        fit = [
            bundle
            for bundle in self._pending
            if not (worker.bundles and self._deaths.is_suspect(bundle))
        ]
        if not fit:
            return
        bundle = max(fit, key=lambda bundle: sum(job.start in worker.warm for job, _ in bundle))
        self._pending.remove(bundle)
        worker.bundles.append(bundle)
        worker.warm -= {job.start for job, _ in bundle}
        worker.outbox.put(pickle.dumps(bundle))

    def _heard(self, worker: _Worker, message: list[Report] | Exception | None) -> list[Report]:
        if isinstance(message, Exception):
            raise message
        if message is None:
            worker.ready = True
            self._false_starts = 0
            return []
        worker.bundles.popleft()
        worker.warm |= {report.job for report in message}
        # A second bundle saves milliseconds; behind a long one it would wait while others are idle.
        self._ahead = _AHEAD if sum(report.duration for report in message) < _SHORT else 1
        return message

    def _died(self, worker: _Worker) -> list[Report]:
        """Replace a worker that is gone; what it had at hand is tried again, a bounded number of times, and one by one."""
        if worker not in self._crew:
            return []
        self._crew.remove(worker)
        code = _reap(worker)
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts > self._retries:
                raise WorkerFailed(
                    f"worker processes end before they are ready (exit code {code}); see what they print above"
                )
        again, reports = list(worker.bundles), list[Report]()
        if worker.ready:
            again, reports = self._deaths.count(again, "worker process", f"exit code {code}")
        self._pending.extendleft(reversed(again))
        self._spawn()
        return reports


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends what a script or a notebook defines by value, its cached functions included."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
            parameters = obj.cache_parameters()
            return _cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    return functools.lru_cache(maxsize, typed)(function)


def pickled(work: RunContext) -> bytes:
    """Return the work as bytes that another process can read, also where a script or a notebook defines its task."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(work)
    return buffer.getvalue()


def _listen(worker: _Worker, inbox: "queue.SimpleQueue[tuple[_Worker, bytes | None]]") -> None:
    assert worker.process.stdout is not None
    while (message := receive(worker.process.stdout)) is not None:
        inbox.put((worker, message))
    inbox.put((worker, None))


def _speak(worker: _Worker) -> None:
    assert worker.process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead: its listener tells
        while (message := worker.outbox.get()) is not None:
            send(worker.process.stdin, message)
    with suppress(BrokenPipeError):
        worker.process.stdin.close()


def _reap(worker: _Worker) -> int:
    worker.outbox.put(None)
    code = worker.process.wait()
    assert worker.listener is not None
    assert worker.process.stdout is not None
    worker.listener.join(timeout=1.0)
    if not worker.listener.is_alive():  # closing a pipe that another thread reads would block
        worker.process.stdout.close()
    return code


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
