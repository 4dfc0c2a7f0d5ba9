"""Jobs on a Ray cluster: actors that stay, keep their models warm, and write checkpoints straight to the run's storage.

The driver sends jobs and gets reports; weights never pass through it. What an actor does with a job is what a worker process of
the pool does, so a run gives the same models on either.
"""

import logging
import math
import os
import pickle
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from mopbt.engines.base import Bundle, CrashTracker, ModelCache, RunContext, bundled, train
from mopbt.engines.pool import pickled
from mopbt.engines.worker import keep_memory, saved_or_failed
from mopbt.errors import CannotStack, CorruptCheckpoint, MissingExtra, MopbtError, WorkerFailed
from mopbt.state import Job, Report

_AHEAD = 2  # bundles an actor has at hand: it trains the second while the first is being saved and reported
_SHORT = 0.5  # seconds that an actor takes for a bundle for this to pay
_LOOK = 2.0  # seconds between two looks at the size of the cluster
_PROBE = (
    -1
)  # the checkpoint by which actors see whether they share the driver's storage; no job has this id


class Actor:
    """What a Ray actor holds and does; its calls overlap, but one at a time trains."""

    def prepare(
        self, payload: bytes, path: list[str], warm_bytes: int, probe: str
    ) -> MopbtError | None:
        """Read the task, and make sure that the storage is the driver's."""
        keep_memory()
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self._turn = threading.Lock()
        self._warm = ModelCache(warm_bytes)
        try:
            self._work: RunContext = pickle.loads(payload)
        except Exception as error:
            remedy = (
                "put the task in a module that all nodes can import (see RayEngine's `runtime_env`)"
            )
            return WorkerFailed(
                f"{_here()} cannot read the task: {type(error).__name__}: {error}; {remedy}"
            )
        try:
            self._work.checkpoints.load(_PROBE, probe)
        except CorruptCheckpoint as error:
            remedy = "give `storage` a place that all nodes reach, such as s3://bucket/run or a shared folder"
            return WorkerFailed(f"{_here()} does not see the run's checkpoints: {error}; {remedy}")
        return None

    def execute(self, bundle: Bundle) -> list[Report] | MopbtError:
        """Train a bundle, and make it durable while the next one trains."""
        try:
            with self._turn:
                trained = train(self._work, bundle, self._warm)
            return [saved_or_failed(self._work, one) for one in trained]
        except MopbtError as error:
            return error
        except Exception as error:  # a store that is broken in an unforeseen way
            return WorkerFailed(
                f"{_here()} cannot save a checkpoint: {type(error).__name__}: {error}"
            )


@dataclass(eq=False)
class _Worker:
    """An actor as the driver sees it."""

    actor: Any
    bundles: deque[tuple[Any, Bundle]] = field(
        default_factory=deque
    )  # with the references of their answers, the oldest first
    ready: bool = False
    ahead: int = (
        1  # how many bundles it gets at a time: more than one when it has shown that it is quick
    )
    pace: float = 0.0  # seconds that its last bundle duration


