"""Build the tables of a comparison: hypervolume, test hypervolume, coverage.

They have the means and deviations of the paper's Appendix I, the average rank over tasks and
the significance tests of `mopbt.compare.significance`. `mopbt.compare.table_formats` writes them.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mopbt.compare.measures import MeasuredRun, MeasuredTask, baseline_of, labels_of
from mopbt.compare.significance import (
    average_ranks,
    bootstrap_interval,
    critical_difference,
    holm,
    paired_differences,
    sign_flip_test,
)
from mopbt.metrics import mean_and_deviation

LEVEL = 0.05
# Times of algorithms that differ by a smaller share count as equal.
TIME_TOLERANCE = 0.05

# Values of one task, by algorithm and seed.
Values = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Cell:
    """One measure of an algorithm on a task, over its runs.

    Attributes:
        values: The measure by seed.
        mean: Mean over the runs.
        deviation: Standard deviation over the runs.
        rank: Rank of the mean among the algorithms of the task. 1 is the best, ties share a rank.
        difference: Mean paired difference from the baseline. NaN for the baseline itself.
        p: p-value of the difference.
        corrected: p-value after Holm's correction over the algorithms of the task.
        interval: Bootstrap interval of the difference, over seeds. NaN from fewer than 5 pairs.
        sign: "+" or "−" if significantly better or worse than the baseline, else "".
        is_best: Whether no algorithm has a larger mean on the task.
        mark: "best" if probably better than all others on the task. "level" if there is no such
            algorithm, and this one is not probably worse than the best mean. Both need equal times.
    """

    values: Mapping[int, float]
    mean: float
    deviation: float
    rank: float
    difference: float = math.nan
    p: float = math.nan
    corrected: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    sign: str = ""
    is_best: bool = False
    mark: Literal["", "best", "level"] = ""


@dataclass(frozen=True)
class Overall:
    """One measure of an algorithm over all tasks on which it was run.

    Attributes:
        rank: Mean rank over the ranked tasks. NaN if the algorithm lacks one of them.
        difference: Difference from the baseline, from -1 (worse in every pair of runs) to 1
            (better in every pair), weighted by the size of the differences.
        p: p-value of the difference.
        corrected: p-value after Holm's correction over the algorithms.
        sign: "+" or "−" if significantly better or worse than the baseline, else "".
        leads: Whether the rank is better than all others by the critical difference, and all
            algorithms had the same time on all ranked tasks.
    """

    rank: float
    difference: float = math.nan
    p: float = math.nan
    corrected: float = math.nan
    sign: str = ""
    leads: bool = False


@dataclass(frozen=True)
class Table:
    """One measure of all algorithms on all tasks.

    Attributes:
        name: Name of the table in files.
        measure: What the numbers are, as the start of a caption.
        baseline: Label of the algorithm that the others are tested against.
        tasks: Tasks that have values, as in the experiment.
        titles: The tasks' own names.
        algorithms: Labels of the algorithms that have values.
        cells: Cells by task and algorithm. An algorithm that was not run on a task has none there.
        overall: Comparison over all tasks, by algorithm.
        ranked: Tasks whose runs are all finished. A rank on any other task would favor the
            algorithms that run first.
        related: For each task, the first task whose runs have the same initial models.
        unequal_seconds: Virtual seconds by algorithm, for the tasks on which they differ.
        critical_difference: How far average ranks must differ to be distinguishable. NaN if
            unknown.
        note: Another sentence for the caption.
    """

    name: str
    measure: str
    baseline: str
    tasks: tuple[str, ...]
    titles: Mapping[str, str]
    algorithms: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    overall: Mapping[str, Overall]
    ranked: tuple[str, ...]
    related: Mapping[str, str]
    unequal_seconds: Mapping[str, Mapping[str, float]]
    critical_difference: float
    note: str = ""


def build_tables(measured: Sequence[MeasuredTask]) -> tuple[Table, ...]:
    """Build a table for each measure: hypervolume, hypervolume on test data, coverage.

    A measure that no task has gets no table.
    """
    scaled = ", ".join(task.title for task in measured if task.scaled)
    units = ""
    if scaled:
        units = (
            f" (for {scaled} in units of the objectives' ranges, which differ more than tenfold)"
        )
    tables = (
        build_table(
            "hypervolume",
            "Hypervolume × 100 on validation data",
            measured,
            lambda run: run.hypervolumes[-1],
        ),
        build_table(
            "test",
            "Hypervolume × 100 on test data of the front found on validation data",
            measured,
            lambda run: None if run.test_hypervolumes is None else run.test_hypervolumes[-1],
        ),
        build_table(
            "coverage",
            f"Coverage × 100 of the front on validation data{units}",
            measured,
            lambda run: run.coverage,
        ),
        *_choosing_tables(measured),
    )
    return tuple(table for table in tables if table.cells)


def _choosing_tables(measured: Sequence[MeasuredTask]) -> tuple[Table, ...]:
    """Build the tables of the front that a user chooses from."""
    note = _explain_utility(measured)
    return (
        build_table(
            "honest-test",
            "Hypervolume × 100 on test data of the pessimistic front",
            measured,
            lambda run: run.honest_test,
        ),
        replace(
            build_table(
                "choosing",
                "Utility × 100 on test data of the models chosen on validation data",
                measured,
                lambda run: None if run.choice is None else run.choice.actual,
            ),
            note=note,
        ),
        replace(
            build_table(
                "claimed",
                "Utility × 100 that validation data claim for the chosen models",
                measured,
                lambda run: None if run.choice is None else run.choice.claimed,
            ),
            note=f"A claim above the utility on test data is luck. {note}",
        ),
    )


def _explain_utility(measured: Sequence[MeasuredTask]) -> str:
    """Explain utilities, with the ranges that scale them."""
    ranges = []
    for task in measured:
        if task.ideal is not None:
            ends = zip(task.signs * task.reference, task.signs * task.ideal, strict=True)
            parts = [
                f"{objective.name} from {worst:.4g} to {best:.4g}"
                for objective, (worst, best) in zip(task.problem.objectives, ends, strict=True)
            ]
            ranges.append(f"{task.title} {', '.join(parts)}")
    return (
        "Utility: 1 minus the largest weighted shortfall from an ideal point, averaged over a "
        "fixed set of about 100 preferences. Each run chooses a model for each of them from its "
        "front, at the bounds of intervals where errors are known. Objectives are scaled from 0 "
        f"at the reference point to 1 at the ideal point: {'; '.join(ranges)}."
    )


def build_table(
    name: str,
    measure: str,
    measured: Sequence[MeasuredTask],
    value_of: Callable[[MeasuredRun], float | None],
) -> Table:
    """Build the table of one measure.

    Args:
        name: Name of the table in files.
        measure: What the numbers are, as the start of a caption.
        measured: The measured tasks.
        value_of: Returns the value of a run, or None if the run has no such measure.
    """
    values = {task.name: _values_of(task, value_of) for task in measured}
    present = [task for task in measured if values[task.name]]
    with_values = {label for task in present for label in values[task.name]}
    algorithms = tuple(label for label in labels_of(measured) if label in with_values)
    baseline = baseline_of(algorithms)
    unequal = unequal_times(present)
    cells: dict[tuple[str, str], Cell] = {}
    for task in present:
        of_task = _build_cells(values[task.name], baseline)
        if task.name not in unequal:
            of_task = _mark_best(of_task)
        cells |= {(task.name, label): cell for label, cell in of_task.items()}
    ranked = tuple(task.name for task in present if _is_complete(task, values[task.name]))
    related = find_related_tasks(present)
    overall = _compare_overall(cells, algorithms, baseline, ranked, related)
    distance = _critical_difference(overall, {related[task] for task in ranked})
    if unequal.keys().isdisjoint(ranked):
        overall = _mark_leader(overall, distance)
    return Table(
        name=name,
        measure=measure,
        baseline=baseline,
        tasks=tuple(task.name for task in present),
        titles={task.name: task.title for task in present},
        algorithms=algorithms,
        cells=cells,
        overall=overall,
        ranked=ranked,
        related=related,
        unequal_seconds=unequal,
        critical_difference=distance,
    )


def unequal_times(measured: Sequence[MeasuredTask]) -> dict[str, dict[str, float]]:
    """Return the virtual seconds of the slowest runs where algorithms differ.

    The seconds are by task and algorithm. Differences of a few intervals do not count.
    """
    unequal = {}
    for task in measured:
        ends = {
            label: max(float(run.data.seconds.max(initial=0.0)) for run in runs)
            for label, runs in task.runs.items()
        }
        if max(ends.values()) > (1 + TIME_TOLERANCE) * min(ends.values()):
            unequal[task.name] = ends
    return unequal


def _values_of(
    task: MeasuredTask, value_of: Callable[[MeasuredRun], float | None]
) -> dict[str, dict[int, float]]:
    """Return the values of a task by algorithm and seed.

    Algorithms without values are left out.
    """
    values: dict[str, dict[int, float]] = {}
    for label, runs in task.runs.items():
        for run in runs:
            value = value_of(run)
            if value is not None:
                values.setdefault(label, {})[run.data.seed] = float(value)
    return values


def _is_complete(task: MeasuredTask, values: Values) -> bool:
    """Return whether all runs of a task are finished, equally many for each algorithm."""
    planned = [
        label
        for label, entry in task.entries.items()
        if not entry.tasks or task.name in entry.tasks
    ]
    return task.complete and len({len(values.get(label, ())) for label in planned}) == 1


def _build_cells(values: Values, baseline: str) -> dict[str, Cell]:
    """Build the cells of one task by algorithm."""
    summaries = {
        label: mean_and_deviation(list(of_label.values())) for label, of_label in values.items()
    }
    means = [mean for mean, _ in summaries.values()]
    ranks = average_ranks(means).tolist()
    cells = {}
    for (label, (mean, deviation)), rank in zip(summaries.items(), ranks, strict=True):
        cells[label] = Cell(values[label], mean, deviation, rank, is_best=mean == max(means))
    if baseline not in values:
        return cells
    others = [label for label in values if label != baseline]
    differences = {
        label: np.array(list(paired_differences(values[label], values[baseline]).values()))
        for label in others
    }
    p = [sign_flip_test(differences[label]) for label in others]
    for label, own_p, corrected in zip(others, p, holm(p).tolist(), strict=True):
        difference = float(differences[label].mean())
        cells[label] = replace(
            cells[label],
            difference=difference,
            p=own_p,
            corrected=corrected,
            interval=bootstrap_interval(differences[label]),
            sign=_significance_sign(difference, corrected),
        )
    return cells


def _mark_best(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Mark the algorithms of a task that are not probably worse than the best one.

    An algorithm is probably better than another if the interval of their paired differences is
    above 0. None is marked if there are too few runs to tell. An algorithm without rivals leads.
    """
    ordered = sorted(cells, key=lambda label: -cells[label].mean)
    level = ordered[:1]
    for label in ordered[1:]:
        differences = paired_differences(cells[ordered[0]].values, cells[label].values)
        lower, _ = bootstrap_interval(list(differences.values()))
        if math.isnan(lower):
            return dict(cells)
        if lower <= 0:
            level.append(label)
    # Only an algorithm that beats the runner-up leads.
    if len(ordered) == 1 or ordered[1] not in level:
        return {**cells, ordered[0]: replace(cells[ordered[0]], mark="best")}
    return {**cells, **{label: replace(cells[label], mark="level") for label in level}}


