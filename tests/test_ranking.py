import pickle
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pygmo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import mopbt.ranking as ranking
from lanes import examples
from mopbt.exploit import quantile_size
from mopbt.ranking import (
    by_domination,
    by_max_scalarization,
    by_objective,
    by_random_scalarization,
    crowded_order,
    crowding_distance,
    dominates,
    hypervolume_order,
    non_dominated_sort,
    ranks,
    ranks_of,
    scattered_order,
)
from mopbt.scalarization import random_scalarization

ORDERS = [scattered_order, crowded_order, hypervolume_order]
RANKS = [
    by_domination(),
    by_domination(scale=True),
    by_domination(within="crowded"),
    by_domination(within="hypervolume"),
    by_objective(0),
    by_random_scalarization(),
    by_random_scalarization(per_member=True),
    by_max_scalarization(vectors=5),
    by_max_scalarization(vectors=5, authors_variant=True),
]
COUNTS = st.sampled_from([1, 2, 3, 5])
EIGHTHS = st.integers(-8, 8).map(lambda i: i / 8)  # many ties, and exact arithmetic
BROKEN = st.sampled_from([np.nan, np.inf, -np.inf])


def rng():
    return np.random.default_rng(0)


@st.composite
def tables(draw, elements=EIGHTHS, largest=12, counts=COUNTS):
    return draw(arrays(float, (draw(st.integers(0, largest)), draw(counts)), elements=elements))


@st.composite
def constrained(draw, elements=EIGHTHS):
    objectives = draw(tables(elements))
    return objectives, draw(
        arrays(float, len(objectives), elements=st.sampled_from([0, 0, 0.5, 1, 2, np.inf]))
    )


BROKEN_TABLES = tables(st.one_of(EIGHTHS, EIGHTHS, EIGHTHS, BROKEN))


def finite_rows(objectives):
    return np.isfinite(objectives).all(axis=1)


def fronts_by_definition(objectives, violations=None):
    """Peel off non-dominated rows, with Deb's constraint domination."""
    violations = np.zeros(len(objectives)) if violations is None else violations

    def beats(i, j):
        if violations[i] or violations[j]:
            return violations[i] < violations[j]
        return dominates(objectives[i], objectives[j])

    left, fronts = set(range(len(objectives))), []
    while left:
        fronts.append(sorted(j for j in left if not any(beats(i, j) for i in left)))
        left -= set(fronts[-1])
    return fronts


def ranks_by_definition(objectives, violations=None):
    numbers = np.zeros(len(objectives), dtype=int)
    for number, front in enumerate(fronts_by_definition(objectives, violations)):
        numbers[front] = number
    return numbers.tolist()


def exact(objectives):
    return [[Fraction(v) for v in row] for row in objectives.tolist()]


