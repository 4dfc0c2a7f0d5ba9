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

from mopbt import metrics, selection, serialization
from mopbt.algorithms import algorithm_of
from mopbt.archive import Entry, entry_of, front_of, reference_of
from mopbt.errors import MissingExtra, StoreError
from mopbt.function_task import Snapshot, visible
from mopbt.messages import counted, did_you_mean
from mopbt.objectives import Constraint, parse_constraints, signed, signed_reference, unsigned
from mopbt.problem import Problem, Task
from mopbt.progress import Outcome
from mopbt.ranking import scattered_order
from mopbt.run_config import RunConfig
from mopbt.state import Job, Report
from mopbt.stores.base import Checkpoints, Exchange
from mopbt.stores.directory import DirectoryCheckpoints, holder_of, write_atomically
from mopbt.stores.fsspec import RemoteCheckpoints, checkpoints_at
from mopbt.stores.journal import check_order, read_journal

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
    """A run as its directory tells it. Open one with ``Results.open("runs/adult")``, in any process, at any time."""

    settings: RunConfig
    checkpoints: Checkpoints = field(repr=False)
    path: Path | None = None  # None: the run is in memory only
    task: Task[Any] | None = None
    outcome: Outcome | None = (
        None  # how the session ended that returned these results; None for a run that was opened
    )
    _jobs: dict[int, Job] = field(default_factory=dict, repr=False)
    _reports: dict[int, Report] = field(default_factory=dict, repr=False)
    _front: tuple[Entry, ...] = field(default=(), repr=False)
    _stopped: float = field(default=0.0, repr=False)
    _ended: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        where = f" in {self.path}" if self.path is not None else ""
        found = (
            f"{counted(len(self), 'interval')}, {counted(len(self._front), 'model')} on the front"
        )
        return f"<Results of {self.problem.name!r}{where}: {found}, {'done' if self.done else 'not done'}>"

    @staticmethod
    def open(path: Path | str, task: Task[Any] | None = None) -> "Results":
        """Read a run; `task` is only needed to load models whose task has a `load` of its own."""
        path = Path(path).absolute()
        settings = read_run_config(path)
        results = Results(
            settings,
            checkpoints_at(settings.storage or path / "checkpoints", make=False),
            path,
            task,
        )
        results.refresh()
        return results

    def refresh(self) -> None:
        """Read what has come since."""
        if self.path is not None:
            journal = self.path / "journal.jsonl"
            exchanges, _ = read_journal(journal)
            check_order(exchanges, journal)
            self.fold(exchanges)

    def fold(self, exchanges: Iterable[Exchange]) -> None:
        """Take in all exchanges of the run."""
        exchanges = tuple(exchanges)
        self._jobs = {job.id: job for exchange in exchanges for job in exchange.jobs}
        self._reports = {
            report.job: report for exchange in exchanges for report in exchange.reports
        }
        self._stopped = max((exchange.stopped for exchange in exchanges), default=0.0)
        self._ended = bool(exchanges) and exchanges[-1].done
        entries = (entry_of(report) for report in self._reports.values())
        self._front = front_of([entry for entry in entries if entry is not None])

    @property
    def problem(self) -> Problem:
        """Return the problem that the run is about."""
        return self.settings.problem

    @property
    def running(self) -> str:
        """Return which process drives the run now; the empty string if none does."""
        return holder_of(self.path) if self.path is not None else ""

    @property
    def seconds(self) -> float:
        """Return the seconds of work so far, over all sessions."""
        return max([self._stopped, *(report.seconds for report in self._reports.values())])

    def __len__(self) -> int:
        """Return how many intervals have reported."""
        return len(self._reports)

    def points(self) -> Iterator[Point]:
        """Go through all evaluations that did not fail, in the order of their jobs."""
        return (
            self._point(job)
            for job in sorted(self._reports)
            if self._reports[job].objectives is not None
        )

    @property
    def intervals(self) -> int | None:
        """Return how many intervals the whole run has, where its algorithm knows."""
        return total_intervals(self.settings)

    @property
    def done(self) -> bool:
        """Return whether the run has come to its end: nothing is left to do within its budget."""
        return self._ended or len(self) == self.intervals

    def failures(self) -> dict[int, str]:
        """Return the errors of the jobs that failed."""
        return {
            job: report.error
            for job, report in sorted(self._reports.items())
            if report.objectives is None
        }

    def point(self, job: int) -> Point:
        """Return the evaluation of a job."""
        return self._point(self._job_of(job))

    def front(self) -> Front:
        """Return the models that no other evaluation dominates; each can be loaded."""
        entries = sorted(self._front, key=lambda e: (tuple(-x for x in e.objectives), e.job))
        return Front([self._point(entry.job) for entry in entries], self.problem)

    def hypervolume(self, reference: Mapping[str, float] | None = None) -> float:
        """Return the hypervolume of the front above a reference, given by name and in the scores' own sense.

        Without one it is the task's, and if the task names none, the paper's rule over the first interval of each trial: the
        worst, less a tenth of the range.
        """
        points = np.array([e.objectives for e in self._front if not e.violation])
        return metrics.hypervolume(points, self._reference(reference)) if len(points) else 0.0

    def hypervolume_curve(
        self, reference: Mapping[str, float] | None = None
    ) -> list[tuple[float, float]]:
        """Return pairs of seconds and the hypervolume that the run had reached by then."""
        sound = [r for r in self._reports.values() if entry_of(r) is not None and not r.violation]
        sound.sort(key=lambda r: (r.seconds, r.job))
        if not sound:
            return []
        curve = metrics.hypervolume_curve(
            np.array([r.objectives for r in sound]), self._reference(reference)
        )
        return [(r.seconds, float(value)) for r, value in zip(sound, curve, strict=True)]

    def lineage(self, point: Point | int) -> list[Ancestor]:
        """Return the history of a model from its first interval on, through every exploit."""
        chain: list[Ancestor] = []
        job: Job | None = self._jobs[self._job_of(point)]
        while job is not None:
            chain.append(self._ancestor(job))
            job = None if job.start is None else self._jobs[job.start]
        return chain[::-1]

    def history(self, point: Point | int) -> list[Ancestor]:
        """Return the intervals of a model's trial up to the model, whosever weights they started from."""
        last = self._jobs[self._job_of(point)]
        jobs = (self._jobs[id] for id in sorted(self._reports) if id <= last.id)
        return [
            self._ancestor(job)
            for job in jobs
            if job.trial == last.trial and self._reports[job.id].objectives is not None
        ]

    def schedule(self, point: Point | int) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Return the hyperparameter schedule that made a model: (begin, end, values), equal neighbors joined."""
        return schedule_of(self.lineage(point))

    def load(self, point: Point | int) -> Any:
        """Return the trained model of a point: what the task's `load` makes of it, or the tracked state of a training function."""
        data = self.checkpoint(point)
        if self.task is None:
            try:
                return visible(serialization.loads(data))
            except ValueError:
                pickled = (
                    "; they are pickles: pickle.loads(results.checkpoint(point)) reads one that you trust"
                    * is_pickle(data)
                )
                raise StoreError(
                    f"only the task {self.problem.name!r} can load its models: use Results.open({str(self.path)!r}, task=...)"
                    f"{pickled}"
                ) from None
        model = self.task.load(data)
        return model.state if isinstance(model, Snapshot) else model

    def checkpoint(self, point: Point | int) -> bytes:
        """Return the bytes of a point's checkpoint, checked against the journal."""
        job = self._job_of(point)
        return self.checkpoints.load(job, self._reports[job].checksum)

    def checkpoint_file(self, point: Point | int) -> Path | str:
        """Return the file that holds a point's checkpoint, or its URL where the run's storage is elsewhere."""
        if not isinstance(self.checkpoints, DirectoryCheckpoints | RemoteCheckpoints):
            raise StoreError(
                "this run is in memory only: give `out` a directory, or save what `load` returns"
            )
        return self.checkpoints.file(self._job_of(point))

    def records(self) -> list[dict[str, Any]]:
        """Return a flat dict for each report, failed ones included, in the order of their jobs."""
        front = {entry.job for entry in self._front}
        return [self._full_record(job, job in front) for job in sorted(self._reports)]

    def to_pandas(self) -> Any:
        """Return all reports as a pandas DataFrame."""
        return _pandas().DataFrame(self.records())

    def to_csv(self, file: Path | str) -> None:
        """Write all reports, failed ones included, as a table: a row for each, the columns of `records`."""
        file, records, text = Path(file), self.records(), io.StringIO()
        if file.is_dir() or not file.parent.is_dir():
            raise ValueError(
                f"a table needs the name of a file in a directory that is there, such as reports.csv, got {file}"
            )
        writer = csv.DictWriter(
            text, list(dict.fromkeys(chain.from_iterable(records))), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(records)
        write_atomically(file, text.getvalue().encode())

    def _full_record(self, job: int, on_front: bool) -> dict[str, Any]:
        report, order = self._reports[job], self._jobs[job]
        parent = None if order.start is None else self._jobs[order.start].trial
        head = {
            "job": job,
            "trial": order.trial,
            "begin": order.begin,
            "end": order.end,
            "start": order.start,
            "parent": parent,
        }
        values = {f"config.{name}": value for name, value in self._decode(order).items()}
        scores = {f"score.{name}": value for name, value in report.scores.items()}
        tail = {
            "violation": report.violation,
            "front": on_front,
            "seconds": report.seconds,
            "duration": report.duration,
        }
        return head | values | scores | tail | {"error": report.error}

    def _reference(
        self, reference: Mapping[str, float] | None
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        if reference is not None:
            return np.array(signed_reference(self.problem.objectives, reference))
        first: dict[int, int] = {}
        for job in sorted(self._reports):
            first.setdefault(self._jobs[job].trial, job)
        entries = [entry_of(self._reports[job]) for job in first.values()]
        return reference_of(
            self.problem.reference, [e.objectives for e in entries if e is not None], self._front
        )

    def _decode(self, job: Job) -> dict[str, Any]:
        return self.problem.space.decode(job.config)

    def _point(self, id: int) -> Point:
        job, report = self._jobs[id], self._reports[id]
        return Point(
            id,
            job.trial,
            job.end,
            self._decode(job),
            report.scores,
            report.violation,
            report.seconds,
        )

    def _ancestor(self, job: Job) -> Ancestor:
        exploited = job.start is not None and self._jobs[job.start].trial != job.trial
        return Ancestor(
            job.id,
            job.trial,
            job.begin,
            job.end,
            self._decode(job),
            self._reports[job.id].scores,
            exploited,
        )

    def _job_of(self, point: Point | int) -> int:
        job = point.job if isinstance(point, Point) else point
        report = self._reports.get(job) if isinstance(job, Integral) else None
        if report is None or report.objectives is None:
            front = ", ".join(str(e.job) for e in self._front[:8]) + " ..." * (len(self._front) > 8)
            raise ValueError(
                f"a point must be an evaluated job of this run, or one of `results.front()`, got {job!r}; on the front are "
                f"{front or 'none yet'}"
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


def read_run_config(path: Path) -> RunConfig:
    """Read the settings of a run's directory."""
    file = path / "run.toml"
    if not file.is_file():
        why = (
            "has no run.toml"
            if path.is_dir()
            else "is a file, and a run is a directory"
            if path.is_file()
            else "is not there"
        )
        if (path / "experiment.toml").is_file():
            remedy = f"it is a comparison: `mopbt compare {path / 'experiment.toml'} --out {path} --only-report` makes its report"
        else:
            remedy = "`mopbt list DIR` shows the runs below a directory"
        raise StoreError(f"{path} is not a run: it {why}; {remedy}")
    return RunConfig.from_toml(file.read_text(encoding="utf-8", errors="replace"), file)


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
