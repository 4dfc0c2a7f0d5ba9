"""Reuse finished runs of other comparisons."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mopbt.compare.directory import (
    JOURNAL,
    RECORD,
    Marker,
    comparison_of,
    find_damage,
    problem_differences,
    read_about,
    read_marker,
    recorded_experiment,
)
from mopbt.compare.plan import slug
from mopbt.compare.worker import RunSpec
from mopbt.evaluations import FILE as EVALUATIONS
from mopbt.filesystem import copy_directory, remove_directory
from mopbt.problem import Problem
from mopbt.run_directory import read_run_config

FILES = ("run.toml", JOURNAL, RECORD, EVALUATIONS, "finished.json")


@dataclass(frozen=True)
class ReusableRuns:
    """Other comparisons and their finished runs.

    Attributes:
        places: Directories of the comparisons.
        runs: Directories of finished runs, by identity (see `RunSpec`). There are several if
            tasks of the same name have different code.
        copies: Number of runs copied so far, by comparison.
    """

    places: Sequence[Path]
    runs: Mapping[str, Sequence[Path]]
    copies: dict[Path, int] = field(default_factory=dict)

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
                runs.setdefault(read_marker(file)["order"], []).append(file.parent)
        return ReusableRuns(found, runs)

    def find_measured(
        self, task: str, task_fingerprint: str, wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the cost and engine that were measured for a task with the same code.

        `wanted` has "measured" or "auto" for what is to be found.
        """
        found: dict[str, Any] = {}
        for place in self.places:
            known: Mapping[str, Any] = read_about(place).get("tasks", {}).get(task, {})
            run = next(place.glob(f"runs/{slug(task)}/*/*/run.toml"), None)
            if not known or run is None:
                continue
            if read_run_config(run.parent).task_fingerprint != task_fingerprint:
                continue
            # A value that the other experiment sets was not measured.
            other = recorded_experiment(place)
            if wanted["cost"] == other.cost == "measured":
                found["cost"] = known["cost"]
            if wanted["engine"] == other.engine == "auto":
                found["engine"] = known["engine"]
        return found

    def copy(self, spec: RunSpec, problem: Problem, note: Callable[[str], None]) -> Marker | None:
        """Copy an identical finished run and return its marker, or return None."""
        for other in reversed(self.runs.get(spec.identity(), ())):
            marker = read_marker(other / "finished.json")
            if wrong := find_damage(other, marker):
                note(f"{other} is not reused: {wrong}")
                continue
            same_code = read_run_config(other).task_fingerprint == spec.task_fingerprint
            if same_code and not problem_differences(other, problem):
                self._copy_files(other, spec)
                return marker
        return None

    def _copy_files(self, other: Path, spec: RunSpec) -> None:
        # The run may have been started before.
        remove_directory(Path(spec.path))
        models = ("checkpoints",) if spec.keep_models else ()
        copy_directory(other, Path(spec.path), (*FILES, *models))
        source = cast(Path, comparison_of(other))
        self.copies[source] = self.copies.get(source, 0) + 1


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
            if is_other and read_about(file.parent).get("scale") == scale:
                found.append(file.parent)
    return found
