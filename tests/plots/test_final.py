"""Figures of final hypervolumes."""

from dataclasses import replace

import numpy as np
import pytest

from compare.builders import LABELS, curve, labels_in, only, problem_of, random_comparison
from mopbt.compare.measures import measure
from mopbt.compare.report import draw, write_report


class TestSettings:
    def test_final_shows_every_run_in_per_cent_of_mo_pbt(self):
        measured = measure(random_comparison())
        ax = only(draw("final", measured)).axes[0]
        dots = [line for line in ax.get_lines() if len(line.get_xdata()) == 3]
        unit = np.mean([r.hypervolumes[-1] for r in measured[0].runs["MO-PBT"]])
        for y, (label, line) in enumerate(zip(LABELS, dots, strict=True)):
            expected = [100 * r.hypervolumes[-1] / unit for r in measured[0].runs[label]]
            np.testing.assert_allclose(line.get_xdata(), expected)
            assert set(line.get_ydata()) == {y}
        assert [text.get_text() for text in ax.get_yticklabels()] == list(LABELS)

    def test_final_leaves_out_tasks_without_the_algorithm_that_is_a_hundred_per_cent(self):
        comparison = random_comparison(("a", "b"))
        runs = tuple(run for run in comparison.runs if run.task == "a" or run.algorithm != "MO-PBT")
        axes = only(draw("final", measure(replace(comparison, runs=runs)))).axes
        assert [ax.get_title(loc="left") for ax in axes] == ["a"]

    def test_one_algorithm_has_nothing_to_be_compared_with(self):
        assert draw("final", measure(random_comparison(labels=("MO-PBT",)))) == {}

    def populations(self):
        algorithms = {
            "MO-PBT, population 4": {"name": "mo-pbt", "population": 4},
            "MO-PBT": {"name": "mo-pbt", "population": 8},
        }
        algorithms |= {"MO-ASHA, short": {"name": "mo-asha", "time_of": "MO-PBT, population 4"}}
        algorithms |= {"MO-ASHA": {"name": "mo-asha", "time_of": "MO-PBT"}}
        comparison = random_comparison(labels=tuple(algorithms), algorithms=algorithms)
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
        assert draw("populations", measure(random_comparison())) == {}

    def test_the_same_population_under_other_seeds_is_no_question_of_size(self):
        algorithms = {
            "MO-PBT": {"name": "mo-pbt"},
            "other seeds": {"name": "mo-pbt", "seed_offset": 100},
        }
        algorithms |= {
            "MO-ASHA": {"name": "mo-asha"},
            "MO-ASHA, other seeds": {"name": "mo-asha", "seed_offset": 100},
        }
        comparison = random_comparison(
            labels=tuple(algorithms), algorithms=algorithms, time_of="MO-PBT"
        )
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
        measured = measure(
            random_comparison(("a", "longer"), labels=("MO-PBT", "MO-ASHA"), problems=problems)
        )
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
    def test_searched_spaces_are_drawn_on_request(self, tmp_path):
        """Tasks with different spaces are usually different tasks."""
        problems = {
            task: problem_of(task, variables=size) for task, size in (("a", 5), ("longer", 31))
        }
        comparison = random_comparison(("a", "longer"), labels=("MO-PBT",), problems=problems)
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
        assert draw("spaces", measure(random_comparison(tuple(problems), problems=problems))) == {}
