"""Figures over time."""

import numpy as np
import pytest

from compare.builders import (
    FAIR,
    LABELS,
    PRECISION_RECALL,
    comparison_of,
    curve,
    labels_in,
    lines_by_color,
    only,
    problem_of,
    random_comparison,
    run_of,
)
from mopbt.compare.measures import measure
from mopbt.compare.report import draw
from mopbt.metrics import log_hypervolume_difference
from mopbt.plots.progress import draw_band, trivial_shares, trivials
from mopbt.plots.style import (
    FRONT,
    create_panels,
    styles_of,
)


class TestOverTime:
    def test_progress_draws_the_mean_and_the_band_of_all_runs(self):
        measured = measure(random_comparison(("a", "longer")))
        figure = only(draw("progress", measured))
        assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "longer"]
        for ax, task in zip(figure.axes, measured, strict=True):
            assert len(ax.get_lines()) == len(ax.collections) == 3
            logs = log_hypervolume_difference(
                task.best, [r.hypervolumes for r in task.runs["MO-PBT"]]
            )
            line = lines_by_color(ax)[FRONT]
            np.testing.assert_allclose(curve(line), (task.times, logs.mean(axis=0)))
            band = ax.collections[-1].get_paths()[0].get_extents()
            assert (band.y0, band.y1) == (pytest.approx(logs.min()), pytest.approx(logs.max()))
        assert labels_in(figure.legends[0]) == list(LABELS)

    def test_mo_pbt_lies_on_top(self):
        ax = only(draw("progress", measure(random_comparison()))).axes[0]
        assert ax.get_lines()[-1].get_color() == FRONT

    def test_a_curve_begins_where_all_runs_have_something_and_ends_with_its_algorithm(self):
        early = run_of("a", "MO-PBT", 0, [[1, 2], [2, 1], [2, 2]], seconds=[1, 3, 5])
        late = run_of("a", "MO-PBT", 1, [[1, 2], [2, 1]], seconds=[2, 4])
        long = run_of("a", "other", 0, [[1, 1], [1, 3]], seconds=[1, 9])
        ax = only(draw("progress", measure(comparison_of([early, late, long])))).axes[0]
        assert curve(lines_by_color(ax)[FRONT])[0].tolist() == [2, 3, 4, 5]
        assert curve(ax.get_lines()[0])[0].tolist() == [1, 2, 3, 4, 5, 9]

    def test_the_last_step_has_a_width(self):
        """Otherwise the value in the table could not be seen."""
        ax = only(draw("progress", measure(random_comparison(n=3)))).axes[0]
        line = lines_by_color(ax)[FRONT]
        assert line.get_xdata()[-1] > line.get_xdata()[-2]
        assert line.get_ydata()[-1] == line.get_ydata()[-2]

    @pytest.mark.parametrize("size", [1e-4, 1.0, 1e6])
    def test_hypervolumes_of_any_size_can_be_distinguished(self, size):
        runs = [
            run_of("a", label, 0, [[size, 0.5 * size], [far * size, far * size]])
            for label, far in (("MO-PBT", 2), ("b", 1.5))
        ]
        lines = only(draw("progress", measure(comparison_of(runs)))).axes[0].get_lines()
        assert abs(lines[0].get_ydata()[-1] - lines[1].get_ydata()[-1]) > 1

    def test_runs_without_test_scores_are_not_in_figures_of_them(self):
        runs = [
            run_of("a", label, 0, [[1, 2], [2, 1]], test=test)
            for label, test in (("MO-PBT", [[1, 2], [2, 1]]), ("b", None))
        ]
        for name in ("generalization", "transfer"):
            (line,) = only(draw(name, measure(comparison_of(runs)))).axes[0].get_lines()
            assert line.get_color() == FRONT

    @pytest.mark.parametrize(("seconds", "unit"), [(100, "s"), (200, "min"), (8000, "h")])
    def test_time_has_a_unit_that_suits_it(self, seconds, unit):
        runs = [run_of("a", "MO-PBT", 0, [[1, 2], [2, 1]], seconds=[1, seconds])]
        ax = only(draw("progress", measure(comparison_of(runs)))).axes[0]
        assert ax.get_xlabel() == f"virtual time ({unit})"
        assert curve(ax.get_lines()[0])[0][-1] == pytest.approx(
            seconds / {"s": 1, "min": 60, "h": 3600}[unit]
        )

    def test_generalization_is_the_same_on_test_data(self):
        measured = measure(random_comparison())
        ax = only(draw("generalization", measured)).axes[0]
        (task,) = measured
        logs = log_hypervolume_difference(
            task.best_test, [r.test_hypervolumes for r in task.runs["MO-PBT"]]
        )
        np.testing.assert_allclose(curve(lines_by_color(ax)[FRONT])[1], logs.mean(axis=0))

    def test_transfer_is_the_share_that_is_left_on_test_data(self):
        measured = measure(random_comparison())
        line = lines_by_color(only(draw("transfer", measured)).axes[0])[FRONT]
        runs = measured[0].runs["MO-PBT"]
        share = (
            100 * sum(r.test_hypervolumes[-1] for r in runs) / sum(r.hypervolumes[-1] for r in runs)
        )
        assert line.get_ydata()[-1] == pytest.approx(share)
        assert line.get_xdata()[0] >= 0.2 * line.get_xdata()[-2]

    def test_without_test_data_there_is_no_figure_of_it(self):
        measured = measure(random_comparison(test=False))
        assert draw("generalization", measured) == draw("transfer", measured) == {}


