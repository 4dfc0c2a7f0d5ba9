"""A sample of `make attack`, chosen by the commit, and the models of the disk and of the world."""

import json
import pickle
import random
import subprocess
from pathlib import Path

import pytest

import mopbt
from attack import power_losses
from attack.campaign import ATTACKS, Bench, Sample, Unit, run_unit, units_of
from attack.crash_states import Durable, Machine, directory_states, file_states, torn_writes
from attack.disks import CutDisk, DeadlyDisk, FailingDisk, Killed, disk
from attack.record import Recorder
from attack.scenarios import POPULATION, SCENARIOS, AttackedToy
from mopbt import filesystem
from mopbt.engines.pool import PoolEngine
from mopbt.errors import MopbtError

SHARE = 0.05  # of all cases


def commit():
    """Return the hash of the commit, which chooses the sample; a fixed one without git."""
    answer = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return answer.stdout.strip() or "0"


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_sample_of_the_attack_finds_nothing(attack, tmp_path):
    count = 0
    for unit in units_of(tmp_path, Sample(SHARE, commit()), [attack]):
        result = run_unit(unit)
        count += result.finished
        failures = [f"{unit.name}, {case}: {text}" for case, text in result.failures.items()]
        assert not failures, "\n".join(failures[:3])
    print(f"{count} {attack}")


def without_sync(events, place):
    """Return a record in which some files, or all directories, are never synced."""
    names = {event[3]: event[2] for event in events if event[0] == "name"}
    kept = []
    for event in events:
        target = event[1]
        if event[0] == "sync":
            is_folder = isinstance(target, tuple)
            if is_folder if place == "folders" else place in str(names.get(target)):
                continue
        kept.append(event)
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folders", "journal", ".ckpt"])
def test_the_attack_notices_a_missing_sync(tmp_path, place):
    """A check of the attack itself: without one kind of fsync, power losses lose something."""
    bench = Bench(Unit("power losses", "local", tmp_path, Sample()))
    scenario = SCENARIOS[0]
    tree, events, expected = power_losses.record(scenario, bench)
    states = list(power_losses.states_of(without_sync(events, place), tree))
    lost = 0
    for digest, state, promised in states[-40:]:
        try:
            power_losses.resume(scenario, bench, digest, state, promised, expected)
        except (AssertionError, MopbtError):
            lost += 1
    bench.close()
    assert lost > 5


def test_a_write_that_was_not_synced_may_be_torn_or_lost():
    write = ("write", 0, b"a" * 700, 500)
    torn = [data for _, _, data, _ in torn_writes(write)]
    assert torn[0] == b"a" * 12
    assert torn[1] == b"a" * 12 + b"\0" * 688
    assert torn[2] == b"\0" * 12 + b"a" * 688
    assert torn[3] == b"a" * 524
    assert torn[-1] == b"\0" * 700
    contents = file_states(Durable(b"b" * 500, [write]))
    assert contents[0] == b"b" * 500
    assert contents[1] == b"b" * 500 + b"a" * 700
    assert b"b" * 500 + b"a" * 12 in contents


def test_names_that_were_not_synced_may_be_missing_in_any_order():
    pending = [("name", "", "a.tmp", 1), ("rename", "", "a.tmp", "a", 1), ("unname", "", "b")]
    states = directory_states(Durable({"b": 0}, pending))
    assert {"b": 0} in states
    assert {"a": 1} in states
    assert {"b": 0, "a.tmp": 1} in states
    assert {} in states
    assert {"a": 1, "b": 0} in states


def test_what_was_synced_is_certain():
    machine = Machine({"old": b"before"})
    for event in (
        ("name", "", "file", 0),
        ("write", 0, b"data", 0),
        ("sync", 0),
        ("sync", ("folder", "")),
        ("name", "", "other", 1),
    ):
        machine.execute(event)
    trees = list(machine.states(random.Random(0)))
    assert all(tree["file"] == b"data" and tree["old"] == b"before" for tree in trees)
    assert {len(tree) for tree in trees} == {2, 3}


