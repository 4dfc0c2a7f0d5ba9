"""A comparison without its journals: the records of its runs give the same measures."""

import gzip
import json
import shutil

import pytest

from compare.helpers import experiment
from mopbt.compare import Comparison, compare
from mopbt.compare.report import build_report
from mopbt.errors import StoreError

RECORD = "record.json.gz"


@pytest.fixture
def published(small, tmp_path):
    """Return a copy of a comparison that has no journals."""
    out = tmp_path / "published"
    shutil.copytree(small[1], out)
    for name in ("journal.jsonl", "evaluations.jsonl"):
        for file in out.rglob(name):
            file.unlink()
    return out


def test_records_give_the_same_tables_fronts_and_curves(small, published, tmp_path):
    whole = build_report(small[0])
    again = build_report(Comparison.open(published))
    whole.write(tmp_path / "whole", figures=False)
    again.write(tmp_path / "again", figures=False)
    for name in ("tables.csv", "runs.csv", "tasks.csv"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "whole" / name).read_text()
    fronts = [tmp_path / name / "fronts.csv.gz" for name in ("whole", "again")]
    assert fronts[0].read_bytes() == fronts[1].read_bytes()
    assert sum(run.left_out for run in again.comparison.runs) > 0
    for one, other in zip(whole.measured, again.measured, strict=True):
        for label, runs in one.runs.items():
            for run, twin in zip(runs, other.runs[label], strict=True):
                assert run.hypervolumes[-1] == twin.hypervolumes[-1]
                assert run.choice == twin.choice


def test_finished_runs_are_not_repeated_without_their_journals(small, place, published):
    before = {file: file.read_bytes() for file in published.rglob("finished.json")}
    resumed = compare(experiment(place, "short", "Mixed"), out=published, progress=False)
    assert not resumed.missing
    assert len(before) == len(resumed.runs)
    assert {file: file.read_bytes() for file in published.rglob("finished.json")} == before


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", gzip.compress(b"[]"), gzip.compress(json.dumps({}).encode())]
)
def test_a_damaged_record_is_named(published, content):
    record = sorted(published.rglob(RECORD))[0]
    record.write_bytes(content)
    with pytest.raises(StoreError, match=f"{RECORD} is damaged.*remove that directory"):
        Comparison.open(published)


def test_a_run_without_journal_and_record_is_damaged(published):
    sorted(published.rglob(RECORD))[0].unlink()
    with pytest.raises(StoreError, match="it has no journal.jsonl"):
        Comparison.open(published)
