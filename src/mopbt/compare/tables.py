"""Tables of a comparison: hypervolume on validation and on test data, and coverage, as in the paper's Appendix I.

Beside the paper's mean and deviation stand the average rank over tasks and what tells a difference from chance (`statistics`).
One structure, `Table`, becomes Markdown, LaTeX and CSV.
"""

import csv
import io
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mopbt import metrics
from mopbt.compare.measures import MeasuredRun, MeasuredTask, baseline_of, labels_of, unequal_times
from mopbt.compare.significance import holm, paired_differences, places, sign_flip_test

LEVEL = 0.05
LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": "$-$",
    }
    | {
        letter: rf"$\{unicodedata.name(letter).split()[-1].lower()}$"
        for letter in "αβγδζηθικμνξπρστυφχψω"
    }
    | {"ε": r"$\varepsilon$", "λ": r"$\lambda$"}
)


@dataclass(frozen=True)
class Cell:
    """What an algorithm reached on a task, over its runs, and how that compares."""

    values: Mapping[int, float]  # by seed
    mean: float
    deviation: float
    rank: float  # among the algorithms of the task, 1 for the best; equal ones share the mean of their places
    difference: float = (
        math.nan
    )  # of the mean from the baseline's, over pairs of runs; NaN for the baseline
    p: float = math.nan  # of the difference, if chance alone made it
    corrected: float = math.nan  # p after Holm's correction over the algorithms of the task

    @property
    def sign(self) -> str:
        """Return "+" or "−" where the algorithm is significantly better or worse than the baseline, else nothing."""
        return _sign(self.difference, self.corrected)


@dataclass(frozen=True)
class Overall:
    """How an algorithm compares over all tasks on which it was run."""

    rank: float  # the mean of its ranks on the tasks that are ranked; NaN if it was not run on one of them
    difference: float = (
        math.nan
    )  # from the baseline: -1 if it is worse in every pair of runs, 1 if better, by size in between
    p: float = math.nan
    corrected: float = math.nan  # p after Holm's correction over the algorithms

    @property
    def sign(self) -> str:
        """Return "+" or "−" where the algorithm is significantly better or worse than the baseline, else nothing."""
        return _sign(self.difference, self.corrected)


@dataclass(frozen=True)
class Table:
    """One measure of all algorithms on all tasks. A cell is missing where an algorithm was not run on a task."""

    name: str
    measure: str  # what the numbers are, as a caption begins
    baseline: str
    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]  # by task and algorithm
    overall: Mapping[str, Overall]  # by algorithm
    ranked: tuple[
        str, ...
    ]  # the tasks of which all runs are there: those that are not finished would favor who is run first
    kin: Mapping[str, str]  # by task, the first one whose runs begin like its own
    seconds: Mapping[
        str, Mapping[str, float]
    ]  # virtual ones, by algorithm, of those tasks on which they differ

    def is_best(self, task: str, algorithm: str) -> bool:
        """Tell whether no algorithm has a larger mean on the task."""
        means = [cell.mean for (place, _), cell in self.cells.items() if place == task]
        return self.cells[task, algorithm].mean == max(means)


# Tables


def tables(measured: Sequence[MeasuredTask]) -> tuple[Table, ...]:
    """Return the tables of all measures that the tasks have: hypervolume, hypervolume on test data, coverage."""
    scaled = ", ".join(task.name for task in measured if task.scaled)
    units = (
        f" (of {scaled} in units of the objectives' ranges, which differ more than tenfold)"
        if scaled
        else ""
    )
    made = (
        make_table(
            "hypervolume",
            "Hypervolume × 100 on validation data",
            measured,
            lambda run: run.hypervolumes[-1],
        ),
        make_table(
            "test",
            "Hypervolume × 100 on test data of the front found on validation data",
            measured,
            lambda run: None if run.test_hypervolumes is None else run.test_hypervolumes[-1],
        ),
        make_table(
            "coverage",
            f"Coverage × 100 of the front on validation data{units}",
            measured,
            lambda run: run.coverage,
        ),
    )
    return tuple(table for table in made if table.cells)


