"""A store that lives as long as the process: for tests and simulations."""

from collections.abc import Iterable, Iterator
from typing import Any

from mopbt.errors import CorruptCheckpoint
from mopbt.stores.base import Exchange, checksum_of


class MemoryCheckpoints:
    """Checkpoints in a dict."""

    def __init__(self) -> None:
        self._data: dict[int, bytes] = {}

    def save(self, id: int, data: bytes) -> str:
        """Keep bytes under a job's id and return their checksum."""
        self._data[id] = bytes(data)
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Return the bytes, or raise CorruptCheckpoint if they are gone or do not fit the checksum."""
        if id not in self._data or checksum_of(self._data[id]) != checksum:
            raise CorruptCheckpoint(
                f"checkpoint {id} is not there, or is not the one that was reported"
            )
        return self._data[id]

    def drop(self, ids: Iterable[int]) -> None:
        """Forget these."""
        for id in ids:
            self._data.pop(id, None)

    def kept(self) -> frozenset[int]:
        """Return the ids that are there."""
        return frozenset(self._data)


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
        """Remember an exchange."""
        self._journal.append(exchange)

    def mark(self) -> int:
        """Return where the journal ends now."""
        return len(self._journal)

    def rewind(self, mark: int) -> None:
        """Take back all exchanges since a mark."""
        del self._journal[mark:]

    def close(self) -> None:
        """Do nothing: nobody else can see this store."""
