"""Figures of how the runs of a comparison end: what settings, populations and search spaces change."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from textwrap import fill, wrap
from typing import TYPE_CHECKING

import numpy as np

from mopbt.algorithms import options_of
from mopbt.compare.measures import (
    Array,
    MeasuredTask,
    baseline_of,
    final_hypervolumes,
    labels_of,
    mean_hypervolume,
    measure_task,
)
from mopbt.plots.front import FAINT
from mopbt.plots.progress import progress_of
from mopbt.plots.style import (
    DASHED,
    DOTTED,
    Style,
    label_rows,
    legend,
    line_of,
    set_title,
    sheet,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LETTERS = 36  # of a line of a label beside panels


def final(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the final hypervolume of every run in per cent of the baseline's mean: what settings change (Figures 10 to 12, 15)."""
    baseline = baseline_of(labels_of(measured))
    measured = [task for task in measured if baseline in task.runs]
    labels = labels_of(measured)
    if len(labels) < 2:
        return {}
    styles = styles_of(labels)
    lines = sum(len(wrap(label, LETTERS)) for label in labels)
    figure, axes = sheet(len(measured), height=0.5 + 0.19 * lines, sharey=True)
    for ax, task in zip(axes, measured, strict=True):
        unit = mean_hypervolume(task.runs[baseline])
        ax.axvline(100, color=FAINT, lw=0.8, zorder=0)
        for label, runs in task.runs.items():
            values = 100 * final_hypervolumes(runs) / unit
            _draw_values(ax, values, np.full(len(values), labels.index(label)), styles[label])
        set_title(ax, task.name)
        ax.set_yticks(range(len(labels)), [fill(label, LETTERS) for label in labels])
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
    figure, axes = sheet(len(shown), height=2.1)
    for ax, task in zip(axes, shown, strict=True):
        for i, (family, sizes) in enumerate(families.items()):
            known = {
                size: final_hypervolumes(task.runs[label])
                for size, label in sizes.items()
                if label in task.runs
            }
            values = {
                size: 100 * of_size / mean_hypervolume(task.runs[baseline])
                for size, of_size in sorted(known.items())
            }
            _draw_sizes(ax, values, styles[family], aside=i - (len(families) - 1) / 2)
        ticks = sorted({size for sizes in families.values() for size in sizes})
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, map(str, ticks))
        ax.minorticks_off()
        set_title(ax, task.name)
        ax.set_xlabel("population")
    label_rows(axes, f"HV, % of {baseline}  (better →)")
    legend(figure, styles, len(shown))
    return {"populations": figure}


def spaces(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the progress on tasks that differ in the number of hyperparameters alone, measured as one task (Figure 9).

    Time is a share of all: what a step costs was measured for each task, and may differ by chance.
    """
    sizes = [len(task.problem.space) for task in measured]
    if (
        len(set(sizes)) < max(len(sizes), 2)
        or len({task.problem.objectives for task in measured}) > 1
    ):
        return {}
    runs, entries, styles = [], {}, {}
    for task, size, line in zip(measured, sizes, cycle(("-", DASHED, DOTTED)), strict=False):
        whole = task.times[-1]
        for label, of_label in task.runs.items():
            name = f"{label}, {size} variables"
            entries[name] = task.entries[label]
            styles[name] = replace(styles_of(labels_of(measured))[label], line=line)
            runs += [
                replace(run.data, algorithm=name, seconds=run.data.seconds / whole)
                for run in of_label
            ]
    together = measure_task(
        " and ".join(task.name for task in measured), measured[0].problem, runs, entries
    )
    return {"spaces": progress_of([together], styles, time="share of the time")}


def _families(measured: Sequence[MeasuredTask]) -> dict[str, dict[int, str]]:
    """Return the labels of algorithms that differ in the size of the population alone, by the shortest of them and by size."""
    families: dict[str, dict[int, str]] = {}
    for label in labels_of(measured):
        task = next(task for task in measured if label in task.runs)
        entry = task.entries[label]
        sized = entry.time_of or label  # one without a population counts as that whose time it gets
        if sized not in task.runs or "population" not in options_of(
            task.entries[sized].algorithm()
        ):
            continue
        size = max(len(np.unique(run.data.trials)) for run in task.runs[sized])
        alike = {key: value for key, value in entry.options.items() if key != "population"}
        families.setdefault(repr(sorted(alike.items())), {})[size] = label
    return {min(sizes.values(), key=len): sizes for sizes in families.values() if len(sizes) > 1}


def _draw_sizes(ax: "Axes", values: Mapping[int, Array], style: Style, *, aside: float) -> None:
    """Draw values (R,) by size, a little aside of those of other algorithms, and a line through their means."""
    places = [size * 2 ** (0.1 * aside) for size in values]
    ax.plot(
        places, [of_size.mean() for of_size in values.values()], **line_of(style) | {"marker": ""}
    )
    for place, of_size in zip(places, values.values(), strict=True):
        _draw_values(ax, np.full(len(of_size), place), of_size, style)


def _draw_values(ax: "Axes", x: Array, y: Array, style: Style) -> None:
    """Draw each run as a dot, their range as a bar, and the mean as the algorithm's marker."""
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
