"""Tasks and small experiments for the tests of comparisons."""

import sys
from pathlib import Path

from mopbt.compare import (
    Experiment,
    PlannedRun,
)

TESTS = Path(__file__).parent.parent
# Sums of this number are slightly too large in binary.
COST = 0.49
EXPERIMENTS = sorted((TESTS.parent / "experiments").glob("*.toml"))


PROBLEMS = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import mopbt
from mopbt.errors import DataMissing
from mopbt.tasks.synthetic import Annealing, TwoQuadratics
from mopbt.tasks import registry
from mopbt.tasks.toy import ToyTask
from toys import SlowToy

class Mixed:
    "Both directions with test scores, a category, and intervals that fail or diverge."
    space = {{
        "rate": mopbt.Grid(0.1, 1.0, 10),
        "kind": mopbt.Categorical(["plain", "with, comma"]),
        "n": mopbt.Int(1, 3),
    }}
    objectives = {{"up": "max", "down": "min"}}
    interval, steps = 1, 4
    def init(self, seed): return {{"x": 0.0}}
    def train(self, model, hp, begin, end, seed):
        rate, _ = hp["rate"], hp["kind"]
        if hp["n"] == 3 and begin == 1:
            raise ValueError("three, is\\n'too' many")
        model["x"] = float("nan") if hp["n"] == 2 and begin == 2 else model["x"] + rate
    def evaluate(self, model):
        x = model["x"]
        test = {{"test/up": 0.9 * x, "test/down": 1.1 * x ** 2}}
        return {{"up": x, "down": x ** 2, "other": 7.0}} | test
    dump, load = staticmethod(mopbt.dumps), staticmethod(mopbt.loads)

class Tested(ToyTask):
    "Measures the front on test rows."
    rows = ("test",)
    def evaluate_rows(self, model, hp, step, rows, seed):
        return {{name: 0.9 * score for name, score in self.evaluate(model).items()}}

class Fatal(ToyTask):
    "Ends its process if a file exists."
    def train(self, model, hp, begin, end, seed):
        if os.path.exists({place!r} + "/fatal") and begin >= 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(model, hp, begin, end, seed)

class Deadly(ToyTask):
    "Some of its configurations end the process."
    def train(self, model, hp, begin, end, seed):
        if hp["weight"] > 0.75:
            os._exit(7)
        return super().train(model, hp, begin, end, seed)

class Fickle(ToyTask):
    "Some of its configurations fail."
    def train(self, model, hp, begin, end, seed):
        if hp["weight"] < 0.55:
            raise RuntimeError("too light")
        return super().train(model, hp, begin, end, seed)

class Broken(ToyTask):
    def train(self, model, hp, begin, end, seed):
        raise RuntimeError("no such luck")

class Absent(ToyTask):
    def __init__(self):
        raise DataMissing("the data set 'absent' is not here")

short, quick, slow = Annealing(steps=6), ToyTask(steps=6), SlowToy(steps=16, seconds=0.02)
"""


def task(place, name):
    return f"{place / 'problems.py'}:{name}"


def experiment(place, *tasks, **fields):
    """Return a small experiment of MO-PBT, and of MO-ASHA with the same time."""
    algorithms = {"MO-PBT": {"name": "mo-pbt", "population": 6}, "MO-ASHA": {"name": "mo-asha"}}
    usual = {
        "name": "small",
        "seeds": 2,
        "workers": 4,
        "cost": COST,
        "time_of": "MO-PBT",
        "algorithms": algorithms,
    }
    return Experiment(tasks=tuple(task(place, name) for name in tasks), **(usual | fields))


# The fields of an experiment with a single run.
ONE_RUN = {
    "seeds": 1,
    "time_of": None,
    "algorithms": {"MO-PBT": {"name": "mo-pbt", "population": 4}},
}


def plain(results):
    """Return the records of a run without real times."""
    # A journal rounds times to microseconds.
    records = [record | {"seconds": round(record["seconds"], 6)} for record in results.records()]
    return [
        {key: repr(value) for key, value in record.items() if key != "duration"}
        for record in records
    ]


def by_run(comparison):
    return {PlannedRun(run.task, run.algorithm, run.seed): run for run in comparison.runs}


COMMAND = [sys.executable, "-c", "from mopbt.cli import main; main()", "compare"]


def changed(path, old, new, file="run.toml"):
    text = (path / file).read_text()
    assert old in text
    (path / file).write_text(text.replace(old, new))


GOOD = """
name = "good"
seeds = 2
tasks = ["toy", "annealing"]
time_of = "MO-PBT"
[algorithms]
"MO-PBT" = { name = "mo-pbt" }
"MO-ASHA" = { name = "mo-asha" }
"""
