"""The directory of a run: read its settings, open, check and lock it."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from mopbt.engines.base import InitialModels
from mopbt.errors import CorruptJournal, RunMismatch, StoreError
from mopbt.filesystem import (
    exists,
    is_directory,
    list_names,
    read_settings,
    remove,
    write_atomically,
)
from mopbt.history import History, read_history
from mopbt.messages import counted
from mopbt.ownership import Owner, claim_storage
from mopbt.run_config import RunConfig
from mopbt.stores.base import Exchange, InspectableCheckpoints
from mopbt.stores.directory import DirectoryCheckpoints, DirectoryStore
from mopbt.stores.fsspec import checkpoints_at
from mopbt.stores.journal import read_lines

FILES = {"run.toml", "journal.jsonl", "evaluations.jsonl", "checkpoints", "initial", "lock"}
REMEDY = "use the same settings, or name another `out` (--out) for a new run"
# Maximum number of differences that a message names.
MOST_DIFFERENCES = 5


class RepairRules(Protocol):
    """Rebuilds the exchanges of a journal in which damaged lines are None."""

    def __call__(
        self, lines: Sequence[Exchange | None], /, *, checksum_of: Callable[[int], str] | None
    ) -> Sequence[Exchange]:
        """Return the repaired exchanges.

        `checksum_of` returns the checksum of a checkpoint as it is stored, or an empty string. It
        is None if that cannot be found.
        """


class RunDirectory:
    """A run's directory while this process holds its lock, with its settings.

    These are the recorded settings.

    The settings are read once, under the lock. `open` checks them, or records those of a new run.

    Args:
        path: The directory; it is created if needed.
        durable: If false, writes do not wait for the disk.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        _check_place(path)
        self.path = path
        self.store = DirectoryStore(path, durable=durable)
        try:
            has_settings = exists(path / "run.toml")
            self.recorded = read_run_config(path) if has_settings else None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock, unless the session of the run has done so."""
        self.store.close()

    def storage(self, given: Path | str | None) -> str:
        """Return where checkpoints are, as recorded or given.

        It is empty for the run's directory.
        """
        recorded = None if self.recorded is None else self.recorded.storage
        if given is None:
            return recorded or ""
        place = absolute_storage(given)
        if recorded is not None and place != recorded:
            raise RunMismatch(
                f"{self.path} keeps its checkpoints {recorded or 'in its own directory'}, got "
                f"`storage` {place}; leave it out, or use another directory"
            )
        return place

    def open(self, settings: RunConfig, *, repair: RepairRules | None = None) -> "OpenRun":
        """Start a new run, or resume one with the same settings.

        The lock stays with the caller.

        A run without reports restarts with the new settings. `repair` rebuilds a damaged journal.
        """
        recorded = self.recorded
        if recorded is None:
            return self._start(replace(settings, run_id=uuid.uuid4().hex))
        if repair is not None:
            # Before anything is repaired by the rules of another task.
            check_same_settings(self.path, recorded, settings, REMEDY)
            self._claim(recorded, is_new=False)
            checkpoints = self.store.checkpoints
            checksum_of = None
            if isinstance(checkpoints, InspectableCheckpoints):
                checksum_of = checkpoints.stored_checksum
            self.store.repair(partial(repair, checksum_of=checksum_of))
        history = read_history(recorded.problem, self.store.lines(), self.store.journal)
        if not recorded.extended(history.extension).differences(settings):
            # The settings of an extended run are those of its start, or the extended ones.
            settings = replace(recorded, task_fingerprint=settings.task_fingerprint)
        is_same = not recorded.differences(settings)
        if settings.task_fingerprint not in ("", recorded.task_fingerprint):
            is_same = False
        if len(history.reports) or is_same:
            check_same_settings(self.path, recorded, settings, REMEDY)
            self._claim(recorded, is_new=False)
            return OpenRun(self.store, history, recorded)
        self._claim(recorded, is_new=False)
        self.store.clear()
        restarted = replace(settings, run_id=recorded.run_id, storage=recorded.storage)
        return self._record(restarted)

    def _start(self, settings: RunConfig) -> "OpenRun":
        if next(self.store.lines(), None) is not None:
            raise RunMismatch(
                f"{self.path} has a journal but no run.toml; restore it, or use another directory"
            )
        # The settings come first: a storage with an owner's record always has an owner.
        run = self._record(settings)
        try:
            self._claim(settings, is_new=True)
        except RunMismatch:
            # After any other error the storage may be this run's already, so the id is kept.
            remove(self.path / "run.toml")
            raise
        return run

    def _record(self, settings: RunConfig) -> "OpenRun":
        write_atomically(self.path / "run.toml", settings.to_toml().encode())
        self.recorded = settings
        return OpenRun(self.store, History(settings.problem), settings)

    def _claim(self, settings: RunConfig, *, is_new: bool) -> None:
        """Check that the storage is this run's.

        This happens before anything in it is written or removed.
        """
        if settings.storage:
            self.store.checkpoints = checkpoints_at(settings.storage)
        checkpoints = self.store.checkpoints
        claim_storage(
            checkpoints,
            settings.storage or str(self.path / "checkpoints"),
            Owner.of(settings.run_id, self.path),
            is_new=is_new,
            is_shared=bool(settings.storage),
        )
        if isinstance(checkpoints, DirectoryCheckpoints):
            checkpoints.remove_leftovers()


@dataclass(frozen=True)
class OpenRun:
    """A run that this process may execute: locked store, history and settings."""

    store: DirectoryStore
    history: History
    settings: RunConfig

    def close(self) -> None:
        """Release the lock."""
        self.store.close()


def read_run_config(path: Path) -> RunConfig:
    """Read the settings of a run's directory."""
    file = path / "run.toml"
    if not exists(file):
        raise _not_a_run(path)
    return RunConfig.from_toml(read_settings(file), file)


