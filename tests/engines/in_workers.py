"""What the tests of engines execute in worker processes, which need not import pytest for it."""

import ctypes
import gc
import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import mopbt
from mopbt.device import assigned_device
from mopbt.engines import devices
from mopbt.engines.supervisor import exit_at_once, open_channel, receive, send
from mopbt.errors import CannotStack
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.tasks.toy import ToyTask
from toys import SuicidalToy

# --- Programs for the supervisor --------------------------------------------------------------


def echo():
    source, sink = open_channel()
    print("not a message")
    while (message := receive(source)) is not None:
        if message.startswith(b"exit"):
            os._exit(int(message[4:]))
        if message == b"session":
            shell = "sh -c 'sleep 60 & echo $!; wait'"
            child = subprocess.Popen(
                ["setsid", "sh", "-c", shell], stdout=subprocess.PIPE, start_new_session=True
            )
            message = child.stdout.readline().strip()
        if message == b"fork":
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            message = str(child).encode()
        send(sink, message)
    exit_at_once()


def forking():
    source, sink = open_channel()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    send(sink, str(child).encode())
    receive(source)
    exit_at_once()


def stuck():
    _, sink = open_channel()
    send(sink, b"stuck")
    # Unlike other libraries, this one is called without releasing Python's lock.
    ctypes.PyDLL(None).sleep(60)


def variable():
    _, sink = open_channel()
    send(sink, os.environ["MOPBT_TEST"].encode())


# --- Tasks and checkpoints for the pool -----------------------------------------------------


class SlowCheckpoints(DirectoryCheckpoints):
    """The first checkpoint is slow to save, so that the next job trains meanwhile."""

    def save(self, id, data):
        time.sleep(0.5 if id == 0 else 0.0)
        return super().save(id, data)


class PlainTask:
    space = {"x": mopbt.Grid(0, 1, 2)}
    objectives = {"omp": "max", "torch": "max"}
    interval = steps = 1

    def init(self, seed):
        return {}

    def train(self, model, hp, begin, end, seed):
        hp["x"]

    def evaluate(self, model):
        return {"omp": 1.0, "torch": 1.0}

    def dump(self, model):
        return b""

    def load(self, data):
        return {}


class ThreadCountTask(PlainTask):
    def evaluate(self, model):
        import torch

        return {
            "omp": float(os.environ["OMP_NUM_THREADS"]),
            "torch": float(torch.get_num_threads()),
        }


class UnreadTask(PlainTask):
    def train(self, model, hp, begin, end, seed):
        # Testing for a name does not count as reading it.
        assert "x" in hp


class SilentTask(PlainTask):
    def evaluate(self, model):
        return {"torch": 1.0}


class WordyTask(PlainTask):
    def evaluate(self, model):
        return {"torch": "very good", "omp": 1}


class LockedTask(PlainTask):
    def __init__(self):
        self.lock = threading.Lock()


class UnreadableTask(PlainTask):
    def __reduce__(self):
        return (explode, ())


def explode():
    raise ImportError("no such thing in a worker")


class ForkingToy(SuicidalToy):
    def train(self, model, hp, begin, end, seed):
        if hp["weight"] >= self.weight and os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        return super().train(model, hp, begin, end, seed)


class BrokenCheckpoints(DirectoryCheckpoints):
    def __init__(self, path, error):
        super().__init__(path)
        self.error = error

    def save(self, id, data):
        raise self.error


class GarbageTask(ToyTask):
    def evaluate(self, model):
        return super().evaluate(model) | {
            "collects": gc.isenabled(),
            "frozen": gc.get_freeze_count(),
        }


@dataclass(frozen=True)
class HalfSilentTask(ToyTask):
    evaluated: str = ""

    def evaluate(self, model):
        scores = super().evaluate(model)
        if scores["near"] < 0.5:
            return scores
        Path(self.evaluated).touch()
        return {"near": scores["near"]}


# --- Tasks that may use a device --------------------------------------------------------------


@dataclass(frozen=True)
class Placed(ToyTask):
    """A toy that says where it computes, and writes down what it was assigned."""

    device: str = "auto"
    folder: str = ""

    def train(self, model, hp, begin, end, seed):
        names = ("MOPBT_DEVICE", *devices.MASKS.values())
        seen = {name: os.environ[name] for name in names if name in os.environ}
        own = {**seen, "assigned": assigned_device(), "pid": os.getpid()}
        (Path(self.folder) / f"{os.getpid()}.json").write_text(json.dumps(own))
        return super().train(model, hp, begin, end, seed)


@dataclass(frozen=True)
class Tried(Placed):
    """A toy that can be measured, and writes down where that happened."""

    seconds: dict = field(default_factory=lambda: {"alone": 1.0, "stacked": 0.1})
    size: int = 1000
    fails: str = ""

    def _note(self, what):
        name = f"{what}-{os.getpid()}-{os.environ.get('CUDA_VISIBLE_DEVICES')}"
        (Path(self.folder) / name).touch()

    def check(self):
        self._note("check")
        if self.fails == "odd":
            raise OddError(1, 2)
        if self.fails == "exit":
            os._exit(7)
        if self.fails:
            raise CannotStack(self.fails)

    def check_stack(self):
        self._note("check_stack")

    def measure_update(self):
        self._note("measure")
        return SimpleNamespace(seconds=self.seconds["alone"], bytes=self.size)

    def probe(self, members):
        self._note("probe")
        if "stacked" not in self.seconds:
            raise CannotStack("the model cannot be stacked")
        return SimpleNamespace(
            loop=self.seconds["alone"],
            stack=self.seconds["stacked"],
            disagreement=0.0,
            bytes_per_member=self.size,
        )

    def train_many(self, models, hp, begins, seeds):
        raise NotImplementedError

    def evaluate_many(self, models):
        raise NotImplementedError


class OddError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} is odd, {two} is not")
