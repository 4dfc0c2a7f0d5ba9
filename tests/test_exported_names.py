"""What users import is what is promised, no more and no less."""

import re
from pathlib import Path

import pytest

import mopbt
from mopbt import problem
from mopbt.engines import base


def test_all_names_exist_and_nothing_else_is_public():
    assert len(set(mopbt.__all__)) == len(mopbt.__all__) <= 45
    submodules = {name for name, value in vars(mopbt).items() if type(value).__name__ == "module"}
    visible = {name for name in vars(mopbt) if not name.startswith("_")} - submodules
    assert visible | {"__version__"} == set(mopbt.__all__)


def test_the_version_stands_in_one_place():
    from importlib.metadata import version

    assert version("mopbt") == mopbt.__version__


def test_everything_public_has_a_docstring():
    for name in mopbt.__all__:
        if name not in ("__version__", "Direction"):  # a string and a Literal carry none
            assert getattr(mopbt, name).__doc__, name


def test_everything_public_is_on_the_page_of_the_api():
    docs = Path(__file__).parent.parent / "docs"
    page = (docs / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: mopbt\.[\w.]*?(\w+)$", page, re.M))
    for members in re.findall(r"members: \[(.*?)\]", page, re.S):
        listed |= {name.strip() for name in members.split(",")}
    # The errors are shown with their whole module.
    assert set(mopbt.__all__) - {"__version__", "MopbtError"} <= listed


@pytest.mark.parametrize(("module", "ending"), [(problem, "Task"), (base, "Engine")])
def test_everything_that_a_task_or_an_engine_may_offer_is_on_the_page_of_the_api(module, ending):
    page = (Path(__file__).parent.parent / "docs/reference/api.md").read_text(encoding="utf-8")
    names = {
        name
        for name, value in vars(module).items()
        if is_protocol(value) and name.endswith(ending) and value.__module__ == module.__name__
    }
    assert len(names) > 4
    assert names <= set(re.findall(r"\w+", page))


def is_protocol(value):
    return isinstance(value, type) and vars(value).get("_is_protocol", False)