def square(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def scattered_by_definition(objectives, violations=None, spans=None):
    """Algorithm 1 as written, in exact arithmetic."""
    f, order = exact(objectives), []
    if spans is not None:
        f = [[v / (s or 1) for v, s in zip(row, spans, strict=True)] for row in f]
    for front in fronts_by_definition(objectives, violations):
        front = sorted(front, key=lambda i: -objectives[i, 0])
        while front:
            pick = max(front, key=lambda i: min((square(f[i], f[j]) for j in order), default=0))
            front.remove(pick)
            order.append(pick)
    return order


def volume_by_cells(points, reference):
    """Compute the hypervolume exactly, as a sum over cells of a grid."""
    sides = [sorted({r, *(p[k] for p in points if p[k] > r)}) for k, r in enumerate(reference)]
    total = Fraction(0)
    for cell in product(*(pairwise(side) for side in sides)):
        if any(all(p[k] >= hi for k, (_, hi) in enumerate(cell)) for p in points):
            size = Fraction(1)
            for lo, hi in cell:
                size *= hi - lo
            total += size
    return total


# Domination and fronts


def test_domination_needs_one_strict_improvement():
    assert dominates([1, 2], [1, 1])
    assert not dominates([1, 1], [1, 1])
    assert not dominates([2, 0], [1, 1])
    assert not dominates([np.nan, 2], [0, 1])
    with pytest.raises(
        ValueError, match=r"`a` and `b` must have the same shape \(K,\), got \(2,\) and \(3,\)"
    ):
        dominates([1, 2], [1, 2, 3])


@given(tables(elements=st.one_of(EIGHTHS, st.floats(-1e300, 1e300)), largest=20))
def test_ranks_are_those_of_the_definition(objectives):
    assert ranks(objectives).tolist() == ranks_by_definition(objectives)


@given(constrained())
def test_ranks_with_violations_are_those_of_constraint_domination(table):
    assert ranks(*table).tolist() == ranks_by_definition(*table)


@pytest.mark.parametrize("K", [2, 3, 5])
@pytest.mark.parametrize("levels", [4, 10**6])
def test_ranks_are_pygmos(K, levels):
    objectives = rng().integers(0, levels, (300, K)) / levels
    assert ranks(objectives).tolist() == pygmo.fast_non_dominated_sorting(-objectives)[3].tolist()


@given(constrained(st.one_of(EIGHTHS, EIGHTHS, BROKEN)))
def test_non_finite_rows_rank_last_and_change_nothing_for_the_others(table):
    # moocore and pymoo give wrong ranks to the finite rows when another row holds a NaN.
    objectives, violations = table
    for violation in (None, violations):
        found, finite = ranks(objectives, violation), finite_rows(objectives)
        alone = ranks(objectives[finite], None if violation is None else violation[finite])
        assert found[finite].tolist() == alone.tolist()
        assert (found[~finite] == 1 + alone.max(initial=-1)).all()


@given(constrained(st.one_of(EIGHTHS, BROKEN)))
def test_fronts_partition_the_rows_by_rank(table):
    fronts, numbers = non_dominated_sort(*table), ranks(*table)
    assert sorted(i for front in fronts for i in front.tolist()) == list(range(len(numbers)))
    assert all((numbers[front] == number).all() for number, front in enumerate(fronts))
    assert all(len(front) for front in fronts)


def test_a_violation_that_is_not_a_number_counts_as_a_failure():
    assert ranks([[1, 1], [0, 0], [2, 2], [np.nan, 2]], [0, 3, np.nan, 0]).tolist() == [0, 1, 2, 2]


def test_huge_values_are_finite():
    assert ranks([[1e300, 0], [2e300, 1], [0, 2]]).tolist() == [1, 0, 0]


# The scattered order


def test_a_scattered_order_by_hand_that_is_not_its_own_inverse():
    # All rows are one front. Row 2 has the largest f1, row 0 is farthest from it, and row 1 is
    # left. The order is a 3-cycle, so its ranks are another array.
    order = scattered_order([[0, 4], [3, 2], [4, 0]])
    assert order.tolist() == [2, 0, 1]
    assert ranks_of(order).tolist() == [1, 2, 0]


def test_a_scattered_order_of_three_fronts_by_hand():
    objectives = [[9, 1], [7, 5], [4, 7], [1, 9], [6, 4], [3, 5], [5, 1]]
    # F1 = 0..3: row 0 has the largest f1, and row 3 is farthest from it. Of the others, row 1
    # (squared distance 20) is farther than row 2 (13).
    # F2 = {4, 5}: the distance of row 4 is 2 (to row 1), that of row 5 is 5 (to row 2). F3 = {6}.
    assert ranks(objectives).tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert scattered_order(objectives).tolist() == [0, 3, 1, 2, 5, 4, 6]


def test_distances_to_earlier_fronts_matter():
    # Within the second front only, row 2 would come first by f1. It is close to row 0.
    assert scattered_order([[10, 0], [0, 10], [9.75, -0.25], [0, 5]]).tolist() == [0, 1, 3, 2]


def test_duplicates_come_last_in_their_front():
    assert scattered_order([[4, 0], [4, 0], [0, 4], [2, 3], [0, 4]]).tolist() == [0, 2, 3, 1, 4]


def test_ties_go_to_the_larger_first_objective_and_then_to_the_first_row():
    assert scattered_order([[-1, 1], [1, -1], [0, 0]]).tolist() == [1, 0, 2]
    assert scattered_order([[0, 0], [3, -4], [-5, 0.5], [4, -4.5]])[0] == 3
    assert scattered_order([[1, 1], [1, 1], [1, 1]]).tolist() == [0, 1, 2]


@given(tables(largest=14))
def test_the_scattered_order_is_algorithm_1(objectives):
    assert scattered_order(objectives).tolist() == scattered_by_definition(objectives)


@given(constrained())
def test_the_scattered_order_with_constraints_is_algorithm_1(table):
    assert scattered_order(*table).tolist() == scattered_by_definition(*table)


@given(tables(largest=14), st.integers(1, 30))
def test_the_scattered_order_does_not_depend_on_how_its_distances_are_stored(objectives, cells):
    expected = scattered_order(objectives).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "CELLS", cells)
        assert scattered_order(objectives).tolist() == expected


