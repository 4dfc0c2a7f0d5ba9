"""Figures of a comparison in the space of the objectives: where fronts lie, what is attained, where algorithms searched."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import moocore
import numpy as np
from numpy.typing import NDArray

from mopbt.compare.measures import (
    Array,
    MeasuredRun,
    MeasuredTask,
    baseline_of,
    labels_of,
    mean_hypervolume,
)
from mopbt.compare.plan import slug
from mopbt.objectives import Objective
from mopbt.plots.front import FAINT, FRONT, INK, axis_label
from mopbt.plots.style import (
    WIDTH,
    Style,
    back_to_front,
    draw_stairs,
    label_axes,
    legend,
    legend_beside,
    set_title,
    sheet,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 40  # of a histogram, along each objective
SHADES = ("#e3ebf4", "#a6c4de", "#3f7bb3", "#12355f")  # from few evaluations to many


def fronts(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the front of each algorithm's run of median hypervolume, with its hypervolume and coverage (Figure 6)."""
    flat = [task for task in measured if len(task.problem.objectives) == 2]
    if not flat:
        return {}
    styles = styles_of(labels_of(flat))
    figure, axes = sheet(len(flat), height=2.7, columns=2, width=WIDTH if len(flat) > 1 else 5.2)
    for ax, task in zip(axes, flat, strict=True):
        x, y = task.problem.objectives
        lines = {}
        for label in back_to_front(task.runs, styles):
            run, style = median_run(task.runs[label]), styles[label]
            points = run.data.objectives[run.front] * [x.sign, y.sign]
            name = f"{label}: " if len(flat) == 1 else ""
            volume = 100 * run.hypervolumes[-1]
            text = f"{name}{volume:{'.1f' if volume < 1e5 else '.3g'}}, {100 * (run.coverage or 0):.1f}"
            lines[label] = draw_stairs(
                ax, points, x, style, label=text, marker=style.marker, ms=2.4
            )
        set_title(ax, task.name)
        label_axes(ax, x, y)
        legend_beside(ax, [lines[label] for label in task.runs], "HV, coverage\n(both × 100)")
    if len(flat) > 1:
        legend(figure, styles, len(flat))
    return {"fronts": figure}


