"""Two runs never share a storage: each is refused before it trains or drops anything."""

import errno
import json
import shutil
import threading
import uuid

import pytest

from mopbt import Budget, Results, filesystem, run
from mopbt.errors import RunMismatch, StoreError
from mopbt.ownership import Owner, claim_storage
from mopbt.run_directory import read_run_config
from mopbt.stores import fsspec as remote
from mopbt.stores.fsspec import checkpoints_at
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.toy import ToyTask


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs, except what closes files."""


@pytest.fixture(params=["folder", "memory"])
def storage(request, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "OWNER_PAUSE", 0.05)
    if request.param == "folder":
        return str(tmp_path / "storage")
    return f"memory://{uuid.uuid4().hex}"


def start(out, storage, *, seed=0, task=None, **options):
    return run(
        task or ToyTask(),
        out=out,
        storage=storage,
        seed=seed,
        population=6,
        engine="local",
        progress=False,
        **options,
    )


def all_load(results):
    return all(results.load(point) for point in results.front())


def test_a_run_resumed_after_another_used_its_storage(tmp_path, storage):
    """The run that was killed before its first save owns the storage; the other is refused."""

    class Dies(ToyTask):
        def dump(self, model):
            raise Killed

    with pytest.raises(Killed):
        start(tmp_path / "first", storage, task=Dies(name="ToyTask"))
    assert not checkpoints_at(storage).kept()
    with pytest.raises(RunMismatch) as refused:
        start(tmp_path / "second", storage, seed=1)
    for fact in (storage, str(tmp_path / "first"), "give each run its own storage"):
        assert fact in str(refused.value)
    assert not (tmp_path / "second" / "run.toml").exists()
    first = start(tmp_path / "first", storage)
    assert first.outcome == "done"
    assert all_load(first)
    second = start(tmp_path / "second", storage + "-2", seed=1)
    assert second.outcome == "done"
    assert all_load(second)
    assert all_load(first)


def test_two_runs_started_together(tmp_path, storage, monkeypatch):
    """Both find no owner. One of them gets the storage; the other trains nothing."""
    kind = type(checkpoints_at(storage))
    together = threading.Barrier(2)
    real, seen = kind.owner, threading.local()

    def owner(self):
        record = real(self)
        if not hasattr(seen, "waited"):
            seen.waited = True
            together.wait(10)
        return record

    monkeypatch.setattr(kind, "owner", owner)
    outcomes = {}

    def begin(name, seed):
        try:
            outcomes[name] = start(tmp_path / name, storage, seed=seed)
        except RunMismatch as error:
            outcomes[name] = error

    threads = [threading.Thread(target=begin, args=(name, i)) for i, name in enumerate("ab")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [name for name, outcome in outcomes.items() if isinstance(outcome, RunMismatch)]
    assert len(refused) == 1
    (done,) = (outcome for outcome in outcomes.values() if isinstance(outcome, Results))
    assert done.outcome == "done"
    assert all_load(done)
    assert not (tmp_path / refused[0] / "run.toml").exists()


def test_a_file_system_without_exclusive_creation_lets_one_run_win(tmp_path, storage, monkeypatch):
    checkpoints = checkpoints_at(storage)
    if storage.startswith("memory"):
        files = checkpoints.file_system()
        real = files.pipe_file

        def pipe_file(path, data, **options):
            if options:
                raise TypeError("pipe_file() got an unexpected keyword argument 'mode'")
            real(path, data)

        monkeypatch.setattr(files, "pipe_file", pipe_file)
    else:
        monkeypatch.setattr("os.link", _no_links)
    checkpoints.record_owner(b"first")
    checkpoints.record_owner(b"second")
    assert checkpoints.owner() == b"first"


def _no_links(source, target):
    raise PermissionError(1, "Operation not permitted")


def test_a_copied_directory_is_refused_and_a_moved_one_resumes(tmp_path, storage):
    start(tmp_path / "run", storage, budget=Budget(jobs=7))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(RunMismatch, match="is a copy of the run") as refused:
        start(tmp_path / "copy", storage)
    for fact in ("copy", str(tmp_path / "run"), storage, "resume the original"):
        assert fact in str(refused.value)
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = start(tmp_path / "moved", storage)
    assert moved.outcome == "done"
    assert all_load(moved)
    with pytest.raises(RunMismatch, match="is a copy of the run"):
        start(tmp_path / "copy", storage)


def test_an_original_that_cannot_be_read_is_not_replaced_by_its_copy(
    tmp_path, storage, monkeypatch
):
    start(tmp_path / "run", storage, budget=Budget(jobs=7))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    class Broken(filesystem.Disk):
        def open(self, path, flags):
            if path == tmp_path / "run" / "run.toml":
                raise OSError(errno.EIO, "Input/output error")
            return super().open(path, flags)

    monkeypatch.setattr(filesystem, "disk", Broken())
    with pytest.raises(StoreError, match=r"cannot read .*run\.toml: Input/output error; check"):
        start(tmp_path / "copy", storage)
    monkeypatch.undo()
    assert start(tmp_path / "run", storage).outcome == "done"


def test_a_directory_from_another_machine_needs_the_owner_to_be_deleted(tmp_path, storage):
    start(tmp_path / "run", storage, budget=Budget(jobs=7))
    checkpoints = checkpoints_at(storage)
    record = json.loads(checkpoints.owner())
    record |= {"host": "elsewhere", "directory": "/mnt/run"}
    checkpoints.record_owner(json.dumps(record).encode(), replace=True)
    with pytest.raises(RunMismatch, match=r"/mnt/run on elsewhere, got .*delete .*owner\.json"):
        start(tmp_path / "run", storage)


def test_a_damaged_owner_is_an_error(tmp_path, storage):
    start(tmp_path / "run", storage, budget=Budget(jobs=7))
    checkpoints_at(storage).record_owner(b"{", replace=True)
    with pytest.raises(StoreError, match=r"owner\.json is damaged .*delete it"):
        start(tmp_path / "run", storage)


@pytest.mark.parametrize("length", [0, 5, 60])
def test_the_incomplete_record_of_a_crash_is_completed(length):
    """Without checkpoints, or with the id of the run, it cannot hide another owner."""
    checkpoints = MemoryCheckpoints()
    owner = Owner("1" * 32, "/runs/mine", "host")

    def claim():
        claim_storage(checkpoints, "memory://", owner, is_new=False, is_shared=True)
        return checkpoints.owner()

    checkpoints.record_owner(owner.to_json()[:length])
    assert claim() == owner.to_json()
    checkpoints.save(0, b"model")
    checkpoints.record_owner(owner.to_json()[:length], replace=True)
    if length == 60:
        assert claim() == owner.to_json()
    else:
        with pytest.raises(StoreError, match=r"owner\.json is damaged"):
            claim()
    checkpoints.record_owner(b"someone's file", replace=True)
    with pytest.raises(StoreError, match=r"owner\.json is damaged"):
        claim()


def test_a_directory_with_its_own_checkpoints_can_be_copied(tmp_path):
    start(tmp_path / "run", None, budget=Budget(jobs=7))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    original, copy = start(tmp_path / "run", None), start(tmp_path / "copy", None)
    assert original.outcome == copy.outcome == "done"
    assert all_load(original)
    assert all_load(copy)


def test_the_checkpoints_of_a_run_are_not_the_storage_of_another(tmp_path):
    first = start(tmp_path / "run", None)
    with pytest.raises(RunMismatch, match="belongs to another run"):
        start(tmp_path / "other", tmp_path / "run" / "checkpoints", seed=1)
    assert all_load(first)


def test_checkpoints_without_an_owner_are_not_taken_over(tmp_path, storage):
    checkpoints_at(storage).save(3, b"precious")
    with pytest.raises(RunMismatch, match=r"holds checkpoints, but no owner\.json"):
        start(tmp_path / "run", storage)
    assert checkpoints_at(storage).kept() == {3}
    assert checkpoints_at(storage).owner() is None


def test_every_run_has_its_own_id(tmp_path):
    ids = set()
    for name in "ab":
        start(tmp_path / name, None, budget=Budget(jobs=1))
        ids.add(read_run_config(tmp_path / name).run_id)
    assert len(ids) == 2
    assert all(len(id) == 32 for id in ids)