@given(
    st.lists(st.tuples(EIGHTHS, EIGHTHS), min_size=1, max_size=40),
    st.lists(st.tuples(EIGHTHS, EIGHTHS), max_size=3),
)
def test_a_large_front_of_two_objectives_is_scattered_by_algorithm_1(pairs, earlier):
    # A front may have equal points, but here also neighbors on a level or above each other.
    front = np.column_stack([np.sort([x for x, _ in pairs])[::-1], np.sort([y for _, y in pairs])])
    earlier = np.array(earlier).reshape(-1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_is_chain", lambda columns: False)
        expected = by_domination().order_front(front, earlier).tolist()
        patch.setattr(ranking, "_is_chain", lambda columns: True)
        patch.setattr(ranking, "CELLS", 0)
        assert by_domination().order_front(front, earlier).tolist() == expected


def test_only_sorted_fronts_of_two_objectives_are_chains():
    assert ranking._is_chain(np.array([[3.0, 2.0, 2.0], [1.0, 4.0, 4.0]]))
    assert not ranking._is_chain(np.array([[3.0, 2.0, 2.5], [1.0, 4.0, 4.0]]))
    # Rows with equal violations are a front of points in any position.
    assert not ranking._is_chain(np.array([[3.0, 2.0, 1.0], [1.0, 4.0, 3.0]]))
    assert not ranking._is_chain(np.array([[3.0, 2.0], [1.0, 2.0], [1.0, 2.0]]))


@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("offset", [0, 1e6, -1e6])
def test_a_big_offset_does_not_change_the_scattered_order(K, offset):
    # |a|^2 - 2ab + |b|^2, as in scikit-learn and the authors' code, misplaces up to a quarter of
    # the rows here.
    objectives = rng().integers(0, 2**20, (90, K)) / 2**20 + offset
    assert scattered_order(objectives).tolist() == scattered_by_definition(objectives)


@given(tables(largest=10), st.sampled_from([0.25, 1, 8]))
def test_scaling_divides_each_objective_by_its_range(objectives, factor):
    objectives[:, 0] *= factor
    spans = [Fraction(v) for v in np.ptp(objectives, axis=0)] if len(objectives) else [1]
    powers_of_two = [s for s in spans if s and (s.numerator & (s.numerator - 1))] == []
    if powers_of_two:  # otherwise rounding decides between equals
        assert scattered_order(objectives, scale=True).tolist() == scattered_by_definition(
            objectives, spans=spans
        )


def test_scaling_makes_a_small_objective_count():
    # After rows 0 and 3, row 1 is 1.5 from row 0, and row 2 is 1 from row 3. As shares of the
    # ranges these are 0.38 and 0.56.
    objectives = [[4.0, 0.0], [2.5, 0.0001], [1.0, 0.002], [0.0, 0.004]]
    assert scattered_order(objectives).tolist() == [0, 3, 1, 2]
    assert scattered_order(objectives, scale=True).tolist() == [0, 3, 2, 1]


@given(BROKEN_TABLES, st.booleans())
def test_values_near_the_largest_float_still_give_a_permutation(objectives, scale):
    huge = objectives * 1.7e308
    for order in (scattered_order(huge, scale=scale), crowded_order(huge), hypervolume_order(huge)):
        assert sorted(order.tolist()) == list(range(len(huge)))


def test_ten_thousand_rows():
    objectives = rng().random((10_000, 2))
    order = scattered_order(objectives)
    assert sorted(order.tolist()) == list(range(10_000))
    assert (np.diff(ranks(objectives)[order]) >= 0).all()


# The crowded order


def test_crowding_distances_by_hand():
    assert crowding_distance([[0, 4], [1, 3], [3, 1], [4, 0]]).tolist() == [
        np.inf,
        1.5,
        1.5,
        np.inf,
    ]
    assert crowding_distance([[0, 1]]).tolist() == [np.inf]
    assert crowding_distance([[0, 1], [1, 0]]).tolist() == [np.inf, np.inf]
    assert crowding_distance(np.empty((0, 2))).tolist() == []
    # The second objective does not vary, so it has no ends; the third row failed.
    assert crowding_distance([[0, 1], [1, 1], [np.nan, 1], [2, 1]]).tolist() == [
        np.inf,
        1.0,
        0.0,
        np.inf,
    ]


@given(st.integers(3, 12), st.sampled_from([2, 3, 5]), st.integers(0, 10**6))
def test_crowding_distances_are_pygmos(n, K, seed):
    front = np.random.default_rng(seed).random((n, K))
    assert crowding_distance(front) == pytest.approx(pygmo.crowding_distance(front))


@given(tables())
def test_the_crowded_order_sorts_each_front_by_crowding_distance(objectives):
    order = crowded_order(objectives).tolist()
    for front in non_dominated_sort(objectives):
        found, order = order[: len(front)], order[len(front) :]
        expected = sorted(front.tolist(), key=lambda i: -objectives[i, 0])
        distances = dict(zip(expected, crowding_distance(objectives[expected]), strict=True))
        assert found == sorted(expected, key=lambda i: -distances[i])


# The hypervolume order


def test_a_hypervolume_order_by_hand():
    # The reference is (-0.4, -0.4). Row 1 has the largest box, 3.4 x 3.4. To it, row 3 adds
    # 2.9 x 0.2, and rows 0 and 2 add 0.4 x 1.
    # After row 3, row 0 still adds 0.4, row 2 only 0.4 x 0.8.
    assert hypervolume_order([[4, 0], [3, 3], [0, 4], [2.5, 3.2]]).tolist() == [1, 3, 0, 2]


def test_equal_hypervolumes_go_to_the_larger_first_objective_and_duplicates_last():
    assert hypervolume_order([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]]).tolist() == [2, 1, 0]
    assert hypervolume_order([[0, 1], [0.7, 0.7], [0.7, 0.7], [1, 0]]).tolist() == [1, 3, 0, 2]
    assert hypervolume_order([[1, 1], [1, 1]]).tolist() == [0, 1]
    # The last two add the same, which rounding must not hide.
    assert hypervolume_order([[0.3, 1.0], [0.4, 0.5], [1.0, 0.3], [0.5, 0.4]]).tolist() == [
        2,
        0,
        3,
        1,
    ]


