"""What can go wrong while a run goes on.

Wrong arguments are plain ``ValueError`` or ``TypeError``; everything else is below ``MopbtError``::

    MopbtError
    ├── TaskError                 the task broke its contract; the run stops, nothing is lost
    │   ├── UnreadHyperparameter  a hyperparameter that an interval of training never read
    │   ├── UnknownHyperparameter a hyperparameter that training asked for and the space does not have
    │   ├── CannotStack           a model that cannot be trained as one of a stack
    │   ├── MissingScore          `evaluate` (or `report`) left out an objective or a constraint
    │   └── TaskFailed            so many intervals failed in a row that going on makes no sense
    ├── StoreError                the run's directory
    │   ├── RunLocked             another process drives this run
    │   ├── RunMismatch           the directory holds a run with other settings
    │   ├── IncompatibleRun       the directory was written in a format this version does not read
    │   ├── CorruptJournal        a line of the journal is damaged
    │   ├── CorruptCheckpoint     a checkpoint is missing or damaged
    │   └── StorageFull           the disk is full
    ├── WorkerFailed              worker processes cannot be started
    ├── Stalled                   a scheduler neither orders work nor is done
    ├── MissingExtra              an optional package is not installed
    └── DataMissing               a data set is not there, or not whole
"""

import re

_HERE = __file__.rpartition("/")[0]


def last_line(traceback: str) -> str:
    """Return what a traceback comes to: its last line, and where in the task's own code (not in ours) it comes from."""
    lines = [line.strip() for line in traceback.strip().splitlines()] or [
        "an error without a message"
    ]
    others = [line for line in lines if not line.startswith(f'File "{_HERE}/')]
    places = [
        match
        for line in others
        if (match := re.match(r'File "(?:.*/)?([^"/]+)", line (\d+)', line))
    ]
    return lines[-1] + (f" ({places[-1][1]}, line {places[-1][2]})" if places else "")


class MopbtError(Exception):
    """The root of all errors of this library that are not wrong arguments."""


class TaskError(MopbtError):
    """The task broke its contract."""


class UnreadHyperparameter(TaskError):
    """A hyperparameter that an interval of training never read."""


class UnknownHyperparameter(TaskError, KeyError):
    """A hyperparameter that training asked for and the space does not have; also a KeyError, as it is in any mapping."""

    __str__ = Exception.__str__  # a KeyError would show the message in quotes


class CannotStack(TaskError):
    """A model or a loss that cannot be trained as one of a stack; another engine will do."""


class MissingScore(TaskError):
    """An objective or a constraint that the task did not measure."""


class TaskFailed(TaskError):
    """The task's own code failed so that going on makes no sense; its traceback is a note of this error.

    The message has the traceback's last line, so that a command line can say what is wrong without showing code.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(f"{message} {last_line(traceback)}" if traceback else message)
        if traceback:
            self.add_note(traceback)


class StoreError(MopbtError):
    """Something is wrong with the run's directory."""


class RunLocked(StoreError):
    """Another process drives this run."""


class RunMismatch(StoreError):
    """The directory holds a run with other settings."""


class IncompatibleRun(StoreError):
    """The directory was written in a format that this version does not read."""


class CorruptJournal(StoreError):
    """A line of the journal is damaged."""


class CorruptCheckpoint(StoreError):
    """A checkpoint is missing or damaged."""


class StorageFull(StoreError):
    """The disk is full."""


class WorkerFailed(MopbtError):
    """Worker processes cannot be started."""


class Stalled(MopbtError):
    """A scheduler neither orders work nor is done."""


class MissingExtra(MopbtError, ImportError):
    """An optional package is not installed."""


class DataMissing(MopbtError):
    """A data set that is not there, or not whole; the message says what to put where."""
