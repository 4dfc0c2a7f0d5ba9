"""The recipes of CONTRIBUTING.md work as printed."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import mopbt
from mopbt.tasks.toy import ToyTask

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"### (Add [^\n]*)\n.*?```python\n(.*?)```", TEXT, re.DOTALL))
LINES = 30


def checks_of(names):
    """Return the tests that a recipe defines, by name."""
    found = {name: value for name, value in names.items() if name.startswith("test")}
    for name, value in names.items():
        if name.startswith("Test"):
            methods = [method for method in dir(value) if method.startswith("test")]
            found |= {f"{name}.{method}": getattr(value(), method) for method in methods}
    return found


def test_there_is_a_recipe_for_everything_that_can_be_added():
    assert list(RECIPES) == ["Add an algorithm", "Add an engine", "Add a task", "Add a metric"]
    assert all(len(program.splitlines()) <= LINES for program in RECIPES.values())


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Return a function that executes recipes as one module, and returns its names."""

    def execute(*recipes):
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "followed_recipe.py").write_text("\n".join(RECIPES[r] for r in recipes))
        monkeypatch.delitem(sys.modules, "followed_recipe", raising=False)
        return vars(importlib.import_module("followed_recipe"))

    yield execute
    sys.modules.pop("followed_recipe", None)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_passes_its_own_checks(recipe, execute):
    checks = checks_of(execute(recipe))
    assert checks
    for check in checks.values():
        check()


def test_what_the_recipes_add_trains_a_front(execute):
    names = execute(*RECIPES)
    results = mopbt.run(
        names["Descent"](),
        algorithm=names["SumPBT"](population=4),
        engine=names["LastFirst"](),
        out=None,
        progress=False,
    )
    assert (results.outcome, len(results)) == ("done", 40)
    assert all(np.isfinite(list(point.scores.values())).all() for point in results.front())
    usual = mopbt.run(
        ToyTask(), algorithm=mopbt.MOPBT(population=4), out=None, progress=False, engine="local"
    )
    own = mopbt.run(
        ToyTask(),
        algorithm=mopbt.MOPBT(population=4),
        engine=names["LastFirst"](),
        out=None,
        progress=False,
    )
    assert [p.scores for p in own.front()] == [p.scores for p in usual.front()]
