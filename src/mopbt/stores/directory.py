"""A run as a directory: `run.toml`, `journal.jsonl`, `checkpoints/` and `lock`."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import IO, Any

from mopbt.filesystem import (
    AppendOnlyFile,
    NewFile,
    cannot_read,
    create_exclusively,
    exists,
    list_names,
    make_directories,
    open_to_read,
    read_file,
    remove,
    size_of,
    write_atomically,
    write_quickly,
)
from mopbt.limits import SETTINGS_BYTES
from mopbt.locking import Lock
from mopbt.stores.base import (
    OWNER,
    Checkpoints,
    Exchange,
    Hashing,
    checksum_of,
    checksum_of_file,
    damaged_checkpoint,
    has_checksum,
    missing_checkpoint,
    read_with_retries,
    verify_checkpoint,
    with_retries,
)
from mopbt.stores.journal import (
    Line,
    encode_line,
    intact_length,
    read_damaged,
    read_lines,
)

SUFFIX = ".ckpt"
# A checkpoint without what only training needs is `<job>.<checksum>.model`.
REDUCED = ".model"
_REDUCED_NAME = re.compile(r"(\d+)\.([0-9a-f]{32})\.model")

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
        file = self.file(id)
        data = read_with_retries(f"checkpoint {file}", lambda: read_file(file))
        return verify_checkpoint(file, id, data, checksum)

    def create(self, id: int) -> "_PendingFile":
        """Start to write the checkpoint of a job."""
        return _PendingFile(NewFile(self.file(id), durable=self._durable))

    def open(self, id: int, checksum: str) -> IO[bytes]:
        """Open a checkpoint whose checksum is right; errors are those of `load`."""
        return _open_verified(self.file(id), id, checksum)

    def stored_checksum(self, id: int) -> str:
        """Return the checksum of a whole checkpoint as it is stored.

        It is empty if the checkpoint is missing.
        """
        file = self.file(id)

        def attempt() -> str:
            with open_to_read(file) as opened:
                return checksum_of_file(opened)

        try:
            return with_retries(f"read checkpoint {file}", attempt)
        except FileNotFoundError:
            return ""

    def size_of(self, id: int) -> int:
        """Return the bytes of a whole checkpoint; 0 if it is missing or reduced."""
        return size_of(self.file(id))

    def reduce(self, id: int, checksum: str, rewrite: Callable[[IO[bytes], Any], None]) -> None:
        """Replace a checkpoint by what `rewrite` makes of it."""
        new = NewFile(self.path / f"{id}{REDUCED}", durable=self._durable)
        target = Hashing(new.write)
        try:
            with self.open(id, checksum) as source:
                rewrite(source, target)
        except BaseException:
            new.discard()
            raise
        # The file carries its checksum in its name, because the journal has that of the whole one.
        new.commit(self.path / f"{id}.{target.checksum}{REDUCED}")
        remove(self.file(id))

    def open_model(self, id: int, checksum: str) -> IO[bytes]:
        """Open a checkpoint, whether it is reduced or not; errors are those of `load`."""
        reduced = self.reduced_checksum(id)
        return _open_verified(self.model_file(id), id, reduced or checksum)

    def model_file(self, id: int) -> Path:
        """Return the file of a job's checkpoint, whether it is reduced or not."""
        reduced = self.reduced_checksum(id)
        return self.path / f"{id}.{reduced}{REDUCED}" if reduced else self.file(id)

    def reduced_checksum(self, id: int) -> str:
        """Return the checksum of a reduced checkpoint.

        It is empty if the checkpoint is not reduced.
        """
        # A crash may leave both files, of which the whole one counts.
        return "" if exists(self.file(id)) else self._reduced().get(id, "")

    def drop(self, ids: Iterable[int]) -> None:
        """Remove checkpoints; ids without one are ignored."""
        ids = list(ids)
        reduced = self._reduced() if ids else {}
        for id in ids:
            remove(self.file(id))
            if id in reduced:
                remove(self.path / f"{id}.{reduced[id]}{REDUCED}")

    def kept(self) -> frozenset[int]:
        """Return the ids of all checkpoints, whether they are reduced or not."""
        names = [name for name in list_names(self.path) if name.endswith(SUFFIX)]
        stems = [name.removesuffix(SUFFIX) for name in names]
        return frozenset(int(stem) for stem in stems if stem.isdecimal()) | self._reduced().keys()

    def _reduced(self) -> dict[int, str]:
        """Return the checksums of all reduced checkpoints."""
        found = map(_REDUCED_NAME.fullmatch, list_names(self.path))
        return {int(match[1]): match[2] for match in found if match}

    def owner(self) -> bytes | None:
        """Return the record of the run that the folder belongs to; None if there is none."""
        record = self.path / OWNER
        return read_with_retries(record, lambda: read_file(record, SETTINGS_BYTES))

    def record_owner(self, record: bytes, *, replace: bool = False) -> None:
        """Record the owner of the folder, unless there is one.

        With `replace`, record it in any case.
        """
        if replace:
            write_atomically(self.path / OWNER, record)
        else:
            create_exclusively(self.path / OWNER, record)

    def remove_leftovers(self, process: int | None = None) -> None:
        """Remove the temporary files of a process that was killed, or of all processes."""
        patterns = [f"*{suffix}.{process or '*'}.tmp" for suffix in (SUFFIX, REDUCED)]
        if process is None:
            patterns.append(f"{OWNER}.*.tmp")
        _remove_matching(self.path, patterns)

    def file(self, id: int) -> Path:
        """Return the file of a job's checkpoint."""
        return self.path / f"{id}{SUFFIX}"


