"""Standings against the rankings they replace, which rank all results each time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanes import examples
from mopbt import chain, standings
from mopbt.ranking import (
    by_domination,
    by_max_scalarization,
    by_objective,
    by_random_scalarization,
    ranks,
)
from mopbt.rng import stream
from mopbt.staircases import Staircases
from mopbt.standings import Fronts, standings_of
from mopbt.state import Result

RANKINGS = [
    by_domination(),
    by_domination(scale=True),
    by_domination(within="crowded"),
    by_domination(within="hypervolume"),
    by_objective(1),
    by_random_scalarization(),
    by_max_scalarization(vectors=3),
]
# Few values make many ties and many identical points.
VALUES = st.one_of(st.integers(0, 4).map(float), st.floats(-9, 9))
ODD = st.sampled_from([float("nan"), float("inf"), -float("inf")])


def points(k):
    return st.tuples(*[VALUES] * k)


def results(k):
    violations = st.one_of(st.just(0.0), st.sampled_from([0.5, 1.0, 2.5]))
    return st.one_of(
        st.builds(Result, points(k), violations),
        st.builds(Result, points(k)),
        st.builds(Result, st.tuples(ODD, *[VALUES] * (k - 1))),
        st.builds(Result, points(k), ODD.filter(lambda v: v != -float("inf"))),
        st.just(Result(None)),
        st.none(),
    )


def changes(k):
    return st.lists(
        st.lists(st.tuples(st.integers(0, 30), results(k)), min_size=1, max_size=12), max_size=8
    )


def check_fronts(fronts, held):
    ids = sorted(held)
    numbers = ranks([held[id] for id in ids]) if ids else []
    assert [fronts.number(id) for id in ids] == list(numbers)
    assert fronts.sizes == np.bincount(numbers).tolist() if ids else fronts.sizes == []
    assert len(fronts) == len(ids)
    assert fronts.number(10**6) == -1


@pytest.mark.parametrize(
    ("kind", "k"), [(Staircases, 2), *((Fronts, k) for k in (1, 2, 3, 4))], ids=str
)
@given(data=st.data())
@examples(60)
def test_fronts_follow_points_that_come_and_go(kind, k, data):
    fronts, held = kind(), {}
    moves = st.lists(st.tuples(st.integers(0, 20), points(k)), max_size=40)
    for id, point in data.draw(moves):
        if id in held:
            fronts.remove(id)
            del held[id]
            check_fronts(fronts, held)
        else:
            fronts.insert(id, point)
            held[id] = point
            check_fronts(fronts, held)


@pytest.mark.parametrize(("kind", "k"), [(Staircases, 2), (Fronts, 2), (Fronts, 3)], ids=str)
def test_fronts_of_many_points(kind, k, monkeypatch):
    # Small tables of comparisons, so that they are made in parts.
    monkeypatch.setattr(standings, "CELLS", 16)
    rng = np.random.default_rng(k)
    array = rng.random((400, k)).round(2)
    fronts, held = kind(), dict(enumerate(array))
    fronts.reset(np.arange(400), array)
    for _ in range(60):
        id = int(rng.integers(450))
        if id in held:
            fronts.remove(id)
        held[id] = rng.random(k).round(2)
        fronts.insert(id, held[id])
    check_fronts(fronts, held)
    fronts.reset(np.array([], dtype=int), np.empty((0, k)))
    check_fronts(fronts, {})


def check_order(table, held, rank, cuts):
    finite = {id: result for id, result in sorted(held.items()) if result.is_finite}
    ids = list(finite)
    assert (len(table), table.failed) == (len(ids), len(held) - len(ids))
    if not ids:
        return
    objectives = np.array([result.objectives for result in finite.values()])
    violations = np.array([result.violation for result in finite.values()])
    expected = [ids[row] for row in rank(objectives, violations, stream(1, "rank"), cuts)]
    order = table.order(cuts, lambda: stream(1, "rank"))
    assert [order.at(place) for place in range(len(ids))] == expected
    for place in cuts or range(len(ids) + 1):
        # A new order, which has computed nothing yet.
        order = table.order(cuts, lambda: stream(1, "rank"))
        assert [order.precedes(id, place) for id in expected] == [
            position < place for position in range(len(ids))
        ]
        order = table.order(cuts, lambda: stream(1, "rank"))
        assert set(order.first(min(place, len(ids))).tolist()) == set(expected[:place])


@pytest.mark.parametrize("rank", RANKINGS, ids=repr)
@given(k=st.integers(2, 3), limit=st.sampled_from([0, 4, 400]), data=st.data())
@examples(20)
def test_standings_equal_the_ranking_of_all_results(rank, k, limit, data):
    table, held = standings_of(rank), {}
    with pytest.MonkeyPatch.context() as patch:
        # From "never recompute all" to "always, unless the population is large".
        patch.setattr(standings, "CHANGES_PER_RESULT", limit)
        patch.setattr(standings, "SMALLEST_CHAIN", 2)
        patch.setattr(chain, "MOST_CHANGES", limit)
        for batch in data.draw(changes(k)):
            batch = list(dict(batch).items())
            table.update(batch)
            held.update(batch)
            held = {id: result for id, result in held.items() if result is not None}
            cut = data.draw(st.integers(0, 12))
            check_order(table, held, rank, data.draw(st.sampled_from([None, (cut,), (cut, 18)])))
