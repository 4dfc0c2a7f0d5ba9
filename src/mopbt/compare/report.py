"""The report of a comparison: its tables, and figures as in the paper and two more; each where the comparison has what it shows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mopbt.algorithms import check_choice
from mopbt.compare import Comparison
from mopbt.compare.collect import compressed
from mopbt.compare.measures import MeasuredRun, MeasuredTask, fronts_of, measure
from mopbt.compare.table_formats import (
    runs_to_csv,
    tasks_to_csv,
    to_csv,
    to_latex,
    to_markdown,
)
from mopbt.compare.tables import build_tables
from mopbt.plots.final import final, populations, spaces
from mopbt.plots.objective_space import attainment, fronts, searched
from mopbt.plots.progress import generalization, progress, transfer, trivial
from mopbt.plots.style import styled
from mopbt.stores.directory import write_atomically
from mopbt.stores.journal import cannot_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200


def write_report(comparison: Comparison, out: Path | str, *, figures: bool = True) -> list[Path]:
    """Write a comparison's tables.*, its runs.csv, tasks.csv and fronts.csv.gz, and figures/*.png and *.pdf; return the files.

    Figures need matplotlib; without them, those of an earlier report are removed all the same, as they would tell of other runs.
    """
    out, measured = Path(out), measure(comparison)
    files = _write_tables(comparison, measured, out)
    for name in (comparison.experiment.figures or USUAL) if figures else ():
        for stem, figure in draw(name, measured).items():
            files += _save(figure, out / "figures" / stem)
    _remove_earlier(out / "figures", files)
    return files


def draw(name: str, measured: Sequence[MeasuredTask]) -> dict[str, "Figure"]:
    """Return the figures of one kind of `FIGURES`, by the names of their files; none where nothing is there that they show."""
    check_choice("figures", name, tuple(FIGURES))
    with styled():
        return FIGURES[name](measured)


def _write_tables(
    comparison: Comparison, measured: Sequence[MeasuredTask], out: Path
) -> list[Path]:
    made = build_tables(measured)
    texts = {
        "tables.md": "\n".join(
            [
                _head(comparison, measured),
                *(f"## {table.measure}\n\n{to_markdown(table)}" for table in made),
            ]
        ),
        "tables.tex": "\n".join(map(to_latex, made)),
        "tables.csv": to_csv(made),
        "runs.csv": runs_to_csv(measured),
        "tasks.csv": tasks_to_csv(measured),
    }
    files = {name: text.encode() for name, text in texts.items()} | {
        "fronts.csv.gz": compressed(fronts_of(comparison, measured))
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(error, out) from error
    for name, content in files.items():
        write_atomically(out / name, content)
    return [out / name for name in files]


def _head(comparison: Comparison, measured: Sequence[MeasuredTask]) -> str:
    """Return what the comparison is, and how much of it is missing."""
    missing, runs = len(comparison.missing), len(comparison.runs)
    lines = [f"# {comparison.experiment.name}", comparison.experiment.about]
    lines += [f"{missing} of {missing + runs} runs are not finished."] if missing else []
    lines += not_alike(comparison)
    failed, evaluations = (
        sum(len(run.errors) for run in comparison.runs),
        sum(map(len, comparison.runs)),
    )
    lines += (
        [f"{failed:,} of {evaluations:,} intervals failed; evaluations.csv.gz has their errors."]
        if failed
        else []
    )
    strange = (
        sum(int((~np.isfinite(run.objectives)).any(axis=1).sum()) for run in comparison.runs)
        - failed
    )
    lines += (
        [
            f"{strange:,} of {evaluations:,} intervals ended with an objective that is no finite number."
        ]
        if strange
        else []
    )
    untested = sum(
        _without_test(run) for task in measured for runs in task.runs.values() for run in runs
    )
    lines += (
        [
            f"{untested:,} models of the fronts have no test scores, and count for nothing on test data."
        ]
        if untested
        else []
    )
    nothing = [task for task in comparison.problems if task not in {task.name for task in measured}]
    lines += [
        f"{task}: no evaluation counts; all failed, were not finite, or violated a constraint."
        for task in nothing
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _without_test(run: MeasuredRun) -> int:
    """Return how many models of a run's front have no test scores, though others of the run have."""
    return (
        0
        if run.data.test is None
        else int((~np.isfinite(run.data.test[run.front])).any(axis=1).sum())
    )


def not_alike(comparison: Comparison) -> list[str]:
    """Return what a reader must know where not all runs were made by the same code."""
    mixed, versions = ", ".join(comparison.mixed), " and ".join(comparison.versions)
    sentences = (
        [f"The code of {mixed} changed between runs: they may not be comparable."] if mixed else []
    )
    made = f"The runs were made by mopbt {versions}, which may decide differently: they may not be comparable."
    return sentences + ([made] if len(comparison.versions) > 1 else [])


def _save(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF, without the time: the same comparison gives the same files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.pdf")
    with styled():
        figure.savefig(png, dpi=DPI)
        _keep_colors(png)
        figure.set_layout_engine(
            "none"
        )  # it stays as it is: to lay it out again would double the cost
        figure.savefig(pdf, dpi=DPI, metadata={"CreationDate": None})
    return [png, pdf]


def _keep_colors(png: Path, most: int = 256) -> None:
    """Write an image with so many colors: lines and letters look the same in two fifths of the bytes."""
    from PIL import Image  # matplotlib brings it

    with Image.open(png) as image:
        image.convert("RGB").quantize(
            most, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        ).save(png)


def _remove_earlier(folder: Path, written: Sequence[Path]) -> None:
    """Remove what an earlier report drew and this one did not: it would tell of other runs than the tables beside it."""
    for file in set(folder.glob("*.p*")).difference(written):
        own = file.stem in FIGURES or file.stem.startswith(("searched-", "attainment-"))
        if own and file.suffix in (".png", ".pdf"):
            file.unlink()


FIGURES: Mapping[str, Callable[[Sequence[MeasuredTask]], dict[str, "Figure"]]] = {
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
USUAL = tuple(
    name for name in FIGURES if name != "spaces"
)  # an experiment must say that its tasks differ in their spaces alone
