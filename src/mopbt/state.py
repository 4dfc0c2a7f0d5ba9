"""Everything a run knows: jobs, reports, and the resulting table of trials.

All values here are frozen. `with_jobs` and `with_report` are the two ways in which the table
changes, the same for all algorithms. A scheduler adds what a trial does next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, NamedTuple

from mopbt.space import Config
from mopbt.table import Table

Status = Literal["ready", "running", "waiting", "finished", "stopped"]

# Further checkpoints that a job starts from, each with its weight in the mean of all.
Blend = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One interval of training: train a trial from a checkpoint, then evaluate it.

    `start` is the checkpoint to start from, None for fresh weights. `blend` lists further
    checkpoints with their weights; `start` has what remains of 1. The checkpoint that the job
    writes bears its id.
    """

    id: int
    trial: int
    config: Config
    start: int | None
    begin: int
    end: int
    blend: Blend = ()

    @property
    def starts(self) -> tuple[int, ...]:
        """Return all checkpoints that the job starts from, the main one first."""
        others = tuple(checkpoint for checkpoint, _ in self.blend)
        return others if self.start is None else (self.start, *others)

    @property
    def weighted_starts(self) -> Blend:
        """Return all checkpoints that the job starts from with their weights.

        Weights sum to 1.
        """
        if self.start is None:
            return ()
        return ((self.start, 1 - sum(weight for _, weight in self.blend)), *self.blend)

    def to_json(self) -> list[Any]:
        """Return the job as a JSON array."""
        row = [self.id, self.trial, list(self.config), self.start, self.begin, self.end]
        return [*row, [list(pair) for pair in self.blend]] if self.blend else row

    @staticmethod
    def from_json(data: list[Any]) -> "Job":
        """Read a job from a JSON array."""
        id, trial, config, start, begin, end, *rest = data
        blend = tuple((checkpoint, weight) for checkpoint, weight in rest[0]) if rest else ()
        return Job(id, trial, tuple(config), start, begin, end, blend)


class ErrorBar(NamedTuple):
    """The uncertainty of a metric: its standard error and the bounds of its interval."""

    stderr: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a job: what it measured, or why it failed.

    `objectives` are larger-is-better, None if the job failed. `scores` holds all metrics in their
    original direction, `errors` the uncertainty of those that have one. `checksum` is that of the
    checkpoint; of a failed job, only a report that a repair made has one. `seconds` counts from the
    start of the run by the engine's clock, `duration` is the work of this job.
    """

    job: int
    objectives: tuple[float, ...] | None = None
    violation: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)
    checksum: str = ""
    seconds: float = 0.0
    duration: float = 0.0
    error: str = ""
    errors: Mapping[str, ErrorBar] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, with NaN and infinities as strings."""
        data: dict[str, Any] = {
            "job": self.job,
            "seconds": round(self.seconds, 6),
            "duration": round(self.duration, 6),
        }
        if self.objectives is None:
            data["error"] = self.error
            if self.checksum:
                data["checksum"] = self.checksum
            return data
        data["objectives"] = [_to_json_number(value) for value in self.objectives]
        data["scores"] = {name: _to_json_number(value) for name, value in self.scores.items()}
        data["checksum"] = self.checksum
        if self.violation:
            data["violation"] = _to_json_number(self.violation)
        if self.errors:
            data["errors"] = {
                name: [_to_json_number(number) for number in bar]
                for name, bar in self.errors.items()
            }
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Report":
        """Read a report from a JSON object."""
        times = {"job": data["job"], "seconds": data["seconds"], "duration": data["duration"]}
        if "error" in data:
            return Report(**times, error=data["error"], checksum=data.get("checksum", ""))
        return Report(
            **times,
            objectives=tuple(float(value) for value in data["objectives"]),
            violation=float(data.get("violation", 0.0)),
            scores={name: float(value) for name, value in data["scores"].items()},
            checksum=data["checksum"],
            errors={
                name: ErrorBar(*map(float, bar)) for name, bar in data.get("errors", {}).items()
            },
        )


