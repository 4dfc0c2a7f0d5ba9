"""The mistakes that people make, what they are told, and that nothing is lost or begun by them.

Each row of the tables says what somebody did and all of the message that they get ("…" stands for any text, HERE for the place
where they are). Its last three columns are what every message owes them: what was got, what is allowed, and what to do; where
what is allowed is all there is to do, the last column is the name of what is to be changed. They are parts of the message that do
not overlap, so that a message which lacks one of them fails.
"""

import os
import shlex
import shutil
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mopbt
from mopbt import (
    MOPBT,
    Budget,
    Categorical,
    Float,
    Grid,
    Int,
    LocalEngine,
    Ordinal,
    PoolEngine,
    Results,
    SimulatedEngine,
    Space,
)
from mopbt.algorithms import MOASHA, PBT
from mopbt.cli import main
from mopbt.compare import compare
from mopbt.errors import (
    CannotStack,
    CorruptCheckpoint,
    CorruptJournal,
    IncompatibleRun,
    MissingScore,
    RunLocked,
    RunMismatch,
    StoreError,
    TaskError,
    TaskFailed,
    UnknownHyperparameter,
    UnreadHyperparameter,
    WorkerFailed,
)
from mopbt.export import export
from mopbt.replay import replay
from mopbt.stores.directory import DirectoryStore
from mopbt.tasks.toy import ToyTask

# What people have when they make a mistake: a finished run of the toy, a run of a program of their own, and some files.

SPACE = {"rate": Float(0.1, 1.0)}
SAID = {"space": SPACE, "objectives": {"up": "max", "down": "min"}, "steps": 4}
QUIETLY = {"engine": "local", "progress": False}

EXPERIMENT = """
name = "mine"
tasks = ["toy"]
seeds = 1
[algorithms]
ours = { name = "mo-pbt", population = 4 }
"""

FILES = {
    "notes.txt": "not a run\n",
    "folder/notes.txt": "not a run\n",
    "experiment.toml": EXPERIMENT,
    "needs.py": "import no_such_package\n",
    "broken.py": "def task(:\n",
    "raises.py": "[][1]\n",
    "with_arguments.py": "class Mine:\n    def __init__(self, data): ...\n",
    "function.py": "def train(m): ...\n",
    "shapes.py": """
import torch
from mopbt import Float
from mopbt.torch import Batches, TorchTask
x, y = torch.zeros(8, 4), torch.zeros(8)
task = TorchTask(
    lambda: torch.nn.Linear(5, 1), loss=lambda model, batch, hp: model(batch[0]).mean(), data=Batches(x, y, batch_size=4),
    space={"lr": Float(1e-4, 1e-1)}, objectives={"loss": "min"}, steps=2, evaluate_model=lambda model: {"loss": 0.0},
)
""",
}


def train(m):
    state = {"x": 0.0}
    m.track(state=state)
    for _ in m.steps():
        state["x"] += m.hp["rate"]
    m.report(up=state["x"], down=state["x"] ** 2)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    place = tmp_path_factory.mktemp("mistakes")
    said = {"out": place / "done", "population": 4, **QUIETLY}
    mopbt.run(ToyTask(steps=6), **said)
    toml = place / "done" / "run.toml"  # as `mopbt run toy` would have left it
    toml.write_text(
        toml.read_text().replace(
            'name = "toy"', 'name = "toy"\ntask_reference = "mopbt.tasks.toy:ToyTask"'
        )
    )
    mopbt.run(train, out=place / "ours", population=2, **SAID, **QUIETLY)
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.fixture
def here(template, tmp_path, monkeypatch):
    """Go to a copy of it all, and leave nothing of what commands do to their process."""
    place = tmp_path / "here"
    shutil.copytree(template, place)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("MOPBT_DATA", str(place / "folder"))
    monkeypatch.delenv("MOPBT_TRACEBACK", raising=False)
    modules, handler = set(sys.modules), signal.getsignal(signal.SIGTERM)
    yield place
    signal.signal(signal.SIGTERM, handler)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(place)):
            del sys.modules[name]


def everything(place):
    """Return all files and directories of a place, with their bytes."""
    return {
        path.relative_to(place): path.read_bytes() if path.is_file() else None
        for path in place.rglob("*")
    }


def check_message(message, row, place):
    """Check that a message states its three facts: what was received, what is allowed, what to do."""
    said = message.replace(str(place), "HERE")
    owed = {"what was got": row.got, "what is allowed": row.allowed, "what to do": row.remedy}
    spans = {}
    for what, part in owed.items():
        assert part, f"the row must say where the message has {what}"
        assert part in said, f"{said}\ndoes not say {what}: {part!r}"
        begin = said.index(part)
        spans[what] = range(begin, begin + len(part))
    for a, b in (
        ("what was got", "what is allowed"),
        ("what is allowed", "what to do"),
        ("what was got", "what to do"),
    ):
        assert not set(spans[a]) & set(spans[b]), (
            f"{owed[a]!r} and {owed[b]!r} are the same part of the message"
        )


@dataclass(frozen=True)
class Mistake:
    """One that is made in a program."""

    did: str
    do: Callable[[Path], Any]
    error: type[Exception]
    got: str
    allowed: str
    remedy: str


def running(**said):
    """Return a call of `run` for a training function, with something else than what would be right; None leaves it out."""
    wanted = {
        key: value
        for key, value in ({"out": "new"} | SAID | QUIETLY | said).items()
        if value is not LEFT_OUT
    }
    return lambda here: mopbt.run(train, **wanted)


LEFT_OUT = object()


def training(body):
    """Return a run in memory of a training function with these lines."""
    lines = body.strip().splitlines()
    source = "\n".join(
        ["def train(m):", "    state = {'x': 0.0}", *(f"    {line}" for line in lines)]
    )

    def go(here):
        scope = {}
        exec(source, scope)
        mopbt.run(scope["train"], out=None, **SAID, **QUIETLY)

    return go


LOOP = "for _ in m.steps(): state['x'] += m.hp['rate']"
GOOD = f"m.track(state=state)\n{LOOP}\n"


def front(here):
    return Results.open(here / "done").front()


