"""What the commands print: tables and texts for people, JSON for programs."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mopbt.messages import counted
from mopbt.progress_display import clock
from mopbt.results import Point, Results

out = Console(
    highlight=False, width=None if sys.stdout.isatty() else 240
)  # what goes into a file or a pipe is not cut


def summary_of(results: Results) -> dict[str, Any]:
    """Return what there is to say of a run in a few lines."""
    settings, best, path = results.settings, results.front(), results.path or Path()
    sizes = _sizes(path / "checkpoints")
    kept = (
        {"storage": settings.storage}
        if settings.storage
        else {"checkpoints": len(sizes), "bytes": sum(sizes)}
    )
    return {
        "run": str(path),
        "task": settings.problem.name,
        "algorithm": settings.algorithm["name"],
        "seed": settings.seed,
        "objectives": {o.name: o.direction for o in settings.problem.objectives},
        "constraints": [str(c) for c in settings.problem.constraints],
        "hyperparameters": list(settings.problem.space),
        "options": {k: v for k, v in settings.algorithm.items() if k != "name"},
        "state": _state(results),
        "intervals": len(results),
        "intervals_in_all": results.intervals,
        "failures": len(results.failures()),
        "seconds": results.seconds,
        "front": len(best),
        "best": best.best(),
        "hypervolume": results.hypervolume(),
        **kept,
    }


def _state(results: Results) -> str:
    if holder := results.running:
        return f"driven by {holder}"
    return "done" if results.done else "interrupted"


def _sizes(directory: Path) -> list[int]:
    sizes = []
    for file in directory.glob("*.ckpt"):
        with suppress(FileNotFoundError):  # the run goes on, and drops what it needs no more
            sizes.append(file.stat().st_size)
    return sizes


def point_json(results: Results, point: Point) -> dict[str, Any]:
    """Return a point of the front as JSON has it."""
    row = {
        "job": point.job,
        "trial": point.trial,
        "step": point.step,
        "scores": plain(point.scores),
        "hp": dict(point.hp),
    }
    return row | {"violation": point.violation, "checkpoint": str(results.checkpoint_file(point))}


def print_front(
    results: Results, path: Path, most: int, reference: Mapping[str, float] | None = None
) -> None:
    """Print at most `most` models of the front, spread over it, and its hypervolume above a reference point."""
    best, problem = results.front(), results.problem
    arrows = {"max": "↑", "min": "↓"}
    table = table_of(
        [
            "job",
            "trial",
            "step",
            *(f"{o.name} {arrows[o.direction]}" for o in problem.objectives),
            *problem.space,
        ]
    )
    shown = best.spread(most)
    for p in shown:
        scores, values = (
            [as_text(p.scores[o.name]) for o in problem.objectives],
            [as_text(p.hp[n]) for n in problem.space],
        )
        table.add_row(str(p.job), str(p.trial), str(p.step), *scores, *values)
    out.print(table)
    work = f"{len(results)} intervals, {clock(results.seconds)}"
    if lacks := shortfall(results):
        out.print(f"{lacks} {work}.", soft_wrap=True, markup=False)
    else:
        count = f"{counted(len(best), 'model')} on the front" + (
            f" ({len(shown)} of them shown)" if len(shown) < len(best) else ""
        )
        out.print(
            f"{count}, hypervolume {results.hypervolume(reference):.5g}, {work}.", soft_wrap=True
        )
    hint = f"Hyperparameters are those of the last interval; `mopbt lineage {path} JOB` shows all that made a model."
    out.print(hint, soft_wrap=True)


def shortfall(results: Results) -> str:
    """Return in a sentence that no model satisfies the constraints, where none does."""
    best = results.front()
    lacks = best.shortfall(best[0]) if best else ""
    return lacks and f"Model {best[0].job}: {lacks}."


def table_of(columns: Sequence[str]) -> Table:
    """Return an empty table with these columns, numbers to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        is_text = column in ("run", "task", "algorithm", "state")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "state")
    return table


def as_text(value: Any) -> str:
    """Return a value as people read it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {as_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(as_text, value)) or "none"
    return str(value) if value != "" else "nobody"


def plain(value: Any) -> Any:
    """Return a value without NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