@examples(60)
@given(tables(largest=7, counts=st.sampled_from([1, 2, 3])))
def test_each_of_the_hypervolume_order_adds_the_most(objectives):
    order = hypervolume_order(objectives).tolist()
    for front in non_dominated_sort(objectives):
        found, order = order[: len(front)], order[len(front) :]
        f = exact(objectives[found])
        spans = [max(c) - min(c) for c in zip(*f, strict=True)]
        reference = [
            min(c) - (s or abs(min(c)) or 1) / 10
            for c, s in zip(zip(*f, strict=True), spans, strict=True)
        ]
        box = volume_by_cells([[max(c) for c in zip(*f, strict=True)]], reference)
        for place in range(len(found)):
            totals = [volume_by_cells([*f[:place], p], reference) for p in f[place:]]
            assert float((max(totals) - totals[0]) / box) <= 1e-11
        assert sorted(found) == sorted(front.tolist())


# All orders


@pytest.mark.parametrize("order", ORDERS)
@examples(60)
@given(table=constrained(st.one_of(EIGHTHS, EIGHTHS, BROKEN)))
def test_orders_are_permutations_by_rank_with_failed_rows_last(order, table):
    objectives, violations = table
    for violation in (None, violations):
        found = order(objectives, violation)
        assert sorted(found.tolist()) == list(range(len(objectives)))
        assert (np.diff(ranks(objectives, violation)[found]) >= 0).all()
        finite = finite_rows(objectives)
        alone = order(objectives[finite], None if violation is None else violation[finite])
        assert found.tolist() == [*np.flatnonzero(finite)[alone], *np.flatnonzero(~finite)]


