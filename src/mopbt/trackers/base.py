"""The base class of trackers, and the run as trackers see it.

A tracker writes one log for the population and one for each *branch*. A branch is a trial from its
start, or from an exploit, to its next exploit. An exploit is therefore shown as a fork: a new
branch that begins with the donor's metrics.

Trackers read the journal, during the run or afterwards. During a run they do so in another process,
so a tracker that fails or is slow does not affect the run.
"""

import hashlib
import importlib
import json
import threading
import time
import warnings
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle

from mopbt.archive import Archive, entry_of
from mopbt.callbacks import Callback
from mopbt.engines.supervisor import Supervisor, open_channel, receive, send
from mopbt.errors import MissingExtra, MopbtError
from mopbt.filesystem import write_atomically
from mopbt.results import Results

# The fraction of a core's time that reading a journal may take.
MAX_LOAD = 0.05
POSITION_FILE = "mopbt.json"
STOP = b"stop"
# Replaces the name of a host or a user.
PRIVATE = "private"


@dataclass(frozen=True)
class Branch:
    """A trial from its start, or from an exploit, to its next exploit.

    Attributes:
        id: The id of the first model of the branch.
        trial: The trial.
        number: Position among the branches of the trial, from 1.
        start: The checkpoint that the branch started from, None for fresh weights.
        fork: The evaluation of that checkpoint, None for fresh weights.
    """

    id: int
    trial: int
    number: int
    start: int | None
    fork: "Evaluation | None" = None

    @property
    def name(self) -> str:
        """Return the name: ``trial-007``, and ``trial-007.2`` after the first exploit."""
        suffix = f".{self.number}" if self.number > 1 else ""
        return f"trial-{self.trial:03d}{suffix}"

    @property
    def origin(self) -> str:
        """Describe in words where the weights came from."""
        if self.fork is None:
            return "fresh weights"
        return f"forked from {self.fork.branch.name} at step {self.fork.step}"


@dataclass(frozen=True)
class Evaluation:
    """One report of a run and its branch. `scores` is empty if the interval failed."""

    model: int
    branch: Branch = field(repr=False)
    step: int
    hp: Mapping[str, Any]
    scores: Mapping[str, float]
    violation: float
    seconds: float
    error: str

    @property
    def is_first(self) -> bool:
        """Return whether this is the first evaluation of its branch."""
        return self.model == self.branch.id

    @property
    def numeric_hp(self) -> dict[str, float]:
        """Return the hyperparameters that are numbers."""
        return {
            name: float(value) for name, value in self.hp.items() if isinstance(value, int | float)
        }


@dataclass(frozen=True)
class PopulationMetrics:
    """Metrics of the population after some reports: ``hypervolume``, ``front``."""

    reports: int
    seconds: float
    metrics: Mapping[str, float]


class Tracker(Callback, ABC):
    """A log that a run can be written to in parts, and a callback that follows a run.

    As a callback, ``run(..., callbacks=[TensorBoard("logs")])``, it works in a process of its own
    that reads the journal, as `follow` does.
    """

    _following: "follow | None" = None

    @abstractmethod
    def begin(self, results: Results) -> int:
        """Open the log of a run and return the number of reports it already holds."""

    @abstractmethod
    def write(
        self, evaluations: Sequence[Evaluation], population: Sequence[PopulationMetrics]
    ) -> None:
        """Add new evaluations, and the metrics of the population after each of them."""

    @abstractmethod
    def end(self) -> None:
        """Close the log."""

    def on_start(self, run: Results) -> None:
        """Start to follow the run in another process."""
        if run.path is None:
            raise ValueError(
                f"{type(self).__name__} reads the journal of a run, got a run in memory; give "
                "`out` a directory, or log the results afterwards with `track`"
            )
        self._following = follow(run.path, self).__enter__()

    def on_end(self, run: Results) -> None:
        """Wait until everything is logged; a failure is a warning."""
        if self._following is not None:
            self._following.__exit__(None, None, None)
            self._following = None


# The run as trackers see it.


