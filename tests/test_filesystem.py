import errno
import os

import pytest

from mopbt import filesystem
from mopbt.errors import StorageFull, StoreError
from mopbt.filesystem import AppendOnlyFile, remove, write_quickly


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_device(tmp_path):
    os.symlink("/dev/full", tmp_path / f"y.{os.getpid()}.tmp")
    with pytest.raises(StorageFull, match="no space left to write"):
        filesystem.write_atomically(tmp_path / "y", b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []
    filesystem.write_atomically(tmp_path / "y", b"fits")
    assert (tmp_path / "y").read_bytes() == b"fits"


def test_a_read_only_file_system_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    """The temporary file cannot be removed either, and that error must not hide the first."""

    def fail(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(filesystem, "open", fail, raising=False)
    monkeypatch.setattr(type(tmp_path), "unlink", fail)
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
