"""The place where the mistakes are made."""

import shutil
import signal
import sys

import pytest

import mopbt
from mistakes.helpers import ARGUMENTS, FILES, QUIET, train
from mopbt.tasks.toy import ToyTask


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    place = tmp_path_factory.mktemp("mistakes")
    said = {"out": place / "done", "population": 4, **QUIET}
    mopbt.run(ToyTask(steps=6), **said)
    toml = place / "done" / "run.toml"  # as `mopbt run toy` would have left it
    toml.write_text(
        toml.read_text().replace(
            'name = "toy"', 'name = "toy"\ntask_reference = "mopbt.tasks.toy:ToyTask"'
        )
    )
    mopbt.run(train, out=place / "ours", population=2, **ARGUMENTS, **QUIET)
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.fixture
def here(template, tmp_path, monkeypatch):
    """Change to a copy of the template, and undo what commands do to their process."""
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
