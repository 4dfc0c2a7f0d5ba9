"""Mistakes in objectives, constraints and reference points."""

import pytest

from mistakes.helpers import Mistake, check_mistake, running

MISTAKES = [
    Mistake(
        *(
            "a direction as it is called elsewhere",
            running(objectives={"up": "maximum", "down": "min"}),
            ValueError,
        ),
        *("got 'maximum'", "'max' or 'min'", "did you mean 'max'?"),
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
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)
