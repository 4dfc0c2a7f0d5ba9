"""Plot the front of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from mopbt.front import Front, Point
from mopbt.html.run_data import check_comparable, view_of
from mopbt.messages import counted
from mopbt.objectives import Objective
from mopbt.plots.against import names_of, shared_reference
from mopbt.plots.run import new_figure, parallel_figure
from mopbt.plots.style import FAINT, FRONT, INK, axis_label
from mopbt.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

# Color of the front of the second run.
OTHER = "#666666"
# Colors of the evaluations, from early to late steps.
STEPS = ("#dde7f0", "#a6c4de", "#5f95c4", "#1d4f86")
# Characters per line.
TITLE_WIDTH = 88
# Width and height in inches, by number of panels.
SIZES = {1: (7.0, 4.4), 3: (10.5, 3.9)}

FORMATS = (".png", ".pdf", ".svg")

View = tuple[float, float]


@dataclass(frozen=True)
class _Front:
    """A front to draw: its models, color and the end of its legend entry.

    `observed` are the models of the observed front, where the front is a pessimistic one.
    """

    points: Sequence[Point]
    color: str = FRONT
    legend_suffix: str = ""
    observed: Sequence[Point] = ()

    @staticmethod
    def of(
        results: Results,
        color: str = FRONT,
        legend_suffix: str = "",
        front: Front | None = None,
    ) -> "_Front":
        front = results.front() if front is None else front
        observed = results.front(observed=True) if front.kind == "pessimistic" else ()
        return _Front(list(front), color, legend_suffix, list(observed))


def plot_front(
    results: Results, file: Path | str, *, against: Results | None = None, dpi: int = 150
) -> None:
    """Plot all evaluations of a run, colored by training step, and its front.

    Two objectives give one panel, three a panel for each pair, more parallel coordinates. Where
    errors are known, the front is the pessimistic one with the intervals of its models, and the
    observed one is a thin line.

    Args:
        results: A finished or unfinished run.
        file: Output file. Its suffix selects the format: .png, .pdf or .svg.
        against: Another run of the same task, whose front is drawn as well.
        dpi: Dots per inch of raster formats.
    """
    _check_file(file)
    figure = front_figure(results, against=against)
    figure.savefig(file, dpi=dpi)


def front_figure(
    results: Results, *, front: Front | None = None, against: Results | None = None
) -> "Figure":
    """Plot all evaluations of a run and its front; return the figure.

    Args:
        results: A finished or unfinished run.
        front: The models to draw as its front, by default all.
        against: Another run of the same task, whose front is drawn as well.
    """
    if against is None and len(results.problem.objectives) > 3:
        return parallel_figure(results.front() if front is None else front, results.problem)
    points = _points_to_draw(results)
    objectives = results.problem.objectives
    fronts = [_Front.of(results, front=front)]
    reference = None
    if against is not None:
        check_comparable([results, against])
        reference = shared_reference([results, against])
        name, other_name = names_of(results, against)
        # The front of `results` is drawn last, on top of the other one.
        fronts = [
            _Front.of(against, OTHER, f" of {other_name}"),
            _Front.of(results, FRONT, f" of {name}", front),
        ]
    views = _views_of(objectives, points, fronts)
    figure, axes = _draw_panels(objectives, points, fronts, views)
    axes[0].legend(frameon=False, fontsize=10, labelcolor=INK, loc="best")

    title = [
        results.problem.name,
        _count_evaluations(points, views) + _describe(results, reference),
    ]
    if against is not None:
        title.append(f"against {other_name}: {_describe(against, reference)}")
    text = "\n".join(fill(line, TITLE_WIDTH) for line in title)
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5, linespacing=1.4, color=INK)
    return figure


def _check_file(file: Path | str) -> None:
    path = Path(file)
    if path.suffix not in FORMATS or not path.parent.is_dir():
        raise ValueError(
            f"a figure needs a file in an existing directory whose name ends in one of "
            f"{', '.join(FORMATS)}, such as front.png, got {file}"
        )


def _points_to_draw(results: Results) -> list[Point]:
    """Return the evaluations with finite objectives; raise if there are none."""
    names = [objective.name for objective in results.problem.objectives]
    if len(names) not in (2, 3):
        raise ValueError(
            f"a figure of a front needs 2 or 3 objectives, got {len(names)}; plot "
            f"`results.records()` instead"
        )
    points = [p for p in results.points() if all(isfinite(p.scores[name]) for name in names)]
    if not points:
        raise ValueError(
            f"{results.path} has no evaluation that can be drawn; wait for the first report, or "
            f"check `results.failures`"
        )
    return points


def _views_of(
    objectives: Sequence[Objective], points: Sequence[Point], fronts: Sequence[_Front]
) -> dict[Objective, View]:
    """Choose the range of each axis, so that a few extreme evaluations do not set it."""
    on_fronts = [point for front in fronts for point in (*front.points, *front.observed)]
    with_bars = [point for front in fronts for point in front.points]
    views = {}
    for objective in objectives:
        scores = np.array([p.scores[objective.name] for p in points])
        required = [p.scores[objective.name] for p in on_fronts]
        for point in with_bars:
            required += _interval(point, objective)
        views[objective] = view_of(objective, scores, np.array(required))
    return views


def _interval(point: Point, objective: Objective) -> tuple[float, float]:
    """Return the bounds of an objective, or its value twice where they are unknown."""
    bar = point.errors.get(objective.name)
    value = point.scores[objective.name]
    if bar is None or not (isfinite(bar.lower) and isfinite(bar.upper)):
        return value, value
    return bar.lower, bar.upper


def _draw_panels(
    objectives: Sequence[Objective],
    points: Sequence[Point],
    fronts: Sequence[_Front],
    views: Mapping[Objective, View],
) -> tuple["Figure", list["Axes"]]:
    """Draw a panel for each pair of objectives, and a color bar of the steps."""
    pairs = list(combinations(objectives, 2))
    figure = new_figure(SIZES[len(pairs)])
    axes = [figure.add_subplot(1, len(pairs), 1 + i) for i in range(len(pairs))]
    # With more objectives the front is a surface, and its projection has no edge to draw.
    with_edge = len(objectives) == 2
    for ax, (x, y) in zip(axes, pairs, strict=True):
        dots = _draw_evaluations(ax, points, x, y)
        if with_edge and len(fronts) == 2:
            _shade_differences(ax, fronts, x, y, worst=views[y][y.sign < 0])
        for front in fronts:
            if front.observed:
                _draw_errors(ax, front, x, y)
                if with_edge and len(fronts) == 1:
                    _draw_observed(ax, front, x, y)
            _draw_front(ax, front, x, y, with_edge=with_edge)
        _style_axes(ax, x, y, views)
    if not all(p.violation for p in points):
        _add_colorbar(figure, axes, dots)
    return figure, axes


def _columns(
    points: Sequence[Point], x: Objective, y: Objective
) -> tuple[list[float], list[float]]:
    return [p.scores[x.name] for p in points], [p.scores[y.name] for p in points]


def _draw_evaluations(
    ax: "Axes", points: Sequence[Point], x: Objective, y: Objective
) -> "PathCollection":
    """Draw the evaluations, late ones on top and infeasible ones as outlines."""
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
    all_steps = [p.step for p in points]
    xs, ys = _columns(feasible, x, y)
    return ax.scatter(
        xs,
        ys,
        c=[p.step for p in feasible],
        cmap=LinearSegmentedColormap.from_list("steps", STEPS),
        s=14,
        linewidths=0,
        vmin=min(all_steps),
        vmax=max(all_steps),
    )


def _draw_errors(ax: "Axes", front: _Front, x: Objective, y: Objective) -> None:
    """Draw the intervals of the models of a front in both objectives."""
    if not front.points:
        return
    lines = []
    for point in front.points:
        left, right = _interval(point, x)
        low, high = _interval(point, y)
        middle = (point.scores[x.name], point.scores[y.name])
        lines.append([(left, middle[1]), (right, middle[1])])
        lines.append([(middle[0], low), (middle[0], high)])
    from matplotlib.collections import LineCollection

    ax.add_collection(
        LineCollection(lines, colors=front.color, linewidths=0.8, alpha=0.45, zorder=2.5),
        autolim=False,
    )


def _draw_observed(ax: "Axes", front: _Front, x: Objective, y: Objective) -> None:
    """Draw the edge of what the models of the observed front dominate."""
    points = sorted(front.observed, key=lambda p: p.scores[x.name])
    steps: Any = "steps-pre" if x.direction == "max" else "steps-post"
    ax.plot(
        *_columns(points, x, y),
        color=OTHER,
        lw=0.8,
        ls=(0, (3, 2)),
        drawstyle=steps,
        label="observed front" + front.legend_suffix,
        zorder=2.6,
    )


def _draw_front(ax: "Axes", front: _Front, x: Objective, y: Objective, *, with_edge: bool) -> None:
    """Draw the models of a front and, if asked, the edge of what they dominate.

    A front without a feasible model consists of the nearest one, which is drawn hollow.
    """
    points = sorted(front.points, key=lambda p: p.scores[x.name])
    xs, ys = _columns(points, x, y)
    style: dict[str, Any]
    if points and front.points[0].violation:
        style = {"linestyle": "none", "ms": 6.5, "mfc": "white", "mec": front.color, "mew": 1.4}
        label = "nearest"
    else:
        size = 5.0 if len(points) <= 60 else 3.4
        style = {"ms": size, "mec": "white", "mew": 0.4, "lw": 1.2, "color": front.color}
        if with_edge:
            style["drawstyle"] = "steps-pre" if x.direction == "max" else "steps-post"
        else:
            style["linestyle"] = "none"
        label = "pessimistic front" if front.observed else "front"
    ax.plot(xs, ys, marker="o", label=label + front.legend_suffix, zorder=3, **style)


def _shade_differences(
    ax: "Axes", fronts: Sequence[_Front], x: Objective, y: Objective, *, worst: float
) -> None:
    """Shade what only one of two fronts dominates, in the color of that front.

    Infeasible models dominate nothing.
    """
    feasible = [[p for p in front.points if not p.violation] for front in fronts]
    xs = sorted({x.sign * p.scores[x.name] for points in feasible for p in points})
    heights = []
    for points in feasible:
        pairs = [(x.sign * p.scores[x.name], y.sign * p.scores[y.name]) for p in points]
        heights.append(
            [max((b for a, b in pairs if a >= value), default=y.sign * worst) for value in xs]
        )
    other, own = heights
    for low, high, color in ((other, own, fronts[1].color), (own, other, fronts[0].color)):
        ax.fill_between(
            [x.sign * value for value in xs],
            [y.sign * value for value in low],
            [y.sign * max(pair) for pair in zip(low, high, strict=True)],
            step="pre",
            color=color,
            alpha=0.25,
            linewidth=0,
            zorder=2,
        )


def _style_axes(ax: "Axes", x: Objective, y: Objective, views: Mapping[Objective, View]) -> None:
    ax.set_xlabel(axis_label(x), fontsize=11, color=INK)
    ax.set_ylabel(axis_label(y), fontsize=11, color=INK)
    ax.set_xlim(*views[x])
    ax.set_ylim(*views[y])
    ax.tick_params(colors=INK, labelsize=9.5, length=3, color=FAINT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)


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


def _count_evaluations(points: Sequence[Point], views: Mapping[Objective, View]) -> str:
    outside = 0
    for point in points:
        inside = [low <= point.scores[o.name] <= high for o, (low, high) in views.items()]
        outside += not all(inside)
    hidden = f" ({outside:,} outside the view)" if outside else ""
    return f"{counted(len(points), 'evaluation')}{hidden}, "


def _describe(results: Results, reference: Mapping[str, float] | None) -> str:
    """Describe a front by its size and hypervolume, or say that no model is feasible."""
    front = results.front()
    shortfall = front.shortfall(front[0]) if front else ""
    if shortfall:
        return shortfall
    volume = results.hypervolume(reference)
    kind = "a pessimistic front" if front.kind == "pessimistic" else "a front"
    return f"{kind} of {counted(len(front), 'model')}, hypervolume {volume:.4g}"