def median_run(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return the run of median hypervolume, and of an even number the one just below the middle."""
    return sorted(runs, key=lambda run: run.hypervolumes[-1])[(len(runs) - 1) // 2]


def searched(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw for each task where each algorithm's evaluations lie, as histograms with common bins (Figure 7)."""
    return {
        f"searched-{slug(task.name)}": _searched(task)
        for task in measured
        if len(task.problem.objectives) == 2
    }


def _searched(task: MeasuredTask) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    x, y = task.problem.objectives
    points = {
        label: [run.data.objectives * [x.sign, y.sign] for run in runs]
        for label, runs in task.runs.items()
    }
    edges = [
        bin_edges(
            np.concatenate([of_run[:, k] for of_label in points.values() for of_run in of_label])
        )
        for k in (0, 1)
    ]
    counts = {label: histogram(of_label, edges) for label, of_label in points.items()}
    most, fewest = (
        max(float(c.max()) for c in counts.values()),
        1 / max(len(runs) for runs in task.runs.values()),
    )
    look: dict[str, Any] = {
        "norm": LogNorm(fewest, max(most, 2 * fewest)),
        "cmap": LinearSegmentedColormap.from_list("counts", SHADES),
    }
    look |= {
        "extent": (*edges[0][[0, -1]], *edges[1][[0, -1]]),
        "origin": "lower",
        "aspect": "auto",
        "interpolation": "none",
    }
    columns = len(points) if len(points) <= 4 else 5 if len(points) > 8 else 4
    figure, axes = sheet(
        len(points),
        height=1.6,
        columns=columns,
        width=min(WIDTH, 1.5 * columns + 1.0),
        sharex=True,
        sharey=True,
    )
    for ax, (label, style) in zip(axes, styles_of(task.runs).items(), strict=True):
        drawn = ax.imshow(np.where(counts[label] > 0, counts[label], np.nan).T, **look)
        set_title(
            ax,
            label,
            color=FRONT if style.leads else INK,
            fontweight="bold" if style.leads else "normal",
        )
        ax.locator_params(nbins=3)
    figure.supxlabel(axis_label(x), fontsize=8)
    figure.supylabel(axis_label(y), fontsize=8)
    bar = figure.colorbar(drawn, ax=axes, aspect=30, pad=0.01, shrink=0.9, format="{x:g}")
    few = most < 30 * fewest  # powers of ten alone would be one or two
    bar.ax.yaxis.set_minor_formatter(
        lambda count, _: f"{count:g}" if few and f"{count:e}"[0] in "25" else ""
    )
    bar.set_label("evaluations of a run in a bin")
    bar.outline.set_visible(False)
    return figure


def histogram(points: Sequence[Array], edges: Sequence[Array]) -> Array:
    """Return the mean number (B, B) of a run's points (n, 2) in bins; those beyond the edges are left out."""
    finite = [of_run[np.isfinite(of_run).all(axis=1)] for of_run in points]
    counts = [np.histogram2d(of_run[:, 0], of_run[:, 1], bins=list(edges))[0] for of_run in finite]
    return np.asarray(np.mean(counts, axis=0))


def bin_edges(values: Array) -> Array:
    """Return the edges (B + 1,) of bins over values (n,), but for a few far ones that would squeeze the others into a corner."""
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.005, 0.995])
    reach = 0.25 * (high - low)
    low, high = max(finite.min(), low - reach), min(finite.max(), high + reach)
    return (
        np.linspace(low, high, BINS + 1)
        if low < high
        else np.linspace(low - 0.5, high + 0.5, BINS + 1)
    )


# What is attained how often


