"""Disks that take the place of the real one: one whose calls fail, and one that is cut off."""

import errno
import os
from contextlib import contextmanager

from attack.record import WatchedDisk
from mopbt import filesystem
from mopbt.filesystem import Disk

CALLS = ("open", "read", "stat", "names", "write", "truncate", "sync", "close", "replace", "link")
CALLS = (*CALLS, "unlink", "mkdir")
READING = ("read", "stat", "names")
# Which calls an error can come from.
ERRORS = {
    "EIO": CALLS,
    "ESTALE": CALLS,
    "EINTR": CALLS,
    "ENOSPC": ("open", "write", "truncate", "sync", "close", "replace", "link", "mkdir"),
    "EMFILE": ("open", "names"),
    "short": ("write", "read"),
}
REMOTE_ERRORS = {
    "lost": ConnectionResetError("the connection was reset"),
    "slow": TimeoutError("timed out"),
    "EIO": OSError(errno.EIO, "Input/output error"),
    "refused": PermissionError(errno.EACCES, "the token has expired"),
}


class Killed(BaseException):
    """The process is killed: no code of it may run, and none of it may change the disk."""


@contextmanager
def disk(replacement):
    """Let all calls go through another disk."""
    original = filesystem.disk
    filesystem.disk = replacement
    try:
        yield replacement
    finally:
        filesystem.disk = original


class CutDisk(WatchedDisk):
    """A disk that a process reaches until it is killed at one of its calls.

    Args:
        below: The disk.
        left: How many calls succeed before that.
    """

    def __init__(self, below, left):
        self._below = below
        self.left = left
        self._leaked = []

    def end(self):
        """Close the files of the killed process, as the operating system does."""
        for fd in self._leaked:
            os.close(fd)
        self._leaked = []

    def shown(self, job):
        if self.left > 0:
            self._below.shown(job)

    def close(self, fd):
        # Also a killed process has its files closed.
        if self.left > 0:
            self._below.close(fd)
        else:
            self._leaked.append(fd)


def _cut(name):
    def wrapped(self, *arguments):
        if self.left <= 0:
            if name == "write" and self.left == 0:
                fd, data, offset = arguments
                self._below.write(fd, data[: len(data) // 2], offset)
            self.left = -1
            raise Killed
        self.left -= name not in READING
        return getattr(self._below, name)(*arguments)

    return wrapped


for _name in (*CALLS, "remote", "remote_done"):
    if _name != "close":
        setattr(CutDisk, _name, _cut(_name))


class DeadlyDisk(Disk):
    """A disk that ends the first process that writes to it, after half of its bytes.

    Args:
        mark: A file that says that a process has died.
    """

    def __init__(self, mark):
        self._mark = mark

    def write(self, fd, data, offset):
        if self._mark.exists():
            return super().write(fd, data, offset)
        self._mark.touch()
        super().write(fd, data[: len(data) // 2], offset)
        os._exit(9)


class FailingDisk(WatchedDisk):
    """A disk that raises an error at its k-th call, or reads or writes only a part of the bytes.

    If that call cannot fail in this way, the next one that can does. A call to a remote storage
    fails once, or, from the k-th call on, as often as it is tried.
    """

    def __init__(self, call, kind):
        self.calls = []  # the names of all calls
        self.failed = ""  # the name of the call that failed
        self._call = call
        self._kind = kind

    def _is_due(self, name):
        self.calls.append(name)
        if self.failed or not 0 < self._call <= len(self.calls) or self._kind not in kinds_of(name):
            return False
        self.failed = name
        return True

    def _fail(self):
        number = getattr(errno, self._kind)
        raise OSError(number, os.strerror(number))

    def write(self, fd, data, offset):
        if not self._is_due("write"):
            return super().write(fd, data, offset)
        if self._kind == "short":
            return super().write(fd, data[: max(len(data) // 2, 1)], offset)
        # A part may be written before the error.
        super().write(fd, data[: len(data) // 2], offset)
        self._fail()

    def read(self, fd, size):
        if not self._is_due("read"):
            return super().read(fd, size)
        if self._kind == "short":
            return super().read(fd, max(size // 2, 1))
        self._fail()

    def close(self, fd):
        super().close(fd)
        if self._is_due("close"):
            self._fail()

    def remote(self, name, path, data=None):
        kind, _, again = self._kind.partition(" ")
        call = f"remote {name}"
        if self._is_due(call) or (again and self.failed == call):
            raise REMOTE_ERRORS[kind]


def _failing(name):
    call = getattr(Disk, name)

    def wrapped(self, *arguments):
        if self._is_due(name):
            self._fail()
        return call(self, *arguments)

    return wrapped


for _name in ("open", "stat", "names", "truncate", "sync", "replace", "link", "unlink", "mkdir"):
    setattr(FailingDisk, _name, _failing(_name))


def kinds_of(call):
    """Return the ways in which a call can fail."""
    if call.startswith("remote "):
        return [*REMOTE_ERRORS, *(f"{kind} again" for kind in REMOTE_ERRORS)]
    return [kind for kind, calls in ERRORS.items() if call in calls]
