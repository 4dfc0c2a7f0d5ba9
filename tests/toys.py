"""Tasks and callbacks that the tests share; worker processes import them from here."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt import Callback
from mopbt.tasks.toy import ToyTask


class Watcher(Callback):
    """Calls a function with the progress of a run, at its start and after each report."""

    def __init__(self, function):
        self.function = function

    def on_start(self, run):
        self.function(run.progress)

    def on_report(self, run, reports):
        assert run.progress.reports == reports != ()
        self.function(run.progress)


@dataclass(frozen=True)
class KillerToy(ToyTask):
    """A toy whose worker kills the driver just before it saves a certain interval."""

    victim: tuple[int, int] | None = None

    def train(self, model, hp, begin, end, seed):
        object.__setattr__(self, "_now", end)
        return super().train(model, hp, begin, end, seed)

    def dump(self, model: dict[str, Any]) -> bytes:
        if self.victim is not None and self.victim[1] == self._now:
            os.kill(os.getppid(), signal.SIGKILL)
        return super().dump(model)


@dataclass(frozen=True)
class SuicidalToy(ToyTask):
    """A toy that kills its process during a job, as often as a file says."""

    lives: str = ""
    weight: float = 1.0

    def train(self, model, hp: Mapping[str, Any], begin: int, end: int, seed: int):
        counter = Path(self.lives)
        left = int(counter.read_text())
        if hp["weight"] >= self.weight and left:
            counter.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(model, hp, begin, end, seed)


@dataclass(frozen=True)
class SlowToy(ToyTask):
    """A toy that takes its time."""

    seconds: float = 0.05
    begun: str = ""  # a file that says that a process has begun to train, with its number behind

    def train(self, model, hp: Mapping[str, Any], begin: int, end: int, seed: int):
        if self.begun:
            Path(f"{self.begun}-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return super().train(model, hp, begin, end, seed)


@dataclass(frozen=True)
class NanToy(ToyTask):
    """A toy that diverges where the learning rate is the largest, and flat otherwise if asked."""

    flat: bool = False

    def train(self, model, hp: Mapping[str, Any], begin: int, end: int, seed: int):
        model = super().train(model, hp, begin, end, seed)
        if hp["lr"] >= 1:
            model["place"] = model["place"] * float("nan")
        return model

    def evaluate(self, model):
        return {"near": 0.5, "far": 0.5} if self.flat else super().evaluate(model)


@dataclass(frozen=True)
class UnstackableToy(ToyTask):
    """A toy that says it can be stacked, and cannot."""

    def train_many(self, models, hp, begins, seeds):
        raise ZeroDivisionError("no stacks today\nbut a second line")

    def evaluate_many(self, models):
        return [self.evaluate(model) for model in models]


@dataclass(frozen=True)
class HangingToy(ToyTask):
    """A toy that starts a process and hangs where the weight is large, as often as a file says."""

    left: str = ""

    def train(self, model, hp: Mapping[str, Any], begin: int, end: int, seed: int):
        counter = Path(self.left)
        left = int(counter.read_text())
        if hp["weight"] >= 1 and left:
            counter.write_text(str(left - 1))
            child = subprocess.Popen(["sleep", "600"])
            counter.with_name(f"child-{child.pid}").touch()
            time.sleep(600)
        return super().train(model, hp, begin, end, seed)

    def train_many(self, models, hp, begins, seeds):
        members = zip(models, hp, begins, seeds, strict=True)
        return [self.train(m, h, b, b + self.interval, seed) for m, h, b, seed in members]

    def evaluate_many(self, models):
        return [self.evaluate(model) for model in models]
