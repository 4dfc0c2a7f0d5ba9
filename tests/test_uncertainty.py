"""Fronts and decisions under noise, against brute force and simulation."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from mopbt.archive import Archive, Entry
from mopbt.metrics import non_dominated
from mopbt.ranking import dominates
from mopbt.rng import stream
from mopbt.uncertainty import (
    Claims,
    clear_donors,
    corrected_claims,
    hypervolume_error,
    inheritance_test,
    lineage_mean,
    lower_bounds,
    paired_stderr,
    pessimistic_front,
    span_test,
)

grids = st.integers(-3, 3).map(float)
errors = st.integers(0, 3).map(float)


def test_lower_bounds_are_quantiles():
    bounds = lower_bounds([[0.5, 10.0]], [[0.1, 2.0]], confidence=0.9)
    assert bounds == pytest.approx(np.array([stats.norm([0.5, 10.0], [0.1, 2.0]).ppf(0.05)]))


@given(arrays(float, (9, 2), elements=grids), arrays(float, (9, 2), elements=errors))
def test_the_pessimistic_front_is_that_of_brute_force(values, stderr):
    bounds = values - stats.norm.ppf(0.84) * stderr
    expected = [i for i, own in enumerate(bounds) if not any(dominates(o, own) for o in bounds)]
    assert pessimistic_front(values, stderr, confidence=0.68).tolist() == expected


@given(
    arrays(float, (9, 2), elements=grids),
    arrays(float, (9, 2), elements=errors),
    st.permutations(range(9)),
)
def test_the_pessimistic_front_grows_in_any_order(values, stderr, order):
    bounds = lower_bounds(values, stderr)
    archive = Archive()
    for row in order:
        archive.enter(Entry(row, tuple(bounds[row].tolist())))
    front = bounds[pessimistic_front(values, stderr)]
    assert {entry.objectives for entry in archive.front} == set(map(tuple, front.tolist()))


def test_a_lucky_model_with_a_large_error_is_not_on_the_pessimistic_front():
    values = [[0.99, 0.10], [0.95, 0.10], [0.60, 0.60]]
    stderr = [[0.20, 0.01], [0.01, 0.01], [0.01, 0.01]]
    assert non_dominated(values).tolist() == [0, 2]
    assert pessimistic_front(values, stderr).tolist() == [1, 2]


def population(kind, rng, n):
    """Return true values in units of the standard error."""
    if kind == "equal":
        return np.zeros((n, 2))
    if kind == "normal":
        return rng.normal(size=(n, 2))
    quality = 1 - np.exp(-5 * rng.random(n))
    angle = rng.random(n) * math.pi / 2
    if kind == "saturated":
        return 20 * np.column_stack([quality, quality])
    return 20 * np.column_stack([quality * np.cos(angle), quality * np.sin(angle)])


def simulate(kind, seed, n=500, draws=0):
    """Return truth, measurements and claims of the models on an observed front."""
    rng = np.random.default_rng(seed)
    true = population(kind, rng, n)
    stderr = np.exp(rng.normal(0, 0.2, size=(n, 2)))
    values = true + stderr * rng.normal(size=(n, 2))
    front = non_dominated(values)
    claims = corrected_claims(values, stderr, front, stream(seed, "claims"), draws=draws)
    return true[front], values[front], stderr[front], claims


@pytest.mark.parametrize("kind", ["equal", "normal", "saturated", "trade-off"])
def test_claims_are_corrected_for_selection(kind):
    plain, corrected, covered, naive = [], [], [], []
    for seed in range(6):
        true, values, stderr, claims = simulate(kind, seed)
        plain.append(values - true)
        corrected.append(claims.mean - true)
        covered.append(np.abs(claims.mean - true) < 1.645 * claims.stderr)
        naive.append(np.abs(values - true) < 1.645 * stderr)
    # The models on the front are lucky by more than a standard error.
    assert np.concatenate(plain).mean() > 1.0
    assert abs(np.concatenate(corrected).mean()) < 0.35
    assert np.concatenate(naive).mean() < 0.75
    assert np.concatenate(covered).mean() > 0.85


def test_exact_measurements_need_no_correction():
    values = np.random.default_rng(0).normal(size=(50, 2))
    front = non_dominated(values)
    claims = corrected_claims(values, np.zeros((50, 2)), front, stream(0), draws=5)
    assert (claims.mean == values[front]).all()
    assert (claims.stderr == 0).all()
    assert (claims.probability == 1).all()


def test_an_exact_objective_keeps_its_values():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 2))
    stderr = np.column_stack([np.ones(200), np.zeros(200)])
    claims = corrected_claims(values, stderr, [3, 7], stream(0))
    assert (claims.mean[:, 1] == values[[3, 7], 1]).all()
    assert (np.abs(claims.mean[:, 0]) < np.abs(values[[3, 7], 0])).all()
    assert np.isnan(claims.probability).all()


def test_claims_of_a_normal_population_are_close_to_those_of_the_known_distribution():
    """With true values from N(0, 1) and errors of 1, the best estimate is half of a value."""
    rng = np.random.default_rng(5)
    values = rng.normal(scale=math.sqrt(2), size=(1500, 1))
    claims = corrected_claims(values, np.ones((1500, 1)), range(1500), stream(0))
    inner = np.abs(values) < 2
    assert np.abs(claims.mean - values / 2)[inner].mean() < 0.2
    assert np.sqrt((claims.stderr**2).mean()) == pytest.approx(math.sqrt(0.5 + 0.2), rel=0.1)


def test_large_runs_are_corrected_from_a_part_of_their_evaluations(monkeypatch):
    monkeypatch.setattr("mopbt.uncertainty.MOST_ROWS", 300)
    values = np.random.default_rng(2).normal(size=(5000, 2))
    front = non_dominated(values)
    claims = corrected_claims(values, np.ones((5000, 2)), front, stream(0), draws=20)
    assert isinstance(claims, Claims)
    assert claims.mean.shape == (len(front), 2)
    assert claims.probability.shape == (len(front),)
    assert (claims.mean - values[front]).mean() < -0.8


def test_the_probability_of_being_on_the_front_is_calibrated():
    probabilities, is_on_front = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        true = rng.normal(size=(60, 2))
        values = true + 0.5 * rng.normal(size=(60, 2))
        claims = corrected_claims(values, np.full((60, 2), 0.5), range(60), stream(seed), draws=50)
        probabilities.append(claims.probability)
        is_on_front.append(np.isin(np.arange(60), non_dominated(true)))
    p, truth = np.concatenate(probabilities), np.concatenate(is_on_front)
    assert p.mean() == pytest.approx(truth.mean(), abs=0.03)
    assert truth[p > 0.5].mean() > 0.45
    assert truth[p < 0.05].mean() < 0.05


def test_a_clear_winner_is_on_the_front_for_certain():
    values = np.vstack([np.zeros((30, 2)), [[50.0, 50.0]]])
    claims = corrected_claims(values, np.ones((31, 2)), [0, 30], stream(0), draws=20)
    assert claims.probability.tolist() == [0.0, 1.0]


def test_a_front_of_pure_noise_is_recognized_by_its_span():
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(size=(1600, 2))
        assert span_test(noise, np.ones((1600, 2)), stream(seed)).is_noise, seed


@pytest.mark.slow
def test_a_front_of_pure_noise_is_recognized_in_95_of_100_runs():
    found = 0
    for seed in range(100):
        noise = np.random.default_rng(seed + 100).normal(size=(1600, 2)) * [1, 0.01]
        found += span_test(noise, np.full((1600, 2), [1, 0.01]), stream(seed)).is_noise
    assert found >= 95


def test_equally_good_models_after_training_are_recognized_by_their_span():
    """Early models are much worse, but no model on the front is better than another."""
    rng = np.random.default_rng(0)
    true = population("saturated", rng, 1600)
    found = span_test(true + rng.normal(size=(1600, 2)), np.ones((1600, 2)), stream(0))
    assert found.is_noise
    assert found.evaluations == 1600
    assert (found.spans < found.by_luck).all()


def test_a_trade_off_is_not_taken_for_noise():
    rng = np.random.default_rng(0)
    true = population("trade-off", rng, 1600)
    values = true + rng.normal(size=(1600, 2))
    found = span_test(values, np.ones((1600, 2)), stream(0))
    assert not found.is_noise
    assert found.spans == pytest.approx(np.ptp(values[non_dominated(values)], axis=0))


def test_a_trade_off_of_precise_models_is_not_noise_though_early_models_are_measured_badly():
    """Episodes of a policy vary less as it learns, so early errors exceed late ones."""
    rng = np.random.default_rng(0)
    place = rng.random(200)
    true = np.column_stack([place, 1 - place])
    stderr = np.full((400, 2), 0.02)
    stderr[:200] = 1.0  # early models, each clearly worse
    values = np.vstack([true - 8, true]) + stderr * rng.normal(size=(400, 2))
    found = span_test(values, stderr, stream(0))
    assert (found.spans <= found.by_luck).all()
    assert (found.ratios > found.ratios_by_luck).all()
    assert not found.is_noise


def test_equal_models_with_unequal_errors_are_noise():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        stderr = 10 ** rng.uniform(-2, 0, size=(400, 2))
        assert span_test(stderr * rng.normal(size=(400, 2)), stderr, stream(seed)).is_noise, seed


def test_luck_spans_are_those_of_a_direct_simulation():
    stderr = np.column_stack([np.full(50, 2.0), np.full(50, 0.1)])
    rng = np.random.default_rng(7)
    spans = []
    for _ in range(1000):
        values = rng.normal(size=(50, 2)) * stderr
        front = [r for i, r in enumerate(values) if not (values > r).all(axis=1).any()]
        spans.append(np.ptp(front, axis=0))
    found = span_test(rng.normal(size=(50, 2)), stderr, stream(0))
    assert found.by_luck == pytest.approx(np.quantile(spans, 0.995, axis=0), rel=0.15)


def test_a_single_model_claims_no_trade_off():
    assert span_test([[1.0, 1.0], [0.0, 0.0]], np.ones((2, 2)), stream(0)) is None


def test_exact_objectives_are_not_noise():
    values = np.random.default_rng(0).normal(size=(100, 2))
    found = span_test(values, np.zeros((100, 2)), stream(0))
    assert np.isnan(found.by_luck).all()
    assert not found.is_noise


def test_noise_in_the_only_noisy_objective_is_enough():
    """The size of a model is exact, and all sizes are equally accurate."""
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.normal(size=500), rng.random(500)])
    found = span_test(values, np.column_stack([np.ones(500), np.zeros(500)]), stream(0))
    assert found.is_noise
    assert math.isnan(found.by_luck[1])


def family(values, population_size, rng):
    """Return random parents in the generation before, and the generation of each row."""
    steps = np.repeat(np.arange(len(values) // population_size), population_size)
    parents = (steps - 1) * population_size + rng.integers(population_size, size=len(values))
    return np.where(steps == 0, -1, parents), steps


def test_random_metrics_are_not_inherited():
    found = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(1600, 2))
        found += inheritance_test(values, *family(values, 32, rng)).is_noise
    assert found >= 95


def test_a_common_trend_is_not_inheritance():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1600, 2))
    parents, steps = family(values, 32, rng)
    assert inheritance_test(values + steps[:, None], parents, steps).is_noise


def test_inherited_metrics_are_recognized():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(160, 2))
    parents, steps = family(values, 8, rng)
    for row in np.flatnonzero(parents >= 0):
        values[row, 0] = 0.7 * values[parents[row], 0] + 0.7 * values[row, 0]
    found = inheritance_test(values, parents, steps)
    assert found.correlation[0] > found.by_luck[0]
    assert found.correlation[1] < found.by_luck[1]
    assert not found.is_noise
    assert found.pairs == 152


def test_the_correlation_is_that_of_ranks_within_a_step():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 12, size=(80, 1)).astype(float)
    parents = np.r_[np.full(40, -1), rng.permutation(40)]
    steps = np.repeat([0, 1], 40)
    found = inheritance_test(values, parents, steps)
    expected = stats.spearmanr(values[40:, 0], values[parents[40:], 0]).statistic
    assert found.correlation[0] == pytest.approx(expected)
    # One-sided 1 percent of the normal distribution, and a variance of 1 / (n - 1).
    assert found.by_luck[0] == pytest.approx(stats.norm.ppf(0.99) / math.sqrt(39))


def test_too_few_pairs_say_nothing():
    values = np.random.default_rng(0).normal(size=(30, 1))
    assert inheritance_test(values, np.r_[-1, np.arange(29)], np.arange(30)) is None


def test_a_constant_metric_says_nothing():
    parents, steps = family(np.zeros((100, 1)), 10, np.random.default_rng(0))
    assert not inheritance_test(np.zeros((100, 1)), parents, steps).is_noise


@given(
    arrays(float, (5, 2), elements=grids),
    arrays(float, (5, 2), elements=errors),
    st.integers(0, 2),
)
def test_clear_donors_are_those_of_brute_force(values, stderr, margin):
    expected = []
    for donor in (1, 2, 3, 4):
        leads = [values[donor, k] - values[0, k] for k in range(2)]
        noise = [math.sqrt(stderr[donor, k] ** 2 + stderr[0, k] ** 2) for k in range(2)]
        clear = any(leads[k] > 0 and leads[k] >= margin * noise[k] for k in range(2))
        if min(leads) >= 0 and clear:
            expected.append(donor)
    assert clear_donors(values, stderr, 0, [1, 2, 3, 4], margin=margin) == expected


@given(arrays(float, (5, 2), elements=grids))
def test_without_a_margin_clear_donors_are_those_that_dominate(values):
    expected = [donor for donor in range(1, 5) if dominates(values[donor], values[0])]
    assert clear_donors(values, np.ones((5, 2)), 0, [1, 2, 3, 4], margin=0) == expected


def test_the_error_of_a_hypervolume_is_that_of_its_only_model():
    """The hypervolume of one model is a product, whose standard error is known."""
    found = hypervolume_error([[2.0, 3.0]], [[0.1, 0.05]], [0.0, 0.0], stream(0), draws=4000)
    assert found == pytest.approx(math.hypot(3.0 * 0.1, 2.0 * 0.05), rel=0.05)
    assert hypervolume_error([[2.0, 3.0]], [[0.0, 0.0]], [0.0, 0.0], stream(0)) == 0


def test_averaging_along_a_lineage():
    values = [[0.0, 10.0], [1.0, 4.0], [3.0, 2.0]]
    stderr = [[9.0, 9.0], [0.3, 0.6], [0.4, 0.8]]
    mean, error = lineage_mean(values, stderr, last=2)
    assert mean == pytest.approx([2.0, 3.0])
    assert error == pytest.approx([0.25, 0.5])
    assert lineage_mean(values, stderr, last=9)[0] == pytest.approx(np.mean(values, axis=0))


def test_the_error_of_a_lineage_is_the_spread_of_its_mean():
    rng = np.random.default_rng(0)
    means = [lineage_mean(rng.normal(size=(6, 1)), np.ones((6, 1)), last=4)[0] for _ in range(2000)]
    assert np.std(means) == pytest.approx(
        lineage_mean(np.zeros((6, 1)), np.ones((6, 1)), last=4)[1], rel=0.05
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lower_bounds([[1.0]], [1.0]), r"the same shape \(n, K\), got \(1, 1\) and \(1,\)"),
        (lambda: lower_bounds([[1.0]], [[-1.0]]), "`stderr` must not be negative or NaN"),
        (lambda: lower_bounds([[1.0]], [[1.0]], confidence=2), "`confidence` must be between"),
        (lambda: clear_donors([[1.0]], [[1.0]], 0, [], margin=-1), "`margin` must be a number of"),
        (lambda: lineage_mean([[1.0]], [[1.0]], last=0), "`last` must be at least 1, got 0"),
        (lambda: lineage_mean(np.empty((0, 1)), np.empty((0, 1)), last=1), "at least one eval"),
    ],
)
def test_bad_arguments_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(
    st.integers(2, 9).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(-9, 9), min_size=n, max_size=n)] * 2)
    )
)
def test_the_error_of_a_difference_is_that_of_differences_on_the_same_rows(pair):
    one, other = (np.array(values, dtype=float)[:, None] for values in pair)
    differences = [a - b for a, b in zip(*pair, strict=True)]
    expected = statistics.stdev(differences) / math.sqrt(len(differences))
    assert paired_stderr(one, other) == pytest.approx([expected])


def test_luck_that_two_models_share_does_not_hide_that_one_is_better():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(8, 2))
    folds = np.array([shared, shared + 0.1])
    values = folds.mean(axis=1)
    errors = np.full((2, 2), shared.std() / math.sqrt(8))
    assert clear_donors(values, errors, 0, [1], margin=1) == []
    assert clear_donors(values, errors, 0, [1], margin=1, folds=folds) == [1]
    with pytest.raises(ValueError, match="at least 2 folds"):
        paired_stderr(shared[:1], shared[:1])
