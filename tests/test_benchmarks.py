"""The tables of benchmarks come from their files, and two files can be compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "baselines" / "bench.json"


def execute(script, *arguments, code=0):
    """Execute a script and return what it printed."""
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def content():
    return json.loads(BASELINE.read_text())


def first_row(content, **changes):
    row = next(iter(content["benchmarks"].values()))["rows"][0]
    row |= changes
    return row


def test_the_table_of_the_readme_is_that_of_the_baseline(monkeypatch, content):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.with_table(text, content) == text, "run `python benchmarks/table.py --readme`"
    assert text.count("| >= 6") == 1


def test_all_rows_are_in_one_table_and_a_missed_target_fails(tmp_path, content):
    for entry in content["benchmarks"].values():
        for row in entry["rows"]:
            row["met"] = None if row["met"] is None else True
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(content))
    rows = sum(len(entry["rows"]) for entry in content["benchmarks"].values())
    printed = execute("benchmarks/table.py", file)
    assert len(printed.splitlines()) == rows + 1
    assert printed.endswith(" 0 missed\n")
    row = first_row(content, met=False)
    file.write_text(json.dumps(content))
    printed = execute("benchmarks/table.py", file, code=1)
    assert [row["name"] in line for line in printed.splitlines() if "MISSED" in line] == [True]


def test_two_files_are_compared(tmp_path, content):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(content))
    assert "0 worse" in execute("baselines/compare_bench.py", BASELINE, file)
    row = first_row(content)
    first_row(content, ratio=row["ratio"] * {"lower": 2, "higher": 0.5}[row["better"]])
    file.write_text(json.dumps(content))
    printed = execute("baselines/compare_bench.py", BASELINE, file, code=1)
    assert row["name"] in printed
    assert "1 worse" in printed
    first_row(content, name="another")
    file.write_text(json.dumps(content))
    assert "another: new" in execute("baselines/compare_bench.py", BASELINE, file)
