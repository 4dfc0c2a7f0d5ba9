"""Jobs in this process, one at a time."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mopbt.engines.base import ModelCache, RunContext, run_job
from mopbt.state import Job, Report


class LocalEngine:
    """Carries out jobs in this process: the simplest engine, and the easiest to debug with."""

    capacity = 1
    in_process = True  # checkpoints need not be seen by other processes

    def __init__(self, *, warm_bytes: int = 2**28) -> None:
        self._warm_bytes = warm_bytes

    def start(self, work: RunContext) -> None:
        """Get ready for a run."""
        self._work = work
        self._warm = ModelCache(self._warm_bytes)
        self._jobs: deque[tuple[Job, str]] = deque()
        self._began = time.monotonic()

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Put jobs in line."""
        self._jobs.extend(
            (job, checksums.get(job.start, "") if job.start is not None else "") for job in jobs
        )

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Carry out the next job."""
        job, checksum = self._jobs.popleft()
        report = run_job(self._work, job, checksum, self._warm)
        return [replace(report, seconds=self.elapsed())]

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Forget the models in memory."""
        self._jobs.clear()
        self._warm = ModelCache(0)