DOMAINS = "such as Float(1e-5, 0.1, log=True), Grid(0, 0.8, 10) or Categorical(['a', 'b'])"
ENGINES = "'auto', 'local', 'pool', 'vectorized', 'ray', 'simulated' or an engine object"
ALGORITHMS = "mo-pbt, random-search, pbt, pbt-random-scalarization, pbt-max-scalarization, mo-asha, bo-mo-asha, qnehvi, parego, nsga2"

IN_PROGRAMS = [
    # Spaces.
    Mistake(
        *("a range as a tuple, as elsewhere", running(space={"rate": (0.1, 1)}), ValueError),
        *("got (0.1, 1)", "must be a domain such as Float", "write Float(0.1, 1)"),
    ),
    Mistake(
        *("choices as a list, as elsewhere", running(space={"rate": [16, 32, 64]}), ValueError),
        *("got [16, 32, 64]", "must be a domain", "write Ordinal([...])"),
    ),
    Mistake(
        *("a dict of constants", running(space={"rate": 0.1}), ValueError),
        *("got 0.1", "must be a domain", "leave it out here"),
    ),
    Mistake(
        *("a domain's class", running(space={"rate": Float}), ValueError),
        *("got <class 'mopbt.space.Float'>", "must be a domain", "as in Float(...)"),
    ),
    Mistake(
        *("a space without names", running(space=[Float(0, 1)]), TypeError),
        *(
            "got [Float(lo=0, hi=1, log=False)]",
            "a mapping of names to domains",
            "such as {'lr': Float(1e-5, 0.1, log=True)}",
        ),
    ),
    Mistake(
        *("the ends in the wrong order", lambda here: Float(0.1, 1e-5), ValueError),
        *("got 0.1 and 1e-05", "`lo` must be below `hi`", "put the smaller end first"),
    ),
    Mistake(
        *("0 on a logarithmic scale", lambda here: Float(0, 0.1, log=True), ValueError),
        *("got 0;", "must be above 0 on a logarithmic scale", "use the smallest value above 0"),
    ),
    Mistake(
        *("a number as a text, as YAML has 1e-5", lambda here: Float("1e-5", 0.1), ValueError),
        *("got '1e-5'", "must be a finite number", "as in float(...)"),
    ),
    Mistake(
        *("a number of numpy's", lambda here: Float(np.float32(0.5), 1.0), ValueError),
        *("got np.float32(0.5)", "must be a finite number", "as in float(...)"),
    ),
    Mistake(
        *("a step as the third argument", lambda here: Float(0, 1, 0.1), ValueError),
        *("got 0.1", "True or False", "Float: `log`"),
    ),
    Mistake(
        *("real ends of whole numbers", lambda here: Int(1, 8.0), ValueError),
        *("got 8.0", "must be whole numbers", "use Float"),
    ),
    Mistake(
        *("a step where the number of values belongs", lambda here: Grid(0, 1, 0.1), ValueError),
        *("got 0.1", "a whole number of at least 2", "Grid: `n`"),
    ),
    Mistake(
        *("one category as a text", lambda here: Categorical("adam"), ValueError),
        *("got 'adam'", "must be a list", "such as ['a', 'b']"),
    ),
    Mistake(
        *("None among the values", lambda here: Categorical([None, 0.1]), ValueError),
        *("got None", "finite numbers, strings or booleans", "use a string"),
    ),
    Mistake(
        *("a single value", lambda here: Ordinal([64]), ValueError),
        *("got [64]", "at least two values", "leave out what is not tuned"),
    ),
    Mistake(
        *("a value by a misspelt name", lambda here: Space(SPACE).encode({"rte": 0.5}), ValueError),
        *("unknown 'rte'", "must name exactly 'rate'", "did you mean 'rate'?"),
    ),
    # Objectives and constraints.
    Mistake(
        *(
            "a direction as it is called elsewhere",
            running(objectives={"up": "maximize", "down": "min"}),
            ValueError,
        ),
        *("got 'maximize'", "'max' or 'min'", "did you mean 'max'?"),
    ),
    Mistake(
        *("objectives without directions", running(objectives=["up", "down"]), ValueError),
        *("got ['up', 'down']", "must be a mapping", "like {'accuracy': 'max', 'dsp': 'min'}"),
    ),
    Mistake(
        *("a constraint with =", running(constraints=["up = 3"]), ValueError),
        *("got 'up = 3'", "(relations >=, >, <=, <)", "write >= or <="),
    ),
    Mistake(
        *("a constraint in per cent", running(constraints=["up >= 70%"]), ValueError),
        *("got 'up >= 70%'", "(relations >=, >, <=, <)", "like 'accuracy >= 0.7'"),
    ),
    Mistake(
        *("a constraint as a function, as elsewhere", running(constraints=[len]), ValueError),
        *(
            "got <built-in function len>",
            "must read like 'accuracy >= 0.7'",
            "report what the function computes",
        ),
    ),
    Mistake(
        *("one constraint without a list", running(constraints="up >= 3"), ValueError),
        *("got 'up >= 3'", "must be a list", "like ['accuracy >= 0.7']"),
    ),
    Mistake(
        *("a reference point without names", running(reference=[0, 1]), ValueError),
        *("got [0, 1]", "a number for each of 'up', 'down'", "`reference`"),
    ),
    # Runs.
    Mistake(
        *("no steps", running(steps=LEFT_OUT), TypeError),
        *("got `space=`, `objectives=`", "needs `steps=` as well", "write run(train"),
    ),
    Mistake(
        *("steps that are no whole number", running(steps=1e3), ValueError),
        *("got 1000.0", "a whole number of at least 1", "`steps` must be"),
    ),
    Mistake(
        *("an interval that does not divide the steps", running(steps=10, interval=4), ValueError),
        *("got 10", "a multiple of `interval` (4)", "use 8"),
    ),
    Mistake(
        *("a population of one", running(population=1), ValueError),
        *("got 1", "a whole number of at least 2", "`population`"),
    ),
    Mistake(
        *("no seed, as None", running(seed=None), ValueError),
        *("got None", "a whole number of at least 0", "`seed`"),
    ),
    Mistake(
        *("a seed of numpy's", running(seed=np.int64(3)), ValueError),
        *("got np.int64(3)", "a whole number of at least 0", "pass int(seed)"),
    ),
    Mistake(
        *("a budget as a number", running(budget=3600), TypeError),
        *("got 3600", "must be a Budget", "such as Budget(seconds=3600)"),
    ),
    Mistake(
        *("a budget as a text", lambda here: Budget(seconds="1h"), ValueError),
        *("got '1h'", "a number above 0, or None for no limit", "`seconds`"),
    ),
    Mistake(
        *("a file where the run should go", running(out="notes.txt"), ValueError),
        *(
            "got the file HERE/notes.txt",
            "must be a directory",
            "name a new or empty directory, or a run",
        ),
    ),
    Mistake(
        *("a directory with other things in it", running(out="folder"), RunMismatch),
        *("(it has 'notes.txt')", "not a run and not empty", "use another directory"),
    ),
    Mistake(
        *("a run with another seed", running(out="ours", population=2, seed=1), RunMismatch),
        *("seed is 1", "it was 0", "use the same settings, or another directory"),
    ),
    Mistake(
        *("a run with another task", running(out="done"), RunMismatch),
        *("task is 'train'", "it was 'toy'", "use the same settings, or another directory"),
    ),
    Mistake(
        *("storage without a journal", running(out=None, storage="elsewhere"), ValueError),
        *("got 'HERE/elsewhere' and None", "needs `out` as well", "give `out` a directory"),
    ),
    # Tasks.
    Mistake(
        *("a task's class", lambda here: mopbt.run(ToyTask, out="new"), TypeError),
        *("got the class ToyTask", "must be an object", "pass ToyTask()"),
    ),
    Mistake(
        *("a task's name in a program", lambda here: mopbt.run("toy", out="new"), TypeError),
        *(
            "got the string 'toy'",
            "an object or a training function",
            "mopbt.registry.find_task('toy')[0]",
        ),
    ),
    Mistake(
        *("something that is no task", lambda here: mopbt.run({"lr": 0.1}, out="new"), TypeError),
        *("dict object", "it has no method `init`", "see docs/write-a-task.md"),
    ),
    Mistake(
        *(
            "a space for a task that has one",
            lambda here: mopbt.run(ToyTask(), out="new", space=SPACE),
            TypeError,
        ),
        *("got a ToyTask object", "for training functions only", "leave it out, or set it there"),
    ),
    # Training functions; what is wrong with them shows in the first interval.
    Mistake(
        *("a misspelt score", training(GOOD + "m.report(up=1.0, dwn=2.0)"), MissingScore),
        *("it measured 'up', 'dwn'", "the objective 'down'", "pass it to `report`"),
    ),
    Mistake(
        *(
            "scores as a dict, as elsewhere",
            training(GOOD + "m.report({'up': 1.0, 'down': 2.0})"),
            TaskError,
        ),
        *("got dict", "metrics by name", "report(**metrics)"),
    ),
    Mistake(
        *(
            "scores that are returned, as elsewhere",
            training(GOOD + "return {'up': 1.0, 'down': 2.0}"),
            TaskError,
        ),
        *(
            "the function's return value is ignored",
            "never called `report(...)`",
            "call it after the last step",
        ),
    ),
    Mistake(
        *(
            "scores that are no numbers",
            training(GOOD + "m.report(up=[0.1, 0.2], down=2.0)"),
            TaskError,
        ),
        *("got [0.1, 0.2]", "must be a number", "such as the mean of an array"),
    ),
    Mistake(
        *(
            "a model without a name",
            training(f"m.track(state)\n{LOOP}\nm.report(up=1.0, down=2.0)"),
            TaskError,
        ),
        *("got dict without a name", "objects by name", "as in track(model=model)"),
    ),
    Mistake(
        *(
            "a plain number that is tracked",
            training(f"m.track(x=0.0)\n{LOOP}\nm.report(up=1.0, down=2.0)"),
            TaskError,
        ),
        *("got float", "numpy arrays and dicts", "put plain values into a dict"),
    ),
    Mistake(
        *("nothing that is tracked", training(f"{LOOP}\nm.report(up=1.0, down=2.0)"), TaskError),
        *(
            "never called `track(...)`",
            "its training would be lost",
            "call track(model=..., optimizer=...)",
        ),
    ),
    Mistake(
        *(
            "a loop of one's own",
            training(
                "m.track(state=state)\nstate['x'] += m.hp['rate']\nm.report(up=1.0, down=2.0)"
            ),
            TaskError,
        ),
        *("never iterated over `steps()`", "loop over it once", "for step in m.steps(): ..."),
    ),
    Mistake(
        *(
            "stopping early",
            training("m.track(state=state)\nfor _ in m.steps(): break\nm.report(up=1.0, down=2.0)"),
            TaskError,
        ),
        *("at step 0", "the interval ends at 1", "run all steps"),
    ),
    Mistake(
        *("a hyperparameter that is not tuned", training("m.hp['rat']"), UnknownHyperparameter),
        *(
            "the unknown hyperparameter 'rat'",
            "the space has 'rate'",
            "add it there, or correct the name",
        ),
    ),
    Mistake(
        *("a hyperparameter as an attribute", training("m.hp.rate"), TaskFailed),
        *("not .rate", "there are rate", "as in hp['rate']"),
    ),
    Mistake(
        *(
            "a hyperparameter that is never read",
            training(GOOD.replace("m.hp['rate']", "1") + "m.report(up=1, down=1)"),
            UnreadHyperparameter,
        ),
        *(
            "never read 'rate'",
            "tuning it would change nothing",
            "use it in training, or remove it from the space",
        ),
    ),
    Mistake(
        *("binding what is no optimizer", training("m.bind(state, lr='rate')"), TaskError),
        *("got dict", "an optimizer with `param_groups`", "read `hp` directly"),
    ),
    Mistake(
        *("scores that are always NaN", lambda here: nan_front(), TaskFailed),
        *("'up' is nan in the last one", "finite metrics", "fix the task"),
    ),
    Mistake(
        *(
            "scores that are NaN so far, and then a choice",
            lambda here: nan_front(Budget(jobs=4)).knee(),
            ValueError,
        ),
        *(
            "the front is empty",
            "no interval has reported finite metrics yet",
            "look at `results.records()`",
        ),
    ),
    # Engines.
    Mistake(
        *("an engine as it is spelt elsewhere", running(engine="vectorised"), ValueError),
        *(
            "got 'vectorised'",
            "must be one of 'auto', 'local', 'pool'",
            "did you mean 'vectorized'?",
        ),
    ),
    Mistake(
        *("an engine's class", running(engine=LocalEngine), TypeError),
        *(
            "got <class 'mopbt.engines.local.LocalEngine'>",
            "or an engine object",
            "pass LocalEngine()",
        ),
    ),
    Mistake(
        *("no workers", lambda here: PoolEngine(0), ValueError),
        *("got 0", "a whole number of at least 1", "`workers`"),
    ),
    Mistake(
        *("a simulation's cost as a number", lambda here: SimulatedEngine(4, 1.5), ValueError),
        *("got 1.5", "Measured(), or a function of a RunContext and a job", "PerStep(1.5)"),
    ),
    Mistake(
        *("stacks of what cannot be stacked", running(engine="vectorized"), CannotStack),
        *("the task 'train'", "has no `train_many`", "use engine='pool'"),
    ),
    Mistake(
        *(
            "a task with something open",
            lambda here: mopbt.run(unsendable(), out=None, **SAID, engine="pool", progress=False),
            WorkerFailed,
        ),
        *(
            "TypeError: cannot pickle",
            "keep open files, locks and connections out of it",
            "or use engine='local'",
        ),
    ),
    # Algorithms.
    Mistake(
        *("an algorithm's misspelt name", running(algorithm="mopbt"), ValueError),
        *("got 'mopbt'", "must be one of mo-pbt, random-search", "did you mean 'mo-pbt'?"),
    ),
    Mistake(
        *("an algorithm's class", running(algorithm=MOPBT), TypeError),
        *("got <class 'mopbt.algorithms.MOPBT'>", "or the name of one", "pass MOPBT()"),
    ),
    Mistake(
        *("a share in per cent", lambda here: MOPBT(fraction=25), ValueError),
        *("got 25", "in (0, 0.5]", "`fraction`"),
    ),
    Mistake(
        *("an option's value by another name", lambda here: MOPBT(explore="locally"), ValueError),
        *("got 'locally'", "one of 'local', 'random'", "did you mean 'local'?"),
    ),
    Mistake(
        *("halving by one", lambda here: MOASHA(eta=1), ValueError),
        *("got 1", "a whole number of at least 2", "`eta`"),
    ),
    Mistake(
        *("a population of what has none", running(algorithm="mo-asha", population=8), ValueError),
        *("got 8", "its own options: eta, grace", "leave it out"),
    ),
    Mistake(
        *("one objective that is none", running(algorithm=PBT(objective="dwn")), ValueError),
        *("got 'dwn'", "one of 'up', 'down' or a number from 0 to 1", "did you mean 'down'?"),
    ),
    # What a run found.
    Mistake(
        *("opening what is not there", lambda here: Results.open("dune"), StoreError),
        *("HERE/dune", "is not a run", "`mopbt list DIR`"),
    ),
    Mistake(
        *(
            "the best in a misspelt objective",
            lambda here: front(here).best("nera"),
            ValueError,
        ),
        *("got 'nera'", "('near', 'far')", "did you mean 'near'?"),
    ),
    Mistake(
        *("a word that is no weights", lambda here: front(here).weighted("elbow"), TypeError),
        *("got 'elbow'", "must be a mapping", "such as {'near': 2}"),
    ),
    Mistake(
        *(
            "a limit on a misspelt score",
            lambda here: front(here).where("nera >= 0.1").knee(),
            ValueError,
        ),
        *("got 'nera'", "one of 'far', 'near'", "did you mean 'near'?"),
    ),
    Mistake(
        *(
            "a limit that nothing reaches",
            lambda here: front(here).where("near >= 5").knee(),
            ValueError,
        ),
        *("near >= 5", "it reaches near", "relax `where`, or train longer"),
    ),
    Mistake(
        *(
            "a weight below 0 for what should be small",
            lambda here: front(here).weighted({"near": 1, "far": -1}),
            ValueError,
        ),
        *("got -1", "a number of at least 0", "the weight of 'far'"),
    ),
    Mistake(
        *("loading by a word", lambda here: Results.open("done").load("best"), ValueError),
        *(
            "got 'best'",
            "the id of an evaluated model of this run, or one of `results.front()`",
            "on the front are",
        ),
    ),
    Mistake(
        *("loading a list of jobs", lambda here: Results.open("done").load([1]), ValueError),
        *(
            "got [1]",
            "the id of an evaluated model of this run, or one of `results.front()`",
            "on the front are",
        ),
    ),
    Mistake(
        *(
            "exporting into a directory",
            lambda here: export(Results.open("done"), front(here)[0], "folder"),
            ValueError,
        ),
        *("got the directory folder", "needs a file name", "such as folder/model.safetensors"),
    ),
    Mistake(
        *(
            "a replay without the task",
            lambda here: replay(Results.open("done"), front(here)[0]),
            TaskError,
        ),
        *("a replay", "needs the task", "replay(results, point, task)"),
    ),
    Mistake(
        *(
            "a replay on another space",
            lambda here: replay(Results.open("done"), front(here)[0], function_task()),
            TaskError,
        ),
        *("got ['rate']", "the hyperparameters ['weight', 'lr']", "use the run's own task"),
    ),
    Mistake(
        *("bytes of something else", lambda here: mopbt.loads(b"\x80\x04pickled"), ValueError),
        *(
            "not a state tree of mopbt",
            "do not start with its header",
            "pass bytes that `dumps` returned",
        ),
    ),
    # Comparisons.
    Mistake(
        *(
            "a misspelt scale",
            lambda here: compare(
                experiment(here, "\n[scales.small]\nseeds = 1\n"), out="new", scale="smal"
            ),
            ValueError,
        ),
        *("got 'smal'", "one of 'paper', 'small', or left out", "did you mean 'small'?"),
    ),
    Mistake(
        *(
            "reusing what is not there",
            lambda here: compare("experiment.toml", out="new", reuse=["nowhere"]),
            ValueError,
        ),
        *("got nowhere", "directories with comparisons in or below them", "`reuse`"),
    ),
]


