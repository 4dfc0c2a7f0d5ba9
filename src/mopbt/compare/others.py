"""Runs that another comparison has made already."""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt.compare.crew import Order, identity
from mopbt.compare.evaluations import Marker, about_of, problem_differences
from mopbt.results import read_settings
from mopbt.stores.directory import write_atomically
from mopbt.task import Problem

FILES = ("run.toml", "journal.jsonl", "finished.json")


@dataclass(frozen=True)
class Others:
    """What other comparisons have measured of their tasks, and their finished runs by what was ordered."""

    tasks: Mapping[str, Any]
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
        tasks = {task: known for place in found for task, known in about_of(place).get("tasks", {}).items()}
        markers = (marker for place in found for marker in sorted(place.glob("runs/*/*/*/finished.json")))
        return Others(tasks, {order: marker.parent for marker in markers if (order := _ordered(marker))})

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
        marker: Marker = json.loads((path / "finished.json").read_bytes())
        return marker


def _ordered(marker: Path) -> str:
    order: str = json.loads(marker.read_bytes()).get("order", "")
    return order
