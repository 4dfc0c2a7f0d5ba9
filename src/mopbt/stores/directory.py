"""A run as a directory: `run.toml`, `journal.jsonl`, `checkpoints/` and `lock`."""

import errno
import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any

from mopbt.errors import RunLocked, StoreError
from mopbt.filesystem import (
    AppendOnlyFile,
    cannot_write,
    create_exclusively,
    open_lock_file,
    remove,
    replace_text,
    sync,
    write_atomically,
    write_quickly,
)
from mopbt.stores.base import (
    OWNER,
    Checkpoints,
    Exchange,
    checksum_of,
    read_with_retries,
    verify_checkpoint,
)
from mopbt.stores.journal import (
    Line,
    encode_line,
    intact_length,
    read_damaged,
    read_lines,
)

SUFFIX = ".ckpt"

# Rebuilds the exchanges of a journal in which damaged lines are None.
Repair = Callable[[Sequence[Exchange | None]], Sequence[Exchange]]


class DirectoryCheckpoints:
    """Checkpoints as files `<job>.ckpt`. They can be sent to other processes."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable

    def save(self, id: int, data: bytes) -> str:
        """Make the checkpoint of a job durable and return its checksum."""
        if self._durable:
            write_atomically(self.file(id), data)
        else:
            write_quickly(self.file(id), data)
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Read a checkpoint; CorruptCheckpoint if it is missing or its checksum is wrong."""
        data = read_with_retries(f"checkpoint {self.file(id)}", self.file(id).read_bytes)
        return verify_checkpoint(self.file(id), id, data, checksum)

    def drop(self, ids: Iterable[int]) -> None:
        """Remove checkpoints; ids without one are ignored."""
        for id in ids:
            remove(self.file(id))

    def kept(self) -> frozenset[int]:
        """Return the ids of all checkpoints."""
        return frozenset(int(f.stem) for f in self.path.glob(f"*{SUFFIX}") if f.stem.isdecimal())

    def owner(self) -> bytes | None:
        """Return the record of the run that the folder belongs to; None if there is none."""
        return read_with_retries(self.path / OWNER, (self.path / OWNER).read_bytes)

    def record_owner(self, record: bytes, *, replace: bool = False) -> None:
        """Record the owner of the folder, unless there is one; with `replace`, in any case."""
        if replace:
            write_atomically(self.path / OWNER, record)
        else:
            create_exclusively(self.path / OWNER, record)

    def remove_leftovers(self) -> None:
        """Remove temporary files of a process that was killed while it wrote."""
        for leftover in self.path.glob(f"*{SUFFIX}.*.tmp"):
            remove(leftover)

    def file(self, id: int) -> Path:
        """Return the file of a job's checkpoint."""
        return self.path / f"{id}{SUFFIX}"


