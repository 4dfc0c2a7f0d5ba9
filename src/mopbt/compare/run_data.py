"""The evaluations of a finished run, and its record: those that its measures need.

A record has the evaluations that were once on the front of a run, those on its final pessimistic
front, and the last one. Hypervolumes over time, fronts and the value of choosing follow from them.
So a comparison can be published, and resumed on another machine, without its journals.
"""

import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.compare.directory import RECORD, REMEDY
from mopbt.compare.plan import PlannedRun
from mopbt.errors import StoreError
from mopbt.evaluations import Evaluations, read_evaluations
from mopbt.filesystem import read_file, write_atomically
from mopbt.history import History
from mopbt.limits import RECORD_BYTES
from mopbt.problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunData:
    """The n evaluations of one run, in the order in which they ended.

    There are K objectives and d hyperparameters. Rows of failed evaluations are NaN in
    `objectives`, `test` and `scores`, and infinite in `violations`.

    Attributes:
        task: The task, as in the experiment.
        algorithm: Label of the algorithm.
        seed: Seed, as in the experiment, without the algorithm's `seed_offset`. Runs of the same
            seed are pairs.
        objectives: Objectives (n, K), larger is better.
        test: The same objectives (n, K) on test data, NaN for models that were not measured on it.
            None if the task does not measure them.
        seconds: Virtual time (n,) at which each evaluation ended.
        steps: Training steps (n,) of each evaluated model.
        violations: Violations (n,) of the constraints. 0 is feasible.
        positions: Encoded hyperparameters (n, d) of the last interval, in the order of the space.
        scores: Everything that was measured, each (n,), by name and in its original direction.
        jobs: Jobs (n,).
        trials: Trials (n,).
        duration: Real seconds (n,) of training and evaluation.
        errors: Errors of failed evaluations, by row.
        bounds: Objectives (n, K) at the worse bounds of their intervals, larger is better. None if
            no objective has an error.
        left_out: How many evaluations of the run are left out, because only its record is known.
    """

    task: str
    algorithm: str
    seed: int
    objectives: Floats
    test: Floats | None
    seconds: Floats
    steps: Ints
    violations: Floats
    positions: Floats
    scores: Mapping[str, Floats]
    jobs: Ints
    trials: Ints
    duration: Floats
    errors: Mapping[int, str]
    bounds: Floats | None = None
    left_out: int = 0

    def __len__(self) -> int:
        """Return n, the number of evaluations."""
        return len(self.jobs)

    def only(self, rows: NDArray[np.intp]) -> "RunData":
        """Return the run with only some of its rows (m,), in the given order."""
        errors = {}
        for new, old in enumerate(rows.tolist()):
            if old in self.errors:
                errors[new] = self.errors[old]
        return replace(
            self,
            objectives=self.objectives[rows],
            test=None if self.test is None else self.test[rows],
            seconds=self.seconds[rows],
            steps=self.steps[rows],
            violations=self.violations[rows],
            positions=self.positions[rows],
            jobs=self.jobs[rows],
            trials=self.trials[rows],
            duration=self.duration[rows],
            scores={name: column[rows] for name, column in self.scores.items()},
            errors=errors,
            bounds=None if self.bounds is None else self.bounds[rows],
        )


def run_data(run: PlannedRun, history: History, path: Path) -> RunData:
    """Return the evaluations of a finished run, including those on other rows."""
    reports = history.reports
    jobs = reports.jobs()
    scores = {name: reports.scores(name) for name in reports.score_names()}
    scores |= _scores_on_other_rows(jobs, read_evaluations(path))
    return RunData(
        task=run.task,
        algorithm=run.algorithm,
        seed=run.seed,
        objectives=reports.objectives(),
        test=_test_objectives(scores, history.problem),
        seconds=reports.seconds(),
        steps=history.jobs.ends()[jobs],
        violations=reports.violations(),
        positions=history.jobs.configs()[jobs],
        scores=scores,
        jobs=jobs,
        trials=history.jobs.trials()[jobs],
        duration=reports.durations(),
        errors=dict(reports.failures()),
        bounds=reports.bounds() if reports.has_errors else None,
    )


