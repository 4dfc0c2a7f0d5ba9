"""Show and record the progress of a comparison."""

import datetime
import json
import math
import platform
import re
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from mopbt.compare.directory import Marker, read_about
from mopbt.compare.plan import PlannedRun
from mopbt.engines.pool import available_cores
from mopbt.errors import last_line
from mopbt.filesystem import write_atomically
from mopbt.version import __version__

# Seconds between two lines of progress without a terminal.
LINE_INTERVAL = 10.0
# Share of a run that must be done before its duration can be estimated.
ENOUGH = 0.02
PACKAGES = ("numpy", "moocore", "torch", "botorch", "scikit-learn")


class ProgressView:
    """Show the progress of a plan as bars on a terminal, or else as lines.

    Use it as a context manager.
    """

    def __init__(
        self,
        name: str,
        plan: Sequence[PlannedRun],
        finished: Mapping[PlannedRun, Marker],
        jobs: int,
        *,
        shown: bool,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True, highlight=False, quiet=not shown)
        self._bars = Bars(
            BarColumn(16),
            TextColumn("{task.description}  {task.fields[note]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._plan = plan
        self._jobs = jobs
        self._durations = {run: float(finished[run]["real"]) for run in plan if run in finished}
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
            name, total=len(plan), completed=len(self._durations), note=""
        )
        self._rows: dict[PlannedRun, Any] = {}

    def __enter__(self) -> "ProgressView":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._bars.stop()
        if self._line() != self._last_line:
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


class Record:
    """Write about.json: commands, machine, versions, times and measurements."""

    def __init__(
        self,
        out: Path,
        name: str,
        scale: str | None,
        jobs: int,
        finished: Mapping[PlannedRun, Marker],
    ) -> None:
        about = read_about(out)
        self.tasks: dict[str, Any] = about.get("tasks", {})
        # Failures of the last session, with their tracebacks, by run.
        self.failures: dict[str, str] = {}
        self._earlier: dict[str, Any] = about.get("taken_over", {})
        self._copied = dict(self._earlier)
        self._head = {"experiment": name, "scale": scale}
        self._sessions: list[dict[str, Any]] = about.get("sessions", [])
        self._began = time.monotonic()
        self._sessions.append(
            {
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "jobs": jobs,
                "machine": _machine(),
                "versions": _versions(),
            }
        )
        self.write(out, finished)

    def record_copies(self, counts: Mapping[Path, int]) -> None:
        """Record how many runs were copied from which comparisons, and where those ran."""
        for place, runs in counts.items():
            earlier = self._earlier.get(place.name, {}).get("runs", 0)
            sessions = [
                {key: session[key] for key in ("machine", "versions")}
                for session in read_about(place).get("sessions", [])
            ]
            self._copied[place.name] = {"runs": earlier + runs, "sessions": sessions}

    def write(self, out: Path, finished: Mapping[PlannedRun, Marker]) -> None:
        """Write about.json."""
        self._sessions[-1]["seconds"] = round(time.monotonic() - self._began, 3)
        runs = {}
        for run, marker in finished.items():
            brief = {key: value for key, value in marker.items() if key != "order"}
            runs[str(run.directory.relative_to("runs"))] = brief
        about = {
            **self._head,
            "seconds": round(sum(session["seconds"] for session in self._sessions), 3),
            "tasks": self.tasks,
            "sessions": self._sessions,
            "runs": runs,
        }
        if self._copied:
            about["taken_over"] = self._copied
        if self.failures:
            about["failures"] = self.failures
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        write_atomically(out / "about.json", text.encode())


def _machine() -> dict[str, Any]:
    return {
        "cores": available_cores(),
        "processor": _processor() or platform.processor(),
        "system": platform.platform(),
    }


def _processor() -> str:
    """Return the processor as Linux reports it.

    Family and model are included because processors of the same name may round differently, and
    then a seed gives another run.
    """
    with suppress(OSError):
        found: dict[str, str] = dict(
            re.findall(
                r"^(model name|cpu family|model)\s*: (.*)$",
                Path("/proc/cpuinfo").read_text(),
                re.MULTILINE,
            )
        )
        name = found.get("model name", "")
        if {"cpu family", "model"} <= found.keys():
            name += f" (family {found['cpu family']}, model {found['model']})"
        return name
    return ""


def _versions() -> dict[str, str]:
    versions = {"mopbt": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
