"""Whole runs as they were when they were looked at: any change of a decision or of a number shows here.

`MOPBT_GOLDEN=write pytest tests/golden` writes the files anew; look at the difference before you commit it.
"""

import json
import os
from pathlib import Path

import pytest

from mopbt import MoPbt, run
from mopbt.stores.journal import read_journal
from mopbt.testing import FailingToy, ToyTask

RUNS = {
    "mo-pbt": (ToyTask(max_step=12), MoPbt(population=6)),
    "mo-pbt-asynchronous": (ToyTask(max_step=12), MoPbt(population=6, asynchronous=True, inherit_step=True)),
    "mo-pbt-other-parts": (
        ToyTask(max_step=12),
        MoPbt(population=5, within="hypervolume", explore="random", start="iid", fraction=0.5),
    ),
    "mo-pbt-with-failures": (FailingToy(max_step=12), MoPbt(population=11, within="crowded")),
}


def lines(path):
    """Return jobs and reports as they come with one worker, without what differs between machines: times, bytes, tracebacks."""
    for exchange in read_journal(path / "journal.jsonl")[0]:
        yield from ({"job": job.to_json()} for job in exchange.jobs)
        for report in exchange.reports:
            scores = {name: round(value, 9) for name, value in report.scores.items()}
            yield {"report": report.job, "scores": scores} if not report.error else {"report": report.job, "failed": True}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_as_it_was(name, tmp_path):
    task, algorithm = RUNS[name]
    run(task, out=tmp_path, algorithm=algorithm, engine="local", progress=False)
    made = "".join(json.dumps(line) + "\n" for line in lines(tmp_path))
    golden = Path(__file__).parent / f"{name}.jsonl"
    if os.environ.get("MOPBT_GOLDEN") == "write":
        golden.write_text(made)
    then = [json.loads(line) for line in golden.read_text().splitlines()]
    now = [json.loads(line) for line in made.splitlines()]
    assert len(now) == len(then)
    for mine, theirs in zip(now, then, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine.get("job") == theirs.get("job")
        assert mine.get("scores", {}) == pytest.approx(theirs.get("scores", {}), abs=1e-7)
