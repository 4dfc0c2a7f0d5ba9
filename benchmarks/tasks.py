"""Run MO-PBT on the paper's nine tasks at scale `small`, for docs/reference/tasks.md.

Run it with ``python benchmarks/tasks.py [TASK ...]``. It needs the extras `torch` and `plot`, and
the data sets; `mopbt tasks` lists which are present. Runs are kept in ``--out``; rerun the same
command to resume. The machine should be idle otherwise, because the table reports times.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

from mopbt import Results, run
from mopbt.engines.devices import available_cores
from mopbt.metrics import hypervolume
from mopbt.tasks.paper import TASKS

DOCS = Path(__file__).parent.parent / "docs" / "reference"
BEGIN = "<!-- table: written by benchmarks/tasks.py -->\n"
END = "<!-- end of table -->\n"
NINE = [name for name in TASKS if not name.endswith("-31")]
HEAD = [
    "task",
    "hypervolume",
    "of the test rows",
    "models on the front",
    "trivial at the end",
    "time",
    "of an interval",
    "not training",
]
BLUE = "#0072b2"
ORANGE = "#d55e00"
FAINT = "#c8c8c8"


def is_trivial(task: Any, scores: dict[str, float]) -> bool:
    """Return whether a classifier is no better than predicting one class for all rows."""
    labels = task.validation[1]
    if "recall" in scores:
        return scores["recall"] == 0 or scores["precision"] <= labels.float().mean()
    return scores["accuracy"] <= torch.bincount(labels).max() / len(labels) + 1e-9


def test_hypervolume(results: Results) -> float:
    """Return the hypervolume of the front's models on the test rows."""
    objectives = results.problem.objectives
    reference = TASKS[results.problem.name].reference
    tested = [results.evaluations[p.model, "test", 0] for p in results.front()]
    points = [[o.sign * e.scores[o.name] for o in objectives] for e in tested]
    return hypervolume(points, [o.sign * reference[o.name] for o in objectives])


def row(name: str, out: Path) -> list[str]:
    """Run a task, and return the cells of its row."""
    task = TASKS[name].at("small")
    begin = time.perf_counter()
    begin_cpu = sum(os.times()[:4])
    results = run(task, out=out / name, progress=False)
    duration = time.perf_counter() - begin
    cpu = sum(os.times()[:4]) - begin_cpu
    points = list(results.points())
    work = sum(r["duration"] for r in results.records())
    last = [p for p in points if p.step == task.steps]
    print(f"{name}: {len(points)} intervals in {duration:.0f} s ({cpu:.0f} s CPU)", flush=True)
    return [
        f"`{name}`",
        f"{results.hypervolume():.4f}",
        f"{test_hypervolume(results):.4f}",
        f"{len(results.front())}",
        f"{sum(is_trivial(task, p.scores) for p in last)} of {len(last)}",
        f"{results.seconds / 60:.1f} min",
        f"{1000 * work / len(points):.0f} ms",
        f"{100 * (1 - work / (available_cores() * results.seconds)):.0f} %",
    ]


def draw(names: Sequence[str], out: Path, file: Path) -> None:
    """Draw all evaluations and the fronts by the first two objectives."""
    rows = -(-len(names) // 3)
    figure, axes = plt.subplots(
        rows, 3, figsize=(11, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for ax, name in zip(axes.flat, names, strict=False):
        results = Results.open(out / name)
        x, y, *more = (o.name for o in results.problem.objectives)
        front = list(results.front())
        points = list(results.points())
        ax.plot(
            [p.scores[x] for p in points],
            [p.scores[y] for p in points],
            ".",
            color=FAINT,
            ms=2,
            label="evaluations",
        )
        tested = [results.evaluations[p.model, "test", 0] for p in front]
        kinds = {
            "front, validation rows": (BLUE, front),
            "the same models, test rows": (ORANGE, tested),
        }
        for label, (color, measured) in kinds.items():
            xs, ys = ([m.scores[objective] for m in measured] for objective in (x, y))
            ax.plot(xs, ys, "o", color=color, ms=3, label=label)
        ax.set(xlabel=x, ylabel=y)
        ax.set_title(name + (f" (third objective: {more[0]})" if more else ""), fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in list(axes.flat)[len(names) :]:
        ax.set_axis_off()
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        markerscale=2,
    )
    figure.savefig(file, dpi=110)


def main() -> None:
    """Print the table; with all nine tasks, update docs/reference/tasks.md and its figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=NINE, help="names of tasks (default: all nine)")
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"), help="folder of the runs")
    arguments = parser.parse_args()
    rows = [row(name, arguments.out) for name in arguments.tasks]
    lines = [f"| {' | '.join(cells)} |\n" for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    print("".join(lines))
    if list(arguments.tasks) == NINE:
        page = DOCS / "tasks.md"
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(before + BEGIN + "".join(lines) + END + rest.partition(END)[2])
        draw(NINE, arguments.out, DOCS / "tasks.png")


if __name__ == "__main__":
    main()
