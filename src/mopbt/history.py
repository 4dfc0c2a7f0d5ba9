"""The read model of a run: what its journal says, folded once.

`History` is the only code that gives a journal its meaning. A session, its results, the pages, the
trackers, a repair and a comparison all read it. It grows with the journal in linear time, and keeps
jobs and reports in columns, so that a million lines can be opened.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.archive import Archive, Entry, reference_of
from mopbt.columns import NONE, JobColumns, ReportColumns
from mopbt.errors import CorruptJournal, IncompatibleRun
from mopbt.metrics import hypervolume, hypervolume_curve, non_dominated
from mopbt.problem import Problem
from mopbt.schedulers.base import PopulationScheduler, ReportReadingScheduler, Scheduler
from mopbt.state import Job, Measurement, Report, Result, State, Trial, updated, with_jobs
from mopbt.stores.base import Exchange
from mopbt.stores.journal import incompatible
from mopbt.table import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BROKEN = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
LOST_REPORT = "its report was in a damaged line of the journal"
# At most so many new reports enter the archive one by one. More of them enter together.
FEW = 64


class History:
    """What a journal says: jobs, reports, counters, the front and its growth."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.jobs = JobColumns(problem)
        self.reports = ReportColumns(problem)
        self.trials = 0
        self.outstanding: set[int] = set()
        self.failures = 0
        self.diverged = 0
        self.seconds = 0.0
        self.lines = 0
        # The steps and members of an extended run.
        self.extension: dict[str, int] = {}
        self._is_done = False
        # How many trials there were when members were added.
        self._sizes: list[int] = []
        # Job ids, and ~row for reports, in the order of the journal.
        self._events = array("q")
        # After how many events which trial left.
        self._departures: list[tuple[int, int]] = []
        # The first job of each trial that has reported.
        self._first_job: dict[int, int] = {}
        self._archive = Archive()
        # How many rows have entered the archive.
        self._archived = 0
        self._bound_archive = Archive()
        # How many rows have entered the archive of bounds.
        self._bound_archived = 0
        self._milestones: Ints = np.empty(0, dtype=np.int64)
        # Among how many rows the milestones were searched.
        self._charted = 0

    # What comes in.

    def append(self, exchange: Exchange) -> None:
        """Add a line of the journal."""
        self.extend([exchange.to_json()])

    def extend(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines of the journal in their JSON form.

        Raises CorruptJournal if one does not follow.
        """
        for line in lines:
            self.lines += 1
            for row in line.get("jobs", ()):
                self._add_job(row)
            for data in line.get("reports", ()):
                self._add_report(data)
            if "extend" in line:
                self.extension.update(line["extend"])
                if "population" in line["extend"]:
                    self._sizes.append(self.trials)
            for trial in line.get("left", ()):
                self._add_departure(trial)
            self.seconds = max(self.seconds, line.get("stopped", 0.0))
            self._is_done = line.get("done", False)

    def _add_job(self, row: Sequence[Any]) -> None:
        id = row[0]
        trial = row[1]
        follows = id >= len(self.jobs) and 0 <= trial <= self.trials
        starts = [row[3]] if row[3] is not None else []
        if len(row) > 6:
            starts += [checkpoint for checkpoint, _ in row[6]]
        if not follows or any(start not in self.reports for start in starts):
            raise self._does_not_follow(f"job {id}")
        self.jobs.append(row)
        self.outstanding.add(id)
        self._events.append(id)
        self.trials = max(self.trials, trial + 1)

    def _add_report(self, data: Mapping[str, Any]) -> None:
        job = data["job"]
        if job not in self.outstanding:
            raise self._does_not_follow(f"the report of job {job}")
        self.outstanding.remove(job)
        row = len(self.reports)
        self.reports.append(data)
        self._events.append(~row)
        self.seconds = max(self.seconds, data["seconds"])
        trial = self.jobs.trial(job)
        self._first_job[trial] = min(self._first_job.get(trial, job), job)
        if self.reports.failed(row):
            self.failures += 1
        elif not self.is_finite(row):
            self.diverged += 1

    def _add_departure(self, trial: int) -> None:
        if not 0 <= trial < self.trials:
            raise self._does_not_follow(f"the departure of trial {trial}")
        self._departures.append((len(self._events), trial))

    def _does_not_follow(self, what: str) -> CorruptJournal:
        return CorruptJournal(
            f"line {self.lines} of the journal ({what}) does not follow from the lines before it "
            f"({len(self.jobs)} jobs so far); a line was lost, duplicated or moved: restore the "
            "original file"
        )

    # Facts.

    @property
    def done(self) -> bool:
        """Return whether the last session recorded that nothing was left to do."""
        return self._is_done

    def job(self, id: int) -> Job:
        """Return a job; KeyError if there is none with this id."""
        return self.jobs[id]

    def report(self, job: int) -> Report:
        """Return the report of a job; KeyError if it has not reported."""
        row = self.reports.row(job)
        if row == NONE:
            raise KeyError(job)
        return self.reports[row]

    def is_finite(self, row: int) -> bool:
        """Return whether a report can be ranked: it neither failed nor diverged."""
        numbers = (*self.reports.objectives_of(row), self.reports.violation(row))
        return all(map(math.isfinite, numbers))

    def failures_in_a_row(self, since: int = 0) -> list[str]:
        """Return the errors of the newest reports as far as they failed, oldest first.

        Only rows from `since` on count.
        """
        errors = []
        failures = self.reports.failures()
        row = len(self.reports) - 1
        while row >= since and row in failures:
            errors.append(failures[row])
            row -= 1
        return errors[::-1]

    def lineage(self, job: int) -> list[int]:
        """Return the jobs whose weights led to a job's model, from the first interval on."""
        chain = [job]
        while (start := self.jobs.start(chain[-1])) is not None:
            chain.append(start)
        return chain[::-1]

    def ancestors(self, job: int) -> list[int]:
        """Return all jobs that a job's model descends from, and itself, in order.

        They are more than its lineage if one of them started from the mean of several models.
        """
        found: set[int] = set()
        open_jobs = [job]
        while open_jobs:
            id = open_jobs.pop()
            if id not in found:
                found.add(id)
                open_jobs.extend(self.jobs.starts(id))
        return sorted(found)

    def is_exploit(self, job: int) -> bool:
        """Return whether a job starts from another trial's checkpoint."""
        start = self.jobs.start(job)
        return start is not None and self.jobs.trial(start) != self.jobs.trial(job)

    # The front and its hypervolume.

    @property
    def front(self) -> tuple[Entry, ...]:
        """Return the evaluations that no other one dominates, by constrained domination."""
        new = range(self._archived, len(self.reports))
        self._archived = len(self.reports)
        self._enter(self._archive, new, bounds=False)
        return self._archive.front

    @property
    def has_errors(self) -> bool:
        """Return whether an objective was ever reported with an error."""
        return self.reports.has_errors

    @property
    def has_lost_reports(self) -> bool:
        """Return whether a repair replaced reports.

        A model may then be back on the front.
        """
        return LOST_REPORT in self.reports.failures().values()

    @property
    def pessimistic_front(self) -> tuple[Entry, ...]:
        """Return the evaluations that none dominates at the bounds of the objectives.

        The objectives of the entries are these bounds. Without errors, this is the front.
        """
        if not self.has_errors:
            return self.front
        new = range(self._bound_archived, len(self.reports))
        self._bound_archived = len(self.reports)
        self._enter(self._bound_archive, new, bounds=True)
        return self._bound_archive.front

    def _enter(self, archive: Archive, rows: range, *, bounds: bool) -> None:
        """Add reports to an archive, with their objectives or the bounds of these."""
        reports = self.reports
        if len(rows) > FEW:
            part = slice(rows.start, rows.stop)
            objectives = reports.bounds() if bounds else reports.objectives()
            archive.enter_many(reports.jobs()[part], objectives[part], reports.violations()[part])
            return
        for row in filter(self.is_finite, rows):
            point = reports.bounds_of(row) if bounds else reports.objectives_of(row)
            archive.enter(Entry(reports.job(row), point, reports.violation(row)))

    def feasible_front(self) -> Floats:
        """Return the objectives of the feasible models on the front (n, K)."""
        points = [entry.objectives for entry in self.front if not entry.violation]
        return np.array(points, dtype=float).reshape(-1, len(self.problem.objectives))

    def reference(self) -> Floats:
        """Return the reference point (K,): the task's, or the paper's rule.

        The rule covers the first result of each trial and the front, so the point moves while the
        front grows in a direction that no first result had.
        """
        if self.problem.reference is not None:
            return np.array(self.problem.reference)
        rows = map(self.reports.row, self._first_job.values())
        firsts = [self.reports.objectives_of(row) for row in rows if self.is_finite(row)]
        if not firsts and not self.front:
            return np.zeros(len(self.problem.objectives))
        return reference_of(None, firsts, self.front)

    def hypervolume(self, reference: Floats | None = None) -> float:
        """Return the hypervolume of the front above a reference point (K,)."""
        corner = self.reference() if reference is None else reference
        return hypervolume(self.feasible_front(), corner)

    def curve(self, reference: Floats | None = None) -> list[tuple[float, float]]:
        """Return when the hypervolume grew, in seconds, and to what."""
        corner = self.reference() if reference is None else reference
        rows = self.milestones()
        volumes = hypervolume_curve(self.reports.objectives()[rows], corner)
        return list(zip(self.reports.seconds()[rows].tolist(), volumes.tolist(), strict=True))

    def milestones(self) -> Ints:
        """Return the rows of feasible reports that no earlier report dominated, by time."""
        if self._charted < len(self.reports):
            seconds = self.reports.seconds()
            jobs = self.reports.jobs()
            objectives = self.reports.objectives()
            violations = self.reports.violations()
            new = np.arange(self._charted, len(self.reports))
            new = new[(violations[new] == 0) & np.isfinite(objectives[new]).all(axis=1)]
            rows = np.concatenate([self._milestones, new])
            rows = rows[np.lexsort((jobs[rows], seconds[rows]))]
            # With time as one more objective, all of them are found at once.
            timed = np.column_stack([objectives[rows], -np.arange(len(rows))])
            self._milestones = rows[non_dominated(timed)] if len(rows) else rows
            self._charted = len(self.reports)
        return self._milestones

    # The state of the scheduler.

    def state(self, scheduler: Scheduler, seed: int) -> State:
        """Return the state that a scheduler has reached.

        A decision that the journal records as a job is not made again: only trials without a
        further job are decided by the scheduler.
        """
        return _Fold(self, scheduler, seed).state()

    def generation_size(self, trials: int) -> int:
        """Return how many trials a generation has while a run has started `trials` trials."""
        return next((size for size in self._sizes if size >= trials), self.trials)

    def next_jobs(self) -> dict[int, int]:
        """Return the job of the same trial that follows a job, where there is one."""
        following: dict[int, int] = {}
        latest: dict[int, int] = {}
        for event in self._events:
            if event >= 0:
                trial = self.jobs.trial(event)
                if trial in latest:
                    following[latest[trial]] = event
                latest[trial] = event
        return following

    def records(self) -> Iterator[Job | Report]:
        """Yield jobs and reports in the order of the journal."""
        for event in self._events:
            yield self.jobs[event] if event >= 0 else self.reports[~event]

    @property
    def events(self) -> Sequence[int]:
        """Return the order of the journal: a job id, or ~row for the report in a row."""
        return self._events

    @property
    def departures(self) -> Sequence[tuple[int, int]]:
        """Return the trials that left, each with the number of events before it did."""
        return self._departures


def advanced(state: State, scheduler: Scheduler, exchange: Exchange) -> State:
    """Return the state after a further exchange.

    It equals the one that `History.state` rebuilds from all.
    """
    if exchange.jobs:
        state = with_jobs(state, exchange.jobs)
    for report in exchange.reports:
        state = scheduler.tell(state, report)
    for trial in exchange.left:
        state = updated(state, [replace(state.trials[trial], status="finished")])
    return state


def read_history(problem: Problem, lines: Iterable[Mapping[str, Any]], path: object) -> History:
    """Read a whole journal; the errors of a line name its file."""
    history = History(problem)
    try:
        history.extend(lines)
    except CorruptJournal as error:
        raise CorruptJournal(str(error).replace("the journal", str(path), 1)) from None
    except BROKEN as error:
        raise IncompatibleRun(f"{path}: {incompatible(error)}") from None
    return history


class _Fold:
    """Rebuild the state of a scheduler from a history, in linear time.

    A trial that has a next job was decided: the job says how. Only from the first report without a
    next job on is the scheduler asked, and if it decides about each trial alone, only for those.
    """

    def __init__(self, history: History, scheduler: Scheduler, seed: int) -> None:
        self._history = history
        self._scheduler = scheduler
        self._seed = seed
        self._next = history.next_jobs()
        self._trials: list[Trial] = []
        # The trials as the scheduler last saw them.
        self._table: Table[Trial] = Table()
        # Trials that differ from the table.
        self._changed: set[int] = set()
        self._outstanding: dict[int, Job] = {}
        self._jobs = 0
        # Trials of this generation, with their next job.
        self._waiting: list[tuple[int, int]] = []
        self._ask_always = False
        # The last measurements of the lineage of each checkpoint.
        self._recent: dict[int | None, tuple[Measurement, ...]] = {}

    def state(self) -> State:
        events = self._history.events
        done = 0
        for number, trial in self._history.departures:
            self._apply_events(events[done:number])
            self._trials[trial] = replace(self._trials[trial], status="finished")
            self._changed.add(trial)
            done = number
        self._apply_events(events[done:])
        return self._frozen()

    def _apply_events(self, events: Iterable[int]) -> None:
        for event in events:
            if event >= 0:
                self._start(self._history.job(event))
            else:
                self._report(~event)

    def _start(self, job: Job) -> None:
        before = self._trials[job.trial] if job.trial < len(self._trials) else None
        origin = self._history.jobs.origin(job.id)
        trial = Trial(
            job.trial,
            job.config,
            "running",
            job.begin,
            job.start,
            {} if before is None else before.results,
            origin=origin,
            recent=() if before is None else before.recent,
        )
        if job.trial == len(self._trials):
            self._trials.append(trial)
        else:
            self._trials[job.trial] = trial
        self._changed.add(job.trial)
        self._outstanding[job.id] = job
        self._jobs = job.id + 1

    def _report(self, row: int) -> None:
        job = self._outstanding[self._history.reports.job(row)]
        following = self._next.get(job.id)
        if following is None or self._ask_always:
            self._ask_always = self._scheduler.decides_together
            before = self._frozen()
            state = self._scheduler.tell(before, self._history.reports[row])
            for id, trial in state.trials.changes_since(before.trials):
                assert trial is not None
                if id == len(self._trials):
                    self._trials.append(trial)
                else:
                    self._trials[id] = trial
            self._table = state.trials
            self._outstanding = dict(state.outstanding)
            self._keep_recent(job.id, self._trials[job.trial].results[job.end])
            return
        self._record(row, job)
        self._waiting.append((job.trial, following))
        size = self._history.generation_size(len(self._trials))
        if isinstance(self._scheduler, PopulationScheduler):
            # Beyond its population, a scheduler may have trials that are evaluated only once.
            size = min(size, self._scheduler.population)
        if not self._scheduler.decides_together or len(self._waiting) == size:
            self._apply_decisions()

    def _record(self, row: int, job: Job) -> None:
        """Add a report, as `with_report` does."""
        del self._outstanding[job.id]
        trial = self._trials[job.trial]
        result = self._result(row, job, trial.origin)
        # In place: no other state holds this dictionary, and copying it would be quadratic.
        trial.results.pop(job.end, None)
        trial.results[job.end] = result
        checkpoint = job.id if result.is_finite else job.start
        self._trials[job.trial] = Trial(
            job.trial,
            trial.config,
            "waiting",
            job.end,
            checkpoint,
            trial.results,
            origin=trial.origin,
            recent=trial.recent,
        )
        self._changed.add(job.trial)
        self._keep_recent(job.id, result)

    def _keep_recent(self, job: int, result: Result) -> None:
        """Keep the measurements of a lineage for trials that continue it."""
        if result.recent:
            self._recent[job] = result.recent

    def _result(self, row: int, job: Job, origin: int) -> Result:
        reports = self._history.reports
        if isinstance(self._scheduler, ReportReadingScheduler) and self._scheduler.reads_reports:
            recent = self._trials[job.trial].recent
            result = self._scheduler.result_of(reports[row], recent)
            return replace(result, job=job.id, origin=origin, config=job.config)
        failed = reports.failed(row)
        objectives = None if failed else reports.objectives_of(row)
        violation = 0.0 if failed else reports.violation(row)
        return Result(objectives, violation, (), job.id, origin, job.config)

    def _apply_decisions(self) -> None:
        """Make trials ready for the jobs that the journal records as their next ones."""
        jobs = self._history.jobs
        for trial, job in self._waiting:
            self._trials[trial] = Trial(
                trial,
                jobs.config(job),
                "ready",
                jobs.begin(job),
                jobs.start(job),
                self._trials[trial].results,
                jobs.blend(job),
                jobs.origin(job),
                self._recent.get(jobs.start(job), ()),
            )
            self._changed.add(trial)
        self._waiting.clear()

    def _frozen(self) -> State:
        # A new table would have no views, and the scheduler would rank all trials at each report.
        changed = {id: self._trials[id] for id in sorted(self._changed)}
        self._table = self._table.replace(changed)
        self._changed.clear()
        return State(self._seed, self._table, dict(self._outstanding), self._jobs)
