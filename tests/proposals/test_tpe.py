import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pygmo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, truncnorm

from lanes import examples
from mopbt.metrics import hypervolume
from mopbt.proposals.base import Trials
from mopbt.proposals.tpe import Tpe, bandwidths, fit_parzen, good_rows
from mopbt.proposals.uniform import Uniform
from mopbt.ranking import dominates
from mopbt.rng import stream
from mopbt.space import Categorical, Float, Grid, Int, LogGrid, Ordinal, Space
from mopbt.state import Result

MODEL = Tpe(random=0)

listed = st.one_of(
    st.builds(lambda n: Grid(0, 1, n), st.integers(2, 12)),
    st.builds(lambda n, zero: LogGrid(1e-6, 0.1, n, zero=zero), st.integers(3, 12), st.booleans()),
    st.builds(lambda n: Ordinal(list(range(n))), st.integers(2, 6)),
    st.builds(lambda n: Categorical([str(i) for i in range(n)]), st.integers(2, 6)),
)
integers = st.builds(
    lambda lo, width, log: Int(lo, lo + width, log=log),
    st.integers(1, 50),
    st.integers(1, 200),
    st.booleans(),
)
real = st.one_of(
    st.builds(lambda lo, width: Float(lo, lo + width), st.floats(-100, 100), st.floats(1e-3, 1e3)),
    st.builds(
        lambda lo, ratio: Float(lo, lo * (1 + ratio), log=True),
        st.floats(1e-9, 1e3),
        st.floats(0.1, 1e6),
    ),
)


@st.composite
def seen(draw, domains):
    """Draw a domain and positions in it, some of them equal."""
    domain = draw(domains)
    shares = draw(
        st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.3, 1.0])), max_size=12)
    )
    return domain, [domain.from_unit(share) for share in shares]


results = st.one_of(
    st.builds(
        Result,
        st.tuples(st.integers(-3, 3).map(float), st.integers(-3, 3).map(float)),
        st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0]),
    ),
    st.sampled_from(
        [
            Result(None),
            Result((math.nan, 1.0)),
            Result((1.0, math.inf)),
            Result((0.0, 0.0), math.nan),
        ]
    ),
)


@st.composite
def histories(draw):
    """Draw a space and trials of it, some of which failed."""
    space = Space(
        {
            f"x{i}": domain
            for i, domain in enumerate(
                draw(st.lists(st.one_of(listed, integers, real), min_size=1, max_size=4))
            )
        }
    )
    outcomes = draw(st.lists(results, max_size=30))
    rng = stream(draw(st.integers(0, 2**32)), "history")
    return space, Trials(tuple(space.sample(rng) for _ in outcomes), tuple(outcomes))


def trials_of(configs, objectives):
    return Trials(tuple(configs), tuple(Result(tuple(map(float, row))) for row in objectives))


# --- The order of lists -------------------------------------------------------------------------


ORDERED = (Grid(0, 1, 5), LogGrid(0.01, 1, 5, zero=True), Ordinal(["s", "m", "l", "xl", "xxl"]))


@pytest.mark.parametrize("domain", ORDERED, ids=lambda domain: type(domain).__name__)
def test_with_order_a_good_value_makes_its_neighbors_likely(domain):
    """Without order, the four other values are equally likely."""
    density = fit_parzen(domain, [3, 3, 3], ordered=True).density(range(5))
    assert density[3] == density.max()
    assert (np.diff(density[:4]) > 0).all()
    assert density[4] < density[3]
    assert density.sum() == pytest.approx(5)  # the mean over cells that are a fifth of the range
    unordered = fit_parzen(domain, [3, 3, 3]).density(range(5))
    assert len(set(unordered.round(12))) == 2


def test_categories_have_no_order():
    domain = Categorical(["a", "b", "c"])
    by_order = [fit_parzen(domain, [0, 0], ordered=o).density(range(3)) for o in (True, False)]
    np.testing.assert_array_equal(*by_order)


