"""The one seam to the disk: only this module reads and writes the files of a run.

What a function has written is durable when it returns, unless it says otherwise. Errors of the
disk become a StoreError with the remedy. All calls to the operating system go through `Disk`, which
the tests replace to record them, or to let one of them fail.
"""

import errno
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from mopbt.errors import StorageFull, StoreError
from mopbt.limits import SETTINGS_BYTES

# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# A link is not followed, so that no file outside of a run is changed. A pipe is not waited for.
if sys.platform == "win32":
    # Descriptors are not inherited there. Links need an administrator, and are followed.
    _NO_LINK = 0
    _NO_WAIT = os.O_BINARY | os.O_NOINHERIT
else:
    import fcntl

    _NO_LINK = os.O_NOFOLLOW
    _NO_WAIT = os.O_NONBLOCK | os.O_CLOEXEC
_PLAIN = _NO_LINK | _NO_WAIT
# Bytes that are read at a time.
_BUFFER = 2**17
_LARGEST_READ = 2**24
_REMEDIES = {
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the file system again",
    errno.EMFILE: "close files, or raise the limit (`ulimit -n`)",
    errno.ENFILE: "close other programs",
    errno.EINTR: "do not interrupt it",
    errno.ELOOP: "remove the symbolic link",
    errno.EINVAL: "put back the file that the run wrote",
    errno.EFBIG: "put back the file that the run wrote",
}

# Executes a read, and returns what it returned.
Guard: TypeAlias = Callable[[Callable[[], bytes]], bytes]


