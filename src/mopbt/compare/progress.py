"""How a comparison stands while it is carried out: shown to whoever watches, and recorded beside the runs."""

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

from mopbt.compare.collect import Marker, about_of
from mopbt.compare.plan import PlannedRun
from mopbt.engines.pool import available_cores
from mopbt.errors import last_line
from mopbt.stores.directory import write_atomically
from mopbt.version import __version__

EVERY = 10.0  # seconds between lines of progress where there is no terminal
ENOUGH = 0.02  # of a run: what it takes cannot be told from less
PACKAGES = ("numpy", "moocore", "torch", "botorch", "scikit-learn")


class ProgressView:
    """Shows a plan while it is carried out: bars on a terminal, else a line now and then. Use it as a context manager."""

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
        columns = BarColumn(16), TextColumn("{task.description}  {task.fields[note]}", markup=False)
        self._bars = Bars(
            *columns, console=self._console, disable=not self._console.is_terminal, transient=True
        )
        self._plan, self._jobs = plan, jobs
        self._took = {run: float(finished[run]["real"]) for run in plan if run in finished}
        self._shares: dict[PlannedRun, float] = {}
        self._firsts: dict[
            PlannedRun, tuple[float, float]
        ] = {}  # when a run first told its share, and that share
        self._failed: set[PlannedRun] = set()
        self._lock = threading.RLock()  # threads of the crew tell shares
        self._began, self._shown, self._told = time.monotonic(), -math.inf, ""
        self._whole = self._bars.add_task(name, total=len(plan), completed=len(self._took), note="")
        self._rows: dict[PlannedRun, Any] = {}

    def __enter__(self) -> "ProgressView":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._bars.stop()
        if self._line() != self._told:
            self.note(self._line())
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.note(
                "stopped (interrupted); nothing reported is lost: run the same again to go on"
            )

    def note(self, text: str) -> None:
        """Say something in one line."""
        self._console.print(text, soft_wrap=True, markup=False)

    def begin(self, run: PlannedRun) -> None:
        """Show that a run is under way."""
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
        """Show that a run is over."""
        with self._lock:
            del self._shares[run]
            self._bars.remove_task(self._rows.pop(run))
            if "finished" in answer:
                self._took[run] = float(answer["finished"]["real"])
            else:
                self._failed.add(run)
                self.note(f"{run}: failed: {last_line(answer['failed'])}")
            self._show()

    def give_up(self, run: PlannedRun, why: str) -> None:
        """Show that a run will not be begun."""
        self._failed.add(run)
        self.note(f"{run}: {why}")

    def _show(self) -> None:
        self._bars.update(self._whole, completed=len(self._took), note=self._line())
        if not self._console.is_terminal and time.monotonic() - self._shown >= EVERY:
            self._shown, self._told = time.monotonic(), self._line()
            self.note(self._told)

    def _line(self) -> str:
        from mopbt.progress_display import clock

        parts = [
            f"{len(self._took)}/{len(self._plan)} runs",
            f"{clock(time.monotonic() - self._began)} elapsed",
        ]
        plan = [run for run in self._plan if run not in self._failed]
        left = seconds_left(plan, self._took, self._shares, self._paces(), jobs=self._jobs)
        parts += [f"{clock(left)} left"] if left else []
        return " | ".join([*parts, *([f"{len(self._failed)} failed"] if self._failed else [])])

    def _paces(self) -> dict[PlannedRun, float]:
        """Return what runs that are under way will have taken, from what they did since they first told how far they are."""
        now, known = time.monotonic(), [run for run in self._shares if run in self._firsts]
        done = {
            run: (now - self._firsts[run][0], self._shares[run] - self._firsts[run][1])
            for run in known
        }
        return {run: seconds / share for run, (seconds, share) in done.items() if share >= ENOUGH}


