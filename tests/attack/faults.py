"""A disk whose k-th call fails, once."""

import errno
import os

from mopbt.filesystem import Disk

ERRORS = ("EIO", "ENOSPC", "EMFILE", "EINTR", "ESTALE")
KINDS = (*ERRORS, "short")


class FailingDisk(Disk):
    """A disk that raises an error at its k-th call, or writes only a part of the bytes."""

    def __init__(self, call, kind):
        self.calls = 0
        self.failed = ""  # the name of the call that failed
        self._call = call
        self._kind = kind

    def _is_due(self, name):
        self.calls += 1
        if self.calls == self._call:
            self.failed = name
        return self.calls == self._call

    def _fail(self):
        number = getattr(errno, self._kind)
        raise OSError(number, os.strerror(number))

    def write(self, fd, data, offset):
        due = self._is_due("write")
        if due and self._kind != "short":
            # A part may be written before the error.
            super().write(fd, data[: len(data) // 2], offset)
            self._fail()
        return super().write(fd, data[: max(len(data) // 2, 1)] if due else data, offset)

    def close(self, fd):
        super().close(fd)
        if self._is_due("close") and self._kind != "short":
            self._fail()


def _failing(name):
    call = getattr(Disk, name)

    def wrapped(self, *arguments):
        if self._is_due(name) and self._kind != "short":
            self._fail()
        return call(self, *arguments)

    return wrapped


for _name in ("open", "truncate", "sync", "replace", "link", "unlink", "mkdir"):
    setattr(FailingDisk, _name, _failing(_name))