def _compare_overall(
    cells: Mapping[tuple[str, str], Cell],
    algorithms: Sequence[str],
    baseline: str,
    ranked: Sequence[str],
    related: Mapping[str, str],
) -> dict[str, Overall]:
    """Compare each algorithm with the baseline over all equally weighted tasks."""
    overall = {}
    for label in algorithms:
        ranks = [cells[task, label].rank if (task, label) in cells else math.nan for task in ranked]
        overall[label] = Overall(float(np.mean(ranks)) if ranks else math.nan)

    differences: dict[str, float] = {}
    p: dict[str, float] = {}
    for label in algorithms:
        tasks = [task for task, other in cells if other == label and (task, baseline) in cells]
        if label != baseline and tasks:
            independent = _independent_differences(cells, label, baseline, tasks, related)
            differences[label] = sum(independent) / len(tasks)
            p[label] = sign_flip_test(independent)
    corrected = holm(list(p.values())).tolist()
    for label, corrected_p in zip(p, corrected, strict=True):
        overall[label] = replace(
            overall[label],
            difference=differences[label],
            p=p[label],
            corrected=corrected_p,
            sign=_significance_sign(differences[label], corrected_p),
        )
    return overall


def _critical_difference(overall: Mapping[str, Overall], independent: Collection[str]) -> float:
    compared = [x for x in overall.values() if not math.isnan(x.rank)]
    return critical_difference(len(compared), len(independent))


