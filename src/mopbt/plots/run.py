"""Plot a run: progress, learning curves, lineages, hyperparameters, importance.

Each function returns a figure, which a notebook shows.
"""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mopbt.errors import MissingExtra
from mopbt.front import Ancestor, Front, Point, metric_columns
from mopbt.importance import FEWEST, Importance
from mopbt.messages import counted
from mopbt.plots.style import BLUE, FAINT, FRONT, INK, STYLE, axis_label, time_unit
from mopbt.problem import Problem
from mopbt.results import Results
from mopbt.space import Categorical, Domain, Float, Int, LogGrid, Ordinal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Width and height in inches.
PANEL = (3.5, 2.5)
MOST_COLUMNS = 3
# More lines cannot be distinguished.
MOST_LINES = 200


def progress_figure(results: Results) -> "Figure":
    """Plot the hypervolume and the best value of each objective over time."""
    _check_not_empty(results)
    objectives = results.problem.objectives
    figure, axes = _panels(1 + len(objectives))
    curve = np.array(results.hypervolume_curve() or [(0.0, 0.0)])
    end = max(results.seconds, float(curve[-1, 0]))
    unit, unit_name = time_unit(np.array([end]))
    virtual = results.settings.engine.get("name") == "simulated"
    time_label = f"{'virtual time' if virtual else 'time'} ({unit_name})"
    _draw_steps(axes[0], curve[:, 0] / unit, curve[:, 1], end / unit)
    axes[0].set_ylabel("hypervolume  (better →)")
    points = sorted(results.points(), key=lambda point: point.seconds)
    feasible = [point for point in points if not point.violation] or points
    for ax, objective in zip(axes[1:], objectives, strict=True):
        found = [p for p in feasible if isfinite(p.scores[objective.name])]
        values = objective.sign * np.array([p.scores[objective.name] for p in found])
        best = objective.sign * np.maximum.accumulate(values) if len(values) else values
        _draw_steps(ax, np.array([p.seconds for p in found]) / unit, best, end / unit)
        ax.set_ylabel(axis_label(replace(objective, name=f"best {objective.name}")))
    for ax in axes:
        ax.set_xlabel(time_label)
        ax.set_xlim(left=0)
    _set_title(figure, f"{results.problem.name}: {counted(len(results), 'interval')}")
    return figure


def learning_curves_figure(results: Results, point: Point | int | None = None) -> "Figure":
    """Plot each metric over steps, a line per member, and the lineage of a model."""
    _check_not_empty(results)
    names = _metric_names(results)
    figure, axes = _panels(len(names))
    trials: dict[int, list[Point]] = {}
    for evaluated in results.points():
        trials.setdefault(evaluated.trial, []).append(evaluated)
    chosen = results.front().knee() if point is None else point
    lineage = results.lineage(chosen)
    for ax, name in zip(axes, names, strict=True):
        for found in list(trials.values())[:MOST_LINES]:
            steps, values = _member_curve(found, name)
            ax.plot(steps, values, color=BLUE, alpha=0.4, lw=0.8, marker=".", ms=2)
        _draw_lineage_scores(ax, lineage, name)
        ax.set_ylabel(_metric_label(results.problem, name))
        _set_step_axis(ax)
    members = counted(len(trials), "member")
    if len(trials) > MOST_LINES:
        members = f"{MOST_LINES} of {members}"
    _set_title(
        figure, f"{results.problem.name}: {members}, and the lineage of model {lineage[-1].model}"
    )
    return figure


def _member_curve(points: Sequence[Point], name: str) -> tuple[list[float], list[float]]:
    """Return steps and values of a member, interrupted where it took other weights."""
    steps: list[float] = []
    values: list[float] = []
    for point in sorted(points, key=lambda p: p.step):
        if point.parent not in (None, point.trial):
            steps.append(point.begin)
            values.append(np.nan)
        steps.append(point.step)
        values.append(point.scores.get(name, np.nan))
    return steps, values


