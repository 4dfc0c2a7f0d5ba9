"""Writes the tables of docs/results.md anew from the comparisons in results/small. Run it with ``python results/page.py``.

A table stands between two comments on that page, ``<!-- row: TASK -->`` or ``<!-- table: COMPARISON -->`` and ``<!-- end -->``;
what is said about it stands outside. ``paper.csv`` has the numbers of the paper's Tables 5, 6 and 7, in per cent as there.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
MEASURES = {
    "hypervolume": "hypervolume",
    "test": "test hypervolume",
    "coverage": "coverage",
}  # ours -> the paper's
MAIN = ("tables-5-7-tabular", "tables-5-7-images", "tables-5-7-images-2")

Numbers = Mapping[
    tuple[str, str], tuple[float, float]
]  # (measure, algorithm) -> mean and deviation, in per cent


def paper(task: str) -> Numbers:
    """Return the paper's numbers of a task."""
    with open(HERE / "paper.csv", newline="") as file:
        return {
            (row["measure"], row["algorithm"]): (float(row["mean"]), float(row["deviation"]))
            for row in csv.DictReader(file)
            if row["task"] == task
        }


def ours(task: str) -> Numbers:
    """Return our numbers of a task."""
    found = {}
    for file in filter(Path.exists, (HERE / "small" / name / "tables.csv" for name in MAIN)):
        with open(file, newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["task"] == task]
        for row in rows:
            found[MEASURES[row["table"]], row["algorithm"]] = (
                100 * float(row["mean"]),
                100 * float(row["deviation"] or 0),
            )
    return found


def cell(numbers: Numbers, measure: str, algorithm: str) -> str:
    """Return a number as it is printed, in bold where no other is larger."""
    if (measure, algorithm) not in numbers:
        return "–"
    mean, deviation = numbers[measure, algorithm]
    smallest = min(of_other for (other, _), (_, of_other) in numbers.items() if other == measure)
    digits = (
        3 if 0 < smallest < 0.005 else 2
    )  # 2 as in the paper, but where a deviation would be 0.00
    text = f"{mean:.{digits}f} ± {deviation:.{digits}f}"
    return (
        f"**{text}**"
        if mean == max(value for (other, _), (value, _) in numbers.items() if other == measure)
        else text
    )


def lead(numbers: Numbers, algorithm: str) -> str:
    """Return how much more hypervolume an algorithm has than random search, in per cent of that."""
    pair = [numbers.get(("hypervolume", name)) for name in (algorithm, "random search")]
    return "–" if None in pair else f"{100 * (pair[0][0] / pair[1][0] - 1):+.1f} %"  # type: ignore[index]


def row_table(task: str) -> str:
    """Return the table of a task: algorithms down, the paper's and our numbers across."""
    theirs, mine = paper(task), ours(task)
    heads = [
        "",
        *(f"{measure}, {whose}" for measure in MEASURES.values() for whose in ("paper", "here")),
        "lead, paper",
        "lead, here",
    ]
    heads = [
        head
        for head in heads
        if not head.startswith("coverage") or any(m == "coverage" for m, _ in {**theirs, **mine})
    ]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for algorithm in dict.fromkeys(name for _, name in [*mine, *theirs]):
        cells = [algorithm]
        for measure in MEASURES.values():
            if f"{measure}, paper" in heads:
                cells += [cell(theirs, measure, algorithm), cell(mine, measure, algorithm)]
        lines.append([*cells, lead(theirs, algorithm), lead(mine, algorithm)])
    return _markdown(lines)


def whole_table(name: str) -> str:
    """Return the first table of a comparison, as it wrote it: hypervolume on validation rows."""
    text = (HERE / "small" / name / "tables.md").read_text()
    return "".join(
        line + "\n"
        for line in re.split(r"^## .*\n", text, flags=re.MULTILINE)[1].splitlines()
        if line.startswith("|")
    )


def _markdown(lines: Iterable[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def renewed(page: str) -> str:
    """Return the page with its tables made anew."""

    def table(match: re.Match[str]) -> str:
        kind, name = match["kind"], match["name"]
        return f"{match['begin']}\n{row_table(name) if kind == 'row' else whole_table(name)}<!-- end -->"

    return re.sub(
        r"(?P<begin><!-- (?P<kind>row|table): (?P<name>[\w-]+) -->)\n.*?<!-- end -->",
        table,
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
