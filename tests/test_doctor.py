"""`mopbt doctor`, `mopbt list` and shell completion."""

import json
import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mopbt import Budget, run
from mopbt.cli import app
from mopbt.cli import doctor as command
from mopbt.errors import StoreError
from mopbt.tasks.toy import ToyTask


def says(*arguments, code=0, **options):
    done = CliRunner().invoke(app, list(map(str, arguments)), **options)
    assert done.exit_code == code, done.output
    return done.output


def test_the_doctor_names_versions_extras_devices_and_the_directory(tmp_path):
    found = json.loads(says("doctor", tmp_path / "new" / "runs", "--json"))
    assert {"numpy", "moocore", "rich", "typer"} <= found["packages"].keys()
    assert all(found["packages"].values())
    assert found["extras"]["torch"]
    assert found["directory"]["locks"]
    assert found["directory"]["free_bytes"] > 0
    assert found["problems"] == []
    assert list(tmp_path.iterdir()) == []
    assert "locks work" in says("doctor", tmp_path)


def test_the_doctor_fails_where_a_run_would(tmp_path, monkeypatch):
    def refuse(path):
        raise StoreError("this file system has no locks")

    monkeypatch.setattr(command, "DirectoryStore", refuse)
    monkeypatch.setattr(command, "LITTLE_SPACE", 2**80)
    monkeypatch.setattr(command, "_version_of", lambda package: None)
    said = says("doctor", tmp_path, code=1)
    assert "cannot hold runs: this file system has no locks" in said
    assert "MiB left" in said
    assert "missing: cloudpickle, moocore" in said


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    for name, jobs in (("a", 4), ("b", 12), ("c", None)):
        run(
            ToyTask(steps=8),
            out=place / name,
            name=None,
            population=4,
            engine="local",
            progress=False,
            budget=None if jobs is None else Budget(jobs=jobs),
        )
    return place


def names(text):
    return [os.path.basename(summary["run"]) for summary in json.loads(text)]


def test_runs_are_sorted_and_filtered(runs):
    assert names(says("list", runs, "--json")) == ["a", "b", "c"]
    assert names(says("list", runs, "--sort", "intervals", "--json")) == ["c", "b", "a"]
    assert names(says("list", runs, "--state", "interrupted", "--json")) == ["a", "b"]
    assert names(says("list", runs, "--state", "done", "--task", "toy", "--json")) == ["c"]
    assert "no runs of task other and state done" in says(
        "list", runs, "--task", "other", "--state", "done"
    )
    with pytest.raises(ValueError, match="--sort must be one of run, .* got 'interval'; did you"):
        CliRunner().invoke(app, ["list", str(runs), "--sort", "interval"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("mopbt li", ["lineage", "list"]),
        ("mopbt run two", ["two-quadratics"]),
        ("mopbt run toy --algorithm mo-", ["mo-pbt", "mo-asha"]),
        ("mopbt plan toy --engine v", ["vectorized"]),
        ("mopbt list --sort h", ["hypervolume"]),
        ("mopbt list --state d", ["done"]),
    ],
)
def test_the_shell_completes_commands_and_values(words, completed):
    last = str(len(words.split()) - 1)
    shell = {"_MOPBT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": last}
    done = CliRunner().invoke(app, [], prog_name="mopbt", env=shell)
    assert done.output.split() == completed


def test_no_summary_of_a_command_is_cut_at_80_columns():
    done = CliRunner().invoke(app, ["--help"], prog_name="mopbt", env={"COLUMNS": "80"})
    assert "run  " in done.output
    assert "..." not in done.output.partition("Commands:")[2]


def test_the_doctor_knows_every_extra():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    # These two consist of others.
    assert set(command.EXTRAS) == project["optional-dependencies"].keys() - {"demo", "integrations"}