def _not_a_run(path: Path) -> StoreError:
    if is_directory(path):
        why = "it has no run.toml"
    elif exists(path):
        why = "it is a file, and a run is a directory"
    else:
        why = "it does not exist"
    remedy = "`mopbt list DIR` shows the runs below a directory"
    if exists(path / "experiment.toml"):
        remedy = (
            f"it is a comparison: `mopbt compare {path / 'experiment.toml'} --out {path} "
            "--only-report` writes its report"
        )
    return StoreError(f"{path} is not a run: {why}; {remedy}")


def initial_checkpoints(path: Path) -> DirectoryCheckpoints:
    """Return the checkpoints that the first trials of a run in a directory start from."""
    return DirectoryCheckpoints(path / "initial")


def initial_models(path: Path | None, settings: RunConfig) -> InitialModels | None:
    """Return the models that the first trials start from.

    It is None for fresh weights.
    """
    if path is None or not settings.warm_start:
        return None
    return InitialModels(initial_checkpoints(path), tuple(settings.warm_start["checksums"]))


def read_run(path: Path) -> tuple[RunConfig, History]:
    """Read the settings and the history of a run without locking it."""
    settings = read_run_config(path)
    journal = path / "journal.jsonl"
    return settings, read_history(settings.problem, read_lines(journal), journal)


def open_run(
    path: Path, settings: RunConfig, *, repair: RepairRules | None = None, durable: bool = True
) -> OpenRun:
    """Open a run's directory to execute it: a new one, or one with the same settings.

    `repair` rebuilds a damaged journal. A run that is not `durable` never waits for the disk.
    """
    directory = RunDirectory(path, durable=durable)
    try:
        return directory.open(settings, repair=repair)
    except BaseException:
        directory.close()
        raise


@contextmanager
def locked_run(path: Path) -> Iterator[tuple[RunDirectory, RunConfig]]:
    """Lock a run that was started before, and read its settings.

    Raises StoreError if there is none.

    The directory can be passed on to the function that executes the run.
    """
    # Before the lock, which would create the directory.
    if not exists(path / "run.toml"):
        raise _not_a_run(path)
    directory = RunDirectory(path.absolute())
    try:
        if directory.recorded is None:
            raise _not_a_run(path)
        yield directory, directory.recorded
    finally:
        directory.close()


def absolute_storage(place: Path | str) -> str:
    """Return a folder as an absolute path, and a URL as it is."""
    return str(place) if "://" in str(place) else str(Path(place).absolute())


def _check_place(path: Path) -> None:
    """Raise an error if a directory is neither new, nor empty, nor a run."""
    place = next(place for place in (path, *path.parents) if exists(place))
    if not is_directory(place):
        raise ValueError(
            f"`out` must be a directory, got the file {place}; name a new or empty directory, or a "
            "run"
        )
    if exists(path / "run.toml"):
        # The journal is created before run.toml.
        if not exists(path / "journal.jsonl"):
            raise CorruptJournal(
                f"{path} has a run.toml but no journal.jsonl; restore it, or use another directory"
            )
        return
    names = list_names(path)
    other = [name for name in names if name not in FILES and not name.endswith(".tmp")]
    if other:
        raise RunMismatch(
            f"{path} is not a run and not empty (it has {other[0]!r}); use another directory for "
            "`out`"
        )


def check_same_settings(
    place: object, recorded: RunConfig, settings: RunConfig, remedy: str
) -> None:
    """Raise RunMismatch, with the remedy, unless settings are those of a run."""
    if differences := recorded.differences(settings):
        shown = differences[:MOST_DIFFERENCES]
        if len(differences) > len(shown):
            shown.append(f"and {counted(len(differences) - len(shown), 'more difference')}")
        raise RunMismatch(f"{place} was started with other settings: {'; '.join(shown)}; {remedy}")
