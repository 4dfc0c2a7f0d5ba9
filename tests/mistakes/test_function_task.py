"""Mistakes in training functions, which show in the first interval."""

import pytest

import mopbt
from mistakes.helpers import ARGUMENTS, QUIET, Mistake, check_mistake, train
from mopbt import Budget
from mopbt.errors import (
    MissingScore,
    TaskError,
    TaskFailed,
    UnknownHyperparameter,
    UnreadHyperparameter,
)


def training(body):
    """Return a run in memory of a training function with these lines."""
    lines = body.strip().splitlines()
    source = "\n".join(
        ["def train(m):", "    state = {'x': 0.0}", *(f"    {line}" for line in lines)]
    )

    def go(here):
        scope = {}
        exec(source, scope)
        mopbt.run(scope["train"], out=None, **ARGUMENTS, **QUIET)

    return go


LOOP = "for _ in m.steps(): state['x'] += m.hp['rate']"
GOOD = f"m.track(state=state)\n{LOOP}\n"


def nan_front(budget=None):
    said = ARGUMENTS | {"objectives": {"up": "max"}}

    def diverging(m):
        train(m)
        m.report(up=float("nan"))

    return mopbt.run(diverging, out=None, population=2, budget=budget, **said, **QUIET).front()


MISTAKES = [
    Mistake(
        *("a misspelt score", training(GOOD + "m.report(up=1.0, dwn=2.0)"), MissingScore),
        *("it measured 'up', 'dwn'", "the objective 'down'", "pass it to `report`"),
    ),
    Mistake(
        *(
            "scores as a dict, as elsewhere",
            training(GOOD + "m.report({'up': 1.0, 'down': 2.0})"),
            TaskError,
        ),
        *("got dict", "metrics by name", "report(**metrics)"),
    ),
    Mistake(
        *(
            "scores that are returned, as elsewhere",
            training(GOOD + "return {'up': 1.0, 'down': 2.0}"),
            TaskError,
        ),
        *(
            "the function's return value is ignored",
            "never called `report(...)`",
            "call it after the last step",
        ),
    ),
    Mistake(
        *(
            "scores that are no numbers",
            training(GOOD + "m.report(up=[0.1, 0.2], down=2.0)"),
            TaskError,
        ),
        *("got [0.1, 0.2]", "must be a number", "such as the mean of an array"),
    ),
    Mistake(
        *(
            "a model without a name",
            training(f"m.track(state)\n{LOOP}\nm.report(up=1.0, down=2.0)"),
            TaskError,
        ),
        *("got dict without a name", "objects by name", "as in track(model=model)"),
    ),
    Mistake(
        *(
            "a plain number that is tracked",
            training(f"m.track(x=0.0)\n{LOOP}\nm.report(up=1.0, down=2.0)"),
            TaskError,
        ),
        *("got float", "numpy arrays and dicts", "put plain values into a dict"),
    ),
    Mistake(
        *("nothing that is tracked", training(f"{LOOP}\nm.report(up=1.0, down=2.0)"), TaskError),
        *(
            "never called `track(...)`",
            "its training would be lost",
            "call track(model=..., optimizer=...)",
        ),
    ),
    Mistake(
        *(
            "a loop of one's own",
            training(
                "m.track(state=state)\nstate['x'] += m.hp['rate']\nm.report(up=1.0, down=2.0)"
            ),
            TaskError,
        ),
        *("never iterated over `steps()`", "loop over it once", "for step in m.steps(): ..."),
    ),
    Mistake(
        *(
            "stopping early",
            training("m.track(state=state)\nfor _ in m.steps(): break\nm.report(up=1.0, down=2.0)"),
            TaskError,
        ),
        *("at step 0", "the interval ends at 1", "run all steps"),
    ),
    Mistake(
        *("a hyperparameter that is not tuned", training("m.hp['rat']"), UnknownHyperparameter),
        *(
            "the unknown hyperparameter 'rat'",
            "the space has 'rate'",
            "add it there, or correct the name",
        ),
    ),
    Mistake(
        *("a hyperparameter as an attribute", training("m.hp.rate"), TaskFailed),
        *("not .rate", "there are rate", "as in hp['rate']"),
    ),
    Mistake(
        *(
            "a hyperparameter that is never read",
            training(GOOD.replace("m.hp['rate']", "1") + "m.report(up=1, down=1)"),
            UnreadHyperparameter,
        ),
        *(
            "never read 'rate'",
            "tuning it would change nothing",
            "use it in training, or remove it from the space",
        ),
    ),
    Mistake(
        *("binding what is no optimizer", training("m.bind(state, lr='rate')"), TaskError),
        *("got dict", "an optimizer with `param_groups`", "read `hp` directly"),
    ),
    Mistake(
        *("scores that are always NaN", lambda here: nan_front(), TaskFailed),
        *("'up' is nan in the last one", "finite metrics", "fix the task"),
    ),
    Mistake(
        *(
            "scores that are NaN so far, and then a choice",
            lambda here: nan_front(Budget(jobs=4)).knee(),
            ValueError,
        ),
        *(
            "the front is empty",
            "no interval has reported finite metrics yet",
            "look at `results.records()`",
        ),
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_in_a_program(row, here):
    check_mistake(row, here)
