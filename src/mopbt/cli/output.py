"""Print tables and text for people, and JSON for programs."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from mopbt.front import Point, metric_columns, score_text
from mopbt.messages import column_texts, counted, number, printable
from mopbt.progress_display import clock
from mopbt.results import Results

# Characters between two columns.
_GAP = 2
# Characters that a long first column leaves to the others.
_ROOM = 24


class _PrintableConsole(Console):
    """A console that sends no control characters of names and values to the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render an object as segments of text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


# A fixed width keeps tables complete when they go to a file or a pipe. Names of tasks, values and
# directories may contain square brackets, which are not markup.
out = _PrintableConsole(
    highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 240
)


def summary_of(results: Results) -> dict[str, Any]:
    """Summarize a run in a flat dict."""
    settings = results.settings
    front = results.front()
    path = results.path or Path()
    summary = {
        "run": str(path),
        "task": settings.problem.name,
        "algorithm": settings.algorithm["name"],
        "seed": settings.seed,
        "objectives": {o.name: o.direction for o in settings.problem.objectives},
        "constraints": [str(c) for c in settings.problem.constraints],
        "hyperparameters": list(settings.problem.space),
        "options": {k: v for k, v in settings.algorithm.items() if k != "name"},
        "state": _describe_state(results),
        "intervals": len(results),
        "intervals_in_all": results.intervals,
        "failures": len(results.failures),
        "seconds": results.seconds,
        "front": len(front),
        "best": front.best_values,
        "hypervolume": results.hypervolume(),
    }
    if settings.storage:
        return summary | {"storage": settings.storage}
    sizes = _file_sizes(path / "checkpoints", "*.ckpt", "*.model")
    unfinished = _file_sizes(path / "checkpoints", "*.ckpt.*.tmp", "*.model.*.tmp")
    summary |= {"checkpoints": len(sizes), "bytes": sum(sizes) + sum(unfinished)}
    # Being written, or left by a process that was killed.
    return summary | ({"unfinished": len(unfinished)} if unfinished else {})


def _describe_state(results: Results) -> str:
    if holder := results.running:
        return f"running: {holder}"
    return "done" if results.done else "interrupted"


def _file_sizes(directory: Path, *patterns: str) -> list[int]:
    sizes = []
    for file in chain.from_iterable(map(directory.glob, patterns)):
        # A run in progress may delete the file at any time.
        with suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return sizes


def point_json(results: Results, point: Point) -> dict[str, Any]:
    """Return a model of the front as a dict for JSON, with errors of its metrics."""
    errors = {name: plain(bar._asdict()) for name, bar in point.errors.items()}
    return {
        "model": point.model,
        "trial": point.trial,
        "step": point.step,
        "scores": plain(point.scores),
        **({"errors": errors} if errors else {}),
        "hp": dict(point.hp),
        "violation": point.violation,
        "checkpoint": str(results.checkpoint_file(point)),
    }


def print_front(
    results: Results,
    path: Path,
    most: int | None = None,
    reference: Mapping[str, float] | None = None,
    *,
    observed: bool = False,
) -> None:
    """Print at most `most` models, spread over the front, and its hypervolume."""
    front = results.front(observed=observed)
    problem = results.problem
    arrows = {"max": "↑", "min": "↓"}
    arrow_of = {o.name: f" {arrows[o.direction]}" for o in problem.objectives}
    names = metric_columns(problem, front)
    headers = [name + arrow_of.get(name, "") for name in names]
    rows = []
    shown = front.spread(max(len(front), 1) if most is None else most)
    columns = [column_texts([point.hp[name] for point in shown]) for name in problem.space]
    for row, point in enumerate(shown):
        scores = [score_text(point, name) for name in names]
        values = [column[row] for column in columns]
        rows.append([str(point.model), str(point.trial), str(point.step), *scores, *values])
    print_table(["model", "trial", "step", *headers, *problem.space], rows)
    work = f"{len(results)} intervals, {clock(results.seconds)}"
    if lacks := shortfall(results):
        out.print(f"{lacks} {work}.", soft_wrap=True, markup=False)
    else:
        kind = "front" if front.kind == "observed" else "pessimistic front"
        count = f"{counted(len(front), 'model')} on the {kind}"
        if len(shown) < len(front):
            count += f" ({len(shown)} of them shown)"
        volume = results.hypervolume(reference)
        measured = "hypervolume" if front.kind == "observed" else "observed hypervolume"
        out.print(f"{count}, {measured} {volume:.5g}, {work}.", soft_wrap=True)
    print_warning(results)
    out.print(
        f"Hyperparameters are those of the last interval; `mopbt lineage {path} MODEL` shows all "
        f"intervals of a model.",
        soft_wrap=True,
    )


def print_claims(results: Results) -> None:
    """Print what can be claimed about the models of the front after selection."""
    names = [o.name for o in results.problem.objectives]
    claims = results.claims()
    if not claims:
        out.print("No metric was reported with an error, so claims cannot be corrected for luck.")
        return
    rows = []
    for claim in claims:
        scores = results.point(claim.model).scores
        cells = [str(claim.scores.get(name, as_text(scores[name]))) for name in names]
        rows.append([str(claim.model), *cells, f"{claim.probability:.0%}"])
    print_table(["model", *names, "on the front"], rows)
    out.print(
        "Values are corrected for having been selected from all evaluations; the last column is "
        "the probability that no other model is truly better.",
        soft_wrap=True,
    )
    print_warning(results)


def print_warning(results: Results) -> None:
    """Print a warning if noise alone could have produced the front."""
    if warning := results.noise_warning():
        out.print(warning, style="yellow", markup=False, soft_wrap=True)


def shortfall(results: Results) -> str:
    """Return a sentence if no model satisfies the constraints, else ``""``."""
    front = results.front()
    lacks = front.shortfall(front[0]) if front else ""
    return lacks and f"Model {front[0].model}: {lacks}."


def table_of(columns: Sequence[str]) -> Table:
    """Create an empty table with these columns; numbers are aligned to the right."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        is_text = column in ("run", "task", "algorithm", "state")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "state")
    return table


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, in blocks of columns where it is wider than the terminal.

    Each block repeats the first column. No number is cut; a long first column, such as a path, is
    folded.
    """
    widths = []
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        if column == "state":
            # A state is a sentence, which is wrapped between words.
            cells = [word for cell in cells for word in cell.split()]
        widths.append(max(map(cell_len, [column, *cells])) + _GAP)
    is_folded = widths[0] > out.width - _ROOM
    widths[0] = min(widths[0], max(out.width - _ROOM, _ROOM))
    blocks: list[list[int]] = [[0]]
    for place in range(1, len(columns)):
        used = sum(widths[each] for each in blocks[-1])
        if used + widths[place] > out.width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(place)
    for block in blocks:
        table = table_of([columns[place] for place in block])
        if is_folded:
            first = table.columns[0]
            first.no_wrap = False
            first.overflow = "fold"
            first.max_width = widths[0] - _GAP
        for row in rows:
            table.add_row(*(row[place] for place in block))
        out.print(table)


def as_text(value: Any) -> str:
    """Format a value for people."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ", ".join(f"{k} {as_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(as_text, value)) or "none"
    return str(value) if value != "" else "–"


def plain(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def database_url(destination: str, file: str) -> str:
    """Return a URL unchanged, or that of an SQLite file in a directory."""
    if "://" in destination:
        return destination
    Path(destination).mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{Path(destination).absolute() / file}"
