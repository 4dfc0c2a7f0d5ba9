"""Format the tables of a comparison as Markdown, LaTeX, plain text and CSV."""

import csv
import io
import math
import textwrap
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from mopbt.compare.measures import MeasuredTask
from mopbt.compare.significance import FEWEST_PAIRS
from mopbt.compare.tables import LEVEL, Cell, Table
from mopbt.messages import counted

LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", "×": r"$\times$", "−": "$-$"}
    | {
        letter: rf"$\{unicodedata.name(letter).split()[-1].lower()}$"
        for letter in "αβγδζηθικμνξπρστυφχψω"
    }
    | {"ε": r"$\varepsilon$", "λ": r"$\lambda$"}
)
# Characters of a label, and of the head of a narrow column, in text for a terminal.
LABEL_WIDTH = 28
HEAD_WIDTH = 20
TABLE_COLUMNS = (
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
    "lower",
    "upper",
    "mark",
)
RUN_COLUMNS = (
    "task",
    "algorithm",
    "seed",
    "evaluations",
    "seconds",
    "hypervolume",
    "test_hypervolume",
    "coverage",
    "honest_test_hypervolume",
    "claimed_utility",
    "test_utility",
)
TASK_COLUMNS = ("task", "objective", "direction", "reference", "best_hypervolume")


# Markdown and LaTeX


def to_markdown(table: Table) -> str:
    """Format a table as Markdown, with its caption below it."""
    tasks = [_head(table, task, "in 1e{}") for task in table.tasks]
    heads = tasks + _overall_heads(table, "p")
    rows = [["", *heads], ["---", *["---:"] * len(heads)]]
    for label in table.algorithms:
        cells = [_markdown_cell(table, task, label) for task in table.tasks]
        rows.append([label, *cells, *_overall_cells(table, label, "**{}**")])
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
    return "\n".join([*lines, "", caption(table), ""])


def to_latex(table: Table) -> str:
    """Format a table as LaTeX for the package booktabs."""
    titles = {task: title.translate(LATEX) for task, title in table.titles.items()}
    escaped = replace(table, titles=titles)
    tasks = [_head(escaped, task, "in $10^{{{}}}$") for task in table.tasks]
    rows = [["", *tasks, *_overall_heads(table, "$p$")]]
    for label in table.algorithms:
        # LaTeX reads a bracket after `\\` as its optional argument.
        guard = "{}" if label.startswith("[") else ""
        cells = [_latex_cell(table, task, label) for task in table.tasks]
        overall = [
            text.replace("−", "$-$").replace("–", "--")
            for text in _overall_cells(table, label, r"\textbf{{{}}}")
        ]
        rows.append([guard + label.translate(LATEX), *cells, *overall])
    head, *body = [" & ".join(row) + r" \\" for row in rows]
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize",
        rf"\caption{{{caption(table).translate(LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(rows[0]) - 1)}@{{}}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _markdown_cell(table: Table, task: str, label: str) -> str:
    if (task, label) not in table.cells:
        return "–"
    cell = table.cells[task, label]
    text = " ± ".join(_format_numbers(table, task, cell))
    if cell.mark == "best":
        text = f"**{text}**"
    elif cell.mark == "level":
        text = f"*{text}*"
    if cell.sign:
        text += f" ({cell.sign})"
    return text + _remarks(table, task, label)


def _latex_cell(table: Table, task: str, label: str) -> str:
    if (task, label) not in table.cells:
        return "--"
    cell = table.cells[task, label]
    text = r" \pm ".join(_format_numbers(table, task, cell))
    if cell.mark == "best":
        text = rf"\mathbf{{{text}}}"
    elif cell.mark == "level":
        text = rf"\mathit{{{text}}}"
    if cell.sign:
        text += f"^{{({cell.sign.replace('−', '-')})}}"
    return f"${text}${_remarks(table, task, label)}"