@given(st.permutations(range(8)))
def test_ranks_of_inverts_an_order(order):
    places = ranks_of(order)
    assert [order[place] for place in places] == list(range(8))
    assert ranks_of(places).tolist() == list(order)


@pytest.mark.parametrize("function", [ranks, non_dominated_sort, *ORDERS])
@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_no_row_one_row_two_rows(function, K):
    assert len(function(np.empty((0, K)))) == 0
    assert len(function(np.empty((0, K)), np.empty(0))) == 0
    assert np.array(function(np.full((1, K), 3.0))).tolist() in ([0], [[0]])
    assert np.array(function(np.full((1, K), np.nan))).tolist() in ([0], [[0]])
    found = function(np.array([[0.0] * K, [1.0] * K]))
    assert np.ravel(found).tolist() == [1, 0]


# Rankings as values


@pytest.mark.parametrize("rank", RANKS, ids=repr)
@examples(40)
@given(table=constrained(st.one_of(EIGHTHS, EIGHTHS, EIGHTHS, BROKEN)))
def test_every_ranking_orders_feasible_rows_first_and_failed_rows_last(rank, table):
    objectives, violations = table
    before = objectives.copy(), violations.copy()
    for violation in (None, violations):
        order = rank(objectives, violation, rng())
        assert sorted(order.tolist()) == list(range(len(objectives)))
        failed = ~finite_rows(objectives)[order]
        assert (np.diff(failed.astype(int)) >= 0).all()
        kept = order[~failed]
        assert (violations[kept][1:] >= violations[kept][:-1]).all() or violation is None
        assert order[failed].tolist() == sorted(order[failed].tolist())
    assert np.array_equal(objectives, before[0], equal_nan=True)
    assert np.array_equal(violations, before[1])