def test_with_order_values_next_to_a_good_one_are_proposed_before_any_of_them_was_tried():
    """Of ten values only 5 is good, and 4 and 6 were not tried."""
    space = Space({"x": Grid(0, 1, 10)})
    positions = [5, 0, 1, 2, 8, 9, 0, 1, 2, 8, 9]
    trials = trials_of([(p,) for p in positions], [[-abs(p - 5), 0] for p in positions])

    def share_near(model):
        proposed = np.array(model(space, trials, 200, stream(0, "propose")))
        return np.mean(np.abs(proposed - 5) == 1)

    near = [share_near(Tpe(random=0, candidates=2, ordered=ordered)) for ordered in (True, False)]
    assert near[0] > 0.25
    assert near[1] < 0.15


# --- The densities ----------------------------------------------------------------------------


@given(seen(listed))
def test_the_density_of_a_list_sums_to_1(case):
    domain, positions = case
    density = fit_parzen(domain, positions).density(range(len(domain.values)))
    assert density.sum() == pytest.approx(1, abs=1e-12)
    assert density.min() > 0


def cell(domain, value):
    """Return the ends of the cell of an integer on its scale."""
    ends = [domain.lo - 0.5, value - 0.5, value + 0.5, domain.hi + 0.5]
    lo, left, right, hi = (math.log(e) if domain.log else e for e in ends)
    return (left - lo) / (hi - lo), (right - lo) / (hi - lo)


@given(seen(integers))
def test_the_density_of_whole_numbers_times_their_cells_sums_to_1(case):
    domain, positions = case
    values = range(domain.lo, domain.hi + 1)
    density = fit_parzen(domain, positions).density(values)
    spans = [right - left for left, right in (cell(domain, value) for value in values)]
    assert sum(spans) == pytest.approx(1)
    assert density @ spans == pytest.approx(1, abs=1e-9)
    assert density.min() > 0


@examples(40)
@given(seen(real))
def test_the_density_of_real_numbers_integrates_to_1_over_their_scale(case):
    domain, positions = case
    middles = (np.arange(4000) + 0.5) / 4000
    density = fit_parzen(domain, positions).density(
        [domain.from_unit(float(share)) for share in middles]
    )
    assert density.mean() == pytest.approx(1, abs=1e-4)
    assert density.min() > 0


@given(seen(listed))
def test_a_list_has_kernels_of_aitchison_and_aitken_and_a_uniform_one(case):
    domain, positions = case
    size = len(domain.values)
    density = fit_parzen(domain, positions).density(range(size))
    for value in range(size):
        kernels = [0.9 if value == p else 0.1 / (size - 1) for p in positions]
        assert density[value] == pytest.approx(
            math.fsum([1 / size, *kernels]) / (len(positions) + 1)
        )


def test_the_density_of_a_list_is_that_worked_out_by_hand():
    # Of three values, 0 was seen twice and 2 once. The density is the mean of (1/3, 1/3, 1/3), of
    # (.9, .05, .05) twice, and of (.05, .05, .9).
    density = fit_parzen(Categorical(["a", "b", "c"]), [0, 2, 0]).density([0, 1, 2])
    assert density == pytest.approx([(1 / 3 + 1.85) / 4, (1 / 3 + 0.15) / 4, (1 / 3 + 1.0) / 4])


def slow_kernels(domain, positions):
    """Build the kernels around positions with SciPy.

    The width of a kernel is the distance to its farther neighbor.
    """
    shares = sorted(domain.to_unit(p) for p in positions)
    for i, center in enumerate(shares):
        left = center - (shares[i - 1] if i else 0.0)
        right = (shares[i + 1] if i + 1 < len(shares) else 1.0) - center
        width = max(left, right, 1 / (len(shares) + 1), 0.01)
        yield truncnorm((0 - center) / width, (1 - center) / width, loc=center, scale=width)