class _PendingFile(Hashing):
    """A checkpoint that is being written."""

    def __init__(self, file: NewFile) -> None:
        super().__init__(file.write)
        self._file = file

    def commit(self) -> str:
        """Make the checkpoint durable and return its checksum."""
        self._file.commit()
        return self.checksum

    def discard(self) -> None:
        """Remove what was written."""
        self._file.discard()


def _open_verified(path: Path, id: int, checksum: str) -> IO[bytes]:
    """Open a file whose checksum is right; CorruptCheckpoint if it is not.

    An error of the disk in a later read is a StoreError, too: it says nothing about the model.
    """

    def guard(read: Callable[[], bytes]) -> bytes:
        return with_retries(f"read checkpoint {path}", read)

    def attempt() -> IO[bytes]:
        file = open_to_read(path, guard=guard)
        try:
            if not has_checksum(file, checksum):
                raise damaged_checkpoint(path, id)
        except BaseException:
            file.close()
            raise
        return file

    try:
        return with_retries(f"read checkpoint {path}", attempt)
    except FileNotFoundError:
        raise missing_checkpoint(path, id) from None


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
        make_directories(folder)
        self._lock = Lock(
            self.path / "lock", f"`mopbt show {self.path}` works while a run is in progress"
        )
        self._durable = durable
        self._is_open = True
        try:
            if repair is not None:
                self._rewrite(repair)
            _remove_matching(self.path, ("run.toml.*.tmp", "journal.*.tmp"))
            self._journal_file = self._open_journal()
        except BaseException:
            self._lock.release()
            raise
        self.checkpoints = checkpoints or DirectoryCheckpoints(folder, durable=durable)

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

    def rewind(self, mark: int, then: Exchange | None = None) -> None:
        """Replace all exchanges after a mark by another one, in one step, or remove them."""
        if then is None:
            self._journal_file.cut(mark)
            return
        kept = self._read_journal(mark)
        self._close_on_windows()
        write_atomically(self.journal, kept + encode_line(then))
        self._reopen_journal()

    def clear(self) -> None:
        """Delete all exchanges."""
        self._journal_file.cut(0)

    def close(self) -> None:
        """Close the journal and release the lock. Closing it again does nothing."""
        if self._is_open:
            self._is_open = False
            self._journal_file.close()
            self._lock.release()

    def repair(self, repair: Repair) -> None:
        """Rewrite a damaged journal, and keep the damaged file beside it."""
        self._close_on_windows()
        self._rewrite(repair)
        self._reopen_journal()

    def _close_on_windows(self) -> None:
        """Close the journal before it is replaced: Windows does not replace an open file."""
        if sys.platform == "win32":
            self._journal_file.close()

    def _reopen_journal(self) -> None:
        """Open a journal that was replaced."""
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
        number = next(n for n in count(1) if not exists(self.path / f"journal.damaged-{n}"))
        # The copy comes first, so that a crash loses neither file.
        write_atomically(self.path / f"journal.damaged-{number}", self._read_journal())
        write_atomically(self.journal, repaired)

    def _read_journal(self, length: int = -1) -> bytes:
        """Return the first bytes of the journal, or all."""
        try:
            with open_to_read(self.journal) as file:
                return file.read(length)
        except OSError as error:
            raise cannot_read(error, self.journal) from error


def _remove_matching(folder: Path, patterns: Iterable[str]) -> None:
    """Remove the files of a folder whose names match one of the patterns."""
    for name in list_names(folder):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            remove(folder / name)
