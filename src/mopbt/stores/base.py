"""The `Store` protocol: a journal of exchanges, and checkpoints named by the jobs that wrote them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mopbt.errors import CorruptCheckpoint
from mopbt.state import Job, Report


@dataclass(frozen=True, slots=True)
class Exchange:
    """One line of the journal: jobs that were ordered together, reports that came together, or when a session ended."""

    jobs: tuple[Job, ...] = ()
    reports: tuple[Report, ...] = ()
    stopped: float = 0.0  # seconds of work when a session ended
    done: bool = False  # nothing was left to do then

    def to_json(self) -> dict[str, Any]:
        """Return the exchange as a JSON object."""
        if self.stopped or self.done:
            return {"stopped": round(self.stopped, 6)} | ({"done": True} if self.done else {})
        if self.jobs:
            return {"jobs": [job.to_json() for job in self.jobs]}
        return {"reports": [report.to_json() for report in self.reports]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Exchange":
        """Read an exchange back."""
        jobs = tuple(Job.from_json(job) for job in data.get("jobs", ()))
        reports = tuple(Report.from_json(report) for report in data.get("reports", ()))
        return Exchange(jobs, reports, data.get("stopped", 0.0), data.get("done", False))


class Checkpoints(Protocol):
    """Immutable bytes by job id. Worker processes get a pickled copy where the engine has workers."""

    def save(self, id: int, data: bytes) -> str:
        """Make bytes durable under a job's id and return their checksum."""

    def load(self, id: int, checksum: str) -> bytes:
        """Return the bytes, or raise CorruptCheckpoint if they are gone or do not fit the checksum."""

    def drop(self, ids: Iterable[int]) -> None:
        """Forget these; ids that are not there are passed over."""

    def kept(self) -> frozenset[int]:
        """Return the ids that are there."""


class Store(Protocol):
    """The truth of a run: what was ordered and what was reported, in order."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return the run's checkpoints."""

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Yield the lines of the journal in their JSON form."""

    def read(self) -> tuple[Exchange, ...]:
        """Return all exchanges so far."""

    def append(self, exchange: Exchange) -> None:
        """Make an exchange durable; when this returns, it has happened."""

    def mark(self) -> int:
        """Return where the journal ends now."""

    def rewind(self, mark: int) -> None:
        """Take back all exchanges since a mark: they have not happened."""

    def close(self) -> None:
        """Let others drive the run."""


def checksum_of(data: bytes) -> str:
    """Return the checksum of a checkpoint."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def checked(place: object, id: int, data: bytes | None, checksum: str) -> bytes:
    """Return the bytes that were found at the place of a job's checkpoint, or raise CorruptCheckpoint with what helps."""
    again = f"put back a copy, or train the model again with `mopbt replay RUN {id} --export model.safetensors`"
    if data is None:
        raise CorruptCheckpoint(
            f"checkpoint {place} is not there: its model left the front, or none are kept (a comparison without `keep_models`), or "
            f"somebody removed it; read the front again, and where it still has {id}, {again}"
        )
    if checksum_of(data) != checksum:
        raise CorruptCheckpoint(
            f"checkpoint {place} is damaged: its bytes do not fit the checksum in the journal; {again}"
        )
    return data
