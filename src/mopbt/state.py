"""All that a run knows: jobs ordered, reports received, and the table of trials that they make.

Everything here is a frozen value. `ordered` and `recorded` are the two ways in which a table changes, the same for all
algorithms; what a scheduler adds is what a trial does next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

from mopbt.space import Config

Status = Literal["ready", "running", "waiting", "finished", "stopped"]


@dataclass(frozen=True, slots=True)
class Job:
    """An order: train a trial from a checkpoint for one interval, then evaluate. Its id also names the checkpoint it writes."""

    id: int
    trial: int
    config: Config
    start: int | None  # the checkpoint to start from; None: fresh weights
    begin: int
    end: int

    def to_json(self) -> list[Any]:
        """Return the job as a JSON array."""
        return [self.id, self.trial, list(self.config), self.start, self.begin, self.end]

    @staticmethod
    def from_json(data: list[Any]) -> "Job":
        """Read a job back."""
        id, trial, config, start, begin, end = data
        return Job(id, trial, tuple(config), start, begin, end)


@dataclass(frozen=True, slots=True)
class Report:
    """An answer: what a job measured, or why it failed."""

    job: int
    objectives: tuple[float, ...] | None = None  # larger is better; None: the job failed
    violation: float = 0.0  # of the constraints; 0: feasible
    scores: Mapping[str, float] = field(
        default_factory=dict
    )  # all that was measured, in its own sense
    checksum: str = ""  # of the checkpoint
    seconds: float = 0.0  # since the run's start, by the engine's clock
    duration: float = 0.0  # seconds of work
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object; infinities and NaN appear as strings, as JSON has none."""
        data: dict[str, Any] = {
            "job": self.job,
            "seconds": round(self.seconds, 6),
            "duration": round(self.duration, 6),
        }
        if self.objectives is None:
            return data | {"error": self.error}
        data |= {"objectives": [_to_number(v) for v in self.objectives]}
        data |= {
            "scores": {name: _to_number(v) for name, v in self.scores.items()},
            "checksum": self.checksum,
        }
        return data | ({"violation": _to_number(self.violation)} if self.violation else {})

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Report":
        """Read a report back."""
        times = {"job": data["job"], "seconds": data["seconds"], "duration": data["duration"]}
        if "error" in data:
            return Report(**times, error=data["error"])
        return Report(
            **times,
            objectives=tuple(float(v) for v in data["objectives"]),
            violation=float(data.get("violation", 0.0)),
            scores={name: float(v) for name, v in data["scores"].items()},
            checksum=data["checksum"],
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The part of a report that decisions are made of; `objectives` is None where the job failed."""

    objectives: tuple[float, ...] | None
    violation: float = 0.0
    is_finite: bool = field(
        init=False
    )  # it can be ranked: the job neither failed nor measured NaN or an infinity

    def __post_init__(self) -> None:
        is_finite = self.objectives is not None and all(
            map(isfinite, (*self.objectives, self.violation))
        )
        object.__setattr__(
            self, "is_finite", is_finite
        )  # once: large populations are asked for it all the time


@dataclass(frozen=True, slots=True)
class Trial:
    """A row of the table: a population member, an ASHA trial, a point of Bayesian optimization."""

    id: int
    config: Config  # of its next job
    status: Status = "ready"
    step: int = 0
    checkpoint: int | None = None  # what its next job starts from; None: fresh weights
    results: dict[int, Result] = field(
        default_factory=dict
    )  # step -> result, in the order in which they came

    @property
    def latest(self) -> Result | None:
        """Return the newest result, if there is any."""
        return next(reversed(self.results.values())) if self.results else None

    @property
    def is_finite(self) -> bool:
        """Tell whether the newest result can be ranked."""
        return self.latest is not None and self.latest.is_finite


@dataclass(frozen=True, slots=True)
class State:
    """All that a run knows."""

    seed: int
    trials: tuple[Trial, ...] = ()
    outstanding: Mapping[int, Job] = field(default_factory=dict)
    jobs: int = 0  # ordered so far; the next job's id


def updated(state: State, trials: Iterable[Trial]) -> State:
    """Return the state with these rows in place of those with the same ids; new ids are appended."""
    rows = list(state.trials)
    for trial in trials:
        if trial.id == len(rows):
            rows.append(trial)
        else:
            rows[trial.id] = trial
    return replace(state, trials=tuple(rows))


def with_jobs(state: State, jobs: Iterable[Job]) -> State:
    """Enter jobs that were ordered: their trials run with the jobs' configurations from now on."""
    jobs = tuple(jobs)
    state = updated(state, (_running(state, job) for job in jobs))
    outstanding = dict(state.outstanding) | {job.id: job for job in jobs}
    return replace(
        state, outstanding=outstanding, jobs=max([state.jobs, *(job.id + 1 for job in jobs)])
    )


def with_report(state: State, report: Report, *, status: Status) -> State:
    """Enter a report: the trial is at the job's end, with the job's checkpoint, or the one before it where nothing sound came."""
    outstanding = dict(state.outstanding)
    job = outstanding.pop(report.job)
    trial = state.trials[job.trial]
    result = Result(report.objectives, report.violation)
    results = {step: result for step, result in trial.results.items() if step != job.end}
    results[job.end] = result  # last in the order, also where a step is trained again
    trial = replace(
        trial,
        status=status,
        step=job.end,
        checkpoint=job.id if result.is_finite else job.start,
        results=results,
    )
    return replace(updated(state, [trial]), outstanding=outstanding)


def required_checkpoints(state: State) -> frozenset[int]:
    """Return the checkpoints from which a job may still start: they must not be dropped."""
    starts = {t.checkpoint for t in state.trials if t.status not in ("finished", "stopped")}
    starts |= {job.start for job in state.outstanding.values()}
    return frozenset(starts - {None})  # type: ignore[arg-type]


def _running(state: State, job: Job) -> Trial:
    if job.trial >= len(state.trials):
        return Trial(job.trial, job.config, "running", job.begin, job.start)
    trial = state.trials[job.trial]
    return replace(trial, config=job.config, status="running", step=job.begin, checkpoint=job.start)


def _to_number(value: float) -> float | str:
    return (
        float(value) if isfinite(value) else repr(float(value))
    )  # numpy's own would read np.float64(nan)
