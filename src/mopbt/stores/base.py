"""The `Store` protocol: a journal of exchanges, and checkpoints by job id."""

import hashlib
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, TypeVar, runtime_checkable

from mopbt.errors import CorruptCheckpoint, StoreError
from mopbt.state import Job, Report

# Seconds between two attempts to reach a storage.
RETRY_PAUSES = (0.05, 0.25, 1.0)
# The name of the record in a storage that says which run it belongs to.
OWNER = "owner.json"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A line of the journal: jobs, reports, an extension, departures, or an end.

    The end is that of a session.

    The end of a session records its seconds of work in `stopped`, and `done` if nothing was left
    to do. An extension holds the new total of `steps`, of the `population`, or of both. `left` are
    trials that will not be trained again, because something other than the scheduler ended them.
    """

    jobs: tuple[Job, ...] = ()
    reports: tuple[Report, ...] = ()
    stopped: float = 0.0
    done: bool = False
    extend: Mapping[str, int] = field(default_factory=dict)
    left: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Convert the exchange to a JSON object."""
        if self.extend:
            return {"extend": dict(self.extend)}
        if self.left:
            return {"left": list(self.left)}
        if self.stopped or self.done:
            end: dict[str, Any] = {"stopped": round(self.stopped, 6)}
            if self.done:
                end["done"] = True
            return end
        if self.jobs:
            return {"jobs": [job.to_json() for job in self.jobs]}
        return {"reports": [report.to_json() for report in self.reports]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Exchange":
        """Read an exchange from its JSON object."""
        jobs = tuple(Job.from_json(job) for job in data.get("jobs", ()))
        reports = tuple(Report.from_json(report) for report in data.get("reports", ()))
        stopped = data.get("stopped", 0.0)
        done = data.get("done", False)
        extend = dict(data.get("extend", {}))
        return Exchange(jobs, reports, stopped, done, extend, tuple(data.get("left", ())))


class Checkpoints(Protocol):
    """Immutable bytes by job id.

    An engine with worker processes sends each of them a pickled copy.
    """

    def save(self, id: int, data: bytes) -> str:
        """Make the checkpoint of a job durable and return its checksum.

        A storage that cannot be written is a StoreError, which stops the run instead of failing a
        member.
        """

    def load(self, id: int, checksum: str) -> bytes:
        """Read a checkpoint; CorruptCheckpoint if it is missing or its checksum is wrong.

        An unreadable storage is a StoreError, which stops the run instead of failing a member.
        """

    def drop(self, ids: Iterable[int]) -> None:
        """Remove checkpoints; ids without one are ignored."""

    def kept(self) -> frozenset[int]:
        """Return the ids of all checkpoints."""

    def owner(self) -> bytes | None:
        """Return the record of the run that the storage belongs to; None if there is none."""

    def record_owner(self, record: bytes, *, replace: bool = False) -> None:
        """Record the owner of the storage, unless there is one.

        With `replace`, record it in any case.

        It is exclusive where the storage can: of two runs that record themselves at the same time,
        both read the same record afterwards.
        """


@runtime_checkable
class CheckpointFiles(Protocol):
    """Checkpoints whose writers leave files behind if they are killed."""

    def remove_leftovers(self, process: int | None = None) -> None:
        """Remove the temporary files of a process of this machine, or of all processes."""


class PendingCheckpoint(Protocol):
    """A checkpoint that is being written: a binary file that can be committed."""

    @property
    def size(self) -> int:
        """Return how many bytes were written."""

    def write(self, data: Any, /) -> int | None:
        """Write bytes at the end."""

    def commit(self) -> str:
        """Make the checkpoint durable and return its checksum."""

    def discard(self) -> None:
        """Remove what was written."""


@runtime_checkable
class StreamedCheckpoints(Protocol):
    """Checkpoints that can be written and read in parts, without all bytes in memory."""

    def create(self, id: int) -> PendingCheckpoint:
        """Start to write the checkpoint of a job."""

    def open(self, id: int, checksum: str) -> IO[bytes]:
        """Open a checkpoint whose checksum is right; errors are those of `load`."""


@runtime_checkable
class ReducibleCheckpoints(Protocol):
    """Checkpoints that can lose what only further training needs.

    A reduced checkpoint is a model. For training it counts as missing.
    """

    def size_of(self, id: int) -> int:
        """Return the bytes of a whole checkpoint; 0 if it is missing or reduced."""

    def reduce(self, id: int, checksum: str, rewrite: Callable[[IO[bytes], Any], None]) -> None:
        """Replace a checkpoint by what `rewrite` makes of it.

        The arguments of `rewrite` are a file to read and one to write.
        """

    def open_model(self, id: int, checksum: str) -> IO[bytes]:
        """Open a checkpoint, whether it is reduced or not; errors are those of `load`."""

    def reduced_checksum(self, id: int) -> str:
        """Return the checksum of a reduced checkpoint.

        It is empty if the checkpoint is not reduced.
        """


@runtime_checkable
class InspectableCheckpoints(Protocol):
    """Checkpoints whose checksums can be found although their reports are lost."""

    def stored_checksum(self, id: int) -> str:
        """Return the checksum of a whole checkpoint as it is stored.

        It is empty if the checkpoint is missing.
        """


class Store(Protocol):
    """The record of a run: its jobs and reports in order, and its checkpoints."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return the run's checkpoints."""

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Yield the lines of the journal in their JSON form."""

    def read(self) -> tuple[Exchange, ...]:
        """Return all exchanges so far."""

    def append(self, exchange: Exchange) -> None:
        """Write an exchange; it is durable when this returns."""

    def mark(self) -> int:
        """Return the current end of the journal, for `rewind`."""

    def rewind(self, mark: int, then: Exchange | None = None) -> None:
        """Replace all exchanges after a mark by another one, in one step, or remove them."""

    def close(self) -> None:
        """Release the run, so that another process can execute it."""


def checksum_of(data: bytes) -> str:
    """Return the checksum of a checkpoint."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def load_model(checkpoints: Checkpoints, id: int, checksum: str) -> bytes:
    """Read a checkpoint, whether it is reduced or not."""
    if not isinstance(checkpoints, ReducibleCheckpoints):
        return checkpoints.load(id, checksum)
    with checkpoints.open_model(id, checksum) as file:
        return file.read()


def check_model(checkpoints: Checkpoints, id: int, checksum: str) -> None:
    """Raise CorruptCheckpoint if a checkpoint, reduced or not, is missing or damaged."""
    if isinstance(checkpoints, ReducibleCheckpoints):
        checkpoints.open_model(id, checksum).close()
    else:
        checkpoints.load(id, checksum)


class Hashing(io.RawIOBase):
    """A file to write that computes the checksum of what is written."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self._write = write
        self._hash = hashlib.blake2b(digest_size=16)
        self.size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes at the end."""
        view = memoryview(data).cast("B")
        self._write(view)
        self._hash.update(view)
        self.size += len(view)
        return len(view)

    @property
    def checksum(self) -> str:
        """Return the checksum of all that was written."""
        return self._hash.hexdigest()


def checksum_of_file(file: IO[bytes]) -> str:
    """Return the checksum of a whole file, and go back to its begin."""
    file.seek(0)
    found = hashlib.blake2b(digest_size=16)
    while data := file.read(2**22):
        found.update(data)
    file.seek(0)
    return found.hexdigest()


def has_checksum(file: IO[bytes], checksum: str) -> bool:
    """Return whether a file has a checksum, and go back to its begin."""
    return checksum_of_file(file) == checksum


def with_retries(action: str, attempt: Callable[[], Answer]) -> Answer:
    """Reach a storage in a few attempts.

    FileNotFoundError and our own errors pass immediately.

    Any other error may be transient, such as a lost connection, and says nothing about a
    checkpoint. If it persists, it is a StoreError, which stops the run: a failed interval would
    change the result.
    """
    cause: Exception | None = None
    for pause in (*RETRY_PAUSES, 0.0):
        try:
            return attempt()
        except (FileNotFoundError, StoreError):
            raise
        except Exception as error:
            cause = error
            time.sleep(pause)
    raise StoreError(
        f"cannot {action} after {len(RETRY_PAUSES) + 1} attempts "
        f"({type(cause).__name__}: {cause}); nothing reported is lost: restore access to it, then "
        "rerun to resume"
    ) from cause


def read_with_retries(place: object, read: Callable[[], bytes]) -> bytes | None:
    """Read a file of a storage in a few attempts; None if it does not exist."""
    try:
        return with_retries(f"read {place}", read)
    except FileNotFoundError:
        return None


def verify_checkpoint(place: object, id: int, data: bytes | None, checksum: str) -> bytes:
    """Return the bytes of a checkpoint, or raise CorruptCheckpoint with the remedy.

    Args:
        place: The file or URL of the checkpoint.
        id: The job that wrote it.
        data: The bytes that were read; None if nothing was found.
        checksum: The checksum that the journal records.
    """
    if data is None:
        raise missing_checkpoint(place, id)
    if checksum_of(data) != checksum:
        raise damaged_checkpoint(place, id)
    return data


def missing_checkpoint(place: object, id: int) -> CorruptCheckpoint:
    """Return the error for a checkpoint that does not exist."""
    return CorruptCheckpoint(
        f"checkpoint {place} does not exist: its model left the front, or no models are kept "
        "(a comparison without `keep_models`), or the file was deleted; read the front again, "
        f"and if {id} is still on it, {_remedy(id)}"
    )


def damaged_checkpoint(place: object, id: int) -> CorruptCheckpoint:
    """Return the error for a checkpoint whose checksum is wrong."""
    return CorruptCheckpoint(
        f"checkpoint {place} is damaged: its checksum differs from the one in the journal; "
        f"{_remedy(id)}"
    )


def _remedy(id: int) -> str:
    return (
        "restore a copy, or train the model again with "
        f"`mopbt replay RUN {id} --export model.safetensors`"
    )
