"""What the tests of mistakes share.

Each row of a table is a mistake. Its last three columns are parts of the message: what was
received, what is allowed, and what to do. Where the allowed values are all there is to say, the
last column is the name of what to change. The parts do not overlap, so a message that lacks one of
them fails.
"""

import shlex
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mopbt
from mopbt import Float, Results
from mopbt.cli import main

SPACE = {"rate": Float(0.1, 1.0)}
ARGUMENTS = {"space": SPACE, "objectives": {"up": "max", "down": "min"}, "steps": 4}
QUIET = {"engine": "local", "progress": False}

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
    lambda: torch.nn.Linear(5, 1),
    loss=lambda model, batch, hp: model(batch[0]).mean(),
    data=Batches(x, y, batch_size=4),
    space={"lr": Float(1e-4, 1e-1)},
    objectives={"loss": "min"},
    steps=2,
    evaluate_model=lambda model: {"loss": 0.0},
)
""",
}


def train(m):
    state = {"x": 0.0}
    m.track(state=state)
    for _ in m.steps():
        state["x"] += m.hp["rate"]
    m.report(up=state["x"], down=state["x"] ** 2)


def front(here):
    return Results.open(here / "done").front()


def everything(place):
    """Return all files and directories of a place, with their bytes."""
    return {
        path.relative_to(place): path.read_bytes() if path.is_file() else None
        for path in place.rglob("*")
    }


def check_message(message, row, place):
    """Check that a message says what was received, what is allowed and what to do."""
    said = message.replace(str(place), "HERE")
    facts = {
        "what was received": row.got,
        "what is allowed": row.allowed,
        "what to do": row.remedy,
    }
    spans = {}
    for what, part in facts.items():
        assert part, f"the row must say where the message has {what}"
        assert part in said, f"{said}\ndoes not say {what}: {part!r}"
        begin = said.index(part)
        spans[what] = range(begin, begin + len(part))
    for a, b in (
        ("what was received", "what is allowed"),
        ("what is allowed", "what to do"),
        ("what was received", "what to do"),
    ):
        assert not set(spans[a]) & set(spans[b]), (
            f"{facts[a]!r} and {facts[b]!r} are the same part of the message"
        )


@dataclass(frozen=True)
class Mistake:
    """A mistake in a program."""

    did: str
    do: Callable[[Path], Any]
    error: type[Exception]
    got: str
    allowed: str
    remedy: str


def error_of(row, here):
    """Make a mistake in a program and return the error; no file may change."""
    before = everything(here)
    with pytest.raises(row.error) as caught:
        row.do(here)
    assert everything(here) == before, "no file may change"
    return caught.value


def check_mistake(row, here):
    """Make a mistake in a program and check the type and the message of its error."""
    error = error_of(row, here)
    assert type(error) is row.error
    check_message(str(error), row, here)


@dataclass(frozen=True)
class Command:
    """A mistake on the command line, with an optional change of the files before it."""

    command: str
    code: int
    got: str
    allowed: str
    remedy: str
    # What it returns is closed afterwards.
    before: Callable[[Path], Any] = lambda here: None


def mopbt_says(command, capsys, monkeypatch):
    """Run a command in this process and return its exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["mopbt", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


def without_notes(printed):
    """Remove the lines in which a command says what it is doing before its message."""
    notes = ("loading the data of ", "checking ")
    lines = printed.splitlines(keepends=True)
    while lines and lines[0].startswith(notes):
        lines.pop(0)
    return "".join(lines)


def check_command(row, here, capsys, monkeypatch):
    """Run a mistaken command, also with --traceback, and check its message and exit code."""
    opened = row.before(here)
    with closing(opened) if hasattr(opened, "close") else nullcontext():
        before = everything(here)
        code, printed = mopbt_says(row.command, capsys, monkeypatch)
        again, traced = mopbt_says(f"{row.command} --traceback", capsys, monkeypatch)
        assert everything(here) == before, "no file may change"
    message = without_notes(printed.err).removesuffix("\n")
    assert (code, printed.out) == (row.code, "")
    assert message.startswith("mopbt: ")
    check_message(message.removeprefix("mopbt: "), row, here)
    assert again == code
    shown = without_notes(traced.err)
    assert shown.startswith("Traceback (most recent call last):\n") or "\n\nTraceback" in shown
    assert shown.endswith(message + "\n")


LEFT_OUT = object()


def running(**said):
    """Return a call of `run` for a training function with other arguments than it should have."""
    wanted = {
        key: value
        for key, value in ({"out": "new"} | ARGUMENTS | QUIET | said).items()
        if value is not LEFT_OUT
    }
    return lambda here: mopbt.run(train, **wanted)


def edit(name, old, new):
    """Return what changes a text in a file."""

    def change(here):
        text = (here / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (here / name).write_text(text.replace(old, new))

    return change