def _format_numbers(table: Table, task: str, cell: Cell) -> tuple[str, str]:
    """Format mean and deviation with 2 decimals as in the paper, or more if needed.

    Small deviations get as many decimals as it takes to see them, 6 at most.
    """
    unit = 10.0 ** (2 - _exponent(table, task))
    deviations = [
        unit * other.deviation
        for (place, _), other in table.cells.items()
        if place == task and other.deviation > 0
    ]
    decimals = 2
    if deviations:
        decimals = min(max(2, math.ceil(-math.log10(np.median(deviations)))), 6)
    return f"{unit * cell.mean:.{decimals}f}", f"{unit * cell.deviation:.{decimals}f}"


def _exponent(table: Table, task: str) -> int:
    """Return the power of ten to factor out of a task's numbers times 100.

    It is 0 unless the largest number is below 0.01 or at least 100,000.
    """
    largest = max(100 * cell.mean for (place, _), cell in table.cells.items() if place == task)
    if largest == 0 or 1e-2 <= largest < 1e5:
        return 0
    return math.floor(math.log10(largest))


def _head(table: Table, task: str, unit: str) -> str:
    """Return the head of a task's column."""
    return " ".join([table.titles[task], *(f"({n})" for n in _head_notes(table, task, unit))])


def _head_notes(table: Table, task: str, unit: str) -> list[str]:
    """Return what a task's head says besides its name: units other than 1/100, times."""
    notes = []
    if exponent := _exponent(table, task):
        notes.append(unit.format(exponent - 2))
    if task in table.unequal_seconds:
        notes.append("unequal times")
    return notes


def _most_runs(table: Table) -> int:
    return max(len(cell.values) for cell in table.cells.values())


def _remarks(table: Table, task: str, label: str) -> str:
    """Return the time of a cell if times differ, and its runs if others have more."""
    remarks = ""
    if task in table.unequal_seconds:
        remarks += f" in {table.unequal_seconds[task][label]:.4g} s"
    runs = len(table.cells[task, label].values)
    if runs < _most_runs(table):
        remarks += f" ({counted(runs, 'run')})"
    return remarks


def _overall_heads(table: Table, p: str) -> list[str]:
    """Return the heads of the columns over all tasks."""
    return ["average rank"] * (len(table.tasks) > 1) + [p] * (len(table.algorithms) > 1)


def _overall_cells(table: Table, label: str, bold: str) -> list[str]:
    """Return the cells of an algorithm in the columns over all tasks."""
    overall = table.overall[label]
    cells = []
    if len(table.tasks) > 1:
        rank = "–" if math.isnan(overall.rank) else f"{overall.rank:.2f}"
        cells.append(bold.format(rank) if overall.leads else rank)
    if len(table.algorithms) > 1:
        p = "" if math.isnan(overall.corrected) else f"{overall.corrected:.2g}"
        if overall.sign:
            p += f" ({overall.sign})"
        cells.append(p)
    return cells


# Text for a terminal


def to_text(table: Table, width: int) -> str:
    """Format a table as text of at most `width` columns, in parts if it is wider.

    A star marks what is bold in other formats.
    """
    labels = [_shorten(label, LABEL_WIDTH) for label in table.algorithms]
    label_width = max(map(len, labels))
    parts: list[list[list[str]]] = [[]]
    room = width - label_width
    columns = _text_columns(table, room)
    n = len(table.tasks)
    # The columns over all tasks stay together.
    for group in [*([column] for column in columns[:n]), columns[n:]]:
        if parts[-1] and sum(len(column[0]) for column in [*parts[-1], *group]) > room:
            parts.append([])
        parts[-1] += group
    lines = textwrap.wrap(_text_caption(table), width)
    for part in parts:
        lines.append("")
        for label, *cells in zip(["", "", *labels], *part, strict=True):
            if label or any(cell.strip() for cell in cells):
                lines.append("".join([label.ljust(label_width), *cells]).rstrip())
    return "\n".join(lines)