def lineage_figure(results: Results, point: Point | int) -> "Figure":
    """Plot the metrics and the hyperparameters along the lineage of a model."""
    lineage = results.lineage(point)
    metrics = [objective.name for objective in results.problem.objectives]
    space = results.problem.space
    figure, axes = _panels(len(metrics) + len(space))
    for ax, name in zip(axes, metrics, strict=False):
        _draw_lineage_scores(ax, lineage, name)
        ax.set_ylabel(_metric_label(results.problem, name))
    for ax, (name, domain) in zip(axes[len(metrics) :], space.items(), strict=True):
        _set_value_axis(ax, name, domain)
        edges = [lineage[0].begin, *(ancestor.end for ancestor in lineage)]
        values = [_height(domain, ancestor.hp[name]) for ancestor in lineage]
        ax.stairs(values, edges, baseline=None, color=FRONT, lw=1.6)
    for ax in axes:
        for ancestor in lineage:
            if ancestor.exploited:
                ax.axvline(ancestor.begin, color=FAINT, lw=0.8, ls=":", zorder=0)
        _set_step_axis(ax)
    exploits = sum(ancestor.exploited for ancestor in lineage)
    _set_title(
        figure,
        f"{results.problem.name}, model {lineage[-1].model}: "
        f"{counted(len(lineage), 'interval')}, {counted(exploits, 'exploit')} (dotted)",
    )
    return figure


def hyperparameters_figure(results: Results) -> "Figure":
    """Plot each hyperparameter over steps: all members, and those behind the front."""
    _check_not_empty(results)
    space = results.problem.space
    figure, axes = _panels(len(space))
    points = list(results.points())
    lineages = [results.lineage(point) for point in results.front().spread(20)]
    ancestors = {ancestor.model for lineage in lineages for ancestor in lineage}
    for ax, (name, domain) in zip(axes, space.items(), strict=True):
        _set_value_axis(ax, name, domain)
        others = [point for point in points if point.model not in ancestors]
        _draw_values(ax, name, domain, others, colors=BLUE, alpha=0.25, label="other members")
        behind = [point for point in points if point.model in ancestors]
        _draw_values(
            ax, name, domain, behind, colors=FRONT, alpha=0.7, label="lineages of the front"
        )
        _set_step_axis(ax)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    _set_title(figure, f"{results.problem.name}: hyperparameters of the population")
    return figure


def _draw_values(
    ax: "Axes", name: str, domain: Domain, points: Sequence[Point], **style: Any
) -> None:
    """Draw a hyperparameter of intervals as horizontal lines."""
    heights = [_height(domain, point.hp[name]) for point in points]
    ax.hlines(heights, [p.begin for p in points], [p.step for p in points], lw=1.3, **style)


def parallel_figure(front: Front, problem: Problem) -> "Figure":
    """Plot the models of a front as lines over one axis per objective, best on top."""
    if not len(front):
        raise ValueError("the front is empty, so there is nothing to draw; wait for a report")
    objectives = problem.objectives
    figure, (ax,) = _panels(1, width=1.6 + 1.5 * len(objectives))
    scores = front.scores
    low = scores.min(axis=0)
    span = np.where(np.ptp(scores, axis=0) > 0, np.ptp(scores, axis=0), 1.0)
    heights = (scores - low) / span
    downward = [k for k, objective in enumerate(objectives) if objective.sign < 0]
    heights[:, downward] = 1 - heights[:, downward]
    from matplotlib import colormaps

    # The color of a model is its place in the first objective.
    colors = colormaps["viridis"](0.9 * heights[:, 0])
    for row, color in zip(heights, colors, strict=True):
        ax.plot(range(len(objectives)), row, color=color, lw=1.2, alpha=0.8)
    for k in range(len(objectives)):
        ax.axvline(k, color=FAINT, lw=0.8, zorder=0)
        worst, best = sorted((scores[:, k].min(), scores[:, k].max()), reverse=k in downward)
        ax.annotate(f"{best:.4g}", (k, 1.03), ha="center", va="bottom", fontsize=8)
        ax.annotate(f"{worst:.4g}", (k, -0.03), ha="center", va="top", fontsize=8)
    arrows = {"max": "higher is better", "min": "lower is better"}
    labels = [f"{objective.name}\n{arrows[objective.direction]}" for objective in objectives]
    ax.set_xticks(range(len(objectives)), labels)
    ax.set_ylim(-0.14, 1.14)
    ax.set_xlim(-0.4, len(objectives) - 0.6)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    _set_title(figure, f"{problem.name}: a front of {counted(len(front), 'model')}, best on top")
    return figure


