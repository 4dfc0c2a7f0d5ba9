"""Collect the evaluations of finished runs, as arrays and as one tidy table."""

import csv
import gzip
import importlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.compare.directory import (
    JOURNAL,
    REMEDY,
    Marker,
    finished_runs,
    recorded_experiment,
)
from mopbt.compare.plan import Experiment, PlannedRun
from mopbt.compare.run_data import RunData, read_record, run_data
from mopbt.errors import CorruptJournal, MissingExtra, RunMismatch, StoreError
from mopbt.filesystem import write_atomically
from mopbt.problem import Problem
from mopbt.registry import task_fingerprint
from mopbt.run_config import RunConfig
from mopbt.run_directory import read_run, read_run_config
from mopbt.space import Float

# Columns of the table of evaluations that are strings in every comparison.
TEXTS = ("task", "algorithm", "error")
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The finished runs of an experiment, and which runs are missing.

    Attributes:
        experiment: The experiment.
        problems: Problems of the tasks that have runs, in the experiment's order and without the
            constraints of single algorithms.
        runs: Finished runs, in the order of tasks, algorithms and seeds.
        missing: Runs that are not finished.
        failures: Reasons of the runs that failed in this session.
        mixed: Tasks whose code changed between their runs.
        changed: Tasks whose file changed after all of their runs.
        versions: Versions of mopbt that made the runs.
    """

    experiment: "Experiment"
    problems: Mapping[str, Problem]
    runs: tuple[RunData, ...]
    missing: tuple["PlannedRun", ...] = ()
    failures: Mapping["PlannedRun", str] = field(default_factory=dict)
    mixed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    @staticmethod
    def open(out: Path | str) -> "Comparison":
        """Read a comparison from the journals of its runs, without loading tasks or data."""
        out = Path(out)
        experiment = recorded_experiment(out)
        return collect(out, experiment, finished_runs(out, experiment.plan()))

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return the labels of the algorithms that have runs, in the experiment's order."""
        present = {run.algorithm for run in self.runs}
        return tuple(label for label in self.experiment.algorithms if label in present)

    def evaluations(self) -> dict[str, NDArray[Any]]:
        """Return the tidy table of all evaluations as columns (n,).

        Where a task has no such column, numbers are NaN and everything else is "".
        """
        tables = [_columns(run, self.problems[run.task]) for run in self.runs]
        return {name: _join_column(name, tables) for name in _header(tables)}


def collect(out: Path, experiment: Experiment, finished: Mapping[PlannedRun, Marker]) -> Comparison:
    """Read the finished runs of an experiment from a comparison's directory."""
    tasks = list(experiment.tasks)
    labels = list(experiment.algorithms)
    plan = sorted(
        experiment.plan(), key=lambda run: (tasks.index(run.task), labels.index(run.algorithm))
    )
    problems: dict[str, Problem] = {}
    fingerprints: dict[str, set[str]] = {}
    runs = []
    for run in filter(finished.__contains__, plan):
        path = out / run.directory
        settings, data = _read_run(path, run, finished[run])
        problem = experiment.entries[run.algorithm].shared_problem(settings.problem)
        if problems.setdefault(run.task, problem) != problem:
            raise RunMismatch(
                f"the runs of {run.task} in {out} are of different tasks: "
                f"{path} has a different space, objectives or number of steps "
                f"than the first run; remove the outdated runs, then rerun to resume"
            )
        fingerprints.setdefault(run.task, set()).add(settings.task_fingerprint)
        runs.append(data)
    mixed = tuple(task for task, found in fingerprints.items() if len(found - {""}) > 1)
    return Comparison(
        experiment,
        problems,
        tuple(runs),
        missing=tuple(run for run in plan if run not in finished),
        mixed=mixed,
        changed=tuple(task for task in problems if _has_changed(task, fingerprints[task])),
        versions=tuple(sorted({json.loads(m["order"])["version"] for m in finished.values()})),
    )


def _read_run(path: Path, run: PlannedRun, marker: Marker) -> tuple[RunConfig, RunData]:
    """Read a finished run, and check that it is complete."""
    if not (path / JOURNAL).exists():
        return read_run_config(path), read_record(path, run)
    try:
        settings, history = read_run(path)
    except CorruptJournal as error:
        raise StoreError(f"{str(error).partition(';')[0]}; {REMEDY}") from None
    data = run_data(run, history, path)
    if len(data) != marker["evaluations"]:
        raise StoreError(
            f"{path} has changed since its run finished: its journal has {len(data)} evaluations, "
            f"but finished.json says {marker['evaluations']}; {REMEDY}"
        )
    return settings, data


def _has_changed(task: str, fingerprints: set[str]) -> bool:
    """Return whether the file of a task has changed since all of its runs."""
    is_file = Path(task.rpartition(":")[0]).is_file()
    if not is_file or len(fingerprints) > 1:
        return False
    return not fingerprints <= {"", task_fingerprint(task)}


# The table of evaluations


def wants_parquet(out: Path, asked: bool) -> bool:
    """Return whether to write Parquet: if asked, or if the file already exists.

    Raises MissingExtra if it is wanted and cannot be written.
    """
    wanted = asked or (out / "evaluations.parquet").exists()
    if wanted:
        import_parquet()
    return wanted


