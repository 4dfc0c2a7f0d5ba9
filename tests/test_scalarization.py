import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mopbt.ranking import by_max_scalarization, by_random_scalarization
from mopbt.scalarization import (
    above_zero,
    chebyshev,
    golovin,
    maximum_scalarization,
    parego,
    random_scalarization,
    simplex_weights,
    unit_weights,
    weighted_sum,
)

VALUES = st.floats(-100, 100)
POSITIVE = st.floats(0.01, 10)


@st.composite
def tables(draw):
    n, K = draw(st.integers(0, 6)), draw(st.sampled_from([1, 2, 3, 5]))
    shape = (n, K) if draw(st.booleans()) else (K,)
    return draw(arrays(float, (n, K), elements=VALUES)), draw(
        arrays(float, shape, elements=POSITIVE)
    )


def rows(objectives, weights):
    return list(
        zip(objectives.tolist(), np.broadcast_to(weights, objectives.shape).tolist(), strict=True)
    )


def test_examples_by_hand():
    objectives, weights = [[1.0, 2.0], [3.0, 0.5]], [0.5, 0.25]
    assert weighted_sum(objectives, weights).tolist() == [1.0, 1.625]
    assert chebyshev(objectives, weights).tolist() == [0.5, 0.125]
    assert parego(objectives, weights).tolist() == pytest.approx([0.55, 0.20625])
    assert golovin(objectives, weights).tolist() == [4.0, 4.0]  # min(2, 8)^2, min(6, 2)^2
    assert parego([[1.0, 2.0]], weights, rho=0).tolist() == [0.5]


@given(tables())
def test_equal_to_the_formulas_row_by_row(table):
    f, w = table
    K = f.shape[1]
    sums = [sum(a * b for a, b in zip(x, v, strict=True)) for x, v in rows(f, w)]
    mins = [min(a * b for a, b in zip(x, v, strict=True)) for x, v in rows(f, w)]
    assert weighted_sum(f, w) == pytest.approx(sums)
    assert chebyshev(f, w) == pytest.approx(mins)
    assert parego(f, w) == pytest.approx([0.05 * s + m for s, m in zip(sums, mins, strict=True)])
    paper = [min(max(0.0, a / b) for a, b in zip(x, v, strict=True)) ** K for x, v in rows(f, w)]
    code = [min((a / b) ** 2 for a, b in zip(x, v, strict=True)) for x, v in rows(f, w)]
    assert golovin(f, w) == pytest.approx(paper)
    assert golovin(f, w, authors_variant=True) == pytest.approx(code)


def test_golovin_of_the_paper_and_of_the_authors_code():
    # The exponent is K in the paper and 2 in the code.
    assert golovin([[2.0, 2.0, 2.0]], [1, 1, 1]).tolist() == [8.0]
    assert golovin([[2.0, 2.0, 2.0]], [1, 1, 1], authors_variant=True).tolist() == [4.0]
    # The paper clips negative ratios to 0; the code squares them.
    assert golovin([[-3.0, 4.0]], [1, 1]).tolist() == [0.0]
    assert golovin([[-3.0, 4.0]], [1, 1], authors_variant=True).tolist() == [9.0]


def test_an_objective_of_weight_zero_does_not_limit_golovin_unless_it_is_negative():
    assert golovin([[2.0, 0.0], [2.0, 5.0], [2.0, -1.0]], [1.0, 0.0]).tolist() == [4.0, 4.0, 0.0]


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_unit_weights_are_uniform_directions_of_the_positive_orthant(K):
    weights = unit_weights(20_000, K, np.random.default_rng(0))
    assert weights.shape == (20_000, K)
    assert (weights >= 0).all()
    assert np.linalg.norm(weights, axis=1) == pytest.approx(1)
    assert (weights**2).mean(axis=0) == pytest.approx(1 / K, abs=0.01)
    if K == 2:
        # Uniform angles: each quarter of the right angle holds a quarter of the draws.
        angles = np.arctan2(weights[:, 1], weights[:, 0])
        assert np.histogram(angles, 4, (0, np.pi / 2))[0] == pytest.approx(5000, rel=0.05)


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_simplex_weights_sum_to_one(K):
    weights = simplex_weights(20_000, K, np.random.default_rng(0))
    assert (weights > 0).all()
    assert weights.sum(axis=1) == pytest.approx(1)
    if K == 2:
        # For uniform u divided by their sum, P(w_1 < 1/3) = P(2 u_1 < u_2) = 1/4.
        assert (weights[:, 0] < 1 / 3).mean() == pytest.approx(0.25, abs=0.01)


def test_simplex_weights_are_finite_if_all_draws_are_zero():
    class Zeros:
        def random(self, shape):
            return np.zeros(shape)

    assert simplex_weights(2, 4, Zeros()).tolist() == [[0.25] * 4] * 2


