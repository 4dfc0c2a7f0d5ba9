"""The one seam to the disk: only this module writes the files of a run.

What a function has written is durable when it returns, unless it says otherwise. Errors of the
disk become a StoreError with the remedy.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from mopbt.errors import StorageFull, StoreError

# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is complete or absent after a crash."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        # On a read-only file system the removal fails too, and would hide the cause.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot_write(error, path) from error


def write_quickly(path: Path, data: bytes) -> None:
    """Write a file without waiting for the disk; a crash may leave a part of it."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise cannot_write(error, path) from error


def create_exclusively(path: Path, data: bytes) -> None:
    """Write a complete file, unless it exists; of several processes, only one succeeds."""
    # Processes on several machines may have the same number.
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        write_quickly(temporary, data)
        sync(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # The file may be read while it is empty, but it still has one author.
            with suppress(FileExistsError), open(path, "xb") as file:
                file.write(data)
        sync(path.parent)
    except OSError as error:
        raise cannot_write(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if it exists, without waiting for the disk."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(error, path) from error


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_lock_file(path: Path) -> IO[Any]:
    """Open a lock file for reading and writing, and create it if needed."""
    return open(path, "a+", encoding="utf-8")


def replace_text(file: IO[Any], text: str) -> None:
    """Replace the content of an open lock file, without waiting for the disk."""
    file.truncate(0)
    file.write(text)
    file.flush()


class AppendOnlyFile:
    """A file that grows at its end.

    An append is durable when it returns, or has no effect.

    Args:
        path: The file; it is created if needed.
        length: How many bytes of the file are valid. The rest is removed by the first append.
        durable: If false, appends do not wait for the disk.
    """

    def __init__(self, path: Path, length: int, *, durable: bool = True) -> None:
        self._durable = durable
        self._path = path
        self._length = length
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        # Until the first append nothing is changed.
        self._has_rest = True

    @property
    def length(self) -> int:
        """Return the length of the file in bytes."""
        return self._length

    def append(self, data: bytes) -> None:
        """Write bytes at the end and flush them to the disk; if that fails, none remain."""
        try:
            if self._has_rest:
                os.ftruncate(self._fd, self._length)
                self._has_rest = False
            self._write(data)
            if self._durable:
                os.fsync(self._fd)
        except BaseException as error:
            # Also after Ctrl-C: later bytes must not follow half of these.
            os.ftruncate(self._fd, self._length)
            if isinstance(error, OSError):
                raise cannot_write(error, self._path) from error
            raise
        self._length += len(data)

    def cut(self, length: int) -> None:
        """Remove everything after the first `length` bytes."""
        os.ftruncate(self._fd, length)
        if self._durable:
            os.fsync(self._fd)
        self._length = length

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._length + written)


def cannot_write(error: OSError, path: Path) -> StoreError:
    """Return the error, with the remedy, for a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"no space left to write {path}; nothing reported is lost: free some space, then rerun "
            "to resume"
        )
    why = error.strerror or str(error)
    return StoreError(
        f"cannot write {path}: {why}; nothing reported is lost: make it writable, then rerun to "
        "resume"
    )
