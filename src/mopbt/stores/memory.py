"""A store that lives as long as the process, for tests and simulations."""

from collections.abc import Iterable, Iterator
from typing import Any

from mopbt.errors import CorruptCheckpoint
from mopbt.stores.base import Exchange, checksum_of


class MemoryCheckpoints:
    """Checkpoints in a dict."""

    def __init__(self) -> None:
        self._data: dict[int, bytes] = {}
        self._owner: bytes | None = None

    def save(self, id: int, data: bytes) -> str:
        """Keep the checkpoint of a job and return its checksum."""
        self._data[id] = bytes(data)
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Read a checkpoint; CorruptCheckpoint if it is missing or its checksum is wrong."""
        if id not in self._data:
            raise CorruptCheckpoint(f"checkpoint {id} does not exist")
        if checksum_of(self._data[id]) != checksum:
            raise CorruptCheckpoint(
                f"checkpoint {id} is damaged: its checksum differs from the reported one"
            )
        return self._data[id]

    def drop(self, ids: Iterable[int]) -> None:
        """Remove checkpoints; ids without one are ignored."""
        for id in ids:
            self._data.pop(id, None)

    def kept(self) -> frozenset[int]:
        """Return the ids of all checkpoints."""
        return frozenset(self._data)

    def owner(self) -> bytes | None:
        """Return the record of the run that the storage belongs to; None if there is none."""
        return self._owner

    def record_owner(self, record: bytes, *, replace: bool = False) -> None:
        """Record the owner of the storage, unless there is one.

        With `replace`, record it in any case.
        """
        if self._owner is None or replace:
            self._owner = record


class MemoryStore:
    """A journal in a list."""

    def __init__(self) -> None:
        self.checkpoints = MemoryCheckpoints()
        self._journal: list[Exchange] = []

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the journal in their JSON form."""
        return (exchange.to_json() for exchange in self._journal)

    def read(self) -> tuple[Exchange, ...]:
        """Return all exchanges so far."""
        return tuple(self._journal)

    def append(self, exchange: Exchange) -> None:
        """Append an exchange."""
        self._journal.append(exchange)

    def mark(self) -> int:
        """Return the current end of the journal, for `rewind`."""
        return len(self._journal)

    def rewind(self, mark: int, then: Exchange | None = None) -> None:
        """Replace all exchanges after a mark by another one, or remove them."""
        self._journal[mark:] = [] if then is None else [then]

    def close(self) -> None:
        """Do nothing: no other process can see this store."""