def _mark_leader(overall: Mapping[str, Overall], distance: float) -> dict[str, Overall]:
    """Mark the algorithm whose average rank is better than all others by a distance."""
    marked = {}
    for label, own in overall.items():
        ranks = [x.rank for other, x in overall.items() if other != label]
        ranks = [rank for rank in ranks if not math.isnan(rank)]
        # A comparison with NaN is False.
        leads = bool(ranks) and min(ranks) - own.rank >= distance
        marked[label] = replace(own, leads=leads)
    return marked


def _independent_differences(
    cells: Mapping[tuple[str, str], Cell],
    label: str,
    baseline: str,
    tasks: Sequence[str],
    related: Mapping[str, str],
) -> list[float]:
    """Return scaled differences from the baseline, one per independent observation.

    Runs with the same seed on related tasks depend on the same random numbers, so together they
    are one observation. The absolute differences of each task sum to 1. This scale depends only
    on the sizes of the differences, so every pattern of signs stays equally likely.
    """
    sums: dict[tuple[str, int], float] = {}
    for task in tasks:
        differences = paired_differences(cells[task, label].values, cells[task, baseline].values)
        scale = sum(map(abs, differences.values())) or 1.0
        for seed, difference in differences.items():
            key = (related[task], seed)
            sums[key] = sums.get(key, 0.0) + difference / scale
    return list(sums.values())


