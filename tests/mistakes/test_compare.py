"""Mistakes in comparisons and their files."""

import pytest

from mistakes.helpers import EXPERIMENT, Command, Mistake, check_command, check_mistake, edit
from mopbt.compare import compare


def experiment(here, more):
    (here.parent / "other.toml").write_text(EXPERIMENT + more)
    return here.parent / "other.toml"


MISTAKES = [
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

COMMANDS = [
    Command(
        *("compare nothing.toml", 2),
        *("nothing.toml;", "there is no file", "pass the file of an experiment"),
    ),
    Command(
        *("compare notes.txt", 2),
        *("notes.txt", "is not valid TOML", "strings need quotes"),
    ),
    Command(
        *("compare experiment.toml", 2),
        *("has no 'seed'", "it has name, tasks, algorithms", "did you mean 'seeds'?"),
        edit("experiment.toml", "seeds =", "seed ="),
    ),
    Command(
        *("compare experiment.toml", 2),
        *("got 'toy'", "a list of strings, at least one", "experiment.toml: `tasks`"),
        edit("experiment.toml", '["toy"]', '"toy"'),
    ),
    Command(
        *("compare experiment.toml", 2),
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
        *("compare experiment.toml --jobs 0", 2),
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
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.command)
def test_a_mistake_on_the_command_line(row, here, capsys, monkeypatch):
    check_command(row, here, capsys, monkeypatch)
