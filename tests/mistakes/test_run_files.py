"""Damaged or foreign files of a run."""

import zlib

import pytest

import mopbt
from mistakes.helpers import QUIET, Command, check_command, edit
from mopbt import Results
from mopbt.errors import CorruptJournal, IncompatibleRun, StoreError
from mopbt.tasks.toy import ToyTask


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


COMMANDS = [
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
        *("it has 'sead'", "knows format, mopbt, run_id, created, seed", "restore the run.toml"),
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
        *("resume done", 2),
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


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.command)
def test_a_mistake_on_the_command_line(row, here, capsys, monkeypatch):
    check_command(row, here, capsys, monkeypatch)


def test_an_incomplete_last_line_is_no_mistake(here):
    file = here / "done" / "journal.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert len(Results.open("done")) == 11
    assert file.read_bytes() == whole[:-9]
    assert len(mopbt.run(ToyTask(steps=6), out="done", population=4, **QUIET)) == 12


@pytest.mark.parametrize("error", [CorruptJournal, IncompatibleRun])
def test_errors_of_journals_are_of_the_tree(error):
    assert issubclass(error, StoreError)
