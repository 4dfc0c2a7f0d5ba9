"""Runs that another comparison has made already."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt.compare.crew import Order, identity
from mopbt.compare.evaluations import Marker, about_of, problem_differences, read_json
from mopbt.compare.experiment import slug
from mopbt.results import read_settings
from mopbt.stores.directory import write_atomically
from mopbt.task import Problem

FILES = ("run.toml", "journal.jsonl", "finished.json")


@dataclass(frozen=True)
class Others:
    """What other comparisons are there, and their finished runs by what was ordered."""

    places: Sequence[Path]
    runs: Mapping[str, Path]

    @staticmethod
    def below(places: Iterable[Path], out: Path, scale: str | None) -> "Others":
        """Find the comparisons of the same scale in and below some directories."""
        places = list(places)
        for place in places:
            if not place.is_dir():
                raise ValueError(
                    f"`reuse` must name directories with comparisons in or below them, got {place}, which is not there"
                )
        found = [file.parent for place in places for file in sorted(place.rglob("experiment.toml"))]
        found = [place for place in found if place.resolve() != out.resolve() and about_of(place).get("scale") == scale]
        markers = (marker for place in found for marker in sorted(place.glob("runs/*/*/*/finished.json")))
        return Others(found, {order: marker.parent for marker in markers if (order := _ordered(marker))})

    def measured(self, task: str, made_of: str) -> Mapping[str, Any]:
        """Return what was measured of a task that is made of the same; nothing if nothing was."""
        for place in reversed(self.places):
            known: Mapping[str, Any] = about_of(place).get("tasks", {}).get(task, {})
            run = next(place.glob(f"runs/{slug(task)}/*/*/run.toml"), None)
            if known and run is not None and read_settings(run.parent).made_of == made_of:
                return known
        return {}

    def copied(self, order: Order, problem: Problem, made_of: str) -> Marker | None:
        """Copy the run that an order asks for, if there is one of a task made of the same, and return its mark; without models."""
        other = None if order.keep_models else self.runs.get(identity(order))
        if other is None or problem_differences(other, problem) or read_settings(other).made_of != made_of:
            return None
        path = Path(order.path)
        copy = path.with_name(f"{path.name}.tmp")
        for leftover in (copy, path):  # of a copy that was not finished, and of a run that was begun
            shutil.rmtree(leftover, ignore_errors=True)
        copy.mkdir(parents=True)
        for name in FILES:
            write_atomically(copy / name, (other / name).read_bytes())
        copy.rename(path)  # whole, or not at all
        return read_json(path / "finished.json", "remove it, and the run goes on")


def _ordered(marker: Path) -> str:
    order: str = read_json(marker, "remove it, and the run goes on").get("order", "")
    return order
