"""Mistakes in the command `mopbt run`."""

import pytest

from mistakes.helpers import Command, check_command
from mopbt.stores.directory import DirectoryStore

COMMANDS = [
    Command(
        *("run toi", 2),
        *("got 'toi'", "TASK must be one of adult-fairness", "did you mean 'toy'?"),
    ),
    Command(
        *("run nothing.py:task", 2),
        *("nothing.py;", "there is no file", "name an existing one"),
    ),
    Command(
        *("run nothing:task", 2),
        *("'nothing'", "there is no module", "as in nothing.py:task"),
    ),
    Command(
        *("run function.py:trian", 2),
        *("no 'trian'", "it has train", "name one of them"),
    ),
    Command(
        *("run toy --track tensorbord=logs", 2),
        *(
            "got 'tensorbord=logs'",
            "one of tensorboard, mlflow, wandb",
            "did you mean 'tensorboard'",
        ),
    ),
    Command(
        *("run function.py:train", 2),
        *(
            "function.py:train is a function",
            "make it a task",
            "@mopbt.task(space=..., objectives=..., steps=...)",
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
        *("run toy --algorithm mopbt", 2),
        *("got 'mopbt'", "must be one of mo-pbt", "did you mean 'mo-pbt'?"),
    ),
    Command(
        *("run toy -o fracton=0.1", 2),
        *("no option 'fracton'", "it has asynchronous", "did you mean 'fraction'?"),
    ),
    Command(
        *("run toy -o fraction:0.1", 2),
        *("got 'fraction:0.1'", "must read KEY=VALUE", "as in fraction=0.1"),
    ),
    Command(
        *("run toy --engine simulatd", 2),
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
        *("run toy --cost 2", 2),
        *(
            "got it for 'auto'",
            "is for the simulated engine",
            "leave it out, or use engine='simulated'",
        ),
    ),
    Command(
        *("run toy --scale small", 2),
        *("got the scale 'small'", "comes in one size only", "leave it out"),
    ),
    Command(
        *("run adult-fairness --scale smal", 2),
        *(
            "got 'smal'",
            "one of 'paper', 'medium', 'small', 'small-1000', 'smoke'",
            "did you mean 'small'?",
        ),
    ),
    Command(
        *("run celeba-fairness --scale smoke", 1),
        *("'celeba' not found", "into HERE/folder", "set MOPBT_DATA to another folder"),
    ),
    Command(
        *("run toy --budget-jobs -3", 2),
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
        *("run toy --out done --population 4", 1),
        *("has a journal", "but no run.toml", "restore it, or use another directory"),
        lambda here: (here / "done" / "run.toml").unlink(),
    ),
]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.command)
def test_a_mistake_on_the_command_line(row, here, capsys, monkeypatch):
    check_command(row, here, capsys, monkeypatch)
