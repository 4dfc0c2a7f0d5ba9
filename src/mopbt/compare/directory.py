"""The directory of a comparison: its experiment, record, lock and finished runs."""

import datetime
import json
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mopbt.compare.plan import ComparisonPlan, Experiment, PlannedRun
from mopbt.engines.devices import available_cores
from mopbt.errors import RunMismatch, StoreError
from mopbt.filesystem import make_directories, write_atomically
from mopbt.locking import Lock
from mopbt.problem import Problem
from mopbt.run_directory import read_run_config
from mopbt.version import __version__

REMEDY = (
    "restore it from a copy, or remove that directory and rerun the same command without "
    "--only-report to repeat the run"
)
# The content of finished.json, which marks a run as finished: its virtual and its real seconds, the
# numbers of evaluations and failures, the bytes of its journal, and its identity (see `RunSpec`).
Marker = Mapping[str, Any]
JOURNAL = "journal.jsonl"
# What the measures of a run need, see `run_data`. A published run has no journal.
RECORD = "record.json.gz"
MARKER_KEYS = ("seconds", "real", "evaluations", "bytes", "order")
PACKAGES = ("numpy", "moocore", "torch", "botorch", "scikit-learn")


def check_directory(out: Path, experiment: Experiment, scale: str | None) -> None:
    """Check that a directory is empty or belongs to this experiment and scale.

    Raises RunMismatch if it is anything else.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(
            f"`out` must be a directory, got the file {out}; pass a new or empty directory, or "
            f"that of a comparison"
        )
    if not (out / "experiment.toml").exists():
        _check_empty(out)
        return
    before = recorded_scale(out)
    if before != scale:
        raise RunMismatch(
            f"{out} was started in another scale: it is {scale}, it was {before}; use the same "
            f"scale, or another directory"
        )
    differences = recorded_experiment(out).differences(experiment.at(scale))
    if differences:
        raise RunMismatch(
            f"{out} was started with another experiment: {'; '.join(differences)}; use the same "
            f"experiment, or another directory (with --reuse {out}, identical runs are not "
            f"repeated)"
        )


def _check_empty(out: Path) -> None:
    if not out.is_dir():
        return
    for file in out.iterdir():
        # A killed process may leave these files behind.
        is_leftover = file.name in ("about.json", "lock") or file.name.endswith(".tmp")
        if not is_leftover:
            raise RunMismatch(
                f"{out} is not a comparison and not empty (it has {file.name!r}); use another "
                f"directory for `out`"
            )


def check_runs_exist(out: Path) -> None:
    """Check that a comparison was not published without its runs.

    Resuming it would repeat all of them and replace its tables.
    """
    runs = len(read_about(out).get("runs", {}))
    if runs and (out / "fronts.csv.gz").exists() and not (out / "runs").exists():
        raise RunMismatch(
            f"{out} was published without its {runs} runs: resuming it would repeat all of them "
            f"and replace its tables; use another directory for `out`"
        )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Create the directory of a comparison, and lock it against other processes."""
    make_directories(out)
    lock = Lock(out / "lock", "--only-report and --reuse read a comparison while it runs")
    try:
        yield
    finally:
        lock.release()


def comparison_of(path: Path) -> Path | None:
    """Return the comparison that a run's directory belongs to, or None."""
    above = path.absolute().parents
    if len(above) > 3 and above[2].name == "runs" and (above[3] / "experiment.toml").is_file():
        return above[3]
    return None


def finished_runs(out: Path, plan: Iterable[PlannedRun]) -> dict[PlannedRun, Marker]:
    """Return the finished runs of a plan with their markers.

    Raises StoreError if the files of one of them have changed since it finished.
    """
    finished = {}
    for run in plan:
        path = out / run.directory
        if (path / "finished.json").exists():
            finished[run] = read_marker(path / "finished.json")
    for run, marker in finished.items():
        path = out / run.directory
        if wrong := find_damage(path, marker):
            raise StoreError(f"{path} has changed since its run finished: {wrong}; {REMEDY}")
    return finished