class TestTrivial:
    def comparison(self, scores, algorithms=None, objectives=None):
        runs = [
            run_of(
                "a",
                label,
                0,
                [[0.1, 0.2], [0.2, 0.1], [0.3, 0.3], [0.4, 0.2]],
                scores=scores,
                steps=[1, 1, 2, 2],
            )
            for label in algorithms or ["MO-PBT"]
        ]
        return measure(comparison_of(runs, algorithms, problems={"a": problem_of("a", objectives)}))

    def test_a_perfect_classifier_is_not_trivial(self):
        scores = {"recall": np.ones(4), "precision": np.array([0.5, 1, 0.5, 1])}
        (task,) = self.comparison(scores, objectives=PRECISION_RECALL)
        assert trivials(task.runs["MO-PBT"][0], task).tolist() == [True, False, True, False]

    def test_a_recall_that_a_task_is_not_about_tells_nothing(self):
        assert draw("trivial", self.comparison({"recall": np.ones(4)})) == {}

    def test_a_classifier_that_calls_all_or_nothing_positive_is_trivial(self):
        scores = {
            "recall": np.array([0.0, 1.0, 0.5, np.nan]),
            "precision": np.array([0.0, 0.5, 0.5, np.nan]),
        }
        (task,) = self.comparison(scores, objectives=PRECISION_RECALL)
        (run,) = task.runs["MO-PBT"]
        assert trivials(run, task).tolist() == [True, True, False, False]
        steps, shares = trivial_shares(task, "MO-PBT")
        assert (steps.tolist(), shares.tolist()) == ([1, 2], [[1.0, 0.0]])
        line = only(draw("trivial", [task])).axes[0].get_lines()[0]
        assert np.transpose(curve(line)).tolist() == [[1, 100], [2, 0]]

    def test_elsewhere_it_is_one_that_misses_what_some_algorithm_must_keep(self):
        algorithms = {
            "MO-PBT": {"name": "mo-pbt"},
            "bound": {"name": "mo-pbt", "constraints": ["accuracy > 0.5"]},
        }
        (task,) = self.comparison({"accuracy": np.array([0.5, 0.4, 0.6, 0.5])}, algorithms, FAIR)
        assert [trivials(task.runs[label][0], task).tolist() for label in algorithms] == [
            [True, True, False, True]
        ] * 2

    def test_what_is_demanded_on_another_task_does_not_count(self):
        algorithms = {
            "MO-PBT": {"name": "mo-pbt"},
            "bound": {"name": "mo-pbt", "constraints": ["latency < 9"], "tasks": ["b"]},
        }
        runs = [run_of("a", "MO-PBT", 0, [[0.1, 0.2]], scores={"accuracy": np.ones(1)})]
        runs += [
            run_of("b", label, 0, [[0.1, 0.2]], scores={"latency": np.array([9.5])})
            for label in algorithms
        ]
        measured = measure(comparison_of(runs, algorithms))
        figure = only(draw("trivial", measured))
        assert [ax.get_title(loc="left") for ax in figure.axes] == ["b"]
        assert figure.axes[0].get_ylabel() == "models (%) without\nlatency < 9"

    def test_where_nothing_tells_there_is_no_figure(self):
        assert draw("trivial", self.comparison({"accuracy": np.ones(4)})) == {}


@pytest.mark.parametrize(
    "values", [[[np.nan, np.nan, np.nan]], [[np.nan, 0.5, np.nan]], [[0.1, 0.5, 0.7]]]
)
def test_a_band_without_numbers_can_be_drawn(values, tmp_path):
    figure, (ax,) = create_panels(1, height=2.0)
    draw_band(ax, np.arange(3.0), np.array(values), "MO-PBT", styles_of(["MO-PBT"]))
    figure.savefig(tmp_path / "band.png")
    assert (tmp_path / "band.png").stat().st_size > 0
