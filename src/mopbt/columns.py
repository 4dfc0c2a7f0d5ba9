"""Jobs and reports in columns, so that a million lines fit in memory.

Rows are appended in the form in which the journal holds them, and never change. A `Job` or a
`Report` is built only when it is read.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.objectives import signed_bounds
from mopbt.problem import Problem
from mopbt.space import Config, Float
from mopbt.state import Blend, ErrorBar, Job, Report

# Stands for None in a column of ids.
NONE = -1
# Bytes of a checksum, as `checksum_of` makes them.
CHECKSUM = 16
LOWER = ErrorBar._fields.index("lower")
UPPER = ErrorBar._fields.index("upper")
# More missing job ids in a row than this are taken for damage.
LARGEST_GAP = 1_000_000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class JobColumns:
    """The jobs of a run by id. Ids grow; a repaired journal may leave some out."""

    def __init__(self, problem: Problem) -> None:
        # Integers of a domain are within ±2**53, so a float holds them exactly.
        self._is_float = [isinstance(domain, Float) for domain in problem.space.values()]
        self._interval = problem.interval
        self._steps = problem.steps
        self._trial = array("q")
        self._start = array("q")
        self._begin = array("q")
        self._end = array("q")
        self._origin = array("q")
        self._config = array("d")
        self._blend: dict[int, Blend] = {}

    def __len__(self) -> int:
        """Return the next free id."""
        return len(self._trial)

    def __contains__(self, id: int) -> bool:
        return 0 <= id < len(self._trial) and self._trial[id] >= 0

    def __getitem__(self, id: int) -> Job:
        if id not in self:
            raise KeyError(id)
        config = self.config(id)
        blend = self._blend.get(id, ())
        trial = self._trial[id]
        begin = self._begin[id]
        end = self._end[id]
        return Job(id, trial, config, self.start(id), begin, end, blend)

    def append(self, row: Sequence[Any]) -> None:
        """Append a job in its JSON form.

        Raises ValueError if its configuration or steps do not fit.
        """
        id, trial, config, start, begin, end, *blend = row
        if len(config) != len(self._is_float):
            raise ValueError(f"job {id} has {len(config)} values, not {len(self._is_float)}")
        if not math.isfinite(sum(config)):
            raise ValueError(f"job {id} has values that are not finite: {config}")
        # Ray Tune trains a job of several intervals up to the next rung.
        if not 0 <= begin <= end <= max(begin + self._interval, self._steps):
            raise ValueError(f"job {id} is no interval of training: steps {begin} to {end}")
        if id > len(self._trial):
            self._leave_out(id - len(self._trial))
        self._trial.append(trial)
        self._start.append(NONE if start is None else start)
        self._begin.append(begin)
        self._end.append(end)
        self._origin.append(trial if start is None else self._origin[start])
        self._config.extend(config)
        if blend:
            self._blend[id] = tuple((checkpoint, weight) for checkpoint, weight in blend[0])

    def _leave_out(self, count: int) -> None:
        if count > LARGEST_GAP:
            raise ValueError(f"{count} job ids in a row are missing")
        for column in (self._trial, self._start, self._begin, self._end, self._origin):
            column.extend([NONE] * count)
        self._config.extend([math.nan] * (count * len(self._is_float)))

    def config(self, id: int) -> Config:
        """Return the configuration of a job."""
        n = len(self._is_float)
        positions = self._config[id * n : (id + 1) * n]
        pairs = zip(positions, self._is_float, strict=True)
        return tuple(position if is_float else int(position) for position, is_float in pairs)

    def trial(self, id: int) -> int:
        """Return the trial of a job."""
        return self._trial[id]

    def begin(self, id: int) -> int:
        """Return the step at which a job begins."""
        return self._begin[id]

    def end(self, id: int) -> int:
        """Return the step at which a job ends."""
        return self._end[id]

    def start(self, id: int) -> int | None:
        """Return the checkpoint that a job starts from; None for fresh weights."""
        start = self._start[id]
        return None if start == NONE else start

    def origin(self, id: int) -> int:
        """Return the trial whose fresh weights a job's model descends from."""
        return self._origin[id]

    def blend(self, id: int) -> Blend:
        """Return the further checkpoints that a job starts from, with their weights."""
        return self._blend.get(id, ())

    def starts(self, id: int) -> tuple[int, ...]:
        """Return all checkpoints that a job starts from, the main one first."""
        others = tuple(checkpoint for checkpoint, _ in self._blend.get(id, ()))
        start = self._start[id]
        return others if start == NONE else (start, *others)

    def trials(self) -> Ints:
        """Return the trial of each job (n,), -1 where an id is missing."""
        return np.array(self._trial, dtype=np.int64)

    def start_ids(self) -> Ints:
        """Return the checkpoint that each job starts from (n,), -1 for fresh weights."""
        return np.array(self._start, dtype=np.int64)

    def begins(self) -> Ints:
        """Return the step at which each job begins (n,)."""
        return np.array(self._begin, dtype=np.int64)

    def ends(self) -> Ints:
        """Return the step at which each job ends (n,)."""
        return np.array(self._end, dtype=np.int64)

    def configs(self) -> Floats:
        """Return the positions of each configuration (n, H)."""
        return np.array(self._config, dtype=float).reshape(-1, len(self._is_float))


