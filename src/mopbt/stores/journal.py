"""The journal file: one JSON object a line, each with a checksum of its own.

A line is written, flushed to the disk, and only then acted upon; so a crash can tear the last line and no other. A torn last line
never happened. Damage anywhere else is an error.
"""

import errno
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from mopbt.errors import CorruptJournal, StorageFull
from mopbt.stores.base import Exchange

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
    return Exchange.from_json(json.loads(body + b"}"))


def read_journal(path: Path) -> tuple[tuple[Exchange, ...], int]:
    """Return the exchanges of a journal, and the length in bytes of its good part."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return (), 0
    exchanges: list[Exchange] = []
    good = 0
    for number, begin, line in _lines(data):
        exchange = decode_line(line)
        if exchange is None:
            if data.find(b"\n", begin) not in (-1, len(data) - 1):  # something follows: this is no torn last line
                raise CorruptJournal(
                    f"line {number} of {path} is damaged: its checksum does not fit; the {number - 1} lines before it are good; "
                    f"`mopbt resume {path.parent} --repair` goes on from there and keeps the damaged file beside it"
                )
            break
        exchanges.append(exchange)
        good = begin + len(line) + 1
    return tuple(exchanges), min(good, len(data))


def _lines(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    begin, number = 0, 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        if end < 0:
            return  # a line without its end is torn
        number += 1
        yield number, begin, data[begin:end]
        begin = end + 1


def good_prefix(path: Path) -> bytes:
    """Return the bytes of all lines before the first damaged one."""
    data = path.read_bytes()
    for _, begin, line in _lines(data):
        if decode_line(line) is None:
            return data[:begin]
    return data[: data.rfind(b"\n") + 1]


class JournalWriter:
    """Appends lines to a journal, each durable before `append` returns."""

    def __init__(self, path: Path, length: int) -> None:
        self._path = path
        self._length = length
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._fd, length)  # a torn last line goes

    def append(self, exchange: Exchange) -> None:
        """Write a line and flush it to the disk; on a full disk nothing is left of it."""
        line = encode_line(exchange)
        try:
            self._write(line)
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            raise full_or(error, self._path) from error
        self._length += len(line)

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._fd, line[written:], self._length + written)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def full_or(error: OSError, path: Path) -> Exception:
    """Return StorageFull for an error that says so, and the error itself otherwise."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no space left to write {path}; nothing reported is lost: free some space, then run the same again")
    return error