def evaluations_of(results: Results) -> list[Evaluation]:
    """Return all reports of a run with their branches, in the order of their time."""
    evaluations: dict[int, Evaluation] = {}
    latest: dict[int, Branch] = {}
    for record in results.records():
        branch = _find_branch(record, latest.get(record["trial"]), evaluations)
        latest[branch.trial] = branch
        evaluations[record["model"]] = Evaluation(
            model=record["model"],
            branch=branch,
            step=record["end"],
            hp=_select(record, "hp."),
            scores=_select(record, "score.") | _standard_errors(record),
            violation=record["violation"],
            seconds=record["seconds"],
            error=record["error"],
        )
    return sorted(evaluations.values(), key=lambda e: (e.seconds, e.model))


def _standard_errors(record: Mapping[str, Any]) -> dict[str, float]:
    """Return standard errors as metrics of their own, such as stderr/accuracy."""
    return {f"stderr/{name}": value for name, value in _select(record, "stderr.").items()}


def _select(record: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the columns with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): value
        for name, value in record.items()
        if name.startswith(prefix)
    }


def _find_branch(
    record: Mapping[str, Any], latest: Branch | None, evaluations: Mapping[int, Evaluation]
) -> Branch:
    """Return the branch of an evaluation: the latest one of its trial, or a new one."""
    start = record["start"]
    fork = evaluations.get(start)
    if latest is None:
        return Branch(record["model"], record["trial"], 1, start, fork)
    # The start of the branch itself is used again if its first interval failed.
    if start == latest.start or (fork is not None and fork.branch == latest):
        return latest
    return Branch(record["model"], record["trial"], latest.number + 1, start, fork)


def population_metrics(
    results: Results, evaluations: Sequence[Evaluation]
) -> list[PopulationMetrics]:
    """Compute the hypervolume and the size of the front after each evaluation.

    The hypervolume refers to the reference point that the run has now.
    """
    curve = results.hypervolume_curve() if len(results.front()) else []
    times = [seconds for seconds, _ in curve]
    archive = Archive()
    rows = []
    for reports, evaluation in enumerate(evaluations, 1):
        entry = entry_of(results.history.report(evaluation.model))
        if entry is not None:
            archive.enter(entry)
        reached = bisect_right(times, evaluation.seconds)
        hypervolume = curve[reached - 1][1] if reached else 0.0
        metrics = {"hypervolume": hypervolume, "front": float(len(archive.front))}
        rows.append(PopulationMetrics(reports, evaluation.seconds, metrics))
    return rows


def track(results: Results, tracker: Tracker) -> None:
    """Write the reports of a run to a tracker, except those that it already holds."""
    logged = tracker.begin(results)
    try:
        _write_new(results, tracker, logged)
    finally:
        tracker.end()


def _write_new(results: Results, tracker: Tracker, logged: int) -> int:
    """Write the reports after the first `logged` ones.

    Returns the number of all reports.
    """
    evaluations = evaluations_of(results)
    if len(evaluations) > logged:
        population = population_metrics(results, evaluations)
        tracker.write(evaluations[logged:], population[logged:])
    return len(evaluations)


# Tracking during a run.


class follow:
    """Update trackers during a run: ``with follow("a", tracker): mopbt.run(...)``.

    The run may also execute in another process. A log is never written twice: after a resume, the
    same code appends to it. The trackers work in a process of their own that reads the journal, so
    they neither slow the run down nor change its random numbers.

    Args:
        run: The directory of the run.
        trackers: The trackers to update.
        every: Seconds between two updates.
    """

    def __init__(self, run: Path | str, *trackers: Tracker, every: float = 2.0) -> None:
        if not trackers:
            raise ValueError(
                "follow needs at least one tracker, such as TensorBoard('logs'), got none"
            )
        if not every > 0:
            raise ValueError(f"`every` must be a number of seconds above 0, got {every!r}")
        self._arguments = cloudpickle.dumps((Path(run).absolute(), trackers, every))

    def __enter__(self) -> "follow":
        self._supervisor = Supervisor()
        self._worker = self._supervisor.spawn("mopbt.trackers.base:run_follower", {})
        self._worker.send(self._arguments)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.send(STOP)
        event = self._supervisor.receive()
        assert event is not None
        _, answer = event
        failures = json.loads(answer or b"[]")
        code = self._supervisor.reap(self._worker)
        if code or answer is None:
            failures.append(
                f"the process that follows the run died (exit code {code}); the run is not affected"
            )
        for failure in failures:
            warnings.warn(failure, stacklevel=2)


