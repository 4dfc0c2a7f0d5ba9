"""Reusing the runs of other comparisons."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import mopbt
from compare.helpers import COST, by_run, changed, experiment
from mopbt import Results
from mopbt.compare import (
    compare,
)
from mopbt.compare.directory import read_about
from mopbt.registry import task_fingerprint


@pytest.mark.slow
def test_runs_that_another_comparison_has_are_not_repeated(small, place, tmp_path):
    made, out = small
    wider = {
        "MO-PBT": {"name": "mo-pbt", "population": 6},
        "MO-ASHA": {"name": "mo-asha"},
        "new": {"name": "random-search", "population": 6},
    }
    again = experiment(place, "short", name="again", algorithms=wider)
    comparison = compare(again, out=tmp_path / "out", jobs=1, progress=False, reuse=[place])
    theirs, mine = by_run(made), by_run(comparison)
    for run, data in mine.items():
        path = tmp_path / "out" / run.directory / "finished.json"
        is_copy = (
            path.read_bytes() == (out / run.directory / "finished.json").read_bytes()
            if run in theirs
            else False
        )
        assert is_copy == (run.algorithm != "new"), run
        if is_copy:
            np.testing.assert_array_equal(data.objectives, theirs[run].objectives)
    assert len(comparison.runs) == 6
    Results.open(tmp_path / "out" / again.plan()[0].directory)
    (source,) = read_about(tmp_path / "out")["reused"].items()
    assert source[0] == "small"
    assert (source[1]["runs"], set(source[1]["sessions"][0])) == (4, {"machine", "versions"})


@pytest.mark.slow
def test_runs_of_a_moved_project_are_reused(place, tmp_path, monkeypatch):
    """Models are copied if they are kept, and a cost of 1 equals one of 1.0."""
    one = experiment(place, "quick", seeds=1, cost=1, keep_models=True)
    compare(one, out=tmp_path / "one", jobs=1, progress=False)
    shutil.copy(place / "problems.py", tmp_path / "problems.py")
    # This process may have loaded the module from its old place.
    monkeypatch.delitem(sys.modules, "problems", raising=False)
    moved = experiment(tmp_path, "quick", seeds=1, cost=1.0, keep_models=True)
    compare(moved, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert read_about(tmp_path / "two")["reused"]["one"]["runs"] == 2
    results = Results.open(tmp_path / "two" / moved.plan()[0].directory)
    assert len(results.load(results.front()[0]))
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    for run in one.plan():
        # The task has the same name, but other code.
        changed(tmp_path / "three" / run.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    compare(
        replace(moved, name="four"),
        out=tmp_path / "four",
        jobs=1,
        progress=False,
        reuse=[tmp_path / "one", tmp_path / "three"],
    )
    assert read_about(tmp_path / "four")["reused"]["one"]["runs"] == 2
    shutil.rmtree(tmp_path / "three")
    bare = replace(moved, keep_models=False)
    compare(bare, out=tmp_path / "bare", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert read_about(tmp_path / "bare")["reused"]["one"]["runs"] == 2
    compare(moved, out=tmp_path / "three", jobs=1, progress=False, reuse=[tmp_path / "bare"])
    assert "reused" not in read_about(tmp_path / "three"), "there are no models to copy"


@pytest.mark.slow
def test_runs_that_differ_in_anything_are_run(small, place, tmp_path):
    for change in (
        {"workers": 3},
        {"cost": 2 * COST},
        {"algorithms": {"MO-PBT": {"name": "mo-pbt", "population": 4}}},
    ):
        other = experiment(
            place,
            "short",
            seeds=1,
            **({"algorithms": {"MO-PBT": {"name": "mo-pbt", "population": 6}}} | change),
        )
        out = tmp_path / str(list(change))
        compare(other, out=out, jobs=1, progress=False, reuse=[place])
        marker = other.plan()[0].directory / "finished.json"
        assert (out / marker).read_bytes() != (small[1] / marker).read_bytes()


@pytest.mark.parametrize(
    "change", [('task_fingerprint = "', 'task_fingerprint = "x'), ("steps = 6", "steps = 5")]
)
def test_runs_of_a_changed_task_are_not_reused(small, place, tmp_path, change):
    one = experiment(
        place, "short", seeds=1, algorithms={"MO-PBT": {"name": "mo-pbt", "population": 6}}
    )
    directory = one.plan()[0].directory
    shutil.copytree(small[1], tmp_path / "one")
    changed(tmp_path / "one" / directory, *change)
    compare(one, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert change[1] in (tmp_path / "one" / directory / "run.toml").read_text()
    assert change[1] not in (tmp_path / "two" / directory / "run.toml").read_text()


def test_runs_of_another_version_are_not_reused(small, place, tmp_path):
    """The schedulers of another version may decide differently."""
    one = experiment(place, "short", seeds=1)
    shutil.copytree(small[1], tmp_path / "one")
    first, second = (tmp_path / "one" / run.directory for run in one.plan())
    changed(
        first,
        f'\\"version\\": \\"{mopbt.__version__}\\"',
        '\\"version\\": \\"0.0.9\\"',
        file="finished.json",
    )
    compare(one, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    taken = [
        (tmp_path / "two" / run.directory / "journal.jsonl").read_bytes() for run in one.plan()
    ]
    is_copy = [
        (run / "journal.jsonl").read_bytes() == journal
        for run, journal in zip((first, second), taken, strict=True)
    ]
    assert is_copy == [False, True]


@pytest.mark.slow
def test_a_given_cost_is_not_reused_as_a_measured_one(small, place, tmp_path):
    given = experiment(place, "short", seeds=1)
    compare(
        replace(given, cost="measured"),
        out=tmp_path / "out",
        jobs=1,
        progress=False,
        reuse=[small[1]],
    )
    assert read_about(tmp_path / "out")["tasks"][given.tasks[0]]["cost"] != COST


@pytest.mark.slow
def test_the_cost_of_another_task_of_the_same_name_is_not_reused(place, tmp_path):
    quick = experiment(place, "quick", seeds=1, cost="measured")
    compare(quick, out=tmp_path / "one", jobs=1, progress=False)
    about = read_about(tmp_path / "one")
    about["tasks"][quick.tasks[0]]["cost"] = 0.123
    (tmp_path / "one" / "about.json").write_text(json.dumps(about))
    compare(quick, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert read_about(tmp_path / "two")["tasks"][quick.tasks[0]]["cost"] == 0.123
    for run in quick.plan():
        changed(tmp_path / "one" / run.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    compare(quick, out=tmp_path / "three", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert read_about(tmp_path / "three")["tasks"][quick.tasks[0]]["cost"] != 0.123


MADE_OF = {
    "mine.py": (
        "import math\nimport helper\n"
        "from parts import weights\nimport parts.deep.layers as layers\n"
    ),
    "helper.py": "from constants import RATE\n",
    "constants.py": "RATE = 1\n",
    "parts/__init__.py": "",
    "parts/weights.py": "from . import scales\nfrom .deep.layers import size\n",
    "parts/scales.py": "from .. import nothing\n",
    "parts/deep/__init__.py": "from ..weights import cycle\n",
    "parts/deep/layers.py": "size = 1\n",
    "other.py": "import mine\n",
}


@pytest.mark.parametrize("changed_file", MADE_OF)
def test_the_fingerprint_of_a_task_includes_what_it_imports_from_its_folder(tmp_path, changed_file):
    for name, text in MADE_OF.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    reference = f"{tmp_path / 'mine.py'}:task"
    before = task_fingerprint(reference)
    shutil.copytree(tmp_path, tmp_path / "moved")
    assert task_fingerprint(f"{tmp_path / 'moved' / 'mine.py'}:task") == before, (
        "the directory does not matter"
    )
    (tmp_path / changed_file).write_text(MADE_OF[changed_file] + "more = 1\n")
    assert (task_fingerprint(reference) != before) == (changed_file != "other.py")


def test_the_fingerprint_of_a_task_of_one_file_is_that_of_the_file(tmp_path):
    (tmp_path / "mine.py").write_text("import math, mopbt\n")
    assert (
        task_fingerprint(f"{tmp_path / 'mine.py'}:task")
        == hashlib.sha256(b"import math, mopbt\n").hexdigest()
    )
    (tmp_path / "mine.py").write_text("def broken(:\n")
    # The import of the task reports what is wrong with the file.
    assert task_fingerprint(f"{tmp_path / 'mine.py'}:task")
