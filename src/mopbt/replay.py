"""Training a model again, from scratch, along the hyperparameter schedule that a run found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mopbt.algorithms import check_count
from mopbt.engines.base import Warm, Work, perform
from mopbt.errors import TaskError, TaskFailed
from mopbt.results import Ancestor, Point, Results
from mopbt.state import Job
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.task import Problem, Task, problem_of

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Replayed:
    """A model that was trained again, beside the one that the schedule comes from."""

    model: Any
    scores: Mapping[str, float]
    original: Mapping[str, float]
    data: bytes  # its checkpoint

    @property
    def differences(self) -> dict[str, float]:
        """Return by how much each score differs from the original's."""
        return {name: value - self.original[name] for name, value in self.scores.items() if name in self.original}

    def __str__(self) -> str:
        if all(value == 0 for value in self.differences.values()):
            return "The replay came out identical in every score."
        return "The replay differs by " + ", ".join(f"{value:+.3g} in {name}" for name, value in self.differences.items()) + "."


def replay(
    results: Results, point: Point | int, task: Task[Any] | None = None, *, ancestry: bool = True, seed: int | None = None
) -> Replayed:
    """Train again, from scratch, along a point's schedule, and measure how close it comes.

    With `ancestry` the schedule is that of the weights, through every exploit; without, that of the trial itself, as if it had
    never taken over another's weights. Without a `seed` all randomness is the original's, and on the same task and machine the
    model comes out the same (to rounding where the run trained it in a stack); with one, it shows what the schedule is worth by
    itself. `task` may have other data; a longer or shorter training stretches the schedule.
    """
    if seed is not None:
        check_count("seed", seed, 0)
    task = task or results.task
    if task is None:
        raise TaskError("a replay needs the task: replay(results, point, task), or Results.open(path, task=task)")
    problem = problem_of(task)
    _check_space(results.problem, problem)
    found = point if isinstance(point, Point) else results.point(point)
    chain = results.lineage(found) if ancestry else results.history(found)
    work = Work(task, problem, results.settings.seed if seed is None else seed, MemoryCheckpoints())
    warm, jobs = Warm(UNLIMITED), _jobs(chain, results.problem, problem)
    checksum, report = "", None
    for job in jobs:
        report = perform(work, job, checksum, warm)
        work.checkpoints.drop([job.id - 1])
        if report.error:
            raise TaskFailed(f"the replay failed between the steps {job.begin} and {job.end}:", report.error)
        checksum = report.checksum
    assert report is not None
    data = work.checkpoints.load(jobs[-1].id, checksum)
    return Replayed(task.load(data), report.scores, found.scores, data)


def _jobs(chain: Sequence[Ancestor], was: Problem, now: Problem) -> list[Job]:
    """Return the jobs of a replay: the intervals as they were, or those of another length of training, with the values of then."""
    if (was.interval, was.max_step) == (now.interval, now.max_step):
        spans = [(a.begin, a.end, a) for a in chain]
    else:
        end = chain[-1].end * now.max_step // was.max_step
        begins = range(0, max(end, 1), now.interval)
        spans = [(b, min(b + now.interval, now.max_step), _then(chain, b * was.max_step / now.max_step)) for b in begins]
    configs = [now.space.encode(ancestor.values) for _, _, ancestor in spans]
    return [
        Job(i, ancestor.trial, config, i - 1 if i else None, begin, end)
        for i, ((begin, end, ancestor), config) in enumerate(zip(spans, configs, strict=True))
    ]


def _then(chain: Sequence[Ancestor], step: float) -> Ancestor:
    return next((a for a in chain if step < a.end), chain[-1])


def _check_space(was: Problem, now: Problem) -> None:
    if list(was.space) != list(now.space):
        raise TaskError(
            f"the schedule has the hyperparameters {list(was.space)}; the task must take the same, got {list(now.space)}; name the "
            f"run's own task, or one with its space"
        )
