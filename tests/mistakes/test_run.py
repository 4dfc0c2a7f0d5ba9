"""Mistakes in calls of `run`."""

import os
from contextlib import closing

import numpy as np
import pytest

import mopbt
from mistakes.helpers import (
    ARGUMENTS,
    LEFT_OUT,
    QUIET,
    SPACE,
    Mistake,
    check_mistake,
    running,
    train,
)
from mopbt import Budget
from mopbt.errors import MissingScore, RunLocked, RunMismatch
from mopbt.stores.directory import DirectoryStore
from mopbt.tasks.toy import ToyTask

MISTAKES = [
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
        *("seed is 1", "it was 0", "use the same settings, or name another `out`"),
    ),
    Mistake(
        *("a run with another task", running(out="done"), RunMismatch),
        *("task is 'train'", "it was 'toy'", "use the same settings, or name another `out`"),
    ),
    Mistake(
        *("storage without a journal", running(out=None, storage="elsewhere"), ValueError),
        *("got 'HERE/elsewhere' and None", "needs `out` as well", "give `out` a directory"),
    ),
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
        *("dict object", "it has no method `init`", "see docs/how-to/task-object.md"),
    ),
    Mistake(
        *(
            "a space for a task that has one",
            lambda here: mopbt.run(ToyTask(), out="new", space=SPACE),
            TypeError,
        ),
        *("got a ToyTask object", "only training functions take", "leave it out, or set it there"),
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)


def test_the_same_call_resumes_after_a_training_function_was_fixed(here):
    def wrong(m):
        train(m)
        m.report(up=0.5, dwn=0.5)

    said = ARGUMENTS | QUIET | {"out": "new", "population": 2, "name": "mine"}
    with pytest.raises(MissingScore):
        mopbt.run(wrong, **said)
    assert len(mopbt.run(train, **said)) == 8


def test_a_run_without_reports_restarts(here):
    said = ARGUMENTS | QUIET | {"out": "new", "population": 2}
    with pytest.raises(MissingScore):
        mopbt.run(train, constraints=["upp >= 1"], **said)
    assert len(mopbt.run(train, constraints=["up >= 0"], **said)) == 8
    with pytest.raises(
        RunMismatch,
        match=r"constraints is \['up >= 1'\], it was \['up >= 0'\]; use the same settings, "
        r"or name another `out` \(--out\) for a new run$",
    ):
        mopbt.run(train, constraints=["up >= 1"], **said)


def test_a_locked_run_is_an_error_in_a_program_too(here):
    with (
        closing(DirectoryStore(here / "ours")),
        pytest.raises(RunLocked, match=f"is locked by process {os.getpid()} on "),
    ):
        mopbt.run(train, out="ours", population=2, **ARGUMENTS, **QUIET)
