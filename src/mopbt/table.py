"""An immutable sequence with cheap changed copies, and what is derived from it.

A run changes one row of its table at a time, and keeps earlier tables valid. Rows are therefore
held in chunks: a changed copy shares all chunks but one with its original. The same chunks show
what differs between two tables, so a `View` of a table, such as the ranks of its rows, follows the
changes instead of being computed again.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar, cast, overload

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
V = TypeVar("V", bound="View[Any]")

CHUNK = 128

# A row that differs between two tables: its index, and what it is now; None if it is gone.
Change = tuple[int, T | None]


class View(Protocol[T_contra]):
    """What follows from the rows of a table alone, kept up to date with it."""

    def update(self, changes: Sequence[Change[T_contra]]) -> None:
        """Apply what differs from the table of the previous update.

        At first, all rows differ.
        """


class Table(Sequence[T]):
    """An immutable sequence in chunks.

    A table and its changed copies share their views.

    Args:
        rows: The rows of a new table, which has no views yet.
    """

    __slots__ = ("_chunks", "_length", "_views")

    def __init__(self, rows: Iterable[T] = ()) -> None:
        rows = tuple(rows)
        self._chunks = tuple(rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK))
        self._length = len(rows)
        # By key: a view, and the table that it shows.
        self._views: dict[Hashable, tuple[View[T], Table[T]]] = {}

    def replace(self, rows: Mapping[int, T]) -> "Table[T]":
        """Return the table with these rows replaced by index.

        The next index appends a row.
        """
        chunks = list(self._chunks)
        opened: dict[int, list[T]] = {}
        length = self._length
        for index, row in rows.items():
            number, place = divmod(index, CHUNK)
            if number not in opened:
                opened[number] = list(chunks[number]) if number < len(chunks) else []
            if index == length:
                opened[number].append(row)
                length += 1
            else:
                opened[number][place] = row
        for number in sorted(opened):
            chunks[number : number + 1] = [tuple(opened[number])]
        table: Table[T] = Table()
        table._chunks = tuple(chunks)
        table._length = length
        table._views = self._views
        return table

    def changes_since(self, earlier: "Table[T]") -> list[Change[T]]:
        """Return the rows that differ from those of another table, compared by identity."""
        changes: list[Change[T]] = []
        chunks = zip(self._chunks, earlier._chunks, strict=False)
        for number, (new, old) in enumerate(chunks):
            if new is not old:
                first = number * CHUNK
                both = enumerate(zip(new, old, strict=False), first)
                changes += [(index, row) for index, (row, before) in both if row is not before]
                changes += enumerate(new[len(old) :], first + len(old))
        shared = min(len(self._chunks), len(earlier._chunks))
        changes += enumerate(chain.from_iterable(self._chunks[shared:]), shared * CHUNK)
        changes += [(index, None) for index in range(self._length, earlier._length)]
        return changes

    def view(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the view of this table that a key names.

        Whatever table it showed before, it is brought up to date. The key must determine what
        `make` makes.
        """
        # An interrupted update leaves no view that is partly up to date.
        view, shown = self._views.pop(key, None) or (make(), Table())
        if shown is not self:
            view.update(self.changes_since(shown))
        self._views[key] = (view, self)
        return cast(V, view)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        if not -self._length <= index < self._length:
            raise IndexError(f"row {index} of a table with {self._length} rows")
        number, place = divmod(index % self._length, CHUNK)
        return self._chunks[number][place]

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._chunks)

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Table):
            return self._chunks == other._chunks
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._chunks)

    def __repr__(self) -> str:
        return f"Table({list(self)!r})"

    def __reduce__(self) -> tuple[type["Table[T]"], tuple[tuple[T, ...]]]:
        # Views stay behind: another process makes its own.
        return Table, (tuple(self),)
