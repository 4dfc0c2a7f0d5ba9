"""Tables and figures of docs/judges.md, from the lines that the judges measured.

Scores are compared in pairs: by function, after the mean over its instances, or by seed. Intervals
are 95 percent, by bootstrap over these pairs. "Ahead" and "behind" need an interval without zero.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from judging import curves, plan
from judging.functions import DIMENSION, TARGETS
from mopbt.compare.significance import bootstrap_interval
from mopbt.plots.style import STYLE

BEGIN = "<!-- tables: written by benchmarks/judges.py -->\n"
END = "<!-- end of tables -->\n"
# The algorithms of ours in each part; the others are rivals.
OURS = {
    "nsga2": ("NSGA-II", "NSGA-II, index 20"),
    "tpe": ("MO-TPE",),
    "grids": ("MO-TPE", "MO-TPE, ordered"),
    "bayes": ("qNEHVI", "ParEGO"),
    "halving": tuple(curves.MULTI),
}
COCO = {"nsga2": plan.NSGA2, "tpe": plan.TPE, "grids": plan.ORDERED, "bayes": plan.BAYES}
TITLES = {"nsga2": "NSGA-II", "tpe": "TPE", "grids": "TPE on grids", "bayes": "Gaussian processes"}
COLORS = ("#c8401e", "#1d4f86", "#2a8f6c", "#8a5fb0", "#999999")

Line = dict[str, Any]


class Comparison(NamedTuple):
    """One of our algorithms against a rival.

    Attributes:
        name: Ours.
        rival: The other one.
        ours: The mean of ours.
        theirs: The mean of the rival.
        gain: The mean difference, positive if ours is better.
        lower: The lower end of its interval.
        upper: The upper end of its interval.
        pairs: The number of pairs.
    """

    name: str
    rival: str
    ours: float
    theirs: float
    gain: float
    lower: float
    upper: float
    pairs: int

    @property
    def verdict(self) -> str:
        """Return "ahead" or "behind" if the interval excludes zero."""
        if self.lower > 0:
            return "ahead"
        return "behind" if self.upper < 0 else "undecided"


def write(folder: Path, docs: Path) -> None:
    """Write the tables into docs/judges.md, and the figure."""
    lines = {part: read(folder / f"{part}.jsonl") for part in plan.PARTS}
    lines |= {part: complete(lines[part], COCO[part]) for part in COCO}
    tables = [coco_table(part, lines[part]) for part in COCO]
    tables += [single_table(lines["halving"]), multi_table(lines["halving"])]
    tables += [arlbench_table(lines["arlbench"])]
    page = docs / "judges.md"
    text = page.read_text() if page.exists() else BEGIN + END
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(head + BEGIN + "\n" + "\n".join(tables) + "\n" + END + tail)
    draw(lines, docs / "judges.png")


def read(file: Path) -> list[Line]:
    """Read the lines of a part; none if it was not measured."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def complete(lines: list[Line], names: tuple[str, ...]) -> list[Line]:
    """Return the lines of the problems on which all algorithms were measured."""
    found: dict[Any, set[str]] = {}
    for line in lines:
        found.setdefault((line["function"], line["instance"]), set()).add(line["algorithm"])
    return [line for line in lines if found[line["function"], line["instance"]] >= set(names)]


def compare(
    name: str,
    rival: str,
    values: dict[str, dict[Any, float]],
    *,
    smaller_is_better: bool = False,
) -> Comparison:
    """Compare two algorithms on the functions or seeds for which both have values."""
    shared = [key for key in values[name] if key in values[rival]]
    ours = np.array([values[name][key] for key in shared])
    theirs = np.array([values[rival][key] for key in shared])
    gains = theirs - ours if smaller_is_better else ours - theirs
    means = [float(x.mean()) if shared else math.nan for x in (ours, theirs, gains)]
    return Comparison(name, rival, *means, *bootstrap_interval(gains), len(shared))


def shares_by_function(lines: Iterable[Line], name: str) -> dict[int, float]:
    """Return the percentage of COCO's targets reached, by function."""
    found: dict[int, list[float]] = {}
    for line in lines:
        if line["algorithm"] == name:
            share = 100 * len(line["hits"]) / len(TARGETS)
            found.setdefault(line["function"], []).append(share)
    return {function: float(np.mean(shares)) for function, shares in found.items()}


def coco_table(part: str, lines: list[Line]) -> str:
    """Return the table of a part with COCO's functions."""
    shares = {name: shares_by_function(lines, name) for name in COCO[part]}
    cells = []
    for n, name in enumerate(OURS[part]):
        # Two of ours are compared once, the later one with the earlier one.
        for rival in COCO[part]:
            if rival not in OURS[part][n:]:
                cells.append(_row(compare(name, rival, shares)))
    return _table(f"{TITLES[part]}: targets reached, in percent", "functions", cells)