def write_evaluations(comparison: Comparison, out: Path, *, parquet: bool) -> None:
    """Write the table of evaluations to the directory of a comparison."""
    write_atomically(out / "evaluations.csv.gz", evaluations_to_csv(comparison))
    if parquet:
        write_atomically(out / "evaluations.parquet", evaluations_to_parquet(comparison))


def evaluations_to_parquet(comparison: Comparison) -> bytes:
    """Return the table of evaluations as Parquet."""
    columns = {
        name: _with_one_type(name, column) for name, column in comparison.evaluations().items()
    }
    buffer = io.BytesIO()
    import_parquet().write_table(importlib.import_module("pyarrow").table(columns), buffer)
    return buffer.getvalue()


def import_parquet() -> Any:
    """Import the module that writes Parquet, or raise MissingExtra."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra(
            "Parquet needs pyarrow: pip install pyarrow (or use evaluations.csv.gz, and remove "
            "evaluations.parquet if it exists)"
        ) from None


def evaluations_to_csv(comparison: Comparison) -> bytes:
    """Return the table of evaluations as CSV, compressed by gzip.

    Equal evaluations give equal bytes.
    """
    tables = [_columns(run, comparison.problems[run.task]) for run in comparison.runs]
    header = _header(tables)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=3, mtime=0) as file:
        file.write((",".join(map(_quote, header)) + "\n").encode())
        for table in tables:
            cells = [_csv_cells(table[name]) if name in table else repeat("") for name in header]
            rows = map(",".join, zip(*cells, strict=False))
            file.write("".join(f"{row}\n" for row in rows).encode())
    return buffer.getvalue()


def _columns(run: RunData, problem: Problem) -> dict[str, NDArray[Any]]:
    """Return the columns (n,) of a run in the table of evaluations."""
    n = len(run)
    errors = np.full(n, "", object)
    errors[list(run.errors)] = list(run.errors.values())
    columns = {
        "task": np.full(n, run.task, object),
        "algorithm": np.full(n, run.algorithm, object),
        "seed": np.full(n, run.seed),
        "job": run.jobs,
        "trial": run.trials,
        "step": run.steps,
        "seconds": run.seconds,
        "duration": run.duration,
        "violation": run.violations,
        "error": errors,
    }
    for name, column in run.scores.items():
        columns[f"score.{name}"] = column
    for i, name in enumerate(problem.space):
        columns[f"hp.{name}"] = _decode(problem, name, run.positions[:, i])
    return columns


def _decode(problem: Problem, name: str, positions: Floats) -> NDArray[Any]:
    """Return the values (n,) of a hyperparameter at encoded positions (n,)."""
    domain = problem.space[name]
    # Decode each distinct position once.
    distinct, index = np.unique(positions, return_inverse=True)
    values = [
        domain.decode(position if isinstance(domain, Float) else int(position))
        for position in distinct.tolist()
    ]
    has_text = any(isinstance(value, str) for value in values)
    is_mixed = has_text or len({type(value) for value in values}) > 1
    return np.array(values, dtype=object if is_mixed else None)[index]


def _header(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of all tables: common, scores, then hyperparameters."""
    names = dict.fromkeys(chain.from_iterable(tables))
    return sorted(names, key=lambda name: (name.startswith("hp."), name.startswith("score.")))


def _join_column(name: str, tables: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
    """Join a column of all tables, with NaN or "" for the tables that lack it."""
    kinds = {table[name].dtype if name in table else None for table in tables}
    as_objects = np.dtype(object) in kinds or (np.dtype(bool) in kinds and len(kinds) > 1)
    gap = "" if as_objects else math.nan
    columns = [table.get(name, np.full(len(table["job"]), gap)) for table in tables]
    if as_objects:
        columns = [column.astype(object) for column in columns]
    return np.concatenate(columns)


def _with_one_type(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Convert a column (n,) to one type with gaps, or else to strings.

    Parquet requires one type.
    """
    if column.dtype != object:
        return column
    values = column.tolist()
    present = [value for value in values if value != ""]
    if present and name not in TEXTS:
        is_bool = [isinstance(value, bool) for value in present]
        if all(is_bool):
            return np.array([None if value == "" else value for value in values], dtype=object)
        if not any(is_bool) and all(isinstance(value, int | float) for value in present):
            return np.array([math.nan if value == "" else float(value) for value in values])
    return np.array([str(value) for value in values], dtype=object)


def _csv_cells(column: NDArray[Any]) -> list[str]:
    """Return the cells of a column (n,) in a CSV file; NaN and "" are empty."""
    values = column.tolist()
    if column.dtype == float:
        texts = list(map(repr, values))
        if np.isnan(column).any():
            texts = ["" if text == "nan" else text for text in texts]
        return texts
    # The type is part of the key because 1 and True are equal.
    keys = list(zip(map(type, values), values, strict=True))
    cells = {}
    for key in set(keys):
        value = key[1]
        cells[key] = _quote(value) if isinstance(value, str) and value else str(value)
    return [cells[key] for key in keys]


def _quote(text: str) -> str:
    buffer = io.StringIO()
    # The writer quotes characters of its line terminator.
    csv.writer(buffer, lineterminator="\r\n").writerow([text])
    return buffer.getvalue()[:-2]
