"""Jobs on a Ray cluster.

Actors stay for the run, keep models in memory, and write checkpoints directly to the run's
storage. The driver sends jobs and receives reports; weights never pass through it. An actor
executes a job exactly as a worker process of the pool does, so both give the same models.
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

from mopbt.arguments import check_count, check_timeout
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.crashes import CrashTracker
from mopbt.engines.devices import CPU, VARIABLE, adopt_device
from mopbt.engines.execution import (
    Answer,
    SavingTurn,
    Stack,
    make_stacks,
    require_stackable,
    save_stack,
    train,
    warn_about_stack,
)
from mopbt.engines.pool import pickle_context
from mopbt.engines.worker import keep_memory
from mopbt.errors import MissingExtra, MopbtError, StoreError, TaskError, WorkerFailed
from mopbt.problem import PlacedTask
from mopbt.state import Job, Report

# A fast actor gets its second stack in advance, and trains it while it saves the first one.
_AHEAD = 2
# An actor is fast if a stack takes it less than so many seconds. Behind a long stack, or on a slow
# node, a second one would wait while other actors are idle.
_SHORT = 0.5
# Seconds between two checks of the size of the cluster.
_POLL = 2.0
# Actors load this checkpoint to find out whether they share the driver's storage. No job has this
# id.
_PROBE = -1


class Actor:
    """What a Ray actor holds and does.

    Its calls overlap, but only one at a time trains.
    """

    def prepare(
        self, payload: bytes, path: list[str], cache_bytes: int, probe: str, gpus: float | None
    ) -> MopbtError | None:
        """Read the task, and check that the storage is the driver's."""
        keep_memory()
        _adopt_gpus(gpus)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self._training = threading.Lock()
        self._saving = threading.Lock()
        self._cache = ModelCache(cache_bytes)
        try:
            self._context: RunContext = pickle.loads(payload)
        except Exception as error:
            return WorkerFailed(
                f"{_this_actor()} cannot read the task: {type(error).__name__}: {error}; put the "
                f"task in a module that all nodes can import (see RayEngine's `runtime_env`)"
            )
        try:
            self._context.checkpoints.load(_PROBE, probe)
        except StoreError as error:
            return WorkerFailed(
                f"{_this_actor()} does not see the run's checkpoints: {error}; set `storage` to a "
                f"place that all nodes reach, such as s3://bucket/run or a shared folder"
            )
        return None

    def execute(self, stack: Stack) -> Answer | MopbtError:
        """Train a stack, and save it while the next one trains."""
        turn = SavingTurn(self._saving)
        try:
            with self._training:
                trained = train(self._context, stack, self._cache, turn)
            return save_stack(self._context, trained)
        except MopbtError as error:
            return error
        except Exception as error:
            return WorkerFailed(
                f"{_this_actor()} cannot save a checkpoint: {type(error).__name__}: {error}"
            )
        finally:
            turn.give_back()


def _adopt_gpus(gpus: float | None) -> None:
    """Assign the first GPU that Ray gave to this actor, or the CPU if it gave none.

    `gpus` is None if the actor has other resources, of which only the task knows the device.
    """
    if gpus == 0:
        # Ray leaves all GPUs of the node visible.
        os.environ.update(CPU.environment(os.environ))
    elif gpus is not None:
        os.environ[VARIABLE] = "xpu:0" if "ONEAPI_DEVICE_SELECTOR" in os.environ else "cuda:0"
    adopt_device()


def _this_actor() -> str:
    return f"a Ray actor on {socket.gethostname()}"


@dataclass(eq=False)
class _ActorState:
    """An actor as the driver sees it."""

    handle: Any
    # What the actor holds, the oldest first, each with the reference of its answer.
    stacks: deque[tuple[Any, Stack]] = field(default_factory=deque)
    is_ready: bool = False
    max_stacks: int = 1
    # Seconds that the last stack took; 0 before the first one.
    pace: float = 0.0
    # The moment at which the oldest stack has taken too long.
    deadline: float = math.inf


