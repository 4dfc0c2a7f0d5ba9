"""Runs that another comparison has made already."""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mopbt.compare.crew import Order, identity
from mopbt.compare.evaluations import Marker, about_of
from mopbt.stores.directory import write_atomically

FILES = ("run.toml", "journal.jsonl")


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

    def copied(self, order: Order) -> Marker | None:
        """Copy the run that an order asks for, if there is one, and return its mark; models are not copied."""
        other = None if order.keep_models else self.runs.get(identity(order))
        if other is None:
            return None
        path = Path(order.path)
        path.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copyfile(other / name, path / name)
        mark = (other / "finished.json").read_bytes()
        write_atomically(path / "finished.json", mark)  # last: with it, the run is whole
        marker: Marker = json.loads(mark)
        return marker


def _ordered(marker: Path) -> str:
    order: str = json.loads(marker.read_bytes()).get("order", "")
    return order
