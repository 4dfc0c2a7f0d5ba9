"""Evaluations of models outside of the search: on test data, or repeated.

They are kept in `evaluations.jsonl`, one checksummed line for each model, rows and seed. No
scheduler sees them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mopbt.engines.base import Engine, EvaluationJob
from mopbt.errors import IncompatibleRun, TaskFailed
from mopbt.filesystem import AppendOnlyFile
from mopbt.history import History
from mopbt.problem import rows_of
from mopbt.retention import models_with_weights, models_without_weights
from mopbt.state import ErrorBar, Report
from mopbt.stores.base import Checkpoints
from mopbt.stores.journal import (
    UNREADABLE,
    encode_object,
    incompatible,
    intact_length,
    read_intact_lines,
)

FILE = "evaluations.jsonl"

# A model, the name of the rows, and the seed.
Key = tuple[int, str, int]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model on named rows.

    Attributes:
        model: The id of the model.
        rows: The name of the rows, such as "test".
        seed: The number of the repetition, from 0.
        scores: The metrics by name.
        errors: The standard error and the bounds of each metric that has them.
        seconds: How long the evaluation took.
    """

    model: int
    rows: str
    seed: int
    scores: Mapping[str, float]
    errors: Mapping[str, ErrorBar] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def key(self) -> Key:
        """Return what identifies the evaluation: model, rows and seed."""
        return self.model, self.rows, self.seed

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as a JSON object."""
        report = Report(0, (), scores=self.scores, errors=self.errors).to_json()
        data = {"model": self.model, "rows": self.rows, "seed": self.seed}
        data["scores"] = report["scores"]
        if self.errors:
            data["errors"] = report["errors"]
        return data | {"seconds": round(self.seconds, 6)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Evaluation":
        """Read an evaluation from a JSON object."""
        if type(data["model"]) is not int or type(data["seed"]) is not int:
            raise TypeError("`model` and `seed` must be integers")
        if not isinstance(data["rows"], str):
            raise TypeError("`rows` must be a name")
        report = Report.from_json(
            {"job": 0, "seconds": 0, "duration": 0, "objectives": (), "checksum": "", **data}
        )
        return Evaluation(
            data["model"],
            data["rows"],
            data["seed"],
            report.scores,
            report.errors,
            float(data["seconds"]),
        )


class Evaluations:
    """The evaluations of a run by model, rows and seed; the first of each key counts."""

    def __init__(self, evaluations: Iterable[Evaluation] = ()) -> None:
        self._by_key: dict[Key, Evaluation] = {}
        self._by_model: dict[int, list[Evaluation]] = {}
        self.update(evaluations)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Evaluation]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, evaluation: Evaluation) -> None:
        """Add an evaluation, unless there is one with its key."""
        if evaluation.key not in self._by_key:
            self._by_key[evaluation.key] = evaluation
            self._by_model.setdefault(evaluation.model, []).append(evaluation)

    def update(self, evaluations: Iterable[Evaluation]) -> None:
        """Add several evaluations."""
        for evaluation in evaluations:
            self.add(evaluation)

    def __getitem__(self, key: Key) -> Evaluation:
        return self._by_key[key]

    def select(self, rows: str) -> list[Evaluation]:
        """Return the evaluations on named rows, by model and seed."""
        return sorted((e for e in self if e.rows == rows), key=lambda e: e.key)

    def of_model(self, model: int) -> list[Evaluation]:
        """Return the first evaluation of a model on each of its rows."""
        first = [e for e in self._by_model.get(model, ()) if e.seed == 0]
        return sorted(first, key=lambda e: e.key)

    def with_rows(
        self, model: int, scores: Mapping[str, float], errors: Mapping[str, ErrorBar]
    ) -> tuple[Mapping[str, float], Mapping[str, ErrorBar]]:
        """Return the metrics of a model and their errors, with those on other rows added.

        A metric on other rows is named after them, as in ``test/accuracy``.
        """
        scores = dict(scores)
        errors = dict(errors)
        for evaluation in self.of_model(model):
            scores |= {f"{evaluation.rows}/{k}": v for k, v in evaluation.scores.items()}
            errors |= {f"{evaluation.rows}/{k}": bar for k, bar in evaluation.errors.items()}
        return scores, errors

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys that have no evaluation."""
        return [key for key in keys if key not in self]