def _significance_sign(difference: float, corrected: float) -> str:
    # A comparison with NaN is False.
    if corrected <= LEVEL:
        return "+" if difference > 0 else "−"
    return ""


# Related tasks


def find_related_tasks(measured: Sequence[MeasuredTask]) -> dict[str, str]:
    """Map each task to the first task whose runs have the same initial models.

    Such tasks train the same networks on the same rows with the same random numbers, so their
    results are not independent.
    """
    related: dict[str, str] = {}
    for i, task in enumerate(measured):
        alike = (other.name for other in measured[:i] if _start_alike(task, other))
        first = next(alike, None)
        related[task.name] = task.name if first is None else related[first]
    return related


def _start_alike(one: MeasuredTask, other: MeasuredTask) -> bool:
    """Return whether runs of equal algorithm and seed have the same first evaluation.

    Only informative scores count. A score that failed or was not measured yet is NaN in one of
    the runs. A score with the same values for all seeds, such as the size of a network, says
    nothing about the random numbers.
    """
    ours = _first_scores(one)
    theirs = _first_scores(other)
    pairs: dict[str, set[tuple[int, float, float]]] = {}
    for label, seed in ours.keys() & theirs.keys():
        a = ours[label, seed]
        b = theirs[label, seed]
        for name in a.keys() & b.keys():
            if not (math.isnan(a[name]) or math.isnan(b[name])):
                pairs.setdefault(name, set()).add((seed, a[name], b[name]))
    informative: set[tuple[int, float, float]] = set()
    for of_name in pairs.values():
        if len(of_name) == 1 or len({(a, b) for _, a, b in of_name}) > 1:
            informative |= of_name
    return bool(informative) and all(a == b for _, a, b in informative)


def _first_scores(task: MeasuredTask) -> dict[tuple[str, int], dict[str, float]]:
    """Return the scores of the first evaluation of each run, by algorithm and seed."""
    firsts = {}
    for runs in task.runs.values():
        for data in (run.data for run in runs):
            if len(data):
                firsts[data.algorithm, data.seed] = {
                    name: float(scores[0]) for name, scores in data.scores.items()
                }
    return firsts