def _text_columns(table: Table, room: int) -> list[list[str]]:
    """Return two lines of head and the cells of all columns, aligned to their widths."""
    columns = []
    for task in table.tasks:
        notes = _head_notes(table, task, "in 1e{}")
        cells = [_text_cell(table, task, label) for label in table.algorithms]
        columns.append([table.titles[task], ", ".join(notes), *cells])
    overall = [_overall_cells(table, label, "{}*") for label in table.algorithms]
    for i, head in enumerate(_overall_heads(table, "p")):
        columns.append([head, "", *(cells[i] for cells in overall)])
    aligned = []
    for head, *others in columns:
        longest = max(map(len, others))
        shown = _shorten(head, min(max(longest, HEAD_WIDTH), room - 2))
        width = max(longest, len(shown)) + 2
        aligned.append([text.rjust(width) for text in (shown, *others)])
    return aligned


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _text_cell(table: Table, task: str, label: str) -> str:
    if (task, label) not in table.cells:
        return "–"
    cell = table.cells[task, label]
    text = " ± ".join(_format_numbers(table, task, cell))
    # Marks that other cells of the column have are left blank, so that numbers are aligned.
    others = [other for (place, _), other in table.cells.items() if place == task]
    if any(other.mark for other in others):
        text += {"best": "*", "level": "~", "": " "}[cell.mark]
    if any(other.sign for other in others):
        text += f" ({cell.sign})" if cell.sign else "    "
    return text + _remarks(table, task, label)


def _text_caption(table: Table) -> str:
    runs = counted(_most_runs(table), "run")
    sentences = [f"{table.measure}: mean ± standard deviation over {runs}."]
    marks = {cell.mark for cell in table.cells.values()}
    if "best" in marks:
        sentences.append("A star marks what is probably better than all others.")
    if "level" in marks:
        sentences.append("~ marks those that may be the best.")
    if any(cell.sign for cell in table.cells.values()):
        sentences.append(f"(−) and (+): significantly worse or better than {table.baseline}.")
    if len(table.algorithms) > 1:
        sentences.append(f"p: test against {table.baseline}.")
    return " ".join(sentences)


# Captions


def caption(table: Table) -> str:
    """Explain the numbers, marks and tests of a table."""
    most = _most_runs(table)
    runs = counted(most, "run")
    if any(len(cell.values) < most for cell in table.cells.values()):
        runs += " (or the number given in the cell)"
    sentences = [f"{table.measure}, larger is better: mean ± standard deviation over {runs}."]
    if len(table.algorithms) > 1:
        sentences.append(_explain_marks(table))
    sentences += filter(None, [table.note])
    if any(_exponent(table, task) for task in table.tasks):
        sentences.append(
            "A column whose head names a unit (in 1eN) is in that unit instead of times 100."
        )
    if len(table.algorithms) > 1:
        sentences += _explain_tests(table)
    if len(table.tasks) > max(len(table.ranked), 1):
        ranked = ", ".join(table.titles[task] for task in table.ranked) or "none yet"
        sentences.append(f"The average rank is over the tasks whose runs are complete ({ranked}).")
    without_rank = any(math.isnan(overall.rank) for overall in table.overall.values())
    if not math.isnan(table.critical_difference) and len(table.tasks) > 1:
        sentences.append(
            f"Average ranks that differ by less than {table.critical_difference:.2f} are not "
            "distinguishable (Nemenyi's test, level 0.05)."
        )
    if len(table.ranked) > 1 and without_rank:
        sentences.append("An algorithm that was not run on all tasks has no average rank.")
    return " ".join(sentences)


def _explain_marks(table: Table) -> str:
    """Explain bold and italic cells."""
    equal = [task for task in table.tasks if task not in table.unequal_seconds]
    if equal and not any(cell.mark for cell in table.cells.values()):
        return f"With fewer than {FEWEST_PAIRS} runs per algorithm, no cell is marked as the best."
    return (
        "Bold: probably better than all others, because the 95 % bootstrap interval of the paired "
        "differences from the runner-up, over seeds, is above zero. Italic: if none is, those that "
        "are not probably worse than the best mean. The unit of independence is the seed: runs of "
        "the same seed are pairs, and the evaluations within a run are not independent."
    )


