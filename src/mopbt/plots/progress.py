"""Figures of a comparison over time: how hypervolume grows, how it carries over to test data, how many models are trivial."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mopbt import metrics
from mopbt.compare.measures import (
    RELATIONS,
    Array,
    MeasuredRun,
    MeasuredTask,
    labels_of,
)
from mopbt.objectives import Constraint, parse_constraints
from mopbt.plots.style import (
    Style,
    back_to_front,
    label_rows,
    legend,
    line_of,
    set_title,
    sheet,
    styles_of,
    unit_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def progress(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw log10(HV* - HV) over time: the mean over runs, and the band from the worst to the best one (Figures 3 to 5)."""
    return {"progress": progress_of(measured, styles_of(labels_of(measured)))} if measured else {}


def generalization(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the same on test data, of the fronts that were found on validation data (Figure 13)."""
    tested = [task for task in measured if task.best_test is not None]

    def differences(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        return _log_differences(task.best_test or 0.0, _test_curves(runs))

    label, styles = "on test data\n(← better)  log₁₀(HV* − HV)", styles_of(labels_of(tested))
    return (
        {"generalization": _over_time(tested, differences, label, styles, tested=True)}
        if tested
        else {}
    )


def transfer(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the mean hypervolume on test data as a share of that on validation data: how much of what was found is real."""
    tested = [task for task in measured if task.best_test is not None]

    def shares(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        found, real = (
            curves.mean(axis=0, keepdims=True) for curves in (_curves(runs), _test_curves(runs))
        )
        return np.asarray(
            100 * np.divide(real, found, out=np.full_like(real, np.nan), where=found > 0)
        )

    label, styles = "HV on test, % of validation", styles_of(labels_of(tested))
    # The first fronts are of a few bad models, whose shares are noise that would set the scale.
    return (
        {"transfer": _over_time(tested, shares, label, styles, since=0.2, tested=True)}
        if tested
        else {}
    )


def progress_of(
    measured: Sequence[MeasuredTask], styles: Mapping[str, Style], time: str = ""
) -> "Figure":
    """Return the figure of `progress` in given styles; `time` says what the times are, if not virtual seconds."""

    def differences(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        return _log_differences(task.best, _curves(runs))

    return _over_time(measured, differences, "(← better)  log₁₀(HV* − HV)", styles, time=time)


def _over_time(
    measured: Sequence[MeasuredTask],
    values_of: Callable[[MeasuredTask, Sequence[MeasuredRun]], Array],
    label: str,
    styles: Mapping[str, Style],
    *,
    since: float = 0.0,
    time: str = "",
    tested: bool = False,
) -> "Figure":
    """Draw values (R, T) of R runs at T times, in a panel for each task, since a share of an algorithm's time is over.

    Where they are `tested`, only runs with test scores are drawn.
    """
    figure, axes = sheet(len(measured), height=1.9)
    for ax, task in zip(axes, measured, strict=True):
        unit, name = (1.0, "") if time else unit_of(task.times)
        for algorithm in back_to_front(task.runs, styles):
            runs = [
                run
                for run in task.runs[algorithm]
                if len(run.data) and (not tested or run.test_hypervolumes is not None)
            ]
            if not runs:
                continue
            begin, end = (
                max(run.data.seconds[0] for run in runs),
                max(run.data.seconds[-1] for run in runs),
            )
            # All runs must have something to show.
            shown = (task.times >= max(begin, since * end)) & (task.times <= end)
            draw_band(
                ax, task.times[shown] / unit, values_of(task, runs)[:, shown], algorithm, styles
            )
        set_title(ax, task.name)
        ax.set_xlabel(time or f"virtual time ({name})")
    label_rows(axes, label)
    legend(figure, styles, len(measured))
    return figure


def draw_band(ax: "Axes", x: Array, values: Array, label: str, styles: Mapping[str, Style]) -> None:
    """Draw the mean of values (R, n) at x (n,) as steps, and the band from the smallest to the largest."""
    if not len(x):
        return
    x, values = (
        np.append(x, x[-1] + 0.02 * (x[-1] - x[0])),
        np.column_stack([values, values[:, -1]]),
    )  # the last step can be seen
    style, place = styles[label], list(styles).index(label) / len(styles)
    shade = 0.22 if style.leads else 0.1
    ax.fill_between(
        x, values.min(axis=0), values.max(axis=0), step="post", color=style.color, alpha=shade, lw=0
    )
    mean = values.mean(axis=0)
    # Markers of algorithms that lie close stand side by side; matplotlib cannot space them on a line of fewer than two points.
    every = (0.02 + 0.22 * place, 0.25) if np.isfinite(mean).sum() > 1 else None
    ax.plot(x, mean, drawstyle="steps-post", **line_of(style), markevery=every)


def _log_differences(best: float, curves: Array) -> Array:
    """Return log10(HV* - HV) with the authors' margin, or a smaller one where it would hide hypervolumes that are all small."""
    return metrics.log_hypervolume_difference(
        best, curves, margin=min(metrics.MARGIN, 1e-3 * best) or metrics.MARGIN
    )


def _curves(runs: Sequence[MeasuredRun]) -> Array:
    return np.array([run.hypervolumes for run in runs])


def _test_curves(runs: Sequence[MeasuredRun]) -> Array:
    return np.array([run.test_hypervolumes for run in runs if run.test_hypervolumes is not None])


def trivial(measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw which share of the models are trivial classifiers after so many steps of training (Figure 18)."""
    known = [
        task
        for task in measured
        if all(trivials(run, task) is not None for runs in task.runs.values() for run in runs)
    ]
    if not known:
        return {}
    from matplotlib.ticker import MaxNLocator

    styles = styles_of(labels_of(known))
    figure, axes = sheet(len(known), height=1.9)
    for ax, task in zip(axes, known, strict=True):
        for label in back_to_front(task.runs, styles):
            steps, shares = trivial_shares(task, label)
            draw_band(ax, steps, 100 * shares, label, styles)
        ax.set_ylim(-2, 102)
        ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        set_title(ax, task.name)
        ax.set_xlabel("training step")
    demands = dict.fromkeys(str(demand) for task in known for demand in _demands(task))
    label_rows(
        axes,
        f"models (%) without\n{' and '.join(demands)}" if demands else "trivial classifiers, %",
    )
    legend(figure, styles, len(known))
    return {"trivial": figure}


def trivials(run: MeasuredRun, task: MeasuredTask) -> NDArray[np.bool_] | None:
    """Return which evaluations (n,) are of trivial classifiers; None where the comparison does not tell.

    They are those that call everything, or nothing, positive. Where recall is not measured they are those that miss a demand which
    some algorithm of the comparison has to meet: the paper's is to be more accurate than any trivial classifier.
    """
    scores, demands = run.data.scores, _demands(task)
    if _tells_by_recall(task):
        return np.asarray(
            (scores["recall"] == 0) | ((scores["recall"] == 1) & (scores["precision"] < 1))
        )
    if any(demand.name not in scores for demand in demands):
        return None
    missed = [~RELATIONS[demand.relation](scores[demand.name], demand.bound) for demand in demands]
    return (
        np.asarray(np.any(missed, axis=0) & np.isfinite(run.data.objectives).all(axis=1))
        if missed
        else None
    )


def _tells_by_recall(task: MeasuredTask) -> bool:
    """Tell whether recall and precision are what a task is about; others may have a recall of 1 for other reasons."""
    return {"precision", "recall"} <= {objective.name for objective in task.problem.objectives}


def _demands(task: MeasuredTask) -> tuple[Constraint, ...]:
    """Return what some algorithm has to meet on a task that does not itself tell trivial classifiers by their recall."""
    if _tells_by_recall(task):
        return ()
    present = [entry for label, entry in task.entries.items() if label in task.runs]
    return parse_constraints(
        list(dict.fromkeys(text for entry in present for text in entry.constraints))
    )


def trivial_shares(task: MeasuredTask, label: str) -> tuple[Array, Array]:
    """Return the steps (S,) that all runs of an algorithm reached, and the share of trivial classifiers among each run's (R, S)."""
    runs = task.runs[label]
    steps = sorted(set.intersection(*(set(run.data.steps.tolist()) for run in runs)))
    masks = [trivials(run, task) for run in runs]
    pairs = [
        (run.data.steps, mask) for run, mask in zip(runs, masks, strict=True) if mask is not None
    ]
    return np.array(steps, dtype=float), np.array(
        [[mask[at == step].mean() for step in steps] for at, mask in pairs]
    )
