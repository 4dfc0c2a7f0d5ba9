"""Mistakes in the choice of an engine."""

import threading

import pytest

import mopbt
from mistakes.helpers import ARGUMENTS, Mistake, check_mistake, running
from mopbt import LocalEngine, PoolEngine, SimulatedEngine
from mopbt.errors import CannotStack, WorkerFailed


def unsendable():
    lock = threading.Lock()

    def train(m):
        with lock:
            pass

    return train


MISTAKES = [
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
            lambda here: mopbt.run(
                unsendable(), out=None, **ARGUMENTS, engine="pool", progress=False
            ),
            WorkerFailed,
        ),
        *(
            "TypeError: cannot pickle",
            "create such objects in the training function",
            "or use engine='local'",
        ),
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)