class RayEngine:
    """Carries out jobs in Ray actors, each of which asks the cluster for `num_cpus` and `num_gpus` (fractions share a GPU).

    With `workers` that many actors are asked for, and used as they come: this is what an autoscaling cluster grows by. Without it
    there are as many as the cluster has room for, also while it grows or shrinks. An actor trains `stack` members at a time as one
    program, if the task knows how. An actor or a node that dies is replaced and its job runs again, at most `retries` times; then
    the job is reported as failed. If no actor can start for `patience` seconds, the run stops, to be resumed later.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        address: str | None = None,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        stack: int = 1,
        runtime_env: Mapping[str, Any] | None = None,
        retries: int = 2,
        warm_bytes: int = 2**28,
        patience: float = 600.0,
    ) -> None:
        for name, value, least in (
            ("workers", workers, 1),
            ("stack", stack, 1),
            ("retries", retries, 0),
        ):
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < least
            ):
                raise ValueError(
                    f"`{name}` must be a whole number of at least {least}, got {value!r}"
                )
        needs = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        for name, amount in (*needs.items(), ("patience", patience)):
            if (
                isinstance(amount, bool)
                or not isinstance(amount, Real)
                or not 0 <= amount < math.inf
            ):
                raise ValueError(
                    f"the amount of {name} must be a number of at least 0, got {amount!r}"
                )
        if workers is None and not any(needs.values()):
            raise ValueError(
                "`workers` must be given where an actor needs no CPU, GPU or other resource: any number would fit"
            )
        self.workers = workers
        self._address = address
        self._needs = needs
        self._options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": dict(resources or {}),
        }
        self._stack = stack
        self._runtime_env = dict(runtime_env or {})
        self._retries = retries
        self._warm_bytes = warm_bytes
        self._patience = patience
        self._wanted = workers or 1  # actors
        self._crew: list[_Worker] = []

    @property
    def stack(self) -> int:
        """Return how many jobs make a bundle that an actor carries out together."""
        return self._stack

    @property
    def capacity(self) -> int:
        """Return how many jobs the engine takes at a time."""
        return self._wanted * self.stack * _AHEAD

    def start(self, work: RunContext) -> None:
        """Connect to Ray and get ready for a run; actors start with the first jobs."""
        if self.stack > 1 and not hasattr(work.task, "train_many"):
            raise CannotStack(
                f"the task {work.problem.name!r} has no `train_many`, so it cannot be stacked; leave `stack` at 1"
            )
        try:
            self._payload = pickled(work)
        except Exception as error:
            raise WorkerFailed(
                f"the task cannot be sent to Ray actors: {type(error).__name__}: {error}; keep open files, locks and connections "
                f"out of it (open them where they are used)"
            ) from error
        self._ray = _ray()
        self._probe = work.checkpoints.save(_PROBE, os.urandom(16))
        self._connected = self._connect()
        code = (
            {} if self._connected or not self._runtime_env else {"runtime_env": self._runtime_env}
        )
        self._kind = self._ray.remote(
            max_concurrency=_AHEAD, max_restarts=0, **self._options, **code
        )(Actor)
        self._checkpoints = work.checkpoints
        self._path = [os.path.abspath(entry) for entry in sys.path]
        self._sent: Any = None  # the payload in Ray's object store
        self._calls: dict[Any, _Worker] = {}  # by the references of their answers
        self._pending: deque[Bundle] = deque()
        self._warm: dict[
            int | None, _Worker
        ] = {}  # who may still have the model of a checkpoint in memory
        self._deaths = CrashTracker(self._retries)
        self._false_starts = 0
        self._broken: MopbtError | None = None
        self._began = self._hopeful = time.monotonic()
        self._looked = -math.inf
        self._look()

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Hand jobs to actors, or put them in line."""
        self._pending.extend(bundled(jobs, checksums, self.stack))
        self._spawn()
        self._dispatch()

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for a report, and take all others that are there."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        reports: list[Report] = []
        while not reports:
            if self._broken is not None:
                raise self._broken
            for answer in self._answers(deadline - time.monotonic()):
                reports += self._take(answer)
            self._look()
            self._spawn()
            self._dispatch()
            if time.monotonic() >= deadline:
                break
        return reports

    def close(self) -> None:
        """End all actors at once, and leave the cluster if the engine joined it; nothing is left half written."""
        crew, self._crew = self._crew, []
        for worker in crew:
            self._kill(worker)
        self._sent = None
        self._calls.clear()
        with suppress(OSError):
            self._checkpoints.drop([_PROBE])
        if self._connected:
            self._ray.shutdown()

    def _connect(self) -> bool:
        """Connect to Ray and return whether this is ours to undo."""
        if self._ray.is_initialized():
            return False
        own = (
            {"include_dashboard": False}
            if self._address is None and "RAY_ADDRESS" not in os.environ
            else {}
        )
        try:
            self._ray.init(
                self._address,
                runtime_env=self._runtime_env or None,
                logging_level=logging.WARNING,
                **own,
            )
        except Exception as error:
            where = f"Ray at {self._address}" if self._address else "Ray"
            raise WorkerFailed(
                f"cannot connect to {where}: {type(error).__name__}: {error}; `ray status` tells of a cluster"
            ) from error
        return True

    def _answers(self, seconds: float) -> list[Any]:
        """Return the references of the calls that are over: all of them now, or the first one that is."""
        calls = list(self._calls)
        if not calls:
            time.sleep(max(min(seconds, _LOOK), 0.0))
            return []
        over, _ = self._ray.wait(calls, num_returns=1, timeout=max(min(seconds, _LOOK), 0.0))
        if over and len(calls) > 1:
            over, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
        return list(over)

    def _take(self, answer: Any) -> list[Report]:
        worker = self._calls.pop(answer, None)
        if worker is None:  # an actor that is dead and buried
            return []
        try:
            heard = self._heard(worker, answer)
        except MopbtError as error:
            self._broken = self._broken or error  # first what is done, then this
            return []
        return [replace(report, seconds=self.elapsed()) for report in heard]

    def _heard(self, worker: _Worker, answer: Any) -> list[Report]:
        try:
            message: list[Report] | MopbtError | None = self._ray.get(answer)
        except (
            self._ray.exceptions.RayError
        ) as error:  # the actor or its node is dead, or what was sent is lost
            return self._died(worker, error)
        if isinstance(message, MopbtError):
            raise message
        if message is None:
            worker.ready = True
            self._false_starts = 0
            return []
        worker.bundles = deque(item for item in worker.bundles if item[0] != answer)
        self._warm |= dict.fromkeys((report.job for report in message), worker)
        # A second bundle hides the time of saving; behind a long one, or on a slow node, it would wait while others are idle.
        worker.pace = sum(report.duration for report in message)
        worker.ahead = _AHEAD if worker.pace < _SHORT else 1
        return message

    def _died(self, worker: _Worker, error: Exception) -> list[Report]:
        """Give up an actor that is gone; what it had at hand is tried again, a bounded number of times, and one by one."""
        why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        self._sent = None  # if this is what was lost, it is sent anew
        self._warm = {job: home for job, home in self._warm.items() if home is not worker}
        self._crew.remove(worker)
        self._kill(worker)
        for reference, _ in worker.bundles:
            self._calls.pop(reference, None)
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts > self._retries:
                raise WorkerFailed(f"Ray actors end before they are ready: {why}")
        again, reports = [bundle for _, bundle in worker.bundles], list[Report]()
        if worker.ready:
            again, reports = self._deaths.count(again, "Ray actor", why)
        self._pending.extendleft(reversed(again))
        return reports

    def _look(self) -> None:
        """Look, now and then, how many actors the cluster has room for, and whether any could start."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        if self.workers is None:
            has = self._ray.cluster_resources()
            self._wanted = max(
                min(
                    int(has.get(name, 0) / amount + 1e-9)
                    for name, amount in self._needs.items()
                    if amount
                ),
                1,
            )
        if any(worker.ready for worker in self._crew) or not self._pending:
            self._hopeful = now
        elif now - self._hopeful > self._patience:
            asked = (
                ", ".join(f"{amount:g} {name}" for name, amount in self._needs.items() if amount)
                or "nothing"
            )
            has = ", ".join(
                f"{amount:g} {name}"
                for name, amount in self._ray.available_resources().items()
                if name in self._needs
            )
            raise WorkerFailed(
                f"no Ray actor could start for {self._patience:g} seconds: each needs {asked}, free are {has or 'none of these'}; "
                f"add nodes, ask for less, or raise `patience`"
            )

    def _spawn(self) -> None:
        """Ask for actors: as many as there is work for, if they are wanted."""
        busy = sum(len(worker.bundles) > 0 for worker in self._crew)
        for _ in range(min(self._wanted, len(self._pending) + busy) - len(self._crew)):
            if self._sent is None:
                self._sent = self._ray.put(self._payload)
            worker = _Worker(self._kind.remote())
            self._crew.append(worker)
            self._calls[
                worker.actor.prepare.remote(self._sent, self._path, self._warm_bytes, self._probe)
            ] = worker

    def _dispatch(self) -> None:
        for depth in range(1, _AHEAD + 1):  # first a bundle for each, then a second one
            idle = {
                worker
                for worker in self._crew
                if worker.ready and len(worker.bundles) < min(depth, worker.ahead)
            }
            idle -= {
                worker
                for worker in idle
                for _, bundle in worker.bundles
                if self._deaths.is_suspect(bundle)
            }
            limit = max(
                _SHORT, 2 * min((worker.pace for worker in idle if worker.pace), default=0.0)
            )
            fit = [
                bundle
                for bundle in self._pending
                if depth == 1 or not self._deaths.is_suspect(bundle)
            ]
            for bundle in list(fit) if idle else ():
                home = self._home(bundle)
                if (
                    home in idle and home.pace <= limit
                ):  # not to a slow node while a quick one is idle
                    idle.remove(home)
                    fit.remove(bundle)
                    self._assign(home, bundle)
            for worker, bundle in zip(
                sorted(idle, key=lambda worker: worker.pace), fit, strict=False
            ):
                self._assign(worker, bundle)

    def _home(self, bundle: Bundle) -> _Worker | None:
        """Return the actor that may still have the models in memory from which a bundle starts, or most of them."""
        homes = Counter(self._warm[job.start] for job, _ in bundle if job.start in self._warm)
        return homes.most_common(1)[0][0] if homes else None

    def _assign(self, worker: _Worker, bundle: Bundle) -> None:
        self._pending.remove(bundle)
        for job, _ in bundle:
            self._warm.pop(job.start, None)
        reference = worker.actor.execute.remote(bundle)
        worker.bundles.append((reference, bundle))
        self._calls[reference] = worker

    def _kill(self, worker: _Worker) -> None:
        with suppress(Exception):  # it is dead, or Ray is
            self._ray.kill(worker.actor)


def _here() -> str:
    return f"a Ray actor on {socket.gethostname()}"


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("RayEngine needs Ray: pip install 'mopbt[ray]'") from None
    return ray
