"""Show the progress of a comparison."""

import math
import statistics
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from mopbt.compare.directory import Marker
from mopbt.compare.plan import ComparisonPlan, PlannedRun
from mopbt.errors import last_line

# Seconds between two lines of progress without a terminal.
LINE_INTERVAL = 10.0
# Share of a run that must be done before its duration can be estimated.
ENOUGH = 0.02


class ProgressView:
    """Show the progress of a plan as bars on a terminal, or else as lines.

    Use it as a context manager.
    """

    def __init__(
        self, plan: ComparisonPlan, finished: Mapping[PlannedRun, Marker], *, shown: bool
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._console = Console(
            stderr=True, highlight=False, markup=False, emoji=False, quiet=not shown
        )
        self._bars = Bars(
            BarColumn(16),
            TextColumn("{task.description}  {task.fields[note]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._plan = plan.runs
        self._jobs = plan.jobs
        done = [run for run in plan.runs if run in finished]
        self._durations = {run: float(finished[run]["real"]) for run in done}
        self._shares: dict[PlannedRun, float] = {}
        # When each run first reported its share, and that share.
        self._firsts: dict[PlannedRun, tuple[float, float]] = {}
        self._failed: set[PlannedRun] = set()
        # The threads of the worker pool report shares.
        self._lock = threading.RLock()
        self._began = time.monotonic()
        self._last_time = -math.inf
        self._last_line = ""
        self._total = self._bars.add_task(
            plan.scaled.name, total=len(plan.runs), completed=len(self._durations), note=""
        )
        self._rows: dict[PlannedRun, Any] = {}

    def __enter__(self) -> "ProgressView":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._bars.stop()
        if not self._console.quiet and self._line() != self._last_line:
            self.note(self._line())
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.note(
                "stopped (interrupted); nothing reported is lost: rerun the same command to resume"
            )

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, soft_wrap=True, markup=False)

    def begin(self, run: PlannedRun) -> None:
        """Show that a run has started."""
        with self._lock:
            self._shares[run] = 0.0
            self._rows[run] = self._bars.add_task(str(run), total=1.0, note="")

    def share(self, run: PlannedRun, share: float) -> None:
        """Show which share of a run is done."""
        with self._lock:
            self._shares[run] = share
            self._firsts.setdefault(run, (time.monotonic(), share))
            self._bars.update(self._rows[run], completed=share)
            self._show()

    def end(self, run: PlannedRun, answer: Mapping[str, Any]) -> None:
        """Show that a run has finished or failed."""
        with self._lock:
            del self._shares[run]
            self._bars.remove_task(self._rows.pop(run))
            if "finished" in answer:
                self._durations[run] = float(answer["finished"]["real"])
            else:
                self._failed.add(run)
                self.note(f"{run}: failed: {last_line(answer['failed'])}")
            self._show()

    def give_up(self, run: PlannedRun, why: str) -> None:
        """Show that a run will not be started."""
        self._failed.add(run)
        self.note(f"{run}: {why}")

    def _show(self) -> None:
        if self._console.quiet:
            return
        self._bars.update(self._total, completed=len(self._durations), note=self._line())
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_time >= LINE_INTERVAL:
            self._last_time = now
            self._last_line = self._line()
            self.note(self._last_line)

    def _line(self) -> str:
        from mopbt.progress_display import clock

        parts = [
            f"{len(self._durations)}/{len(self._plan)} runs",
            f"{clock(time.monotonic() - self._began)} elapsed",
        ]
        plan = [run for run in self._plan if run not in self._failed]
        left = seconds_left(plan, self._durations, self._shares, self._estimates(), jobs=self._jobs)
        if left:
            parts.append(f"{clock(left)} left")
        if self._failed:
            parts.append(f"{len(self._failed)} failed")
        return " | ".join(parts)

    def _estimates(self) -> dict[PlannedRun, float]:
        """Estimate the duration of unfinished runs from their progress so far.

        What a run did in an earlier session does not count, because its time is unknown.
        """
        now = time.monotonic()
        estimates = {}
        for run, share in self._shares.items():
            if run in self._firsts:
                first_time, first_share = self._firsts[run]
                if share - first_share >= ENOUGH:
                    estimates[run] = (now - first_time) / (share - first_share)
        return estimates


def seconds_left(
    plan: Iterable[PlannedRun],
    duration: Mapping[PlannedRun, float],
    shares: Mapping[PlannedRun, float],
    paces: Mapping[PlannedRun, float] | None = None,
    *,
    jobs: int = 1,
) -> float:
    """Estimate the seconds left from the most similar runs; 0 if nothing is known yet.

    Args:
        plan: All runs.
        duration: Seconds of the finished runs.
        shares: Share that is done of each running run.
        paces: Estimated durations of running runs.
        jobs: Number of runs in parallel.
    """
    seen: dict[tuple[str, ...], list[float]] = {}
    for run, seconds in {**(paces or {}), **duration}.items():
        for key in _similarity_keys(run):
            seen.setdefault(key, []).append(seconds)
    left = []
    for run in plan:
        if run not in duration:
            similar = next((seen[key] for key in _similarity_keys(run) if key in seen), [0.0])
            left.append(statistics.fmean(similar) * (1 - shares.get(run, 0.0)))
    # A single run cannot be split among jobs.
    return max(sum(left) / jobs, max(left, default=0.0))


def _similarity_keys(run: PlannedRun) -> tuple[tuple[str, ...], ...]:
    """Return the groups a run belongs to, from the most to the least similar runs."""
    return ((run.task, run.algorithm), (run.task,), ())
