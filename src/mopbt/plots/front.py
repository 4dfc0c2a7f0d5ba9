"""Figures of a run, for papers, READMEs and chats."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from mopbt.errors import MissingExtra
from mopbt.html.run_data import check_comparable, view_of
from mopbt.messages import counted
from mopbt.objectives import Objective
from mopbt.plots.against import names_of, shared_reference
from mopbt.results import Point, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

INK, FAINT = "#333333", "#bbbbbb"
FRONT = (
    "#c8401e"  # against blue it stands out for every kind of color vision, and in gray by its line
)
OTHER = "#666666"  # the front of the run beside it
STEPS = ("#dde7f0", "#a6c4de", "#5f95c4", "#1d4f86")  # of the evaluations, early to late
LETTERS = 88  # of a title's line
SIZES = {1: (7.0, 4.4), 3: (10.5, 3.9)}  # inches, by the number of panels

FORMATS = (".png", ".pdf", ".svg")

View = tuple[float, float]


def plot_front(
    results: Results, file: Path | str, *, beside: Results | None = None, dpi: int = 150
) -> None:
    """Draw all evaluations of a run, colored by their step, and the front among them: two objectives, or three in pairs.

    Args:
        results: The run, finished or not.
        file: Where the figure goes; its ending says the format.
        beside: Another run of the same task, of which the front is drawn too.
        dpi: Dots per inch, where the format has dots.
    """
    objectives = results.problem.objectives
    if Path(file).suffix not in FORMATS or not Path(file).parent.is_dir():
        raise ValueError(
            f"a figure needs a file in a directory that is there, which ends in one of {', '.join(FORMATS)}, such as front.png, "
            f"got {file}"
        )
    if len(objectives) not in (2, 3):
        raise ValueError(
            f"a figure of a front needs 2 or 3 objectives, got {len(objectives)}; plot `results.records()` instead"
        )
    points = [p for p in results.points() if all(isfinite(p.scores[o.name]) for o in objectives)]
    if not points:
        raise ValueError(
            f"{results.path} has no evaluation that can be drawn; wait for the first report, or see results.failures()"
        )
    if beside is not None:
        check_comparable([results, beside])
    front, pairs = list(results.front()), list(combinations(objectives, 2))
    other: list[Point] = [] if beside is None else list(beside.front())
    name, other_name = ("", "") if beside is None else names_of(results, beside)
    reference = None if beside is None else shared_reference([results, beside])
    fronts = [*front, *other]
    views = {
        o: view_of(o, *(np.array([p.scores[o.name] for p in some]) for some in (points, fronts)))
        for o in objectives
    }
    figure = _figure(SIZES[len(pairs)])
    axes = [figure.add_subplot(1, len(pairs), 1 + i) for i in range(len(pairs))]
    for ax, (x, y) in zip(axes, pairs, strict=True):
        dots = _draw_evaluations(ax, points, x, y)
        if beside is not None:
            if len(objectives) == 2:
                _draw_gain(ax, front, other, x, y, worst=views[y][y.sign < 0])
            _draw_front(
                ax, other, x, y, line=len(objectives) == 2, color=OTHER, of=f" of {other_name}"
            )
        _draw_front(
            ax,
            front,
            x,
            y,
            line=len(objectives) == 2,
            color=FRONT,
            of=f" of {name}" if name else "",
        )
        _dress(ax, x, y, views)
    axes[0].legend(frameon=False, fontsize=10, labelcolor=INK, loc="best")
    if not all(p.violation for p in points):
        _add_colorbar(figure, axes, dots)
    outside = sum(
        not all(lo <= p.scores[o.name] <= hi for o, (lo, hi) in views.items()) for p in points
    )
    title = _title(results, len(points), outside, reference)
    if beside is not None:
        title += f"\n{other_name} beside it: {_standing(beside, reference)}"
    title = "\n".join(fill(line, LETTERS) for line in title.splitlines())
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, linespacing=1.4, color=INK)
    figure.savefig(file, dpi=dpi)


def _figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plot_front needs matplotlib: pip install 'mopbt[plot]'") from None
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # no window, and nothing global
    return figure


def _columns(
    points: Sequence[Point], x: Objective, y: Objective
) -> tuple[list[float], list[float]]:
    return [p.scores[x.name] for p in points], [p.scores[y.name] for p in points]


def _draw_evaluations(
    ax: "Axes", points: Sequence[Point], x: Objective, y: Objective
) -> "PathCollection":
    """Draw the evaluations, late ones on top; those that violate a constraint only as outlines."""
    from matplotlib.colors import LinearSegmentedColormap

    infeasible = [p for p in points if p.violation > 0]
    if infeasible:
        ax.scatter(
            *_columns(infeasible, x, y),
            s=14,
            facecolors="none",
            edgecolors=FAINT,
            linewidths=0.6,
            label="infeasible",
        )
    feasible = sorted((p for p in points if p.violation == 0), key=lambda p: p.step)
    steps, all_steps = [p.step for p in feasible], [p.step for p in points]
    colors = LinearSegmentedColormap.from_list("steps", STEPS)
    xs, ys = _columns(feasible, x, y)
    return ax.scatter(
        xs, ys, c=steps, cmap=colors, s=14, linewidths=0, vmin=min(all_steps), vmax=max(all_steps)
    )


def _draw_front(
    ax: "Axes",
    front: Sequence[Point],
    x: Objective,
    y: Objective,
    *,
    line: bool,
    color: str,
    of: str,
) -> None:
    """Draw the models of the front and, with two objectives, the edge of what they dominate; hollow where none is feasible."""
    if front and front[0].violation:
        ax.plot(
            *_columns(front, x, y),
            "o",
            ms=6.5,
            mfc="white",
            mec=color,
            mew=1.4,
            label=f"nearest{of}",
            zorder=3,
        )
        return
    xs, ys = _columns(sorted(front, key=lambda p: p.scores[x.name]), x, y)
    style: dict[str, Any] = (
        {"drawstyle": "steps-pre" if x.direction == "max" else "steps-post"}
        if line
        else {"linestyle": "none"}
    )
    size = 5.0 if len(front) <= 60 else 3.4
    ax.plot(
        xs,
        ys,
        marker="o",
        ms=size,
        mec="white",
        mew=0.4,
        lw=1.2,
        color=color,
        label=f"front{of}",
        zorder=3,
        **style,
    )


def _draw_gain(
    ax: "Axes",
    front: Sequence[Point],
    other: Sequence[Point],
    x: Objective,
    y: Objective,
    *,
    worst: float,
) -> None:
    """Shade what only one of two fronts dominates, each in its own color; what is not feasible dominates nothing."""
    front, other = ([p for p in points if not p.violation] for points in (front, other))
    at = sorted({x.sign * p.scores[x.name] for p in [*front, *other]})

    def edge(points: Sequence[Point]) -> list[float]:
        pairs = [(x.sign * p.scores[x.name], y.sign * p.scores[y.name]) for p in points]
        return [max((b for a, b in pairs if a >= value), default=y.sign * worst) for value in at]

    mine, theirs = edge(front), edge(other)
    for low, high, color in ((theirs, mine, FRONT), (mine, theirs, OTHER)):
        bottom, top = (
            [y.sign * v for v in low],
            [y.sign * max(pair) for pair in zip(low, high, strict=True)],
        )
        ax.fill_between(
            [x.sign * v for v in at],
            bottom,
            top,
            step="pre",
            color=color,
            alpha=0.25,
            linewidth=0,
            zorder=2,
        )


def _dress(ax: "Axes", x: Objective, y: Objective, views: Mapping[Objective, View]) -> None:
    ax.set_xlabel(axis_label(x), fontsize=11, color=INK)
    ax.set_ylabel(axis_label(y), fontsize=11, color=INK)
    ax.set_xlim(*views[x])
    ax.set_ylim(*views[y])
    ax.tick_params(colors=INK, labelsize=9.5, length=3, color=FAINT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)


def axis_label(objective: Objective) -> str:
    """Return the name and where better scores lie; on a vertical axis the text is turned, and the arrow with it."""
    return (
        f"{objective.name}  (better →)"
        if objective.direction == "max"
        else f"(← better)  {objective.name}"
    )


def _add_colorbar(figure: "Figure", axes: Sequence["Axes"], dots: "PathCollection") -> None:
    from matplotlib.ticker import MaxNLocator

    bar = figure.colorbar(
        dots,
        ax=list(axes),
        aspect=32,
        pad=0.015,
        ticks=MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]),
    )
    bar.set_label("evaluations by training step", fontsize=10, color=INK)
    bar.ax.tick_params(colors=INK, labelsize=9, length=0)
    bar.outline.set_visible(False)


def _title(
    results: Results, evaluations: int, outside: int, reference: Mapping[str, float] | None
) -> str:
    counts = counted(evaluations, "evaluation") + (
        f" ({outside:,} outside the view)" if outside else ""
    )
    return f"{results.problem.name}\n{counts}, {_standing(results, reference)}"


def _standing(results: Results, reference: Mapping[str, float] | None) -> str:
    """Return how good a front is above a reference point, or that none of its models is feasible."""
    front = results.front()
    lacks = front.shortfall(front[0]) if front else ""
    return (
        lacks
        or f"a front of {counted(len(front), 'model')}, hypervolume {results.hypervolume(reference):.4g}"
    )
