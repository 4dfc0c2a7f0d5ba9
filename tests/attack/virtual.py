"""Worker processes and Ray actors in virtual time, in this process and from one seed.

The engines are the real ones, and so is what a worker does with a job. Only the clock, the pipes
and the processes are replaced: messages take their time, arrive in another order, or never;
workers die in every phase of a job, or are taken for dead and keep working.
"""

import heapq
import os
import pickle
import random
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from types import SimpleNamespace

from attack.disks import CutDisk, Killed, disk
from mopbt import filesystem
from mopbt.engines import early, pool, ray, worker
from mopbt.engines.base import ModelCache

PHASES = ("received", "trained", "saving", "saved", "answered")


@dataclass(frozen=True)
class Faults:
    """How often something goes wrong; a world without faults has only random durations.

    Attributes:
        death: A worker dies while it has a job, in any phase of it.
        false_start: A worker dies before it is ready.
        lost: A message never arrives. What follows it in a pipe does not arrive either, so this
            is also a worker that hangs. Only time limits help.
        late: A message arrives much later than usual.
        stale: A worker is taken for dead, but keeps working and writes its checkpoint.
        jump: The clock jumps ahead.
    """

    death: float = 0.0
    false_start: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    stale: float = 0.0
    jump: float = 0.0


CALM = Faults()