@examples(25)
@given(seen(real), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_real_numbers_have_truncated_gaussians_and_a_uniform_kernel(case, shares):
    domain, positions = case
    points = [domain.from_unit(share) for share in shares]
    kernels = list(slow_kernels(domain, positions))
    for point, density in zip(points, fit_parzen(domain, positions).density(points), strict=True):
        expected = (1 + sum(k.pdf(domain.to_unit(point)) for k in kernels)) / (len(positions) + 1)
        assert density == pytest.approx(expected, rel=1e-6)


@examples(25)
@given(seen(integers), st.floats(0, 1))
def test_a_whole_number_has_the_mean_density_of_its_cell(case, share):
    domain, positions = case
    point = domain.from_unit(share)
    left, right = cell(domain, point)
    kernels = [k.cdf(right) - k.cdf(left) for k in slow_kernels(domain, positions)]
    expected = (right - left + sum(kernels)) / (right - left) / (len(positions) + 1)
    assert fit_parzen(domain, positions).density([point])[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "domain", [Int(-(2**53), 2**53), Int(1, 2**53, log=True), Int(0, 10**6), Int(0, 10**5)]
)
def test_whole_numbers_of_a_huge_range_are_as_good_as_real_ones(domain):
    shares = [0.1, 0.5, 0.50001, 0.9]
    points = [domain.from_unit(share) for share in (0.3, 0.4999, 0.5, 0.999)]
    density = fit_parzen(domain, [domain.from_unit(share) for share in shares]).density(points)
    assert density == pytest.approx(
        fit_parzen(Float(0, 1), shares).density([domain.to_unit(p) for p in points]), rel=1e-4
    )


@pytest.mark.parametrize(
    ("centers", "widths"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.0], [1.0]),
        # The farther neighbor of the first center is 0.2 away, but the minimum is 1 / 4.
        ([0.2, 0.3, 0.9], [0.25, 0.6, 0.6]),
        ([0.5, 0.5, 0.5], [0.5, 0.25, 0.5]),
        (np.linspace(0, 1, 501).tolist(), [0.01] * 501),
    ],
)
def test_the_width_of_a_kernel_is_the_distance_to_its_farther_neighbor_within_limits(
    centers, widths
):
    assert bandwidths(np.array(centers)) == pytest.approx(widths)


@pytest.mark.parametrize("domain", [Categorical(["a", "b", "c"]), Int(1, 6), Int(1, 30, log=True)])
def test_draws_from_the_density_of_a_list_or_of_whole_numbers_follow_it(domain):
    values = range(3) if isinstance(domain, Categorical) else range(domain.lo, domain.hi + 1)
    density = fit_parzen(domain, [values[0], values[2], values[2]])
    n = 6000
    counts = Counter(density.draw(n, stream(0, "draws")))
    spans = (
        [1.0] * 3
        if isinstance(domain, Categorical)
        else [right - left for left, right in (cell(domain, v) for v in values)]
    )
    for value, share in zip(values, density.density(values) * spans, strict=True):
        assert counts[value] / n == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


@pytest.mark.parametrize("domain", [Float(-3, 5), Float(1e-5, 0.1, log=True)])
def test_draws_from_the_density_of_real_numbers_follow_it(domain):
    positions = [domain.from_unit(share) for share in (0.0, 0.05, 0.7)]
    kernels = list(slow_kernels(domain, positions))
    drawn = [
        domain.to_unit(p) for p in fit_parzen(domain, positions).draw(4000, stream(0, "draws"))
    ]
    assert (
        kstest(drawn, lambda x: (np.asarray(x) + sum(k.cdf(x) for k in kernels)) / 4).pvalue > 1e-3
    )


# --- Good and bad trials ----------------------------------------------------------------------


def slow_good(trials, gamma):
    """Select good rows by brute force.

    Fronts are peeled one by one. The one that does not fit is cut by hypervolume.
    """
    rows = [
        i
        for i, r in enumerate(trials.results)
        if r.objectives is not None and np.isfinite((*r.objectives, r.violation)).all()
    ]
    size = max(int(gamma * len(rows) + 1e-9), 1)
    left, good = set(rows), []
    while left and len(good) < size:
        front = [
            i for i in left if not any(beats(trials.results[j], trials.results[i]) for j in left)
        ]
        good += front if len(front) <= size - len(good) else picked(trials, front, size - len(good))
        left -= set(front)
    return set(good)


def beats(a, b):
    if a.violation or b.violation:
        return a.violation < b.violation
    return dominates(a.objectives, b.objectives)