def attainment(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw what half of an algorithm's runs attain, and where the baseline attains more often than the best of the others."""
    flat = [task for task in measured if len(task.problem.objectives) == 2 and len(task.runs) > 1]
    fit = [
        task
        for task in flat
        if all(len(runs) > 1 and all(len(run.front) for run in runs) for runs in task.runs.values())
    ]
    return {f"attainment-{slug(task.name)}": _attainment(task) for task in fit}


def _attainment(task: MeasuredTask) -> "Figure":
    x, y = task.problem.objectives
    styles, (first, rival) = styles_of(task.runs), _first_and_rival(task)
    figure, (left, right) = sheet(2, height=3.0, columns=2, sharex=True, sharey=True)
    for label in back_to_front(task.runs, styles):
        if label in (first, rival):
            _draw_reach(left, task.runs[label], x, y, styles[label].color)
        draw_stairs(left, attained(task.runs[label], 50) * [x.sign, y.sign], x, styles[label])
    set_title(left, f"{task.name}\nattained by half of the runs")
    label_axes(left, x, y)
    _draw_difference(right, task, (first, rival), styles)
    legend(figure, styles, 2, marker="")
    return figure


def attained(runs: Sequence[MeasuredRun], percent: float) -> Array:
    """Return the corners (n, 2), larger is better, of what a share of the runs attains; 0 per cent: of what any run attains."""
    points, sets = _front_points(runs)
    return np.asarray(-moocore.eaf(-points, sets, percentiles=[percent])[:, :2])


def attainment_difference(
    first: Sequence[MeasuredRun], second: Sequence[MeasuredRun], worst: Array
) -> tuple[Array, Array]:
    """Return the corners (n, 4, 2) of rectangles where the shares of runs that attain a point differ, and by how much (n,).

    Args:
        first: Runs of one algorithm.
        second: Runs of another; of the one with more of them only as many count.
        worst: Where unbounded rectangles end, (2,).
    """
    n = min(len(first), len(second))
    fronts = [
        np.unique(run.data.objectives[run.front], axis=0) for run in (*first[:n], *second[:n])
    ]
    if all(
        np.array_equal(front, fronts[0]) for front in fronts
    ):  # which moocore takes for an error
        return np.zeros((0, 4, 2)), np.zeros(0)
    costs = [
        np.column_stack([-points, sets])
        for points, sets in (_front_points(runs[:n]) for runs in (first, second))
    ]
    rectangles = moocore.eafdiff(*costs, rectangles=True)
    rectangles = rectangles[rectangles[:, 4] != 0]
    (x1, y1), (x2, y2) = (
        -np.minimum(rectangles[:, ends], -worst).T for ends in (slice(0, 2), slice(2, 4))
    )
    corners = [np.column_stack(corner) for corner in ((x1, y1), (x1, y2), (x2, y2), (x2, y1))]
    return np.stack(corners, axis=1), rectangles[:, 4] / n


def _front_points(runs: Sequence[MeasuredRun]) -> tuple[Array, NDArray[np.intp]]:
    """Return the points (n, 2) of all runs' fronts and which run each is of (n,)."""
    points = [run.data.objectives[run.front] for run in runs]
    return np.concatenate(points), np.repeat(
        np.arange(1, len(runs) + 1), [len(of_run) for of_run in points]
    )


def _first_and_rival(task: MeasuredTask) -> tuple[str, str]:
    first = baseline_of(tuple(task.runs))
    return first, max(
        (label for label in task.runs if label != first),
        key=lambda label: mean_hypervolume(task.runs[label]),
    )


def _draw_reach(
    ax: "Axes", runs: Sequence[MeasuredRun], x: Objective, y: Objective, color: str
) -> None:
    """Shade from what all runs attain to what any run attains."""
    some, every = (attained(runs, percent) for percent in (0, 100))
    xs = np.unique(np.concatenate([some[:, 0], every[:, 0]]))
    floor = min(some[:, 1].min(), every[:, 1].min())
    order = np.argsort(xs * x.sign)
    high, low = (_height(corners, xs, floor)[order] * y.sign for corners in (some, every))
    steps: dict[str, Any] = {"step": "pre" if x.direction == "max" else "post"}
    ax.fill_between(xs[order] * x.sign, low, high, color=color, alpha=0.16, lw=0, **steps)


def _height(corners: Array, xs: Array, floor: float) -> Array:
    """Return the largest second objective (m,) that corners (n, 2) attain with a first one of at least xs (m,)."""
    reach = corners[None, :, 0] >= xs[:, None]
    return np.asarray(np.where(reach, corners[None, :, 1], floor).max(axis=1))


def _draw_difference(
    ax: "Axes", task: MeasuredTask, pair: tuple[str, str], styles: Mapping[str, Style]
) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap

    x, y = task.problem.objectives
    ends = [
        run.data.objectives[run.front].min(axis=0) for runs in task.runs.values() for run in runs
    ]
    corners, shares = attainment_difference(
        task.runs[pair[0]], task.runs[pair[1]], np.min(ends, axis=0)
    )
    shades = LinearSegmentedColormap.from_list(
        "more often", [styles[pair[1]].color, "#ffffff", FRONT]
    )
    set_title(ax, f"{pair[0]}\nless {pair[1]}")
    ax.set_xlabel(axis_label(x))
    if not len(corners):
        ax.text(0.5, 0.5, "no difference", transform=ax.transAxes, ha="center", color=FAINT)
        return
    drawn = PolyCollection(
        list(corners * [x.sign, y.sign]), array=100 * shares, cmap=shades, lw=0.1, edgecolors="face"
    )
    drawn.set_clim(-100, 100)
    drawn.set_rasterized(True)
    ax.add_collection(drawn)
    bar = ax.figure.colorbar(drawn, ax=ax, aspect=25, pad=0.02, shrink=0.9)
    bar.set_label("difference, % of the runs")
    bar.outline.set_visible(False)