def values_by_seed(lines: Iterable[Line], name: str, problem: str, K: int) -> dict[int, float]:
    """Return the values of an algorithm on a problem of successive halving, in percent."""
    return {
        line["seed"]: 100 * line["value"]
        for line in lines
        if (line["algorithm"], line["problem"], line["objectives"]) == (name, problem, K)
    }


def single_table(lines: list[Line]) -> str:
    """Return the table of learning curves with one objective, where smaller is better."""
    rivals = [name for name in curves.SINGLE if name not in OURS["halving"]]
    cells = []
    for problem in curves.KINDS:
        values = {name: values_by_seed(lines, name, problem, 1) for name in curves.SINGLE}
        for name in OURS["halving"]:
            for rival in rivals:
                compared = compare(name, rival, values, smaller_is_better=True)
                cells.append(_row(compared, problem))
    title = "Learning curves, one objective: true error of the chosen model, in percent"
    return _table(title, "seeds", cells, problem=True)


def multi_table(lines: list[Line]) -> str:
    """Return the table of learning curves with several objectives."""
    problems = dict.fromkeys(
        (line["problem"], line["objectives"]) for line in lines if line["objectives"] > 1
    )
    names = (*OURS["halving"], "random search")
    cells = []
    for problem, K in problems:
        values = {name: values_by_seed(lines, name, problem, K) for name in names}
        for name in OURS["halving"]:
            cells.append(_row(compare(name, "random search", values), problem))
    title = "Learning curves, several objectives: hypervolume, in percent"
    return _table(title, "seeds", cells, problem=True)


def arlbench_table(lines: list[Line]) -> str:
    """Return the table of ARLBench's CartPole."""
    values: dict[str, dict[int, float]] = {"random-search": {}}
    for line in lines:
        values.setdefault(line["label"], {})[line["seed"]] = 100 * line["value"]
    cells = [
        _row(compare(label, "random-search", values))
        for label in values
        if label != "random-search"
    ]
    return _table("ARLBench CartPole: hypervolume, in percent", "seeds", cells)


def _row(c: Comparison, problem: str = "") -> list[str]:
    """Return the cells of a comparison; none if there is nothing to compare."""
    if not c.pairs:
        return []
    interval = f"{c.gain:+.1f}"
    if not math.isnan(c.lower):
        interval += f" [{c.lower:+.1f}, {c.upper:+.1f}]"
    cells = [c.name, f"{c.ours:.1f}", c.rival, f"{c.theirs:.1f}", interval, str(c.pairs), c.verdict]
    return [problem, *cells] if problem else cells


def _table(title: str, unit: str, cells: list[list[str]], *, problem: bool = False) -> str:
    measured = [row for row in cells if row]
    if not measured:
        return f"**{title}**: not measured yet.\n"
    head = ["ours", "mean", "rival", "mean", "gain", unit, "verdict"]
    if problem:
        head = ["problem", *head]
    rows = [head, ["---"] * len(head), *measured]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"**{title}**\n\n{body}\n"


def ecdf(lines: list[Line], name: str) -> tuple[list[float], list[float]]:
    """Return evaluations per dimension, and the share of targets reached until then."""
    runs = [line for line in lines if line["algorithm"] == name]
    hits = sorted(hit for run in runs for hit in run["hits"])
    pairs = len(TARGETS) * max(len(runs), 1)
    x = [hit / DIMENSION for hit in hits]
    y = [(n + 1) / pairs for n in range(len(hits))]
    if runs and hits:
        x.append(runs[0]["budget"] / DIMENSION)
        y.append(y[-1])
    return x, y


def draw(lines: dict[str, list[Line]], file: Path) -> None:
    """Draw COCO's figure: the share of targets that were reached after some evaluations."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(7, 5.2), layout="constrained")
        for panel, part in zip(panels.flat, COCO, strict=True):
            panel.set_title(TITLES[part])
            if lines[part]:
                _draw_part(panel, part, lines[part])
            else:
                panel.set_axis_off()
                panel.text(0.1, 0.8, "not measured yet")
        figure.savefig(file, dpi=150, metadata={"Software": None})
        plt.close(figure)


def _draw_part(panel: Any, part: str, lines: list[Line]) -> None:
    for name, color in zip(_colored(part), COLORS, strict=True):
        x, y = ecdf(lines, name)
        style = "-" if name in OURS[part] else "--"
        if name:
            panel.step(x, y, where="post", color=color, linestyle=style, label=name)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_ylim(0)
    panel.set_xlabel("evaluations / dimension")
    panel.set_ylabel("share of function and target pairs")
    panel.legend(loc="upper left")


def _colored(part: str) -> list[str]:
    """Return the algorithms of a part, ours first and random search last."""
    rivals = [n for n in COCO[part] if n not in OURS[part] and n != "random search"]
    names = [*OURS[part], *rivals]
    while len(names) < len(COLORS) - 1:
        names.append("")
    return [*names, "random search"]
