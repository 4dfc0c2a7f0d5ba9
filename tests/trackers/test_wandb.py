"""W&B runs, read back from the files of the offline mode."""

import json

import pytest

from mopbt.trackers import to_wandb
from trackers.dying import log_and_die
from trackers.expected import branches, expected_curves


def read(directory):
    """Return the id, config and rows of each run, read as ``wandb sync`` reads them."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    runs = {}
    for file in sorted(directory.rglob("run-*.wandb")):
        config = {}
        rows = []
        name = ""
        for data in read_records(file.read_bytes()):
            record = proto.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                name = record.run.display_name
                for item in record.run.config.update:
                    config[item.key] = json.loads(item.value_json)
            if record.HasField("history"):
                row = {"_step": record.history.step.num}
                for item in record.history.item:
                    row[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
                rows.append(row)
        runs[name] = (file.stem.removeprefix("run-"), config, rows)
    return runs


def read_records(data):
    """Yield the records of a log in LevelDB's format, which follows a header of seven bytes."""
    block = 32768
    offset = 7
    record = b""
    while offset + 7 <= len(data):
        if block - offset % block < 7:
            offset += block - offset % block
            continue
        length = int.from_bytes(data[offset + 4 : offset + 6], "little")
        kind = data[offset + 6]
        record += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        # Kind 1 is a complete record, kind 4 the last part of one.
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_histories_and_configs_are_those_of_the_run(results, tmp_path):
    pytest.importorskip("wandb")
    to_wandb(results, tmp_path / "wandb-logs")
    runs = read(tmp_path)
    assert set(runs) == {"population", *branches(results)}
    _, _, rows = runs["population"]
    assert rows[-1]["hypervolume"] == pytest.approx(results.hypervolume())
    assert len(rows) == len(results)
    for name, branch in branches(results).items():
        _, config, rows = runs[name]
        shown = {row["_step"]: row["near"] for row in rows if "near" in row}
        assert shown == pytest.approx(dict(expected_curves(results, name)["near"]))
        if branch.fork:
            assert config["forked_from"] == runs[branch.fork.branch.name][0]
            assert config["forked_at_step"] == branch.fork.step


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_reports_are_logged_once_if_the_tracker_is_killed(results, tmp_path):
    pytest.importorskip("wandb")
    log_and_die(results.path, f"WandB({str(tmp_path)!r})")
    assert list(tmp_path.rglob("run-*.wandb"))
    to_wandb(results, tmp_path)
    files = [file.name for file in tmp_path.rglob("run-*.wandb")]
    assert len(files) == len(set(files))
    _, _, rows = read(tmp_path)["population"]
    assert [row["_step"] for row in rows] == list(range(1, len(results) + 1))
