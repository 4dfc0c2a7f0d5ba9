"""Training a model again, from scratch, along the hyperparameter schedule that a run found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mopbt.algorithms import check_count
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import run_job
from mopbt.errors import TaskError, TaskFailed
from mopbt.front import Ancestor, Point
from mopbt.problem import Problem, Task, problem_of
from mopbt.results import Results
from mopbt.state import Job
from mopbt.stores.memory import MemoryCheckpoints

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Replayed:
    """A model that was trained again, beside the one that the schedule comes from."""

    model: Any
    point: Point  # as one of the run
    original: Mapping[str, float]  # scores
    data: bytes  # its checkpoint
    lineage: Sequence[Ancestor]  # the intervals that it was trained along, with the scores of then
    problem: Problem
    seed: int

    @property
    def scores(self) -> Mapping[str, float]:
        """Return what was measured this time."""
        return self.point.scores

    @property
    def differences(self) -> dict[str, float]:
        """Return by how much each score differs from the original's."""
        return {
            name: value - self.original[name]
            for name, value in self.scores.items()
            if name in self.original
        }

    def __str__(self) -> str:
        if all(value == 0 for value in self.differences.values()):
            return "The replay came out identical in every score."
        return (
            "The replay differs by "
            + ", ".join(f"{value:+.3g} in {name}" for name, value in self.differences.items())
            + "."
        )


def replay(
    results: Results,
    point: Point | int,
    task: Task[Any] | None = None,
    *,
    ancestry: bool = True,
    seed: int | None = None,
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
        raise TaskError(
            "a replay needs the task: replay(results, point, task), or Results.open(path, task=task)"
        )
    problem = problem_of(task)
    _check_space(results.problem, problem)
    found = point if isinstance(point, Point) else results.point(point)
    chain = _stretched(
        results.lineage(found) if ancestry else results.trial_history(found),
        results.problem,
        problem,
    )
    work = RunContext(
        task, problem, results.settings.seed if seed is None else seed, MemoryCheckpoints()
    )
    warm, jobs = ModelCache(UNLIMITED), _jobs(chain, problem)
    checksum, report = "", None
    for job in jobs:
        report = run_job(work, job, checksum, warm)
        work.checkpoints.drop([job.id - 1])
        if report.error:
            raise TaskFailed(
                f"the replay failed between the steps {job.begin} and {job.end}:", report.error
            )
        checksum = report.checksum
    assert report is not None
    data = work.checkpoints.load(jobs[-1].id, checksum)
    last = chain[-1]
    again = Point(found.job, last.trial, last.end, last.hp, report.scores, report.violation)
    return Replayed(task.load(data), again, found.scores, data, chain, problem, work.seed)


def _stretched(chain: Sequence[Ancestor], was: Problem, now: Problem) -> Sequence[Ancestor]:
    """Return the intervals of a replay: as they were, or those of another length of training, with the values of then."""
    if (was.interval, was.steps) == (now.interval, now.steps):
        return chain
    begins = range(0, max(chain[-1].end * now.steps // was.steps, 1), now.interval)
    then = [_then(chain, begin * was.steps / now.steps) for begin in begins]
    return [
        replace(a, begin=b, end=min(b + now.interval, now.steps))
        for a, b in zip(then, begins, strict=True)
    ]


def _jobs(chain: Sequence[Ancestor], problem: Problem) -> list[Job]:
    configs = [problem.space.encode(a.hp) for a in chain]
    return [
        Job(i, a.trial, configs[i], i - 1 if i else None, a.begin, a.end)
        for i, a in enumerate(chain)
    ]


def _then(chain: Sequence[Ancestor], step: float) -> Ancestor:
    return next((a for a in chain if step < a.end), chain[-1])


def _check_space(was: Problem, now: Problem) -> None:
    if list(was.space) != list(now.space):
        raise TaskError(
            f"the schedule has the hyperparameters {list(was.space)}; the task must take the same, got {list(now.space)}; name the "
            f"run's own task, or one with its space"
        )
