"""What a run found: evaluations, the front and its models, where each came from. Also while the run goes on."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from mopbt import selection, serialization
from mopbt.algorithms import algorithm_of
from mopbt.errors import MissingExtra, StoreError
from mopbt.filesystem import write_atomically
from mopbt.function_task import Snapshot, visible
from mopbt.history import History, read_history
from mopbt.messages import counted, did_you_mean
from mopbt.objectives import Constraint, parse_constraints, signed, signed_reference, unsigned
from mopbt.problem import Problem, Task
from mopbt.progress import Outcome
from mopbt.ranking import scattered_order
from mopbt.run_config import RunConfig
from mopbt.run_directory import read_run_config
from mopbt.state import Job
from mopbt.stores.base import Checkpoints
from mopbt.stores.directory import DirectoryCheckpoints, holder_of
from mopbt.stores.fsspec import RemoteCheckpoints, checkpoints_at
from mopbt.stores.journal import read_lines

SHOWN = 12  # models of a front, where it is printed


@dataclass(frozen=True)
class Point:
    """An evaluated model: which job made it, with which hyperparameters, and how good it is.

    `hp` are those of its last interval; `Results.schedule` gives all that made it.
    """

    job: int
    trial: int
    step: int
    hp: Mapping[str, Any]
    scores: Mapping[str, float]
    violation: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Choice(Point):
    """A model that was picked from a front, and why, in a sentence."""

    why: str = ""


@dataclass(frozen=True)
class Ancestor:
    """One interval in the history of a model."""

    job: int
    trial: int
    begin: int
    end: int
    hp: Mapping[str, Any]
    scores: Mapping[str, float]
    exploited: bool  # it started from another trial's checkpoint


class Front(Sequence[Point]):
    """The models that no other evaluated model dominates, best first in the first objective.

    With constraints they are feasible; where nothing is feasible yet, the front is the one model that comes closest.
    """

    def __init__(self, points: Sequence[Point], problem: Problem) -> None:
        self._points = tuple(points)
        self._problem = problem

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Point, ...]: ...
    def __getitem__(self, index: int | slice) -> Point | tuple[Point, ...]:
        return self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        names = ", ".join(f"{o.name} ({o.direction})" for o in self._problem.objectives)
        return f"<Front of {counted(len(self), 'model')}: {names}>"

    def __str__(self) -> str:
        """Return the models as a table; of a large front some that are spread over it."""
        shown = self.spread(SHOWN) if len(self) > SHOWN else self
        names = [o.name for o in self._problem.objectives]
        rows = [["job", "step", *names, *self._problem.space]]
        for point in shown:
            cells = [point.scores[name] for name in names] + list(point.hp.values())
            rows.append(
                [
                    str(point.job),
                    str(point.step),
                    *(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells),
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        some = f", {len(shown)} of them" if len(shown) < len(self) else ""
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        return "\n".join([repr(self)[1:-1] + some, *(lines if len(self) else ())])

    def scores(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the objectives' scores in their own sense, shape (n, K)."""
        names = [o.name for o in self._problem.objectives]
        return np.array([[p.scores[name] for name in names] for p in self]).reshape(
            len(self), len(names)
        )

    def best(self) -> dict[str, float]:
        """Return the best score of each objective."""
        if not len(self):
            return {}
        objectives = np.array([signed(self._problem.objectives, p.scores) for p in self])
        return unsigned(self._problem.objectives, objectives.max(axis=0).tolist())

    def spread(self, n: int) -> "Front":
        """Return the `n` models that are spread best over the front: the most scattered first (Alg. 1), each objective scaled."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"`n` must be a whole number of at least 1, got {n!r}")
        objectives = np.array([signed(self._problem.objectives, p.scores) for p in self])
        chosen = scattered_order(objectives, scale=True)[:n] if len(self) else ()
        return Front([self[int(i)] for i in sorted(chosen)], self._problem)

    def pick(
        self,
        how: Literal["knee"] | Mapping[str, float] | None = None,
        *,
        where: str | Constraint | Sequence[str | Constraint] = (),
        best: str | None = None,
    ) -> Choice:
        """Return one model, which says in `why` what it gives up for what.

        ``pick("knee")``: where giving up more of one objective stops paying. ``pick({"accuracy": 2, "dsp": 1})``: by weights on
        the objectives, each scaled to its range on the front. ``pick(best="dsp", where="accuracy >= 0.85")``: the best in one
        objective among the models within limits on any score. `where` also goes with the first two.
        """
        limits = parse_constraints([where] if isinstance(where, str | Constraint) else where)
        kept = selection.within(limits, [p.scores for p in self._nonempty()])
        row, rule = self._chosen(how, best, self._scaled()[kept])
        if limits:
            rule += f" of the {counted(len(kept), 'model')} with {' and '.join(map(str, limits))}"
        point = self[kept[row]]
        names = [f.name for f in fields(Point)]
        lacks = self.shortfall(point)
        why = (
            f"Model {point.job}: {lacks}."
            if lacks
            else f"Model {point.job} is {rule}: {self._price(point)}."
        )
        return Choice(**{name: getattr(point, name) for name in names}, why=why)

    def shortfall(self, point: Point) -> str:
        """Return in a clause that a model violates the constraints, and whether any satisfies them; nothing where it does."""
        if not point.violation:
            return ""
        limits = " and ".join(map(str, self._problem.constraints))
        if any(p.violation < point.violation for p in self):
            return f"it does not satisfy {limits} (violation {point.violation:.2g})"
        return (
            f"no model satisfies {limits}; this one comes nearest (violation {point.violation:.2g})"
        )

    def _nonempty(self) -> "Front":
        if not len(self):
            raise ValueError(
                "the front is empty: no interval has reported finite scores yet; wait for the first, or look at "
                "`results.records()` for what was measured and what failed"
            )
        return self

    def _scaled(self) -> selection.Array:
        """Return the objectives (n, K) of a front that is not empty, each from 0, its worst on the front, to 1, its best."""
        return selection.scaled(
            np.array([signed(self._problem.objectives, p.scores) for p in self])
        )

    def _chosen(
        self, how: str | Mapping[str, float] | None, best: str | None, points: selection.Array
    ) -> tuple[int, str]:
        """Return which row of scaled objectives is meant, and what it is."""
        objectives = self._problem.objectives
        names = [o.name for o in objectives]
        if best is not None and how is None:
            if best not in names:
                raise ValueError(
                    f"`best` must be an objective ({', '.join(map(repr, names))}), got {best!r}{did_you_mean(best, names)}"
                )
            return selection.best(points, names.index(best)), f"the best in {best}"
        if best is None and how == "knee":
            return selection.knee(points), "the knee"
        if best is None and isinstance(how, Mapping):
            weights = ", ".join(f"{name} {weight:g}" for name, weight in how.items())
            return selection.weighted(
                points, selection.checked_weights(objectives, how)
            ), f"the choice by the weights {weights}"
        raise ValueError(
            f'pick takes "knee", weights such as {{{names[0]!r}: 2}}, or best={names[0]!r} (one of the three; `where` goes with '
            f"each), got {how!r} and best={best!r}"
        )

    def _price(self, point: Point) -> str:
        """Return what a model gives up beside the leaders of the front."""
        objectives, points = self._problem.objectives, self._scaled()
        clauses = {}
        for k, objective in enumerate(objectives):
            leader = self[selection.best(points, k)]
            if leader.job != point.job:
                clauses[leader.job] = (
                    f"beside the best in {objective.name} it {selection.trade(objectives, point.scores, leader.scores)}"
                )
        return "; ".join(clauses.values()) or "no other model is better in any objective"

    def records(self) -> list[dict[str, Any]]:
        """Return a flat dict for each point."""
        return [_record(p) for p in self]

    def to_pandas(self) -> Any:
        """Return the front as a pandas DataFrame."""
        return _pandas().DataFrame(self.records())


@dataclass(eq=False, repr=False)
class Results:
    """The results of a run, also while it executes.

    ``Results.open("runs/adult")`` opens a run in any process, at any time. `outcome` says how the
    session ended that returned these results; it is None for a run that was opened.
    """

    settings: RunConfig
    checkpoints: Checkpoints = field(repr=False)
    path: Path | None = None
    task: Task[Any] | None = None
    outcome: Outcome | None = None
    history: History = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.history = History(self.problem)

    def __repr__(self) -> str:
        where = f" in {self.path}" if self.path is not None else ""
        intervals = counted(len(self), "interval")
        models = counted(len(self.history.front), "model")
        state = "done" if self.done else "not done"
        name = self.problem.name
        return f"<Results of {name!r}{where}: {intervals}, {models} on the front, {state}>"

    @staticmethod
    def open(path: Path | str, task: Task[Any] | None = None) -> "Results":
        """Open a run. `task` is needed only to load models whose task has its own `load`."""
        path = Path(path).absolute()
        settings = read_run_config(path)
        storage = settings.storage or path / "checkpoints"
        results = Results(settings, checkpoints_at(storage, make=False), path, task)
        results.refresh()
        return results

    def refresh(self) -> None:
        """Read what the run has reported since."""
        if self.path is not None:
            journal = self.path / "journal.jsonl"
            self.history = read_history(self.problem, read_lines(journal), journal)

    @property
    def problem(self) -> Problem:
        """Return the problem of the run."""
        return self.settings.problem

    @property
    def running(self) -> str:
        """Return which process is executing the run; empty if none is."""
        return holder_of(self.path) if self.path is not None else ""

    @property
    def seconds(self) -> float:
        """Return the seconds of work so far, over all sessions."""
        return self.history.seconds

    def __len__(self) -> int:
        """Return how many intervals have reported."""
        return len(self.history.reports)

    def points(self) -> Iterator[Point]:
        """Yield all evaluations that did not fail, ordered by job."""
        return (self._point(job) for job in self._reported() if not self._failed(job))

    @property
    def intervals(self) -> int | None:
        """Return how many intervals the complete run has, if its algorithm knows."""
        return total_intervals(self.settings)

    @property
    def done(self) -> bool:
        """Return whether the run is complete: nothing is left to do within its budget."""
        return self.history.done or len(self) == self.intervals

    def failures(self) -> dict[int, str]:
        """Return the errors of failed jobs."""
        reports = self.history.reports
        errors = {reports.job(row): error for row, error in reports.failures().items()}
        return dict(sorted(errors.items()))

    def point(self, job: int) -> Point:
        """Return the evaluation of a job."""
        return self._point(self._job_of(job))

    def front(self) -> Front:
        """Return the models that no other evaluation dominates. Each can be loaded."""
        entries = sorted(self.history.front, key=lambda e: (tuple(-x for x in e.objectives), e.job))
        return Front([self._point(entry.job) for entry in entries], self.problem)

    def hypervolume(self, reference: Mapping[str, float] | None = None) -> float:
        """Return the hypervolume of the front above a reference point.

        The point is given by name, in the objectives' original direction. By default, it is the
        task's, or the paper's rule over the first interval of each trial and the front: the worst
        value, less a tenth of the range.
        """
        if not len(self.history.feasible_front()):
            return 0.0
        return self.history.hypervolume(self._reference(reference))

    def hypervolume_curve(
        self, reference: Mapping[str, float] | None = None
    ) -> list[tuple[float, float]]:
        """Return when the hypervolume grew, as pairs of seconds and hypervolume."""
        if not len(self.history.feasible_front()):
            return []
        return self.history.curve(self._reference(reference))

    def lineage(self, point: Point | int) -> list[Ancestor]:
        """Return the intervals whose weights led to a model, through every exploit."""
        return [self._ancestor(job) for job in self.history.lineage(self._job_of(point))]

    def trial_history(self, point: Point | int) -> list[Ancestor]:
        """Return the intervals of a model's trial up to the model, whatever they started from."""
        last = self._job_of(point)
        trial = self.history.jobs.trial(last)
        jobs = (job for job in self._reported() if job <= last and not self._failed(job))
        return [self._ancestor(job) for job in jobs if self.history.jobs.trial(job) == trial]

    def schedule(self, point: Point | int) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Return the hyperparameter schedule of a model: (begin, end, hp), merged where equal."""
        return schedule_of(self.lineage(point))

    def load(self, point: Point | int) -> Any:
        """Load a trained model: what the task's `load` returns, or a function's tracked state."""
        data = self.checkpoint(point)
        if self.task is None:
            try:
                return visible(serialization.loads(data))
            except ValueError:
                hint = ""
                if is_pickle(data):
                    hint = (
                        "; its checkpoints are pickles: pickle.loads(results.checkpoint(point)) "
                        "reads one that you trust"
                    )
                raise StoreError(
                    f"only the task {self.problem.name!r} can load its models: use "
                    f"Results.open({str(self.path)!r}, task=...){hint}"
                ) from None
        model = self.task.load(data)
        return model.state if isinstance(model, Snapshot) else model

    def checkpoint(self, point: Point | int) -> bytes:
        """Return the bytes of a model's checkpoint, verified against the journal."""
        job = self._job_of(point)
        checksum = self.history.reports.checksum(self.history.reports.row(job))
        return self.checkpoints.load(job, checksum)

    def checkpoint_file(self, point: Point | int) -> Path | str:
        """Return the file of a model's checkpoint, or its URL in remote storage."""
        if not isinstance(self.checkpoints, DirectoryCheckpoints | RemoteCheckpoints):
            raise StoreError(
                "this run is only in memory: give `out` a directory, or save what `load` returns"
            )
        return self.checkpoints.file(self._job_of(point))

    def records(self) -> list[dict[str, Any]]:
        """Return a flat dict per report, failed ones included, ordered by job."""
        front = {entry.job for entry in self.history.front}
        return [self._full_record(job, job in front) for job in self._reported()]

    def to_pandas(self) -> Any:
        """Return all reports as a pandas DataFrame."""
        return _pandas().DataFrame(self.records())

    def to_csv(self, file: Path | str) -> None:
        """Write all reports as a CSV file with the columns of `records`."""
        file, records, text = Path(file), self.records(), io.StringIO()
        if file.is_dir() or not file.parent.is_dir():
            raise ValueError(
                "the table must be a file in an existing directory, such as reports.csv, got "
                f"{file}"
            )
        columns = list(dict.fromkeys(chain.from_iterable(records)))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        write_atomically(file, text.getvalue().encode())

    def _reported(self) -> list[int]:
        """Return the jobs that have reported, in ascending order."""
        return sorted(self.history.reports.jobs().tolist())

    def _failed(self, job: int) -> bool:
        return self.history.reports.failed(self.history.reports.row(job))

    def _full_record(self, id: int, on_front: bool) -> dict[str, Any]:
        report, job = self.history.report(id), self.history.job(id)
        parent = None if job.start is None else self.history.jobs.trial(job.start)
        head: dict[str, Any] = {"job": id, "trial": job.trial, "begin": job.begin, "end": job.end}
        head |= {"start": job.start, "parent": parent}
        hp = {f"config.{name}": value for name, value in self._decode(job).items()}
        scores = {f"score.{name}": value for name, value in report.scores.items()}
        tail: dict[str, Any] = {"violation": report.violation, "front": on_front}
        tail |= {"seconds": report.seconds, "duration": report.duration, "error": report.error}
        return head | hp | scores | tail

    def _reference(
        self, reference: Mapping[str, float] | None
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        if reference is None:
            return self.history.reference()
        return np.array(signed_reference(self.problem.objectives, reference))

    def _decode(self, job: Job) -> dict[str, Any]:
        return self.problem.space.decode(job.config)

    def _point(self, id: int) -> Point:
        job, report = self.history.job(id), self.history.report(id)
        hp = self._decode(job)
        return Point(id, job.trial, job.end, hp, report.scores, report.violation, report.seconds)

    def _ancestor(self, id: int) -> Ancestor:
        job, scores = self.history.job(id), self.history.report(id).scores
        exploited = self.history.is_exploit(id)
        return Ancestor(id, job.trial, job.begin, job.end, self._decode(job), scores, exploited)

    def _job_of(self, point: Point | int) -> int:
        job = point.job if isinstance(point, Point) else point
        known = isinstance(job, Integral) and job in self.history.reports
        if not known or self._failed(job):
            entries = self.history.front
            front = ", ".join(str(entry.job) for entry in entries[:8])
            front += " ..." if len(entries) > 8 else ""
            raise ValueError(
                "a point must be the id of an evaluated model of this run, or one of "
                f"`results.front()`, got {job!r}; on the front are {front or 'none yet'}"
            )
        return job


def is_pickle(data: bytes) -> bool:
    """Tell whether bytes look like a pickle, as the checkpoints of scikit-learn's estimators are; they are not read for it."""
    return data[:1] == b"\x80" and data[-1:] == b"."


def schedule_of(lineage: Iterable[Ancestor]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """Return the hyperparameters of intervals: (begin, end, values), equal neighbors joined."""
    schedule: list[tuple[int, int, Mapping[str, Any]]] = []
    for ancestor in lineage:
        if schedule and schedule[-1][1] == ancestor.begin and schedule[-1][2] == ancestor.hp:
            schedule[-1] = (schedule[-1][0], ancestor.end, ancestor.hp)
        else:
            schedule.append((ancestor.begin, ancestor.end, ancestor.hp))
    return schedule


def total_intervals(settings: RunConfig) -> int | None:
    """Return how many intervals a whole run has, where its algorithm knows."""
    try:
        return algorithm_of(dict(settings.algorithm)).scheduler(settings.problem).total_jobs
    except ValueError:  # an algorithm from elsewhere
        return None


def _record(point: Point) -> dict[str, Any]:
    head = {"job": point.job, "trial": point.trial, "step": point.step}
    scores = {f"score.{name}": value for name, value in point.scores.items()}
    return head | scores | {f"config.{name}": value for name, value in point.hp.items()}


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingExtra(
            "to_pandas needs pandas: pip install 'mopbt[pandas]' (or use records())"
        ) from None
    return pandas