def nan_front(budget=None):
    said = SAID | {"objectives": {"up": "max"}}

    def diverging(m):
        train(m)
        m.report(up=float("nan"))

    return mopbt.run(diverging, out=None, population=2, budget=budget, **said, **QUIETLY).front()


def unsendable():
    lock = threading.Lock()

    def train(m):
        with lock:
            pass

    return train


def function_task():
    return mopbt.FunctionTask(train, **SAID)


def experiment(here, more):
    (here.parent / "other.toml").write_text(EXPERIMENT + more)
    return here.parent / "other.toml"


def error_of(row, here):
    """Make a mistake in a program and return the error; nothing may be begun or changed."""
    before = everything(here)
    with pytest.raises(row.error) as caught:
        row.do(here)
    assert everything(here) == before, "nothing may be begun or changed"
    return caught.value


@pytest.mark.parametrize("row", IN_PROGRAMS, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    error = error_of(row, here)
    assert type(error) is row.error
    check_message(str(error), row, here)


# PyTorch's own things where other ones belong.


def torch_task(**said):
    import torch

    from mopbt.torch import AdamW, Batches, TorchTask

    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    parts = {
        "model": lambda: torch.nn.Linear(4, 2),
        "loss": lambda model, batch, hp: torch.nn.functional.cross_entropy(
            model(batch[0]), batch[1]
        ),
        "data": Batches(x, y, batch_size=4),
        "space": {"lr": Float(1e-4, 1e-1, log=True)},
        "objectives": {"accuracy": "max", "size": "min"},
        "steps": 2,
        "optimizer": AdamW(lr="lr"),
        "metrics": lambda outputs, targets: {"accuracy": 0.5, "size": 1.0},
        "validation": (x, y),
    } | {key: make(torch) if callable(make) else make for key, make in said.items()}
    return TorchTask(parts.pop("model"), **parts)


def torch_running(engine="local", **said):
    return lambda here: mopbt.run(
        torch_task(**said), out="new", engine=engine, population=4, progress=False
    )


def deciding(torch):
    return lambda model, batch, hp: model(batch[0]).mean() * (1 if hp["lr"] > 0.01 else 2)


WITH_TORCH = [
    Mistake(
        *(
            "a model where its maker belongs",
            torch_running(model=lambda torch: torch.nn.Linear(4, 2)),
            TypeError,
        ),
        *("got a Linear", "a function that builds the model", "write model=lambda: ..."),
    ),
    Mistake(
        *(
            "an optimizer of PyTorch's",
            torch_running(optimizer=lambda torch: torch.optim.AdamW),
            TypeError,
        ),
        *("got the class AdamW", "one of mopbt.torch (AdamW, SGD)", 'write AdamW(lr="lr")'),
    ),
    Mistake(
        *(
            "a DataLoader",
            torch_running(data=lambda torch: torch.utils.data.DataLoader([1, 2])),
            TypeError,
        ),
        *(
            "got a DataLoader",
            "must be Batches(inputs, labels, batch_size=256)",
            "pass the tensors to Batches",
        ),
    ),
    Mistake(
        *(
            "a loss of PyTorch's",
            torch_running(loss=lambda torch: torch.nn.CrossEntropyLoss()),
            TypeError,
        ),
        *(
            "got a CrossEntropyLoss",
            "the model, a batch and the hyperparameters",
            "write def loss(model, batch, hp): ...",
        ),
    ),
    Mistake(
        *("no metrics", torch_running(metrics=None), ValueError),
        *(
            "got `validation`",
            "or `evaluate_model`, but not both",
            "needs `metrics` and `validation`",
        ),
    ),
    Mistake(
        *(
            "metrics without an objective",
            torch_running(objectives={"acuracy": "max", "size": "min"}),
            MissingScore,
        ),
        *(
            "the task measures 'accuracy', 'size'",
            "the objectives name 'acuracy'",
            "correct the name",
        ),
    ),
    Mistake(
        *(
            "a loss that asks for what is not tuned",
            torch_running(loss=lambda torch: lambda model, batch, hp: hp["lrr"]),
            UnknownHyperparameter,
        ),
        *(
            "the unknown hyperparameter 'lrr'",
            "the space has 'lr'",
            "add it there, or correct the name",
        ),
    ),
    Mistake(
        *(
            "a rate that is not in the space",
            torch_running(space={"rate": Float(0.1, 1)}),
            ValueError,
        ),
        *("hyperparameter 'lr'", "the space has 'rate'", "add it to the space"),
    ),
    Mistake(
        *(
            "arrays for tensors",
            torch_running(data=lambda torch: batches(np.zeros((8, 4)), np.zeros(8))),
            ValueError,
        ),
        *("got ndarray, ndarray", "takes tensors with rows", "torch.as_tensor(...)"),
    ),
    Mistake(
        *("a device that there is not", torch_running(device="gpu"), ValueError),
        *("got 'gpu'", "a device that PyTorch finds", "`device` must be 'auto'"),
    ),
    Mistake(
        *(
            "a loss that decides by a value, in a stack",
            torch_running("vectorized", loss=deciding),
            CannotStack,
        ),
        *("the model or its loss", "cannot be stacked", "use engine='pool'"),
    ),
]


def batches(*arrays):
    from mopbt.torch import Batches

    return Batches(*arrays, batch_size=4)


@pytest.mark.parametrize("row", WITH_TORCH, ids=lambda row: row.did)
def test_a_mistake_with_torch(row, here, one_thread):
    error = error_of(row, here)
    assert type(error) is row.error
    check_message(str(error), row, here)


# On the command line.


@dataclass(frozen=True)
class Command:
    """A mistake that is made on the command line, perhaps with something that was done to a run before."""

    command: str
    code: int
    got: str
    allowed: str
    remedy: str
    before: Callable[[Path], Any] = lambda here: None  # its value is closed afterwards


TASKS = "TASK must be one of adult-fairness, …, two-quadratics, or name an object like package.module:task or path/to/file.py:task"
OF_MOPBT = (
    "asynchronous, explore, fraction, inherit_step, population, resample, scale, start, within"
)


def edit(name, old, new):
    """Return what changes a text in a file."""

    def change(here):
        text = (here / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (here / name).write_text(text.replace(old, new))

    return change


def write(name, text):
    """Return what writes a file."""
    return lambda here: (here / name).write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )


def journal(change):
    """Return what changes the lines of the finished run's journal."""

    def rewrite(here):
        file = here / "done" / "journal.jsonl"
        file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))

    return rewrite


