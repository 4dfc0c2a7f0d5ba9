import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pygmo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import mopbt.metrics as metrics
from lanes import examples
from mopbt.metrics import (
    best_hypervolume,
    coverage,
    coverage_units,
    hypervolume,
    hypervolume_curve,
    log_hypervolume_difference,
    mean_and_deviation,
    non_dominated,
    reference_point,
)
from mopbt.ranking import dominates

COUNTS = st.sampled_from([1, 2, 3, 4, 5])
EIGHTHS = st.integers(-4, 8).map(lambda i: i / 8)
BROKEN = st.sampled_from([np.nan, np.inf, -np.inf])
SOME_BROKEN = st.one_of(EIGHTHS, EIGHTHS, EIGHTHS, BROKEN)


@st.composite
def tables(draw, elements=EIGHTHS, largest=12, counts=COUNTS):
    return draw(arrays(float, (draw(st.integers(0, largest)), draw(counts)), elements=elements))


def finite(objectives):
    return objectives[np.isfinite(objectives).all(axis=1)]


def volume_by_cells(objectives, reference):
    """Compute the hypervolume exactly, as a sum over cells of a grid."""
    points = [[Fraction(v) for v in row] for row in finite(objectives).tolist()]
    sides = [
        sorted({Fraction(r), *(p[k] for p in points if p[k] > r)}) for k, r in enumerate(reference)
    ]
    cells = product(*(pairwise(side) for side in sides))
    held = (c for c in cells if any(all(p[k] >= hi for k, (_, hi) in enumerate(c)) for p in points))
    return float(sum(math.prod(hi - lo for lo, hi in cell) for cell in held))


def sphere(n, K, seed=0):
    """Draw points of which none dominates another."""
    points = np.abs(np.random.default_rng(seed).standard_normal((n, K)))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


# Fronts


@given(tables(SOME_BROKEN))
def test_the_front_is_what_no_finite_row_dominates(objectives):
    rows = [i for i, row in enumerate(objectives) if np.isfinite(row).all()]
    expected = [i for i in rows if not any(dominates(objectives[j], objectives[i]) for j in rows)]
    assert non_dominated(objectives).tolist() == expected


def test_equal_rows_are_all_on_the_front():
    assert non_dominated([[1, 0], [1, 0], [0, 0], [0, 1]]).tolist() == [0, 1, 3]
    assert non_dominated([[1, 0, 2, 3], [1, 0, 2, 3], [0, 0, 0, 0]]).tolist() == [0, 1]
    assert non_dominated([[np.nan, 1], [np.inf, 1]]).tolist() == []
    assert non_dominated([[1e300, 0.0], [0.0, 1e300]]).tolist() == [0, 1]


# Hypervolume


def test_hypervolume_by_hand():
    # A box of 2 x 1, and 1 x 2 above it.
    assert hypervolume([[2, 1], [1, 3], [1, 1]], [0, 0]) == 4
    # A point that equals the reference in one objective adds nothing.
    assert hypervolume([[2, 1], [1, 3]], [1, 0]) == 1
    assert hypervolume([[5]], [2]) == 3
    assert hypervolume(np.empty((0, 3)), [0, 0, 0]) == 0


@examples(60)
@given(tables(SOME_BROKEN, largest=5))
def test_hypervolume_is_that_of_the_definition(objectives):
    reference = [0.0] * objectives.shape[1]
    assert hypervolume(objectives, reference) == pytest.approx(
        volume_by_cells(objectives, reference), abs=1e-12
    )


@pytest.mark.parametrize("K", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(3))
def test_hypervolume_is_pygmos(K, seed):
    objectives = np.random.default_rng(seed).random((40, K))
    reference = np.full(K, 0.2)
    inside = objectives[(objectives > reference).all(axis=1)]
    expected = pygmo.hypervolume(-inside).compute(-reference) if len(inside) else 0
    assert hypervolume(objectives, reference) == pytest.approx(expected)


