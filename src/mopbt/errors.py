"""Exceptions of the library.

Wrong arguments raise plain ``ValueError`` or ``TypeError``. Everything else is a ``MopbtError``::

    MopbtError
    ├── TaskError                 the task broke its contract; the run stops, nothing is lost
    │   ├── UnreadHyperparameter  an interval of training never read a hyperparameter
    │   ├── UnknownHyperparameter training asked for a hyperparameter that the space lacks
    │   ├── CannotStack           a model cannot be trained in a stack
    │   ├── MissingScore          `evaluate` (or `report`) left out an objective or a constraint
    │   └── TaskFailed            too many intervals failed in a row
    ├── StoreError                a problem with the run's directory
    │   ├── RunLocked             another process is running it
    │   ├── RunMismatch           the directory holds a run with other settings
    │   ├── IncompatibleRun       the directory has a format that this version cannot read
    │   ├── CorruptJournal        a line of the journal is damaged
    │   ├── CorruptCheckpoint     a checkpoint is missing or damaged
    │   └── StorageFull           the disk is full
    ├── WorkerFailed              worker processes cannot be started
    ├── Stalled                   a scheduler neither orders jobs nor is done
    ├── MissingExtra              an optional package is not installed
    └── DataMissing               a data set is missing or incomplete

`StopRun` is not an error: a callback raises it to end a run.
"""

import re

_PACKAGE = __file__.rpartition("/")[0]


def last_line(traceback: str) -> str:
    """Return the first line of a traceback's message, with its place in the task.

    Frames of this package are skipped, because they do not help the author of the task.
    """
    unstripped = traceback.strip().splitlines()
    lines = [line.strip() for line in unstripped]
    if not lines:
        return "an error without a message"
    # The message follows the last frame. Libraries in C++ append a stack of their own to it.
    frames = [i for i, line in enumerate(unstripped) if line.startswith('  File "')]
    after = unstripped[frames[-1] :] if frames else unstripped[-1:]
    message = next((line for line in after if not line.startswith(" ")), lines[-1])
    place = ""
    for line in lines:
        match = re.match(r'File "(?:.*/)?([^"/]+)", line (\d+)', line)
        if match and not line.startswith(f'File "{_PACKAGE}/'):
            place = f" ({match[1]}, line {match[2]})"
    return message + place


class MopbtError(Exception):
    """Base class of all errors of this library, except for wrong arguments."""


class StopRun(Exception):
    """A callback raises this to end a run cleanly; the same call resumes the run."""


class TaskError(MopbtError):
    """The task broke its contract."""


class UnreadHyperparameter(TaskError):
    """An interval of training never read a hyperparameter."""


class UnknownHyperparameter(TaskError, KeyError):
    """Training asked for a hyperparameter that the space does not have.

    It is also a KeyError, as for any mapping.
    """

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class CannotStack(TaskError):
    """A model or a loss cannot be trained in a stack; other engines can train it."""


class MissingScore(TaskError):
    """The task did not measure an objective or the metric of a constraint."""


class TaskFailed(TaskError):
    """The task's own code failed so often that the run was stopped.

    The message ends with the last line of the traceback, so that the command line can report the
    cause without showing code. The complete traceback is a note of this error.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(f"{message} {last_line(traceback)}" if traceback else message)
        if traceback:
            self.add_note(traceback)


class StoreError(MopbtError):
    """There is a problem with the run's directory."""


class RunLocked(StoreError):
    """Another process is running this run."""


class RunMismatch(StoreError):
    """The directory holds a run with other settings."""


class IncompatibleRun(StoreError):
    """The directory was written in a format that this version cannot read."""


class CorruptJournal(StoreError):
    """A line of the journal is damaged."""


class CorruptCheckpoint(StoreError):
    """A checkpoint is missing or damaged."""


class StorageFull(StoreError):
    """The disk is full."""


class WorkerFailed(MopbtError):
    """Worker processes cannot be started."""


class Stalled(MopbtError):
    """A scheduler neither orders jobs nor is done."""


class MissingExtra(MopbtError, ImportError):
    """An optional package is not installed."""


class DataMissing(MopbtError):
    """A data set is missing or incomplete; the message says which files go where."""


def all_errors(base: type[MopbtError] = MopbtError) -> list[type[MopbtError]]:
    """Return the classes of the tree below a class, and that class."""
    below = [kind for child in base.__subclasses__() for kind in all_errors(child)]
    return [base, *below]
