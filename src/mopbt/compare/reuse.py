"""Runs that another comparison has made already."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mopbt.compare.collect import (
    Marker,
    about_of,
    comparison_of,
    problem_differences,
    read_marker,
    recorded_experiment,
    what_is_wrong,
)
from mopbt.compare.plan import slug
from mopbt.compare.workers import Order, identity
from mopbt.problem import Problem
from mopbt.run_directory import read_run_config
from mopbt.stores.directory import write_atomically

FILES = ("run.toml", "journal.jsonl", "finished.json")


@dataclass(frozen=True)
class ReusableRuns:
    """What other comparisons are there, and their finished runs by what was ordered."""

    places: Sequence[Path]
    runs: Mapping[str, Sequence[Path]]  # several where tasks of the same name have other code
    taken: dict[Path, int] = field(default_factory=dict)  # how many runs were copied, by comparison

    @staticmethod
    def below(
        places: Iterable[Path], out: Path, scale: str | None, *, with_models: bool
    ) -> "ReusableRuns":
        """Find the comparisons of the same scale in and below some directories, and their runs, or those that have their models."""
        places = list(places)
        for place in places:
            if not place.is_dir():
                raise ValueError(
                    f"`reuse` must name directories with comparisons in or below them, got {place}, which is not there"
                )
        found = [file.parent for place in places for file in sorted(place.rglob("experiment.toml"))]
        found = [
            place
            for place in found
            if place.resolve() != out.resolve() and about_of(place).get("scale") == scale
        ]
        useful = [
            place for place in found if not with_models or recorded_experiment(place).keep_models
        ]
        markers = (
            marker for place in useful for marker in sorted(place.glob("runs/*/*/*/finished.json"))
        )
        runs: dict[str, list[Path]] = {}
        for marker in markers:
            if "order" in (mark := read_marker(marker)):  # not in those of the first versions
                runs.setdefault(mark["order"], []).append(marker.parent)
        return ReusableRuns(found, runs)

    def measured(self, task: str, task_fingerprint: str, key: str) -> Any:
        """Return what was measured of a task that is made of the same, its "cost" or its "engine"; None if nothing was."""
        for place in reversed(self.places):
            known: Mapping[str, Any] = about_of(place).get("tasks", {}).get(task, {})
            run = next(place.glob(f"runs/{slug(task)}/*/*/run.toml"), None)
            was_measured = bool(known) and getattr(recorded_experiment(place), key) in (
                "measured",
                "auto",
            )
            if (
                was_measured
                and run is not None
                and read_run_config(run.parent).task_fingerprint == task_fingerprint
            ):
                return known[key]
        return None

    def copied(self, order: Order, problem: Problem, note: Callable[[str], None]) -> Marker | None:
        """Copy the run that an order asks for, if there is one of a task made of the same, and return its mark."""
        for other in reversed(self.runs.get(identity(order), ())):
            marker = read_marker(other / "finished.json")
            if wrong := what_is_wrong(other, marker):
                note(f"{other} is not taken over: {wrong}")
            elif (
                not problem_differences(other, problem)
                and read_run_config(other).task_fingerprint == order.task_fingerprint
            ):
                self._copy(other, order)
                return marker
        return None

    def _copy(self, other: Path, order: Order) -> None:
        path = Path(order.path)
        copy = path.with_name(f"{path.name}.tmp")
        for leftover in (
            copy,
            path,
        ):  # of a copy that was not finished, and of a run that was begun
            shutil.rmtree(leftover, ignore_errors=True)
        copy.mkdir(parents=True)
        for name in FILES:
            write_atomically(copy / name, (other / name).read_bytes())
        if order.keep_models:
            shutil.copytree(other / "checkpoints", copy / "checkpoints")
        copy.rename(path)  # whole, or not at all
        source = cast(Path, comparison_of(other))
        self.taken[source] = self.taken.get(source, 0) + 1
