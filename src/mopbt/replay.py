"""Train a model again from scratch, with the schedule that a run found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mopbt.engines.base import EvaluationJob, InitialModels, ModelCache, RunContext
from mopbt.engines.execution import run_job
from mopbt.errors import TaskError, TaskFailed
from mopbt.export import Exported, Origin, export_model
from mopbt.front import Ancestor, Point
from mopbt.problem import Problem, Task, problem_of, rows_of
from mopbt.state import Blend, Job, Report
from mopbt.stores.memory import MemoryCheckpoints

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Replayed:
    """A model that was trained again, with the metrics of the original.

    Attributes:
        model: The model.
        point: The model's metrics and hyperparameters, in the form of a point of the run.
        original: The metrics of the original model.
        data: The model's checkpoint.
        lineage: The intervals of its training, with the metrics of the original run.
        problem: The task's space, objectives and length of training.
        seed: Random seed of the replay.
        origin: The run whose schedule was followed.
        other_scores: The metrics on rows besides validation, by names such as ``test/accuracy``.
    """

    model: Any
    point: Point
    original: Mapping[str, float]
    data: bytes
    lineage: Sequence[Ancestor]
    problem: Problem
    seed: int
    origin: Origin
    other_scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def scores(self) -> Mapping[str, float]:
        """Return the metrics of the replayed model."""
        return self.point.scores

    @property
    def differences(self) -> dict[str, float]:
        """Return the difference of each metric from the original."""
        return {
            name: value - self.original[name]
            for name, value in self.scores.items()
            if name in self.original
        }

    def __str__(self) -> str:
        differences = self.differences
        if not any(differences.values()):
            return "The replay is identical in every metric."
        parts = [f"{value:+.3g} in {name}" for name, value in differences.items()]
        return f"The replay differs by {', '.join(parts)}."

    def export(self, file: Path | str) -> Exported:
        """Write the replayed model in the same way as a model of its run."""
        why = (
            f"Model {self.point.model}, trained again with its schedule on {self.problem.name} "
            f"with the seed {self.seed}"
        )
        if shortfall := self.origin.front.shortfall(self.point):
            why += f": {shortfall}"
        scores = {**self.point.scores, **self.other_scores}
        choice = replace(self.point, why=f"{why}. {self}", scores=scores)
        return export_model(Path(file), self.data, choice, self.lineage, self.origin)


def replay_schedule(
    task: Task[Any],
    original: Point,
    recorded: Sequence[Ancestor],
    origin: Origin,
    seed: int,
    initial: InitialModels | None = None,
) -> Replayed:
    """Train a model again from scratch along its recorded intervals.

    If the task trains for longer or shorter than the run, the schedule is stretched.
    """
    problem = problem_of(task)
    trained = origin.settings.problem
    _check_space(trained, problem)
    lineage = _stretch(recorded, trained, problem)
    context = RunContext(task, problem, seed, MemoryCheckpoints(), initial=initial)
    report, data = _train_all(context, lineage, _starts_of(lineage))
    last = lineage[-1]
    point = Point(original.model, last.trial, last.end, last.hp, report.scores, report.violation)
    model = task.load(data)
    others = _evaluate_other_rows(context, report, last)
    return Replayed(model, point, original.scores, data, lineage, problem, seed, origin, others)


def _is_blended(intervals: Sequence[Ancestor]) -> bool:
    return any(len(interval.starts) > 1 for interval in intervals)


def _starts_of(intervals: Sequence[Ancestor]) -> list[Blend]:
    """Return from which intervals each one starts, by position, with weights.

    Without means of several models, each starts from the one before it.
    """
    if not _is_blended(intervals):
        return [((i - 1, 1.0),) if i else () for i in range(len(intervals))]
    places = {interval.model: place for place, interval in enumerate(intervals)}
    return [
        tuple((places[job], weight) for job, weight in interval.starts) for interval in intervals
    ]


def _train_all(
    context: RunContext, intervals: Sequence[Ancestor], starts: Sequence[Blend]
) -> tuple[Report, bytes]:
    """Train intervals in their order; return the last report and checkpoint."""
    cache = ModelCache(UNLIMITED)
    checksums: dict[int, str] = {}
    report = Report(0)
    last_use = {start: id for id, own in enumerate(starts) for start, _ in own}
    for id, interval in enumerate(intervals):
        config = context.problem.space.encode(interval.hp)
        first = starts[id][0][0] if starts[id] else None
        job = Job(id, interval.trial, config, first, interval.begin, interval.end, starts[id][1:])
        report = run_job(context, job, checksums, cache)
        if report.error:
            raise TaskFailed(
                f"the replay failed between steps {job.begin} and {job.end}:", report.error
            )
        checksums[id] = report.checksum
        context.checkpoints.drop(start for start in job.starts if last_use[start] == id)
    return report, context.checkpoints.load(report.job, report.checksum)


def _evaluate_other_rows(context: RunContext, report: Report, last: Ancestor) -> dict[str, float]:
    """Return the metrics on declared rows besides validation, by ``test/name``."""
    scores: dict[str, float] = {}
    config = context.problem.space.encode(last.hp)
    for rows in rows_of(context.task):
        job = EvaluationJob(
            report.job + 1, last.trial, config, report.job, last.end, last.end, rows=rows
        )
        measured = run_job(context, job, {report.job: report.checksum}, ModelCache(0))
        if measured.error:
            raise TaskFailed(f"the replayed model cannot be evaluated on {rows}:", measured.error)
        scores |= {f"{rows}/{name}": score for name, score in measured.scores.items()}
    return scores


def _stretch(lineage: Sequence[Ancestor], old: Problem, new: Problem) -> Sequence[Ancestor]:
    """Stretch a schedule to another length of training."""
    if (old.interval, old.steps) == (new.interval, new.steps):
        return lineage
    if _is_blended(lineage):
        raise TaskError(
            f"the model is a mean of several models, so its schedule cannot be stretched from "
            f"{old.steps} steps in intervals of {old.interval}, got a task with {new.steps} in "
            f"intervals of {new.interval}; replay it with the same length of training"
        )
    stretched = []
    for begin in range(0, max(lineage[-1].end * new.steps // old.steps, 1), new.interval):
        old_begin = begin * old.steps / new.steps
        source = next((a for a in lineage if old_begin < a.end), lineage[-1])
        end = min(begin + new.interval, new.steps)
        stretched.append(replace(source, begin=begin, end=end))
    return stretched


def _check_space(old: Problem, new: Problem) -> None:
    if list(old.space) != list(new.space):
        raise TaskError(
            f"the schedule has the hyperparameters {list(old.space)}; the task must take the same, "
            f"got {list(new.space)}; use the run's own task, or one with the same space"
        )
