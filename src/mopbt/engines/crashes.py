"""What becomes of the jobs of a worker that died."""

from collections.abc import Iterable, Sequence

from mopbt.engines.execution import Stack
from mopbt.state import Report


class CrashTracker:
    """Counts how often workers died with each job, and decides which jobs to repeat.

    A worker trains a job while it still saves the previous one, so a death does not show which
    job caused it. Every job that the worker held becomes a suspect. Suspects are repeated one by
    one, each alone in its worker, so that the next death has a single cause.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._crashes: dict[int, int] = {}
        self._timeouts: dict[int, int] = {}

    def is_suspect(self, stack: Stack) -> bool:
        """Return whether a worker died while it held one of the jobs."""
        return any(job.id in self._crashes for job, _ in stack)

    def record(
        self, stacks: Iterable[Stack], who: str, reason: str
    ) -> tuple[list[Stack], list[Report]]:
        """Record the death of a worker that held `stacks`.

        Args:
            stacks: What the worker held.
            who: What died, such as "worker process", for the error of a failed job.
            reason: How it died, such as "exit code -9".

        Returns:
            The stacks to repeat, of one job each, and the reports of jobs that have failed.
        """
        held = [member for stack in stacks for member in stack]
        for job, _ in held:
            self._crashes[job.id] = self._crashes.get(job.id, 0) + 1
        if len(held) == 1:
            id = held[0][0].id
            count = self._crashes[id]
            if count > self._retries:
                times = "once" if count == 1 else f"{count} times"
                error = f"the {who} died {times} while it executed this job ({reason})"
                return [], [Report(id, error=error)]
        return [[member] for member in held], []

    def record_timeout(
        self, stacks: Sequence[Stack], limit: float
    ) -> tuple[list[Stack], list[Report]]:
        """Record that the first of `stacks` took longer than `limit` seconds per interval.

        Its jobs are repeated one by one. A job that takes too long alone is repeated once. The
        other stacks were waiting behind it.

        Returns:
            The stacks to repeat, and the reports of jobs that have failed.
        """
        slow, *waiting = stacks
        for job, _ in slow:
            self._crashes[job.id] = self._crashes.get(job.id, 0) + 1
            self._timeouts[job.id] = self._timeouts.get(job.id, 0) + 1
        id = slow[0][0].id
        if len(slow) == 1 and self._timeouts[id] > min(self._retries, 1):
            times = "once" if self._timeouts[id] == 1 else f"{self._timeouts[id]} times"
            error = (
                f"the interval took longer than its time limit of {limit:g} s, {times}; raise "
                f"`timeout`, or find out why training hangs"
            )
            return waiting, [Report(id, error=error)]
        return [*([member] for member in slow), *waiting], []