def seconds_left(
    plan: Iterable[PlannedRun],
    duration: Mapping[PlannedRun, float],
    shares: Mapping[PlannedRun, float],
    paces: Mapping[PlannedRun, float] | None = None,
    *,
    jobs: int = 1,
) -> float:
    """Return the seconds to go, from the runs most like those that are not over; 0 as long as nothing tells.

    Args:
        plan: All runs.
        duration: The seconds of those that are over.
        shares: What is done of those that are under way.
        paces: The seconds that some of them will have taken, as far as one can see.
        jobs: How many runs are carried out side by side.
    """
    seen: dict[tuple[str, ...], list[float]] = {}
    for run, seconds in {**(paces or {}), **duration}.items():
        for key in ((run.task, run.algorithm), (run.task,), ()):
            seen.setdefault(key, []).append(seconds)
    means = {key: statistics.fmean(seconds) for key, seconds in seen.items()}
    left = [run for run in plan if run not in duration]
    keys = [((run.task, run.algorithm), (run.task,), ()) for run in left]
    expected = [next((means[key] for key in alike if key in means), 0.0) for alike in keys]
    to_go = [
        seconds * (1 - shares.get(run, 0.0)) for run, seconds in zip(left, expected, strict=True)
    ]
    return max(sum(to_go) / jobs, max(to_go, default=0.0))  # the last run cannot be shared


class Record:
    """What stands beside the runs in about.json: commands, machine, versions, times, and what was measured of the tasks."""

    def __init__(
        self,
        out: Path,
        name: str,
        scale: str | None,
        jobs: int,
        finished: Mapping[PlannedRun, Marker],
    ) -> None:
        about = about_of(out)
        self.tasks: dict[str, Any] = about.get("tasks", {})
        self.failures: dict[str, str] = {}  # by run, with where they came from; of the last session
        self._earlier: dict[str, Any] = about.get("taken_over", {})
        self._taken = dict(self._earlier)
        self._head = {"experiment": name, "scale": scale}
        self._sessions: list[dict[str, Any]] = about.get("sessions", [])
        self._began = time.monotonic()
        session: dict[str, Any] = {"command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}
        session["started"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._sessions.append(
            session | {"jobs": jobs, "machine": _machine(), "versions": _versions()}
        )
        self.write(out, finished)

    def taken(self, counts: Mapping[Path, int]) -> None:
        """Note how many runs were taken over from which comparisons, and where those were carried out."""
        for place, runs in counts.items():
            earlier = self._earlier.get(place.name, {}).get("runs", 0)
            sessions = [
                {key: session[key] for key in ("machine", "versions")}
                for session in about_of(place).get("sessions", [])
            ]
            self._taken[place.name] = {"runs": earlier + runs, "sessions": sessions}

    def write(self, out: Path, finished: Mapping[PlannedRun, Marker]) -> None:
        """Write down how things stand."""
        self._sessions[-1]["seconds"] = round(time.monotonic() - self._began, 3)
        seconds = round(sum(session["seconds"] for session in self._sessions), 3)
        runs = {
            str(run.directory.relative_to("runs")): _brief(marker)
            for run, marker in finished.items()
        }
        about = {
            **self._head,
            "seconds": seconds,
            "tasks": self.tasks,
            "sessions": self._sessions,
            "runs": runs,
        }
        about |= {"taken_over": self._taken} if self._taken else {}
        about |= {"failures": self.failures} if self.failures else {}
        write_atomically(
            out / "about.json", (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()
        )


def _brief(marker: Marker) -> Marker:
    return {key: value for key, value in marker.items() if key != "order"}


def _machine() -> dict[str, Any]:
    return {
        "cores": available_cores(),
        "processor": _processor() or platform.processor(),
        "system": platform.platform(),
    }


def _processor() -> str:
    """Return the processor as Linux knows it; two with the same name may round otherwise, and then a seed gives another run."""
    with suppress(OSError):
        told: dict[str, str] = dict(
            re.findall(
                r"^(model name|cpu family|model)\s*: (.*)$",
                Path("/proc/cpuinfo").read_text(),
                re.MULTILINE,
            )
        )
        family = (
            f" (family {told['cpu family']}, model {told['model']})"
            if {"cpu family", "model"} <= told.keys()
            else ""
        )
        return told.get("model name", "") + family
    return ""


def _versions() -> dict[str, str]:
    versions = {"mopbt": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
