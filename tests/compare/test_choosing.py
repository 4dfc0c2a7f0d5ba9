"""What choosing from a front is worth, against brute force and examples worked by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.compare.measures import Choice, preferences, utilities, value_of_choosing


def test_preferences_are_all_multiples_of_a_fraction():
    two = preferences(2)
    np.testing.assert_allclose(two, [(i / 100, 1 - i / 100) for i in range(101)], atol=1e-12)
    three = preferences(3)
    grid = {p for p in product(range(14), repeat=3) if sum(p) == 13}
    assert {tuple(row) for row in np.rint(13 * three).astype(int)} == grid
    assert len(three) == len(grid) == 105
    for k in (2, 3, 4, 5):
        np.testing.assert_allclose(preferences(k).sum(axis=1), 1)


def test_a_utility_by_hand():
    """From the reference (0, 10) to the ideal (1, 30), (0.5, 25) is short by 0.5 and 0.25."""
    weights = np.array([[1, 0], [0, 1], [0.5, 0.5], [0.2, 0.8]])
    found = utilities([[0.5, 25], [1, 30], [0, 10]], [0, 10], [1, 30], weights)
    np.testing.assert_allclose(found[0], [0.5, 0.75, 0.75, 0.8])
    np.testing.assert_allclose(found[1], 1)
    np.testing.assert_allclose(found[2], [0, 0, 0.5, 0.2])


def test_one_model_is_worth_its_own_utility():
    """With weights (w, 1 - w), its utility is 1 - 0.5 max(w, 1 - w), so about 0.625 on average."""
    choice = value_of_choosing([[0.5, 0.5]], [[0.0, 0.0]], [0, 0], [1, 1])
    mean = np.mean([max(i, 100 - i) / 100 for i in range(101)])
    assert choice == Choice(pytest.approx(1 - 0.5 * mean), pytest.approx(1 - mean))


def test_luck_is_claimed_and_not_received():
    """The lucky model is chosen for every preference, and the other one is better on test data."""
    choice = value_of_choosing([[0.9, 0.9], [0.8, 0.8]], [[0.5, 0.5], [0.8, 0.8]], [0, 0], [1, 1])
    alone = value_of_choosing([[0.9, 0.9]], [[0.5, 0.5]], [0, 0], [1, 1])
    assert choice == alone
    at_bounds = value_of_choosing(
        [[0.6, 0.6], [0.75, 0.75]], [[0.5, 0.5], [0.8, 0.8]], [0, 0], [1, 1]
    )
    assert at_bounds.actual > choice.actual
    assert at_bounds.claimed < choice.claimed


@given(st.integers(0, 10**6), st.integers(1, 7), st.sampled_from([2, 3]))
def test_it_is_the_mean_over_single_choices(seed, n, k):
    rng = np.random.default_rng(seed)
    shown, test = rng.random((2, n, k))
    reference = -rng.random(k)
    ideal = 1 + rng.random(k)
    claimed, actual = [], []
    for weights in preferences(k):

        def utility(point, weights=weights):
            parts = zip(weights, point, reference, ideal, strict=True)
            return 1 - max(w * (best - x) / (best - worst) for w, x, worst, best in parts)

        row = max(range(n), key=lambda i: utility(shown[i]))
        claimed.append(utility(shown[row]))
        actual.append(utility(test[row]))
    found = value_of_choosing(shown, test, reference, ideal)
    assert found.claimed == pytest.approx(np.mean(claimed))
    assert found.actual == pytest.approx(np.mean(actual))


def test_ties_go_to_the_model_that_is_better_elsewhere():
    """At the weights (1, 0) both are equally good in the first objective."""
    found = value_of_choosing([[1, 0], [1, 1]], [[0, 0], [1, 1]], [0, 0], [1, 1])
    assert found == Choice(pytest.approx(1), pytest.approx(1))


def test_models_without_test_values_cannot_be_chosen():
    nan = float("nan")
    found = value_of_choosing([[1, 1], [0.5, 0.5]], [[nan, 1], [0.5, 0.5]], [0, 0], [1, 1])
    assert found == value_of_choosing([[0.5, 0.5]], [[0.5, 0.5]], [0, 0], [1, 1])
    assert value_of_choosing([[1, 1]], [[nan, nan]], [0, 0], [1, 1]) is None


def test_an_ideal_point_below_the_reference_is_refused():
    with pytest.raises(ValueError, match="`ideal` must be above `reference`"):
        utilities([[1, 1]], [0, 1], [1, 1], preferences(2))
