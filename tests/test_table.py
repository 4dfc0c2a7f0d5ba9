import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.table import CHUNK, Table

SIZES = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK)


class Mirror:
    """A view that copies the rows, and counts the changes it was given."""

    def __init__(self):
        self.rows = {}
        self.changes = 0

    def update(self, changes):
        self.changes += len(changes)
        for index, row in changes:
            if row is None:
                del self.rows[index]
            else:
                self.rows[index] = row


@pytest.mark.parametrize("n", SIZES)
def test_a_table_is_a_sequence(n):
    rows = [f"row {i}" for i in range(n)]
    table = Table(rows)
    assert list(table) == rows
    assert len(table) == n
    assert [table[i] for i in range(n)] == rows
    assert table[n // 2 :] == tuple(rows[n // 2 :])
    assert table[-3:] == tuple(rows[-3:])
    if n:
        assert table[-1] == rows[-1]
    for index in (n, -n - 1):
        with pytest.raises(IndexError, match=f"row {index} of a table with {n} rows"):
            table[index]


def test_tables_compare_by_their_rows_and_can_be_copied():
    table = Table(range(300))
    table.view("mirror", Mirror)
    for twin in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table), Table(range(300))):
        assert twin == table
        assert hash(twin) == hash(table)
        assert twin.view("mirror", Mirror) is not table.view("mirror", Mirror)
    assert table != Table(range(299))
    assert repr(Table([1, 2])) == "Table([1, 2])"


@given(
    n=st.sampled_from(SIZES),
    steps=st.lists(st.lists(st.integers(0, 4 * CHUNK), max_size=4), max_size=8),
    shown=st.lists(st.integers(0, 8), max_size=12),
)
def test_changed_copies_and_views_equal_plain_lists(n, steps, shown):
    plain = [list(range(n))]
    tables = [Table(range(n))]
    for step in steps:
        rows, changed = list(plain[-1]), {}
        for place in step:
            index = min(place, len(rows))
            changed[index] = object()
            rows[index : index + 1] = [changed[index]]
        plain.append(rows)
        tables.append(tables[-1].replace(changed))
    # A view shows any of the tables, whatever it showed before.
    for number in shown:
        number = min(number, len(tables) - 1)
        view = tables[number].view("mirror", Mirror)
        assert view.rows == dict(enumerate(plain[number]))
    assert [list(table) for table in tables] == plain


def test_a_view_is_given_only_what_changed():
    table = Table(range(10_000))
    assert table.view("mirror", Mirror).changes == 10_000
    later = table.replace({5_000: -1}).replace({7: -2})
    assert later.view("mirror", Mirror).changes == 10_002
    assert later.view("mirror", Mirror).changes == 10_002


def test_an_interrupted_update_leaves_no_view():
    class Interrupted(Mirror):
        def update(self, changes):
            super().update(changes[:1])
            if len(changes) < 3:
                raise KeyboardInterrupt

    table = Table("abc")
    table.view("mirror", Interrupted)
    later = table.replace({0: "x", 1: "y"})
    with pytest.raises(KeyboardInterrupt):
        later.view("mirror", Interrupted)
    assert later.view("mirror", Mirror).rows == dict(enumerate("xyc"))