def run_follower() -> None:
    """Run the process that `follow` starts until it is stopped.

    It answers with the failures.
    """
    source, sink = open_channel()
    arguments = receive(source)
    # The process that started this one may end before it sends anything.
    if arguments is None:
        return
    run, trackers, every = cloudpickle.loads(arguments)
    follower = _Follower(run, every)
    threads = [threading.Thread(target=follower.follow, args=(tracker,)) for tracker in trackers]
    for thread in threads:
        thread.start()
    # This returns at the message to stop, and when the other process ends, however it ends.
    receive(source)
    follower.stop.set()
    for thread in threads:
        thread.join()
    with suppress(BrokenPipeError):
        send(sink, json.dumps(follower.failures).encode())


class _Follower:
    """Polls the journal of a run for several trackers."""

    def __init__(self, run: Path, every: float) -> None:
        self._run = run
        self._every = every
        self.stop = threading.Event()
        self.failures: list[str] = []

    def follow(self, tracker: Tracker) -> None:
        """Update a tracker until `stop` is set, and once more after that."""
        try:
            results = self._wait_for_run()
            if results is None:
                return
            logged = tracker.begin(results)
            try:
                self._poll(results, tracker, logged)
            finally:
                tracker.end()
        # A tracker may raise anything, and none of it may end the others.
        except Exception as error:
            self.failures.append(
                f"{type(tracker).__name__} could not follow {self._run}: "
                f"{type(error).__name__}: {error}; the run is not affected, and "
                f"track(Results.open({str(self._run)!r}), ...) logs it afterwards"
            )

    def _wait_for_run(self) -> Results | None:
        """Open the run once it has started.

        Returns None if it did not start before `stop` was set.
        """
        while True:
            stopped = self.stop.is_set()
            try:
                return Results.open(self._run)
            except MopbtError:
                if stopped:
                    return None
            self.stop.wait(self._every)

    def _poll(self, results: Results, tracker: Tracker, logged: int) -> None:
        while True:
            stopped = self.stop.is_set()
            started = time.perf_counter()
            results.refresh()
            logged = _write_new(results, tracker, logged)
            if stopped:
                return
            self.stop.wait(max(self._every, (time.perf_counter() - started) / MAX_LOAD))


# What the trackers share.


@dataclass(frozen=True)
class LogPosition:
    """The run that a directory of logs belongs to, and how many reports it holds.

    A tracker saves what it is about to write as `pending`, writes, and saves the new position. If
    it dies in between, the next one finds `pending` and removes what was written after it, so a
    report is never logged twice.
    """

    directory: Path
    key: str
    logged: int = 0
    pending: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(directory: Path, results: Results) -> "LogPosition":
        """Read the position in a directory; ValueError if it holds the log of another run."""
        key = run_key(results)
        file = directory / POSITION_FILE
        if not file.is_file():
            return LogPosition(directory, key)
        position = LogPosition(directory, **json.loads(file.read_text(encoding="utf-8")))
        if position.key != key:
            raise ValueError(
                f"{directory} holds the log of another run; use one directory for each run"
            )
        return position

    def begin_write(self, pending: Mapping[str, Any]) -> "LogPosition":
        """Save what is needed to remove the reports that are written next."""
        return self._save(replace(self, pending=pending))

    def commit(self, reports: int) -> "LogPosition":
        """Save that the log holds further reports, and that nothing is pending."""
        return self._save(replace(self, logged=self.logged + reports, pending={}))

    def _save(self, position: "LogPosition") -> "LogPosition":
        content = {"key": position.key, "logged": position.logged, "pending": position.pending}
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / POSITION_FILE, json.dumps(content).encode())
        return position


def run_name(results: Results) -> str:
    """Return the name of the run's directory, or of its task for a run in memory."""
    return results.path.name if results.path else results.problem.name


def exception_name(error: str) -> str:
    """Return the name of the exception at the end of a traceback, without its message."""
    last = error.strip().rpartition("\n")[2]
    return last.partition(":")[0].strip() or "error"


def run_key(results: Results) -> str:
    """Return a short hash that identifies a run across sessions."""
    settings = results.settings
    directory = results.path.name if results.path else ""
    algorithm = sorted(settings.algorithm.items())
    data = json.dumps([directory, results.problem.name, settings.seed, algorithm], default=str)
    return hashlib.sha256(data.encode()).hexdigest()[:10]


def import_package(name: str, extra: str) -> Any:
    """Import a module of an optional package; MissingExtra if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise MissingExtra(f"this tracker needs {package}: pip install 'mopbt[{extra}]'") from None
