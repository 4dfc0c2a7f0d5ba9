import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

from mopbt import filesystem, limits
from mopbt.errors import StorageFull, StoreError
from mopbt.filesystem import AppendOnlyFile, remove, write_quickly


def test_a_full_device(tmp_path, monkeypatch):
    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(filesystem.disk, "write", full)
    with pytest.raises(StorageFull, match="no space left to write"):
        filesystem.write_atomically(tmp_path / "y", b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    filesystem.write_atomically(tmp_path / "y", b"fits")
    assert (tmp_path / "y").read_bytes() == b"fits"


def test_a_read_only_file_system_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    """The temporary file cannot be removed either, and that error must not hide the first."""

    def fail(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(filesystem.disk, "open", fail)
    monkeypatch.setattr(filesystem.disk, "unlink", fail)
    with pytest.raises(
        StoreError, match=r"cannot write .*about.json: Read-only file system; .*make it writable"
    ):
        filesystem.write_atomically(tmp_path / "about.json", b"{}")


def test_an_append_removes_an_invalid_rest_first(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    file = AppendOnlyFile(path, 4)
    assert path.read_bytes() == b"one\ntw"
    file.append(b"2\n")
    assert path.read_bytes() == b"one\n2\n"
    assert file.length == 6
    file.cut(4)
    file.append(b"3\n")
    file.close()
    assert path.read_bytes() == b"one\n3\n"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_a_failed_append_has_no_effect(tmp_path, monkeypatch, error):
    path = tmp_path / "log"
    file = AppendOnlyFile(path, 0)
    file.append(b"one\n")

    def fail(fd):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((StoreError, KeyboardInterrupt)):
        file.append(b"two\n")
    monkeypatch.undo()
    assert path.read_bytes() == b"one\n"
    file.append(b"two\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_errors_of_quick_writes_and_removals_name_the_file(tmp_path):
    with pytest.raises(StoreError, match=r"cannot write .*absent/a: No such file"):
        write_quickly(tmp_path / "absent" / "a", b"")
    remove(tmp_path / "a")
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}: "):
        remove(tmp_path)


def test_nothing_is_written_through_a_link(tmp_path):
    target = tmp_path / "thesis.txt"
    target.write_text("years of work")
    link = tmp_path / "journal.jsonl"
    link.symlink_to(target)
    for write in (
        lambda: AppendOnlyFile(link, 0),
        lambda: write_quickly(link, b"x"),
    ):
        with pytest.raises(StoreError, match=r"journal\.jsonl: .*remove the symbolic link"):
            write()
    with pytest.raises(OSError, match="symbolic links"):
        filesystem.open_lock_file(link)
    assert target.read_text() == "years of work"
    filesystem.write_atomically(link, b"replaces the link")
    assert target.read_text() == "years of work"


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="is not a regular file"):
            filesystem.read_file(path)
    with pytest.raises(StoreError, match="cannot write"):
        AppendOnlyFile(pipe, 0)


def test_a_large_file_of_settings_is_refused(tmp_path):
    file = tmp_path / "run.toml"
    with open(file, "wb") as sparse:
        sparse.truncate(limits.SETTINGS_BYTES + 1)
    with pytest.raises(StoreError, match=r"run\.toml: it has more than 16,777,216 bytes"):
        filesystem.read_settings(file)


def test_the_parents_of_a_new_directory_are_synced(tmp_path, monkeypatch):
    synced = []
    real = filesystem.sync
    monkeypatch.setattr(filesystem, "sync", lambda path: (synced.append(path), real(path)))
    filesystem.make_directories(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    filesystem.make_directories(tmp_path / "a" / "b")
    assert len(synced) == 2
    AppendOnlyFile(tmp_path / "a" / "log", 0).close()
    assert synced[2:] == [tmp_path / "a"]


def test_macos_flushes_the_drive(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: asked.append(command))
    filesystem.write_atomically(tmp_path / "file", b"data")
    assert asked == [51, 51]


def test_a_faster_process_may_remove_the_temporary_file_of_a_slower_one(tmp_path, monkeypatch):
    place = tmp_path / "owner.json"
    link = filesystem.disk.link

    def link_too_late(source, target):
        Path(source).unlink()
        if is_taken:
            Path(target).write_bytes(b"first")
        return link(source, target)

    monkeypatch.setattr(filesystem.disk, "link", link_too_late)
    is_taken = True
    filesystem.create_exclusively(place, b"second")
    assert place.read_bytes() == b"first"
    place.unlink()
    is_taken = False
    with pytest.raises(StoreError, match="owner.json"):
        filesystem.create_exclusively(place, b"second")


def failing_disk(error, *calls):
    """Return a disk on which some calls fail."""

    def fail(self, *arguments):
        raise OSError(error, os.strerror(error))

    return type("Failing", (filesystem.Disk,), dict.fromkeys(calls, fail))()


def test_without_hard_links_a_file_has_one_author(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "disk", failing_disk(errno.EPERM, "link"))
    path = tmp_path / "owner.json"
    filesystem.create_exclusively(path, b"first")
    filesystem.create_exclusively(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["owner.json"]


def test_a_shorter_file_leaves_nothing_of_a_longer_one(tmp_path):
    write_quickly(tmp_path / "file", b"long content")
    write_quickly(tmp_path / "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"


def test_quick_writes_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "disk", failing_disk(errno.EIO, "sync"))
    write_quickly(tmp_path / "file", b"data")
    log = AppendOnlyFile(tmp_path / "log", 0, durable=False)
    log.append(b"data")
    log.cut(2)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"da"
    with pytest.raises(StoreError, match=r"cannot write .*log: .*check the disk"):
        AppendOnlyFile(tmp_path / "log", 0).append(b"data")


@pytest.mark.parametrize("call", [filesystem.make_directories, filesystem.list_names])
def test_errors_of_directories_name_the_place(tmp_path, call):
    (tmp_path / "file").touch()
    place = (
        tmp_path / "file" / "below" if call is filesystem.make_directories else tmp_path / "file"
    )
    with pytest.raises(StoreError, match=rf"cannot .* {place}: Not a directory; .*make it"):
        call(place)


@pytest.mark.parametrize("call", ["exists", "is_directory", "size_of"])
def test_what_cannot_be_looked_up_is_an_error(tmp_path, monkeypatch, call):
    function = getattr(filesystem, call)
    assert not function(tmp_path / "missing")
    monkeypatch.setattr(filesystem, "disk", failing_disk(errno.EACCES, "stat"))
    with pytest.raises(StoreError, match=r"cannot read .*file: .* denied; make it readable"):
        function(tmp_path / "file")


def test_settings_are_not_read_through_a_link_unless_allowed(tmp_path):
    (tmp_path / "file").write_bytes(b"seed = 1 # \xff")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert filesystem.read_settings(tmp_path / "link") == "seed = 1 # \ufffd"
    with pytest.raises(StoreError, match="remove the symbolic link"):
        filesystem.read_settings(tmp_path / "link", follow_links=False)


def test_no_more_is_read_than_the_limit(tmp_path, monkeypatch):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**33)
    sizes = []

    class Counting(filesystem.Disk):
        def read(self, fd, size):
            data = super().read(fd, min(size, 2**20))
            sizes.append(len(data))
            assert sum(sizes) < 2**20
            return data

    monkeypatch.setattr(filesystem, "disk", Counting())
    with pytest.raises(OSError, match="more than 1,000 bytes"):
        filesystem.read_file(tmp_path / "sparse", 1000)


def test_an_append_removes_a_rest_only_once(tmp_path, monkeypatch):
    lengths = []

    class Counting(filesystem.Disk):
        def truncate(self, fd, length):
            lengths.append(length)
            super().truncate(fd, length)

    monkeypatch.setattr(filesystem, "disk", Counting())
    file = AppendOnlyFile(tmp_path / "log", 0)
    file.append(b"one")
    file.append(b"two")
    file.close()
    assert lengths == [0]


def test_an_append_that_cannot_be_undone_says_why_it_failed(tmp_path, monkeypatch):
    file = AppendOnlyFile(tmp_path / "log", 0)
    file.append(b"one")
    monkeypatch.setattr(filesystem, "disk", failing_disk(errno.EIO, "write", "truncate"))
    with pytest.raises(StoreError, match=r"cannot write .*log: .*check the disk"):
        file.append(b"two")
    with pytest.raises(StoreError, match=r"cannot write .*log: .*check the disk"):
        file.cut(1)
    monkeypatch.undo()
    file.append(b"two")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"onetwo"


def make_tree(path):
    (path / "folder" / "deeper").mkdir(parents=True)
    (path / "file").write_bytes(b"1" * 200_000)
    (path / "folder" / "other").write_bytes(b"2")
    (path / "folder" / "deeper" / "last").write_bytes(b"")
    (path / "not copied").write_bytes(b"3")
    return path


def contents(path):
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_a_copy_of_a_directory_has_the_named_files_and_folders(tmp_path):
    source = make_tree(tmp_path / "source")
    # A killed process leaves a part of a copy.
    (tmp_path / "target.tmp").mkdir()
    (tmp_path / "target.tmp" / "rest").write_bytes(b"4")
    filesystem.copy_directory(source, tmp_path / "target", ("file", "folder", "missing"))
    expected = contents(source)
    del expected["not copied"]
    assert contents(tmp_path / "target") == expected
    assert sorted(place.name for place in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.parametrize("call", ["read", "write", "sync", "replace"])
def test_a_copy_that_fails_leaves_no_directory(tmp_path, monkeypatch, call):
    source = make_tree(tmp_path / "source")

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(filesystem.disk, call, fail)
    with pytest.raises(StoreError, match="check the disk"):
        filesystem.copy_directory(source, tmp_path / "target", ("file", "folder"))
    assert not (tmp_path / "target").exists()


def test_a_directory_is_removed_with_everything_in_it(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "tree")
    filesystem.remove_directory(tree)
    filesystem.remove_directory(tree)
    assert not tree.exists()

    def fail(path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(filesystem.disk, "remove_tree", fail)
    with pytest.raises(StoreError, match=f"cannot write {tree}"):
        filesystem.remove_directory(tree)