class Clock:
    """A clock that only the world moves; it takes the place of the module `time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now += max(seconds, 0.0)


class World:
    """What happens and when, decided by a seed."""

    def __init__(self, seed, faults=CALM):
        self.clock = Clock()
        self.faults = faults
        self.rng = random.Random(f"world {seed}")
        self._agenda = []
        self._number = count()
        self.events = 0
        self.deaths = 0

    def happens(self, chance):
        """Decide whether something with this probability happens."""
        return self.rng.random() < chance

    def after(self, delay, action):
        """Enter an action that happens after a delay."""
        self.at(self.clock.now + delay, action)

    def at(self, moment, action):
        """Enter an action that happens at a moment, after those that were entered before."""
        heapq.heappush(self._agenda, (moment, next(self._number), action))

    def latency(self):
        """Return how long a message takes."""
        if self.happens(self.faults.late):
            return self.rng.uniform(5.0, 50.0)
        return self.rng.uniform(0.0, 0.05)

    def next_moment(self):
        """Return when something happens next."""
        return self._agenda[0][0] if self._agenda else inf

    def proceed(self):
        """Let the next thing happen."""
        moment, _, action = heapq.heappop(self._agenda)
        self.clock.now = max(self.clock.now, moment)
        if self.happens(self.faults.jump):
            self.clock.now += self.rng.choice([1.0, 60.0, 1e6])
        self.events += 1
        assert self.events < 100_000, "the world never ends"
        action()


@contextmanager
def killed_at(call):
    """Let a worker be killed at one of its calls to the disk; the driver lives on."""
    with disk(CutDisk(filesystem.disk, call)) as cut:
        try:
            yield
        except Killed:
            # The driver may be killed at the same call.
            if cut.left > 0:
                raise
        finally:
            cut.end()


@dataclass(eq=False)
class _Held:
    """A stack that a worker has, and the phase in which the worker dies with it, if it does."""

    stack: list
    dies: str | None
    trained: object = None


@dataclass(eq=False)
class VirtualProcess:
    """A worker process as the supervisor sees it."""

    world: World
    inbox: deque  # of the supervisor
    deadline: float = inf
    timed_out: bool = False
    alive: bool = True
    is_mute: bool = False  # nothing arrives from it or at it
    is_over: bool = False  # its death was sent
    # Names of unfinished files have this number.
    popen: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(pid=os.getpid()))

    def __post_init__(self):
        self._messages = deque()
        self._context = None
        self._is_training = False
        self._arrival = 0.0

    def send(self, message):
        """Deliver a message to the process after a while."""
        if self._context is not None:
            self.is_mute |= self.world.happens(self.world.faults.lost)
        if self.is_mute:
            return
        self._messages.append(message)
        self.world.after(0.0, self._take)

    def kill(self):
        """Kill the process; what it has sent still arrives."""
        if self.alive:
            self.alive = False
            self._answer(None)

    def _answer(self, answer):
        """Send an answer, or the end of the channel; messages of one process stay in order."""
        if self.is_over:
            return
        self.is_over = answer is None
        moment = max(self.world.clock.now + self.world.latency(), self._arrival)
        self._arrival = moment
        self.world.at(moment, lambda: self.inbox.append((self, answer)))

    def _take(self):
        """Begin with the next message."""
        if not self.alive or self._is_training or not self._messages:
            return
        message = self._messages.popleft()
        if self._context is None and isinstance(pickle.loads(message), list):
            # The modules to import come first.
            return self._take()
        if self._context is None:
            self._is_training = True
            self.world.after(self.world.rng.uniform(0.1, 2.0), lambda: self._start(message))
            return
        dies = None
        if self.world.happens(self.world.faults.death):
            dies = self.world.rng.choice(PHASES)
        held = _Held(pickle.loads(message), dies)
        self._is_training = True
        if held.dies == "received":
            return self._die()
        self.world.after(self.world.rng.uniform(0.1, 1.0), lambda: self._train(held))

    def _start(self, message):
        if not self.alive:
            return
        if self.world.happens(self.world.faults.false_start):
            return self._die()
        payload, cache_bytes = pickle.loads(message)
        self._context = pickle.loads(payload)
        self._cache = ModelCache(cache_bytes)
        self._is_training = False
        self._answer(pickle.dumps(None))
        self._take()

    def _train(self, held):
        if not self.alive:
            return
        try:
            held.trained = worker.train(self._context, held.stack, self._cache)
        except worker.MopbtError as error:
            self._answer(pickle.dumps(error))
        else:
            if held.dies == "trained":
                return self._die()
            # The next stack is trained while this one is saved.
            self.world.after(self.world.rng.uniform(0.0, 0.05), lambda: self._save(held))
        self._is_training = False
        self._take()

    def _save(self, held):
        if not self.alive:
            return
        if held.dies == "saving":
            with killed_at(self.world.rng.randrange(6)):
                worker._save(self._context, held.trained)
            return self._die()
        answer = pickle.dumps(worker._save(self._context, held.trained))
        if held.dies == "saved":
            return self._die()
        self.is_mute |= self.world.happens(self.world.faults.lost)
        if not self.is_mute:
            self._answer(answer)
        if held.dies == "answered":
            self._die()

    def _die(self):
        self.world.deaths += 1
        self.kill()


class VirtualSupervisor:
    """Starts virtual processes, and returns their messages in the order of arrival."""

    def __init__(self, world):
        self._world = world
        self._inbox = deque()
        self._processes = []

    def spawn(self, target, environment):
        process = VirtualProcess(self._world, self._inbox)
        self._processes.append(process)
        return process

    def receive(self, timeout=None):
        clock = self._world.clock
        end = inf if timeout is None else clock.now + timeout
        while not self._inbox:
            late = min((process.deadline for process in self._processes), default=inf)
            moment = self._world.next_moment()
            assert min(moment, late, end) < inf, "the engine waits for what never comes"
            if moment <= min(late, end):
                self._world.proceed()
                continue
            clock.now = max(clock.now, min(late, end))
            for process in self._processes:
                if process.deadline <= clock.now:
                    process.timed_out = True
                    process.deadline = inf
                    process.kill()
            if clock.now >= end:
                return None
        return self._inbox.popleft()

    def reap(self, process):
        self._processes.remove(process)
        process.kill()
        return -9

    def close(self):
        for process in self._processes:
            process.kill()
        self._processes = []


@contextmanager
def replaced(module, **names):
    """Replace names of a module for a while."""
    before = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def virtual_processes(world):
    """Let the pool start its worker processes in a world."""

    def supervisor():
        return VirtualSupervisor(world)

    # Workers that start before the run are virtual, too.
    with (
        replaced(early, Supervisor=supervisor),
        replaced(pool, Supervisor=supervisor, time=world.clock),
    ):
        yield world


class RayError(Exception):
    """What Ray raises if an actor, a node or an object is lost."""


@dataclass(eq=False)
class Reference:
    """A value that an actor will have computed."""

    is_over: bool = False
    value: object = None
    error: Exception | None = None

    def end(self, value=None, error=None):
        if not self.is_over:
            self.is_over = True
            self.value = value
            self.error = error


class VirtualActor:
    """A Ray actor: its calls end at some time, with a value or with an error."""

    def __init__(self, world, make):
        self.world = world
        self.alive = True
        self._calls = []
        self._free = world.clock.now + world.rng.uniform(0.1, 3.0)
        self._actor = make()
        self.prepare = SimpleNamespace(remote=self._prepare)
        self.execute = SimpleNamespace(remote=self._execute)

    def _begin(self, action, seconds):
        reference = Reference()
        if not self.alive:
            self._answer(reference, error=RayError("the actor is dead"))
            return reference
        self._calls.append(reference)
        self._free = max(self._free, self.world.clock.now) + seconds
        self.world.at(self._free, lambda: action(reference))
        return reference

    def _prepare(self, payload, *arguments):
        def action(reference):
            if not self.alive:
                return
            if self.world.happens(self.world.faults.false_start):
                return self.die("the node died")
            if payload.error is not None:
                return self._answer(reference, error=payload.error)
            self._answer(reference, self._actor.prepare(payload.value, *arguments))

        return self._begin(action, self.world.rng.uniform(0.0, 1.0))

    def _execute(self, stack):
        sent = pickle.dumps(stack)
        dies = None
        if self.world.happens(self.world.faults.death):
            dies = self.world.rng.choice(PHASES)

        def action(reference):
            if self.alive:
                self._run(reference, pickle.loads(sent), dies)

        return self._begin(action, self.world.rng.uniform(0.1, 1.0))

    def _run(self, reference, stack, dies):
        if dies in ("received", "trained"):
            return self.die("the actor died")
        if self.world.happens(self.world.faults.stale):
            # A broken connection: the driver gives up the actor, which continues its job.
            self._answer(reference, error=RayError("the actor is unavailable"))
        if dies == "saving":
            with killed_at(self.world.rng.randrange(6)):
                self._actor.execute(stack)
            return self.die("the actor died")
        answer = self._actor.execute(stack)
        if dies == "saved":
            return self.die("the actor died")
        if not self.world.happens(self.world.faults.lost):
            self._answer(reference, pickle.loads(pickle.dumps(answer)))
        if dies == "answered":
            self.die("the actor died")

    def _answer(self, reference, value=None, error=None):
        self.world.after(self.world.latency(), lambda: reference.end(value, error))

    def die(self, why):
        """End the actor; all of its calls that are not over fail."""
        self.world.deaths += 1
        self.kill(why)

    def kill(self, why="the actor was killed"):
        self.alive = False
        for reference in self._calls:
            self._answer(reference, error=RayError(why))


class VirtualRay:
    """The part of Ray's interface that the engine uses."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, world, actors):
        self._world = world
        self._actors = actors

    def is_initialized(self):
        return True

    def remote(self, **options):
        def decorate(make):
            return SimpleNamespace(remote=lambda: VirtualActor(self._world, make))

        return decorate

    def put(self, value):
        if self._world.happens(self._world.faults.false_start / 4):
            return Reference(True, error=RayError("the object is lost"))
        return Reference(True, value)

    def wait(self, references, num_returns, timeout):
        clock = self._world.clock
        end = clock.now + timeout
        while True:
            over = [reference for reference in references if reference.is_over]
            if len(over) >= num_returns or clock.now >= end:
                break
            if self._world.next_moment() > end:
                clock.now = end
                break
            self._world.proceed()
        return over, [reference for reference in references if not reference.is_over]

    def get(self, reference):
        assert reference.is_over
        if reference.error is not None:
            # A copy, because a traceback would keep the killed session alive.
            raise RayError(*reference.error.args)
        return reference.value

    def kill(self, actor):
        # Until the message arrives, the actor keeps working.
        self._world.after(self._world.latency(), actor.kill)

    def cluster_resources(self):
        return {"CPU": self._world.rng.randint(1, self._actors)}

    available_resources = cluster_resources


@contextmanager
def virtual_cluster(world, actors=3):
    """Let the Ray engine find its cluster in a world."""
    with replaced(
        ray,
        _import_ray=lambda: VirtualRay(world, actors),
        _adopt_gpus=lambda gpus: None,
        keep_memory=lambda: None,
        time=world.clock,
    ):
        yield world