def line_of(body):
    """Return a line of a journal with a checksum that fits."""
    return body[:-1] + b',"crc":"' + f"{zlib.crc32(body):08x}".encode() + b'"}\n'


def spoil_checkpoint(here):
    file = Results.open(here / "done").checkpoint_file(front(here).best("near"))
    Path(file).write_bytes(Path(file).read_bytes()[:-1])


def remove_checkpoint(here):
    Path(Results.open(here / "done").checkpoint_file(front(here).best("near"))).unlink()


ON_THE_COMMAND_LINE = [
    # mopbt run
    Command(
        *("run toi", 2),
        *("got 'toi'", "TASK must be one of adult-fairness", "did you mean 'toy'?"),
    ),
    Command(
        *(
            "run nothing.py:task",
            2,
        ),
        *("nothing.py;", "there is no file", "name an existing one"),
    ),
    Command(
        *("run nothing:task", 2),
        *("'nothing'", "there is no module", "as in nothing.py:task"),
    ),
    Command(
        *(
            "run function.py:trian",
            2,
        ),
        *("no 'trian'", "it has train", "name one of them"),
    ),
    Command(
        *("run function.py:train", 2),
        *(
            "function.py:train is a function",
            "wrap it in a task",
            "task = mopbt.FunctionTask(train",
        ),
    ),
    Command(
        *("run with_arguments.py:Mine", 2),
        *(
            "missing a required argument: 'data'",
            "cannot be called without arguments",
            "as in task = Mine(...)",
        ),
    ),
    Command(
        *("run needs.py:task", 2),
        *("'no_such_package'", "which is not installed", "install it in the environment"),
    ),
    Command(
        *("run broken.py:task", 2),
        *("SyntaxError: invalid syntax (broken.py, line 1)", "cannot be imported", "fix it"),
    ),
    Command(
        *("run raises.py:task", 2),
        *("IndexError: list index out of range", "cannot be imported", "fix it"),
    ),
    Command(
        *("run shapes.py:task", 1),
        *("(4x4 and 5x1)", "shapes cannot be multiplied", "--traceback to see where it comes from"),
    ),
    Command(
        *(
            "run toy --algorithm mopbt",
            2,
        ),
        *("got 'mopbt'", "must be one of mo-pbt", "did you mean 'mo-pbt'?"),
    ),
    Command(
        *(
            "run toy -o fracton=0.1",
            2,
        ),
        *("no option 'fracton'", "it has asynchronous, explore", "did you mean 'fraction'?"),
    ),
    Command(
        *(
            "run toy -o fraction:0.1",
            2,
        ),
        *("got 'fraction:0.1'", "must read KEY=VALUE", "as in fraction=0.1"),
    ),
    Command(
        *(
            "run toy --engine simulatd",
            2,
        ),
        *("got 'simulatd'", "must be one of 'auto', 'local'", "did you mean 'simulated'?"),
    ),
    Command(
        *("run toy --engine vectorized", 1),
        *("the task 'toy'", "has no `train_many`", "use engine='pool'"),
    ),
    Command(
        *("run toy --workers 0", 2),
        *("got 0 for 'auto'", "must be at least 1", "leave it out"),
    ),
    Command(
        *(
            "run toy --cost 2",
            2,
        ),
        *(
            "got it for 'auto'",
            "is for the simulated engine",
            "leave it out, or use engine='simulated'",
        ),
    ),
    Command(
        *(
            "run toy --scale small",
            2,
        ),
        *("got the scale 'small'", "comes in one size only", "leave it out"),
    ),
    Command(
        *("run adult-fairness --scale smal", 2),
        *("got 'smal'", "one of 'paper', 'small', 'smoke'", "did you mean 'small'?"),
    ),
    Command(
        *("run celeba-fairness --scale smoke", 1),
        *("'celeba' not found", "into HERE/folder", "set MOPBT_DATA to another folder"),
    ),
    Command(
        *(
            "run toy --budget-jobs -3",
            2,
        ),
        *("got -3", "a whole number above 0", "`jobs`"),
    ),
    Command(
        *("run toy --out notes.txt/run", 2),
        *("got the file HERE/notes.txt", "must be a directory", "name a new or empty directory"),
    ),
    Command(
        *("run toy --out done --population 4 --seed 7", 1),
        *("seed is 7", "it was 0", "use the same settings"),
    ),
    Command(
        *("run toy --out done --population 4", 1),
        *(
            "locked by process",
            "HERE/done is",
            "wait for it, stop it, or use another directory",
        ),
        lambda here: DirectoryStore(here / "done"),
    ),
    Command(
        *(
            "run toy --out done --population 4",
            1,
        ),
        *("has a journal", "but no run.toml", "restore it, or use another directory"),
        lambda here: (here / "done" / "run.toml").unlink(),
    ),
    # mopbt resume, show, front, lineage, list
    Command(
        *(
            "resume dune",
            1,
        ),
        *("dune", "is not a run: it does not exist", "`mopbt list DIR`"),
    ),
    Command(
        *(
            "resume folder",
            1,
        ),
        *("folder is", "it has no run.toml", "`mopbt list DIR`"),
    ),
    Command(
        *(
            "resume ours",
            2,
        ),
        *(
            "ours was started",
            "from a Python program, which holds its task",
            "rerun that program",
        ),
    ),
    Command(
        *("show done/run.toml", 1),
        *("HERE/done/run.toml", "a run is a directory;", "`mopbt list DIR`"),
    ),
    Command(
        *("front done --plot front.gif", 2),
        *("got front.gif", "one of .png, .pdf, .svg", "such as front.png"),
    ),
    Command(
        *("front done --against ours", 2),
        *(
            "HERE/ours has the objectives up max, down min",
            "have the same objectives",
            "look at each of them alone",
        ),
    ),
    Command(
        *("lineage done 999", 2),
        *("got 999", "the id of an evaluated model of this run", "on the front are"),
    ),
    Command(
        *("list nowhere", 2),
        *("nowhere", "there is no directory", "name the one that holds your runs"),
    ),
    # mopbt pick, replay
    Command(
        *("pick done --where near=0.5", 2),
        *("got 'near=0.5'", "(relations >=, >, <=, <)", "write >= or <="),
    ),
    Command(
        *(
            "pick done --best naer",
            2,
        ),
        *("got 'naer'", "('near', 'far')", "did you mean 'near'?"),
    ),
    Command(
        *(
            "pick done --weight near:2",
            2,
        ),
        *("got 'near:2'", "must read OBJECTIVE=NUMBER", "as in accuracy=2"),
    ),
    Command(
        *("pick done --export models/mine.safetensors", 1),
        *("directory models", "there is no", "create it first"),
    ),
    Command(
        *("pick done --export mine.pth", 2),
        *("got 'mine.pth'", "to a file that ends in .safetensors", "name it mine.safetensors"),
    ),
    Command(
        *("pick done --best near --export mine.safetensors", 1),
        *(
            "is damaged",
            "its checksum differs from the one in the journal",
            "restore a copy, or train the model again",
        ),
        spoil_checkpoint,
    ),
    Command(
        *("pick done --best near --export mine.safetensors", 1),
        *(
            "does not exist",
            "or the file was deleted",
            "train the model again with `mopbt replay RUN",
        ),
        remove_checkpoint,
    ),
    Command(
        *(
            "replay ours 0",
            2,
        ),
        *(
            "HERE/ours was started",
            "from a Python program, which holds its task",
            "name it with --task",
        ),
    ),
    Command(
        *("replay done 0 --export models/mine", 1),
        *("directory models", "there is no", "create it first"),
    ),
    Command(
        *("replay done 0 --seed -1", 2),
        *("got -1", "a whole number of at least 0", "`seed`"),
    ),
    # mopbt report, dashboard, export
    Command(
        *("report done --out pages/mine.html", 2),
        *("got pages/mine.html", "a file in an existing directory", "such as report.html"),
    ),
    Command(
        *("report done ours", 2),
        *(
            "ours has the objectives up max, down min",
            "have the same objectives",
            "look at each of them alone",
        ),
    ),
    Command(
        *(
            "dashboard nowhere",
            2,
        ),
        *("nowhere", "there is no directory", "pass the directory of your runs"),
    ),
    Command(
        *("dashboard . --token secret", 2),
        *(
            "got 6 characters",
            "12 to 128 letters, digits, - and _",
            "omit it to get a new one",
        ),
    ),
    Command(
        *("dashboard . --host 203.0.113.1", 2),
        *("203.0.113.1, port 8765", "cannot listen at", "set `port` to 0 for any free port"),
    ),
    Command(
        *(
            "export done logs --to tensorboard --name mine",
            2,
        ),
        *("got it for tensorboard", "--name is for --to optuna", "leave it out"),
    ),
    Command(
        *("run toy --out new --storage foo://x", 2),
        *(
            "got 'foo://x'",
            "a folder, or a URL of a file system that fsspec knows",
            "use a place such as /mnt/shared/run",
        ),
    ),
    Command(
        *(
            "export done logs --to tensorbord",
            2,
        ),
        *("got 'tensorbord'", "one of csv, tensorboard, mlflow, wandb, optuna", "--to"),
    ),
    # mopbt compare, and its files
    Command(
        *("compare nothing.toml", 2),
        *("nothing.toml;", "there is no file", "pass the file of an experiment"),
    ),
    Command(
        *(
            "compare notes.txt",
            2,
        ),
        *("notes.txt", "is not valid TOML", "strings need quotes"),
    ),
    Command(
        *("compare experiment.toml", 2),
        *("has no 'seed'", "it has name, tasks, algorithms", "did you mean 'seeds'?"),
        edit("experiment.toml", "seeds =", "seed ="),
    ),
    Command(
        *(
            "compare experiment.toml",
            2,
        ),
        *("got 'toy'", "a list of strings, at least one", "experiment.toml: `tasks`"),
        edit("experiment.toml", '["toy"]', '"toy"'),
    ),
    Command(
        *(
            "compare experiment.toml",
            2,
        ),
        *("got 'toi'", "must be one of adult-fairness", "did you mean 'toy'?"),
        edit("experiment.toml", '["toy"]', '["toi"]'),
    ),
    Command(
        *("compare experiment.toml", 2),
        *("got 'mo-pbt'", "must be a table with a name", 'such as { name = "mo-pbt" }'),
        edit("experiment.toml", '{ name = "mo-pbt", population = 4 }', '"mo-pbt"'),
    ),
    Command(
        *("compare experiment.toml", 2),
        *("no option 'populaton'", "it has asynchronous", "did you mean 'population'?"),
        edit("experiment.toml", "population", "populaton"),
    ),
    Command(
        *("compare experiment.toml", 2),
        *("got 'frontiers'", "one of 'progress', 'fronts'", "did you mean 'fronts'?"),
        edit("experiment.toml", "seeds = 1", 'seeds = 1\nfigures = ["frontiers"]'),
    ),
    Command(
        *(
            "compare experiment.toml --jobs 0",
            2,
        ),
        *("got 0", "a whole number of at least 1", "`jobs`"),
    ),
    Command(
        *("compare experiment.toml --out folder", 1),
        *("(it has 'notes.txt')", "is not a comparison and not empty", "use another directory"),
    ),
    Command(
        *("compare experiment.toml --out nowhere --only-report", 1),
        *(
            "nowhere is not",
            "it has no experiment.toml",
            "`mopbt compare EXPERIMENT --out nowhere` creates one",
        ),
    ),
    # run.toml and the journal
    Command(
        *("show done", 1),
        *("has format 2", "reads format 1", "install the version that wrote it"),
        edit("done/run.toml", "format = 1", "format = 2"),
    ),
    Command(
        *("resume done", 1),
        *("done/run.toml", "cannot be read", "restore the run.toml"),
        write("done/run.toml", "seed: 0\n"),
    ),
    Command(
        *("resume done", 1),
        *("it has 'sead'", "knows format, mopbt, created, seed", "restore the run.toml"),
        edit("done/run.toml", "seed =", "sead ="),
    ),
    Command(
        *("resume done", 1),
        *("got 'zero'", "a whole number of at least 0", "restore the run.toml"),
        edit("done/run.toml", "seed = 0", 'seed = "zero"'),
    ),
    Command(
        *("show done", 1),
        *("'steps' is missing", "does not hold the settings of a run", "restore the run.toml"),
        edit("done/run.toml", "steps = 6\n", ""),
    ),
    Command(
        *(
            "resume done",
            2,
        ),
        *("got 'lokal'", "must be one of 'auto'", "did you mean 'local'?"),
        edit("done/run.toml", '[engine]\nname = "local"', '[engine]\nname = "lokal"'),
    ),
    Command(
        *("resume done", 1),
        *(
            "line 2 of HERE/done/journal.jsonl",
            "its checksum is wrong",
            "`mopbt resume HERE/done --repair`",
        ),
        journal(lambda lines: [lines[0], lines[1].replace(b"near", b"nera"), *lines[2:]]),
    ),
    Command(
        *("show done", 1),
        *(
            "HERE/done/journal.jsonl",
            "none of its 2 lines has a valid checksum",
            "restore the file that the run wrote",
        ),
        write("done/journal.jsonl", '{"step": 1, "loss": 0.3}\n' * 3),
    ),
    Command(
        *("resume done", 1),
        *(
            "line 4 of",
            "(2 jobs so far)",
            "restore the original file",
        ),
        journal(lambda lines: lines[:3] + lines[2:]),
    ),
    Command(
        *("show done", 1),
        *(
            "line 3 of",
            "(1 jobs so far)",
            "restore the original file",
        ),
        journal(lambda lines: lines[:2] + lines[3:]),
    ),
    Command(
        *("resume done", 1),
        *(
            "(KeyError: 'objectives')",
            "cannot be read by mopbt",
            "install the version that wrote it",
        ),
        journal(
            lambda lines: [lines[0], line_of(b'{"reports":[{"job":0,"minutes":3}]}'), lines[1]]
        ),
    ),
]