class Disk:
    """The calls to the operating system that read or change files."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, or create it, and return its descriptor."""
        return os.open(path, flags, 0o644)

    def read(self, fd: int, size: int) -> bytes:
        """Read at most `size` bytes from the current position."""
        return os.read(fd, size)

    def stat(self, path: Path) -> os.stat_result:
        """Return what is known about a file or a directory."""
        return os.stat(path)

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(path)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write bytes at an offset and return how many were written."""
        if sys.platform == "win32":
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of a file."""
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """Wait until a file, or the names in a directory, are on the disk."""
        if sys.platform == "darwin":
            # There, fsync only hands the data to the drive, which may keep it in its cache.
            with suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, and replace the target if it exists."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if that exists."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """Create a directory."""
        os.mkdir(path)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it."""
        shutil.rmtree(path)


disk = Disk()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is complete or absent after a crash."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        _write_new(temporary, data, durable=True)
        disk.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        # On a read-only file system the removal fails too, and would hide the cause.
        with suppress(OSError):
            disk.unlink(temporary)
        raise cannot_write(error, path) from error


def write_quickly(path: Path, data: bytes) -> None:
    """Write a file without waiting for the disk; a crash may leave a part of it."""
    try:
        _write_new(path, data, durable=False)
    except OSError as error:
        raise cannot_write(error, path) from error


class NewFile:
    """A file that is written in parts, and gets its name when it is complete.

    After a crash it is complete or absent, like one that `write_atomically` wrote.

    Args:
        path: The file. It is written beside it, under a temporary name.
        durable: If false, nothing waits for the disk.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self.length = 0
        try:
            self._fd = _open_plainly(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise cannot_write(error, path) from error
        self._is_open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at the end, without waiting for the disk."""
        try:
            _write_all(self._fd, memoryview(data), self.length)
        except OSError as error:
            self.discard()
            raise cannot_write(error, self._path) from error
        self.length += memoryview(data).nbytes

    def commit(self, path: Path | None = None) -> None:
        """Make the file durable and give it its name, or another one in the same folder."""
        path = path or self._path
        try:
            if self._durable:
                disk.sync(self._fd)
            self._is_open = False
            disk.close(self._fd)
            disk.replace(self._temporary, path)
            if self._durable:
                sync(path.parent)
        except OSError as error:
            self.discard()
            raise cannot_write(error, path) from error

    def discard(self) -> None:
        """Remove the file."""
        # On a read-only file system the removal fails too, and would hide the cause.
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                disk.close(self._fd)
        with suppress(OSError):
            disk.unlink(self._temporary)


def create_exclusively(path: Path, data: bytes) -> None:
    """Write a complete file, unless it exists.

    Of several processes, only one succeeds.
    """
    # Processes on several machines may have the same number.
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        _write_new(temporary, data, durable=True)
        try:
            disk.link(temporary, path)
        except FileExistsError:
            pass
        except FileNotFoundError:
            # A process that was faster may have removed the temporary file as a leftover.
            if not _exists(path):
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # The file may be read while it is empty, but it still has one author.
            with suppress(FileExistsError):
                _write_new(path, data, durable=True, flags=os.O_EXCL)
        sync(path.parent)
    except OSError as error:
        raise cannot_write(error, path) from error
    finally:
        with suppress(OSError):
            disk.unlink(temporary)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, so that they survive a crash."""
    try:
        missing = [place for place in (path, *path.parents) if not _exists(place)]
        for place in reversed(missing):
            with suppress(FileExistsError):
                disk.mkdir(place)
            sync(place.parent)
    except OSError as error:
        raise cannot_write(error, path) from error


def remove(path: Path) -> None:
    """Remove a file, if it exists, without waiting for the disk."""
    try:
        with suppress(FileNotFoundError):
            disk.unlink(path)
    except OSError as error:
        raise cannot_write(error, path) from error


def remove_directory(path: Path) -> None:
    """Remove a directory with everything in it, if it exists.

    It does not wait for the disk.
    """
    try:
        with suppress(FileNotFoundError):
            disk.remove_tree(path)
    except OSError as error:
        raise cannot_write(error, path) from error


def copy_directory(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files and folders of a directory to a new one, which is complete or absent.

    Names that do not exist in the source are left out.
    """
    copy = target.with_name(f"{target.name}.tmp")
    # An earlier attempt may have been killed.
    remove_directory(copy)
    make_directories(copy)
    for name in names:
        if exists(source / name):
            _copy(source / name, copy / name)
    try:
        disk.replace(copy, target)
        sync(target.parent)
    except OSError as error:
        raise cannot_write(error, target) from error


def _copy(source: Path, target: Path) -> None:
    if is_directory(source):
        make_directories(target)
        for name in list_names(source):
            _copy(source / name, target / name)
        return
    new = NewFile(target)
    try:
        with open_to_read(source) as file:
            while data := file.read(_LARGEST_READ):
                new.write(data)
    except OSError as error:
        new.discard()
        raise cannot_read(error, source) from error
    new.commit()


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    if sys.platform == "win32":
        # Directories cannot be opened there, and files were synchronized when they were written.
        return
    fd = disk.open(path, os.O_RDONLY)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)


def open_lock_file(path: Path) -> IO[bytes]:
    """Open a lock file for reading and writing, and create it if needed."""
    return io.BufferedReader(_Raw(_open_plainly(path, os.O_RDWR | os.O_CREAT)))


def replace_text(file: IO[bytes], text: str) -> None:
    """Replace the content of an open lock file, without waiting for the disk."""
    disk.truncate(file.fileno(), 0)
    _write_all(file.fileno(), text.encode(), 0)


def exists(path: Path) -> bool:
    """Return whether a file or a directory exists.

    Raises StoreError if that cannot be found out.
    """
    try:
        return _exists(path)
    except OSError as error:
        raise cannot_read(error, path) from error


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory; StoreError if that cannot be found out."""
    try:
        return stat.S_ISDIR(disk.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise cannot_read(error, path) from error


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return disk.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise cannot_read(error, path) from error


def list_names(path: Path) -> list[str]:
    """Return the sorted names in a directory; none if it does not exist."""
    try:
        return sorted(disk.names(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(error, path) from error


def open_to_read(path: Path, *, follow_links: bool = True, guard: Guard | None = None) -> IO[bytes]:
    """Open a regular file; OSError for a pipe, a device or a directory.

    `guard` executes each read of the file, for example again if it fails.
    """
    fd = disk.open(path, os.O_RDONLY | _NO_WAIT | (0 if follow_links else _NO_LINK))
    _check_regular(fd, path)
    return io.BufferedReader(_Raw(fd, guard), _BUFFER)


def read_file(path: Path, most: int | None = None, *, follow_links: bool = True) -> bytes:
    """Read a regular file.

    Raises OSError if it cannot be read, or has more than `most` bytes.
    """
    with open_to_read(path, follow_links=follow_links) as file:
        data = file.read(-1 if most is None else most + 1)
    if most is not None and len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return data


def read_settings(path: Path, *, follow_links: bool = True) -> str:
    """Read a file of settings; StoreError if it cannot be read or is too large."""
    try:
        data = read_file(path, SETTINGS_BYTES, follow_links=follow_links)
    except OSError as error:
        raise cannot_read(error, path) from error
    return data.decode("utf-8", "replace")


class _Raw(io.RawIOBase):
    """An open file that is read through `disk`."""

    def __init__(self, fd: int, guard: Guard | None = None) -> None:
        self._fd = fd
        self._guard = guard

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._fd, offset, whence)

    def readinto(self, buffer: Any) -> int:
        data = self._read(min(len(buffer), _LARGEST_READ))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        # In one piece, because a checkpoint may be large.
        left = os.fstat(self._fd).st_size - os.lseek(self._fd, 0, os.SEEK_CUR)
        parts = []
        while data := self._read(max(left, _BUFFER)):
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, size: int) -> bytes:
        if self._guard is None:
            return disk.read(self._fd, size)
        return self._guard(lambda: disk.read(self._fd, size))

    def close(self) -> None:
        if not self.closed:
            super().close()
            # What was read is complete, so an error is of no consequence.
            with suppress(OSError):
                disk.close(self._fd)


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
        try:
            is_new = not _exists(path)
            self._fd = _open_plainly(path, os.O_RDWR | os.O_CREAT)
            if is_new and durable:
                sync(path.parent)
        except OSError as error:
            raise cannot_write(error, path) from error
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
                disk.truncate(self._fd, self._length)
                self._has_rest = False
            self._write(data)
            if self._durable:
                disk.sync(self._fd)
        except BaseException as error:
            # Also after Ctrl-C: later bytes must not follow half of these.
            self._has_rest = True
            with suppress(OSError):
                disk.truncate(self._fd, self._length)
            if isinstance(error, OSError):
                raise cannot_write(error, self._path) from error
            raise
        self._length += len(data)

    def cut(self, length: int) -> None:
        """Remove everything after the first `length` bytes."""
        try:
            disk.truncate(self._fd, length)
            if self._durable:
                disk.sync(self._fd)
        except OSError as error:
            raise cannot_write(error, self._path) from error
        self._length = length

    def close(self) -> None:
        """Close the file; what was appended is durable, so an error is of no consequence."""
        if self._fd >= 0:
            with suppress(OSError):
                disk.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        _write_all(self._fd, data, self._length)


def _write_new(path: Path, data: bytes, *, durable: bool, flags: int = 0) -> None:
    """Write a complete file; OSError if that fails."""
    fd = _open_plainly(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags)
    try:
        _write_all(fd, data, 0)
        if durable:
            disk.sync(fd)
    finally:
        disk.close(fd)


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    # A view, because the rest of a large file must not be copied.
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        written += disk.write(fd, view[written:], offset + written)


def _open_plainly(path: Path, flags: int) -> int:
    """Open a regular file, without following links or waiting for a pipe."""
    fd = disk.open(path, flags | _PLAIN)
    _check_regular(fd, path)
    return fd


def _exists(path: Path) -> bool:
    try:
        disk.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_regular(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")


def cannot_write(error: OSError, path: Path) -> StoreError:
    """Return the error, with the remedy, for a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"no space left to write {path}; nothing reported is lost: free some space, then rerun "
            "to resume"
        )
    why = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "make it writable")
    return StoreError(
        f"cannot write {path}: {why}; nothing reported is lost: {remedy}, then rerun to resume"
    )


def cannot_read(error: OSError, path: Path) -> StoreError:
    """Return the error, with the remedy, for a file that cannot be read."""
    why = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "make it readable")
    return StoreError(f"cannot read {path}: {why}; {remedy}, then try again")
