"""The journal file: one JSON object a line, each with a checksum of its own.

A line is written, flushed to the disk, and only then acted upon; so a crash can tear the last line and no other. A torn last line
never happened. Damage anywhere else is an error.
"""

import errno
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from mopbt.errors import CorruptJournal, IncompatibleRun, StorageFull, StoreError
from mopbt.stores.base import Exchange
from mopbt.version import __version__

_MARK = b',"crc":"'


def encode_line(exchange: Exchange) -> bytes:
    """Return an exchange as a line with its checksum."""
    body = json.dumps(exchange.to_json(), separators=(",", ":"), ensure_ascii=False).encode()
    return body[:-1] + _MARK + f"{zlib.crc32(body):08x}".encode() + b'"}\n'


def decode_line(line: bytes) -> Exchange | None:
    """Return the exchange of a line, or None if the line is damaged."""
    body, mark, tail = line.rpartition(_MARK)
    if not mark or tail[8:] != b'"}' or tail[:8] != f"{zlib.crc32(body + b'}'):08x}".encode():
        return None
    try:
        return Exchange.from_json(json.loads(body + b"}"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise IncompatibleRun(
            f"a line of the journal is whole but says something that mopbt {__version__} does not understand "
            f"({type(error).__name__}: {error}); install the version that wrote it"
        ) from None


def read_journal(path: Path) -> tuple[tuple[Exchange, ...], int]:
    """Return the exchanges of a journal, and the length in bytes of its good part."""
    try:
        raw = _raw_lines(path)
        lines = [decode_line(line) for line in raw]
    except IncompatibleRun as error:
        raise IncompatibleRun(f"{path}: {error}") from None
    exchanges = tuple(line for line in lines if line is not None)
    if lines and not exchanges:
        raise CorruptJournal(
            f"{path} is not a journal: none of its {len(lines)} lines has a checksum that fits; put back the file that the run "
            f"wrote, or use another directory"
        )
    if len(exchanges) < len(lines):
        raise CorruptJournal(
            f"line {lines.index(None) + 1} of {path} is damaged: its checksum does not fit; {len(exchanges)} others are good; "
            f"`mopbt resume {path.parent} --repair` makes up for it from them, and keeps the damaged file"
        )
    return exchanges, sum(len(line) + 1 for line in raw)


def check_order(exchanges: Sequence[Exchange], path: Path) -> None:
    """Raise CorruptJournal where lines are missing, twice there, or not in their order."""
    jobs, trials, outstanding, done = 0, 0, set[int](), set[int | None]({None})
    for number, exchange in enumerate(exchanges, 1):
        reported, before = {report.job for report in exchange.reports}, jobs
        follows = reported <= outstanding
        outstanding -= reported
        done |= reported
        for job in exchange.jobs:
            follows &= (
                job.id >= jobs and job.trial <= trials and job.start in done
            )  # a mended journal may leave out numbers
            jobs, trials = job.id + 1, max(trials, job.trial + 1)
            outstanding.add(job.id)
        if not follows:
            raise CorruptJournal(
                f"line {number} of {path} does not follow from those before it (jobs so far: {before}); a line was lost, doubled "
                f"or moved: put back the file that the run wrote"
            )


def read_lines(path: Path) -> list[Exchange | None]:
    """Return the exchanges of a journal, with None where a line is damaged; a torn last line never happened."""
    return [decode_line(line) for line in _raw_lines(path)]


def _raw_lines(path: Path) -> list[bytes]:
    """Return the lines of a journal without a torn last one."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last end of line is torn
    except FileNotFoundError:
        return []
    return lines[:-1] if lines and decode_line(lines[-1]) is None else lines


class JournalWriter:
    """Appends lines to a journal, each durable before `append` returns."""

    def __init__(self, path: Path, length: int, *, durable: bool = True) -> None:
        self._durable = durable
        self._path = path
        self._length = length
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._fd, length)  # a torn last line goes

    def append(self, exchange: Exchange) -> None:
        """Write a line and flush it to the disk; on a full disk nothing is left of it."""
        line = encode_line(exchange)
        try:
            self._write(line)
            if self._durable:
                os.fsync(self._fd)
        except (
            BaseException
        ) as error:  # a full disk, or Ctrl-C in the middle: nothing is left of the line
            os.ftruncate(self._fd, self._length)
            if isinstance(error, OSError):
                raise cannot_write(error, self._path) from error
            raise
        self._length += len(line)

    @property
    def length(self) -> int:
        """Return how long the journal is, in bytes."""
        return self._length

    def cut(self, length: int) -> None:
        """Take back all lines after the first `length` bytes."""
        os.ftruncate(self._fd, length)
        if self._durable:
            os.fsync(self._fd)
        self._length = length

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._fd, line[written:], self._length + written)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def cannot_write(error: OSError, path: Path) -> StoreError:
    """Return what ends a run, rather than counting against a member: that nothing can be written, why, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"no space left to write {path}; nothing reported is lost: free some space, then run the same again"
        )
    why = error.strerror or str(error)
    return StoreError(
        f"cannot write {path}: {why}; nothing reported is lost: make it writable, then run the same again"
    )
