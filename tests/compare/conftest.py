"""Fixtures of comparisons."""

import pytest

from compare.helpers import PROBLEMS, TESTS, experiment
from mopbt.compare import (
    compare,
)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Return a directory with a file of tasks."""
    place = tmp_path_factory.mktemp("compare")
    (place / "problems.py").write_text(PROBLEMS.format(tests=str(TESTS), place=str(place)))
    return place


@pytest.fixture(scope="session")
def small(place):
    """Return a finished comparison of two algorithms on two tasks."""
    out = place / "small"
    return compare(experiment(place, "short", "Mixed"), out=out, jobs=2, progress=False), out
