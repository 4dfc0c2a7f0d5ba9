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
        gain: The mean difference, positive if ours is better.
        lower: The lower end of its interval.
        upper: The upper end of its interval.
        pairs: The number of pairs.
    """

    name: str
    rival: str
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


def compare(name: str, rival: str, ours: dict[Any, float], theirs: dict[Any, float]) -> Comparison:
    """Compare two algorithms on the problems that both have; larger is better."""
    shared = [key for key in ours if key in theirs]
    gains = [ours[key] - theirs[key] for key in shared]
    mean = float(np.mean(gains)) if gains else math.nan
    return Comparison(name, rival, mean, *bootstrap_interval(gains), len(gains))


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
    rows = []
    for name in OURS[part]:
        for rival in COCO[part]:
            if rival != name:
                rows.append((compare(name, rival, shares[name], shares[rival]), shares))
    cells = [_row(c, _mean(s[c.name].values()), _mean(s[c.rival].values())) for c, s in rows]
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
    cells = []
    for problem in curves.KINDS:
        values = {name: values_by_seed(lines, name, problem, 1) for name in curves.SINGLE}
        negated = {n: {seed: -v for seed, v in found.items()} for n, found in values.items()}
        for name in OURS["halving"]:
            for rival in values:
                if rival not in OURS["halving"]:
                    c = compare(name, rival, negated[name], negated[rival])
                    means = _mean(values[name].values()), _mean(values[rival].values())
                    cells.append(_row(c, *means, problem))
    title = "Learning curves, one objective: true error of the chosen model, in percent"
    return _table(title, "seeds", cells, problem=True)


def multi_table(lines: list[Line]) -> str:
    """Return the table of learning curves with several objectives."""
    cells = []
    problems = dict.fromkeys(
        (line["problem"], line["objectives"]) for line in lines if line["objectives"] > 1
    )
    for problem, K in problems:
        rival = values_by_seed(lines, "random search", problem, K)
        for name in OURS["halving"]:
            found = values_by_seed(lines, name, problem, K)
            c = compare(name, "random search", found, rival)
            cells.append(_row(c, _mean(found.values()), _mean(rival.values()), problem))
    title = "Learning curves, several objectives: hypervolume, in percent"
    return _table(title, "seeds", cells, problem=True)


def arlbench_table(lines: list[Line]) -> str:
    """Return the table of ARLBench's CartPole."""
    values: dict[str, dict[int, float]] = {}
    for line in lines:
        values.setdefault(line["label"], {})[line["seed"]] = 100 * line["value"]
    rival = values.pop("random-search", {})
    cells = [
        _row(
            compare(label, "random-search", found, rival),
            _mean(found.values()),
            _mean(rival.values()),
        )
        for label, found in values.items()
    ]
    return _table("ARLBench CartPole: hypervolume, in percent", "seeds", cells)


def _row(c: Comparison, ours: float, rival: float, problem: str = "") -> list[str]:
    interval = f"{c.gain:+.1f} [{c.lower:+.1f}, {c.upper:+.1f}]"
    numbers = [c.name, f"{ours:.1f}", c.rival, f"{rival:.1f}", interval, str(c.pairs), c.verdict]
    return [problem, *numbers] if problem else numbers


def _table(title: str, unit: str, cells: list[list[str]], *, problem: bool = False) -> str:
    head = ["ours", "mean", "rival", "mean", "gain", unit, "verdict"]
    if problem:
        head = ["problem", *head]
    rows = [head, ["---"] * len(head), *cells]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"**{title}**\n\n{body}\n"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else math.nan


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
            for name, color in zip(_colored(part), COLORS, strict=False):
                x, y = ecdf(lines[part], name)
                style = "-" if name in OURS[part] else "--"
                panel.step(x, y, where="post", color=color, linestyle=style, label=name)
            panel.set_xscale("log")
            panel.set_title(TITLES[part])
            panel.set_xlabel("evaluations / dimension")
            panel.set_ylabel("share of function and target pairs")
            panel.legend(loc="upper left")
        figure.savefig(file, dpi=150, metadata={"Software": None})
        plt.close(figure)


def _colored(part: str) -> list[str]:
    """Return the algorithms of a part, ours first and random search last."""
    rivals = [n for n in COCO[part] if n not in OURS[part] and n != "random search"]
    names = [*OURS[part], *rivals]
    while len(names) < len(COLORS) - 1:
        names.append("")
    return [*names, "random search"]