class RayEngine:
    """Executes jobs in Ray actors.

    An actor or a node that dies is replaced and its jobs are repeated.

    Args:
        workers: The number of actors to request, which are used as they become available; an
            autoscaling cluster grows by this. Without it, there are as many actors as the
            cluster has room for, even while it grows or shrinks.
        address: The address of the cluster. By default, Ray's own default applies.
        num_cpus: The CPUs of an actor.
        num_gpus: The GPUs of an actor; with a fraction, several actors share one GPU.
        resources: Other resources of an actor, by their names in Ray.
        stack: The number of members that an actor trains as one program, if the task supports it.
        runtime_env: Ray's description of the environment of the actors.
        timeout: Seconds that an interval may take. An actor that takes longer is killed, with every
            process that it started, and the job is repeated once, then reported as failed. A stack
            of n members may take n times as long. Default: no limit.
        retries: How often a job whose actor died is repeated before it is reported as failed.
        warm_bytes: The size of the checkpoints whose models an actor keeps in memory.
        patience: After so many seconds in which no actor could start, the run stops. It can be
            resumed later.
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
        timeout: float | None = None,
        retries: int = 2,
        warm_bytes: int = 2**28,
        patience: float = 600.0,
    ) -> None:
        check_count("workers", workers, 1, optional=True)
        check_count("stack", stack, 1)
        check_count("retries", retries, 0)
        check_timeout(timeout)
        needs = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        for name, amount in (*needs.items(), ("patience", patience)):
            _check_amount(name, amount)
        if workers is None and not any(needs.values()):
            raise ValueError(
                "`workers` must be given if an actor needs no CPU, GPU or other resource, "
                "because any number of such actors fits into the cluster; got None"
            )
        self.workers = workers
        self._address = address
        self._needs = needs
        self._options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": dict(resources or {}),
        }
        # None: the task finds its device among other resources.
        self._gpus = None if resources and not num_gpus else num_gpus
        self._stack_size = stack
        self._runtime_env = dict(runtime_env or {})
        self._timeout = math.inf if timeout is None else timeout
        self._retries = retries
        self._warm_bytes = warm_bytes
        self._patience = patience
        self._max_actors = workers or 1
        self._actors: list[_ActorState] = []

    @property
    def stack(self) -> int:
        """Return the largest number of jobs in a stack."""
        return self._stack_size

    @property
    def capacity(self) -> int:
        """Return how many jobs the engine accepts at a time."""
        return self._max_actors * self.stack * _AHEAD

    def start(self, context: RunContext) -> None:
        """Connect to Ray and prepare for a run; actors start with the first jobs."""
        if self.stack > 1:
            require_stackable(context.task, context.problem.name, "leave `stack` at 1")
        self._check_device(context.task)
        try:
            self._payload = pickle_context(context)
        except Exception as error:
            raise WorkerFailed(
                f"the task cannot be sent to Ray actors: {type(error).__name__}: {error}; keep "
                f"open files, locks and connections out of it (open them where they are used)"
            ) from error
        self._ray = _import_ray()
        self._probe = context.checkpoints.save(_PROBE, os.urandom(16))
        self._connected = self._connect()
        self._actor_class = self._make_actor_class()
        self._problem = context.problem
        self._checkpoints = context.checkpoints
        self._path = [os.path.abspath(entry) for entry in sys.path]
        # The payload in Ray's object store; None before it is put there.
        self._payload_reference: Any = None
        # The actors of all calls that are not over, by the references of their answers.
        self._calls: dict[Any, _ActorState] = {}
        self._pending: deque[Stack] = deque()
        # The actors that may hold the models of checkpoints in memory.
        self._homes: dict[int | None, _ActorState] = {}
        self._crashes = CrashTracker(self._retries)
        self._false_starts = 0
        self._has_warned = False
        self._broken: MopbtError | None = None
        self._began = time.monotonic()
        self._last_progress = self._began
        self._last_poll = -math.inf
        self._poll_cluster()

    def _check_device(self, task: Any) -> None:
        """Raise TaskError if a task sets a device that its actors do not have."""
        device = str(task.device) if isinstance(task, PlacedTask) else "auto"
        if device == "auto" or self._gpus is None:
            return
        if (device == "cpu") != (self._gpus == 0) or ":" in device:
            have = f"{self._gpus:g} GPUs each" if self._gpus else "no GPU"
            raise TaskError(
                f"the task sets device={device!r}, but the actors of the RayEngine have {have}, "
                f"which Ray assigns; leave the task's `device` at 'auto' and set `num_gpus`"
            )

    def elapsed(self) -> float:
        """Return the seconds since `start`."""
        return time.monotonic() - self._began

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Assign jobs to actors, or queue them."""
        self._pending.extend(make_stacks(jobs, checksums, self.stack))
        self._spawn()
        self._dispatch()

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Wait for a report, and return it with all others that have arrived."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        reports: list[Report] = []
        while not reports:
            if self._broken is not None:
                raise self._broken
            limit = min([deadline, *(actor.deadline for actor in self._actors)])
            for reference in self._wait(limit - time.monotonic()):
                reports += self._receive(reference)
            reports += self._end_late_actors()
            self._poll_cluster()
            self._spawn()
            self._dispatch()
            if time.monotonic() >= deadline:
                break
        return reports

    def close(self) -> None:
        """Kill all actors, and disconnect if the engine connected.

        No file is left incomplete.
        """
        actors = self._actors
        self._actors = []
        for actor in actors:
            self._kill(actor)
        self._payload_reference = None
        self._calls.clear()
        # The probe is tiny, and an error here would hide the one that ended the run.
        with suppress(OSError, StoreError):
            self._checkpoints.drop([_PROBE])
        if self._connected:
            self._ray.shutdown()

    def _connect(self) -> bool:
        """Connect to Ray, and return whether `close` must disconnect."""
        if self._ray.is_initialized():
            return False
        options = {}
        if self._address is None and "RAY_ADDRESS" not in os.environ:
            options = {"include_dashboard": False}
        try:
            self._ray.init(
                self._address,
                runtime_env=self._runtime_env or None,
                logging_level=logging.WARNING,
                **options,
            )
        except Exception as error:
            where = f"Ray at {self._address}" if self._address else "Ray"
            raise WorkerFailed(
                f"cannot connect to {where}: {type(error).__name__}: {error}; "
                f"run `ray status` to see whether the cluster is up"
            ) from error
        return True

    def _make_actor_class(self) -> Any:
        options = dict(self._options)
        # A connection that the engine made has this environment already.
        if self._runtime_env and not self._connected:
            options["runtime_env"] = self._runtime_env
        return self._ray.remote(max_concurrency=_AHEAD, max_restarts=0, **options)(Actor)

    def _wait(self, seconds: float) -> list[Any]:
        """Wait for the end of a call, and return the references of all ended calls."""
        seconds = max(min(seconds, _POLL), 0.0)
        calls = list(self._calls)
        if not calls:
            time.sleep(seconds)
            return []
        over, _ = self._ray.wait(calls, num_returns=1, timeout=seconds)
        if over and len(calls) > 1:
            over, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
        return list(over)

    def _receive(self, reference: Any) -> list[Report]:
        # A call of an actor that was found dead is not among the calls any more.
        actor = self._calls.pop(reference, None)
        if actor is None:
            return []
        try:
            reports = self._handle(actor, reference)
        except MopbtError as error:
            # The next call of `collect` raises it, after other reports are in the journal.
            self._broken = self._broken or error
            return []
        return [replace(report, seconds=self.elapsed()) for report in reports]

    def _handle(self, actor: _ActorState, reference: Any) -> list[Report]:
        """Return the reports that follow from an answer, or from its absence."""
        try:
            answer: Answer | MopbtError | None = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            # The actor or its node is dead, or the payload is lost.
            return self._give_up(actor, error)
        if isinstance(answer, MopbtError):
            raise answer
        if answer is None:
            actor.is_ready = True
            self._false_starts = 0
            return []
        actor.stacks = deque(item for item in actor.stacks if item[0] != reference)
        self._start_clock(actor)
        self._homes |= dict.fromkeys((report.job for report in answer.reports), actor)
        actor.pace = sum(report.duration for report in answer.reports)
        actor.max_stacks = _AHEAD if actor.pace < _SHORT else 1
        if answer.stack_error and not self._has_warned:
            self._has_warned = True
            warn_about_stack(self._problem, answer.stack_error)
        return answer.reports

    def _give_up(self, actor: _ActorState, error: Exception) -> list[Report]:
        """Remove an actor that died, and repeat its jobs or report them as failed."""
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        # The payload may be what was lost, so the next actor gets a new copy.
        self._payload_reference = None
        repeated = self._remove(actor)
        reports: list[Report] = []
        if actor.is_ready:
            repeated, reports = self._crashes.record(repeated, "Ray actor", reason)
        else:
            self._false_starts += 1
            if self._false_starts > self._retries:
                raise WorkerFailed(f"Ray actors end before they are ready: {reason}")
        self._pending.extendleft(reversed(repeated))
        return reports

    def _remove(self, actor: _ActorState) -> list[Stack]:
        """Kill an actor, with the processes that it started, and return what it held."""
        self._homes = {id: home for id, home in self._homes.items() if home is not actor}
        self._actors.remove(actor)
        self._kill(actor)
        for reference, _ in actor.stacks:
            self._calls.pop(reference, None)
        return [stack for _, stack in actor.stacks]

    def _start_clock(self, actor: _ActorState) -> None:
        """Give an actor the time that its oldest stack may take."""
        actor.deadline = math.inf
        if actor.stacks:
            _, stack = actor.stacks[0]
            actor.deadline = time.monotonic() + self._timeout * len(stack)

    def _end_late_actors(self) -> list[Report]:
        """Kill the actors that take too long, and repeat their jobs or fail them."""
        now = time.monotonic()
        reports: list[Report] = []
        for actor in [actor for actor in self._actors if actor.deadline <= now]:
            repeated, failed = self._crashes.record_timeout(self._remove(actor), self._timeout)
            self._pending.extendleft(reversed(repeated))
            reports += [replace(report, seconds=self.elapsed()) for report in failed]
        return reports

    def _poll_cluster(self) -> None:
        """Check regularly how many actors fit, and stop the run if none could start."""
        now = time.monotonic()
        if now - self._last_poll < _POLL:
            return
        self._last_poll = now
        needs = {name: amount for name, amount in self._needs.items() if amount}
        if self.workers is None:
            total = self._ray.cluster_resources()
            # The tiny summand makes up for rounding: 0.3 / 0.1 is less than 3.
            rooms = [int(total.get(name, 0) / amount + 1e-9) for name, amount in needs.items()]
            self._max_actors = max(min(rooms), 1)
        if any(actor.is_ready for actor in self._actors) or not self._pending:
            self._last_progress = now
        elif now - self._last_progress > self._patience:
            free = self._ray.available_resources()
            free = {name: amount for name, amount in free.items() if name in self._needs}
            raise WorkerFailed(
                f"no Ray actor could start for {self._patience:g} seconds: "
                f"each needs {_list_amounts(needs) or 'nothing'}, "
                f"free are {_list_amounts(free) or 'none of these'}; "
                f"add nodes, request less, or raise `patience`"
            )

    def _spawn(self) -> None:
        """Request as many actors as there is work for, up to the limit."""
        busy = sum(len(actor.stacks) > 0 for actor in self._actors)
        wanted = min(self._max_actors, len(self._pending) + busy)
        for _ in range(wanted - len(self._actors)):
            if self._payload_reference is None:
                self._payload_reference = self._ray.put(self._payload)
            actor = _ActorState(self._actor_class.remote())
            self._actors.append(actor)
            reference = actor.handle.prepare.remote(
                self._payload_reference, self._path, self._warm_bytes, self._probe, self._gpus
            )
            self._calls[reference] = actor

    def _dispatch(self) -> None:
        """Assign pending stacks: one to every free actor, then a second to fast ones.

        A stack goes to the actor that holds its models, unless that actor is much slower than
        another free one. The other stacks go to the fastest of the actors that are left.
        """
        for depth in range(1, _AHEAD + 1):
            free = {actor for actor in self._actors if self._has_room(actor, depth)}
            if not free:
                continue
            # A suspect runs alone, so it is never a second stack.
            waiting = [s for s in self._pending if depth == 1 or not self._crashes.is_suspect(s)]
            slowest_home = _pace_limit(free)
            for stack in list(waiting):
                home = self._find_home(stack)
                if home in free and home.pace <= slowest_home:
                    free.remove(home)
                    waiting.remove(stack)
                    self._assign(home, stack)
            fastest_first = sorted(free, key=lambda actor: actor.pace)
            for actor, stack in zip(fastest_first, waiting, strict=False):
                self._assign(actor, stack)

    def _has_room(self, actor: _ActorState, depth: int) -> bool:
        """Return whether an actor may get a stack as its `depth`-th one."""
        if not actor.is_ready or len(actor.stacks) >= min(depth, actor.max_stacks):
            return False
        return not any(self._crashes.is_suspect(stack) for _, stack in actor.stacks)

    def _find_home(self, stack: Stack) -> _ActorState | None:
        """Return the actor that may hold the most models that a stack starts from."""
        starts = [job.start for job, _ in stack]
        homes = Counter(self._homes[start] for start in starts if start in self._homes)
        return homes.most_common(1)[0][0] if homes else None

    def _assign(self, actor: _ActorState, stack: Stack) -> None:
        self._pending.remove(stack)
        for job, _ in stack:
            self._homes.pop(job.start, None)
        reference = actor.handle.execute.remote(stack)
        actor.stacks.append((reference, stack))
        if len(actor.stacks) == 1:
            self._start_clock(actor)
        self._calls[reference] = actor

    def _kill(self, actor: _ActorState) -> None:
        # The actor may be dead, or Ray itself.
        with suppress(Exception):
            self._ray.kill(actor.handle)


def _pace_limit(actors: Iterable[_ActorState]) -> float:
    """Return the pace up to which a model in memory outweighs a faster actor."""
    fastest = min((actor.pace for actor in actors if actor.pace), default=0.0)
    return max(_SHORT, 2 * fastest)


def _list_amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _check_amount(name: str, amount: Any) -> None:
    is_number = isinstance(amount, Real) and not isinstance(amount, bool)
    if not is_number or not 0 <= amount < math.inf:
        raise ValueError(f"the amount of {name} must be a number of at least 0, got {amount!r}")


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("RayEngine needs Ray: pip install 'mopbt[ray]'") from None
    return ray
