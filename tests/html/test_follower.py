"""A follower reads only what is new, trusts no file, and never blocks a run."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest

import mopbt
from mopbt.html import follower as following
from mopbt.html.follower import Follower, driver_of, find_runs
from mopbt.html.report import read_run_data
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange
from mopbt.stores.directory import DirectoryStore
from mopbt.stores.journal import encode_line
from mopbt.tasks.toy import ToyTask


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "finished"
    mopbt.run(ToyTask(), out=path, population=6, engine="local", progress=False)
    return path


@pytest.fixture
def run(finished, tmp_path):
    """Return a copy of a run, with an empty journal, and the lines that were in it."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (path / "journal.jsonl").write_bytes(b"")
    return path, lines


def append(path, data):
    with open(path / "journal.jsonl", "ab") as file:
        file.write(data)


def page_of(follower):
    """Return the page of a run after the importance of its hyperparameters was measured."""
    follower.data()
    if follower._measuring is not None:
        follower._measuring.join()
    return follower.data()


def whole_page(path):
    return read_run_data(path).data()


def test_pieces_of_any_size_make_the_whole_page_and_no_line_is_decoded_twice(run, monkeypatch):
    path, lines = run
    decoded = []
    monkeypatch.setattr(
        following,
        "parse_line",
        lambda line, real=following.parse_line: decoded.append(line) or real(line),
    )
    follower, everything = Follower(path, "run"), b"".join(lines)
    for i in range(0, len(everything), 700):
        append(path, everything[i : i + 700])
        follower.look()
    assert page_of(follower) == whole_page(path)
    assert len(decoded) == len(lines)


def test_the_version_grows_with_what_came_and_only_then(run):
    path, lines = run
    follower = Follower(path, "run")
    follower.look()
    seen = [follower.version]
    for data in (b"", lines[0], b"", lines[1][:20], lines[1][20:], b""):
        append(path, data)
        follower.look()
        seen.append(follower.version)
    assert [b - a for a, b in pairwise(seen)] == [0, 1, 0, 0, 1, 0]


def test_an_incomplete_last_line_is_ignored_and_overwritten(run):
    path, lines = run
    append(path, b"".join(lines[:4]) + lines[4][:-9] + b"\n")
    follower = Follower(path, "run")
    follower.look()
    assert follower.trouble == ""
    with open(path / "journal.jsonl", "wb") as file:  # as a resume does, in the same file
        file.write(b"".join(lines[:6]))
    follower.look()
    assert page_of(follower) == whole_page(path)


def test_a_damaged_line_is_reported_and_those_before_it_are_shown(run):
    path, lines = run
    append(path, b"".join(lines[:6]) + b'{"jobs": "damaged"}\n' + b"".join(lines[6:]))
    follower = Follower(path, "run")
    follower.look()
    assert "a line of its journal is damaged" in follower.row()["trouble"]
    good = follower.data()["intervals"]
    (path / "journal.jsonl").write_bytes(b"".join(lines[:6]))
    assert good == whole_page(path)["intervals"] > 0


def test_a_repaired_journal_is_reread(run):
    path, lines = run
    append(path, b"".join(lines[:8]))
    follower = Follower(path, "run")
    follower.look()
    (path / "repaired").write_bytes(b"".join(lines))
    os.replace(path / "repaired", path / "journal.jsonl")
    follower.look()
    assert page_of(follower) == whole_page(path)


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
def test_a_journal_that_was_cut_and_has_grown_past_its_old_length_is_reread(run, tmp_path, share):
    path, lines = run
    mopbt.run(
        ToyTask(), out=tmp_path / "other", population=6, seed=1, engine="local", progress=False
    )
    others = (tmp_path / "other" / "journal.jsonl").read_bytes()
    append(path, b"".join(lines[: round(share * len(lines))]))
    follower = Follower(path, "run")
    follower.look()
    version = follower.version
    # The same file, because a run that rolls back failures continues in it.
    (path / "journal.jsonl").write_bytes(others)
    follower.look()
    assert follower.trouble == ""
    assert page_of(follower) == whole_page(path)
    assert follower.version == version + 1


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(reports=(Report(99, (1.0, 2.0)),)),
        Exchange(jobs=(Job(0, 0, ("x", None), None, 0, 1),)),
        Exchange(jobs=(Job(0, 10**40, (0, 0), None, 0, 1),)),
        Exchange(jobs=(Job(0, 0, (0, 0), None, float("nan"), float("inf")),)),
        Exchange(jobs=(Job(0, 0, (0, 0), 0, 0, 1),)),
    ],
    ids=["unknown job", "no position", "huge trial", "no steps", "its own ancestor"],
)
def test_a_hostile_journal_is_shown_with_what_is_wrong_with_it(run, exchange):
    path, _ = run
    append(
        path,
        encode_line(exchange)
        + encode_line(Exchange(reports=(Report(0, (1.0, 2.0), scores={"near": 1, "far": 2}),))),
    )
    follower = Follower(path, "run")
    follower.look()
    json.dumps(follower.row(), allow_nan=False)
    with suppress(ValueError):  # it says why it cannot be shown; nothing else happens
        json.dumps(follower.data(), allow_nan=False)
    assert follower.trouble or trial_of(exchange) > 2**63