def read_evaluations(directory: Path) -> Evaluations:
    """Read the evaluations of a run's directory.

    A damaged line is skipped: the evaluation can be repeated with the same outcome.
    """
    file = directory / FILE
    evaluations = Evaluations()
    for line in read_intact_lines(file):
        try:
            evaluations.add(Evaluation.from_json(line))
        except UNREADABLE as error:
            raise IncompatibleRun(f"{file}: {incompatible(error)}") from None
    return evaluations


@contextmanager
def _recording(directory: Path, evaluations: Evaluations) -> Iterator[Callable[[Evaluation], None]]:
    """Yield a function that makes an evaluation durable; the run must be locked."""
    path = directory / FILE
    file = AppendOnlyFile(path, intact_length(path))

    def record(evaluation: Evaluation) -> None:
        file.append(encode_object(evaluation.to_json()))
        evaluations.add(evaluation)

    try:
        yield record
    finally:
        file.close()


def wanted_keys(
    models: Iterable[int], rows: Sequence[str], seeds: Iterable[int] = (0,)
) -> list[Key]:
    """Return the keys of all models on all rows with all seeds."""
    numbers = list(seeds)
    return [(model, name, seed) for model in models for name in rows for seed in numbers]


def evaluate_missing(
    engine: Engine,
    history: History,
    keys: Sequence[Key],
    evaluations: Evaluations,
    directory: Path | None,
) -> None:
    """Make the missing evaluations with a started engine.

    The run must be locked.

    They are added to `evaluations`, and to the file in the run's directory if it has one.
    """
    missing = evaluations.missing(keys)
    if not missing:
        return
    if directory is None:
        _evaluate(engine, history, missing, evaluations.add)
        return
    with _recording(directory, evaluations) as record:
        _evaluate(engine, history, missing, record)


def evaluate_front(
    engine: Engine,
    task: Any,
    history: History,
    keep: int | None,
    checkpoints: Checkpoints,
    *,
    path: Path | None,
) -> Evaluations:
    """Evaluate a front on the declared rows where that is missing; return all.

    `keep` is how many models keep their weights. `path` is the run's directory, if it has one.
    """
    evaluations = Evaluations() if path is None else read_evaluations(path)
    models = models_with_weights(history, keep)
    models -= models_without_weights(history, keep, checkpoints)
    keys = wanted_keys(sorted(models), rows_of(task))
    evaluate_missing(engine, history, keys, evaluations, path)
    return evaluations


def _evaluate(
    engine: Engine, history: History, keys: Sequence[Key], record: Callable[[Evaluation], None]
) -> None:
    """Evaluate models from their checkpoints with a started engine.

    Each evaluation is recorded immediately.

    If evaluations fail, the others are recorded, and then TaskFailed is raised.
    """
    first = len(history.jobs)
    waiting = deque(_job(history, first + i, key) for i, key in enumerate(keys))
    checksums = {model: history.report(model).checksum for model, _, _ in keys}
    running: dict[int, EvaluationJob] = {}
    failures: list[tuple[EvaluationJob, str]] = []
    while waiting or running:
        room = max(engine.capacity - len(running), 0)
        jobs = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        running |= {job.id: job for job in jobs}
        engine.submit(jobs, checksums)
        for report in engine.collect():
            # An engine that lost contact with a worker may report a job twice.
            job = running.pop(report.job, None)
            if job is None:
                continue
            if report.error:
                failures.append((job, report.error))
            else:
                record(_evaluation(job, report))
    if failures:
        job, error = failures[0]
        raise TaskFailed(
            f"{len(failures)} of {len(keys)} evaluations failed, the first of model {job.start} on "
            f"{job.rows!r}; all trained models are kept: fix the task, then rerun. The error:",
            error,
        )


def _job(history: History, id: int, key: Key) -> EvaluationJob:
    model, rows, seed = key
    job = history.job(model)
    return EvaluationJob(id, job.trial, job.config, model, job.end, job.end, rows=rows, seed=seed)


def _evaluation(job: EvaluationJob, report: Report) -> Evaluation:
    assert job.start is not None
    return Evaluation(job.start, job.rows, job.seed, report.scores, report.errors, report.duration)
