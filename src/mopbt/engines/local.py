"""Jobs in this process, one at a time."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mopbt.device import assign_device, assigned_device
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.devices import assign_devices
from mopbt.engines.execution import Checksums, run_job, start_checksums
from mopbt.state import Job, Report


class LocalEngine:
    """Executes jobs in this process: the simplest engine, and the easiest to debug.

    It trains on the first accelerator, if there is one and the task may use it.
    """

    capacity = 1
    in_process = True

    def __init__(self, *, warm_bytes: int = 2**28) -> None:
        self._warm_bytes = warm_bytes

    def start(self, context: RunContext) -> None:
        """Prepare for a run."""
        self._assigned = False
        if not assigned_device() and (devices := assign_devices(context.task, "auto")):
            assign_device(devices[0].name_here)
            self._assigned = True
        self._context = context
        self._cache = ModelCache(self._warm_bytes)
        self._jobs: deque[tuple[Job, Checksums]] = deque()
        self._began = time.monotonic()

    def submit(self, jobs: Iterable[Job], checksums: Mapping[int, str]) -> None:
        """Queue jobs."""
        self._jobs.extend((job, start_checksums(job, checksums)) for job in jobs)

    def collect(self, timeout: float | None = None) -> list[Report]:
        """Execute the next job, however long it takes."""
        job, checksums = self._jobs.popleft()
        report = run_job(self._context, job, checksums, self._cache)
        return [replace(report, seconds=self.elapsed())]

    def elapsed(self) -> float:
        """Return the seconds since `start`."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Abandon queued jobs and drop the models in memory."""
        self._jobs.clear()
        self._cache = ModelCache(0)
        if self._assigned:
            assign_device("")
