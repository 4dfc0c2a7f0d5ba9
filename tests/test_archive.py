import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from moarchiving import BiobjectiveNondominatedSortedList

from mopbt.archive import Archive, Entry, entry_of, front_of
from mopbt.state import Report

values = st.integers(0, 3).map(float)  # few values: ties and duplicates are the rule
vectors = st.integers(1, 3).flatmap(lambda k: st.lists(st.tuples(*[values] * k), max_size=12))
violations = st.sampled_from([0.0, 0.0, 0.5, 1.0])


def one_by_one(entries):
    archive = Archive()
    for entry in entries:
        archive.enter(entry)
    return archive.front


def dominates(a, b):
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def brute_force(entries):
    """The definition: feasible first, then not dominated; each vector once, with its first job."""
    if not entries:
        return set()
    least = min(e.violation for e in entries)
    best = [e for e in entries if e.violation == least]
    if least > 0:
        return {min(e.job for e in best)}
    return {
        e.job
        for e in best
        if not any(dominates(o.objectives, e.objectives) for o in best)
        and not any(o.objectives == e.objectives and o.job < e.job for o in best)
    }


@given(vectors, st.data())
def test_it_is_the_non_dominated_set_in_any_order_of_arrival(rows, data):
    entries = [Entry(i, row) for i, row in enumerate(rows)]
    arriving = data.draw(st.permutations(entries))
    assert {e.job for e in one_by_one(arriving)} == brute_force(entries)
    assert {e.job for e in one_by_one(entries)} == brute_force(entries)


@given(st.lists(st.tuples(st.tuples(values, values), violations), max_size=12), st.data())
def test_with_constraints_too(rows, data):
    entries = [Entry(i, row, violation) for i, (row, violation) in enumerate(rows)]
    arriving = data.draw(st.permutations(entries))
    assert {e.job for e in one_by_one(arriving)} == brute_force(entries)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=40))
@example([(0.0, -0.0), (-0.0, 0.0)])
def test_it_agrees_with_a_peer(points):
    theirs = BiobjectiveNondominatedSortedList([[-a, -b] for a, b in points])  # it minimizes
    ours = one_by_one([Entry(i, point) for i, point in enumerate(points)])
    assert {e.objectives for e in ours} == {(-a, -b) for a, b in theirs}


def test_by_hand():
    a, b, c = Entry(0, (1.0, 0.0)), Entry(1, (0.0, 1.0)), Entry(2, (0.5, 0.5))
    assert one_by_one([a, b, c]) == (a, b, c)
    assert one_by_one([a, b, c, Entry(3, (0.5, 0.75))]) == (a, b, Entry(3, (0.5, 0.75)))
    assert one_by_one([a, b, c, Entry(3, (1.0, 1.0))]) == (Entry(3, (1.0, 1.0)),)
    assert one_by_one([a, b, c, Entry(3, (0.25, 0.5))]) == (a, b, c)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_alike_ones_are_there_once_under_the_first_job(order):
    entries = [Entry(i, (1.0, 2.0)) for i in range(3)]
    assert one_by_one([entries[i] for i in order]) == (entries[0],)


def test_a_flat_metric_makes_a_front_of_one():
    assert len(one_by_one(Entry(i, (0.5, 0.5)) for i in range(100))) == 1


def test_constraint_domination_by_hand():
    poor, fine, broken = (
        Entry(0, (0.0, 0.0)),
        Entry(1, (1.0, 1.0), 0.1),
        Entry(2, (9.0, 9.0), math.nextafter(0, 1)),
    )
    assert one_by_one([broken, fine, poor]) == (
        poor,
    )  # anything feasible beats anything infeasible
    assert one_by_one([fine, broken]) == (broken,)  # of infeasible ones, that which misses by least
    assert one_by_one([Entry(3, (2.0, 2.0), 0.1), fine]) == (fine,)  # alike in that: the first


def test_a_front_that_was_given_is_not_changed():
    archive = Archive([Entry(0, (1.0, 0.0)), Entry(1, (0.0, 1.0))])
    front = archive.front
    before = tuple(front)
    archive.enter(Entry(2, (2.0, 2.0)))
    assert archive.front == (Entry(2, (2.0, 2.0)),)
    assert front == before


@pytest.mark.parametrize(
    "report",
    [
        Report(0, error="failed"),
        Report(0, (math.nan, 1.0)),
        Report(0, (1.0, math.inf)),
        Report(0, (1.0, -math.inf)),
        Report(0, (1.0, 1.0), math.inf),
        Report(0, (1.0, 1.0), math.nan),
    ],
)
def test_failures_and_what_is_not_finite_are_never_on_a_front(report):
    assert entry_of(report) is None


def test_the_entry_of_a_report():
    assert entry_of(Report(7, (1.0, -2.0), 0.5, {"a": 1.0}, "c")) == Entry(7, (1.0, -2.0), 0.5)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        max_size=25,
    )
)
def test_the_front_at_once_is_the_front_one_by_one(rows):
    entries = [
        Entry(job, (float(a), float(b)), violation) for job, (a, b, violation) in enumerate(rows)
    ]
    assert set(front_of(entries)) == set(one_by_one(entries))
    assert set(Archive(entries[: len(entries) // 2]).front) == set(
        front_of(entries[: len(entries) // 2])
    )
    assert front_of(entries[::-1]) == front_of(entries)
