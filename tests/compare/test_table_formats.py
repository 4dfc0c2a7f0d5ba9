"""Tables as Markdown, LaTeX and CSV."""

import csv
import gzip
import io
import math
import re

import numpy as np
import pytest

from compare.builders import comparison_of, problem_of, run_of, seeds, table_of
from mopbt.compare.collect import evaluations_to_csv
from mopbt.compare.measures import (
    keep_fronts,
    measure,
)
from mopbt.compare.table_formats import (
    caption,
    runs_to_csv,
    tasks_to_csv,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)


class TestRenderings:
    HARD = "50 % a_b & {c} $ ^~\\ #1"

    def values(self):
        rng = np.random.default_rng(3)
        labels = ("MO-PBT", "rival", self.HARD)
        values = {
            f"task_{t}": {
                label: seeds(*rng.normal(1 - i, 0.1, 8)) for i, label in enumerate(labels)
            }
            for t in range(2)
        }
        del values["task_1"]["rival"]
        return values

    def test_markdown_says_the_numbers_bold_and_signs(self):
        table = table_of(self.values())
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        assert cells[0] == ["", "task_0", "task_1", "average rank", "p"]
        for row, label in zip(cells[2:], table.algorithms, strict=True):
            assert row[0] == label
            for text, task in zip(row[1:], table.tasks, strict=False):
                self.check(text, table, task, label, r"\*\*", "±", r"\((.)\)")
            assert float(row[3].strip("*")) == pytest.approx(table.overall[label].rank, abs=0.005)

    @pytest.mark.parametrize("width", [60, 80, 240])
    def test_text_says_the_same_and_fits_the_terminal(self, width):
        values = self.values()
        values["a task with a name that is much longer than any number"] = values["task_0"]
        table = table_of(values)
        lines = to_text(table, width).splitlines()
        assert max(map(len, lines)) <= width
        found = {label: "" for label in table.algorithms}
        for line in lines:
            for label in table.algorithms:
                if line.startswith(label):
                    found[label] += line.removeprefix(label)
        for label, text in found.items():
            for task in table.tasks:
                if (task, label) not in table.cells:
                    assert "–" in text
                    continue
                cell = table.cells[task, label]
                numbers = f"{100 * cell.mean:.2f} ± {100 * cell.deviation:.2f}"
                star = "*" if cell.is_best else ""
                sign = rf" +\({re.escape(cell.sign)}\)" if cell.sign else r"(  |$)"
                assert re.search(re.escape(numbers + star) + sign, text)
            if not math.isnan(table.overall[label].rank):
                assert f"{table.overall[label].rank:.2f}" in text
        # In a narrow terminal the table is continued below.
        table_lines = lines[lines.index("") :]  # below the caption
        assert (
            sum(line.startswith("MO-PBT") for line in table_lines) == {60: 4, 80: 2, 240: 1}[width]
        )

    def test_latex_says_the_same_and_escapes_names(self):
        table = table_of(self.values())
        text = to_latex(table)
        lines = [line for line in text.splitlines() if line.endswith(r" \\")]
        cells = [re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in lines]
        assert [c.replace(r"\_", "_") for c in cells[0]] == [
            "",
            "task_0",
            "task_1",
            "average rank",
            "$p$",
        ]
        for row, label in zip(cells[1:], table.algorithms, strict=True):
            assert unescaped(row[0]) == label
            assert not re.search(r"(?<!\\)[&%$#_^~]", row[0])
            for cell, task in zip(row[1:], table.tasks, strict=False):
                self.check(cell, table, task, label, r"\\mathbf", r"\\pm", r"\^\{\((.)\)\}")
        assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [
            1,
            1,
            1,
        ]
        assert text.count("{") == text.count("}")
        assert text.isascii()

    def check(self, text, table, task, label, bold, plus_minus, sign):
        if (task, label) not in table.cells:
            assert text in ("–", "--")
            return
        cell = table.cells[task, label]
        mean, deviation = map(float, re.search(rf"(-?[\d.]+) {plus_minus} ([\d.]+)", text).groups())
        assert (mean, deviation) == (
            pytest.approx(100 * cell.mean, abs=0.005),
            pytest.approx(100 * cell.deviation, abs=0.005),
        )
        assert bool(re.search(bold, text)) == cell.is_best
        found = re.search(sign, text)
        assert (found[1].replace("-", "−") if found else "") == cell.sign

    def test_csv_gives_back_every_digit(self):
        table = table_of(self.values())
        rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
        assert {(row["task"], row["algorithm"]) for row in rows if row["task"]} == set(table.cells)
        for row in rows:
            if row["task"]:
                cell = table.cells[row["task"], row["algorithm"]]
                expected = (
                    cell.mean,
                    cell.deviation,
                    cell.rank,
                    cell.difference,
                    cell.p,
                    cell.corrected,
                )
                assert int(row["best"]) == table.cells[row["task"], row["algorithm"]].is_best
                assert int(row["runs"]) == 8
            else:
                overall = table.overall[row["algorithm"]]
                expected = (
                    math.nan,
                    math.nan,
                    overall.rank,
                    overall.difference,
                    overall.p,
                    overall.corrected,
                )
            names = ("mean", "deviation", "rank", "difference", "p", "p_holm")
            np.testing.assert_array_equal([float(row[name] or "nan") for name in names], expected)

    def test_a_line_that_divides_columns_is_escaped(self):
        assert "a\\|b" in to_markdown(table_of({"t": {"MO-PBT": seeds(1.0), "a|b": seeds(2.0)}}))

    def test_cells_of_fewer_runs_say_so(self):
        table = table_of({"t": {"MO-PBT": seeds(1.0, 1.1, 1.2), "rival": seeds(1.0)}})
        text = to_markdown(table)
        assert "(1 run)" in text
        assert "3 runs (or the number given in the cell)" in text
        assert "(1 run)" in to_latex(table)

    @pytest.mark.parametrize(("runs", "said"), [(5, True), (6, False)])
    def test_too_few_runs_for_significance_are_reported(self, runs, said):
        """Of six pairs the smallest p is 2/64 = 0.03; of five it is 0.06."""
        table = table_of({"t": {"MO-PBT": seeds(*range(runs)), "rival": seeds(*range(runs))}})
        assert ("no difference on a single task can be significant" in caption(table)) == said

    def test_one_algorithm_alone_is_not_tested(self):
        text = to_markdown(table_of({"t": {"MO-PBT": seeds(0.5, 0.6)}}))
        assert text.splitlines()[0] == "|  | t |"
        assert "p:" not in text

    def test_one_task_has_no_average_rank(self):
        assert to_markdown(table_of({"t": {"MO-PBT": seeds(0.5), "b": seeds(0.6)}})).startswith(
            "|  | t | p |"
        )

    def test_small_deviations_get_the_decimals_to_be_seen(self):
        text = to_markdown(table_of({"t": {"MO-PBT": seeds(0.00050, 0.00054)}}))
        assert "**0.052 ± 0.002**" in text

    def test_the_measures_of_all_runs_are_there_for_other_tests(self):
        run = run_of("a", "MO-PBT", 4, [[1, 2], [2, 1]], test=[[1, 1], [2, 2]])
        measured = measure(comparison_of([run]))
        (row,) = csv.DictReader(io.StringIO(runs_to_csv(measured)))
        of_run = measured[0].runs["MO-PBT"][0]
        assert (row["task"], row["algorithm"], row["seed"], row["evaluations"], row["seconds"]) == (
            "a",
            "MO-PBT",
            "4",
            "2",
            "2.0",
        )
        assert float(row["hypervolume"]) == of_run.hypervolumes[-1]
        assert float(row["test_hypervolume"]) == of_run.test_hypervolumes[-1]
        assert float(row["coverage"]) == of_run.coverage

    def test_references_are_in_their_original_direction(self):
        runs = [run_of("a", "MO-PBT", 0, [[1, -2], [2, -4], [0, -9]])]
        measured = measure(
            comparison_of(runs, problems={"a": problem_of("a", {"gain": "max", "size": "min"})})
        )
        rows = list(csv.DictReader(io.StringIO(tasks_to_csv(measured))))
        assert [row["direction"] for row in rows] == ["max", "min"]
        assert [float(row["reference"]) for row in rows] == pytest.approx([0.9, 4.2])
        assert {float(row["best_hypervolume"]) for row in rows} == {measured[0].best}

    def test_fronts_are_the_models_that_no_other_dominates(self):
        first = run_of("a", "MO-PBT", 0, [[1, 2], [0, 0], [2, 1]], test=[[1, 1], [3, 3], [2, 2]])
        second = run_of("a", "MO-ASHA", 0, [[math.nan, math.nan], [1, 1]])
        comparison = comparison_of([first, second])
        one, other = keep_fronts(comparison, measure(comparison)).runs
        assert one.objectives.tolist() == [[1, 2], [2, 1]]
        assert one.test.tolist() == [[1, 1], [2, 2]]
        assert one.jobs.tolist() == first.jobs[[0, 2]].tolist()
        assert other.objectives.tolist() == [[1, 1]]
        assert not other.errors

    def test_a_run_without_a_front_has_no_models(self):
        runs = [
            run_of("a", "MO-PBT", 0, [[1, 2]]),
            run_of("a", "MO-ASHA", 0, [[math.nan, math.nan]]),
        ]
        comparison = comparison_of(runs)
        lines = (
            gzip.decompress(evaluations_to_csv(keep_fronts(comparison, measure(comparison))))
            .decode()
            .splitlines()
        )
        assert len(lines) == 2


def unescaped(text):
    for command, sign in (
        (r"\textbackslash{}", "\0"),
        (r"\textasciitilde{}", "~"),
        (r"\textasciicircum{}", "^"),
    ):
        text = text.replace(command, sign)
    return re.sub(r"\\([&%$#_{}])", r"\1", text).replace("\0", "\\")
