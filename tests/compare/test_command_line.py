"""The command `mopbt compare`."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line import mopbt_command
from compare.helpers import GOOD, experiment
from mopbt.cli import app
from mopbt.compare.directory import read_about


def invoked(*arguments):
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command_runs_and_its_report_can_be_made_again(place, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    small = experiment(place, "quick", name="quick", figures=("final",))
    (tmp_path / "quick.toml").write_text(small.to_toml())
    done = mopbt_command("compare", "quick.toml", "--jobs", 2, cwd=tmp_path)
    out = tmp_path / "comparisons" / "quick"
    assert (
        "Tables of 4 runs are in comparisons/quick/tables.md, figures in comparisons/quick/figures."
        in done.stdout
    )
    assert "4/4 runs" in done.stderr
    table = done.stdout.splitlines()
    assert table[0].startswith("Hypervolume × 100 on validation data: mean ± standard deviation")
    assert [line.split()[0] for line in table[2:5]] == ["toy", "MO-PBT", "MO-ASHA"]
    assert (out / "experiment.toml").read_text() == small.to_toml()
    assert (out / "figures" / "final.png").exists()
    assert json.loads((out / "about.json").read_text())["sessions"][0]["command"].endswith(
        "compare quick.toml --jobs 2"
    )
    published = {
        name: (out / name).read_bytes()
        for name in ("tables.csv", "tables.md", "tables.tex", "evaluations.csv.gz")
    }
    for name in published:
        (out / name).unlink()
    monkeypatch.chdir(tmp_path)
    assert invoked("quick.toml", "--recompute").exit_code == 0
    assert {name: (out / name).read_bytes() for name in published} == published
    (out / small.plan()[-1].directory / "finished.json").unlink()
    partial = invoked("quick.toml", "--only-report")
    assert "Tables of 3 runs" in partial.stdout
    assert (
        "Missing runs: 1; rerun the same command without --only-report to complete them."
        in partial.stdout
    )


def test_the_command_says_what_is_wrong_and_which_runs_failed(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text(GOOD.replace("seeds", "seed"))
    assert "wrong.toml: an experiment has no 'seed'" in str(invoked("wrong.toml").exception)
    Path("good.toml").write_text(GOOD)
    assert "elsewhere is not a comparison" in str(
        invoked("good.toml", "--only-report", "--out", "elsewhere").exception
    )
    for option in (
        *(("--task", "annealing"), ("--reuse", "."), ("--jobs", "2")),
        *(("--devices", "cpu"), ("--num-gpus", "1"), ("--workers-per-device", "2")),
    ):
        assert f"leave out {option[0]}" in str(
            invoked("good.toml", "--only-report", *option).exception
        )
    for options, message in (
        (("--devices", "0,0"), "`devices` must name each device once, got ['0', '0']"),
        (("--num-gpus", "1"), "`num_gpus` is for the engines 'ray', got 1.0 for 'auto'"),
        (("--engine", "ray", "--jobs", "2"), "`jobs` above 1 on Ray needs `workers`"),
        (("--engine", "pool"), "`engine` of a comparison must be 'auto' or 'ray', got 'pool'"),
    ):
        assert message in str(invoked("good.toml", *options).exception)
    broken = experiment(
        place,
        "Broken",
        seeds=1,
        time_of=None,
        algorithms={"A": {"name": "mo-pbt", "population": 4}},
    )
    Path("broken.toml").write_text(broken.to_toml())
    failed = invoked("broken.toml", "--out", "broken", "--jobs", "1", "--quiet")
    assert failed.exit_code == 1
    assert "Missing runs: 1; rerun the same command to complete them." in failed.stdout
    assert "RuntimeError: no such luck" in failed.stderr
    assert "The tracebacks of the failures are in about.json." in failed.stdout
    (trace,) = read_about(Path("broken"))["failures"].values()
    assert "problems.py" in trace


@pytest.mark.slow
def test_without_matplotlib_there_are_tables(small, place, tmp_path, monkeypatch):
    """The command reports the missing package and does not fail."""
    shutil.copytree(small[1], tmp_path / "small")
    (tmp_path / "small.toml").write_text(experiment(place, "short", "Mixed").to_toml())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = invoked(str(tmp_path / "small.toml"), "--out", str(tmp_path / "small"), "--only-report")
    assert done.exit_code == 0, done.exception
    assert "tables.md, no figure: matplotlib is not installed." in done.stdout.replace("\n", "")
