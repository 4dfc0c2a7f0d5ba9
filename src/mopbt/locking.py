"""Lock a directory with a file in it, on POSIX systems and on Windows.

The operating system releases a lock when its file is closed, and so when its process dies.
"""

import errno
import os
import socket
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from mopbt.errors import RunLocked, StoreError
from mopbt.filesystem import (
    cannot_read,
    cannot_write,
    open_lock_file,
    open_to_read,
    replace_text,
)

# How the text of a lock begins, and how many characters of it are read.
_HOLDER = "process "
_LONGEST_HOLDER = 1000

if sys.platform == "win32":
    import msvcrt

    # On Windows no other process can read a locked byte, so it lies behind the text of the file.
    _LOCKED_BYTE = 2**30
    _TAKEN = (errno.EACCES, errno.EDEADLK)

    def try_lock(fd: int, *, shared: bool = False) -> bool:
        """Lock a file and return whether that succeeded.

        On Windows, every lock is exclusive.
        """
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            return False
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def try_lock(fd: int, *, shared: bool = False) -> bool:
        """Lock a file, exclusively or shared, and return whether that succeeded."""
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Lock:
    """A file lock that the operating system releases when its process dies."""

    def __init__(self, path: Path, hint: str) -> None:
        # The file stays open as long as the lock is held.
        try:
            self._file = open_lock_file(path)
        except OSError as error:
            raise cannot_write(error, path) from error
        try:
            self._acquire(path, hint)
            _check_own(self._file, path)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on {socket.gethostname()} since {started}"
            replace_text(self._file, holder)
        except OSError as error:
            self._file.close()
            raise cannot_write(error, path) from error
        except BaseException:
            self._file.close()
            raise
        _HELD_LOCKS.add(self)

    def release(self) -> None:
        """Release the lock."""
        _HELD_LOCKS.discard(self)
        # Without its name, the lock of a process that has ended is still free.
        with suppress(OSError):
            replace_text(self._file, "")
        with suppress(OSError):
            self._file.close()

    def close_in_child(self) -> None:
        """Close the file in a forked child, so that the lock ends with the parent."""
        self._file.close()

    def _acquire(self, path: Path, hint: str) -> None:
        # Several attempts, because `holder_of` in another process locks the file for an instant.
        for _ in range(20):
            try:
                if try_lock(self._file.fileno()):
                    return
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be locked ({error.strerror}), so two processes could write "
                    "the same run; use a file system with locks, such as a local disk (on a "
                    "cluster, ask for `flock`)"
                ) from error
            time.sleep(0.025)
        holder = _read_holder(self._file) or "another process"
        raise RunLocked(
            f"{path.parent} is locked by {holder}; wait for it, stop it, or use another directory "
            f"({hint})"
        )


_HELD_LOCKS: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_locks_in_child() -> None:
    for lock in list(_HELD_LOCKS):
        lock.close_in_child()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_locks_in_child)


def _read_holder(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LONGEST_HOLDER).decode("utf-8", "replace").strip("\0 \n")


def _check_own(file: IO[bytes], path: Path) -> None:
    """Raise StoreError if a file is not the lock of a run: it would be overwritten."""
    text = _read_holder(file)
    if not (text.startswith(_HOLDER) or _HOLDER.startswith(text)):
        raise StoreError(
            f"{path} is not the lock of a run: it holds {text[:40]!r}; move that file away, or use "
            "another directory"
        )


def holder_of(path: Path | str) -> str:
    """Describe the process that is executing a run; an empty string if there is none."""
    try:
        with open_to_read(Path(path) / "lock", follow_links=False) as file:
            if try_lock(file.fileno(), shared=True):
                return ""
            return _read_holder(file) or "another process"
    except FileNotFoundError:
        return ""
    except OSError as error:
        # Without locks on its file system, a run cannot be executed.
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return ""
        raise cannot_read(error, Path(path) / "lock") from error