def make_table(
    name: str,
    measure: str,
    measured: Sequence[MeasuredTask],
    value_of: Callable[[MeasuredRun], float | None],
) -> Table:
    """Return the table of one measure, a number of each run, or None where a run has none."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for task in measured:
        for label, runs in task.runs.items():
            known = {
                run.data.seed: float(value) for run in runs if (value := value_of(run)) is not None
            }
            if known:
                values.setdefault(task.name, {})[label] = known
    present = tuple(
        label
        for label in labels_of(measured)
        if any(label in of_task for of_task in values.values())
    )
    baseline = baseline_of(present)
    cells = {
        (task, label): cell
        for task in values
        for label, cell in _cells(values[task], baseline).items()
    }
    ranked = tuple(
        task.name
        for task in measured
        if task.name in values and _is_complete(task, values[task.name])
    )
    kin = related([task for task in measured if task.name in values])
    overall = _overall(cells, present, baseline, ranked, kin)
    seconds = unequal_times([task for task in measured if task.name in values])
    return Table(
        name, measure, baseline, tuple(values), present, cells, overall, ranked, kin, seconds
    )


def related(measured: Sequence[MeasuredTask]) -> dict[str, str]:
    """Return for each task the first one whose runs begin like its own.

    Such tasks train the same networks on the same rows with the same random numbers, so luck on one is luck on the other.
    """
    kin: dict[str, str] = {}
    for task in measured:
        kin[task.name] = next(
            (kin[other.name] for other in measured[: len(kin)] if _begin_alike(task, other)),
            task.name,
        )
    return kin


def _begin_alike(one: MeasuredTask, other: MeasuredTask) -> bool:
    """Tell whether runs of the same algorithm and seed have the same first evaluation, in all scores that tell."""
    ours, theirs = _firsts(one), _firsts(other)
    pairs: dict[str, set[tuple[int, float, float]]] = {}
    for label, seed in ours.keys() & theirs.keys():
        a, b = ours[label, seed], theirs[label, seed]
        for name in a.keys() & b.keys():
            if not (
                math.isnan(a[name]) or math.isnan(b[name])
            ):  # what failed, or was not measured so soon, tells nothing
                pairs.setdefault(name, set()).add((seed, a[name], b[name]))
    # Nor does what is the same with all seeds, such as the size of a network.
    telling = [
        known
        for known in pairs.values()
        if len(known) == 1 or len({(a, b) for _, a, b in known}) > 1
    ]
    return bool(telling) and all(a == b for known in telling for _, a, b in known)


def _firsts(task: MeasuredTask) -> dict[tuple[str, int], dict[str, float]]:
    """Return the scores of the first evaluation of each run, by algorithm and seed."""
    runs = [run.data for of_label in task.runs.values() for run in of_label if len(run.data)]
    return {
        (run.algorithm, run.seed): {name: float(scores[0]) for name, scores in run.scores.items()}
        for run in runs
    }


def _is_complete(task: MeasuredTask, values: Mapping[str, Mapping[int, float]]) -> bool:
    """Tell whether all algorithms that are run on a task have as many runs there."""
    planned = [
        label
        for label, entry in task.entries.items()
        if not entry.tasks or task.name in entry.tasks
    ]
    return task.complete and len({len(values.get(label, ())) for label in planned}) == 1


def _cells(values: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Cell]:
    """Return the cells of one task, from the values of each algorithm by seed."""
    others = [label for label in values if label != baseline and baseline in values]
    differences = {
        label: np.array(list(paired_differences(values[label], values[baseline]).values()))
        for label in others
    }
    p = {label: sign_flip_test(differences[label]) for label in others}
    corrected = dict(zip(others, holm(list(p.values())).tolist(), strict=True))
    means = {
        label: metrics.mean_and_deviation(list(of_label.values()))
        for label, of_label in values.items()
    }
    ranks = places([mean for mean, _ in means.values()]).tolist()
    cells = {
        label: Cell(values[label], *means[label], rank)
        for label, rank in zip(values, ranks, strict=True)
    }
    compared = {
        label: replace(
            cells[label],
            difference=float(differences[label].mean()),
            p=p[label],
            corrected=corrected[label],
        )
        for label in others
    }
    return cells | compared


def _overall(
    cells: Mapping[tuple[str, str], Cell],
    algorithms: Sequence[str],
    baseline: str,
    ranked: Sequence[str],
    kin: Mapping[str, str],
) -> dict[str, Overall]:
    """Return how each algorithm compares over all tasks, each task weighing the same."""
    pairs: dict[
        str, dict[tuple[str, int], float]
    ] = {}  # by algorithm, and by what chance decides at once: tasks that are kin, a seed
    tasks: dict[str, int] = {}
    for (task, label), cell in cells.items():
        if label != baseline and (task, baseline) in cells:
            differences = paired_differences(cell.values, cells[task, baseline].values)
            # A scale of the differences' sizes alone leaves all patterns of signs as likely as before.
            unit, together = sum(map(abs, differences.values())) or 1.0, pairs.setdefault(label, {})
            tasks[label] = tasks.get(label, 0) + 1
            for seed, difference in differences.items():
                together[kin[task], seed] = together.get((kin[task], seed), 0.0) + difference / unit
    p = [sign_flip_test(list(together.values())) for together in pairs.values()]
    means = [sum(together.values()) / tasks[label] for label, together in pairs.items()]
    tested = {
        label: of_label for label, *of_label in zip(pairs, means, p, holm(p).tolist(), strict=True)
    }
    ranks = {
        label: [cells[task, label].rank if (task, label) in cells else math.nan for task in ranked]
        for label in algorithms
    }
    return {
        label: Overall(float(np.mean(ranks[label] or math.nan)), *tested.get(label, ()))
        for label in algorithms
    }


def _sign(difference: float, corrected: float) -> str:
    return ("+" if difference > 0 else "−") if corrected <= LEVEL else ""


# Renderings


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, with its caption below it."""
    heads = [_head(table, task, " (in 1e{})") for task in table.tasks] + _tail_heads(table, "p")
    rows = [["", *heads], ["---", *["---:"] * len(heads)]]
    for label in table.algorithms:
        cells = [_markdown_cell(table, task, label) for task in table.tasks]
        rows.append([label, *cells, *_tail(table, label, "**{}**")])
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
    return "\n".join([*lines, "", caption(table), ""])