class MappingColumn:
    """A column of mappings from names to `width` numbers each.

    The mappings of one run mostly share their names, so these are stored once.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._layouts: dict[tuple[str, ...], int] = {}
        self._names: list[tuple[str, ...]] = []
        self._layout = array("l")
        self._offset = array("q")
        self._numbers = array("d")

    def append(self, mapping: Mapping[str, Any]) -> None:
        """Append a mapping, to numbers or to tuples of `width` numbers."""
        names = tuple(mapping)
        layout = self._layouts.setdefault(names, len(self._layouts))
        if layout == len(self._names):
            self._names.append(names)
        self._layout.append(layout)
        self._offset.append(len(self._numbers))
        if self._width == 1:
            self._numbers.extend(map(float, mapping.values()))
        else:
            for numbers in mapping.values():
                self._numbers.extend(map(float, numbers))

    def __getitem__(self, row: int) -> dict[str, Any]:
        names = self._names[self._layout[row]]
        at = self._offset[row]
        width = self._width
        if width == 1:
            return dict(zip(names, self._numbers[at : at + len(names)], strict=True))
        return {
            name: tuple(self._numbers[at + i * width : at + (i + 1) * width])
            for i, name in enumerate(names)
        }

    def names(self) -> tuple[str, ...]:
        """Return all names, in the order in which they first appeared."""
        return tuple(dict.fromkeys(name for names in self._names for name in names))

    def column(self, name: str) -> Floats:
        """Return the numbers of a name, (n,) or (n, width); NaN where a mapping lacks it."""
        layouts = np.array(self._layout, dtype=np.int64)
        offsets = np.array(self._offset, dtype=np.int64)
        numbers = np.array(self._numbers, dtype=float)
        found = np.full((len(layouts), self._width), math.nan)
        for layout, names in enumerate(self._names):
            if name in names:
                rows = np.flatnonzero(layouts == layout)
                first = offsets[rows] + names.index(name) * self._width
                found[rows] = numbers[first[:, None] + np.arange(self._width)]
        return found[:, 0] if self._width == 1 else found


class ReportColumns:
    """The reports of a run, in the order in which they came."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._k = len(problem.objectives)
        self._nothing = [math.nan] * self._k
        # The row by job id; -1 while a job has not reported.
        self._row = array("q")
        self._job = array("q")
        self._objectives = array("d")
        self._violation = array("d")
        self._seconds = array("d")
        self._duration = array("d")
        # CHECKSUM bytes per row.
        self._checksum = bytearray()
        # Checksums of other lengths, by row.
        self._odd_checksum: dict[int, str] = {}
        self._scores = MappingColumn(1)
        self._errors = MappingColumn(len(ErrorBar._fields))
        # Errors of failed jobs, by row.
        self._failure: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._job)

    def __contains__(self, job: int) -> bool:
        return self.row(job) != NONE

    def row(self, job: int) -> int:
        """Return the row of a job's report; -1 if it has not reported."""
        return self._row[job] if 0 <= job < len(self._row) else NONE

    def append(self, data: Mapping[str, Any]) -> None:
        """Append a report in its JSON form; ValueError if its objectives do not fit."""
        job = data["job"]
        row = len(self._job)
        failed = "error" in data
        objectives = self._nothing if failed else list(map(float, data["objectives"]))
        if len(objectives) != self._k:
            raise ValueError(f"job {job} has {len(objectives)} objectives, not {self._k}")
        if job >= len(self._row):
            self._row.extend([NONE] * (job + 1 - len(self._row)))
        self._row[job] = row
        self._job.append(job)
        self._objectives.extend(objectives)
        self._violation.append(math.inf if failed else float(data.get("violation", 0.0)))
        self._seconds.append(data["seconds"])
        self._duration.append(data["duration"])
        self._add_checksum(row, data.get("checksum", "") if failed else data["checksum"])
        self._scores.append({} if failed else data["scores"])
        self._errors.append(data.get("errors", {}))
        if failed:
            self._failure[row] = data["error"]

    def _add_checksum(self, row: int, checksum: str) -> None:
        if len(checksum) == 2 * CHECKSUM:
            self._checksum += bytes.fromhex(checksum)
        else:
            self._checksum += bytes(CHECKSUM)
            self._odd_checksum[row] = checksum

    def __getitem__(self, row: int) -> Report:
        job = self._job[row]
        seconds = self._seconds[row]
        duration = self._duration[row]
        if row in self._failure:
            error = self._failure[row]
            checksum = self.checksum(row)
            return Report(job, checksum=checksum, seconds=seconds, duration=duration, error=error)
        return Report(
            job,
            objectives=self.objectives_of(row),
            violation=self._violation[row],
            scores=self._scores[row],
            checksum=self.checksum(row),
            seconds=seconds,
            duration=duration,
            errors={name: ErrorBar(*bar) for name, bar in self._errors[row].items()},
        )

    def job(self, row: int) -> int:
        """Return the job of a report."""
        return self._job[row]

    def objectives_of(self, row: int) -> tuple[float, ...]:
        """Return the objectives of a report; NaN if its job failed."""
        return tuple(self._objectives[row * self._k : (row + 1) * self._k])

    def bounds_of(self, row: int) -> tuple[float, ...]:
        """Return the objectives of a report at their bounds; NaN if its job failed."""
        if row in self._failure:
            return self.objectives_of(row)
        errors = {name: ErrorBar(*bar) for name, bar in self._errors[row].items()}
        return signed_bounds(self._problem.objectives, self._scores[row], errors)

    def violation(self, row: int) -> float:
        """Return the violation of a report; infinity if its job failed."""
        return self._violation[row]

    def checksum(self, row: int) -> str:
        """Return the checksum of the checkpoint of a report; empty if there is none."""
        if row in self._odd_checksum:
            return self._odd_checksum[row]
        return self._checksum[row * CHECKSUM : (row + 1) * CHECKSUM].hex()

    def scores_of(self, row: int) -> dict[str, float]:
        """Return the metrics of a report in their original direction."""
        return self._scores[row]

    def seconds_of(self, row: int) -> float:
        """Return when a report came, in seconds since the start of the run."""
        return self._seconds[row]

    def failed(self, row: int) -> bool:
        """Return whether the job of a report failed."""
        return row in self._failure

    def failures(self) -> Mapping[int, str]:
        """Return the errors of failed jobs by row."""
        return self._failure

    def jobs(self) -> Ints:
        """Return the job of each report (n,)."""
        return np.array(self._job, dtype=np.int64)

    def objectives(self) -> Floats:
        """Return the objectives of each report (n, K), larger is better.

        They are NaN for failed jobs.
        """
        return np.array(self._objectives, dtype=float).reshape(-1, self._k)

    @property
    def has_errors(self) -> bool:
        """Return whether an objective was ever reported with an error."""
        known = self._errors.names()
        return any(objective.name in known for objective in self._problem.objectives)

    def bounds(self) -> Floats:
        """Return the objectives of each report at their bounds (n, K), larger is better.

        They are the objectives themselves where an error is unknown.
        """
        bounds = self.objectives()
        for k, objective in enumerate(self._problem.objectives):
            bars = self.errors(objective.name)
            known = np.isfinite(bars).all(axis=1)
            worst = LOWER if objective.sign > 0 else UPPER
            bounds[known, k] = objective.sign * bars[known, worst]
        return bounds

    def stderrs(self) -> Floats:
        """Return the standard errors of the objectives (n, K), 0 where they are unknown."""
        names = [objective.name for objective in self._problem.objectives]
        stderrs = np.column_stack([self.errors(name)[:, 0] for name in names])
        return np.where(np.isfinite(stderrs), stderrs, 0.0)

    def violations(self) -> Floats:
        """Return the violation of each report (n,); infinity for failed jobs."""
        return np.array(self._violation, dtype=float)

    def seconds(self) -> Floats:
        """Return when each report came (n,)."""
        return np.array(self._seconds, dtype=float)

    def durations(self) -> Floats:
        """Return the seconds of work of each report (n,)."""
        return np.array(self._duration, dtype=float)

    def score_names(self) -> tuple[str, ...]:
        """Return the names of all metrics, in the order in which they first appeared."""
        return self._scores.names()

    def scores(self, name: str) -> Floats:
        """Return a metric of each report (n,); NaN where it is missing."""
        return self._scores.column(name)

    def errors(self, name: str) -> Floats:
        """Return the error bar of a metric of each report (n, 3); NaN where it is missing."""
        return self._errors.column(name)
