"""Write the report of a comparison: its tables, the paper's figures and two more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mopbt.arguments import check_choice
from mopbt.compare.collect import Comparison, evaluations_to_csv
from mopbt.compare.measures import MeasuredTask, keep_fronts, labels_of, measure
from mopbt.compare.table_formats import (
    runs_to_csv,
    tasks_to_csv,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)
from mopbt.compare.tables import Table, build_tables
from mopbt.filesystem import cannot_write, write_atomically
from mopbt.plots.final import final, populations, spaces
from mopbt.plots.objective_space import attainment, fronts, searched
from mopbt.plots.progress import generalization, progress, transfer, trivial
from mopbt.plots.style import Styles, styled, styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200
COLORS = 256


@dataclass(frozen=True, eq=False)
class Report:
    """The measures and tables of a comparison, computed once to be shown and written.

    Attributes:
        comparison: The comparison, complete or not.
        measured: The measures of its tasks.
        tables: A table for each measure.
    """

    comparison: Comparison
    measured: tuple[MeasuredTask, ...]
    tables: tuple[Table, ...]

    def text(self, width: int) -> str:
        """Format all tables for a terminal of `width` columns."""
        return "\n\n".join(to_text(table, width) for table in self.tables)

    def write(self, out: Path | str, *, figures: bool = True) -> list[Path]:
        """Write the tables and figures, and return the files; see `write_report`."""
        out = Path(out)
        files = _write_tables(self, out)
        if figures:
            for name in self.comparison.experiment.figures or DEFAULT_FIGURES:
                for stem, figure in draw(name, self.measured).items():
                    files += _save(figure, out / "figures" / stem)
        _remove_stale_figures(out / "figures", [*files, *self._figures_of_all_evaluations(out)])
        return files

    def _figures_of_all_evaluations(self, out: Path) -> list[Path]:
        """Return the figures that cannot be drawn again, because journals were not kept."""
        if all(map(_knows_all_evaluations, self.measured)):
            return []
        return [file for name in OF_ALL_EVALUATIONS for file in out.glob(f"figures/{name}*")]


def build_report(comparison: Comparison) -> Report:
    """Measure the runs of a comparison, and build its tables."""
    measured = measure(comparison)
    return Report(comparison, measured, build_tables(measured))


def write_report(comparison: Comparison, out: Path | str, *, figures: bool = True) -> list[Path]:
    """Write the tables and figures of a comparison, and return the files.

    The files are tables.md, tables.tex, tables.csv, runs.csv, tasks.csv, fronts.csv.gz and
    figures/*.png and *.pdf. A figure is drawn only if the comparison has the data for it.
    Figures of an earlier report are removed even if none are drawn, because they would show
    other runs than the tables.

    Args:
        comparison: The comparison, complete or not.
        out: Directory of the report.
        figures: Whether to draw figures, which needs matplotlib.
    """
    return build_report(comparison).write(out, figures=figures)


def draw(name: str, measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Draw the figures of one kind of `FIGURES`, by the names of their files.

    The result is empty if the comparison has no data for them.
    """
    check_choice("figures", name, tuple(FIGURES))
    if name in OF_ALL_EVALUATIONS:
        measured = [task for task in measured if _knows_all_evaluations(task)]
    with styled():
        return FIGURES[name](measured, styles_of(labels_of(measured)))


def _knows_all_evaluations(task: MeasuredTask) -> bool:
    """Return whether all evaluations of a task are known, not just its records."""
    return not any(run.data.left_out for runs in task.runs.values() for run in runs)


def _write_tables(report: Report, out: Path) -> list[Path]:
    tables = report.tables
    sections = [f"## {table.measure}\n\n{to_markdown(table)}" for table in tables]
    texts = {
        "tables.md": "\n".join([_introduction(report), *sections]),
        "tables.tex": "\n".join(map(to_latex, tables)),
        "tables.csv": to_csv(tables),
        "runs.csv": runs_to_csv(report.measured),
        "tasks.csv": tasks_to_csv(report.measured),
    }
    files = {name: text.encode() for name, text in texts.items()}
    files["fronts.csv.gz"] = evaluations_to_csv(keep_fronts(report.comparison, report.measured))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(error, out) from error
    for name, content in files.items():
        write_atomically(out / name, content)
    return [out / name for name in files]


def _introduction(report: Report) -> str:
    """Describe the comparison, and what is missing or invalid in it."""
    comparison = report.comparison
    lines = [f"# {comparison.experiment.name}"]
    if comparison.experiment.about:
        lines.append(comparison.experiment.about)
    missing = len(comparison.missing)
    if missing:
        lines.append(f"{missing} of {missing + len(comparison.runs)} runs are not finished.")
    lines += comparability_warnings(comparison)
    intervals = sum(len(run) + run.left_out for run in comparison.runs)
    failed = sum(len(run.errors) for run in comparison.runs)
    if failed:
        lines.append(
            f"{failed:,} of {intervals:,} intervals failed; evaluations.csv.gz has their errors."
        )
    not_finite = sum(
        int((~np.isfinite(run.objectives)).any(axis=1).sum()) for run in comparison.runs
    )
    diverged = not_finite - failed
    if diverged:
        lines.append(
            f"{diverged:,} of {intervals:,} intervals ended with an objective that is not finite."
        )
    untested = _count_untested(report.measured)
    if untested:
        lines.append(
            f"{untested:,} models of the fronts have no test scores, so they do not count on test "
            f"data."
        )
    shown = {task.name for task in report.measured}
    for task in comparison.problems:
        if task not in shown:
            lines.append(
                f"{task}: no evaluation counts; all of them failed, were not finite or violated a "
                f"constraint."
            )
    return "\n\n".join(lines) + "\n"


def _count_untested(measured: Sequence[MeasuredTask]) -> int:
    """Count the models of the fronts without test scores, on tasks that have some."""
    count = 0
    for task in measured:
        for runs in task.runs.values():
            for run in runs:
                if run.data.test is not None:
                    count += int((~np.isfinite(run.data.test[run.front])).any(axis=1).sum())
    return count


def comparability_warnings(comparison: Comparison) -> list[str]:
    """Return a warning for each reason why the runs may not be comparable."""
    warnings = []
    if comparison.mixed:
        tasks = ", ".join(comparison.mixed)
        warnings.append(f"The code of {tasks} changed between runs, so they may not be comparable.")
    if len(comparison.versions) > 1:
        versions = " and ".join(comparison.versions)
        warnings.append(
            f"The runs were made by mopbt {versions}, which may make different decisions, so they "
            f"may not be comparable."
        )
    return warnings


def _save(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF, without a timestamp.

    Equal figures give equal files.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    png = stem.with_name(f"{stem.name}.png")
    pdf = stem.with_name(f"{stem.name}.pdf")
    with styled():
        figure.savefig(png, dpi=DPI)
        _reduce_colors(png)
        # The layout is final. Computing it again would double the time.
        figure.set_layout_engine("none")
        figure.savefig(pdf, dpi=DPI, metadata={"CreationDate": None})
    return [png, pdf]


def _reduce_colors(png: Path) -> None:
    """Reduce an image to 256 colors.

    Lines and text look the same in two fifths of the bytes.
    """
    # Pillow is a dependency of matplotlib.
    from PIL import Image

    with Image.open(png) as image:
        reduced = image.convert("RGB").quantize(
            COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        reduced.save(png)


def _remove_stale_figures(folder: Path, written: Sequence[Path]) -> None:
    """Remove the figures of an earlier report that this one did not draw."""
    for file in set(folder.glob("*.p*")).difference(written):
        own = file.stem in FIGURES or file.stem.startswith(("searched-", "attainment-"))
        if own and file.suffix in (".png", ".pdf"):
            file.unlink()


FIGURES: Mapping[str, Callable[[Sequence[MeasuredTask], Styles], dict[str, "Figure"]]] = {
    kind.__name__: kind
    for kind in (
        progress,
        fronts,
        searched,
        attainment,
        generalization,
        transfer,
        final,
        populations,
        spaces,
        trivial,
    )
}
# These show evaluations that were never on a front, which records do not have.
OF_ALL_EVALUATIONS = ("searched", "trivial")
# `spaces` needs tasks that differ only in their spaces, so an experiment must ask for it.
DEFAULT_FIGURES = tuple(name for name in FIGURES if name != "spaces")
