"""Mistakes in the use of the results of a run."""

import pytest

import mopbt
from mistakes.helpers import ARGUMENTS, Mistake, check_mistake, front, train
from mopbt import Results
from mopbt.errors import StoreError, TaskError


def function_task():
    return mopbt.FunctionTask(train, **ARGUMENTS)


MISTAKES = [
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
            lambda here: Results.open("done").export(front(here)[0], "folder"),
            ValueError,
        ),
        *("got the directory folder", "needs a file name", "such as folder/model.safetensors"),
    ),
    Mistake(
        *(
            "a replay without the task",
            lambda here: Results.open("done").replay(front(here)[0]),
            TaskError,
        ),
        *("a replay", "needs the task", "results.replay(point, task)"),
    ),
    Mistake(
        *(
            "a replay on another space",
            lambda here: Results.open("done").replay(front(here)[0], function_task()),
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
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)