def to_latex(table: Table) -> str:
    """Return a table as LaTeX, for the package booktabs."""
    tasks = [_head(table, task, " (in $10^{{{}}}$)", task.translate(LATEX)) for task in table.tasks]
    heads = ["", *tasks, *_tail_heads(table, "$p$")]
    body = []
    for label in table.algorithms:
        tail = [
            text.replace("−", "$-$").replace("–", "--")
            for text in _tail(table, label, r"\textbf{{{}}}")
        ]
        head = "{}" * label.startswith("[") + label.translate(
            LATEX
        )  # else an argument of what ended the line above
        body.append([head, *(_latex_cell(table, task, label) for task in table.tasks), *tail])
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize",
        rf"\caption{{{caption(table).translate(LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(heads) - 1)}@{{}}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(made: Iterable[Table]) -> str:
    """Return tables as CSV with all digits, a line for each cell and, where no task is named, for an algorithm over all tasks."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(
        [
            "table",
            "task",
            "algorithm",
            "runs",
            "mean",
            "deviation",
            "best",
            "rank",
            "difference",
            "p",
            "p_holm",
        ]
    )
    for table in made:
        for (task, label), cell in table.cells.items():
            best, of_runs = (
                int(table.is_best(task, label)),
                [len(cell.values), cell.mean, cell.deviation],
            )
            write(
                [
                    table.name,
                    task,
                    label,
                    *of_runs,
                    best,
                    cell.rank,
                    *map(_known, (cell.difference, cell.p, cell.corrected)),
                ]
            )
        for label, overall in table.overall.items():
            tested = map(_known, (overall.difference, overall.p, overall.corrected))
            write([table.name, "", label, "", "", "", "", _known(overall.rank), *tested])
    return text.getvalue()


def runs_to_csv(measured: Iterable[MeasuredTask]) -> str:
    """Return the measures of every run as CSV, for tests of one's own."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(
        [
            "task",
            "algorithm",
            "seed",
            "evaluations",
            "seconds",
            "hypervolume",
            "test_hypervolume",
            "coverage",
        ]
    )
    for task in measured:
        for label, runs in task.runs.items():
            for run in runs:
                test = "" if run.test_hypervolumes is None else float(run.test_hypervolumes[-1])
                of_run = [
                    len(run.data.seconds),
                    float(max(run.data.seconds, default=0.0)),
                    float(run.hypervolumes[-1]),
                ]
                write(
                    [
                        task.name,
                        label,
                        run.data.seed,
                        *of_run,
                        test,
                        "" if run.coverage is None else run.coverage,
                    ]
                )
    return text.getvalue()


