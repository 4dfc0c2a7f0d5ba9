"""Errors of rates in closed form, against published examples, simulation and other libraries."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from mopbt import rates
from mopbt.estimate import Estimate


def rows_of(counts):
    """Return predictions and labels from (true positives, false positives, misses, rest)."""
    tp, fp, fn, tn = counts
    predicted = np.repeat([1, 1, 0, 0], [tp, fp, fn, tn])
    actual = np.repeat([1, 0, 1, 0], [tp, fp, fn, tn])
    return predicted, actual


@pytest.mark.parametrize("counts", [(3, 0, 40, 2457), (60, 25, 15, 100), (1, 9, 9, 1)])
def test_means_are_those_of_sklearn(counts):
    predicted, actual = rows_of(counts)
    assert rates.accuracy(predicted == actual) == sklearn_metrics.accuracy_score(actual, predicted)
    assert rates.precision(predicted, actual) == sklearn_metrics.precision_score(actual, predicted)
    assert rates.recall(predicted, actual) == sklearn_metrics.recall_score(actual, predicted)
    expected = sklearn_metrics.f1_score(actual, predicted)
    assert rates.f1(predicted, actual) == pytest.approx(expected)


def test_the_precision_of_three_rows_is_uncertain_however_large_the_data_set():
    predicted, actual = rows_of((3, 0, 40, 2457))
    precision = rates.precision(predicted, actual)
    assert precision == 1.0
    assert precision.interval(0.9) == Estimate.ratio(3, 3).interval(0.9)
    assert precision.interval()[0] < 0.76


def test_without_positive_predictions_the_precision_may_be_anything():
    assert rates.precision([0, 0, 0], [0, 1, 0]).interval(0.9) == (0.0, 1.0)


@pytest.mark.parametrize("counts", [(300, 100, 80, 500), (30, 20, 25, 200)])
def test_errors_of_many_rows_are_those_of_the_bootstrap(counts):
    predicted, actual = rows_of(counts)

    def f1(predicted, actual):
        hits = (predicted & actual).sum()
        return 2 * hits / (predicted.sum() + actual.sum())

    bootstrap = Estimate.bootstrap(f1, predicted, actual, repeats=1000)
    assert rates.f1(predicted, actual).stderr == pytest.approx(bootstrap.stderr, rel=0.1)


def test_a_perfect_f1_of_few_rows_is_uncertain():
    f1 = rates.f1(*rows_of((4, 0, 0, 1000)))
    # q is at least 0.75 where 4 of 4 hold, and 2q / (1 + q) is 6 / 7.
    low = Estimate.ratio(4, 4).interval(0.9)[0]
    assert f1.interval(0.9) == pytest.approx((2 * low / (1 + low), 1.0))
    assert f1.stderr > 0.05


def test_f1_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    chances = [0.08, 0.04, 0.06, 0.82]
    truth = 2 * 0.08 / (2 * 0.08 + 0.04 + 0.06)
    covered = 0
    for counts in rng.multinomial(150, chances, size=500):
        low, high = rates.f1(*rows_of(counts)).interval(0.9)
        covered += low <= truth <= high
    assert 0.86 < covered / 500 < 0.94


def two_groups(one, other):
    """Return decisions and the masks of both groups from (positives, rows) of each."""
    decisions = np.concatenate([np.arange(n) < positives for positives, n in (one, other)])
    first = np.arange(len(decisions)) < one[1]
    return decisions, first, ~first


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [  # Newcombe 1998, table II, method 10, signed differences
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ],
)
def test_gaps_of_decisions_have_the_interval_of_newcombe(one, other, expected):
    gap = rates.gap(*two_groups(one, other))
    assert gap == pytest.approx(one[0] / one[1] - other[0] / other[1])
    assert gap.interval(0.95) == pytest.approx(expected, abs=5e-5)


def test_a_gap_is_absolute():
    decisions, one, other = two_groups((56, 70), (48, 80))
    swapped = rates.gap(decisions, other, one)
    assert swapped == rates.gap(decisions, one, other)
    assert swapped.interval(0.9) == pytest.approx(rates.gap(decisions, one, other).interval(0.9))


def test_the_interval_of_a_gap_that_may_be_zero_begins_there():
    gap = rates.gap(*two_groups((25, 50), (26, 50)))
    low, high = gap.interval(0.9)
    assert low == 0.0
    assert high > gap
    assert gap.stderr == pytest.approx(0.1, rel=0.05)


def test_the_gap_to_an_empty_group_may_be_anything():
    gap = rates.gap([0.4, 0.6], [True, True], [False, False])
    assert gap == 0.0
    assert gap.interval(0.9) == (0.0, 1.0)


def test_few_equal_probabilities_have_an_error():
    gap = rates.dsp([0.4, 0.4, 0.4, 0.6, 0.6, 0.6], [1, 1, 1, 0, 0, 0])
    assert gap == pytest.approx(0.2)
    assert gap.stderr > 0.1


@pytest.mark.parametrize("sizes", [(40, 60), (400, 900)])
def test_gaps_of_probabilities_cover_the_truth_as_often_as_they_say(sizes):
    rng = np.random.default_rng(1)
    one, other = sizes
    sensitive = np.arange(one + other) < one
    covered = 0
    for _ in range(500):
        p = np.concatenate([rng.beta(2, 3, size=one), rng.beta(2, 8, size=other)])
        low, high = rates.dsp(p, sensitive).interval(0.9)
        covered += low <= 0.4 - 0.2 <= high
    assert 0.86 < covered / 500 < 0.95


def test_equalized_odds_are_the_sum_of_the_gaps_of_both_classes():
    rng = np.random.default_rng(2)
    p, y, sensitive = rng.random(500), rng.random(500) < 0.3, rng.random(500) < 0.4
    parts = [rates.gap(p, sensitive & rows, ~sensitive & rows) for rows in (y, ~y)]
    deo = rates.deo(p, y, sensitive)
    assert deo == pytest.approx(sum(parts))
    assert deo.interval(0.9)[1] == pytest.approx(
        deo + np.hypot(*(part.interval(0.9)[1] - part.mean for part in parts))
    )


def test_arrays_of_different_shapes_are_an_error():
    with pytest.raises(ValueError, match=r"the same shape \(n,\), got \(3,\) and \(2,\)"):
        rates.precision([1, 0, 1], [1, 0])
