"""Mistakes in the commands that read or resume a run."""

from pathlib import Path

import pytest

from mistakes.helpers import Command, check_command, front
from mopbt import Results
from mopbt.errors import CorruptCheckpoint


def spoil_checkpoint(here):
    file = Results.open(here / "done").checkpoint_file(front(here).best("near"))
    Path(file).write_bytes(Path(file).read_bytes()[:-1])


def remove_checkpoint(here):
    Path(Results.open(here / "done").checkpoint_file(front(here).best("near"))).unlink()


COMMANDS = [
    Command(
        *("resume dune", 1),
        *("dune", "is not a run: it does not exist", "`mopbt list DIR`"),
    ),
    Command(
        *("resume folder", 1),
        *("folder is", "it has no run.toml", "`mopbt list DIR`"),
    ),
    Command(
        *("resume ours", 2),
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
    Command(
        *("pick done --where near=0.5", 2),
        *("got 'near=0.5'", "(relations >=, >, <=, <)", "write >= or <="),
    ),
    Command(
        *("pick done --best naer", 2),
        *("got 'naer'", "('near', 'far')", "did you mean 'near'?"),
    ),
    Command(
        *("pick done --weight near:2", 2),
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
        *("replay ours 0", 2),
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
        *("dashboard nowhere", 2),
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
        *("export done logs --to tensorboard --name mine", 2),
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
        *("export done logs --to tensorbord", 2),
        *("got 'tensorbord'", "one of csv, tensorboard, mlflow, wandb, optuna", "--to"),
    ),
]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.command)
def test_a_mistake_on_the_command_line(row, here, capsys, monkeypatch):
    check_command(row, here, capsys, monkeypatch)


def test_a_checkpoint_that_is_damaged_is_an_error_and_the_others_load(here):
    spoil_checkpoint(here)
    results = Results.open("done")
    spoilt = results.front().best("near")
    with pytest.raises(
        CorruptCheckpoint, match=rf"mopbt replay RUN {spoilt.model} --export model.safetensors`$"
    ):
        results.load(spoilt)
    assert all(results.load(point) for point in results.front() if point.model != spoilt.model)