def mopbt_says(command, capsys, monkeypatch):
    """Run a command in this process and return its exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["mopbt", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("row", ON_THE_COMMAND_LINE, ids=lambda row: row.command)
def test_a_mistake_on_the_command_line(row, here, capsys, monkeypatch):
    opened = row.before(here)
    with closing(opened) if hasattr(opened, "close") else nullcontext():
        before = everything(here)
        code, printed = mopbt_says(row.command, capsys, monkeypatch)
        again, traced = mopbt_says(f"{row.command} --traceback", capsys, monkeypatch)
        assert everything(here) == before, "nothing may be begun or changed"
    message = printed.err.removesuffix("\n")
    assert (code, printed.out) == (row.code, "")
    assert message.startswith("mopbt: ")
    check_message(message.removeprefix("mopbt: "), row, here)
    assert again == code
    assert (
        traced.err.startswith("Traceback (most recent call last):\n")
        or "\n\nTraceback" in traced.err
    )
    assert traced.err.endswith(printed.err)


BEFORE_ANY_COMMAND = [
    ("fly", "mopbt", "fly"),
    ("rum toy", "mopbt", "'run'"),
    ("run", "mopbt run", "'TASK'"),
    ("run toy --sed 3", "mopbt run", "--seed"),
    ("run toy --seed one", "mopbt run", "--seed"),
    ("lineage done best", "mopbt lineage", "MODEL"),
    ("dashboard . --port 99999", "mopbt dashboard", "--port"),
    ("export done logs", "mopbt export", "--to"),
]


@pytest.mark.parametrize(
    ("command", "whose", "part"), BEFORE_ANY_COMMAND, ids=[row[0] for row in BEFORE_ANY_COMMAND]
)
def test_what_the_command_line_cannot_parse(command, whose, part, here, capsys, monkeypatch):
    before = everything(here)
    code, printed = mopbt_says(command, capsys, monkeypatch)
    assert code == 2
    assert printed.err.startswith(f"Usage: {whose} ")
    assert f"Try '{whose} --help' for help." in printed.err
    assert part in printed.err.partition("Error: ")[2]
    assert "Traceback" not in printed.err
    assert everything(here) == before


# What happens after the mistake.


def test_the_same_call_goes_on_after_a_training_function_was_mended(here):
    def wrong(m):
        train(m)
        m.report(up=0.5, dwn=0.5)

    said = SAID | QUIETLY | {"out": "new", "population": 2, "name": "mine"}
    with pytest.raises(MissingScore):
        mopbt.run(wrong, **said)
    assert len(mopbt.run(train, **said)) == 8


def test_a_directory_in_which_nothing_was_reported_begins_anew(here):
    said = SAID | QUIETLY | {"out": "new", "population": 2}
    with pytest.raises(MissingScore):
        mopbt.run(train, constraints=["upp >= 1"], **said)
    assert len(mopbt.run(train, constraints=["up >= 0"], **said)) == 8
    with pytest.raises(
        RunMismatch,
        match=r"constraints is \['up >= 1'\], it was \['up >= 0'\]; use the same settings, or another directory$",
    ):
        mopbt.run(train, constraints=["up >= 1"], **said)


def test_a_torn_last_line_is_no_mistake(here):
    file = here / "done" / "journal.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert len(Results.open("done")) == 11
    assert file.read_bytes() == whole[:-9]
    assert len(mopbt.run(ToyTask(steps=6), out="done", population=4, **QUIETLY)) == 12


def test_a_checkpoint_that_is_damaged_is_said_and_the_others_load(here):
    spoil_checkpoint(here)
    results = Results.open("done")
    spoilt = results.front().best("near")
    with pytest.raises(
        CorruptCheckpoint, match=rf"mopbt replay RUN {spoilt.job} --export model.safetensors`$"
    ):
        results.load(spoilt)
    assert all(results.load(point) for point in results.front() if point.job != spoilt.job)


def test_a_locked_run_is_said_in_a_program_too(here):
    with (
        closing(DirectoryStore(here / "ours")),
        pytest.raises(RunLocked, match=f"is locked by process {os.getpid()} on "),
    ):
        mopbt.run(train, out="ours", population=2, **SAID, **QUIETLY)


@pytest.mark.parametrize("error", [CorruptJournal, IncompatibleRun])
def test_errors_of_journals_are_of_the_tree(error):
    assert issubclass(error, StoreError)


def test_there_are_rows_enough_and_no_two_alike():
    rows = [row.did for row in (*IN_PROGRAMS, *WITH_TORCH)] + [
        (row.command, row.got, row.remedy) for row in ON_THE_COMMAND_LINE
    ]
    assert len(rows) == len(set(rows)) >= 120