class Measurement(NamedTuple):
    """The objectives of one evaluation, larger is better, and their standard errors."""

    objectives: tuple[float, ...]
    stderrs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The part of a report that decisions depend on.

    `objectives` is None if the job failed. `is_finite` says whether the result can be ranked: the
    job did not fail and measured neither NaN nor an infinity. `stderrs` are the standard errors of
    the objectives, empty for a scheduler that does not read them. `job` is the checkpoint, `config`
    its configuration, and `origin` the trial whose fresh weights it descends from. `recent` holds
    the last measurements of its lineage, its own included, for a scheduler that averages them, and
    `folds` the objectives on parts of the rows, for one that compares members on each of them.
    """

    objectives: tuple[float, ...] | None
    violation: float = 0.0
    stderrs: tuple[float, ...] = ()
    job: int = -1
    origin: int = -1
    config: Config = ()
    recent: tuple[Measurement, ...] = ()
    folds: tuple[tuple[float, ...], ...] = ()
    is_finite: bool = field(init=False)

    def __post_init__(self) -> None:
        # Computed once, because large populations ask for it all the time.
        is_finite = self.objectives is not None and all(
            map(isfinite, (*self.objectives, self.violation))
        )
        object.__setattr__(self, "is_finite", is_finite)


@dataclass(frozen=True, slots=True)
class Trial:
    """A row of the table: a population member, or a trial of another algorithm.

    `config`, `checkpoint` and `blend` are those of its next job; a checkpoint of None means fresh
    weights. `results` maps steps to results, in the order in which they came. `origin` is the trial
    whose fresh weights its checkpoint descends from. `recent` are the last measurements of the
    lineage of its checkpoint, if the scheduler averages them.
    """

    id: int
    config: Config
    status: Status = "ready"
    step: int = 0
    checkpoint: int | None = None
    results: dict[int, Result] = field(default_factory=dict)
    blend: Blend = ()
    origin: int = -1
    recent: tuple[Measurement, ...] = ()

    @property
    def latest(self) -> Result | None:
        """Return the newest result, if there is any."""
        return next(reversed(self.results.values())) if self.results else None

    @property
    def is_finite(self) -> bool:
        """Return whether the newest result can be ranked."""
        return self.latest is not None and self.latest.is_finite


@dataclass(frozen=True, slots=True)
class State:
    """Everything a scheduler knows. `jobs` is the id of the next job.

    `trials` may be given as any sequence.
    """

    seed: int
    trials: Table[Trial] = field(default_factory=Table)
    outstanding: Mapping[int, Job] = field(default_factory=dict)
    jobs: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.trials, Table):
            object.__setattr__(self, "trials", Table(self.trials))


def updated(state: State, trials: Iterable[Trial]) -> State:
    """Return the state with these trials replaced; new ids are appended."""
    return replace(state, trials=state.trials.replace({trial.id: trial for trial in trials}))


def with_jobs(state: State, jobs: Iterable[Job]) -> State:
    """Add jobs: their trials now run with the jobs' configurations."""
    jobs = tuple(jobs)
    state = updated(state, (_running(state, job) for job in jobs))
    outstanding = {**state.outstanding, **{job.id: job for job in jobs}}
    return replace(
        state, outstanding=outstanding, jobs=max([state.jobs, *(job.id + 1 for job in jobs)])
    )


def with_report(
    state: State, report: Report, *, status: Status, result: Result | None = None
) -> State:
    """Add a report: its trial is at the end of the job, with its checkpoint.

    If the result is not finite, the trial continues from the checkpoint before it. `result` is
    what decisions depend on; by default, that is what the report measured.
    """
    outstanding = dict(state.outstanding)
    job = outstanding.pop(report.job)
    trial = state.trials[job.trial]
    if result is None:
        result = Result(report.objectives, report.violation)
    result = replace(result, job=job.id, origin=trial.origin, config=job.config)
    # A step that is trained again moves to the end of the order.
    results = {step: result for step, result in trial.results.items() if step != job.end}
    results[job.end] = result
    trial = replace(
        trial,
        status=status,
        step=job.end,
        checkpoint=job.id if result.is_finite else job.start,
        results=results,
    )
    return replace(updated(state, [trial]), outstanding=outstanding)


def required_checkpoints(state: State) -> frozenset[int]:
    """Return the checkpoints that a job may still start from.

    They must not be dropped.
    """
    required: set[int] = set()
    for trial in state.trials:
        if trial.checkpoint is not None and trial.status not in ("finished", "stopped"):
            required.add(trial.checkpoint)
            required.update(checkpoint for checkpoint, _ in trial.blend)
    for job in state.outstanding.values():
        required.update(job.starts)
    return frozenset(required)


def _running(state: State, job: Job) -> Trial:
    if job.trial >= len(state.trials):
        return Trial(job.trial, job.config, "running", job.begin, job.start, origin=job.trial)
    trial = state.trials[job.trial]
    return replace(
        trial, config=job.config, status="running", step=job.begin, checkpoint=job.start, blend=()
    )


def _to_json_number(value: float) -> float | str:
    # float() first: the repr of a numpy scalar would read np.float64(nan).
    return float(value) if isfinite(value) else repr(float(value))