def tasks_to_csv(measured: Iterable[MeasuredTask]) -> str:
    """Return what hypervolumes are measured by as CSV: each objective's reference value, in its own sense, and HV*."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(["task", "objective", "direction", "reference", "best_hypervolume"])
    for task in measured:
        for objective, value in zip(task.problem.objectives, task.reference.tolist(), strict=True):
            write(
                [task.name, objective.name, objective.direction, objective.sign * value, task.best]
            )
    return text.getvalue()


def caption(table: Table) -> str:
    """Return what a reader must know of a table."""
    most = max(len(cell.values) for cell in table.cells.values())
    fewer = any(len(cell.values) < most for cell in table.cells.values())
    runs = f"{most} run{'s' * (most > 1)}" + " (or as many as stand in the cell)" * fewer
    sentences = [
        f"{table.measure}, larger is better: mean ± standard deviation over {runs}, best in bold."
    ]
    if any(_exponent(table, task) for task in table.tasks):
        sentences.append(
            "Where a column names another unit (in 1eN), its numbers are in that, and not times 100."
        )
    if len(table.algorithms) > 1:
        sentences.append(
            f"(−) and (+): worse or better than {table.baseline} at the level {LEVEL}, by a paired sign-flip test over seeds with "
            "Holm's correction over the algorithms of a task."
        )
        sentences += _power(table)
        over = " over all tasks on which an algorithm was run" if len(table.tasks) > 1 else ""
        sentences.append(f"p: of the same test{over}, with Holm's correction over the algorithms.")
        sentences += _kinship(table) + _times(table)
    if len(table.tasks) > max(len(table.ranked), 1):
        ranked = ", ".join(table.ranked) or "none yet"
        sentences.append(f"Average rank: over the tasks of which all runs are there ({ranked}).")
    if len(table.ranked) > 1 and any(
        math.isnan(overall.rank) for overall in table.overall.values()
    ):
        sentences.append("An algorithm that was not run on all tasks has no average rank.")
    return " ".join(sentences)


def _kinship(table: Table) -> list[str]:
    """Return a sentence for each group of tasks whose runs are not independent."""
    groups = [
        [task for task, first in table.kin.items() if first == head]
        for head in dict.fromkeys(table.kin.values())
    ]
    return [
        f"The runs of {' and '.join(group)} begin alike, so p counts them as one."
        for group in groups
        if len(group) > 1
    ]


def _times(table: Table) -> list[str]:
    """Return a sentence for each task on which algorithms do not have the same virtual time."""
    times = {
        task: ", ".join(f"{label} {time:.4g}" for label, time in of.items())
        for task, of in table.seconds.items()
    }
    return [
        f"Virtual seconds are not the same on {task}: {of_task}." for task, of_task in times.items()
    ]


def _power(table: Table) -> list[str]:
    """Return a sentence where the runs are too few for any difference on one task to be significant."""
    pairs = max(
        (len(cell.values) for (_, label), cell in table.cells.items() if label == table.baseline),
        default=0,
    )
    rivals = [
        sum(place == task for place, _ in table.cells) - 1
        for task in table.tasks
        if (task, table.baseline) in table.cells
    ]
    if min(filter(None, rivals), default=1) * 2.0 ** (1 - pairs) <= LEVEL:
        return []
    return [
        f"With {pairs} run{'s' * (pairs != 1)} an algorithm no difference on one task can be significant."
    ]


def _decimals(table: Table, task: str) -> int:
    """Return the decimals that a task's numbers, as they are shown, need to tell their deviations: 2 as in the paper, or more."""
    unit = 10.0 ** (2 - _exponent(table, task))
    deviations = [
        unit * cell.deviation
        for (place, _), cell in table.cells.items()
        if place == task and cell.deviation > 0
    ]
    return min(max(2, math.ceil(-math.log10(np.median(deviations)))), 6) if deviations else 2


