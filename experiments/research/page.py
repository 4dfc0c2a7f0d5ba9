"""Update the tables of docs/research.md from the finished runs.

Run it with ``python experiments/research/page.py``. On that page, a table is enclosed by the
comments ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from better import SETTINGS, SYNTHETIC, differences, finished

PAGE = Path(__file__).parents[2] / "docs" / "research.md"
EMA = ", EMA"
HEAD = (
    "| variant | 1,000 rows: test hypervolume | value of choosing | all rows: test hypervolume | "
    "value of choosing | seeds |\n|---|---|---|---|---|---|"
)


def names(*, averaged: bool) -> list[str]:
    """Return the variants that average weights, or those that do not."""
    return [
        name for name, options in SETTINGS["variants"].items() if ("ema" in options) == averaged
    ]


def comparison_table(rival: str, variants: Iterable[str]) -> str:
    """Return the differences of variants from a rival on the real tasks."""
    done = finished()
    lines = [HEAD]
    for variant in variants:
        cells = []
        seeds: set[int] = set()
        for size in (1000, 0):
            for measure in ("test", "actual"):
                found = differences(done, variant, rival, measure)
                own = [v for (task, n), v in found.items() if task not in SYNTHETIC and n == size]
                cells.append(format_mean(own, "%" if measure == "test" else ""))
                seeds |= {len(values) for values in own}
        if variant != rival and seeds:
            shown = " to ".join(str(n) for n in sorted({min(seeds), max(seeds)}))
            lines.append(f"| {variant} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def format_mean(groups: list[np.ndarray], unit: str) -> str:
    """Return the mean over tasks and its standard error over seeds, and the number of tasks won."""
    if not groups:
        return "–"
    mean = np.mean([group.mean() for group in groups])
    spread = [group.var(ddof=1) / len(group) for group in groups if len(group) > 1]
    digits = 1 if unit else 3
    error = ""
    if len(spread) == len(groups):
        error = f" ± {np.sqrt(np.sum(spread)) / len(groups):.{digits}f}"
    won = sum(group.mean() > 0 for group in groups)
    space = " " if unit else ""
    return f"{mean:+.{digits}f}{error}{space}{unit} ({won} of {len(groups)})".replace("-", "−")


def synthetic_table() -> str:
    """Return the mean hypervolumes on the synthetic problems."""
    done = finished()
    problems = SETTINGS["stages"]["screening"]["synthetic"]
    noises = SETTINGS["stages"]["screening"]["noise"]
    lines = [f"| variant | {' | '.join(problems)} |", "|---" * (len(problems) + 1) + "|"]
    for variant in names(averaged=False):
        cells = []
        for problem in problems:
            means = []
            for noise in noises:
                own = [
                    max(record["observed/test"], record["honest/test"])
                    for run, record in done.items()
                    if (run.task, run.size, run.variant) == (problem, noise, variant)
                ]
                if own:
                    means.append(f"{100 * np.mean(own):.1f}")
            cells.append(", ".join(means) or "–")
        if any(cell != "–" for cell in cells):
            lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "single": lambda: comparison_table("MO-PBT", names(averaged=False)),
    "single against random search": lambda: comparison_table(
        "random search", ["MO-PBT", *names(averaged=False)[2:]]
    ),
    "averaged": lambda: comparison_table("MO-PBT, EMA", names(averaged=True)),
    "averaged against random search": lambda: comparison_table(
        "random search, EMA", names(averaged=True)
    ),
    "synthetic": synthetic_table,
}


def main() -> None:
    """Update the page."""
    page = PAGE.read_text()
    for name, build in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)"
        table = build()
        page, count = re.subn(pattern, lambda m, t=table: m[1] + t + m[2], page, flags=re.DOTALL)
        assert count <= 1, name
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