def trial_of(exchange):
    return exchange.jobs[0].trial if exchange.jobs else 0


def test_a_line_with_a_good_checksum_that_is_no_exchange_is_reported(run):
    path, lines = run
    body = b'{"jobs":[[1]]}'
    append(path, lines[0] + body[:-1] + b',"crc":"' + f"{zlib.crc32(body):08x}".encode() + b'"}\n')
    follower = Follower(path, "run")
    follower.look()
    assert "it cannot be shown" in follower.trouble
    assert follower.data()["intervals"] == 0


def test_links_out_of_the_directory_are_not_followed(finished, tmp_path):
    root = tmp_path / "root"
    (root / "files").mkdir(parents=True)
    (root / "linked").symlink_to(finished)
    for name in ("run.toml", "journal.jsonl"):
        (root / "files" / name).symlink_to(finished / name)
    assert [name for name, _ in find_runs(root)] == [
        "files"
    ]  # a directory that is a link is not entered
    follower = Follower(root / "files", "files")
    follower.look()
    assert "it cannot be read" in follower.row()["trouble"]
    with pytest.raises(ValueError, match="cannot be shown"):
        follower.data()


def test_a_directory_that_becomes_a_link_is_not_followed(run, tmp_path):
    path, lines = run
    append(path, b"".join(lines))
    follower = Follower(path, "run")
    follower.look()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    follower.look()
    assert "it cannot be read: its directory has become a link" in follower.trouble


def test_a_pipe_in_place_of_a_file_does_not_hold_it_up(run):
    path, _ = run
    for name in ("journal.jsonl", "lock"):
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
    follower = Follower(path, "run")
    thread = threading.Thread(target=follower.look, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert "not a regular file" in follower.trouble


def test_runs_are_found_below_and_at_the_directory(finished, tmp_path):
    for name in ("b", "a/deep", "a/deep/checkpoints/hidden"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(finished / "run.toml", tmp_path / name)
    assert dict(find_runs(tmp_path)) == {"a/deep": tmp_path / "a" / "deep", "b": tmp_path / "b"}
    assert [name for name, _ in find_runs(finished)] == ["finished"]


def test_it_names_the_process_of_a_run_without_its_lock(run, monkeypatch):
    path, lines = run
    append(path, b"".join(lines[:4]))
    assert driver_of(path) == ""
    store = DirectoryStore(path)

    def refuse(*args):
        raise AssertionError("the lock was touched")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert driver_of(path).startswith(f"process {os.getpid()} on ")
    follower = Follower(path, "run")
    follower.look()
    assert follower.row()["state"] == "running"
    store.close()
    follower.look()
    assert follower.row()["state"] == "interrupted"


def test_a_process_that_is_gone_drives_nothing_and_one_elsewhere_may(run):
    path, _ = run
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (path / "lock").write_text(f"process {gone.pid} on {socket.gethostname()} since yesterday")
    assert driver_of(path) == ""
    (path / "lock").write_text(f"process {gone.pid} on another-machine since yesterday")
    assert driver_of(path).endswith("on another-machine since yesterday")


@pytest.mark.parametrize("reference", [None, {"near": -1.0, "far": -2.0}])
def test_a_hypervolume_is_listed_only_above_the_tasks_own_reference(tmp_path, reference):
    class Referenced(ToyTask):
        pass

    Referenced.reference = reference
    results = mopbt.run(
        Referenced(steps=4), out=tmp_path / "run", population=4, engine="local", progress=False
    )
    follower = Follower(tmp_path / "run", "run")
    follower.look()
    assert follower.row()["hypervolume"] == (
        None if reference is None else pytest.approx(results.hypervolume())
    )


def test_nothing_is_written(run):
    path, lines = run
    append(path, b"".join(lines))
    before = {f: (f.stat().st_mtime_ns, f.stat().st_size) for f in path.rglob("*")} | {
        path: path.stat().st_mtime_ns
    }
    follower = Follower(path, "run")
    follower.look()
    follower.data()
    assert before == {f: (f.stat().st_mtime_ns, f.stat().st_size) for f in path.rglob("*")} | {
        path: path.stat().st_mtime_ns
    }