@pytest.mark.parametrize("rank", RANKS, ids=repr)
@examples(40)
@given(table=constrained(), cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_cuts_do_not_change_the_rows_on_each_side(rank, table, cuts):
    """An exploit cuts twice: below the donors and above the replaced members."""
    complete, cut = rank(*table, rng()), rank(*table, rng(), cuts)
    for place in cuts:
        assert set(complete[:place].tolist()) == set(cut[:place].tolist())


@pytest.mark.parametrize("rank", RANKS, ids=repr)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_failed_row_is_never_in_the_top_quantile(rank, bad):
    objectives = rng().random((32, 3))
    objectives[::4, 0] = bad
    top = rank(objectives, None, rng())[: quantile_size(32, 0.5)]
    assert np.isfinite(objectives[top]).all()


@pytest.mark.parametrize("rank", RANKS, ids=repr)
def test_rankings_are_values(rank):
    again = pickle.loads(pickle.dumps(rank))
    assert again == rank
    assert hash(again) == hash(rank)
    assert eval(repr(rank)) == rank
    assert [r == rank for r in RANKS].count(True) == 1
    objectives = rng().random((20, 2))
    assert again(objectives, None, rng()).tolist() == rank(objectives, None, rng()).tolist()


@given(tables())
def test_domination_rankings_are_their_orders(objectives):
    assert by_domination()(objectives, None, rng()).tolist() == scattered_order(objectives).tolist()
    assert (
        by_domination(scale=True)(objectives, None, rng()).tolist()
        == scattered_order(objectives, scale=True).tolist()
    )
    assert (
        by_domination(within="crowded")(objectives, None, rng()).tolist()
        == crowded_order(objectives).tolist()
    )
    assert (
        by_domination(within="hypervolume")(objectives, None, rng()).tolist()
        == hypervolume_order(objectives).tolist()
    )


def test_scalar_rankings_sort_by_descending_score_and_keep_equals_in_their_order():
    objectives = np.array([[1, 9], [3, 0], [3, 5], [np.nan, 9], [2, 7]])
    assert by_objective(0)(objectives, None, rng()).tolist() == [1, 2, 4, 0, 3]
    assert by_objective(1)(objectives, None, rng()).tolist() == [0, 4, 2, 1, 3]
    violations = np.array([0, 2, 1, 0, 0.0])
    assert by_objective(0)(objectives, violations, rng()).tolist() == [4, 0, 2, 1, 3]


@pytest.mark.parametrize("per_member", [False, True])
def test_a_failed_row_does_not_change_the_weights_of_others(per_member):
    objectives = rng().random((6, 2))
    scores = random_scalarization(objectives, rng(), per_member=per_member)
    objectives[2] = np.nan
    expected = [i for i in np.argsort(-scores).tolist() if i != 2] + [2]
    assert (
        by_random_scalarization(per_member=per_member)(objectives, None, rng()).tolist() == expected
    )


def test_huge_scores_are_large():
    objectives = np.array([[1.0, 1.0], [1.7e308, 1.7e308]])
    for rank in RANKS:
        assert rank(objectives, None, rng()).tolist() == [1, 0]


# Arguments


@pytest.mark.parametrize("function", [ranks, non_dominated_sort, *ORDERS])
def test_wrong_shapes_are_named(function):
    with pytest.raises(ValueError, match=r"`objectives` must have shape \(n, K\), got \(32,\)"):
        function(np.zeros(32))
    with pytest.raises(ValueError, match=r"`objectives` must have shape \(n, K\), got \(3, 0\)"):
        function(np.zeros((3, 0)))
    with pytest.raises(
        ValueError,
        match=r"`violations` must have shape \(3,\) like the objectives' rows, got \(2,\)",
    ):
        function(np.zeros((3, 2)), [0, 0])
    with pytest.raises(ValueError, match=r"`violations` must not be negative, got -1.0"):
        function(np.zeros((3, 2)), [0, -1, 0])


def test_wrong_settings_of_rankings_are_named():
    with pytest.raises(
        ValueError,
        match="`within` must be one of 'scattered', 'crowded', 'hypervolume', got 'random'",
    ):
        by_domination(within="random")
    with pytest.raises(ValueError, match="`scale` must be False for within='crowded'"):
        by_domination(within="crowded", scale=True)
    with pytest.raises(ValueError, match="`k` must be a whole number of at least 0, got -1"):
        by_objective(-1)
    with pytest.raises(ValueError, match="`k` must be below the number of objectives, 2, got 2"):
        by_objective(2)(np.zeros((3, 2)), None, rng())
    with pytest.raises(ValueError, match="`vectors` must be a whole number of at least 1, got 0"):
        by_max_scalarization(vectors=0)


@pytest.mark.parametrize("function", [ranks, non_dominated_sort, crowding_distance, *ORDERS])
def test_inputs_are_not_modified(function):
    objectives = rng().random((30, 3))
    objectives[3, 1] = np.nan
    violations = np.arange(30.0) // 20
    before = objectives.copy(), violations.copy()
    objectives.flags.writeable = violations.flags.writeable = False
    function(objectives) if function is crowding_distance else function(objectives, violations)
    assert np.array_equal(objectives, before[0], equal_nan=True)
    assert np.array_equal(violations, before[1])
    assert (
        np.ravel(function(objectives.tolist())[0]).tolist()
        == np.ravel(function(objectives)[0]).tolist()
    )
