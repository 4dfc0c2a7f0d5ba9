"""The journal file: one JSON object per line, each with its own checksum.

A line is written and flushed to the disk before anything acts on it, so a crash can damage only
the last line. An incomplete last line is ignored. Damage anywhere else is an error.
"""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mopbt.errors import CorruptJournal, IncompatibleRun
from mopbt.filesystem import cannot_read, open_to_read
from mopbt.limits import LINE_BYTES
from mopbt.stores.base import Exchange
from mopbt.version import __version__

# A line of the journal in its JSON form.
Line = dict[str, Any]

# What reading an object of another form raises.
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, OverflowError)

_CHECKSUM = b',"crc":"'
# How the first line of a journal begins, and how many bytes tell that.
_FIRST_KEYS = (b'{"jobs":', b'{"extend":', b'{"stopped":', b'{"model":')
_HEAD = 12


def encode_line(exchange: Exchange) -> bytes:
    """Return an exchange as a line with its checksum."""
    return encode_object(exchange.to_json())


def encode_object(data: Line) -> bytes:
    """Return a JSON object as a line with its checksum."""
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    return body[:-1] + _CHECKSUM + f"{zlib.crc32(body):08x}".encode() + b'"}\n'


def parse_line(line: bytes) -> Line | None:
    """Return a line in its JSON form, or None if it is damaged."""
    body, mark, tail = line.rpartition(_CHECKSUM)
    body += b"}"
    if not mark or tail != f'{zlib.crc32(body):08x}"}}'.encode():
        return None
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise incompatible(error) from None
    if not isinstance(parsed, dict):
        raise incompatible(TypeError(f"{type(parsed).__name__} instead of an object"))
    return parsed


def decode_line(line: bytes) -> Exchange | None:
    """Return the exchange of a line, or None if the line is damaged."""
    parsed = parse_line(line)
    try:
        return None if parsed is None else Exchange.from_json(parsed)
    except UNREADABLE as error:
        raise incompatible(error) from None


def incompatible(error: Exception) -> IncompatibleRun:
    """Return the error for an intact line that this version cannot read."""
    return IncompatibleRun(
        f"an intact line of the journal cannot be read by mopbt {__version__} "
        f"({type(error).__name__}: {error}); install the version that wrote it"
    )


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a journal in their JSON form.

    Raises CorruptJournal if one is damaged.
    """
    for number, line in enumerate(_raw_lines(path), 1):
        try:
            parsed = parse_line(line)
        except IncompatibleRun as error:
            raise IncompatibleRun(f"{path}: {error}") from None
        if parsed is None:
            raise _damaged(path, number)
        yield parsed


def read_intact_lines(path: Path) -> Iterator[Line]:
    """Yield the intact lines of a file of checksummed lines, and skip the others."""
    for line in _raw_lines(path):
        parsed = parse_line(line)
        if parsed is not None:
            yield parsed


def read_journal(path: Path) -> tuple[tuple[Exchange, ...], int]:
    """Return the exchanges of a journal, and the length in bytes of its intact part."""
    exchanges = []
    for line in read_lines(path):
        try:
            exchanges.append(Exchange.from_json(line))
        except UNREADABLE as error:
            raise IncompatibleRun(f"{path}: {incompatible(error)}") from None
    return tuple(exchanges), intact_length(path)


def read_damaged(path: Path) -> list[Exchange | None]:
    """Return the exchanges of a journal, with None for a damaged line."""
    return [decode_line(line) for line in _raw_lines(path)]


def check_lines(path: Path) -> tuple[int, list[int]]:
    """Return how many complete lines are intact, and the numbers of damaged ones."""
    intact = [line is not None for line in map(parse_line, _raw_lines(path))]
    return sum(intact), [number for number, sound in enumerate(intact, 1) if not sound]


def intact_length(path: Path) -> int:
    """Return the length in bytes of a journal without an incomplete last line."""
    try:
        with open_to_read(path) as file:
            size = file.seek(0, os.SEEK_END)
            end = _last_newline(file, size, path)
            start = _last_newline(file, end - 1, path) if end else 0
            file.seek(start)
            if end and parse_line(file.read(end - 1 - start)) is not None:
                return end
            if start == 0:
                file.seek(0)
                _check_own(file.read(_HEAD), path)
            return start
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise cannot_read(error, path) from error


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal without an incomplete last one."""
    try:
        length = intact_length(path)
        with open_to_read(path) as file:
            read = 0
            while read < length:
                line = file.readline(LINE_BYTES + 1)
                if len(line) > LINE_BYTES:
                    raise _too_long(path)
                read += len(line)
                yield line[:-1]
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_read(error, path) from error


def _check_own(head: bytes, path: Path) -> None:
    """Raise CorruptJournal if an incomplete only line does not start a journal.

    Zeros are what a power loss may leave of a block.
    """
    known = head.strip(b"\0") == b""
    for key in _FIRST_KEYS:
        known |= head.startswith(key) or key.startswith(head)
    if not known:
        raise CorruptJournal(
            f"{path} is not a journal: it begins with {head.decode(errors='replace')!r}; restore "
            "the file that the run wrote, or use another directory"
        )


def _too_long(path: Path) -> CorruptJournal:
    return CorruptJournal(
        f"{path} is not a journal: it has a line of more than {LINE_BYTES:,} bytes; restore the "
        "file that the run wrote, or use another directory"
    )


def _last_newline(file: Any, end: int, path: Path) -> int:
    """Return the position after the last newline before `end`; 0 if there is none."""
    block = 65536
    first = end - LINE_BYTES
    while end > 0:
        if end < first:
            raise _too_long(path)
        begin = max(end - block, 0)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return int(begin + found + 1)
        end = begin
    return 0


def _damaged(path: Path, number: int) -> CorruptJournal:
    intact, damaged = check_lines(path)
    if not intact:
        return CorruptJournal(
            f"{path} is not a journal: none of its {len(damaged)} lines has a valid checksum; "
            "restore the file that the run wrote, or use another directory"
        )
    return CorruptJournal(
        f"line {number} of {path} is damaged: its checksum is wrong; {intact} other lines "
        f"are intact; `mopbt resume {path.parent} --repair` rebuilds it from them and keeps the "
        "damaged file"
    )
