"""Mistakes in the choice of an algorithm and its options."""

import pytest

from mistakes.helpers import Mistake, check_mistake, running
from mopbt import MOPBT
from mopbt.algorithms import MOASHA, PBT

MISTAKES = [
    Mistake(
        *("an algorithm's misspelt name", running(algorithm="mopbt"), ValueError),
        *("got 'mopbt'", "must be one of mo-pbt, random-search", "did you mean 'mo-pbt'?"),
    ),
    Mistake(
        *("an algorithm's class", running(algorithm=MOPBT), TypeError),
        *("got <class 'mopbt.algorithms.MOPBT'>", "or the name of one", "pass MOPBT()"),
    ),
    Mistake(
        *("a share in per cent", lambda here: MOPBT(fraction=25), ValueError),
        *("got 25", "in (0, 0.5]", "`fraction`"),
    ),
    Mistake(
        *("an option's value by another name", lambda here: MOPBT(explore="locally"), ValueError),
        *("got 'locally'", "one of 'local', 'random'", "did you mean 'local'?"),
    ),
    Mistake(
        *("halving by one", lambda here: MOASHA(eta=1), ValueError),
        *("got 1", "a whole number of at least 2", "`eta`"),
    ),
    Mistake(
        *("a population of what has none", running(algorithm="mo-asha", population=8), ValueError),
        *("got 8", "its own options: eta, grace", "leave it out"),
    ),
    Mistake(
        *("one objective that is none", running(algorithm=PBT(objective="dwn")), ValueError),
        *("got 'dwn'", "one of 'up', 'down' or a number from 0 to 1", "did you mean 'down'?"),
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)