def _numbers(table: Table, task: str, cell: Cell) -> tuple[str, str]:
    decimals, unit = _decimals(table, task), 10.0 ** (2 - _exponent(table, task))
    return f"{unit * cell.mean:.{decimals}f}", f"{unit * cell.deviation:.{decimals}f}"


def _exponent(table: Table, task: str) -> int:
    """Return the power of ten that a task's numbers, times 100, are shown without: 0 but where they are very large or small."""
    largest = max(100 * cell.mean for (place, _), cell in table.cells.items() if place == task)
    return 0 if largest == 0 or 1e-2 <= largest < 1e5 else math.floor(math.log10(largest))


def _fewer_runs(table: Table, cell: Cell) -> str:
    runs = len(cell.values)
    return (
        ""
        if runs == max(len(c.values) for c in table.cells.values())
        else f" ({runs} run{'s' * (runs > 1)})"
    )


def _markdown_cell(table: Table, task: str, label: str) -> str:
    if (task, label) not in table.cells:
        return "–"
    cell = table.cells[task, label]
    text = " ± ".join(_numbers(table, task, cell))
    text = f"**{text}**" if table.is_best(task, label) else text
    return text + (f" ({cell.sign})" if cell.sign else "") + _fewer_runs(table, cell)


def _latex_cell(table: Table, task: str, label: str) -> str:
    if (task, label) not in table.cells:
        return "--"
    cell = table.cells[task, label]
    text = r" \pm ".join(_numbers(table, task, cell))
    text = rf"\mathbf{{{text}}}" if table.is_best(task, label) else text
    sign = f"^{{({cell.sign.replace('−', '-')})}}" if cell.sign else ""
    return f"${text}{sign}${_fewer_runs(table, cell)}"


def _head(table: Table, task: str, power: str, name: str = "") -> str:
    """Return the head of a task's column, with the unit of its numbers where that is not a hundredth."""
    exponent = _exponent(table, task)
    return (name or task) + (power.format(exponent - 2) if exponent else "")


def _tail_heads(table: Table, p: str) -> list[str]:
    """Return the heads of the columns over all tasks."""
    return ["average rank"] * (len(table.tasks) > 1) + [p] * (len(table.algorithms) > 1)


def _tail(table: Table, label: str, bold: str) -> list[str]:
    """Return what stands in the columns over all tasks."""
    overall = table.overall[label]
    rank = "–" if math.isnan(overall.rank) else f"{overall.rank:.2f}"
    rank = (
        bold.format(rank)
        if all(not other.rank < overall.rank for other in table.overall.values()) and rank != "–"
        else rank
    )
    p = (
        ""
        if math.isnan(overall.corrected)
        else f"{overall.corrected:.2g}" + (f" ({overall.sign})" if overall.sign else "")
    )
    return [rank] * (len(table.tasks) > 1) + [p] * (len(table.algorithms) > 1)


def _known(number: float) -> float | str:
    return "" if math.isnan(number) else number
