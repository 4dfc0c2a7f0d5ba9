import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from compare.builders import comparison_of, problem_of, run_of
from mopbt import Budget, SimulatedEngine, run
from mopbt.algorithms import MOASHA, MOPBT, RandomSearch
from mopbt.compare import PlannedRun
from mopbt.compare.measures import measure
from mopbt.compare.plan import FIGURES as ALLOWED
from mopbt.compare.report import FIGURES, draw, write_report
from mopbt.errors import MissingExtra, StoreError
from mopbt.metrics import log_hypervolume_difference
from mopbt.plots.objective_space import (
    attained,
    attainment_difference,
    bin_edges,
    histogram,
    median_run,
)
from mopbt.plots.progress import draw_band, trivial_shares, trivials
from mopbt.plots.style import (
    BLACK,
    BLUE,
    FRONT,
    GRAY,
    GREEN,
    LEAD,
    ORANGE,
    PURPLE,
    SKY,
    SPARE,
    STYLES,
    create_panels,
    styled,
    styles_of,
)
from mopbt.tasks.synthetic import TradeOff

LABELS = ("MO-PBT", "random search", "MO-ASHA")
PRECISION_RECALL = {"precision": "max", "recall": "max"}
FAIR = {"accuracy": "max", "dsp": "min"}


def made(
    tasks=("a",),
    labels=LABELS,
    *,
    seeds=3,
    n=40,
    K=2,
    test=True,
    algorithms=None,
    problems=None,
    **fields,
):
    """Return a comparison of random runs that get better; the first label is the best."""
    runs = []
    for task, (i, label), seed in itertools.product(tasks, enumerate(labels), range(seeds)):
        rng = np.random.default_rng([len(task), i, seed])
        points = rng.random((n, K)) * np.linspace(0.5, 1 - 0.1 * i, n)[:, None]
        scores = {f"f{k}": points[:, k] for k in range(K)}
        runs.append(
            run_of(
                task,
                label,
                seed,
                points,
                test=points * 0.9 if test else None,
                scores=scores,
                trials=np.arange(n) % 8,
            )
        )
    problems = problems or {
        task: problem_of(task, {f"f{k}": "max" for k in range(K)}) for task in tasks
    }
    return comparison_of(runs, algorithms, problems=problems, **fields)


def only(figures):
    (figure,) = figures.values()
    return figure


def labels_in(legend):
    return [text.get_text() for text in legend.get_texts()]


def lines_by_color(ax):
    return {line.get_color(): line for line in ax.get_lines()}


class TestStyles:
    def test_mo_pbt_always_looks_the_same(self):
        for labels in (LABELS, LABELS[::-1], ("x", "MO-PBT", "y")):
            assert styles_of(labels)["MO-PBT"] == LEAD

    def test_without_mo_pbt_the_first_leads(self):
        assert styles_of(("x", "y"))["x"] == LEAD

    def test_the_papers_algorithms_look_the_same_in_every_company(self):
        assert (
            styles_of(("MO-PBT", "MO-ASHA", "x"))["MO-ASHA"]
            == styles_of(("MO-PBT", "y", "z", "MO-ASHA"))["MO-ASHA"]
        )

    def test_all_differ_in_color_or_line_and_in_marker(self):
        labels = ("MO-PBT", *STYLES, *(f"other {i}" for i in range(6)))
        styles = list(styles_of(labels).values())
        assert len({(style.color, style.line) for style in styles}) == len(styles)
        paper = [LEAD, *STYLES.values()]
        assert len({style.marker for style in paper}) == len(paper)

    def test_more_labels_than_styles_still_get_one(self):
        assert len(styles_of(f"label {i}" for i in range(len(SPARE) + 5))) == len(SPARE) + 5

    @pytest.mark.parametrize("vision", ["normal", "protan", "deutan", "tritan"])
    def test_colors_can_be_distinguished_by_every_kind_of_vision(self, vision):
        """Distances in CIELAB after Machado, Oliveira and Fernandes (2009), full severity.

        10 is a clear difference at a glance.
        """
        colors = [FRONT, BLUE, GREEN, ORANGE, PURPLE, SKY, GRAY, BLACK]
        places = [lab(np.array(VISIONS[vision]) @ linear(color)) for color in colors]
        distances = {
            pair: np.linalg.norm(places[pair[0]] - places[pair[1]])
            for pair in itertools.combinations(range(8), 2)
        }
        assert min(distances.values()) > 15
        assert min(distance for pair, distance in distances.items() if 0 in pair) > 28