def test_a_remote_storage_keeps_what_it_accepted():
    machine = Machine()
    machine.execute(("put", "remote/1", b"data"))
    assert {"remote": None, "remote/1": b"da"} in machine.states(random.Random(0))
    machine.execute(("sync", ("folder", "")))
    assert list(machine.states(random.Random(0))) == [{"remote": None, "remote/1": b"data"}] * 2


def test_the_record_of_an_atomic_write_is_what_happened(tmp_path):
    with disk(Recorder(tmp_path)) as recorder:
        filesystem.write_atomically(tmp_path / "file", b"data")
    kinds = [event[0] for event in recorder.events]
    assert kinds == ["name", "write", "sync", "rename", "sync"]
    machine = Machine()
    for event in recorder.events:
        machine.execute(event)
    assert list(machine.states(random.Random(0))) == [{"file": b"data"}] * 2


def test_two_processes_share_a_record(tmp_path):
    first = Recorder(tmp_path, tmp_path / "log")
    second = pickle.loads(pickle.dumps(first))
    for number, recorder in enumerate([first, second, first]):
        with disk(recorder):
            filesystem.write_quickly(tmp_path / str(number), b"data")
    names = [event[2] for event in first.events if event[0] == "name"]
    assert names == ["0", "1", "2"]


def test_a_killed_process_changes_nothing_more(tmp_path):
    for left in range(8):
        (tmp_path / "file").write_bytes(b"old")
        cut = CutDisk(filesystem.disk, left)
        try:
            with disk(cut):
                filesystem.write_atomically(tmp_path / "file", b"new")
        except Killed:
            pass
        cut.end()
        assert (tmp_path / "file").read_bytes() == (b"old" if left < 4 else b"new")


@pytest.mark.slow
def test_a_worker_that_dies_while_it_saves_leaves_no_file(tmp_path, monkeypatch):
    unfinished = []
    real = PoolEngine._remove_leftovers

    def remove_leftovers(engine, process):
        unfinished.extend(tmp_path.rglob("*.tmp"))
        real(engine, process)

    monkeypatch.setattr(PoolEngine, "_remove_leftovers", remove_leftovers)
    # The task is unpickled, and its disk installed, only in worker processes.
    mopbt.run(
        AttackedToy(steps=4, installs=DeadlyDisk(tmp_path / "died")),
        out=tmp_path / "run",
        population=POPULATION,
        engine=PoolEngine(1),
        progress=False,
    )
    assert len(unfinished) == 1
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("kind", ["EIO", "short"])
def test_one_call_fails_in_the_way_that_was_asked_for(tmp_path, kind):
    with disk(FailingDisk(1, kind)) as failing:
        if kind == "short":
            filesystem.write_quickly(tmp_path / "file", b"data")
        else:
            with pytest.raises(filesystem.StoreError, match="check the disk, then rerun"):
                filesystem.write_quickly(tmp_path / "file", b"data")
    # An open cannot be short, so the write was.
    assert failing.failed == ("write" if kind == "short" else "open")


def test_an_interrupted_campaign_continues_where_it_stopped(tmp_path, monkeypatch):
    executed = []

    class Module:
        @staticmethod
        def cases(unit, bench):
            for name in "abc":
                yield name, lambda name=name: executed.append(name)

    monkeypatch.setattr("attack.campaign.import_module", lambda name: Module)
    unit = Unit("power losses", "some", tmp_path, Sample())
    unit.record.write_text(json.dumps(["a", ""]) + "\n" + json.dumps(["b", "broke"]) + '\n["c')
    result = run_unit(unit)
    assert executed == ["c"]
    assert (result.total, result.finished, result.failures) == (3, 3, {"b": "broke"})


def test_a_sample_is_a_share_that_its_seed_chooses():
    chosen = [n for n in range(2000) if Sample(0.1, "x").has("unit", n)]
    assert 150 < len(chosen) < 250
    assert chosen != [n for n in range(2000) if Sample(0.1, "y").has("unit", n)]
    assert all(Sample().has("unit", n) for n in range(100))
