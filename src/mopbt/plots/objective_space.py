"""Plot a comparison in objective space: fronts, searched regions and attainment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import moocore
import numpy as np
from numpy.typing import NDArray

from mopbt.compare.measures import (
    Array,
    MeasuredRun,
    MeasuredTask,
    baseline_of,
    mean_hypervolume,
)
from mopbt.plots.style import (
    FAINT,
    FRONT,
    INK,
    WIDTH,
    Styles,
    add_legend,
    add_side_legend,
    axis_label,
    create_panels,
    draw_stairs,
    drawing_order,
    label_axes,
    set_title,
    shown_styles,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Bins of a histogram along each objective.
BINS = 40
# Colors from few evaluations to many.
SHADES = ("#e3ebf4", "#a6c4de", "#3f7bb3", "#12355f")


# Fronts


def fronts(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot the front of each algorithm's median run (Figure 6).

    The legend has its hypervolume and coverage.
    """
    shown = [task for task in measured if len(task.problem.objectives) == 2]
    if not shown:
        return {}
    alone = len(shown) == 1
    styles = shown_styles(styles, {label for task in shown for label in task.runs})
    figure, axes = create_panels(len(shown), height=2.7, columns=2, width=5.2 if alone else WIDTH)
    for ax, task in zip(axes, shown, strict=True):
        x, y = task.problem.objectives
        lines = {}
        for label in drawing_order(task.runs, styles):
            run = median_run(task.runs[label])
            points = run.data.objectives[run.front] * task.signs
            volume = 100 * run.hypervolumes[-1]
            text = f"{volume:.1f}" if volume < 1e5 else f"{volume:.3g}"
            text += f", {100 * (run.coverage or 0):.1f}"
            if alone:
                text = f"{label}: {text}"
            style = styles[label]
            lines[label] = draw_stairs(
                ax, points, x, style, label=text, marker=style.marker, ms=2.4
            )
        set_title(ax, task.title)
        label_axes(ax, x, y)
        add_side_legend(ax, [lines[label] for label in task.runs], "HV, coverage\n(both × 100)")
    if not alone:
        add_legend(figure, styles, len(shown))
    return {"fronts": figure}


def median_run(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return the run of median hypervolume, the lower one of an even number."""
    return sorted(runs, key=lambda run: run.hypervolumes[-1])[(len(runs) - 1) // 2]


# Searched regions


def searched(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot where the evaluations of each algorithm lie, as histograms (Figure 7)."""
    return {
        f"searched-{task.slug}": _plot_searched(task, shown_styles(styles, task.runs))
        for task in measured
        if len(task.problem.objectives) == 2
    }


def _plot_searched(task: MeasuredTask, styles: Styles) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    x, y = task.problem.objectives
    points = {
        label: [run.data.objectives * task.signs for run in runs]
        for label, runs in task.runs.items()
    }
    together = np.concatenate([of_run for of_label in points.values() for of_run in of_label])
    edges = [bin_edges(together[:, k]) for k in (0, 1)]
    counts = {label: histogram(of_label, edges) for label, of_label in points.items()}
    most = max(float(count.max()) for count in counts.values())
    fewest = 1 / max(len(runs) for runs in task.runs.values())
    image: dict[str, Any] = {
        "norm": LogNorm(fewest, max(most, 2 * fewest)),
        "cmap": LinearSegmentedColormap.from_list("counts", SHADES),
        "extent": (*edges[0][[0, -1]], *edges[1][[0, -1]]),
        "origin": "lower",
        "aspect": "auto",
        "interpolation": "none",
    }
    figure, axes = _create_searched_panels(len(points))
    for ax, (label, style) in zip(axes, styles.items(), strict=True):
        drawn = ax.imshow(np.where(counts[label] > 0, counts[label], np.nan).T, **image)
        if style.leads:
            set_title(ax, label, color=FRONT, fontweight="bold")
        else:
            set_title(ax, label, color=INK, fontweight="normal")
        ax.locator_params(nbins=3)
    figure.supxlabel(axis_label(x), fontsize=8)
    figure.supylabel(axis_label(y), fontsize=8)
    bar = figure.colorbar(drawn, ax=axes, aspect=30, pad=0.01, shrink=0.9, format="{x:g}")
    # A small range has only one or two powers of ten, so 2 and 5 are labeled as well.
    is_small = most < 30 * fewest
    bar.ax.yaxis.set_minor_formatter(
        lambda count, _: f"{count:g}" if is_small and f"{count:e}"[0] in "25" else ""
    )
    bar.set_label("evaluations of a run in a bin")
    bar.outline.set_visible(False)
    return figure


def _create_searched_panels(panels: int) -> tuple["Figure", list["Axes"]]:
    columns = panels
    if panels > 4:
        columns = 4 if panels <= 8 else 5
    width = min(WIDTH, 1.5 * columns + 1.0)
    return create_panels(panels, height=1.6, columns=columns, width=width, sharex=True, sharey=True)


def histogram(points: Sequence[Array], edges: Sequence[Array]) -> Array:
    """Return the mean number (B, B) of points (n, 2) per run and bin."""
    counts = []
    for of_run in points:
        finite = of_run[np.isfinite(of_run).all(axis=1)]
        counts.append(np.histogram2d(finite[:, 0], finite[:, 1], bins=list(edges))[0])
    return np.asarray(np.mean(counts, axis=0))


def bin_edges(values: Array) -> Array:
    """Return the edges (B + 1,) of bins over values (n,).

    A few extreme values stay outside, because they would squeeze all others into a few bins.
    """
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.005, 0.995])
    reach = 0.25 * (high - low)
    low = max(finite.min(), low - reach)
    high = min(finite.max(), high + reach)
    if low == high:
        low -= 0.5
        high += 0.5
    return np.linspace(low, high, BINS + 1)