VISIONS = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def curve(line):
    """Return x and y of a line over time, without the extension of its last step."""
    x, y = line.get_xdata(), line.get_ydata()
    np.testing.assert_equal(y[-1], y[-2])
    assert x[-1] >= x[-2]
    return x[:-1], y[:-1]


class TestOverTime:
    def test_progress_draws_the_mean_and_the_band_of_all_runs(self):
        measured = measure(made(("a", "longer")))
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
        ax = only(draw("progress", measure(made()))).axes[0]
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
        ax = only(draw("progress", measure(made(n=3)))).axes[0]
        line = lines_by_color(ax)[FRONT]
        assert line.get_xdata()[-1] > line.get_xdata()[-2]
        assert line.get_ydata()[-1] == line.get_ydata()[-2]

    @pytest.mark.parametrize("size", [1e-4, 1.0, 1e6])
    def test_hypervolumes_of_any_size_can_be_told_apart(self, size):
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

    def test_generalisation_is_the_same_on_test_data(self):
        measured = measure(made())
        ax = only(draw("generalization", measured)).axes[0]
        (task,) = measured
        logs = log_hypervolume_difference(
            task.best_test, [r.test_hypervolumes for r in task.runs["MO-PBT"]]
        )
        np.testing.assert_allclose(curve(lines_by_color(ax)[FRONT])[1], logs.mean(axis=0))

    def test_transfer_is_the_share_that_is_left_on_test_data(self):
        measured = measure(made())
        line = lines_by_color(only(draw("transfer", measured)).axes[0])[FRONT]
        runs = measured[0].runs["MO-PBT"]
        share = (
            100 * sum(r.test_hypervolumes[-1] for r in runs) / sum(r.hypervolumes[-1] for r in runs)
        )
        assert line.get_ydata()[-1] == pytest.approx(share)
        assert line.get_xdata()[0] >= 0.2 * line.get_xdata()[-2]

    def test_without_test_data_there_is_no_figure_of_it(self):
        measured = measure(made(test=False))
        assert draw("generalization", measured) == draw("transfer", measured) == {}


class TestFronts:
    def test_shows_the_median_run_with_its_hypervolume_and_coverage(self):
        measured = measure(made(("a", "longer")))
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
        (task,) = measure(made(seeds=seeds))
        runs = task.runs["MO-PBT"]
        order = sorted(r.hypervolumes[-1] for r in runs)
        assert median_run(runs).hypervolumes[-1] == order[place]

    def test_a_single_task_has_its_labels_in_one_legend(self):
        figure = only(draw("fronts", measure(made())))
        assert not figure.legends
        assert [text.partition(":")[0] for text in labels_in(figure.axes[0].get_legend())] == list(
            LABELS
        )

    def test_axes_are_in_the_scores_own_sense(self):
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
        measured = measure(made(K=3))
        assert (
            draw("fronts", measured)
            == draw("searched", measured)
            == draw("attainment", measured)
            == {}
        )


class TestSearched:
    def test_each_task_has_a_figure_with_a_panel_for_each_algorithm(self):
        measured = measure(made(("a", "longer")))
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
        figure = only(draw("attainment", measure(made())))
        left, right = figure.axes[:2]
        assert len(left.get_lines()) == 3
        assert right.get_title(loc="left") == "MO-PBT\nminus random search"
        assert len(right.collections[0].get_paths()) > 5
        assert labels_in(figure.legends[0]) == list(LABELS)

    def test_needs_two_algorithms_with_two_runs_each(self):
        assert draw("attainment", measure(made(seeds=1))) == {}
        assert draw("attainment", measure(made(labels=("MO-PBT",)))) == {}


