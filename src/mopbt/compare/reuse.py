"""Reuse finished runs of other comparisons."""

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
from mopbt.filesystem import write_atomically
from mopbt.problem import Problem
from mopbt.run_directory import read_run_config

FILES = ("run.toml", "journal.jsonl", "finished.json")


@dataclass(frozen=True)
class ReusableRuns:
    """Other comparisons and their finished runs.

    Attributes:
        places: Directories of the comparisons.
        runs: Directories of finished runs, by the identity of their order. There are several if
            tasks of the same name have different code.
        taken: Number of runs copied so far, by comparison.
    """

    places: Sequence[Path]
    runs: Mapping[str, Sequence[Path]]
    taken: dict[Path, int] = field(default_factory=dict)

    @staticmethod
    def below(
        places: Iterable[Path], out: Path, scale: str | None, *, with_models: bool
    ) -> "ReusableRuns":
        """Find comparisons of the same scale in and below some directories.

        Args:
            places: The directories to search.
            out: Directory of the new comparison, which is left out.
            scale: Scale of the new comparison.
            with_models: Only include runs of comparisons that keep their models.
        """
        found = _find_comparisons(places, out, scale)
        runs: dict[str, list[Path]] = {}
        for place in found:
            if with_models and not recorded_experiment(place).keep_models:
                continue
            for file in sorted(place.glob("runs/*/*/*/finished.json")):
                marker = read_marker(file)
                # Markers of the first versions have no order.
                if "order" in marker:
                    runs.setdefault(marker["order"], []).append(file.parent)
        return ReusableRuns(found, runs)

    def measured(self, task: str, task_fingerprint: str, key: str) -> Any:
        """Return the measured "cost" or "engine" of a task with the same code, or None."""
        for place in reversed(self.places):
            known: Mapping[str, Any] = about_of(place).get("tasks", {}).get(task, {})
            run = next(place.glob(f"runs/{slug(task)}/*/*/run.toml"), None)
            if not known or run is None:
                continue
            # A value that the experiment sets was not measured.
            was_measured = getattr(recorded_experiment(place), key) in ("measured", "auto")
            same_code = read_run_config(run.parent).task_fingerprint == task_fingerprint
            if was_measured and same_code:
                return known[key]
        return None

    def copied(self, order: Order, problem: Problem, note: Callable[[str], None]) -> Marker | None:
        """Copy a finished run that matches an order and return its marker, or return None."""
        for other in reversed(self.runs.get(identity(order), ())):
            marker = read_marker(other / "finished.json")
            if wrong := what_is_wrong(other, marker):
                note(f"{other} is not reused: {wrong}")
                continue
            same_code = read_run_config(other).task_fingerprint == order.task_fingerprint
            if same_code and not problem_differences(other, problem):
                self._copy(other, order)
                return marker
        return None

    def _copy(self, other: Path, order: Order) -> None:
        path = Path(order.path)
        copy = path.with_name(f"{path.name}.tmp")
        # Remove an unfinished copy and an unfinished run.
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(path, ignore_errors=True)
        copy.mkdir(parents=True)
        for name in FILES:
            write_atomically(copy / name, (other / name).read_bytes())
        if order.keep_models:
            shutil.copytree(other / "checkpoints", copy / "checkpoints")
        # Renaming makes the copy appear all at once.
        copy.rename(path)
        source = cast(Path, comparison_of(other))
        self.taken[source] = self.taken.get(source, 0) + 1


def _find_comparisons(places: Iterable[Path], out: Path, scale: str | None) -> list[Path]:
    found = []
    for place in places:
        if not place.is_dir():
            raise ValueError(
                f"`reuse` must name directories with comparisons in or below them, got {place}, "
                f"which does not exist"
            )
        for file in sorted(place.rglob("experiment.toml")):
            is_other = file.parent.resolve() != out.resolve()
            if is_other and about_of(file.parent).get("scale") == scale:
                found.append(file.parent)
    return found