class DirectoryStore:
    """The store of a run that outlives its process. One process at a time can open it.

    Args:
        path: The directory of the run; it is created if needed.
        repair: Rebuilds a damaged journal. Without it, damage is an error when lines are read.
        durable: If false, writes do not wait for the disk.
        checkpoints: Where checkpoints are kept, if not in the directory.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        repair: Repair | None = None,
        durable: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.path = Path(path)
        folder = self.path / "checkpoints"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(
                self.path / "lock", f"`mopbt show {self.path}` works while a run is in progress"
            )
        except OSError as error:
            raise cannot_write(error, self.path) from error
        self._durable = durable
        try:
            if repair is not None:
                self._rewrite(repair)
            self._journal_file = self._open_journal()
        except BaseException:
            self._lock.release()
            raise
        self.checkpoints = checkpoints or DirectoryCheckpoints(folder, durable=durable)
        for pattern in ("run.toml.*.tmp", "journal.*.tmp"):
            for leftover in self.path.glob(pattern):
                remove(leftover)
        sync(self.path)

    @property
    def journal(self) -> Path:
        """Return the file of the journal."""
        return self.path / "journal.jsonl"

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the journal in their JSON form."""
        return read_lines(self.journal)

    def read(self) -> tuple[Exchange, ...]:
        """Return all exchanges so far."""
        return tuple(map(Exchange.from_json, self.lines()))

    def append(self, exchange: Exchange) -> None:
        """Write an exchange; it is durable when this returns."""
        self._journal_file.append(encode_line(exchange))

    def mark(self) -> int:
        """Return the current end of the journal, for `rewind`."""
        return self._journal_file.length

    def rewind(self, mark: int) -> None:
        """Remove all exchanges after a mark."""
        self._journal_file.cut(mark)

    def clear(self) -> None:
        """Delete all exchanges."""
        self._journal_file.cut(0)

    def close(self) -> None:
        """Close the journal and release the lock."""
        self._journal_file.close()
        self._lock.release()

    def repair(self, repair: Repair) -> None:
        """Rewrite a damaged journal, and keep the damaged file beside it."""
        self._rewrite(repair)
        self._journal_file.close()
        self._journal_file = self._open_journal()

    def _open_journal(self) -> AppendOnlyFile:
        length = intact_length(self.journal)
        return AppendOnlyFile(self.journal, length, durable=self._durable)

    def _rewrite(self, repair: Repair) -> None:
        lines = read_damaged(self.journal)
        if None not in lines:
            return
        repaired = b"".join(map(encode_line, repair(lines)))
        number = next(n for n in count(1) if not (self.path / f"journal.damaged-{n}").exists())
        # The copy comes first, so that a crash loses neither file.
        write_atomically(self.path / f"journal.damaged-{number}", self.journal.read_bytes())
        write_atomically(self.journal, repaired)


class Lock:
    """A file lock that the operating system releases when its process dies."""

    def __init__(self, path: Path, hint: str) -> None:
        # The file stays open as long as the lock is held.
        self._file = open_lock_file(path)
        try:
            self._acquire(path, hint)
        except BaseException:
            self._file.close()
            raise
        _HELD_LOCKS.add(self)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {started}"
        replace_text(self._file, holder)

    def release(self) -> None:
        """Release the lock."""
        _HELD_LOCKS.discard(self)
        replace_text(self._file, "")
        self._file.close()

    def close_in_child(self) -> None:
        """Close the file in a forked child, so that the lock ends with the parent."""
        self._file.close()

    def _acquire(self, path: Path, hint: str) -> None:
        # Several attempts, because `holder_of` in another process locks the file for an instant.
        for _ in range(20):
            try:
                if _try_lock(self._file, fcntl.LOCK_EX):
                    return
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be locked ({error.strerror}), so two processes could write "
                    "the same run; use a file system with locks, such as a local disk (on a "
                    "cluster, ask for `flock`)"
                ) from error
            time.sleep(0.025)
        raise RunLocked(
            f"{path.parent} is locked by {_read_holder(self._file)}; wait for it, stop it, or use "
            f"another directory ({hint})"
        )


_HELD_LOCKS: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_locks_in_child() -> None:
    for lock in list(_HELD_LOCKS):
        lock.close_in_child()


os.register_at_fork(after_in_child=_close_locks_in_child)


def _try_lock(file: IO[Any], mode: int) -> bool:
    """Lock a file, exclusively or shared, and return whether that succeeded."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(file: IO[Any]) -> str:
    file.seek(0)
    return str(file.read()).strip() or "another process"


def holder_of(path: Path | str) -> str:
    """Describe the process that is executing a run; an empty string if there is none."""
    try:
        with open(Path(path) / "lock", encoding="utf-8") as file:
            return "" if _try_lock(file, fcntl.LOCK_SH) else _read_holder(file)
    except FileNotFoundError:
        return ""
    except OSError as error:
        # Without locks on its file system, a run cannot be executed.
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return ""
        raise
