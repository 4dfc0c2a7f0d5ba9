"""Plot a comparison over time: hypervolume, transfer and trivial models."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mopbt.compare.measures import RELATIONS, Array, MeasuredRun, MeasuredTask
from mopbt.metrics import MARGIN, log_hypervolume_difference
from mopbt.objectives import Constraint, parse_constraints
from mopbt.plots.style import (
    Styles,
    add_legend,
    create_panels,
    drawing_order,
    label_rows,
    line_options,
    set_title,
    shown_styles,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Hypervolume over time


def progress(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot log10(HV* - HV) over time (Figures 3 to 5).

    The line is the mean over the runs, the band reaches from the worst to the best run.
    """
    if not measured:
        return {}
    return {"progress": plot_progress(measured, styles)}


def generalization(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot log10(HV* - HV) on test data (Figure 13).

    The fronts are those found on validation data.
    """
    tested = _tested_over_time(measured)
    if not tested:
        return {}

    def differences(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        return _log_differences(task.best_test or 0.0, _test_curves(runs))

    label = "on test data\n(← better)  log₁₀(HV* − HV)"
    return {"generalization": _plot_over_time(tested, differences, label, styles, tested=True)}


def transfer(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot the mean hypervolume on test data as a share of that on validation data."""
    tested = _tested_over_time(measured)
    if not tested:
        return {}

    def shares(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        validation = _curves(runs).mean(axis=0, keepdims=True)
        test = _test_curves(runs).mean(axis=0, keepdims=True)
        unknown = np.full_like(test, np.nan)
        return np.asarray(100 * np.divide(test, validation, out=unknown, where=validation > 0))

    label = "HV on test, % of validation"
    # The first fronts consist of a few bad models. Their shares are noise and would set the scale.
    figure = _plot_over_time(tested, shares, label, styles, since=0.2, tested=True)
    return {"transfer": figure}


def plot_progress(
    measured: Sequence[MeasuredTask], styles: Styles, time_label: str = ""
) -> "Figure":
    """Plot log10(HV* - HV) over time in given styles.

    `time_label` labels the axis if the times are not virtual seconds.
    """

    def differences(task: MeasuredTask, runs: Sequence[MeasuredRun]) -> Array:
        return _log_differences(task.best, _curves(runs))

    label = "(← better)  log₁₀(HV* − HV)"
    return _plot_over_time(measured, differences, label, styles, time_label=time_label)


def _plot_over_time(
    measured: Sequence[MeasuredTask],
    values_of: Callable[[MeasuredTask, Sequence[MeasuredRun]], Array],
    label: str,
    styles: Styles,
    *,
    since: float = 0.0,
    time_label: str = "",
    tested: bool = False,
) -> "Figure":
    """Plot the values (R, T) of R runs at T times, in one panel for each task.

    Args:
        measured: The tasks.
        values_of: Returns the values of some runs of a task.
        label: Label of the vertical axes.
        styles: Styles by algorithm.
        since: Share of an algorithm's time before which nothing is drawn.
        time_label: Label of the time axes. Without one the times are virtual seconds.
        tested: Draw only runs with test scores.
    """
    figure, axes = create_panels(len(measured), height=1.9)
    styles = shown_styles(styles, {label for task in measured for label in task.runs})
    for ax, task in zip(axes, measured, strict=True):
        unit, unit_name = (1.0, "") if time_label else time_unit(task.times)
        for algorithm in drawing_order(task.runs, styles):
            runs = [run for run in task.runs[algorithm] if run.data.jobs.size]
            runs = [run for run in runs if not tested or run.test_hypervolumes is not None]
            if not runs:
                continue
            # Draw only times at which every run has an evaluation.
            begin = max(run.data.seconds[0] for run in runs)
            end = max(run.data.seconds[-1] for run in runs)
            shown = (task.times >= max(begin, since * end)) & (task.times <= end)
            values = values_of(task, runs)[:, shown]
            draw_band(ax, task.times[shown] / unit, values, algorithm, styles)
        set_title(ax, task.title)
        ax.set_xlabel(time_label or f"virtual time ({unit_name})")
    label_rows(axes, label)
    add_legend(figure, styles, len(measured))
    return figure


def draw_band(ax: "Axes", x: Array, values: Array, label: str, styles: Styles) -> None:
    """Draw the mean of values (R, n) at x (n,), and the band of their range."""
    if not len(x):
        return
    # Extend the last step so that it is visible.
    x = np.append(x, x[-1] + 0.02 * (x[-1] - x[0]))
    values = np.column_stack([values, values[:, -1]])
    style = styles[label]
    ax.fill_between(
        x,
        values.min(axis=0),
        values.max(axis=0),
        step="post",
        color=style.color,
        alpha=0.22 if style.leads else 0.1,
        lw=0,
    )
    mean = values.mean(axis=0)
    # Shift the markers of each algorithm, so that those of close lines do not overlap. matplotlib
    # cannot space markers on a line of fewer than two points.
    offset = 0.02 + 0.22 * list(styles).index(label) / len(styles)
    every = (offset, 0.25) if np.isfinite(mean).sum() > 1 else None
    ax.plot(x, mean, drawstyle="steps-post", **line_options(style), markevery=every)


def _log_differences(best: float, curves: Array) -> Array:
    """Return log10(HV* - HV) with the authors' margin, or a smaller one if needed.

    Their margin would hide differences between hypervolumes that are all small.
    """
    margin = min(MARGIN, 1e-3 * best) or MARGIN
    return log_hypervolume_difference(best, curves, margin=margin)


def _curves(runs: Sequence[MeasuredRun]) -> Array:
    return np.array([run.hypervolumes for run in runs])


def _tested_over_time(measured: Sequence[MeasuredTask]) -> list[MeasuredTask]:
    """Return the tasks whose fronts were measured on test data at all times."""
    tested = []
    for task in measured:
        runs = [run for of_label in task.runs.values() for run in of_label]
        curves = _test_curves(runs)
        if task.best_test is not None and np.isfinite(curves).all():
            tested.append(task)
    return tested


def _test_curves(runs: Sequence[MeasuredRun]) -> Array:
    return np.array([run.test_hypervolumes for run in runs if run.test_hypervolumes is not None])


# Trivial classifiers


def trivial(measured: Sequence[MeasuredTask], styles: Styles) -> dict[str, "Figure"]:
    """Plot the share of trivial classifiers over training steps (Figure 18)."""
    known = []
    for task in measured:
        runs = [run for of_label in task.runs.values() for run in of_label]
        if all(trivials(run, task) is not None for run in runs):
            known.append(task)
    if not known:
        return {}
    from matplotlib.ticker import MaxNLocator

    styles = shown_styles(styles, {label for task in known for label in task.runs})
    figure, axes = create_panels(len(known), height=1.9)
    for ax, task in zip(axes, known, strict=True):
        for label in drawing_order(task.runs, styles):
            steps, shares = trivial_shares(task, label)
            draw_band(ax, steps, 100 * shares, label, styles)
        ax.set_ylim(-2, 102)
        ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        set_title(ax, task.title)
        ax.set_xlabel("training step")
    constraints = dict.fromkeys(str(each) for task in known for each in _own_constraints(task))
    if constraints:
        label_rows(axes, f"models (%) without\n{' and '.join(constraints)}")
    else:
        label_rows(axes, "trivial classifiers, %")
    add_legend(figure, styles, len(known))
    return {"trivial": figure}


def trivials(run: MeasuredRun, task: MeasuredTask) -> NDArray[np.bool_] | None:
    """Return which evaluations (n,) are of trivial classifiers; None if unknown.

    A trivial classifier predicts everything, or nothing, as positive. On a task without precision
    and recall as objectives, it is a model that violates a constraint of some algorithm in the
    comparison. The paper's constraint is to be more accurate than any trivial classifier.
    """
    scores = run.data.scores
    if _has_recall(task):
        everything = (scores["recall"] == 1) & (scores["precision"] < 1)
        return np.asarray((scores["recall"] == 0) | everything)
    constraints = _own_constraints(task)
    if not constraints or any(constraint.name not in scores for constraint in constraints):
        return None
    violated = [~RELATIONS[each.relation](scores[each.name], each.bound) for each in constraints]
    return np.asarray(np.any(violated, axis=0) & np.isfinite(run.data.objectives).all(axis=1))


def _has_recall(task: MeasuredTask) -> bool:
    """Return whether precision and recall are objectives of a task.

    On other tasks a model may have a recall of 1 without being trivial.
    """
    return {"precision", "recall"} <= {objective.name for objective in task.problem.objectives}


def _own_constraints(task: MeasuredTask) -> tuple[Constraint, ...]:
    """Return the constraints of single algorithms on a task that is not about recall."""
    if _has_recall(task):
        return ()
    present = [entry for label, entry in task.entries.items() if label in task.runs]
    texts = dict.fromkeys(text for entry in present for text in entry.constraints)
    return parse_constraints(list(texts))


def trivial_shares(task: MeasuredTask, label: str) -> tuple[Array, Array]:
    """Return steps (S,) and the share (R, S) of trivial classifiers by run and step.

    Only steps that all runs of the algorithm reached count.
    """
    runs = task.runs[label]
    steps = sorted(set.intersection(*(set(run.data.steps.tolist()) for run in runs)))
    shares = []
    for run in runs:
        mask = trivials(run, task)
        if mask is not None:
            shares.append([mask[run.data.steps == step].mean() for step in steps])
    return np.array(steps, dtype=float), np.array(shares)
