"""Mistakes in search spaces."""

import numpy as np
import pytest

from mistakes.helpers import SPACE, Mistake, check_mistake, running
from mopbt import Categorical, Float, Grid, Int, Ordinal, Space

MISTAKES = [
    Mistake(
        *("a range as a tuple, as elsewhere", running(space={"rate": (0.1, 1)}), ValueError),
        *("got (0.1, 1)", "must be a domain such as Float", "write Float(0.1, 1)"),
    ),
    Mistake(
        *("choices as a list, as elsewhere", running(space={"rate": [16, 32, 64]}), ValueError),
        *("got [16, 32, 64]", "must be a domain", "write Ordinal([...])"),
    ),
    Mistake(
        *("a dict of constants", running(space={"rate": 0.1}), ValueError),
        *("got 0.1", "must be a domain", "leave it out here"),
    ),
    Mistake(
        *("a domain's class", running(space={"rate": Float}), ValueError),
        *("got <class 'mopbt.space.Float'>", "must be a domain", "as in Float(...)"),
    ),
    Mistake(
        *("a space without names", running(space=[Float(0, 1)]), TypeError),
        *(
            "got [Float(lo=0, hi=1, log=False)]",
            "a mapping of names to domains",
            "such as {'lr': Float(1e-5, 0.1, log=True)}",
        ),
    ),
    Mistake(
        *("the ends in the wrong order", lambda here: Float(0.1, 1e-5), ValueError),
        *("got 0.1 and 1e-05", "`lo` must be below `hi`", "put the smaller end first"),
    ),
    Mistake(
        *("0 on a logarithmic scale", lambda here: Float(0, 0.1, log=True), ValueError),
        *("got 0;", "must be above 0 on a logarithmic scale", "use the smallest value above 0"),
    ),
    Mistake(
        *("a number as a text, as YAML has 1e-5", lambda here: Float("1e-5", 0.1), ValueError),
        *("got '1e-5'", "must be a finite number", "as in float(...)"),
    ),
    Mistake(
        *("a number of numpy's", lambda here: Float(np.float32(0.5), 1.0), ValueError),
        *("got np.float32(0.5)", "must be a finite number", "as in float(...)"),
    ),
    Mistake(
        *("a step as the third argument", lambda here: Float(0, 1, 0.1), ValueError),
        *("got 0.1", "True or False", "Float: `log`"),
    ),
    Mistake(
        *("real ends of whole numbers", lambda here: Int(1, 8.0), ValueError),
        *("got 8.0", "must be whole numbers", "use Float"),
    ),
    Mistake(
        *("a step where the number of values belongs", lambda here: Grid(0, 1, 0.1), ValueError),
        *("got 0.1", "a whole number of at least 2", "Grid: `n`"),
    ),
    Mistake(
        *("one category as a text", lambda here: Categorical("adam"), ValueError),
        *("got 'adam'", "must be a list", "such as ['a', 'b']"),
    ),
    Mistake(
        *("None among the values", lambda here: Categorical([None, 0.1]), ValueError),
        *("got None", "finite numbers, strings or booleans", "use a string"),
    ),
    Mistake(
        *("a single value", lambda here: Ordinal([64]), ValueError),
        *("got [64]", "at least two values", "leave out what is not tuned"),
    ),
    Mistake(
        *("a value by a misspelt name", lambda here: Space(SPACE).encode({"rte": 0.5}), ValueError),
        *("unknown 'rte'", "must name exactly 'rate'", "did you mean 'rate'?"),
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)