# Attainment


def attainment(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot what half of each algorithm's runs attain, and how the baseline differs.

    The second panel shows where the baseline attains more often than its best rival.
    """
    figures = {}
    for task in measured:
        runs = [run for of_label in task.runs.values() for run in of_label]
        repeated = all(len(of_label) > 1 for of_label in task.runs.values())
        is_shown = len(task.problem.objectives) == 2 and len(task.runs) > 1 and repeated
        if is_shown and all(len(run.front) for run in runs):
            figure = _plot_attainment(task, shown_styles(styles, task.runs))
            figures[f"attainment-{task.slug}"] = figure
    return figures


def _plot_attainment(task: MeasuredTask, styles: Styles) -> "Figure":
    x, y = task.problem.objectives
    baseline, rival = _baseline_and_rival(task)
    figure, (left, right) = create_panels(2, height=3.0, columns=2, sharex=True, sharey=True)
    for label in drawing_order(task.runs, styles):
        if label in (baseline, rival):
            _shade_range(left, task, label, styles[label].color)
        draw_stairs(left, attained(task.runs[label], 50) * task.signs, x, styles[label])
    set_title(left, f"{task.title}\nattained by half of the runs")
    label_axes(left, x, y)
    _draw_difference(right, task, (baseline, rival), styles)
    add_legend(figure, styles, 2, marker="")
    return figure


def attained(runs: Sequence[MeasuredRun], percent: float) -> Array:
    """Return the corners (n, 2) of what a percentage of the runs attains.

    Larger is better. 0 percent gives what any run attains.
    """
    points, sets = _front_points(runs)
    return np.asarray(-moocore.eaf(-points, sets, percentiles=[percent])[:, :2])


def attainment_difference(
    first: Sequence[MeasuredRun], second: Sequence[MeasuredRun], worst: Array
) -> tuple[Array, Array]:
    """Return where and by how much the shares of runs that attain a point differ.

    The result has the corners (n, 4, 2) of rectangles and the difference (n,) in each of them.

    Args:
        first: Runs of one algorithm.
        second: Runs of another. If one has more runs, its last ones are left out.
        worst: Where unbounded rectangles end, (2,).
    """
    n = min(len(first), len(second))
    fronts = [
        np.unique(run.data.objectives[run.front], axis=0) for run in (*first[:n], *second[:n])
    ]
    # moocore raises an error if all fronts are equal.
    if all(np.array_equal(front, fronts[0]) for front in fronts):
        return np.zeros((0, 4, 2)), np.zeros(0)
    costs = []
    for runs in (first, second):
        points, sets = _front_points(runs[:n])
        costs.append(np.column_stack([-points, sets]))
    rectangles = moocore.eafdiff(*costs, rectangles=True)
    rectangles = rectangles[rectangles[:, 4] != 0]
    x1, y1 = -np.minimum(rectangles[:, 0:2], -worst).T
    x2, y2 = -np.minimum(rectangles[:, 2:4], -worst).T
    corners = [np.column_stack(corner) for corner in ((x1, y1), (x1, y2), (x2, y2), (x2, y1))]
    return np.stack(corners, axis=1), rectangles[:, 4] / n


def _front_points(runs: Sequence[MeasuredRun]) -> tuple[Array, NDArray[np.intp]]:
    """Return the points (n, 2) of all fronts, and the run (n,) of each point."""
    points = [run.data.objectives[run.front] for run in runs]
    numbers = np.repeat(np.arange(1, len(runs) + 1), [len(of_run) for of_run in points])
    return np.concatenate(points), numbers


def _baseline_and_rival(task: MeasuredTask) -> tuple[str, str]:
    """Return the baseline and the best other algorithm by mean hypervolume."""
    baseline = baseline_of(tuple(task.runs))
    others = [label for label in task.runs if label != baseline]
    return baseline, max(others, key=lambda label: mean_hypervolume(task.runs[label]))


def _shade_range(ax: "Axes", task: MeasuredTask, label: str, color: str) -> None:
    """Shade from what all runs attain to what any run attains."""
    some = attained(task.runs[label], 0)
    every = attained(task.runs[label], 100)
    x_sign, y_sign = task.signs
    xs = np.unique(np.concatenate([some[:, 0], every[:, 0]]))
    floor = min(some[:, 1].min(), every[:, 1].min())
    order = np.argsort(xs * x_sign)
    high, low = (_height(corners, xs, floor)[order] * y_sign for corners in (some, every))
    steps: dict[str, Any] = {"step": "pre" if x_sign > 0 else "post"}
    ax.fill_between(xs[order] * x_sign, low, high, color=color, alpha=0.16, lw=0, **steps)


def _height(corners: Array, xs: Array, floor: float) -> Array:
    """Return the best second objective (m,) of corners (n, 2) beyond each of xs (m,)."""
    reach = corners[None, :, 0] >= xs[:, None]
    return np.asarray(np.where(reach, corners[None, :, 1], floor).max(axis=1))


def _draw_difference(ax: "Axes", task: MeasuredTask, pair: tuple[str, str], styles: Styles) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap

    baseline, rival = pair
    runs = [run for of_label in task.runs.values() for run in of_label]
    worst = np.min([run.data.objectives[run.front].min(axis=0) for run in runs], axis=0)
    corners, shares = attainment_difference(task.runs[baseline], task.runs[rival], worst)
    set_title(ax, f"{baseline}\nminus {rival}")
    ax.set_xlabel(axis_label(task.problem.objectives[0]))
    if not len(corners):
        ax.text(0.5, 0.5, "no difference", transform=ax.transAxes, ha="center", color=FAINT)
        return
    colors = [styles[rival].color, "#ffffff", styles[baseline].color]
    drawn = PolyCollection(
        list(corners * task.signs),
        array=100 * shares,
        cmap=LinearSegmentedColormap.from_list("shares", colors),
        lw=0.1,
        edgecolors="face",
    )
    drawn.set_clim(-100, 100)
    drawn.set_rasterized(True)
    ax.add_collection(drawn)
    bar = ax.figure.colorbar(drawn, ax=ax, aspect=25, pad=0.02, shrink=0.9)
    bar.set_label("difference, % of the runs")
    bar.outline.set_visible(False)
