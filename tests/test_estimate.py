"""Estimates against scipy, worked examples and the distribution that they describe."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mopbt.errors import TaskError
from mopbt.estimate import Estimate, as_estimate, student_quantile
from mopbt.messages import with_error


def test_a_mean_with_its_error_has_the_interval_of_the_normal_distribution():
    estimate = Estimate(0.91, stderr=0.004)
    assert (estimate.mean, estimate.stderr) == (0.91, 0.004)
    assert estimate.interval(0.9) == pytest.approx(stats.norm(0.91, 0.004).interval(0.9))
    assert estimate.error_bar(0.9) == (0.004, *estimate.interval(0.9))


def test_the_default_interval_is_one_standard_error_to_each_side():
    assert Estimate(0.923, stderr=0.006).interval() == pytest.approx((0.917, 0.929), abs=1e-4)


def test_it_is_a_float():
    estimate = Estimate(0.91, stderr=0.004)
    assert isinstance(estimate, float)
    assert float(estimate) == estimate == 0.91
    assert type(estimate.mean) is float
    assert math.sqrt(estimate) == math.sqrt(0.91)
    assert f"{estimate:.3f}" == "0.910"
    assert json.loads(json.dumps({"accuracy": estimate})) == {"accuracy": 0.91}
    assert np.array([estimate]).dtype == float


@pytest.mark.parametrize(
    ("change", "mean", "stderr"),
    [
        (lambda e: 1 - e, 0.75, 0.05),
        (lambda e: e - 1, -0.75, 0.05),
        (lambda e: -e, -0.25, 0.05),
        (lambda e: 100 * e, 25.0, 5.0),
        (lambda e: e * np.float64(-2), -0.5, 0.1),
        (lambda e: e / 10 + 1, 1.025, 0.005),
        (lambda e: sum([e]), 0.25, 0.05),
    ],
)
def test_shifting_and_scaling_keep_the_error(change, mean, stderr):
    changed = change(Estimate(0.25, stderr=0.05))
    assert isinstance(changed, Estimate)
    assert changed.mean == pytest.approx(mean)
    assert changed.stderr == pytest.approx(stderr)
    assert changed.interval(0.9) == pytest.approx(stats.norm(mean, stderr).interval(0.9))


def test_one_minus_a_ratio_is_the_ratio_of_the_others():
    mirrored = 1 - Estimate.ratio(7, 8)
    assert mirrored.interval(0.9) == pytest.approx(Estimate.ratio(1, 8).interval(0.9))


def test_combining_two_estimates_gives_a_plain_number():
    one, other = Estimate(0.5, stderr=0.1), Estimate(0.25, stderr=0.1)
    for combined in (one + other, one - other, one * other, one / other):
        assert type(combined) is float
    assert one - other == 0.25


def test_the_text_shows_the_digits_that_are_certain():
    assert str(Estimate(0.92314, stderr=0.0058)) == "0.923 ± 0.006"
    assert repr(Estimate(0.5, stderr=0.1)) == "Estimate(0.5, stderr=0.1)"


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (0.92314, 0.0058, "0.923 ± 0.006"),
        (0.92314, 0.0013, "0.9231 ± 0.0013"),
        (0.92314, 0.0199, "0.923 ± 0.020"),
        (1234.56, 43.2, "1235 ± 43"),
        (12.3456, 1.5, "12.3 ± 1.5"),
        (0.5, 0.0, "0.5"),
        (math.nan, math.nan, "nan"),
    ],
)
def test_numbers_with_errors_in_text(value, stderr, text):
    assert with_error(value, stderr) == text


def test_it_survives_pickling():
    estimate = pickle.loads(pickle.dumps(1 - Estimate.ratio(3, 4)))
    assert repr(estimate) == repr(1 - Estimate.ratio(3, 4))
    assert estimate.interval(0.9) == (1 - Estimate.ratio(3, 4)).interval(0.9)


@pytest.mark.parametrize("stderr", [-0.1, math.inf, math.nan])
def test_a_bad_standard_error_is_an_error(stderr):
    with pytest.raises(ValueError, match=r"`stderr` must be a finite number of at least 0, got"):
        Estimate(0.5, stderr=stderr)


def test_a_diverged_model_has_no_error():
    estimate = Estimate(math.nan, stderr=math.nan)
    assert math.isnan(estimate)
    assert math.isnan(estimate.stderr)


@pytest.mark.parametrize("confidence", [0, 1, 90, True, "high"])
def test_a_bad_confidence_is_an_error(confidence):
    with pytest.raises(ValueError, match=r"`confidence` must be between 0 and 1, such as 0.9, got"):
        Estimate(0.5, stderr=0.1).interval(confidence)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 19, 28, 29, 30, 31, 100, 10_000])
@pytest.mark.parametrize("confidence", [0.1, 0.5, 0.68, 0.9, 0.99])
def test_quantiles_are_those_of_student(degrees, confidence):
    expected = stats.t.ppf((1 + confidence) / 2, degrees)
    assert student_quantile(confidence, degrees) == pytest.approx(expected, rel=1e-5)


def test_samples_have_the_interval_of_student():
    values = [210.0, 195.0, 188.0, 240.0, 201.0]
    estimate = Estimate.from_samples(values)
    assert estimate.mean == np.mean(values)
    assert estimate.stderr == pytest.approx(stats.sem(values))
    expected = stats.t(4, np.mean(values), stats.sem(values)).interval(0.9)
    assert estimate.interval(0.9) == pytest.approx(expected)


def test_one_sample_says_nothing_about_its_error():
    with pytest.raises(
        ValueError, match=r"at least 2 measurements to estimate their spread, got 1"
    ):
        Estimate.from_samples([0.5])


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (3, 3), (0, 5), (1, 7), (50, 60), (2500, 2500)])
@pytest.mark.parametrize("confidence", [0.68, 0.9, 0.99])
def test_ratios_have_the_interval_of_wilson(hits, n, confidence):
    expected = stats.binomtest(hits, n).proportion_ci(confidence, method="wilson")
    assert Estimate.ratio(hits, n).interval(confidence) == pytest.approx(tuple(expected))


def test_three_of_three_is_not_certain():
    estimate = Estimate.ratio(3, 3)
    assert estimate == 1.0
    assert estimate.stderr == pytest.approx(1 / 8)
    assert estimate.interval(0.9)[0] < 0.53


def test_a_ratio_of_many_rows_has_the_usual_standard_error():
    assert Estimate.ratio(800, 1000).stderr == pytest.approx(math.sqrt(0.8 * 0.2 / 1000), rel=0.002)


def test_a_ratio_without_rows_may_be_anything():
    estimate = Estimate.ratio(0, 0)
    assert (estimate.mean, estimate.stderr) == (0.0, 0.5)
    assert estimate.interval(0.9) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "n"), [(4, 3), (-1, 3), (0, -1)])
def test_impossible_ratios_are_errors(hits, n):
    with pytest.raises(ValueError, match=r"`hits` must be between 0 and `n`, got"):
        Estimate.ratio(hits, n)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.3, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("n", [20, 60])
def test_ratios_cover_the_truth_as_often_as_they_say(p, n):
    """Sum the probabilities of all outcomes whose interval contains the truth."""
    chances = stats.binom(n, p).pmf(np.arange(n + 1))
    covers = [
        low <= p <= high for low, high in (Estimate.ratio(h, n).interval(0.9) for h in range(n + 1))
    ]
    assert 0.83 < chances[covers].sum() < 0.995


@given(st.integers(2, 29), st.floats(-1e6, 1e6))
def test_few_equal_values_never_have_an_error_of_zero(n, value):
    estimate = Estimate.from_samples([value] * n)
    assert estimate.stderr >= (abs(value) or 1.0) / (2 * (n + 1)) * (1 - 1e-9)
    assert estimate.interval(0.9)[0] < value < estimate.interval(0.9)[1]


@given(st.integers(0, 29), st.floats(-1e6, 1e6))
def test_a_stated_number_of_few_rows_excludes_an_error_of_zero(rows, value):
    assert Estimate(value, stderr=0, rows=rows).stderr > 0


def test_many_equal_values_and_exact_values_have_an_error_of_zero():
    assert Estimate.from_samples([0.3] * 30).stderr == pytest.approx(0, abs=1e-15)
    assert Estimate(12.0, stderr=0).stderr == 0
    assert Estimate(12.0, stderr=0, rows=30).stderr == 0


def test_small_errors_of_few_values_are_believed():
    values = [1000.0, 1000.5, 999.5]
    assert Estimate.from_samples(values).stderr == pytest.approx(stats.sem(values))


def test_the_bootstrap_of_a_mean_has_its_standard_error():
    values = np.random.default_rng(0).normal(size=400)
    estimate = Estimate.bootstrap(np.mean, values, repeats=2000)
    assert estimate.mean == values.mean()
    assert estimate.stderr == pytest.approx(stats.sem(values), rel=0.05)


def test_the_bootstrap_agrees_with_that_of_scipy():
    rng = np.random.default_rng(1)
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)

    def correlation(x, y):
        return np.corrcoef(x, y)[0, 1]

    ours = Estimate.bootstrap(correlation, x, y, repeats=1000)
    theirs = stats.bootstrap((x, y), correlation, paired=True, n_resamples=1000, rng=rng)
    assert ours.stderr == pytest.approx(theirs.standard_error, rel=0.1)


def test_a_metric_with_an_axis_is_called_for_many_draws_at_once():
    calls = []

    def median(values, axis=0):
        calls.append(values.shape)
        return np.median(values, axis=axis)

    values = np.random.default_rng(0).normal(size=50)
    vectorized = Estimate.bootstrap(median, values, repeats=30, seed=4)
    one_by_one = Estimate.bootstrap(lambda v: np.median(v), values, repeats=30, seed=4)
    assert calls == [(30, 50), (50,)]
    assert vectorized.stderr == pytest.approx(one_by_one.stderr)


def test_large_arrays_are_redrawn_in_parts(monkeypatch):
    values = np.random.default_rng(0).normal(size=(40, 3))

    def spread(values, axis=0):
        return values.std(axis=axis).sum(axis=-1)

    at_once = Estimate.bootstrap(spread, values, repeats=25)
    monkeypatch.setattr("mopbt.estimate.CELLS", 4 * values.size)
    assert Estimate.bootstrap(spread, values, repeats=25).stderr == at_once.stderr


def test_the_seed_decides_the_draws():
    values = np.random.default_rng(0).normal(size=50)
    one, same, other = (Estimate.bootstrap(np.mean, values, seed=seed).stderr for seed in (1, 1, 2))
    assert one == same != other


def test_a_metric_that_is_undefined_for_most_draws_is_an_error():
    def undefined(values):
        return math.nan if len(np.unique(values)) < len(values) else 1.0

    with pytest.raises(ValueError, match=r"`metric` must be finite for most draws of rows, got 0"):
        Estimate.bootstrap(undefined, np.arange(20))


@pytest.mark.parametrize("arrays", [(), ([1],), ([1, 2], [1, 2, 3]), (3,)])
def test_arrays_of_different_lengths_are_an_error(arrays):
    with pytest.raises(ValueError, match=r"the same number of rows, at least 2, got"):
        Estimate.bootstrap(np.mean, *arrays)


def test_the_jackknife_of_a_mean_with_one_row_per_group_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=20)
    assert Estimate.jackknife(np.mean, values).stderr == pytest.approx(stats.sem(values))


def test_the_jackknife_of_a_smooth_metric_agrees_with_the_bootstrap():
    rng = np.random.default_rng(3)
    x = rng.normal(size=2000)
    y = x + rng.normal(size=2000)

    def slope(x, y):
        return np.polyfit(x, y, 1)[0]

    jackknife = [Estimate.jackknife(slope, x[i::4], y[i::4]).stderr for i in range(4)]
    bootstrap = Estimate.bootstrap(slope, x, y).stderr
    assert np.mean(jackknife) / 2 == pytest.approx(bootstrap, rel=0.25)


def test_the_jackknife_covers_the_truth_as_often_as_it_says():
    covered = 0
    for seed in range(300):
        values = np.random.default_rng(seed).exponential(size=200)
        low, high = Estimate.jackknife(lambda v: np.log(v.mean()), values).interval(0.9)
        covered += low <= 0 <= high
    assert 0.86 < covered / 300 < 0.94


def test_a_precision_of_three_rows_is_not_certain_in_a_large_data_set():
    """No group matters to it, so the spread is zero, but only three rows count."""
    said = np.zeros(2500, dtype=bool)
    said[:3] = True

    def precision(said, true):
        return (said & true).sum() / max(said.sum(), 1)

    estimate = Estimate.jackknife(precision, said, said)
    assert estimate == 1.0
    assert estimate.stderr == pytest.approx(1 / 8)
    assert Estimate.bootstrap(precision, said, said).stderr > 0.1


def test_a_perfect_score_on_all_rows_of_a_large_data_set_is_certain():
    right = np.ones(2500)
    assert Estimate.jackknife(np.mean, right).stderr == 0


def test_a_metric_that_fails_on_few_rows_has_few_effective_rows():
    def strict(values):
        if len(values) < 1000:
            raise RuntimeError("too few rows")
        return 1.0

    assert Estimate.jackknife(strict, np.ones(2500)).stderr == 0.5


def test_pairs_are_means_with_errors():
    assert as_estimate("accuracy", 0.5) == 0.5
    estimate = Estimate(0.5, stderr=0.1)
    assert as_estimate("accuracy", estimate) is estimate
    assert repr(as_estimate("accuracy", (0.5, 0.1))) == repr(estimate)


@pytest.mark.parametrize("pair", [(0.5,), (0.5, -0.1), (0.5, 0.1, 0.2), (0.5, "low"), (0.5, None)])
def test_other_tuples_are_errors(pair):
    message = "the metric 'accuracy' must be a number, an Estimate, or a pair of mean and standard"
    with pytest.raises(TaskError, match=message):
        as_estimate("accuracy", pair)