def read_marker(file: Path) -> Marker:
    """Read the file that marks a run as finished."""
    remedy = "remove it and rerun to resume the run"
    marker = read_json(file, remedy)
    for key in MARKER_KEYS:
        if key not in marker:
            raise StoreError(f"{file} is damaged (it has no {key!r}); {remedy}")
    return marker


def find_damage(path: Path, marker: Marker) -> str:
    """Describe what is wrong with the files of a finished run, or return ""."""
    if not (path / "run.toml").is_file():
        return "it has no run.toml"
    if not (path / JOURNAL).is_file():
        return "" if (path / RECORD).is_file() else f"it has no {JOURNAL}"
    size = (path / JOURNAL).stat().st_size
    if size != marker["bytes"]:
        return f"its journal has {size} bytes, but finished.json says {marker['bytes']}"
    return ""


def problem_differences(path: Path, problem: Problem) -> list[str]:
    """Describe how a problem differs from that of a run's directory."""
    recorded = read_run_config(path)
    return recorded.differences(replace(recorded, problem=problem))


def write_experiment(out: Path, experiment: Experiment) -> None:
    """Record an experiment, which makes a directory that of a comparison."""
    write_atomically(out / "experiment.toml", experiment.to_toml().encode())


def recorded_experiment(out: Path) -> Experiment:
    """Read the experiment of a comparison's directory, with the values of its scale."""
    if not (out / "experiment.toml").is_file():
        raise StoreError(
            f"{out} is not a comparison: it has no experiment.toml; "
            f"`mopbt compare EXPERIMENT --out {out}` creates one"
        )
    return Experiment.read(out / "experiment.toml").at(recorded_scale(out))


def recorded_scale(out: Path) -> str | None:
    """Return the scale of a comparison's directory."""
    scale: str | None = read_about(out).get("scale")
    return scale


def read_about(out: Path) -> dict[str, Any]:
    """Read about.json of a comparison; empty if it does not exist."""
    file = out / "about.json"
    if not file.exists():
        return {}
    return read_json(file, "restore it, or use a new directory and pass this one with --reuse")


def read_json(file: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object, or raise StoreError with the remedy."""
    try:
        data: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError as error:
        raise StoreError(f"{file} is damaged ({error}); {remedy}") from None
    if not isinstance(data, dict):
        raise StoreError(f"{file} is damaged (it is not a JSON object); {remedy}")
    return data


class Record:
    """Write about.json: commands, machine, versions, times and measurements."""

    def __init__(self, plan: ComparisonPlan, finished: Mapping[PlannedRun, Marker]) -> None:
        self._out = plan.out
        about = read_about(plan.out)
        self.tasks: dict[str, Any] = about.get("tasks", {})
        # Failures of the last session, with their tracebacks, by run.
        self.failures: dict[str, str] = {}
        self._earlier: dict[str, Any] = about.get("reused", {})
        self._copied = dict(self._earlier)
        self._head = {"experiment": plan.scaled.name, "scale": plan.scale}
        self._sessions: list[dict[str, Any]] = about.get("sessions", [])
        self._began = time.monotonic()
        self._sessions.append(
            {
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "jobs": plan.jobs,
                "machine": _machine(),
                "versions": _versions(),
            }
        )
        self.write(finished)

    def record_copies(self, counts: Mapping[Path, int]) -> None:
        """Record how many runs were copied from which comparisons, and where those ran."""
        for place, runs in counts.items():
            earlier = self._earlier.get(place.name, {}).get("runs", 0)
            sessions = [
                {key: session[key] for key in ("machine", "versions")}
                for session in read_about(place).get("sessions", [])
            ]
            self._copied[place.name] = {"runs": earlier + runs, "sessions": sessions}

    def write(self, finished: Mapping[PlannedRun, Marker]) -> None:
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
            about["reused"] = self._copied
        if self.failures:
            about["failures"] = self.failures
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self._out / "about.json", text.encode())


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