class TestSettings:
    def test_final_shows_every_run_in_per_cent_of_mo_pbt(self):
        measured = measure(made())
        ax = only(draw("final", measured)).axes[0]
        dots = [line for line in ax.get_lines() if len(line.get_xdata()) == 3]
        unit = np.mean([r.hypervolumes[-1] for r in measured[0].runs["MO-PBT"]])
        for y, (label, line) in enumerate(zip(LABELS, dots, strict=True)):
            expected = [100 * r.hypervolumes[-1] / unit for r in measured[0].runs[label]]
            np.testing.assert_allclose(line.get_xdata(), expected)
            assert set(line.get_ydata()) == {y}
        assert [text.get_text() for text in ax.get_yticklabels()] == list(LABELS)

    def test_final_leaves_out_tasks_without_the_algorithm_that_is_a_hundred_per_cent(self):
        comparison = made(("a", "b"))
        runs = tuple(run for run in comparison.runs if run.task == "a" or run.algorithm != "MO-PBT")
        axes = only(draw("final", measure(replace(comparison, runs=runs)))).axes
        assert [ax.get_title(loc="left") for ax in axes] == ["a"]

    def test_one_algorithm_has_nothing_to_be_compared_with(self):
        assert draw("final", measure(made(labels=("MO-PBT",)))) == {}

    def populations(self):
        algorithms = {
            "MO-PBT, population 4": {"name": "mo-pbt", "population": 4},
            "MO-PBT": {"name": "mo-pbt", "population": 8},
        }
        algorithms |= {"MO-ASHA, short": {"name": "mo-asha", "time_of": "MO-PBT, population 4"}}
        algorithms |= {"MO-ASHA": {"name": "mo-asha", "time_of": "MO-PBT"}}
        comparison = made(labels=tuple(algorithms), algorithms=algorithms)
        sizes = {"MO-PBT, population 4": 4, "MO-PBT": 8}
        runs = [
            replace(run, trials=np.arange(40) % sizes.get(run.algorithm, 30))
            for run in comparison.runs
        ]
        return measure(replace(comparison, runs=tuple(runs)))

    def test_populations_join_what_differs_in_size_alone(self):
        """MO-ASHA has no population, so it has the size of the algorithm whose time it gets."""
        measured = self.populations()
        figure = only(draw("populations", measured))
        assert labels_in(figure.legends[0]) == ["MO-PBT", "MO-ASHA"]
        lines = [
            line
            for line in figure.axes[0].get_lines()
            if len(line.get_xdata()) == 2 and line.get_linewidth() < 3
        ]
        means = [
            [np.mean([r.hypervolumes[-1] for r in measured[0].runs[label]]) for label in pair]
            for pair in (("MO-PBT, population 4", "MO-PBT"), ("MO-ASHA, short", "MO-ASHA"))
        ]
        for line, expected in zip(lines, means, strict=True):
            np.testing.assert_allclose(line.get_ydata(), 100 * np.array(expected) / means[0][1])
            np.testing.assert_allclose(line.get_xdata(), [4, 8], rtol=0.1)
        assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["4", "8"]

    def test_without_several_populations_there_is_no_figure_of_them(self):
        assert draw("populations", measure(made())) == {}

    def test_the_same_population_under_other_seeds_is_no_question_of_size(self):
        algorithms = {
            "MO-PBT": {"name": "mo-pbt"},
            "other seeds": {"name": "mo-pbt", "seed_offset": 100},
        }
        algorithms |= {
            "MO-ASHA": {"name": "mo-asha"},
            "MO-ASHA, other seeds": {"name": "mo-asha", "seed_offset": 100},
        }
        comparison = made(labels=tuple(algorithms), algorithms=algorithms, time_of="MO-PBT")
        trials = {"MO-ASHA": 30, "MO-ASHA, other seeds": 40}
        runs = [
            replace(run, trials=np.arange(40) % trials.get(run.algorithm, 8))
            for run in comparison.runs
        ]
        assert draw("populations", measure(replace(comparison, runs=tuple(runs)))) == {}

    def test_spaces_are_measured_as_one_task(self):
        problems = {
            task: problem_of(task, variables=size) for task, size in (("a", 5), ("longer", 31))
        }
        measured = measure(made(("a", "longer"), labels=("MO-PBT", "MO-ASHA"), problems=problems))
        figure = only(draw("spaces", measured))
        assert labels_in(figure.legends[0]) == [
            f"{label}, {n} variables" for n in (5, 31) for label in ("MO-PBT", "MO-ASHA")
        ]
        colors = [line.get_color() for line in figure.axes[0].get_lines()]
        assert sorted(map(colors.count, set(colors))) == [2, 2]
        assert (
            len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()})
            == 4
        )
        assert figure.axes[0].get_xlabel() == "share of the time"
        assert max(curve(line)[0].max() for line in figure.axes[0].get_lines()) == 1

    @pytest.mark.slow
    def test_spaces_are_drawn_for_who_asks(self, tmp_path):
        """Tasks with different spaces are usually different tasks."""
        problems = {
            task: problem_of(task, variables=size) for task, size in (("a", 5), ("longer", 31))
        }
        comparison = made(("a", "longer"), labels=("MO-PBT",), problems=problems)
        wide = [
            replace(run, positions=np.zeros((len(run), len(problems[run.task].space))))
            for run in comparison.runs
        ]
        comparison = replace(comparison, runs=tuple(wide))
        drawn = [file.stem for file in write_report(comparison, tmp_path / "usual")]
        assert "progress" in drawn
        assert "spaces" not in drawn
        asked = replace(comparison, experiment=replace(comparison.experiment, figures=("spaces",)))
        assert {
            file.stem for file in write_report(asked, tmp_path / "asked") if file.suffix == ".png"
        } == {"spaces"}

    @pytest.mark.parametrize("sizes", [(5, 5), (5,)])
    def test_tasks_of_the_same_size_are_not_a_question_of_spaces(self, sizes):
        problems = {
            task: problem_of(task, variables=size)
            for task, size in zip(("a", "longer"), sizes, strict=False)
        }
        assert draw("spaces", measure(made(tuple(problems), problems=problems))) == {}


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


