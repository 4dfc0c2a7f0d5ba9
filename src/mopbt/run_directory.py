"""The directory of a run: read its settings, open, check and lock it."""

from dataclasses import dataclass
from pathlib import Path

from mopbt.errors import CorruptJournal, RunMismatch, StoreError
from mopbt.filesystem import write_atomically
from mopbt.history import History, read_history
from mopbt.run_config import RunConfig
from mopbt.stores.directory import DirectoryStore, Repair
from mopbt.stores.fsspec import checkpoints_at
from mopbt.stores.journal import read_lines

FILES = {"run.toml", "journal.jsonl", "checkpoints", "lock"}


@dataclass(frozen=True)
class OpenRun:
    """A run that this process may execute: its locked store, and what its journal says."""

    store: DirectoryStore
    history: History

    def close(self) -> None:
        """Release the lock."""
        self.store.close()


def read_run_config(path: Path) -> RunConfig:
    """Read the settings of a run's directory."""
    file = path / "run.toml"
    if file.is_file():
        return RunConfig.from_toml(file.read_text(encoding="utf-8", errors="replace"), file)
    if path.is_dir():
        why = "it has no run.toml"
    elif path.is_file():
        why = "it is a file, and a run is a directory"
    else:
        why = "it does not exist"
    remedy = "`mopbt list DIR` shows the runs below a directory"
    if (path / "experiment.toml").is_file():
        remedy = (
            f"it is a comparison: `mopbt compare {path / 'experiment.toml'} --out {path} "
            "--only-report` writes its report"
        )
    raise StoreError(f"{path} is not a run: {why}; {remedy}")


def read_run(path: Path) -> tuple[RunConfig, History]:
    """Read the settings and the history of a run without locking it."""
    settings = read_run_config(path)
    journal = path / "journal.jsonl"
    return settings, read_history(settings.problem, read_lines(journal), journal)


def open_run(
    path: Path, settings: RunConfig, *, repair: Repair | None = None, durable: bool = True
) -> OpenRun:
    """Open a run's directory to execute it: a new one, or one with the same settings.

    `repair` rebuilds a damaged journal. A run that is not `durable` never waits for the disk.
    """
    _check_place(path)
    if repair is not None and (path / "run.toml").exists():
        # Before anything is repaired by the rules of another task.
        _check_same(path, read_run_config(path), settings)
    checkpoints = checkpoints_at(settings.storage) if settings.storage else None
    store = DirectoryStore(path, repair=repair, durable=durable, checkpoints=checkpoints)
    try:
        return OpenRun(store, _start_or_resume(store, settings))
    except BaseException:
        store.close()
        raise


def _check_place(path: Path) -> None:
    """Raise an error if a directory is neither new, nor empty, nor a run."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(
                f"`out` must be a directory, got the file {place}; name a new or empty directory, "
                "or a run"
            )
    if (path / "run.toml").exists():
        # The journal is created before run.toml.
        if not (path / "journal.jsonl").exists():
            raise CorruptJournal(
                f"{path} has a run.toml but no journal.jsonl; restore it, or use another directory"
            )
        return
    files = path.iterdir() if path.is_dir() else ()
    other = [f.name for f in files if f.name not in FILES and f.suffix != ".tmp"]
    if other:
        raise RunMismatch(
            f"{path} is not a run and not empty (it has {other[0]!r}); use another directory for "
            "`out`"
        )


def _start_or_resume(store: DirectoryStore, settings: RunConfig) -> History:
    """Write the settings of a new run, or check those of an existing one; return its history.

    A run without reports restarts with the new settings.
    """
    path, config = store.path, (settings.to_toml()).encode()
    if not (path / "run.toml").exists():
        if next(store.lines(), None) is not None:
            raise RunMismatch(
                f"{path} has a journal but no run.toml; restore it, or use another directory"
            )
        if settings.storage and checkpoints_at(settings.storage).kept():
            raise RunMismatch(
                f"{settings.storage} holds the checkpoints of another run; give each run its own "
                "storage"
            )
        write_atomically(path / "run.toml", config)
        return History(settings.problem)
    recorded = read_run_config(path)
    history = read_history(recorded.problem, store.lines(), store.journal)
    if len(history.reports) or not recorded.differences(settings):
        _check_same(path, recorded, settings)
        return history
    store.clear()
    write_atomically(path / "run.toml", config)
    return History(settings.problem)


def _check_same(path: Path, recorded: RunConfig, settings: RunConfig) -> None:
    if differences := recorded.differences(settings):
        raise RunMismatch(
            f"{path} was started with other settings: {'; '.join(differences)}; use the same "
            "settings, or another directory"
        )
