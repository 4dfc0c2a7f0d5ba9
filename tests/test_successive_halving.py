import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.ranking import by_domination, dominates
from mopbt.rng import stream
from mopbt.standings import standings_of
from mopbt.state import Result, State, Trial
from mopbt.successive_halving import at_rung, places_to_promote, places_to_stay, rung_steps

RANK = by_domination()
points = st.lists(st.tuples(*[st.integers(0, 4).map(float)] * 2), min_size=1, max_size=20)


def best_of(results, n, rank, rng):
    """Return the best of some results, as a scheduler finds them at a rung."""
    standings = standings_of(rank)
    standings.update(list(enumerate(results)))
    return standings.order((n,), lambda: rng).first(n).tolist()


def test_the_papers_rungs():
    assert rung_steps(2, 100) == (2, 6, 18, 54)
    assert rung_steps(1, 50, grace=2, eta=4) == (2, 8, 32)
    # The last step is not a rung.
    assert rung_steps(1, 9) == (1, 3)
    assert rung_steps(5, 5) == ()


@given(st.integers(1, 500), st.integers(2, 6))
def test_places_are_counted_like_in_the_authors_code(n, eta):
    assert places_to_stay(n, eta) == n - int(round((1 - 1 / eta) * n, 9))
    assert places_to_promote(n, eta) == int(round(n / eta, 9))
    assert 1 <= places_to_stay(n, eta) <= n


@given(points, st.integers(0, 25), st.sampled_from(["scattered", "crowded", "hypervolume"]))
def test_the_best_are_the_head_of_the_complete_order(rows, n, within):
    rank, rng = by_domination(within=within), stream(0, "rank")
    order = rank(np.array(rows), np.zeros(len(rows)), rng)
    assert sorted(best_of([Result(row) for row in rows], n, rank, rng)) == sorted(
        order[:n].tolist()
    )


@given(points)
def test_a_result_that_dominates_all_others_is_among_the_best(rows):
    top = (max(x for x, _ in rows) + 1, max(y for _, y in rows) + 1)
    assert len(rows) in best_of([*map(Result, rows), Result(top)], 1, RANK, stream(0, "rank"))


@given(points, st.integers(1, 20))
def test_a_result_dominated_by_n_others_is_not_among_the_best(rows, n):
    best = best_of([Result(row) for row in rows], n, RANK, stream(0, "rank"))
    for i, row in enumerate(rows):
        if sum(dominates(other, row) for other in rows) >= n:
            assert i not in best


def test_constraints_come_before_objectives():
    results = [Result((9.0, 9.0), 0.5), Result((0.0, 0.0)), Result((5.0, 5.0), 0.1)]
    assert best_of(results, 1, RANK, stream(0, "rank")) == [1]
    assert set(best_of(results, 2, RANK, stream(0, "rank"))) == {1, 2}


def test_failed_results_are_not_at_a_rung():
    results = [
        {2: Result((1.0,))},
        {2: Result(None)},
        {2: Result((float("nan"),))},
        {4: Result((1.0,))},
    ]
    trials = tuple(Trial(i, (), "waiting", 2, None, r) for i, r in enumerate(results))
    assert list(at_rung(State(0, trials), 2)) == [0]


@pytest.mark.parametrize("n", [-1, 0])
def test_without_places_there_is_no_best(n):
    assert best_of([Result((1.0, 1.0))], n, RANK, stream(0, "rank")) == []
