"""Read and check the directory of a comparison."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mopbt.compare.plan import Experiment, PlannedRun
from mopbt.errors import CorruptJournal, RunMismatch, StoreError
from mopbt.filesystem import cannot_write
from mopbt.problem import Problem
from mopbt.run_directory import read_run_config
from mopbt.stores.base import Exchange
from mopbt.stores.directory import Lock
from mopbt.stores.journal import read_journal

REMEDY = (
    "restore it from a copy, or remove that directory and rerun the same command without "
    "--only-report to repeat the run"
)
# The content of finished.json, which marks a run as finished.
Marker = Mapping[str, Any]


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
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = Lock(out / "lock", "--only-report and --reuse read a comparison while it runs")
    except OSError as error:
        raise cannot_write(error, out) from error
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
    for key in ("seconds", "real", "evaluations"):
        if key not in marker:
            raise StoreError(f"{file} is damaged (it has no {key!r}); {remedy}")
    return marker


def find_damage(path: Path, marker: Marker) -> str:
    """Describe what is wrong with the files of a finished run, or return "".

    A journal is only read if the marker does not give its size.
    """
    for name in ("run.toml", "journal.jsonl"):
        if not (path / name).is_file():
            return f"it has no {name}"
    # Markers of the first versions do not give the size.
    if "bytes" in marker:
        size = (path / "journal.jsonl").stat().st_size
        if size == marker["bytes"]:
            return ""
        return f"its journal has {size} bytes, but finished.json says {marker['bytes']}"
    try:
        exchanges, _ = read_journal(path / "journal.jsonl")
    except CorruptJournal as error:
        return str(error)
    return wrong_count(exchanges, marker)


def wrong_count(exchanges: Iterable[Exchange], marker: Marker) -> str:
    """Return what is wrong with the number of evaluations in a journal, or ""."""
    found = sum(len(exchange.reports) for exchange in exchanges)
    expected = marker["evaluations"]
    if found == expected:
        return ""
    return f"its journal has {found} evaluations, but finished.json says {expected}"


def problem_differences(path: Path, problem: Problem) -> list[str]:
    """Describe how a problem differs from that of a run's directory."""
    recorded = read_run_config(path)
    return recorded.differences(replace(recorded, problem=problem))


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