def test_random_scalarization_uses_one_vector_for_all_rows_or_one_for_each():
    objectives = np.full((50, 2), [1.0, 2.0])
    shared = random_scalarization(objectives, np.random.default_rng(0))
    own = random_scalarization(objectives, np.random.default_rng(0), per_member=True)
    assert len(set(shared.tolist())) == 1
    assert len(set(own.tolist())) == 50
    assert shared[0] == parego(objectives[:1], simplex_weights(1, 2, np.random.default_rng(0)))[0]
    assert (
        own.tolist()
        == parego(objectives, simplex_weights(50, 2, np.random.default_rng(0))).tolist()
    )


@given(
    arrays(float, st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 3, 5])), elements=VALUES),
    st.integers(1, 20),
)
def test_maximum_scalarization_is_the_maximum_over_the_vectors(objectives, vectors):
    n, K = objectives.shape
    shared = unit_weights(vectors, K, np.random.default_rng(7))
    expected = [max(golovin([row], w)[0] for w in shared) for row in objectives]
    assert (
        maximum_scalarization(objectives, np.random.default_rng(7), vectors=vectors).tolist()
        == expected
    )
    own = simplex_weights(n * vectors, K, np.random.default_rng(7)).reshape(n, vectors, K)
    expected = [
        max(golovin([row], w, authors_variant=True)[0] for w in ws)
        for row, ws in zip(objectives, own, strict=True)
    ]
    found = maximum_scalarization(
        objectives, np.random.default_rng(7), vectors=vectors, authors_variant=True
    )
    assert found.tolist() == expected


def test_the_maximum_scalarization_prefers_a_dominating_row():
    objectives = np.array([[0.5, 0.5], [0.6, 0.7], [0.2, 0.1]])
    scores = maximum_scalarization(objectives, np.random.default_rng(0))
    assert scores[1] > scores[0] > scores[2]


@pytest.mark.parametrize("function", [weighted_sum, chebyshev, parego, golovin])
def test_inputs_are_not_modified_and_wrong_ones_are_named(function):
    objectives, weights = np.array([[1.0, -2.0], [3.0, 4.0]]), np.array([0.5, 0.0])
    copies = objectives.copy(), weights.copy()
    function(objectives, weights)
    assert (objectives == copies[0]).all()
    assert (weights == copies[1]).all()
    with pytest.raises(ValueError, match=r"`objectives` must have shape \(n, K\), got \(2,\)"):
        function([1.0, 2.0], weights)
    with pytest.raises(
        ValueError, match=r"`weights` must have shape \(K,\) or \(n, K\) with K = 2, got \(3,\)"
    ):
        function(objectives, [1, 2, 3])
    with pytest.raises(ValueError, match=r"`weights` must not be negative, got -1.0"):
        function(objectives, [1, -1])


@pytest.mark.parametrize("vectors", [0, -1, 2.0, True])
def test_vectors_must_be_a_count(vectors):
    with pytest.raises(ValueError, match="`vectors` must be a whole number of at least 1"):
        maximum_scalarization([[1.0, 2.0]], np.random.default_rng(0), vectors=vectors)


def test_a_gap_enters_as_one_minus_the_gap():
    signed = [[0.8, -0.1], [0.7, -0.02]]
    np.testing.assert_allclose(above_zero(signed, [1]), [[0.8, 0.9], [0.7, 0.98]])
    assert above_zero(signed, []).tolist() == signed
    assert above_zero(np.empty((0, 2)), [1]).shape == (0, 2)


def test_metrics_above_one_are_subtracted_from_the_worst():
    np.testing.assert_allclose(
        above_zero([[0.8, -20.0], [0.7, -5.0]], [1]), [[0.8, 0.0], [0.7, 15.0]]
    )


@given(tables())
def test_shifted_objectives_are_not_negative_and_keep_their_distances(table):
    f, _ = table
    positive = above_zero(f, range(f.shape[1]))
    assert (positive >= 0).all()
    assert np.diff(positive, axis=0) == pytest.approx(np.diff(f, axis=0))


@pytest.mark.parametrize(
    "rank", [by_random_scalarization(minimized=(1,)), by_max_scalarization(minimized=(1,))]
)
def test_a_minimized_gap_neither_decides_alone_nor_is_ignored(rank):
    """Signed gaps are negative: they would dominate min w f, and make max(0, f / w) always 0."""
    signed = np.array([[0.2, -0.2], [0.5, -0.3], [0.6, -0.1], [0.9, -0.11]])
    orders = {tuple(rank(signed, None, np.random.default_rng(seed)).tolist()) for seed in range(20)}
    assert any(order[0] == 3 for order in orders)
    assert all(order.index(3) < order.index(1) for order in orders), (
        "a row that is worse in both objectives comes later"
    )
    assert orders != {(2, 3, 0, 1)}, "the order of the gap alone"
    assert (0, 1, 2, 3) not in orders, "ties would keep the input order"
