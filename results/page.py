"""Update the tables of docs/results.md from the comparisons in results/small.

Run it with ``python results/page.py``. On that page, a table is enclosed by the comments
``<!-- row: TASK -->`` or ``<!-- table: COMPARISON -->`` and ``<!-- end -->``. ``paper.csv`` has the
numbers of the paper's Tables 5, 6 and 7, in percent as in the paper.
"""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
# Names of the measures in tables.csv and on the page.
MEASURES = {"hypervolume": "hypervolume", "test": "test hypervolume", "coverage": "coverage"}
MAIN = ("tables-5-7-tabular", "tables-5-7-images", "tables-5-7-images-2")

# Mean and standard deviation in percent, by measure and algorithm.
Numbers = Mapping[tuple[str, str], tuple[float, float]]


def paper_numbers(task: str) -> Numbers:
    """Return the paper's numbers of a task."""
    with open(HERE / "paper.csv", newline="") as file:
        return {
            (row["measure"], row["algorithm"]): (float(row["mean"]), float(row["deviation"]))
            for row in csv.DictReader(file)
            if row["task"] == task
        }


def our_numbers(task: str) -> Numbers:
    """Return our numbers of a task."""
    found = {}
    for file in filter(Path.exists, (HERE / "small" / name / "tables.csv" for name in MAIN)):
        with open(file, newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["task"] == task]
        for row in rows:
            mean = 100 * float(row["mean"])
            deviation = 100 * float(row["deviation"] or 0)
            found[MEASURES[row["table"]], row["algorithm"]] = (mean, deviation)
    return found


def format_cell(numbers: Numbers, measure: str, algorithm: str) -> str:
    """Format a mean and its deviation, in bold if the mean is the largest of its measure."""
    if (measure, algorithm) not in numbers:
        return "–"
    mean, deviation = numbers[measure, algorithm]
    of_measure = [pair for (other, _), pair in numbers.items() if other == measure]
    smallest = min(other for _, other in of_measure)
    # Two digits as in the paper, except where a deviation would be 0.00.
    digits = 3 if 0 < smallest < 0.005 else 2
    text = f"{mean:.{digits}f} ± {deviation:.{digits}f}"
    return f"**{text}**" if mean == max(other for other, _ in of_measure) else text


def format_lead(numbers: Numbers, algorithm: str) -> str:
    """Format an algorithm's lead over random search in hypervolume, in percent."""
    own = numbers.get(("hypervolume", algorithm))
    random_search = numbers.get(("hypervolume", "random search"))
    if own is None or random_search is None:
        return "–"
    return f"{100 * (own[0] / random_search[0] - 1):+.1f} %"


def row_table(task: str) -> str:
    """Return the table of a task: a row per algorithm, with the paper's and our numbers."""
    theirs = paper_numbers(task)
    ours = our_numbers(task)
    measures = [
        measure
        for measure in MEASURES.values()
        if measure != "coverage" or any(other == "coverage" for other, _ in {**theirs, **ours})
    ]
    heads = [""]
    for measure in measures:
        heads += [f"{measure}, paper", f"{measure}, here"]
    heads += ["lead, paper", "lead, here"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for algorithm in dict.fromkeys(name for _, name in [*ours, *theirs]):
        cells = [algorithm]
        for measure in measures:
            cells += [
                format_cell(theirs, measure, algorithm),
                format_cell(ours, measure, algorithm),
            ]
        lines.append([*cells, format_lead(theirs, algorithm), format_lead(ours, algorithm)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def comparison_table(name: str) -> str:
    """Return the first table of a comparison: hypervolume on validation rows."""
    text = (HERE / "small" / name / "tables.md").read_text()
    first = re.split(r"^## .*\n", text, flags=re.MULTILINE)[1]
    return "".join(line + "\n" for line in first.splitlines() if line.startswith("|"))


def update_tables(page: str) -> str:
    """Return the page with up-to-date tables."""

    def replace(match: re.Match[str]) -> str:
        make = row_table if match["kind"] == "row" else comparison_table
        return f"{match['begin']}\n{make(match['name'])}<!-- end -->"

    return re.sub(
        r"(?P<begin><!-- (?P<kind>row|table): (?P<name>[\w-]+) -->)\n.*?<!-- end -->",
        replace,
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(update_tables(PAGE.read_text()))
