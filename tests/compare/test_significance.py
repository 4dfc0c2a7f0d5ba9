"""The paired test, its correction and ranks."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from mopbt.compare import significance
from mopbt.compare.significance import (
    EXACT,
    average_ranks,
    bootstrap_interval,
    critical_difference,
    holm,
    paired_differences,
    sign_flip_test,
)
from mopbt.compare.tables import LEVEL
from mopbt.rng import stream

integers = st.lists(st.integers(-4, 4), min_size=1, max_size=9)


class TestSignFlips:
    @given(integers)
    def test_p_is_the_share_of_all_patterns_of_signs_that_reach_as_far(self, differences):
        sums = [
            abs(sum(map(math.prod, zip(signs, differences, strict=True))))
            for signs in itertools.product((1, -1), repeat=len(differences))
        ]
        assert sign_flip_test(differences) == pytest.approx(
            np.mean(np.array(sums) >= abs(sum(differences)))
        )

    @pytest.mark.parametrize("seed", range(5))
    def test_agrees_with_scipys_permutation_test(self, seed):
        differences = np.random.default_rng(seed).normal(0.4, 1, size=8)
        test = scipy.stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flip_test(differences) == pytest.approx(test.pvalue)

    @pytest.mark.parametrize("negative", [(), (1,), (2, 5), (1, 4, 7), (10,)])
    def test_agrees_with_wilcoxons_exact_test_where_differences_are_their_ranks(self, negative):
        differences = [-i if i in negative else i for i in range(1, 11)]
        assert sign_flip_test(differences) == pytest.approx(
            scipy.stats.wilcoxon(differences, method="exact").pvalue
        )

    def test_five_pairs_that_all_point_one_way_have_a_sixteenth(self):
        assert sign_flip_test([0.1, 0.2, 0.3, 0.15, 0.05]) == 2 / 32

    def test_sums_that_differ_by_rounding_alone_are_equal(self):
        """0.1 + 0.2 - 0.3 is not 0 in binary, so the test needs a tolerance."""
        assert sign_flip_test([0.1, 0.2, -0.3]) == 1.0
        assert sign_flip_test([0.3, 0.1, 0.2, -0.6]) == 1.0

    def test_no_difference_at_all_is_no_evidence(self):
        assert sign_flip_test(np.zeros(6)) == 1.0
        assert math.isnan(sign_flip_test([]))

    def test_many_pairs_are_sampled_reproducibly_and_close_to_the_exact_value(self):
        differences = np.array([-i if i % 3 == 0 else i for i in range(1, EXACT + 11)])
        exact = scipy.stats.wilcoxon(differences, method="exact").pvalue
        assert sign_flip_test(differences) == pytest.approx(exact, abs=0.005)
        assert sign_flip_test(differences) == sign_flip_test(differences)

    def test_a_sampled_p_is_never_0(self):
        assert 0 < sign_flip_test(np.ones(60)) < 1e-4

    @pytest.mark.parametrize("wrong", [[[1.0]], [math.nan], [math.inf]])
    def test_differences_that_are_not_finite_numbers_are_an_error(self, wrong):
        with pytest.raises(ValueError, match=r"`differences` must be finite and have shape \(n,\)"):
            sign_flip_test(wrong)

    def test_of_many_pairs_signs_are_drawn_in_parts_as_if_at_once(self):
        numbers = np.random.default_rng(0).normal(0.1, 1, size=EXACT + 3)
        drawn = 1 - 2 * stream(0, "sign flips", len(numbers)).integers(
            0, 2, size=(significance.FLIPS, len(numbers)), dtype=np.int8
        )
        as_far = (np.abs(drawn @ numbers) >= abs(numbers.sum()) - 1e-9).sum()
        assert sign_flip_test(numbers) == (1 + as_far) / (1 + significance.FLIPS)


class TestHolm:
    def test_a_worked_example(self):
        """By hand: 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, raised to the one before it."""
        np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
    def test_rejects_what_the_step_down_procedure_rejects(self, p):
        rejected = set()
        for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] * (len(p) - step) > LEVEL:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(holm(p)) if value <= LEVEL} == rejected
        assert (holm(p) >= p).all()
        assert (holm(p) <= 1).all()

    def test_what_was_not_tested_does_not_count(self):
        np.testing.assert_allclose(holm([math.nan, 0.02, 0.03]), [math.nan, 0.04, 0.04])
        assert holm([]).shape == (0,)


@given(integers)
def test_places_share_their_mean_as_in_scipy(values):
    np.testing.assert_array_equal(
        average_ranks(values), scipy.stats.rankdata([-value for value in values])
    )


def test_pairs_are_of_the_same_seed_and_of_those_that_both_have():
    assert paired_differences({3: 10.0, 1: 5.0, 7: 1.0}, {1: 1.0, 3: 2.0, 9: 0.0}) == {
        1: 4.0,
        3: 8.0,
    }


def test_runs_without_a_common_seed_are_paired_in_their_order():
    assert paired_differences({100: 5.0, 101: 7.0}, {1: 2.0, 0: 1.0, 2: 3.0}) == {0: 4.0, 1: 5.0}


class TestIntervals:
    def test_an_interval_is_that_of_scipy(self):
        differences = np.random.default_rng(0).normal(0.3, 1, 10)
        expected = scipy.stats.bootstrap(
            (differences,), np.mean, n_resamples=20_000, method="percentile", rng=1
        ).confidence_interval
        found = bootstrap_interval(differences)
        assert found == pytest.approx((expected.low, expected.high), abs=0.03)
        assert bootstrap_interval(differences) == found

    def test_a_few_pairs_have_no_interval(self):
        assert np.isnan(bootstrap_interval([1, 2, 3, 4])).all()
        assert bootstrap_interval([1, 1, 1, 1, 1]) == (1, 1)

    @pytest.mark.parametrize("algorithms", range(2, 13))
    def test_critical_differences_follow_from_the_studentized_range(self, algorithms):
        q = scipy.stats.studentized_range.ppf(0.95, algorithms, 1e6) / math.sqrt(2)
        expected = q * math.sqrt(algorithms * (algorithms + 1) / (6 * 5))
        assert critical_difference(algorithms, 5) == pytest.approx(expected, rel=1e-3)

    def test_one_task_has_no_critical_difference(self):
        assert math.isnan(critical_difference(3, 1))
        assert math.isnan(critical_difference(13, 5))
