"""Tables of a comparison and the tests in them."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from compare.builders import comparison_of, problem_of, run_of, seeds, table_of
from mopbt.compare import PlannedRun
from mopbt.compare.measures import (
    baseline_of,
    measure,
    value_of_choosing,
)
from mopbt.compare.significance import (
    sign_flip_test,
)
from mopbt.compare.table_formats import (
    caption,
    runs_to_csv,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)
from mopbt.compare.tables import LEVEL, build_tables


class TestTables:
    VALUES = {
        "easy": {"MO-PBT": seeds(0.5, 0.7), "rival": seeds(0.4, 0.5), "slow": seeds(0.6, 0.6)},
        "hard": {"MO-PBT": seeds(0.2, 0.3), "rival": seeds(0.3, 0.5)},
    }

    def test_cells_have_mean_and_the_papers_deviation(self):
        cell = table_of(self.VALUES).cells["easy", "MO-PBT"]
        assert (cell.mean, cell.deviation) == (pytest.approx(0.6), pytest.approx(0.1))

    def test_equal_means_are_both_best_and_share_a_rank(self):
        table = table_of(self.VALUES)
        cells = [table.cells["easy", label] for label in table.algorithms]
        assert [cell.is_best for cell in cells] == [True, False, True]
        assert [cell.rank for cell in cells] == [1.5, 3, 1.5]

    def test_an_algorithm_that_is_not_on_all_tasks_has_no_average_rank(self):
        overall = table_of(self.VALUES, only={"slow": ["easy"]}).overall
        assert [overall[label].rank for label in ("MO-PBT", "rival")] == [1.75, 2]
        assert math.isnan(overall["slow"].rank)

    def test_tasks_that_are_not_finished_are_not_ranked(self):
        """Otherwise the algorithm that is run first would be ranked first."""
        table = table_of(
            {
                "done": {"MO-PBT": seeds(1, 1), "rival": seeds(2, 2)},
                "alone": {"MO-PBT": seeds(1, 1)},
            }
        )
        assert table.ranked == ("done",)
        assert {label: overall.rank for label, overall in table.overall.items()} == {
            "MO-PBT": 2,
            "rival": 1,
        }
        assert "over the tasks whose runs are complete (done)" in caption(table)
        half = {"MO-PBT": seeds(1, 1), "rival": seeds(2)}
        fewer = table_of({"done": half, "too": half})
        assert fewer.ranked == ()
        assert "(none yet)" in caption(fewer)
        assert "average rank" not in caption(table_of({"done": half}))

    def test_a_task_of_which_runs_are_missing_is_not_ranked_even_if_all_miss_as_many(self):
        runs = [
            run_of(task, label, 0, [[1, 2]]) for task in ("a", "b") for label in ("MO-PBT", "rival")
        ]
        comparison = replace(
            comparison_of(runs), missing=(PlannedRun("a", "MO-PBT", 1), PlannedRun("a", "rival", 1))
        )
        assert build_tables(measure(comparison))[0].ranked == ("b",)

    def test_few_runs_are_enough_where_a_task_has_few_rivals(self):
        six = seeds(*range(1, 7))
        values = {
            "a": {"MO-PBT": seeds(*[0] * 6), "x": six},
            "b": {"MO-PBT": seeds(*[0] * 6), "y": six, "z": six},
        }
        table = table_of(values, only={"x": ["a"], "y": ["b"], "z": ["b"]})
        assert table.cells["a", "x"].sign == "+"
        assert "no difference on a single task can be significant" not in caption(table)

    @pytest.mark.parametrize(
        ("mean", "head", "cell"),
        [(1.3e-7, "a (in 1e-7)", "1.30"), (1.3e11, "a (in 1e11)", "1.30"), (0.13, "a", "13.00")],
    )
    def test_very_small_and_large_numbers_have_a_power_of_ten(self, mean, head, cell):
        table = table_of({"a": {"MO-PBT": seeds(mean, mean)}})
        lines = to_markdown(table).splitlines()
        assert lines[0] == f"|  | {head} |"
        assert f"**{cell} ± 0.00**" in lines[2]
        assert ("10^{" in to_latex(table)) == (head != "a")
        assert ("instead of times 100" in caption(table)) == (head != "a")

    def test_tasks_with_the_same_initial_models_count_once(self):
        """Two tasks that train the same networks are no more evidence than one."""
        one = {"MO-PBT": seeds(0, 0, 0, 0), "rival": seeds(1, 2, -1, 3)}
        alone = table_of({"a": one})
        twice = table_of({"a": one, "b": one}, first={"a": 0.75, "b": 0.75})
        apart = table_of({"a": one, "b": one}, first={"a": 0.75, "b": 0.5})
        assert twice.related == {"a": "a", "b": "a"}
        assert twice.overall["rival"] == alone.overall["rival"]
        assert apart.related == {"a": "a", "b": "b"}
        assert apart.overall["rival"].p == pytest.approx(sign_flip_test([1, 2, -1, 3, 1, 2, -1, 3]))
        assert "The runs of a and b start from the same models" in caption(twice)
        assert "same models" not in caption(apart)
        failed = table_of({"a": one, "b": one}, first={"a": np.nan, "b": np.nan})
        assert failed.related == {"a": "a", "b": "b"}  # NaN is not informative

    def test_a_failed_first_interval_does_not_separate_related_tasks(self):
        """Counted as two tasks, p would be 0.0005 where no less than 0.03 is possible."""
        firsts = {0: np.nan, 1: 0.75}
        runs = [
            run_of(task, "MO-PBT", seed, [[1, 2]], scores={"accuracy": np.array([firsts[seed]])})
            for task in "ab"
            for seed in firsts
        ]
        assert build_tables(measure(comparison_of(runs)))[0].related == {"a": "a", "b": "a"}

    @pytest.mark.parametrize(
        ("ours", "theirs", "alike"),
        [
            # A score that is equal for all seeds, such as a size, or NaN is not informative.
            ({"accuracy": [0.5, 0.7]}, {"accuracy": [0.5, 0.7]}, True),
            ({"accuracy": [0.5, 0.7]}, {"accuracy": [0.5, 0.6]}, False),
            (
                {"accuracy": [0.5, 0.7], "size": [3, 3]},
                {"accuracy": [0.1, 0.2], "size": [3, 3]},
                False,
            ),
            (
                {"size": [3, 3], "a": [1, 2]},
                {"size": [3, 3], "b": [1, 2]},
                False,
            ),
            (
                {"accuracy": [0.5, 0.7], "test": [0.4, 0.6]},
                {"accuracy": [0.5, 0.7], "test": [np.nan, np.nan]},
                True,
            ),
        ],
    )
    def test_which_scores_show_that_tasks_are_related(self, ours, theirs, alike):
        runs = [
            run_of(
                task,
                label,
                seed,
                [[1, 2]],
                scores={name: np.array([values[seed]]) for name, values in scores.items()},
            )
            for task, scores in (("a", ours), ("b", theirs))
            for label in ("MO-PBT", "rival")
            for seed in (0, 1)
        ]
        assert build_tables(measure(comparison_of(runs)))[0].related == {
            "a": "a",
            "b": "a" if alike else "b",
        }

    def test_unequal_times_are_reported(self):
        ends = {"MO-PBT": 50.0, "rival": 33.5, "slower": 50.0}
        runs = [
            run_of(task, label, seed, [[1, 2]], seconds=[ends[label]])
            for task in "ab"
            for label in ends
            for seed in range(5)
            if task == "a" or label != "rival"
        ]
        (table,) = (
            table
            for table in build_tables(measure(comparison_of(runs)))
            if table.name == "hypervolume"
        )
        assert "On a, the algorithms had different virtual times" in caption(table)
        head, _, *rows = to_markdown(table).splitlines()[:5]
        assert head.startswith("|  | a (unequal times) | b |")
        cells = {cell[1].strip(): cell[2:4] for cell in (row.split("|") for row in rows)}
        assert [cells[label][0].partition(" in ")[2] for label in ends] == [
            "50 s ",
            "33.5 s ",
            "50 s ",
        ]
        assert "**" not in "".join(a for a, _ in cells.values())
        assert cells["MO-PBT"][1].strip().startswith("*")
        assert "in " not in cells["MO-PBT"][1]
        assert "a (unequal times) & b" in to_latex(table)
        assert to_latex(table).count(r"\mathit") == 2  # both on b
        assert "$ in 33.5 s" in to_latex(table)

    def test_no_average_rank_is_bold_if_times_differ_on_a_ranked_task(self):
        def markdown(rival_end):
            ends = {"MO-PBT": 50.0, "rival": rival_end}
            runs = [
                run_of(task, label, seed, [[1 + (label == "rival"), 2]], seconds=[ends[label]])
                for task in "abcd"
                for label in ends
                for seed in range(20)
            ]
            return to_markdown(build_tables(measure(comparison_of(runs)))[0])

        assert "**1.00**" in markdown(50.0)
        assert "**" not in markdown(100.0).partition("\n\n")[0]

    def test_tasks_have_their_own_names(self):
        """The experiment names a task by its place, such as folder/file.py:task."""
        places = {"x/one.py:task": "first", "x/two.py:task": "second", "y/two.py:task": "second"}
        runs = [run_of(place, "MO-PBT", 0, [[1, 2]]) for place in places]
        problems = {place: problem_of(name) for place, name in places.items()}
        table = build_tables(measure(comparison_of(runs, problems=problems)))[0]
        for text in (to_markdown(table), to_latex(table).replace("\\_", "_"), to_text(table, 80)):
            assert "first" in text
            assert "x/one.py:task" not in text
            assert "x/two.py:task" in text
            assert "y/two.py:task" in text

    def test_the_caption_says_that_some_algorithms_have_no_average_rank(self):
        values = {"a": {"MO-PBT": seeds(2), "rival": seeds(1)}, "b": {"rival": seeds(1)}}
        table = table_of(values, only={"MO-PBT": ["a"]})
        assert "An algorithm that was not run on all tasks has no average rank." in caption(table)
        assert "not run on all" not in caption(table_of({"a": values["a"], "b": values["a"]}))

    def test_a_task_without_rivals_does_not_hide_that_runs_are_too_few(self):
        five = seeds(1, 2, 3, 4, 5)
        table = table_of(
            {"a": dict.fromkeys(("MO-PBT", "x", "y", "z"), five), "b": {"MO-PBT": five}}
        )
        assert (
            "With 5 runs per algorithm, no difference on a single task can be significant."
            in caption(table)
        )

    def test_others_are_tested_against_mo_pbt_by_pairs(self):
        cells = table_of(self.VALUES).cells
        assert cells["easy", "rival"].difference == pytest.approx(-0.15)
        assert cells["easy", "rival"].p == sign_flip_test([-0.1, -0.2])
        assert cells["hard", "rival"].difference == pytest.approx(0.15)
        assert math.isnan(cells["easy", "MO-PBT"].p)
        assert math.isnan(cells["easy", "MO-PBT"].corrected)

    def test_p_is_corrected_over_the_algorithms_of_a_task(self):
        base = seeds(*np.linspace(0, 0.01, 8))
        values = {
            "a": {"MO-PBT": base}
            | {f"worse {i}": seeds(*(v - 0.1 - i / 100 for v in base.values())) for i in range(3)}
        }
        table = table_of(values)
        for i in range(3):
            cell = table.cells["a", f"worse {i}"]
            assert (cell.p, cell.corrected, cell.sign) == (2 / 256, 6 / 256, "−")

    def test_over_all_tasks_every_task_weighs_the_same(self):
        """The large numbers of one task do not outweigh the small ones of another."""
        values = {
            "large": {"MO-PBT": seeds(0, 0, 0), "rival": seeds(100, 100, -100)},
            "small": {"MO-PBT": seeds(0, 0, 0), "rival": seeds(-0.01, -0.01, -0.01)},
        }
        overall = table_of(values).overall["rival"]
        assert overall.p == pytest.approx(sign_flip_test([1, 1, -1, -1, -1, -1]))
        assert overall.difference == pytest.approx((1 / 3 - 1) / 2)

    def test_few_seeds_on_many_tasks_can_be_significant_together(self):
        values = {
            f"task {t}": {"MO-PBT": seeds(1, 1.1), "rival": seeds(0.9, 0.8)} for t in range(4)
        }
        table = table_of(values)
        assert all(cell.sign == "" for cell in table.cells.values())
        assert (table.overall["rival"].sign, table.overall["rival"].corrected) == ("−", 2 / 256)

    def test_the_baseline_is_mo_pbt_or_the_first(self):
        assert baseline_of(("a", "MO-PBT")) == "MO-PBT"
        assert baseline_of(("a", "b")) == "a"

    def test_algorithms_are_in_the_experiments_order(self):
        runs = [
            run_of(task, label, 0, [[1, 2]])
            for task, labels in {"a": "xz", "b": "xyz"}.items()
            for label in labels
        ]
        algorithms = {label: {"name": "mo-pbt"} for label in "xyz"}
        (table, _) = build_tables(measure(comparison_of(runs, algorithms)))
        assert table.algorithms == ("x", "y", "z")

    def test_there_is_a_table_for_each_measure_that_was_taken(self):
        two = run_of("a", "MO-PBT", 0, [[1, 2]])
        assert [t.name for t in build_tables(measure(comparison_of([two])))] == [
            "hypervolume",
            "coverage",
        ]
        three = run_of("a", "MO-PBT", 0, [[1, 2, 3]], test=[[1, 2, 3]])
        problems = {"a": problem_of("a", {"a": "max", "b": "max", "c": "max"})}
        assert [
            t.name for t in build_tables(measure(comparison_of([three], problems=problems)))
        ] == [
            "hypervolume",
            "test",
            "choosing",
            "claimed",
        ]
        assert build_tables(()) == ()


class TestChance:
    """Random differences are significant no more often than the level allows."""

    def test_one_algorithm_against_itself(self):
        rng = np.random.default_rng(1)
        p = np.array(
            [sign_flip_test(rng.gamma(2, size=7) - rng.gamma(2, size=7)) for _ in range(3000)]
        )
        assert (p <= LEVEL).mean() <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 3000)
        assert (p <= LEVEL).mean() >= 0.02  # and the test is not too conservative

    @pytest.mark.slow
    @pytest.mark.parametrize("tasks", [1, 2])
    def test_whole_tables_of_the_same_algorithm_under_other_seeds(self, tasks):
        rng, found, found_overall, repeats = np.random.default_rng(tasks), 0, 0, 400
        for _ in range(repeats):
            names = ("MO-PBT", "again", "and again", "once more")
            table = table_of(
                {
                    f"t{t}": {label: seeds(*rng.normal(size=8)) for label in names}
                    for t in range(tasks)
                }
            )
            found += any(table.cells["t0", label].sign for label in names)
            found_overall += any(table.overall[label].sign for label in names)
        most = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / repeats)
        assert found / repeats <= most
        assert found_overall / repeats <= most

    @pytest.mark.slow
    def test_tasks_that_train_the_same_networks(self):
        """Counted as independent, 17 of a hundred tables would be significant."""
        rng, repeats, found = np.random.default_rng(3), 1000, 0
        for _ in range(repeats):
            values = {label: seeds(*rng.normal(size=8)) for label in ("MO-PBT", "again")}
            found += bool(
                table_of({"a": values, "b": values}, first={"a": 0.5, "b": 0.5})
                .overall["again"]
                .sign
            )
        assert found / repeats <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / repeats)

    def test_a_true_difference_is_found(self):
        rng = np.random.default_rng(0)
        values = {
            "a": {"MO-PBT": seeds(*rng.normal(1, 0.1, 10)), "worse": seeds(*rng.normal(0, 0.1, 10))}
        }
        assert table_of(values).cells["a", "worse"].sign == "−"


class TestMarks:
    """A cell is bold only if it is probably better than the runner-up."""

    def marks(self, values):
        table = table_of({"a": values})
        bold = [label for label in values if table.cells["a", label].mark == "best"]
        level = [label for label in values if table.cells["a", label].mark == "level"]
        return bold, level

    def test_a_clear_lead_is_bold(self):
        values = {"MO-PBT": seeds(5, 6, 7, 8, 9), "rival": seeds(4, 5, 6, 7, 8)}
        assert self.marks(values) == (["MO-PBT"], [])

    def test_within_the_error_all_that_may_be_best_are_marked_alike(self):
        values = {
            "MO-PBT": seeds(5, 6, 7, 8, 9),
            "rival": seeds(4, 7, 6, 9, 8.5),
            "worse": seeds(1, 2, 3, 4, 5),
        }
        assert self.marks(values) == ([], ["MO-PBT", "rival"])
        table = table_of({"a": values})
        assert to_markdown(table).count("| *") == 2
        assert "**" not in to_markdown(table).partition("\n\n")[0]
        assert "Italic" in caption(table)
        assert to_text(table, 200).count("~") == 3  # the cells, and the caption

    def test_pairs_count_and_not_the_spread_over_seeds(self):
        """Seeds differ by more than algorithms do, and each pair says the same."""
        values = {"MO-PBT": seeds(1, 9, 5, 20, 3), "rival": seeds(0.9, 8.8, 4.9, 19.8, 2.9)}
        assert self.marks(values) == (["MO-PBT"], [])

    def test_with_few_runs_nothing_is_marked(self):
        values = {"MO-PBT": seeds(5, 6, 7, 8), "rival": seeds(1, 1, 1, 1)}
        assert self.marks(values) == ([], [])
        assert "With fewer than 5 runs" in caption(table_of({"a": values}))

    def test_the_csv_has_intervals_and_marks(self):
        values = {"MO-PBT": seeds(5, 6, 7, 8, 9), "rival": seeds(4, 5, 6, 7, 8)}
        rows = list(csv.DictReader(io.StringIO(to_csv([table_of({"a": values})]))))
        assert [row["mark"] for row in rows[:2]] == ["best", ""]
        assert [rows[1]["lower"], rows[1]["upper"]] == ["-1.0", "-1.0"]
        assert rows[0]["lower"] == ""


def test_the_front_that_a_user_chooses_from_is_measured_on_test_data():
    """Row 0 is lucky: by its bounds it is dominated, and on test data it is worse."""
    measured_run = replace(
        run_of("a", "MO-PBT", 0, [[0.9, 0.9], [0.8, 0.8]], test=[[0.4, 0.4], [0.7, 0.7]]),
        bounds=np.array([[0.5, 0.5], [0.7, 0.7]]),
    )
    problem = replace(problem_of("a"), reference=(0.0, 0.0))
    tasks = measure(comparison_of([measured_run], problems={"a": problem}))
    tables = {table.name: table for table in build_tables(tasks)}
    value = {name: table.cells["a", "MO-PBT"].mean for name, table in tables.items()}
    assert value["test"] == pytest.approx(0.4**2)
    assert value["honest-test"] == pytest.approx(0.7**2)
    expected = value_of_choosing([[0.7, 0.7]], [[0.7, 0.7]], [0, 0], [0.9, 0.9])
    assert value["choosing"] == pytest.approx(expected.actual)
    assert value["claimed"] == pytest.approx(expected.claimed)
    assert "gain from 0 to 0.9, speed from 0 to 0.9" in caption(tables["choosing"])
    row = next(csv.DictReader(io.StringIO(runs_to_csv(tasks))))
    assert float(row["honest_test_hypervolume"]) == pytest.approx(0.7**2)
    assert float(row["test_utility"]) == pytest.approx(expected.actual)