def _explain_tests(table: Table) -> list[str]:
    """Explain the tests against the baseline, and what limits them."""
    sentences = [
        f"(−) and (+): significantly worse or better than {table.baseline} (level {LEVEL}, paired "
        "sign-flip test over seeds, Holm's correction over the algorithms of a task)."
    ]
    if _lacks_power(table):
        pairs = _baseline_runs(table)
        sentences.append(
            f"With {counted(pairs, 'run')} per algorithm, no difference on a single task "
            "can be significant."
        )
    over = " over all tasks on which an algorithm was run" if len(table.tasks) > 1 else ""
    sentences.append(f"p: the same test{over}, with Holm's correction over the algorithms.")
    for first in dict.fromkeys(table.related.values()):
        group = [table.titles[task] for task, other in table.related.items() if other == first]
        if len(group) > 1:
            sentences.append(
                f"The runs of {' and '.join(group)} start from the same models, so p counts them "
                "as one task."
            )
    if table.unequal_seconds:
        unequal = " and ".join(table.titles[task] for task in table.unequal_seconds)
        sentences.append(
            f"On {unequal}, the algorithms had different virtual times, which the cells give, so "
            "nothing is bold there."
        )
    return sentences


def _lacks_power(table: Table) -> bool:
    """Return whether a task has too few runs for any difference to be significant."""
    rivals = []
    for task in table.tasks:
        if (task, table.baseline) in table.cells:
            rivals.append(sum(place == task for place, _ in table.cells) - 1)
    fewest = min(filter(None, rivals), default=1)
    # The smallest p of n pairs is 2 / 2^n. Holm's correction multiplies it by the rivals.
    return bool(fewest * 2.0 ** (1 - _baseline_runs(table)) > LEVEL)


def _baseline_runs(table: Table) -> int:
    runs = [len(cell.values) for (_, label), cell in table.cells.items() if label == table.baseline]
    return max(runs, default=0)


# CSV


def to_csv(tables: Iterable[Table]) -> str:
    """Format tables as CSV with all digits, one line per cell.

    Lines without a task compare an algorithm over all tasks.
    """
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(TABLE_COLUMNS)
    for table in tables:
        for (task, label), cell in table.cells.items():
            row = [table.name, task, label, len(cell.values), cell.mean, cell.deviation]
            tested = (cell.difference, cell.p, cell.corrected, *cell.interval)
            write([*row, int(cell.is_best), cell.rank, *map(_blank_if_nan, tested), cell.mark])
        for label, overall in table.overall.items():
            numbers = (overall.rank, overall.difference, overall.p, overall.corrected)
            write([table.name, "", label, *[""] * 4, *map(_blank_if_nan, numbers), *[""] * 3])
    return text.getvalue()


def runs_to_csv(measured: Iterable[MeasuredTask]) -> str:
    """Format the measures of every run as CSV, as input for other tests."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(RUN_COLUMNS)
    for task in measured:
        for label, runs in task.runs.items():
            for run in runs:
                tests = run.test_hypervolumes
                write(
                    [
                        task.name,
                        label,
                        run.data.seed,
                        len(run.data) + run.data.left_out,
                        float(max(run.data.seconds, default=0.0)),
                        float(run.hypervolumes[-1]),
                        "" if tests is None else float(tests[-1]),
                        "" if run.coverage is None else run.coverage,
                        "" if run.honest_test is None else run.honest_test,
                        "" if run.choice is None else run.choice.claimed,
                        "" if run.choice is None else run.choice.actual,
                    ]
                )
    return text.getvalue()


def tasks_to_csv(measured: Iterable[MeasuredTask]) -> str:
    """Format the reference point and HV* of every task as CSV.

    Reference values are in their original direction.
    """
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(TASK_COLUMNS)
    for task in measured:
        reference = (task.signs * task.reference).tolist()
        for objective, value in zip(task.problem.objectives, reference, strict=True):
            write([task.name, objective.name, objective.direction, value, task.best])
    return text.getvalue()


def _blank_if_nan(number: float) -> float | str:
    return "" if math.isnan(number) else number