def _scores_on_other_rows(jobs: Ints, evaluations: Evaluations) -> dict[str, Floats]:
    """Return metrics on rows besides validation, by names such as ``test/accuracy``.

    Each is (n,), and NaN for the models that were not measured there. The seed is that of the
    evaluations that end a run, so that repeating them later changes nothing.
    """
    places = {job: row for row, job in enumerate(jobs.tolist())}
    scores: dict[str, Floats] = {}
    for evaluation in evaluations:
        if evaluation.seed == 0 and evaluation.model in places:
            for name, score in evaluation.scores.items():
                column = scores.setdefault(f"{evaluation.rows}/{name}", np.full(len(jobs), np.nan))
                column[places[evaluation.model]] = score
    return scores


def _test_objectives(scores: Mapping[str, Floats], problem: Problem) -> Floats | None:
    """Return the objectives (n, K) on test data, larger is better, or None."""
    names = [f"test/{objective.name}" for objective in problem.objectives]
    if not set(names) <= set(scores):
        return None
    signs = np.array([objective.sign for objective in problem.objectives])
    return np.asarray(np.column_stack([scores[name] for name in names]) * signs)


# The record of a run


def write_record(path: Path, data: RunData, rows: NDArray[np.intp]) -> None:
    """Write the record of a finished run, some rows (m,) of its evaluations."""
    kept = data.only(rows)
    content = {
        "left_out": len(data) - len(kept),
        "objectives": kept.objectives.tolist(),
        "test": None if kept.test is None else kept.test.tolist(),
        "seconds": kept.seconds.tolist(),
        "steps": kept.steps.tolist(),
        "violations": kept.violations.tolist(),
        "positions": kept.positions.tolist(),
        "scores": {name: column.tolist() for name, column in kept.scores.items()},
        "jobs": kept.jobs.tolist(),
        "trials": kept.trials.tolist(),
        "duration": kept.duration.tolist(),
        "errors": kept.errors,
        "bounds": None if kept.bounds is None else kept.bounds.tolist(),
    }
    text = json.dumps(content, separators=(",", ":"))
    write_atomically(path / RECORD, gzip.compress(text.encode(), mtime=0))


def read_record(path: Path, run: PlannedRun) -> RunData:
    """Read the record of a finished run whose journal is missing."""
    try:
        packed = io.BytesIO(read_file(path / RECORD, RECORD_BYTES))
        with gzip.GzipFile(fileobj=packed) as file:
            text = file.read(RECORD_BYTES + 1)
        if len(text) > RECORD_BYTES:
            raise ValueError(f"it has more than {RECORD_BYTES:,} bytes")
        return _parse_record(json.loads(text), run)
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path / RECORD} is damaged ({error!r}); {REMEDY}") from None


def _parse_record(content: Mapping[str, Any], run: PlannedRun) -> RunData:
    n = len(content["jobs"])

    def floats(name: str) -> Floats:
        return np.array(content[name], dtype=float).reshape(n, -1)

    return RunData(
        task=run.task,
        algorithm=run.algorithm,
        seed=run.seed,
        objectives=floats("objectives"),
        test=None if content["test"] is None else floats("test"),
        seconds=floats("seconds")[:, 0],
        steps=np.array(content["steps"], dtype=np.int64),
        violations=floats("violations")[:, 0],
        positions=floats("positions"),
        scores={name: np.array(column, float) for name, column in content["scores"].items()},
        jobs=np.array(content["jobs"], dtype=np.int64),
        trials=np.array(content["trials"], dtype=np.int64),
        duration=floats("duration")[:, 0],
        errors={int(row): error for row, error in content["errors"].items()},
        bounds=None if content["bounds"] is None else floats("bounds"),
        left_out=int(content["left_out"]),
    )
