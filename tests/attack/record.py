"""Record what a run does to its disk, in one process or in several, and what its user saw."""

import fcntl
import os
import pickle
from contextlib import contextmanager
from pathlib import Path

from mopbt.filesystem import Disk


class WatchedDisk(Disk):
    """A disk that also sees the calls to a remote storage, and what the user was shown."""

    def remote(self, name, path, data=None):
        """See a call to the remote storage before it happens."""

    def remote_done(self, name, path, data=None):
        """See a call to the remote storage that has succeeded."""

    def shown(self, job):
        """See that the user was shown the report of a job."""


class Recorder(WatchedDisk):
    """A disk that records what changes the files below a directory.

    Args:
        root: The directory.
        log: A file that several processes append their records to; None keeps them in memory.
    """

    def __init__(self, root, log=None):
        self.root = Path(root)
        self._log = log
        self._raw = []
        self._open = {}  # a name for each open file, by descriptor
        self._opened = 0

    def __reduce__(self):
        # Worker processes get a copy without the records of this process.
        return Recorder, (self.root, self._log)

    @property
    def events(self):
        """Return all events in their order, with files instead of descriptors."""
        raw = self._raw
        if self._log is not None:
            raw = list(_read_log(self._log))
        return resolve(raw)

    def _relative(self, path):
        return str(path)[len(str(self.root)) + 1 :]

    @contextmanager
    def _recording(self):
        """Execute a call and record it, in the same order in all processes."""
        if self._log is None:
            yield self._raw.append
            return
        with open(self._log, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield lambda event: file.write(pickle.dumps(event))

    def open(self, path, flags):
        if not flags & (os.O_WRONLY | os.O_RDWR) and not path.is_dir():
            return super().open(path, flags)
        with self._recording() as record:
            created = not path.exists()
            fd = super().open(path, flags)
            self._opened += 1
            self._open[fd] = (os.getpid(), self._opened)
            is_folder = path.is_dir()
            truncated = bool(flags & os.O_TRUNC)
            record(("open", self._open[fd], self._relative(path), is_folder, created, truncated))
        return fd

    def write(self, fd, data, offset):
        with self._recording() as record:
            written = super().write(fd, data, offset)
            record(("write", self._open[fd], bytes(data[:written]), offset))
        return written

    def truncate(self, fd, length):
        with self._recording() as record:
            super().truncate(fd, length)
            record(("truncate", self._open[fd], length))

    def sync(self, fd):
        with self._recording() as record:
            super().sync(fd)
            record(("sync", self._open[fd]))

    def close(self, fd):
        super().close(fd)
        self._open.pop(fd, None)

    def replace(self, source, target):
        with self._recording() as record:
            super().replace(source, target)
            record(("rename", self._relative(source), self._relative(target)))

    def link(self, source, target):
        with self._recording() as record:
            super().link(source, target)
            record(("link", self._relative(source), self._relative(target)))

    def unlink(self, path):
        with self._recording() as record:
            super().unlink(path)
            record(("unlink", self._relative(path)))

    def mkdir(self, path):
        with self._recording() as record:
            super().mkdir(path)
            record(("mkdir", self._relative(path)))

    def remote_done(self, name, path, data=None):
        with self._recording() as record:
            record((name, self._relative(path), data))

    def shown(self, job):
        with self._recording() as record:
            record(("shown", job))


def _read_log(log):
    with open(log, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def split(path):
    """Return the directory and the name of a path below the root."""
    folder, _, name = path.rpartition("/")
    return folder, name


def resolve(raw):
    """Replace descriptors and paths by the files that they meant, each with a number.

    Files that existed before the record have their path instead of a number.
    """
    events = []
    numbers = {}  # by path
    files = {}  # the file, or directory, of an open descriptor
    for event in raw:
        match event:
            case ("open", descriptor, path, *_):
                events += _opened(event, numbers, len(events))
                is_folder = event[3]
                files[descriptor] = ("folder", path) if is_folder else numbers.get(path, path)
            case ("write" | "truncate" | "sync" as kind, descriptor, *rest):
                events.append((kind, files[descriptor], *rest))
            case ("rename" | "link" | "unlink" | "mkdir", *_):
                events.append(_named(event, numbers))
            case _:
                events.append(event)
    return events


def _opened(event, numbers, number):
    """Return the events of opening a file, which may create or empty it."""
    _, _, path, _, created, truncated = event
    if created:
        numbers[path] = number
        return [("name", *split(path), number)]
    return [("truncate", numbers.get(path, path), 0)] if truncated else []


def _named(event, numbers):
    """Return the event of a change of names."""
    match event:
        case ("rename", source, target):
            numbers[target] = numbers.pop(source, source)
            return "rename", *split(source), split(target)[1], numbers[target]
        case ("link", source, target):
            numbers[target] = numbers.get(source, source)
            return "name", *split(target), numbers[target]
        case ("unlink", path):
            numbers.pop(path, None)
            return "unname", *split(path)
        case ("mkdir", path):
            return "name", *split(path), ("folder", path)
