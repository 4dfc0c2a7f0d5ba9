"""Plot final hypervolumes: the effects of settings, populations and spaces."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from textwrap import fill, wrap
from typing import TYPE_CHECKING

import numpy as np

from mopbt.compare.measures import (
    Array,
    MeasuredTask,
    baseline_of,
    final_hypervolumes,
    labels_of,
    mean_hypervolume,
    measure_task,
)
from mopbt.plots.progress import plot_progress
from mopbt.plots.style import (
    DASHED,
    DOTTED,
    FAINT,
    Style,
    Styles,
    add_legend,
    create_panels,
    label_rows,
    line_options,
    set_title,
    shown_styles,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Characters per line.
LABEL_WIDTH = 36


def final(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot the final hypervolume of every run (Figures 10 to 12 and 15).

    Hypervolumes are in percent of the baseline's mean.
    """
    baseline = baseline_of(labels_of(measured))
    measured = [task for task in measured if baseline in task.runs]
    labels = labels_of(measured)
    if len(labels) < 2:
        return {}
    lines = sum(len(wrap(label, LABEL_WIDTH)) for label in labels)
    figure, axes = create_panels(len(measured), height=0.5 + 0.19 * lines, sharey=True)
    for ax, task in zip(axes, measured, strict=True):
        unit = mean_hypervolume(task.runs[baseline])
        ax.axvline(100, color=FAINT, lw=0.8, zorder=0)
        for label, runs in task.runs.items():
            values = 100 * final_hypervolumes(runs) / unit
            _draw_values(ax, values, np.full(len(values), labels.index(label)), styles[label])
        set_title(ax, task.title)
        ax.set_yticks(range(len(labels)), [fill(label, LABEL_WIDTH) for label in labels])
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    figure.supxlabel(f"hypervolume, % of the mean of {baseline}  (better →)", fontsize=8)
    return {"final": figure}


def populations(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot the final hypervolume over the size of the population (Figure 8).

    An algorithm without a population is placed at the size of the one whose time it gets.
    """
    families = _find_families(measured)
    baseline = baseline_of(labels_of(measured))
    shown = [task for task in measured if baseline in task.runs]
    if not families or not shown:
        return {}
    ticks = sorted({size for sizes in families.values() for size in sizes})
    figure, axes = create_panels(len(shown), height=2.1)
    for ax, task in zip(axes, shown, strict=True):
        unit = mean_hypervolume(task.runs[baseline])
        for i, (family, sizes) in enumerate(families.items()):
            values = {}
            for size, label in sorted(sizes.items()):
                if label in task.runs:
                    values[size] = 100 * final_hypervolumes(task.runs[label]) / unit
            _draw_sizes(ax, values, styles[family], offset=i - (len(families) - 1) / 2)
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, map(str, ticks))
        ax.minorticks_off()
        set_title(ax, task.title)
        ax.set_xlabel("population")
    label_rows(axes, f"HV, % of {baseline}  (better →)")
    add_legend(figure, shown_styles(styles, families), len(shown))
    return {"populations": figure}


def spaces(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot the progress on tasks with different numbers of hyperparameters (Figure 9).

    The tasks are measured as one. Time is a share of each task's total, because the cost of a
    step is measured for each task and may differ by chance.
    """
    sizes = [len(task.problem.space) for task in measured]
    if len(sizes) < 2 or len(set(sizes)) < len(sizes):
        return {}
    if len({task.problem.objectives for task in measured}) > 1:
        return {}
    runs = []
    entries = {}
    own_styles = {}
    for task, size, line in zip(measured, sizes, cycle(("-", DASHED, DOTTED)), strict=False):
        total = task.times[-1]
        for label, of_label in task.runs.items():
            name = f"{label}, {size} variables"
            entries[name] = task.entries[label]
            own_styles[name] = replace(styles[label], line=line)
            for run in of_label:
                shares = run.data.seconds / total
                runs.append(replace(run.data, algorithm=name, seconds=shares))
    names = " and ".join(task.title for task in measured)
    together = measure_task(names, measured[0].problem, runs, entries)
    return {"spaces": plot_progress([together], own_styles, time_label="share of the time")}


def _find_families(measured: Sequence[MeasuredTask]) -> dict[str, dict[int, str]]:
    """Group the algorithms that differ only in the size of the population.

    Returns the labels of each group by size. A group is named after its shortest label.
    """
    families: dict[str, dict[int, str]] = {}
    for label in labels_of(measured):
        task = next(task for task in measured if label in task.runs)
        entry = task.entries[label]
        # An algorithm without a population has the size of the one whose time it gets.
        sized = entry.time_of or label
        if sized not in task.runs:
            continue
        if not task.entries[sized].has_population:
            continue
        size = max(len(np.unique(run.data.trials)) for run in task.runs[sized])
        others = {key: value for key, value in entry.options.items() if key != "population"}
        families.setdefault(repr(sorted(others.items())), {})[size] = label
    return {min(sizes.values(), key=len): sizes for sizes in families.values() if len(sizes) > 1}


def _draw_sizes(ax: "Axes", values: Mapping[int, Array], style: Style, *, offset: float) -> None:
    """Draw the values (R,) of each size, and a line through their means.

    The offset keeps algorithms of the same size apart.
    """
    xs = [size * 2 ** (0.1 * offset) for size in values]
    means = [of_size.mean() for of_size in values.values()]
    ax.plot(xs, means, **line_options(style) | {"marker": ""})
    for x, of_size in zip(xs, values.values(), strict=True):
        _draw_values(ax, np.full(len(of_size), x), of_size, style)


def _draw_values(ax: "Axes", x: Array, y: Array, style: Style) -> None:
    """Draw runs as dots, their range as a bar and their mean as a marker."""
    ax.plot(
        [x.min(), x.max()],
        [y.min(), y.max()],
        color=style.color,
        lw=3.5,
        alpha=0.25,
        solid_capstyle="round",
    )
    ax.plot(x, y, "o", color=style.color, ms=2, mew=0, alpha=0.7)
    ax.plot(
        [x.mean()],
        [y.mean()],
        marker=style.marker,
        color=style.color,
        ms=5.5,
        mec="white",
        mew=0.4,
        zorder=3,
    )