def importance_figure(results: Results) -> "Figure":
    """Plot the importance of each hyperparameter, a panel for each objective."""
    found = results.importance()
    if not found:
        raise ValueError(
            f"importance needs at least {FEWEST} intervals with finite metrics, got "
            f"{len(results)}; wait for more reports"
        )
    names = list(results.problem.space)
    figure, axes = _panels(len(found))
    for ax, objective, importance in zip(axes, results.problem.objectives, found, strict=True):
        shares = [100 * importance.shares[name] for name in names]
        bars = ax.barh(range(len(names)), shares, color=BLUE, height=0.6)
        labels = [effect_text(importance, name) for name in names]
        ax.bar_label(bars, labels, padding=3, fontsize=8)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        # Room for the labels beside the bars.
        ax.set_xlim(0, 150)
        ax.set_xticks((0, 50, 100))
        ax.set_xlabel(f"importance (%), {importance.explained:.0%} of the changes explained")
        better = "higher" if objective.sign > 0 else "lower"
        ax.set_title(f"{objective.name} ({better} is better)", fontsize=9, loc="left")
    _set_title(
        figure,
        f"{results.problem.name}: which hyperparameters moved which objective\n"
        "in parentheses: the change in an interval with large values, less that with small ones",
    )
    return figure


def effect_text(importance: Importance, name: str) -> str:
    """Format the importance of a hyperparameter and what its large values do."""
    share = f"{importance.shares[name]:.0%}"
    shift = importance.shifts[name]
    if shift is None or importance.shares[name] < 0.01:
        return share
    return f"{share} ({shift:+.2g})"


def figure_class() -> type["Figure"]:
    """Return a class of figures that notebooks show, also without pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("a plot needs matplotlib: pip install 'mopbt[plot]'") from None

    class RunFigure(Figure):
        """A figure that needs neither a window nor the global state of pyplot."""

        def _repr_png_(self) -> bytes:
            data = BytesIO()
            self.savefig(data, format="png", dpi=110)
            return data.getvalue()

    return RunFigure


def new_figure(size: tuple[float, float]) -> "Figure":
    """Create a figure on a canvas of its own; raise MissingExtra without matplotlib."""
    figure = figure_class()(figsize=size, layout="constrained", facecolor="white")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    return figure


def _panels(count: int, width: float | None = None) -> tuple["Figure", list["Axes"]]:
    columns = min(count, 2 if count == 4 else MOST_COLUMNS)
    rows = -(-count // columns)
    # Without matplotlib this raises MissingExtra.
    figure_class()
    from matplotlib import rc_context

    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = new_figure((width or PANEL[0] * columns, PANEL[1] * rows + 0.4))
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for ax in axes[count:]:
            ax.remove()
    return figure, axes[:count]


def _check_not_empty(results: Results) -> None:
    if not any(True for _ in results.points()):
        raise ValueError(
            "the run has no evaluation that can be drawn; wait for the first report, or check "
            "`results.failures`"
        )


def _metric_names(results: Results) -> list[str]:
    """Return the objectives with their namesakes, then the other metrics."""
    points = list(results.points())
    names = dict.fromkeys(metric_columns(results.problem, points))
    for point in points:
        names |= dict.fromkeys(point.scores)
    return list(names)


def _metric_label(problem: Problem, name: str) -> str:
    found = [objective for objective in problem.objectives if objective.name == name]
    return axis_label(found[0]) if found else name


def _draw_steps(ax: "Axes", x: Any, y: Any, end: float) -> None:
    """Draw values that hold until the next one, and the last one until the end."""
    if len(x):
        ax.plot([*x, end], [*y, y[-1]], drawstyle="steps-post", color=FRONT, lw=1.6)


def _draw_lineage_scores(ax: "Axes", lineage: Sequence[Ancestor], name: str) -> None:
    known = [ancestor for ancestor in lineage if name in ancestor.scores]
    steps = [ancestor.end for ancestor in known]
    values = [ancestor.scores[name] for ancestor in known]
    ax.plot(steps, values, color=FRONT, lw=1.6, marker="o", ms=3, zorder=3)


def _set_value_axis(ax: "Axes", name: str, domain: Domain) -> None:
    """Scale and label the axis of a hyperparameter as its domain is."""
    ax.set_ylabel(name)
    if isinstance(domain, Ordinal | Categorical):
        ax.set_yticks(range(len(domain.values)), [str(value) for value in domain.values])
        ax.set_ylim(-0.5, len(domain.values) - 0.5)
    elif isinstance(domain, LogGrid) or (isinstance(domain, Float | Int) and domain.log):
        ax.set_yscale("log")


def _height(domain: Domain, value: Any) -> float:
    if isinstance(domain, Ordinal | Categorical):
        return float(domain.values.index(value))
    return float(value)


def _set_step_axis(ax: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel("training step")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))


def _set_title(figure: "Figure", text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10, color=INK)
