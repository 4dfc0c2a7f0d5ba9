"""A run as trackers see it, from the journal alone, while it goes on or afterwards.

The population is one log; beside it stands one for each *branch*, which is a trial from its start, or from an exploit, to its next
exploit. So an exploit is seen as what it is: a fork, where a new branch begins at the donor's scores. A run knows nothing of
trackers: another process reads the journal, and if a tracker fails, the run goes on.
"""

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import cloudpickle

from mopbt.archive import Archive, Entry
from mopbt.errors import MopbtError
from mopbt.objectives import signed
from mopbt.results import Results

SHARE = 0.05  # of a core's time at most goes into looking at a journal


@dataclass(frozen=True)
class Branch:
    """A trial from its start, or from an exploit, to its next exploit."""

    id: int  # the first job of the branch
    trial: int
    number: int  # of the trial's branches, from 1
    start: int | None  # the checkpoint that it began with; None: fresh weights
    fork: "Evaluation | None" = (
        None  # the evaluation of that checkpoint, where it is another branch's
    )

    @property
    def name(self) -> str:
        """Return what the branch is called: ``trial-007``, and after its first exploit ``trial-007.2``."""
        return f"trial-{self.trial:03d}" + (f".{self.number}" if self.number > 1 else "")

    @property
    def origin(self) -> str:
        """Return in words where the branch comes from."""
        return (
            f"forked from {self.fork.branch.name} at step {self.fork.step}"
            if self.fork
            else "fresh weights"
        )


@dataclass(frozen=True)
class Evaluation:
    """One report of a run, with the branch that it belongs to."""

    job: int
    branch: Branch = field(repr=False)
    step: int
    hp: Mapping[str, Any]
    scores: Mapping[str, float]  # empty where the interval failed
    violation: float
    seconds: float
    error: str

    @property
    def first(self) -> bool:
        """Tell whether its branch begins with it."""
        return self.job == self.branch.id

    @property
    def numbers(self) -> dict[str, float]:
        """Return the hyperparameters that are numbers."""
        return {
            name: float(value) for name, value in self.hp.items() if isinstance(value, int | float)
        }


@dataclass(frozen=True)
class Standing:
    """Where the population stood after so many reports."""

    reports: int
    seconds: float
    measures: Mapping[str, float]


class Tracker(Protocol):
    """A log that a run can be written to, piece by piece."""

    def begin(self, results: Results) -> int:
        """Open the log of a run, and return how many of its reports are in it already."""

    def write(self, evaluations: Sequence[Evaluation], standings: Sequence[Standing]) -> None:
        """Add what has come since."""

    def end(self) -> None:
        """Close the log."""


def evaluations_of(results: Results) -> list[Evaluation]:
    """Return all reports of a run in the order in which they came, each with its branch."""
    found: dict[int, Evaluation] = {}
    current: dict[int, Branch] = {}
    for record in results.records():
        branch = _branch_of(record, current.get(record["trial"]), found)
        current[branch.trial] = branch
        values, scores = (_part(record, prefix) for prefix in ("config.", "score."))
        rest = {name: record[name] for name in ("violation", "seconds", "error")}
        found[record["job"]] = Evaluation(
            record["job"], branch, record["end"], values, scores, **rest
        )
    return sorted(found.values(), key=lambda e: (e.seconds, e.job))


def _part(record: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value
        for name, value in record.items()
        if name.startswith(prefix)
    }


def _branch_of(
    record: Mapping[str, Any], current: Branch | None, found: Mapping[int, Evaluation]
) -> Branch:
    """Return the branch that a job goes on with, or the one that begins with it."""
    start = record["start"]
    if current is not None:
        again = start == current.start  # its first interval failed and is tried again
        if again or (start in found and found[start].branch == current):
            return current
    number = 1 if current is None else current.number + 1
    return Branch(record["job"], record["trial"], number, start, found.get(start))


def standings_of(results: Results, evaluations: Sequence[Evaluation]) -> list[Standing]:
    """Return where the population stood after each report: the hypervolume as far as it can be told now, and the front's size."""
    curve = results.hypervolume_curve() if len(results.front()) else []
    times = [seconds for seconds, _ in curve]
    archive, standings = Archive(), []
    for reports, evaluation in enumerate(evaluations, 1):
        entry = _entry(results, evaluation)
        if entry is not None:
            archive.enter(entry)
        reached = bisect_right(times, evaluation.seconds)
        measures = {
            "hypervolume": curve[reached - 1][1] if reached else 0.0,
            "front": float(len(archive.front)),
        }
        standings.append(Standing(reports, evaluation.seconds, measures))
    return standings


