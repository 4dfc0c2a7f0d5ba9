"""A run as a directory: `run.toml`, `journal.jsonl`, `checkpoints/`, and a lock while a process drives it."""

import errno
import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from mopbt.errors import RunLocked, StoreError
from mopbt.stores.base import Checkpoints, Exchange, checked, checksum_of
from mopbt.stores.journal import (
    JournalWriter,
    Line,
    cannot_write,
    encode_line,
    intact_length,
    read_damaged,
    read_lines,
)

_SUFFIX = ".ckpt"

Mend = Callable[[Sequence[Exchange | None]], Sequence[Exchange]]  # makes good what stands as None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all, and durable when this returns."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):  # where nothing can be written, nothing can be removed
            temporary.unlink(missing_ok=True)
        raise cannot_write(error, path) from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DirectoryCheckpoints:
    """Checkpoints as files `<job>.ckpt`; may be sent to other processes."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable

    def save(self, id: int, data: bytes) -> str:
        """Make bytes durable under a job's id and return their checksum."""
        if self._durable:
            write_atomically(self.file(id), data)
        else:
            try:
                self.file(id).write_bytes(data)
            except OSError as error:
                raise cannot_write(error, self.file(id)) from error
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Return the bytes, or raise CorruptCheckpoint if they are gone or do not fit the checksum."""
        try:
            data = self.file(id).read_bytes()
        except FileNotFoundError:
            data = None
        return checked(self.file(id), id, data, checksum)

    def drop(self, ids: Iterable[int]) -> None:
        """Remove these files."""
        for id in ids:
            try:
                self.file(id).unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(error, self.file(id)) from error

    def kept(self) -> frozenset[int]:
        """Return the ids that are there."""
        return frozenset(int(f.stem) for f in self.path.glob(f"*{_SUFFIX}") if f.stem.isdecimal())

    def file(self, id: int) -> Path:
        """Return the file of a job's checkpoint."""
        return self.path / f"{id}{_SUFFIX}"


class DirectoryStore:
    """The store of a run that outlives its process. One process at a time may hold it.

    What is not to outlive it need not be `durable`: then nothing waits for the disk. `checkpoints` may be elsewhere.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        mend: Mend | None = None,
        durable: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.path = Path(path)
        try:
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = Lock(
                self.path / "lock", f"`mopbt show {self.path}` looks at a run while it goes on"
            )
        except OSError as error:
            raise cannot_write(error, self.path) from error
        try:
            if mend is not None:
                self._repair(mend)
            length = intact_length(self.journal)
            self._writer = JournalWriter(self.journal, length, durable=durable)
        except BaseException:
            self._lock.release()
            raise
        self.checkpoints = checkpoints or DirectoryCheckpoints(
            self.path / "checkpoints", durable=durable
        )
        places = {
            (self.path, pattern)
            for pattern in ("run.toml.*.tmp", "journal.*.tmp", "checkpoints/*.ckpt.*.tmp")
        }
        if isinstance(self.checkpoints, DirectoryCheckpoints):  # which may be elsewhere
            places.add((self.checkpoints.path, "*.ckpt.*.tmp"))
        for leftover in (
            file for place, pattern in places for file in place.glob(pattern)
        ):  # of a process that was killed
            leftover.unlink(missing_ok=True)
        sync_directory(self.path)

    @property
    def journal(self) -> Path:
        """Return the journal's file."""
        return self.path / "journal.jsonl"

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the journal in their JSON form."""
        return read_lines(self.journal)

    def read(self) -> tuple[Exchange, ...]:
        """Return all exchanges so far."""
        return tuple(map(Exchange.from_json, self.lines()))

    def append(self, exchange: Exchange) -> None:
        """Make an exchange durable."""
        self._writer.append(exchange)

    def mark(self) -> int:
        """Return where the journal ends now."""
        return self._writer.length

    def rewind(self, mark: int) -> None:
        """Take back all exchanges since a mark."""
        self._writer.cut(mark)

    def clear(self) -> None:
        """Begin anew, as if nothing had ever been written down."""
        self._writer.cut(0)

    def close(self) -> None:
        """Close the journal and let others drive the run."""
        self._writer.close()
        self._lock.release()

    def _repair(self, mend: Mend) -> None:
        """Write the journal anew where lines are damaged, and keep the damaged one beside it."""
        lines = read_damaged(self.journal)
        if None not in lines:
            return
        repair_journal = b"".join(map(encode_line, mend(lines)))
        number = next(n for n in count(1) if not (self.path / f"journal.damaged-{n}").exists())
        write_atomically(
            self.path / f"journal.damaged-{number}", self.journal.read_bytes()
        )  # first: a kill must lose neither
        write_atomically(self.journal, repair_journal)


class Lock:
    """A lock that the operating system gives back when its holder dies, so a dead process never blocks a run."""

    def __init__(self, path: Path, hint: str) -> None:
        self._file: IO[Any] = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - it stays open while the lock is held
        for _ in range(20):
            try:
                if _taken(self._file, fcntl.LOCK_EX):
                    break
            except OSError as error:
                self._file.close()
                raise StoreError(
                    f"{path} cannot be locked ({error.strerror}), so nothing keeps two processes from driving one run; put the run "
                    f"on a file system with locks, such as a local disk (on a cluster, ask for `flock`)"
                ) from error
            time.sleep(0.025)  # it may be somebody who is just looking
        else:
            holder = _text(self._file) or "another process"
            self._file.close()
            raise RunLocked(
                f"{path.parent} is being driven by {holder}; wait for it, stop it, or use another directory ({hint})"
            )
        _HELD.add(self)
        self._file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}")
        self._file.flush()

    def release(self) -> None:
        """Give the lock back."""
        _HELD.discard(self)
        self._file.truncate(0)
        self._file.close()

    def forget(self) -> None:
        """Let go of the file in a forked child, which would otherwise hold the lock after its parent's death."""
        self._file.close()


_HELD: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def _taken(file: IO[Any], how: int) -> bool:
    """Lock a file, for oneself alone or shared with others that look at it, unless somebody else keeps it from that."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _text(file: IO[Any]) -> str:
    file.seek(0)
    return str(file.read()).strip()


def holder_of(path: Path | str) -> str:
    """Return who drives a run now; the empty string if nobody does."""
    try:
        with open(Path(path) / "lock", encoding="utf-8") as file:
            return "" if _taken(file, fcntl.LOCK_SH) else _text(file) or "another process"
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno in (
            errno.ENOLCK,
            errno.ENOSYS,
            errno.EOPNOTSUPP,
        ):  # nobody can lock, and so drive, anything there
            return ""
        raise