@pytest.mark.parametrize("K", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_hypervolume_ignores_rows_that_are_not_finite(K, bad):
    # moocore itself does not return if K >= 4.
    objectives = np.random.default_rng(0).random((30, K))
    expected = hypervolume(objectives, np.zeros(K))
    broken = np.concatenate([objectives, np.full((2, K), 0.9)])
    broken[-2:, 0] = bad
    assert hypervolume(broken, np.zeros(K)) == expected
    assert hypervolume_curve(broken, np.zeros(K))[-1] == pytest.approx(expected)


def test_the_reference_point_is_a_share_of_the_range_below_the_worst():
    fronts = [[[1, 10], [2, 8]], [[3, 4]], [[np.nan, -99], [np.inf, 0]]]
    assert reference_point(fronts).tolist() == pytest.approx([0.8, 3.4])
    assert reference_point(iter(fronts), rho=0).tolist() == [1, 4]
    assert reference_point([[[1, 2]]]).tolist() == [1, 2]


@given(st.lists(tables(counts=st.just(2)), min_size=1), st.floats(0.01, 1))
def test_every_point_is_better_than_the_reference_where_objectives_vary(sets, rho):
    points = np.concatenate(sets)
    if len(points):
        reference = reference_point(sets, rho)
        spans = np.ptp(points, axis=0)
        assert reference == pytest.approx(points.min(axis=0) - rho * spans)
        assert (points > reference).all(axis=0).tolist() == (spans > 0).tolist()


def test_the_best_hypervolume_is_that_of_the_union():
    sets = [[[2, 1]], [[1, 3], [np.nan, 9]]]
    assert best_hypervolume(iter(sets), [0, 0]) == 4


@pytest.mark.parametrize("function", [reference_point, lambda sets: best_hypervolume(sets, [0, 0])])
def test_unions_need_points_of_one_kind(function):
    with pytest.raises(ValueError, match="at least one finite point, got none"):
        function([])
    with pytest.raises(ValueError, match="at least one finite point, got none"):
        function([[[np.nan, 1]]])
    with pytest.raises(ValueError, match=r"must have the same number of objectives, got \[2, 3\]"):
        function([[[1, 2]], [[1, 2, 3]]])


def test_the_logarithm_of_the_hypervolume_difference():
    assert log_hypervolume_difference(1, [0.9, 0.99]).tolist() == pytest.approx([-1, -2], abs=1e-3)
    assert log_hypervolume_difference(1, [0.9, 0.99], margin=0).tolist() == pytest.approx([-1, -2])
    assert log_hypervolume_difference(1, 1).tolist() == pytest.approx(-6)  # the authors' margin
    assert log_hypervolume_difference(1, 1, margin=0) == -np.inf
    assert log_hypervolume_difference(1, 1 + 1e-12, margin=0) == -np.inf  # rounding
    assert log_hypervolume_difference(1, [[0.5, 0.5]]).shape == (1, 2)
    with pytest.raises(
        ValueError, match=r"`best` must be at least the largest hypervolume, 1.5, got 1"
    ):
        log_hypervolume_difference(1, [0.5, 1.5])


# Coverage


def at_angles(*degrees, radius=1.0):
    """Return points at angles from the axis of the second objective."""
    angles = np.radians(degrees)
    return radius * np.column_stack([np.sin(angles), np.cos(angles)])


def test_the_papers_figure_seven_lines_and_points_in_four_of_eight_sectors():
    # The last point is dominated.
    objectives = np.vstack([at_angles(5, 15, 18, 40, 80), at_angles(60, radius=0.5)])
    assert coverage(objectives, [0, 0], lines=7) == 4 / 8


def test_coverage_of_the_paper_and_of_the_authors_code():
    everywhere = at_angles(*np.linspace(0.01, 89.99, 5000))
    assert coverage(everywhere, [0, 0]) == 1
    assert coverage(everywhere, [0, 0], authors_variant=True) == 360 / 361
    one = at_angles(50)  # 50 / 90 of 8 and of 7 sectors
    assert (
        coverage(one, [0, 0], lines=7)
        == coverage(one, [0, 0], lines=7, authors_variant=True)
        == 1 / 8
    )
    two = at_angles(12, 12.8)  # a line of seven lies at 11.25, one of six at 12.86
    assert coverage(two, [0, 0], lines=7) == 1 / 8
    two = at_angles(11, 12)
    assert coverage(two, [0, 0], lines=7) == 2 / 8
    assert coverage(two, [0, 0], lines=7, authors_variant=True) == 1 / 8


def test_points_on_the_axes_lie_in_the_outer_sectors_and_others_must_be_above_the_reference():
    assert coverage([[1, 0], [0, 1]], [0, 0], lines=1) == 1
    assert coverage([[1, 0], [0.999, 0.001]], [0, 0], lines=7) == 1 / 8
    assert coverage([[1, 1]], [1, 1]) == 0
    assert coverage([[2, 0], [0, 2]], [1, 1]) == 0
    assert coverage(np.empty((0, 2)), [0, 0]) == 0
    assert coverage([[np.nan, 1], [np.inf, 1], [1, 1]], [0, 0], lines=7) == 1 / 8


@given(tables(SOME_BROKEN, counts=st.just(2)), st.integers(1, 20))
def test_coverage_counts_sectors(objectives, lines):
    front = objectives[non_dominated(objectives)]
    front = front[(front >= 0).all(axis=1) & (front > 0).any(axis=1)]
    edges = np.linspace(0, np.pi / 2, lines + 2)
    counts, _ = np.histogram([math.atan2(x, y) for x, y in front], edges)
    exact_lines = any(np.isclose(math.atan2(x, y), edges[1:-1]).any() for x, y in front)
    if not exact_lines:  # there rounding decides
        assert coverage(objectives, [0, 0], lines=lines) == np.count_nonzero(counts) / (lines + 1)


def test_coverage_of_objectives_in_units_far_apart():
    """In raw units, all points of an accuracy and a number of weights share a sector."""
    shares = at_angles(*np.linspace(5, 85, 9))
    weights = shares * [1.0, 2000.0]
    assert coverage(weights, [0, 0]) < coverage(shares, [0, 0])
    units = coverage_units(weights, [0, 0])
    assert units.tolist() == weights.max(axis=0).tolist()
    assert coverage(weights, [0, 0], units=units) == coverage(shares, [0, 0]) == 9 / 361
    assert coverage_units(shares * [1.0, 9.0], [0, 0]).tolist() == [1, 1], (
        "as in the paper where that says something"
    )
    assert coverage_units(np.empty((0, 2)), [0, 0]).tolist() == [1, 1]
    assert coverage_units([[1.0, 0.0]], [0, 0]).tolist() == [1, 1], "a range of nothing is no unit"


def test_wrong_arguments_of_coverage_are_named():
    with pytest.raises(ValueError, match=r"`objectives` must have shape \(n, 2\), got \(1, 3\)"):
        coverage([[1, 2, 3]], [0, 0, 0])
    with pytest.raises(ValueError, match="`lines` must be a whole number of at least 1, got 0"):
        coverage([[1, 2]], [0, 0], lines=0)


# The curve


def curve_by_recomputation(objectives, reference):
    return [hypervolume(objectives[: i + 1], reference) for i in range(len(objectives))]


@given(tables(SOME_BROKEN, largest=25, counts=st.sampled_from([1, 2, 3, 5])))
def test_the_curve_is_the_hypervolume_of_every_beginning(objectives):
    reference = np.zeros(objectives.shape[1])
    found = hypervolume_curve(objectives, reference)
    assert found == pytest.approx(curve_by_recomputation(objectives, reference), abs=1e-12)
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_the_curve_of_points_that_are_all_accepted(K):
    objectives = sphere(200, K) if K > 1 else np.arange(1.0, 201)[:, None]
    reference = np.full(K, 0.1)
    assert hypervolume_curve(objectives, reference) == pytest.approx(
        curve_by_recomputation(objectives, reference)
    )


@pytest.mark.parametrize("K", [2, 3])
def test_the_curve_of_points_that_push_others_out(K):
    rng = np.random.default_rng(0)
    objectives = sphere(300, K) * (np.arange(300) / 300)[:, None] + 0.01 * rng.random((300, K))
    found = hypervolume_curve(objectives, np.zeros(K))
    assert found == pytest.approx(curve_by_recomputation(objectives, np.zeros(K)))


@given(tables(largest=20, counts=st.sampled_from([1, 3, 4])), st.integers(1, 5))
def test_the_curve_does_not_depend_on_how_often_the_archive_is_pruned(objectives, prune):
    expected = hypervolume_curve(objectives, np.zeros(objectives.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "PRUNE", prune)
        assert hypervolume_curve(objectives, np.zeros(objectives.shape[1])) == pytest.approx(
            expected, abs=1e-12
        )


def test_a_curve_by_hand():
    objectives = [[np.nan, 1], [2, 1], [1, 1], [2, 1], [1, 3], [np.inf, 9], [-5, 9], [3, 3]]
    assert hypervolume_curve(objectives, [0, 0]).tolist() == [0, 2, 2, 2, 4, 4, 4, 9]
    assert hypervolume_curve(np.empty((0, 2)), [0, 0]).tolist() == []


# Tables


def test_mean_and_deviation():
    assert mean_and_deviation([1, 3]) == (2, 1)
    assert mean_and_deviation([1, 3], sample=True) == (2, pytest.approx(math.sqrt(2)))
    assert mean_and_deviation([5]) == (5, 0)
    with pytest.raises(
        ValueError, match=r"`values` must have shape \(n,\) with n of at least 2, got \(1,\)"
    ):
        mean_and_deviation([5], sample=True)
    with pytest.raises(
        ValueError, match=r"`values` must have shape \(n,\) with n of at least 1, got \(0,\)"
    ):
        mean_and_deviation([])


# Arguments

OF_A_REFERENCE = [hypervolume, coverage, hypervolume_curve, lambda f, r: best_hypervolume([f], r)]


@pytest.mark.parametrize("function", OF_A_REFERENCE)
def test_wrong_shapes_and_references_are_named(function):
    with pytest.raises(ValueError, match=r"`objectives` must have shape \(n, K\), got \(2,\)"):
        function([1, 2], [0, 0])
    with pytest.raises(
        ValueError,
        match=r"`reference` must have shape \(2,\) like the objectives' columns, got \(3,\)",
    ):
        function([[1, 2]], [0, 0, 0])
    with pytest.raises(ValueError, match=r"`reference` must be finite, got \[0.0, nan\]"):
        function([[1, 2]], [0, np.nan])
    function([[1, 2]], [-1e300, 0])


@pytest.mark.parametrize(
    "function", [*OF_A_REFERENCE, lambda f, r: non_dominated(f), lambda f, r: reference_point([f])]
)
def test_inputs_are_not_modified(function):
    objectives = np.random.default_rng(0).random((50, 2))
    objectives[3, 1] = np.nan
    reference = np.full(2, 0.1)
    copies = objectives.copy(), reference.copy()
    objectives.flags.writeable = reference.flags.writeable = False
    function(objectives, reference)
    assert np.array_equal(objectives, copies[0], equal_nan=True)
    assert np.array_equal(reference, copies[1])