def _entry(results: Results, evaluation: Evaluation) -> Entry | None:
    if not evaluation.scores:
        return None
    objectives = signed(results.problem.objectives, evaluation.scores)
    is_sound = all(abs(value) < float("inf") for value in (*objectives, evaluation.violation))
    return Entry(evaluation.job, objectives, evaluation.violation) if is_sound else None


def track(results: Results, tracker: Tracker) -> None:
    """Write a run, as far as it has come, to a tracker."""
    logged = tracker.begin(results)
    try:
        _write(results, tracker, logged)
    finally:
        tracker.end()


def _write(results: Results, tracker: Tracker, logged: int) -> int:
    evaluations = evaluations_of(results)
    if len(evaluations) > logged:
        tracker.write(evaluations[logged:], standings_of(results, evaluations)[logged:])
    return len(evaluations)


class follow:
    """Keep trackers up to date with a run that goes on in this process or another: ``with follow("runs/a", tracker): ...``.

    What a log holds already is not written again, so that a run that is resumed is tracked by the same lines. The work is done in
    a process of its own, which reads the journal: it takes no time from the run, and draws none of its random numbers.
    """

    def __init__(self, run: Path | str, *trackers: Tracker, every: float = 2.0) -> None:
        if not trackers:
            raise ValueError(
                "follow needs at least one tracker, such as TensorBoard('logs'), got none"
            )
        if not every > 0:
            raise ValueError(f"`every` must be a number of seconds above 0, got {every!r}")
        self._order = cloudpickle.dumps((Path(run).absolute(), trackers, every))

    def __enter__(self) -> "follow":
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        program = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from mopbt.trackers import base; base.attend()"
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "start_new_session": True,
        }  # Ctrl-C is ours
        self._process = subprocess.Popen([sys.executable, "-c", program, path], **pipes)
        self._tell(len(self._order).to_bytes(8, "little") + self._order)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        said, _ = self._process.communicate()  # closes its input, which tells it to come to an end
        failures = json.loads(said or b"[]")
        if self._process.returncode:
            failures.append(
                f"the process that follows the run died (exit code {self._process.returncode}); the run itself is whole"
            )
        for failure in failures:
            warnings.warn(failure, stacklevel=2)

    def _tell(self, message: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead, as will be seen at the end
            self._process.stdin.write(message)
            self._process.stdin.flush()


def attend() -> None:
    """Follow a run, in a process that `follow` started, until its input ends; say what went wrong as JSON."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a tracker prints is no answer
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    run, trackers, every = cloudpickle.loads(sys.stdin.buffer.read(size))
    attendant = _Attendant(run, every)
    threads = [threading.Thread(target=attendant.follow, args=(tracker,)) for tracker in trackers]
    for thread in threads:
        thread.start()
    sys.stdin.buffer.read()  # returns when the run's process closes it, or is gone
    attendant.stop.set()
    for thread in threads:
        thread.join()
    with suppress(BrokenPipeError):
        json.dump(attendant.failures, answer)
        answer.close()


class _Attendant:
    """Looks at a run's journal again and again, for several trackers."""

    def __init__(self, run: Path, every: float) -> None:
        self._run, self._every = run, every
        self.stop = threading.Event()
        self.failures: list[str] = []

    def follow(self, tracker: Tracker) -> None:
        """Look until told to stop, and then once more."""
        try:
            results = self._opened()
            if results is None:
                return
            logged = tracker.begin(results)
            try:
                self._look(results, tracker, logged)
            finally:
                tracker.end()
        except Exception as error:  # whatever goes wrong in a tracker: the run is worth more
            self.failures.append(
                f"{type(tracker).__name__} could not follow {self._run}: {type(error).__name__}: {error}; the run itself is whole: "
                f"track(Results.open({str(self._run)!r}), ...) writes it afterwards"
            )

    def _opened(self) -> Results | None:
        while True:
            stopped = self.stop.is_set()
            try:
                return Results.open(self._run)
            except MopbtError:  # it has not begun
                if stopped:
                    return None
            self.stop.wait(self._every)

    def _look(self, results: Results, tracker: Tracker, logged: int) -> None:
        while True:
            stopped = self.stop.is_set()
            began = time.perf_counter()
            results.refresh()
            logged = _write(results, tracker, logged)
            if stopped:
                return
            self.stop.wait(max(self._every, (time.perf_counter() - began) / SHARE))