def picked(trials, front, size):
    """Pick rows of a front greedily by hypervolume.

    Of equal gains, the larger first objective wins, then the earlier row.
    """
    points = {i: np.array(trials.results[i].objectives) for i in front}
    low, high = np.min(list(points.values()), axis=0), np.max(list(points.values()), axis=0)
    losses = {
        i: np.where(high > low, (high - p) / np.where(high > low, high - low, 1), 1.0)
        for i, p in points.items()
    }
    chosen = []
    for _ in range(size):
        rest = sorted((i for i in front if i not in chosen), key=lambda i: (-points[i][0], i))
        volumes = [
            pygmo.hypervolume([losses[j] for j in [*chosen, i]]).compute([1.1] * len(low))
            for i in rest
        ]
        chosen.append(rest[int(np.argmax(np.round(volumes, 9)))])
    return chosen


@examples(60)
@given(
    st.integers(1, 30),
    st.integers(2, 3),
    st.floats(0.05, 0.6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_the_good_rows_are_those_found_by_brute_force(n, K, gamma, seed, constrained):
    rng = np.random.default_rng(seed)
    objectives = rng.normal(size=(n, K)).round(1)
    violations = rng.choice([0.0, 0.0, 0.3, 0.7], size=n) if constrained else np.zeros(n)
    outcomes = [
        Result(tuple(map(float, f)), float(v)) for f, v in zip(objectives, violations, strict=True)
    ]
    outcomes = [Result(None) if rng.random() < 0.1 else outcome for outcome in outcomes]
    trials = Trials(tuple((i,) for i in range(n)), tuple(outcomes))
    if trials.finite_rows:
        assert set(good_rows(trials, gamma)) == slow_good(trials, gamma)
    else:
        assert good_rows(trials, gamma) == []


@pytest.mark.parametrize(
    ("n", "gamma", "size"),
    [(12, 0.1, 1), (9, 0.1, 1), (19, 0.1, 1), (30, 0.1, 3), (100, 0.29, 29), (3, 0.5, 1)],
)
def test_the_good_are_the_share_gamma_rounded_down_but_at_least_one(n, gamma, size):
    trials = trials_of([(i,) for i in range(n)], [(i, -i) for i in range(n)])
    assert len(good_rows(trials, gamma)) == size


def test_feasible_rows_are_good_before_infeasible_ones():
    trials = Trials(
        tuple((i,) for i in range(20)),
        tuple(Result((float(i), float(i)), i * (i > 2)) for i in range(20)),
    )
    assert good_rows(trials, 0.25) == [2, 1, 0, 3, 4]


def test_rows_that_failed_are_bad():
    # "a" is better than "b" and "c". These two are equal, except that "c" failed.
    space = Space({"kind": Categorical(["a", "b", "c"])})
    trials = trials_of([(0,), (1,), (2,)] * 4, [(2, 2), (1, 1), (1, 1)] * 4)
    failed = Trials(
        trials.configs + ((2,),) * 20,
        trials.results + (Result(None),) * 10 + (Result((math.nan, 9.0)),) * 10,
    )
    # Of the 12 finite rows, 10 are good.
    wide = Tpe(gamma=0.9, candidates=2, random=0)
    before = Counter(wide(space, trials, 3000, stream(0, "before")))
    after = Counter(wide(space, failed, 3000, stream(0, "after")))
    assert after[(2,)] < 0.5 * before[(2,)]
    assert after[(1,)] > after[(2,)]


# --- The proposals ----------------------------------------------------------------------------


@given(
    histories(),
    st.integers(0, 4),
    st.integers(0, 2**32),
    st.sampled_from([Tpe(), MODEL, Tpe(gamma=0.5, candidates=1, random=0)]),
)
def test_proposals_are_always_inside_the_space(case, n, seed, model):
    space, trials = case
    configs = model(space, trials, n, stream(seed, "tpe"))
    assert len(configs) == n
    assert all(map(space.contains, configs))
    assert configs == model(space, trials, n, stream(seed, "tpe"))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_model_needs_more_than_2d_plus_1_finite_rows_and_draws_uniformly_until_then(d):
    space = Space({f"x{i}": Grid(0, 1, 10) for i in range(d)})
    configs = [space.sample(stream(i, "config")) for i in range(2 * d + 2)]
    trials = trials_of(configs, [(i, -i) for i in range(len(configs))])
    fewer = Trials(trials.configs[:-1], trials.results[:-1])
    failed = Trials(trials.configs, (*trials.results[:-1], Result(None)))
    for seed, short in itertools.product(range(5), (Trials(), fewer, failed)):
        assert not MODEL.can_fit(space, short)
        assert MODEL(space, short, 3, stream(seed, "tpe")) == Uniform()(
            space, short, 3, stream(seed, "tpe")
        )
    assert MODEL.can_fit(space, trials)
    assert any(
        MODEL(space, trials, 3, stream(s, "tpe")) != Uniform()(space, trials, 3, stream(s, "tpe"))
        for s in range(5)
    )


def test_with_many_candidates_the_largest_ratio_of_the_densities_is_proposed():
    space = Space({"n": Int(1, 9), "kind": Categorical(["a", "b", "c", "d"])})
    rng = np.random.default_rng(0)
    configs = [space.sample(rng) for _ in range(40)]
    trials = trials_of(configs, rng.normal(size=(40, 2)))
    good = good_rows(trials, 0.2)
    best = []
    for d, (domain, values) in enumerate([(space["n"], range(1, 10)), (space["kind"], range(4))]):
        of_good = fit_parzen(domain, [configs[i][d] for i in good]).density(values)
        of_bad = fit_parzen(domain, [configs[i][d] for i in range(40) if i not in good]).density(
            values
        )
        best.append(values[int(np.argmax(of_good / of_bad))])
    model = Tpe(gamma=0.2, candidates=300, random=0)
    assert {tuple(best)} == {model(space, trials, 1, stream(seed, "tpe"))[0] for seed in range(20)}


def test_the_bad_are_all_rows_but_the_good():
    # The maximum of l / g is often that of l / (g and l) as well. Some of the cases must differ.
    space, values = Space({"kind": Categorical([str(i) for i in range(6)])}), range(6)
    differ = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        positions = rng.choice(6, size=30, p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1]).tolist()
        trials = trials_of([(p,) for p in positions], rng.normal(size=(30, 2)))
        good = good_rows(trials, 0.3)
        of_good, of_bad, of_all = (
            fit_parzen(space["kind"], [positions[i] for i in rows]).density(values)
            for rows in (good, [i for i in range(30) if i not in good], range(30))
        )
        proposed = Tpe(gamma=0.3, candidates=300, random=0)(space, trials, 1, stream(seed, "tpe"))[
            0
        ][0]
        assert (of_good / of_bad)[proposed] == pytest.approx((of_good / of_bad).max())
        differ += (of_good / of_bad)[np.argmax(of_good / of_all)] < 0.99 * (of_good / of_bad).max()
    assert differ > 0


def test_a_single_candidate_is_a_draw_from_the_good():
    space = Space({"kind": Categorical(["a", "b", "c"])})
    trials = trials_of([(0,), (1,), (2,)] * 4, [(i, i) for i in range(12)])
    drawn = Counter(Tpe(gamma=0.25, candidates=1, random=0)(space, trials, 6000, stream(0, "tpe")))
    of_good = fit_parzen(space["kind"], [2, 1, 0]).density(range(3))  # the rows 11, 10 and 9
    # The tolerance is five standard deviations.
    assert [drawn[(i,)] / 6000 for i in range(3)] == pytest.approx(of_good, abs=0.031)


@pytest.mark.parametrize("share", [0.0, 1 / 6, 0.5, 1.0])
def test_a_share_of_the_proposals_is_random(share):
    # Only the first of 100 values is good. The model always proposes it, a uniform draw in 1 %.
    space = Space({"kind": Categorical([str(i) for i in range(100)])})
    trials = trials_of([(i,) for i in range(10)], [(-i, -i) for i in range(10)])
    n = 3000
    drawn = Counter(Tpe(random=share)(space, trials, n, stream(0, "random")))
    expected = 1 - share * 0.99
    assert drawn[(0,)] / n == pytest.approx(
        expected, abs=1e-12 + 5 * math.sqrt(expected * (1 - expected) / n)
    )


def test_hyperparameters_and_trials_do_not_share_a_random_stream():
    # Both hyperparameters have the same density, so only their random numbers differ.
    space = Space({"x": Float(0, 1), "y": Float(0, 1)})
    shares = np.random.default_rng(0).random(30)
    trials = trials_of([(float(s), float(s)) for s in shares], [(s, 1 - s) for s in shares])
    together = MODEL(space, trials, 50, stream(0, "population"))
    apart = [MODEL(space, trials, 1, stream(0, "population", trial))[0] for trial in range(50)]
    for configs in (together, apart):
        x, y = np.array(configs).T
        assert not (x == y).any()
        assert len(set(x)) == len(set(y)) == 50
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.5


def quadratics(values):
    """Return two objectives that agree on y = 0.7 and kind "b", and disagree on x."""
    x, miss = (
        values["x"],
        abs(values["y"] - 0.7) + 0.5 * (values["kind"] != "b") + abs(values["n"] - 12) / 20,
    )
    return -(x**2) - miss, -((1 - x) ** 2) - miss


QUADRATIC = Space(
    {"x": Grid(0, 1, 10), "y": Float(0, 1), "n": Int(1, 20), "kind": Categorical(["a", "b", "c"])}
)


def searched(model, seed, evaluations=60, batch=3):
    trials = Trials()
    for i in range(evaluations // batch):
        configs = model(QUADRATIC, trials, batch, stream(seed, "propose", i))
        outcomes = tuple(Result(quadratics(QUADRATIC.decode(config))) for config in configs)
        trials = Trials(trials.configs + tuple(configs), trials.results + outcomes)
    return trials


def test_proposals_concentrate_on_good_values():
    late = [QUADRATIC.decode(c) for seed in range(4) for c in searched(Tpe(), seed).configs[30:]]
    assert np.mean([values["kind"] == "b" for values in late]) > 0.6  # uniform: 0.33
    assert np.mean([abs(values["y"] - 0.7) < 0.15 for values in late]) > 0.45  # uniform: 0.30
    assert np.mean([abs(values["n"] - 12) <= 3 for values in late]) > 0.5  # uniform: 0.35
    assert len({values["x"] for values in late}) >= 8  # of 10: the trade-off is still explored


def test_the_search_finds_more_hypervolume_than_uniform_draws():
    def volumes(model):
        found = [searched(model, seed) for seed in range(10)]
        return np.array([hypervolume(h.objectives(h.finite_rows), (-2, -2)) for h in found])

    gains = volumes(Tpe()) - volumes(Uniform())
    assert gains.mean() > 2 * gains.std(ddof=1) / math.sqrt(len(gains))


def test_the_estimator_is_a_value():
    assert pickle.loads(pickle.dumps(Tpe(gamma=0.2))) == Tpe(gamma=0.2) != Tpe()
    assert hash(Tpe()) == hash(Tpe())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0}, r"`gamma` must be in \(0, 1\), got 0"),
        ({"gamma": 1}, r"`gamma` must be in \(0, 1\), got 1"),
        ({"gamma": math.nan}, r"`gamma` must be in \(0, 1\), got nan"),
        ({"gamma": "0.1"}, r"`gamma` must be in \(0, 1\), got '0.1'"),
        ({"candidates": 0}, "`candidates` must be a whole number of at least 1, got 0"),
        ({"candidates": 2.0}, "`candidates` must be a whole number of at least 1, got 2.0"),
        ({"candidates": True}, "`candidates` must be a whole number of at least 1, got True"),
        ({"random": -0.1}, r"`random` must be in \[0, 1\], got -0.1"),
        ({"random": 1.1}, r"`random` must be in \[0, 1\], got 1.1"),
        ({"random": True}, r"`random` must be in \[0, 1\], got True"),
        ({"ordered": 1}, "`ordered` must be True or False, got 1"),
    ],
)
def test_wrong_options_are_errors_that_say_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        Tpe(**options)
