"""Figures in objective space."""

import itertools

import numpy as np
import pytest

from compare.builders import (
    FAIR,
    LABELS,
    comparison_of,
    labels_in,
    lines_by_color,
    only,
    problem_of,
    random_comparison,
    run_of,
)
from mopbt.compare.measures import measure
from mopbt.compare.report import draw
from mopbt.plots.objective_space import (
    attained,
    attainment_difference,
    bin_edges,
    histogram,
    median_run,
)
from mopbt.plots.style import (
    FRONT,
)


class TestFronts:
    def test_shows_the_median_run_with_its_hypervolume_and_coverage(self):
        measured = measure(random_comparison(("a", "longer")))
        figure = only(draw("fronts", measured))
        ax, task = figure.axes[0], measured[0]
        chosen = median_run(task.runs["MO-PBT"])
        points = chosen.data.objectives[chosen.front]
        np.testing.assert_array_equal(
            lines_by_color(ax)[FRONT].get_xydata(), points[np.argsort(points[:, 0])]
        )
        expected = f"{100 * chosen.hypervolumes[-1]:.1f}, {100 * chosen.coverage:.1f}"
        assert labels_in(ax.get_legend())[0] == expected

    @pytest.mark.parametrize(("seeds", "place"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
    def test_the_median_run_has_as_many_below_as_above(self, seeds, place):
        (task,) = measure(random_comparison(seeds=seeds))
        runs = task.runs["MO-PBT"]
        order = sorted(r.hypervolumes[-1] for r in runs)
        assert median_run(runs).hypervolumes[-1] == order[place]

    def test_a_single_task_has_its_labels_in_one_legend(self):
        figure = only(draw("fronts", measure(random_comparison())))
        assert not figure.legends
        assert [text.partition(":")[0] for text in labels_in(figure.axes[0].get_legend())] == list(
            LABELS
        )

    def test_axes_are_in_the_original_direction_of_the_metrics(self):
        """The second objective is minimized: its scores are positive, and the edge runs above."""
        objectives = [[0.5, -0.1], [0.9, -0.4]]
        comparison = comparison_of(
            [run_of("a", "MO-PBT", 0, objectives)], problems={"a": problem_of("a", FAIR)}
        )
        ax = only(draw("fronts", measure(comparison))).axes[0]
        (line,) = ax.get_lines()
        np.testing.assert_allclose(line.get_xydata(), [[0.5, 0.1], [0.9, 0.4]])
        assert line.get_drawstyle() == "steps-pre"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("accuracy  (better →)", "(← better)  dsp")

    def test_three_objectives_are_not_drawn_flat(self):
        measured = measure(random_comparison(K=3))
        assert (
            draw("fronts", measured)
            == draw("searched", measured)
            == draw("attainment", measured)
            == {}
        )


class TestSearched:
    def test_each_task_has_a_figure_with_a_panel_for_each_algorithm(self):
        measured = measure(random_comparison(("a", "longer")))
        figures = draw("searched", measured)
        assert list(figures) == ["searched-a", "searched-longer"]
        panels = figures["searched-a"].axes[:3]
        assert [ax.get_title(loc="left") for ax in panels] == list(LABELS)
        assert len({ax.get_xlim() for ax in panels}) == 1
        (image,) = panels[0].get_images()
        points = np.concatenate([r.data.objectives for r in measured[0].runs["MO-PBT"]])
        assert np.nansum(image.get_array()) == pytest.approx(len(points) / 3)

    def test_counts_are_the_mean_over_runs_and_leave_nothing_out(self):
        rng = np.random.default_rng(0)
        points = [rng.random((30, 2)), rng.random((50, 2)), np.full((4, 2), np.nan)]
        edges = [bin_edges(np.concatenate([p[:, k] for p in points])) for k in (0, 1)]
        counts = histogram(points, edges)
        assert counts.sum() == pytest.approx(80 / 3)
        x, y = points[0][0]
        i, j = (
            np.searchsorted(edges[0], x, side="right") - 1,
            np.searchsorted(edges[1], y, side="right") - 1,
        )
        assert counts[i, j] > 0

    def test_a_few_far_values_do_not_squeeze_the_others(self):
        values = np.concatenate([np.linspace(0, 1, 1000), [-1e6]])
        edges = bin_edges(values)
        assert -0.3 < edges[0] <= 0
        assert edges[-1] == 1

    def test_all_values_equal_still_make_bins(self):
        edges = bin_edges(np.full(5, 0.25))
        assert (np.diff(edges) > 0).all()
        assert edges[0] < 0.25 < edges[-1]


class TestAttainment:
    RUNS = ([[1, 3], [3, 1]], [[2, 2]], [[1, 1]])

    def measured(self):
        runs = [run_of("a", "MO-PBT", seed, points) for seed, points in enumerate(self.RUNS)]
        runs += [run_of("a", "other", seed, [[1, 1]]) for seed in range(3)]
        return measure(comparison_of(runs))

    def attaining(self, runs, point):
        return sum(
            any((np.asarray(p) >= point).all() for p in run.data.objectives[run.front])
            for run in runs
        )

    @pytest.mark.parametrize(("percent", "least"), [(0, 1), (50, 2), (100, 3)])
    def test_a_surface_bounds_what_enough_runs_attain(self, percent, least):
        (task,) = self.measured()
        runs = task.runs["MO-PBT"]
        corners = attained(runs, percent)
        for point in itertools.product(np.arange(0.5, 4, 0.5), repeat=2):
            inside = any((corner >= point).all() for corner in corners)
            assert inside == (self.attaining(runs, point) >= least)

    def test_differences_are_those_of_counting(self):
        (task,) = self.measured()
        first, second = task.runs["MO-PBT"], task.runs["other"]
        corners, shares = attainment_difference(first, second, np.array([0.1, 0.2]))
        assert corners.min(axis=(0, 1)).tolist() == [0.1, 0.2]
        for point in itertools.product(np.arange(0.25, 4, 0.5), repeat=2):
            low, high = corners.min(axis=1), corners.max(axis=1)
            within = ((low <= point) & (point <= high)).all(axis=1)
            counted = (self.attaining(first, point) - self.attaining(second, point)) / 3
            assert shares[within].sum() == pytest.approx(counted)

    def test_draws_surfaces_of_all_and_the_difference_from_the_best_of_the_others(self):
        figure = only(draw("attainment", measure(random_comparison())))
        left, right = figure.axes[:2]
        assert len(left.get_lines()) == 3
        assert right.get_title(loc="left") == "MO-PBT\nminus random search"
        assert len(right.collections[0].get_paths()) > 5
        assert labels_in(figure.legends[0]) == list(LABELS)

    def test_needs_two_algorithms_with_two_runs_each(self):
        assert draw("attainment", measure(random_comparison(seeds=1))) == {}
        assert draw("attainment", measure(random_comparison(labels=("MO-PBT",)))) == {}