TABLES = {"tables.md", "tables.tex", "tables.csv", "runs.csv", "tasks.csv", "fronts.csv.gz"}


class TestReport:
    @pytest.mark.slow
    def test_writes_tables_and_all_figures_that_make_sense(self, tmp_path):
        files = write_report(made(labels=LABELS[:2], about="What it is about"), tmp_path / "out")
        names = {str(file.relative_to(tmp_path / "out")) for file in files}
        kinds = [
            "progress",
            "fronts",
            "searched-a",
            "attainment-a",
            "generalization",
            "transfer",
            "final",
        ]
        assert names == TABLES | {
            f"figures/{kind}.{ending}" for kind in kinds for ending in ("png", "pdf")
        }
        assert all(
            file.stat().st_size > (5000 if file.suffix in (".png", ".pdf") else 100)
            for file in files
        )
        text = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
        assert text.startswith("# test\n\nWhat it is about\n\n## Hypervolume")
        assert text.count("| MO-PBT |") == 3

    def test_the_experiment_chooses_figures(self, tmp_path):
        files = write_report(made(figures=("final",)), tmp_path)
        assert {file.name for file in files if file.parent.name == "figures"} == {
            "final.png",
            "final.pdf",
        }

    def test_figures_of_an_earlier_report_go_and_others_stay(self, tmp_path):
        folder = tmp_path / "figures"
        folder.mkdir()
        for name in (
            "final.png",
            "fronts.png",
            "searched-gone.pdf",
            "fronts.txt",
            "mine.png",
            "final-version.png",
        ):
            (folder / name).write_text("earlier", encoding="utf-8")
        write_report(made(figures=("final",)), tmp_path)
        assert {file.name for file in folder.iterdir()} == {
            "final.png",
            "final.pdf",
            "fronts.txt",
            "mine.png",
            "final-version.png",
        }
        assert (folder / "final.png").stat().st_size > 5000

    def test_the_same_comparison_gives_the_same_files(self, tmp_path):
        first, second = (
            write_report(made(figures=("progress",)), tmp_path / name) for name in ("one", "two")
        )
        for a, b in zip(first, second, strict=True):
            assert a.read_bytes() == b.read_bytes(), a.name

    def test_missing_runs_are_told(self, tmp_path):
        comparison = replace(made(figures=("final",)), missing=(PlannedRun("a", "MO-ASHA", 7),))
        write_report(comparison, tmp_path)
        assert "1 of 10 runs are not finished." in (tmp_path / "tables.md").read_text(
            encoding="utf-8"
        )

    def test_a_comparison_without_runs_has_empty_tables(self, tmp_path):
        files = write_report(replace(made(), runs=(), problems={}), tmp_path)
        assert {file.name for file in files} == TABLES

    def test_the_shortest_runs_can_be_drawn(self):
        measured = measure(made(seeds=1, n=1))
        figures = [figure for name in FIGURES for figure in draw(name, measured).values()]
        for figure in figures:
            figure.canvas.draw()
        assert len(figures) == 6

    def test_an_experiment_may_ask_for_just_these_figures(self):
        assert tuple(FIGURES) == ALLOWED

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "label", ["$a_$ variant", "cost $5 and $\\frac", "100 % \\alpha_{", "x^2 & ~"]
    )
    def test_labels_are_drawn_as_they_are(self, label, tmp_path):
        comparison = made(labels=("MO-PBT", label), figures=("progress", "final"))
        files = write_report(comparison, tmp_path)
        assert len([file for file in files if file.suffix == ".png"]) == 2
        with styled():
            figure = only(draw("progress", measure(comparison)))
            figure.canvas.draw()
        (drawn,) = (text for text in figure.legends[0].get_texts() if text.get_text() != "MO-PBT")
        assert (drawn.get_text(), drawn.get_parse_math()) == (label, False)

    @pytest.mark.parametrize(("n", "seeds"), [(3, 1), (40, 3), (3000, 2)])
    def test_numbers_on_axes_are_plain(self, n, seeds):
        """Labels are plain text, even if they look like mathematics."""
        measured = measure(made(seeds=seeds, n=n))
        for figure in (figure for name in FIGURES for figure in draw(name, measured).values()):
            with styled():
                figure.canvas.draw()
            texts = [text.get_text() for text in figure.findobj(Text)]
            assert not [text for text in texts if "$" in text or "mathdefault" in text]

    def test_long_names_are_wrapped_and_many_labels_take_room_below(self):
        tasks = ("examples/of_a_long_directory/train_classifier.py:task_with_augmentation", "b")
        figures = {
            n: only(
                draw(
                    "progress",
                    measure(made(tasks, labels=[f"an algorithm, {i}" for i in range(n)], seeds=1)),
                )
            )
            for n in (2, 16)
        }
        assert "\n" in figures[2].axes[0].get_title(loc="left")
        assert figures[16].get_figheight() > figures[2].get_figheight() + 0.3

    def test_runs_that_all_attain_the_same_can_be_drawn(self):
        runs = [run_of("a", label, seed, [[1, 1]]) for label in LABELS for seed in (0, 1)]
        figure = only(draw("attainment", measure(comparison_of(runs))))
        assert [text.get_text() for text in figure.axes[1].texts] == ["no difference"]

    def test_evaluations_that_do_not_count_are_reported(self, tmp_path):
        points = [[1, 2], [np.nan, 1], [2, 1]]
        runs = [run_of("a", "MO-PBT", 0, points), run_of("b", "MO-PBT", 0, [[np.nan, 1]] * 3)]
        write_report(comparison_of(runs, figures=("final",)), tmp_path)
        text = (tmp_path / "tables.md").read_text(encoding="utf-8")
        assert "4 of 6 intervals ended with an objective that is not finite." in text
        assert (
            "b: no evaluation counts; all of them failed, were not finite or violated a constraint."
            in text
        )

    def test_models_of_a_front_without_test_scores_are_reported(self, tmp_path):
        tests = [[1, 2], [np.nan, np.nan], [np.nan, np.nan]]
        runs = [
            run_of("a", "MO-PBT", 0, [[1, 2], [2, 1], [0, 0]], test=tests),
            run_of("a", "MO-ASHA", 0, [[1, 2]]),
        ]
        write_report(comparison_of(runs, figures=("final",)), tmp_path)
        text = (tmp_path / "tables.md").read_text(encoding="utf-8")
        assert (
            "1 models of the fronts have no test scores, so they do not count on test data." in text
        )

    def test_a_file_that_cannot_be_written_is_named_with_a_remedy(self, tmp_path):
        (tmp_path / "tables.csv").mkdir()
        with pytest.raises(
            StoreError,
            match=r"cannot write .*tables.csv: .*; nothing reported is lost: make it writable",
        ):
            write_report(made(), tmp_path)

    def test_an_unknown_figure_is_told(self):
        with pytest.raises(
            ValueError, match=r"`figures` must be one of 'progress', 'fronts', .*, got 'pie'"
        ):
            draw("pie", ())

    def test_letters_have_eight_points_and_the_sheet_fits_a_page(self):
        from matplotlib.text import Text

        measured = measure(made(("a", "longer")))
        for name in FIGURES:
            for figure in draw(name, measured).values():
                assert figure.get_size_inches()[0] <= 7
                figure.canvas.draw()
                sizes = {
                    text.get_fontsize()
                    for text in figure.findobj(Text)
                    if text.get_text() and text.get_visible()
                }
                assert min(sizes) >= 8, name

    def test_legends_fit_into_the_figure(self):
        """Long labels get fewer columns."""
        labels = ("MO-PBT", *(f"an algorithm with the long name number {i}" for i in range(5)))
        figure = only(draw("progress", measure(made(("a", "longer"), labels=labels))))
        figure.canvas.draw()
        box = figure.legends[0].get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width

    def test_without_matplotlib_the_tables_are_written_and_the_extra_is_named(
        self, tmp_path, monkeypatch
    ):
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] + [
            "matplotlib"
        ]:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            MissingExtra,
            match=r"need matplotlib: pip install 'mopbt\[plot\]'; the tables are already written",
        ):
            write_report(made(), tmp_path)
        assert (tmp_path / "tables.md").exists()

    def test_matplotlib_is_imported_with_the_first_figure_and_keeps_its_settings(self):
        script = (
            "import sys; from mopbt.compare.report import draw; "
            "assert 'matplotlib' not in sys.modules; "
            "draw('progress', ()); import matplotlib; "
            "assert 'matplotlib.pyplot' not in sys.modules; "
            "assert matplotlib.rcParams['font.size'] == matplotlib.rcParamsDefault['font.size']"
        )
        assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_real_runs_make_a_whole_report(tmp_path):
    """MO-PBT leads on a problem made for it, and the table has the numbers of the runs."""
    algorithms = {
        "MO-PBT": MOPBT(population=8),
        "random search": RandomSearch(population=8),
        "MO-ASHA": MOASHA(),
    }
    entries = {"MO-PBT": {"name": "mo-pbt"}, "random search": {"name": "random-search"}}
    entries |= {"MO-ASHA": {"name": "mo-asha", "time_of": "MO-PBT"}}
    runs = []
    for label, seed in itertools.product(algorithms, range(2)):
        budget = Budget(seconds=20.0) if label == "MO-ASHA" else Budget()
        options = {
            "algorithm": algorithms[label],
            "seed": seed,
            "engine": SimulatedEngine(4),
            "budget": budget,
        }
        results = run(TradeOff(steps=20), out=None, progress=False, **options)
        points = sorted(results.points(), key=lambda point: (point.seconds, point.job))
        names = [objective.name for objective in results.problem.objectives]
        objectives = np.array([[point.scores[name] for name in names] for point in points])
        shape = {
            "seconds": [point.seconds for point in points],
            "variables": len(results.problem.space),
        }
        runs.append(run_of("trade-off", label, seed, objectives, **shape))
    figures = ("progress", "attainment")
    comparison = comparison_of(
        runs, entries, problems={"trade-off": results.problem}, figures=figures
    )
    files = write_report(comparison, tmp_path)
    (task,) = measure(comparison)
    final = {
        label: np.mean([r.hypervolumes[-1] for r in of_label])
        for label, of_label in task.runs.items()
    }
    assert max(final, key=final.get) == "MO-PBT"
    assert f"**{100 * final['MO-PBT']:.2f} ±" in (tmp_path / "tables.md").read_text(
        encoding="utf-8"
    )
    assert {"progress.png", "attainment-trade-off.png"} <= {file.name for file in files}


@pytest.mark.parametrize(
    "values", [[[np.nan, np.nan, np.nan]], [[np.nan, 0.5, np.nan]], [[0.1, 0.5, 0.7]]]
)
def test_a_band_without_numbers_can_be_drawn(values, tmp_path):
    figure, (ax,) = create_panels(1, height=2.0)
    draw_band(ax, np.arange(3.0), np.array(values), "MO-PBT", styles_of(["MO-PBT"]))
    figure.savefig(tmp_path / "band.png")
    assert (tmp_path / "band.png").stat().st_size > 0
