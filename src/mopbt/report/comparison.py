"""The report of a comparison: its tables, and figures as in the paper and two more, in one style.

MO-PBT always has the same strong colour and lies on top; every algorithm differs from every other by colour or line, and by marker,
so that figures can be read in grey and by every kind of colour vision; letters have 8 points where a figure is as wide as a page.
Axes are in the scores' own sense. A figure is drawn where the comparison holds what it shows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import moocore
import numpy as np
from numpy.typing import NDArray

from mopbt import metrics
from mopbt.compare import Comparison
from mopbt.errors import MissingExtra
from mopbt.objectives import Objective, parse_constraints
from mopbt.report.figures import FAINT, FRONT, INK
from mopbt.report.tables import (
    RELATIONS,
    Array,
    MeasuredRun,
    MeasuredTask,
    baseline_of,
    labels_of,
    measure,
    measure_task,
    runs_to_csv,
    tables,
    to_csv,
    to_latex,
    to_markdown,
)
from mopbt.spelling import meant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 7.0  # inches: both columns of a page
DPI = 200
BINS = 40  # of a histogram, along each objective
SHADES = ("#e3ebf4", "#a6c4de", "#3f7bb3", "#12355f")  # from few evaluations to many
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # letters stay letters: journals ask for it
}


@dataclass(frozen=True)
class Style:
    """How an algorithm looks in every figure."""

    colour: str
    line: Any = "-"  # of matplotlib's line styles
    marker: str = "o"

    @property
    def leads(self) -> bool:
        """Tell whether this is the strong colour, whose lines are thick and lie on top."""
        return self.colour == FRONT


BLUE, GREEN, ORANGE, PURPLE, SKY, GREY, BLACK = "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#606060", "#000000"
DASHED, DOTTED, MIXED = (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2))
LEAD = Style(FRONT)
STYLES = {  # of the labels that the paper's experiments use; a family shares a colour
    "random search": Style(GREY, "-", "s"),
    "PBT, objective 1": Style(ORANGE, "-", "^"),
    "PBT, objective 2": Style(ORANGE, DASHED, "v"),
    "PBT, objective 3": Style(ORANGE, DOTTED, "<"),
    "PBT, random scalarization": Style(GREEN, "-", "D"),
    "PBT, max scalarization": Style(GREEN, DASHED, "P"),
    "MO-ASHA": Style(BLUE, "-", "X"),
    "BO-MO-ASHA": Style(BLUE, DASHED, "p"),
    "qNEHVI": Style(PURPLE, "-", "*"),
    "NSGA-II": Style(BLACK, MIXED, "h"),
    "ParEGO": Style(SKY, "-", ">"),
}
SPARE = tuple(  # for other labels, in turn
    Style(colour, line, marker)
    for line, markers in (("-", "^DvsP>h"), (DASHED, "<pXd8*H"), (MIXED, "^DvsP>h"))
    for colour, marker in zip((GREEN, ORANGE, PURPLE, SKY, BLUE, GREY, BLACK), markers, strict=True)
)


def write_report(comparison: Comparison, out: Path | str) -> list[Path]:
    """Write tables.md, tables.tex, tables.csv, runs.csv and figures/*.png and *.pdf of a comparison, and return the files."""
    out, measured = Path(out), measure(comparison)
    files = _write_tables(comparison, measured, out)
    for name in comparison.experiment.figures or FIGURES:
        for stem, figure in draw(name, measured).items():
            files += _save(figure, out / "figures" / stem)
    return files


def draw(name: str, measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Return the figures of one kind of `FIGURES`, by the names of their files; none where nothing is there that they show."""
    check_figures([name])
    with _styled():
        return FIGURES[name](measured)


def check_figures(names: Iterable[str]) -> None:
    """Raise ValueError where one of the names is not that of a figure."""
    for name in names:
        if name not in FIGURES:
            raise ValueError(f"a figure must be one of {', '.join(FIGURES)}, got {name!r}{meant(name, FIGURES)}")


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Return how each label looks: the baseline in the strong colour, the paper's algorithms as always, others in turn."""
    labels = tuple(labels)
    fixed = {label: STYLES[label] for label in labels if label in STYLES} | {baseline_of(labels): LEAD}
    taken = {(style.colour, style.line) for style in fixed.values()}
    spare = cycle([style for style in SPARE if (style.colour, style.line) not in taken])
    return {label: fixed[label] if label in fixed else next(spare) for label in labels}


def _write_tables(comparison: Comparison, measured: Sequence[MeasuredTask], out: Path) -> list[Path]:
    made = tables(measured)
    texts = {
        "tables.md": "\n".join([_head(comparison), *(f"## {table.measure}\n\n{to_markdown(table)}" for table in made)]),
        "tables.tex": "\n".join(map(to_latex, made)),
        "tables.csv": to_csv(made),
        "runs.csv": runs_to_csv(measured),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _head(comparison: Comparison) -> str:
    """Return what the comparison is, and how much of it is missing."""
    missing, runs = len(comparison.missing), len(comparison.runs)
    lines = [f"# {comparison.experiment.name}", comparison.experiment.about]
    lines += [f"{missing} of {missing + runs} runs are not finished."] if missing else []
    return "\n\n".join(filter(None, lines)) + "\n"


def _save(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF, without the time: the same comparison gives the same files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.pdf")
    with _styled():
        figure.savefig(png, dpi=DPI)
        figure.set_layout_engine("none")  # it stays as it is: to lay it out again would double the cost
        figure.savefig(pdf, dpi=DPI, metadata={"CreationDate": None})
    return [png, pdf]


# Over time


def progress(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw log10(HV* - HV) over time: the mean over runs, and the band from the worst to the best one (Figures 3 to 5)."""
    return {"progress": _progress(measured, styles_of(labels_of(measured)))} if measured else {}


def generalisation(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the same on test data, of the fronts that were found on validation data (Figure 13)."""
    tested = [task for task in measured if task.best_test is not None]

    def differences(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        return metrics.log_hypervolume_difference(task.best_test or 0.0, _test_curves(runs))

    label, styles = "(← better)  log₁₀(HV* − HV), test", styles_of(labels_of(tested))
    return {"generalisation": _over_time(tested, differences, label, styles)} if tested else {}


def transfer(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the mean hypervolume on test data as a share of that on validation data: how much of what was found is real."""
    tested = [task for task in measured if task.best_test is not None]

    def shares(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        found, real = (curves.mean(axis=0, keepdims=True) for curves in (_curves(runs), _test_curves(runs)))
        return np.asarray(100 * np.divide(real, found, out=np.full_like(real, np.nan), where=found > 0))

    label, styles = "HV on test, % of validation", styles_of(labels_of(tested))
    # The first fronts are of a few bad models, whose shares are noise that would set the scale.
    return {"transfer": _over_time(tested, shares, label, styles, since=0.2)} if tested else {}


def _progress(measured: Sequence[MeasuredTask], styles: Mapping[str, Style]) -> "Figure":
    def differences(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        return metrics.log_hypervolume_difference(task.best, _curves(runs))

    return _over_time(measured, differences, "(← better)  log₁₀(HV* − HV)", styles)


def _over_time(
    measured: Sequence[MeasuredTask],
    values_of: Callable[[MeasuredTask, Sequence[MeasuredRun]], Array],
    label: str,
    styles: Mapping[str, Style],
    *,
    since: float = 0.0,
) -> "Figure":
    """Draw values (R, T) of R runs at T times, in a panel for each task, since a share of an algorithm's time is over."""
    figure, axes = _sheet(len(measured), height=1.9)
    for ax, task in zip(axes, measured, strict=True):
        unit, name = _unit(task.times)
        for algorithm in _back_to_front(task.runs, styles):
            runs = [run for run in task.runs[algorithm] if len(run.data)]
            begin, end = max(run.data.seconds[0] for run in runs), max(run.data.seconds[-1] for run in runs)
            # All runs must have something to show.
            shown = (task.times >= max(begin, since * end)) & (task.times <= end)
            _draw_band(ax, task.times[shown] / unit, values_of(task, runs)[:, shown], algorithm, styles)
        ax.set_title(task.name)
        ax.set_xlabel(f"virtual time ({name})")
    _label_rows(axes, label)
    _legend(figure, styles, len(measured))
    return figure


def _draw_band(ax: "Axes", x: Array, values: Array, label: str, styles: Mapping[str, Style]) -> None:
    """Draw the mean of values (R, n) at x (n,) as steps, and the band from the smallest to the largest."""
    style, place = styles[label], list(styles).index(label) / len(styles)
    shade = 0.22 if style.leads else 0.1
    ax.fill_between(x, values.min(axis=0), values.max(axis=0), step="post", color=style.colour, alpha=shade, lw=0)
    # Markers of algorithms that lie close stand side by side.
    every = (0.02 + 0.22 * place, 0.25) if len(x) > 1 else None  # matplotlib cannot space marks on a line of one point
    ax.plot(x, values.mean(axis=0), drawstyle="steps-post", **_line(style), markevery=every)


def _curves(runs: Sequence[MeasuredRun]) -> Array:
    return np.array([run.hypervolumes for run in runs])


def _test_curves(runs: Sequence[MeasuredRun]) -> Array:
    return np.array([run.test_hypervolumes for run in runs if run.test_hypervolumes is not None])


# Where fronts lie, and where algorithms searched


def fronts(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the front of each algorithm's run of median hypervolume, with its hypervolume and coverage (Figure 6)."""
    flat = [task for task in measured if len(task.problem.objectives) == 2]
    if not flat:
        return {}
    styles = styles_of(labels_of(flat))
    figure, axes = _sheet(len(flat), height=2.7, columns=2, width=WIDTH if len(flat) > 1 else 5.2)
    for ax, task in zip(axes, flat, strict=True):
        x, y = task.problem.objectives
        lines = {}
        for label in _back_to_front(task.runs, styles):
            run, style = median_run(task.runs[label]), styles[label]
            points = run.data.objectives[run.front] * [x.sign, y.sign]
            name = f"{label}: " if len(flat) == 1 else ""
            text = f"{name}{100 * run.hypervolumes[-1]:.1f}, {100 * (run.coverage or 0):.1f}"
            lines[label] = _draw_stairs(ax, points, x, style, label=text, marker=style.marker, ms=2.4)
        ax.set_title(task.name)
        _label_axes(ax, x, y)
        _legend_beside(ax, [lines[label] for label in task.runs], "HV, coverage\n(both × 100)")
    if len(flat) > 1:
        _legend(figure, styles, len(flat))
    return {"fronts": figure}


def median_run(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return the run of median hypervolume, and of an even number the one just below the middle."""
    return sorted(runs, key=lambda run: run.hypervolumes[-1])[(len(runs) - 1) // 2]


def searched(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw for each task where each algorithm's evaluations lie, as histograms with common bins (Figure 7)."""
    return {f"searched-{task.name}": _searched(task) for task in measured if len(task.problem.objectives) == 2}


def _searched(task: MeasuredTask) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    x, y = task.problem.objectives
    points = {label: [run.data.objectives * [x.sign, y.sign] for run in runs] for label, runs in task.runs.items()}
    edges = [bin_edges(np.concatenate([of_run[:, k] for of_label in points.values() for of_run in of_label])) for k in (0, 1)]
    counts = {label: histogram(of_label, edges) for label, of_label in points.items()}
    most, fewest = max(float(c.max()) for c in counts.values()), 1 / max(len(runs) for runs in task.runs.values())
    look: dict[str, Any] = {
        "norm": LogNorm(fewest, max(most, 2 * fewest)),
        "cmap": LinearSegmentedColormap.from_list("counts", SHADES),
    }
    look |= {"extent": (*edges[0][[0, -1]], *edges[1][[0, -1]]), "origin": "lower", "aspect": "auto", "interpolation": "none"}
    columns = len(points) if len(points) <= 4 else 5 if len(points) > 8 else 4
    figure, axes = _sheet(len(points), height=1.6, columns=columns, width=min(WIDTH, 1.5 * columns + 1.0), sharex=True, sharey=True)
    for ax, (label, style) in zip(axes, styles_of(task.runs).items(), strict=True):
        drawn = ax.imshow(np.where(counts[label] > 0, counts[label], np.nan).T, **look)
        ax.set_title(fill(label, 18), color=FRONT if style.leads else INK, fontweight="bold" if style.leads else "normal")
        ax.locator_params(nbins=3)
    figure.supxlabel(_axis_label(x), fontsize=8)
    figure.supylabel(_axis_label(y), fontsize=8)
    bar = figure.colorbar(drawn, ax=axes, aspect=30, pad=0.01, shrink=0.9, format="{x:g}")
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
    return np.linspace(low, high, BINS + 1) if low < high else np.linspace(low - 0.5, high + 0.5, BINS + 1)


# What is attained how often


def attainment(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw what half of an algorithm's runs attain, and where the baseline attains more often than the best of the others."""
    flat = [task for task in measured if len(task.problem.objectives) == 2 and len(task.runs) > 1]
    fit = [task for task in flat if all(len(runs) > 1 and all(len(run.front) for run in runs) for runs in task.runs.values())]
    return {f"attainment-{task.name}": _attainment(task) for task in fit}


def _attainment(task: MeasuredTask) -> "Figure":
    x, y = task.problem.objectives
    styles, (first, rival) = styles_of(task.runs), _first_and_rival(task)
    figure, (left, right) = _sheet(2, height=3.0, columns=2, sharex=True, sharey=True)
    for label in _back_to_front(task.runs, styles):
        if label in (first, rival):
            _draw_reach(left, task.runs[label], x, y, styles[label].colour)
        _draw_stairs(left, attained(task.runs[label], 50) * [x.sign, y.sign], x, styles[label])
    left.set_title(f"{task.name}: attained by half of the runs")
    _label_axes(left, x, y)
    _draw_difference(right, task, (first, rival), styles)
    _legend(figure, styles, 2, marker="")
    return figure


def attained(runs: Sequence[MeasuredRun], percent: float) -> Array:
    """Return the corners (n, 2), larger is better, of what a share of the runs attains; 0 per cent: of what any run attains."""
    points, sets = _front_points(runs)
    return np.asarray(-moocore.eaf(-points, sets, percentiles=[percent])[:, :2])


def attainment_difference(first: Sequence[MeasuredRun], second: Sequence[MeasuredRun], worst: Array) -> tuple[Array, Array]:
    """Return the corners (n, 4, 2) of rectangles where the shares of runs that attain a point differ, and by how much (n,).

    Args:
        first: Runs of one algorithm.
        second: Runs of another; of the one with more of them only as many count.
        worst: Where unbounded rectangles end, (2,).
    """
    n = min(len(first), len(second))
    costs = [np.column_stack([-points, sets]) for points, sets in (_front_points(runs[:n]) for runs in (first, second))]
    rectangles = moocore.eafdiff(*costs, rectangles=True)
    rectangles = rectangles[rectangles[:, 4] != 0]
    (x1, y1), (x2, y2) = (-np.minimum(rectangles[:, ends], -worst).T for ends in (slice(0, 2), slice(2, 4)))
    corners = [np.column_stack(corner) for corner in ((x1, y1), (x1, y2), (x2, y2), (x2, y1))]
    return np.stack(corners, axis=1), rectangles[:, 4] / n


def _front_points(runs: Sequence[MeasuredRun]) -> tuple[Array, NDArray[np.intp]]:
    """Return the points (n, 2) of all runs' fronts and which run each is of (n,)."""
    points = [run.data.objectives[run.front] for run in runs]
    return np.concatenate(points), np.repeat(np.arange(1, len(runs) + 1), [len(of_run) for of_run in points])


def _first_and_rival(task: MeasuredTask) -> tuple[str, str]:
    first = baseline_of(tuple(task.runs))
    return first, max((label for label in task.runs if label != first), key=lambda label: _mean(task.runs[label]))


def _draw_reach(ax: "Axes", runs: Sequence[MeasuredRun], x: Objective, y: Objective, colour: str) -> None:
    """Shade from what all runs attain to what any run attains."""
    some, every = (attained(runs, percent) for percent in (0, 100))
    xs = np.unique(np.concatenate([some[:, 0], every[:, 0]]))
    floor = min(some[:, 1].min(), every[:, 1].min())
    order = np.argsort(xs * x.sign)
    high, low = (_height(corners, xs, floor)[order] * y.sign for corners in (some, every))
    steps: dict[str, Any] = {"step": "pre" if x.direction == "max" else "post"}
    ax.fill_between(xs[order] * x.sign, low, high, color=colour, alpha=0.16, lw=0, **steps)


def _height(corners: Array, xs: Array, floor: float) -> Array:
    """Return the largest second objective (m,) that corners (n, 2) attain with a first one of at least xs (m,)."""
    reach = corners[None, :, 0] >= xs[:, None]
    return np.asarray(np.where(reach, corners[None, :, 1], floor).max(axis=1))


def _draw_difference(ax: "Axes", task: MeasuredTask, pair: tuple[str, str], styles: Mapping[str, Style]) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap

    x, y = task.problem.objectives
    ends = [run.data.objectives[run.front].min(axis=0) for runs in task.runs.values() for run in runs]
    corners, shares = attainment_difference(task.runs[pair[0]], task.runs[pair[1]], np.min(ends, axis=0))
    shades = LinearSegmentedColormap.from_list("more often", [styles[pair[1]].colour, "#ffffff", FRONT])
    drawn = PolyCollection(list(corners * [x.sign, y.sign]), array=100 * shares, cmap=shades, lw=0.1, edgecolors="face")
    drawn.set_clim(-100, 100)
    drawn.set_rasterized(True)
    ax.add_collection(drawn)
    ax.set_title(f"{pair[0]} less {pair[1]}")
    ax.set_xlabel(_axis_label(x))
    bar = ax.figure.colorbar(drawn, ax=ax, aspect=25, pad=0.02, shrink=0.9)
    bar.set_label("difference, % of the runs")
    bar.outline.set_visible(False)


# What settings and spaces do


def final(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the final hypervolume of every run in per cent of the baseline's mean: what settings change (Figures 10 to 12, 15)."""
    labels = labels_of(measured)
    if len(labels) < 2:
        return {}
    styles, baseline = styles_of(labels), baseline_of(labels)
    figure, axes = _sheet(len(measured), height=0.5 + 0.19 * len(labels), sharey=True)
    for ax, task in zip(axes, measured, strict=True):
        unit = _mean(task.runs.get(baseline, next(iter(task.runs.values()))))
        ax.axvline(100, color=FAINT, lw=0.8, zorder=0)
        for label, runs in task.runs.items():
            values = 100 * final_hypervolumes(runs) / unit
            _draw_values(ax, values, np.full(len(values), labels.index(label)), styles[label])
        ax.set_title(task.name)
        ax.set_yticks(range(len(labels)), labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    figure.supxlabel(f"hypervolume, % of the mean of {baseline}  (better →)", fontsize=8)
    return {"final": figure}


def populations(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the final hypervolume over the size of the population, or of the one whose time an algorithm gets (Figure 8)."""
    families, baseline = _families(measured), baseline_of(labels_of(measured))
    shown = [task for task in measured if baseline in task.runs]
    if not families or not shown:
        return {}
    styles = styles_of(families)
    figure, axes = _sheet(len(shown), height=2.1)
    for ax, task in zip(axes, shown, strict=True):
        for i, (family, sizes) in enumerate(families.items()):
            known = {size: final_hypervolumes(task.runs[label]) for size, label in sizes.items() if label in task.runs}
            values = {size: 100 * of_size / _mean(task.runs[baseline]) for size, of_size in sorted(known.items())}
            _draw_sizes(ax, values, styles[family], aside=i - (len(families) - 1) / 2)
        ticks = sorted({size for sizes in families.values() for size in sizes})
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, map(str, ticks))
        ax.set_title(task.name)
        ax.set_xlabel("population")
    _label_rows(axes, f"HV, % of {baseline}  (better →)")
    _legend(figure, styles, len(shown))
    return {"populations": figure}


def spaces(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the progress on tasks that differ in the number of hyperparameters alone, measured as one task (Figure 9)."""
    sizes = [len(task.problem.space) for task in measured]
    if len(set(sizes)) < max(len(sizes), 2) or len({task.problem.objectives for task in measured}) > 1:
        return {}
    runs, contenders, styles = [], {}, {}
    for task, size, line in zip(measured, sizes, cycle(("-", DASHED, DOTTED)), strict=False):
        for label, of_label in task.runs.items():
            name = f"{label}, {size} variables"
            contenders[name] = task.contenders[label]
            styles[name] = replace(styles_of(labels_of(measured))[label], line=line)
            runs += [replace(run.data, algorithm=name) for run in of_label]
    together = measure_task(" and ".join(task.name for task in measured), measured[0].problem, runs, contenders)
    return {"spaces": _progress([together], styles)}


def final_hypervolumes(runs: Sequence[MeasuredRun]) -> Array:
    """Return the hypervolume (R,) of each run at its end."""
    return np.array([run.hypervolumes[-1] for run in runs])


def _mean(runs: Sequence[MeasuredRun]) -> float:
    """Return the mean hypervolume, by which others are divided; 1 where it is 0."""
    return float(final_hypervolumes(runs).mean()) or 1.0


def _families(measured: Sequence[MeasuredTask]) -> dict[str, dict[int, str]]:
    """Return the labels of algorithms that differ in the size of the population alone, by the shortest of them and by size."""
    families: dict[str, dict[int, str]] = {}
    for label in labels_of(measured):
        task = next(task for task in measured if label in task.runs)
        contender = task.contenders[label]
        sized = task.runs.get(contender.time_of or label, task.runs[label])
        size = max(len(np.unique(run.data.trials)) for run in sized)
        alike = {key: value for key, value in contender.options.items() if key != "population"}
        families.setdefault(repr(sorted(alike.items())), {})[size] = label
    return {min(sizes.values(), key=len): sizes for sizes in families.values() if len(sizes) > 1}


def _draw_sizes(ax: "Axes", values: Mapping[int, Array], style: Style, *, aside: float) -> None:
    """Draw values (R,) by size, a little aside of those of other algorithms, and a line through their means."""
    places = [size * 2 ** (0.1 * aside) for size in values]
    ax.plot(places, [of_size.mean() for of_size in values.values()], **_line(style) | {"marker": ""})
    for place, of_size in zip(places, values.values(), strict=True):
        _draw_values(ax, np.full(len(of_size), place), of_size, style)


def _draw_values(ax: "Axes", x: Array, y: Array, style: Style) -> None:
    """Draw each run as a dot, their range as a bar, and the mean as the algorithm's marker."""
    ax.plot([x.min(), x.max()], [y.min(), y.max()], color=style.colour, lw=3.5, alpha=0.25, solid_capstyle="round")
    ax.plot(x, y, "o", color=style.colour, ms=2, mew=0, alpha=0.7)
    ax.plot([x.mean()], [y.mean()], marker=style.marker, color=style.colour, ms=5.5, mec="white", mew=0.4, zorder=3)


# Trivial classifiers


def trivial(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw which share of the models are trivial classifiers after so many steps of training (Figure 18)."""
    known = [task for task in measured if all(trivials(run, task) is not None for runs in task.runs.values() for run in runs)]
    if not known:
        return {}
    styles = styles_of(labels_of(known))
    figure, axes = _sheet(len(known), height=1.9)
    for ax, task in zip(axes, known, strict=True):
        for label in _back_to_front(task.runs, styles):
            steps, shares = trivial_shares(task, label)
            _draw_band(ax, steps, 100 * shares, label, styles)
        ax.set_ylim(-2, 102)
        ax.set_title(task.name)
        ax.set_xlabel("training step")
    _label_rows(axes, "trivial classifiers, %")
    _legend(figure, styles, len(known))
    return {"trivial": figure}


def trivials(run: MeasuredRun, task: MeasuredTask) -> NDArray[np.bool_] | None:
    """Return which evaluations (n,) are of trivial classifiers; None where the comparison does not tell.

    They are those that call everything, or nothing, positive. Where recall is not measured they are those that miss a demand which
    some algorithm of the comparison has to meet: the paper's is to be more accurate than any trivial classifier.
    """
    scores = run.data.scores
    if "recall" in scores:
        return np.asarray((scores["recall"] == 0) | (scores["recall"] == 1))
    demands = parse_constraints([text for contender in task.contenders.values() for text in contender.constraints])
    missed = [~RELATIONS[demand.relation](scores[demand.name], demand.bound) for demand in demands]
    return np.asarray(np.any(missed, axis=0) & np.isfinite(run.data.objectives).all(axis=1)) if missed else None


def trivial_shares(task: MeasuredTask, label: str) -> tuple[Array, Array]:
    """Return the steps (S,) that all runs of an algorithm reached, and the share of trivial classifiers among each run's (R, S)."""
    runs = task.runs[label]
    steps = sorted(set.intersection(*(set(run.data.steps.tolist()) for run in runs)))
    masks = [trivials(run, task) for run in runs]
    pairs = [(run.data.steps, mask) for run, mask in zip(runs, masks, strict=True) if mask is not None]
    return np.array(steps, dtype=float), np.array([[mask[at == step].mean() for step in steps] for at, mask in pairs])


FIGURES: Mapping[str, Callable[[Sequence[MeasuredTask]], dict[str, "Figure"]]] = {
    kind.__name__: kind
    for kind in (progress, fronts, searched, attainment, generalisation, transfer, final, populations, spaces, trivial)
}


# The sheet


@contextmanager
def _styled() -> Iterator[None]:
    """Draw and write in the style, and leave matplotlib's settings as they were."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtra(
            "the figures of a comparison need matplotlib: pip install 'mopbt[plot]'; its tables are written"
        ) from None
    with rc_context(STYLE):  # type: ignore[arg-type]
        yield


def _sheet(
    panels: int, *, height: float, columns: int | None = None, width: float | None = None, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """Return a figure of so many panels of a height in inches, in rows; it is as wide as a page, or less for a single one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(panels, columns or {4: 2}.get(panels, 3))
    rows = -(-panels // columns)
    size = (width or (WIDTH if panels > 1 else 4.8), height * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # no window, and nothing global
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in axes[panels:]:
        ax.remove()
    for ax in axes[max(panels - columns, 0) : panels]:  # the lowest ones, also above an empty place
        ax.tick_params(labelbottom=True)
    return figure, axes[:panels]


def _back_to_front(labels: Iterable[str], styles: Mapping[str, Style]) -> list[str]:
    """Return the labels in the order of drawing: what leads comes last and lies on top."""
    return sorted(labels, key=lambda label: styles[label].leads)


def _line(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "ls": style.line, "marker": style.marker, "lw": 2.0 if style.leads else 1.2, "mew": 0.4}


def _draw_stairs(ax: "Axes", points: Array, x: Objective, style: Style, **options: Any) -> "Line2D":
    """Draw the edge of what points (n, 2), in the scores' own sense, dominate."""
    xs, ys = points[np.argsort(points[:, 0])].T
    steps = {"drawstyle": "steps-pre" if x.direction == "max" else "steps-post"}
    thin = {"marker": "", "lw": 1.6 if style.leads else 1.0}
    (line,) = ax.plot(xs, ys, **_line(style) | thin | steps | options)
    return line


def _label_axes(ax: "Axes", x: Objective, y: Objective) -> None:
    ax.set_xlabel(_axis_label(x))
    ax.set_ylabel(_axis_label(y))


def _axis_label(objective: Objective) -> str:
    return f"{objective.name}  (better →)" if objective.direction == "max" else f"(← better)  {objective.name}"


def _label_rows(axes: Sequence["Axes"], text: str) -> None:
    """Label the vertical axis of the first panel in each row."""
    left = min(ax.get_position().x0 for ax in axes)
    for ax in axes:
        if ax.get_position().x0 == left:
            ax.set_ylabel(text)


def _legend(figure: "Figure", styles: Mapping[str, Style], panels: int, **options: Any) -> None:
    """Put a legend below all panels, or beside a single one."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **_line(style) | options) for label, style in styles.items()]
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": _legend_columns(list(styles))}
    figure.legend(handles=handles, handlelength=3, **below if panels > 1 else {"loc": "outside right center"})


def _legend_columns(texts: Sequence[str]) -> int:
    """Return in how many columns texts fit below a figure: a letter takes about 0.06 inches, and a sample of a line 0.65."""
    for columns in (5, 4, 3, 2):
        rows = -(-len(texts) // columns)
        widths = [0.65 + 0.06 * max(map(len, texts[i : i + rows])) for i in range(0, len(texts), rows)]
        if sum(widths) <= WIDTH:
            return len(widths)
    return 1


def _legend_beside(ax: "Axes", lines: Sequence["Line2D"], title: str) -> None:
    """Put what lines are labelled with beside their panel."""
    options: dict[str, Any] = {"handles": lines, "loc": "upper left", "bbox_to_anchor": (1.0, 1.04), "title": title}
    ax.legend(**options, title_fontsize=8, alignment="left", handlelength=1.5, handletextpad=0.5, labelspacing=0.3, borderpad=0.2)


def _unit(times: Array) -> tuple[float, str]:
    """Return the seconds of a unit that suits times (T,), and its name."""
    longest = float(times.max())
    return next(((size, name) for size, name in ((3600.0, "h"), (60.0, "min")) if longest >= 2 * size), (1.0, "s"))
