"""Checkpoints on file systems that fsspec reaches, such as `s3://` and `gs://`."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mopbt.errors import MissingExtra
from mopbt.filesystem import make_directories
from mopbt.stores.base import (
    OWNER,
    Checkpoints,
    checksum_of,
    read_with_retries,
    verify_checkpoint,
    with_retries,
)
from mopbt.stores.directory import SUFFIX, DirectoryCheckpoints

# Seconds after which a new owner's record is read again. A file system that cannot create an
# object exclusively may overwrite a record that another run has just written.
OWNER_PAUSE = 0.5


def checkpoints_at(place: Path | str, *, make: bool = True) -> Checkpoints:
    """Return the checkpoints in a folder or at a URL such as ``s3://bucket/run``.

    With `make`, a missing folder is created.
    """
    if is_remote(place):
        return RemoteCheckpoints(str(place))
    folder = Path(str(place).rpartition("://")[2]).absolute()
    if make:
        make_directories(folder)
    return DirectoryCheckpoints(folder)


def check_reachable(place: Path | str) -> None:
    """Raise ValueError or MissingExtra if a place is a URL that fsspec cannot reach."""
    if is_remote(place):
        RemoteCheckpoints(str(place)).file_system()


def is_remote(place: Path | str) -> bool:
    """Return whether a place is a URL of another file system than the machine's own."""
    scheme, separator, _ = str(place).partition("://")
    return bool(separator) and scheme not in ("file", "local")


class RemoteCheckpoints:
    """Checkpoints as objects `<url>/<job>.ckpt`, for all machines that reach the URL.

    Credentials and endpoints come from the file system's own package or from the configuration of
    fsspec. An object is durable once the file system accepts it. The checksum detects one that it
    stored incompletely.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def save(self, id: int, data: bytes) -> str:
        """Make the checkpoint of a job durable and return its checksum."""
        files = self.file_system()
        path = self._path(id)
        with_retries(f"write checkpoint {self.file(id)}", lambda: _write(files, path, data))
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Read a checkpoint; CorruptCheckpoint if it is missing or its checksum is wrong."""
        return verify_checkpoint(self.file(id), id, self._read(id), checksum)

    def stored_checksum(self, id: int) -> str:
        """Return the checksum of a checkpoint as it is stored; empty if it is missing."""
        data = self._read(id)
        return "" if data is None else checksum_of(data)

    def _read(self, id: int) -> bytes | None:
        files = self.file_system()
        path = self._path(id)
        return read_with_retries(f"checkpoint {self.file(id)}", lambda: bytes(files.cat_file(path)))

    def drop(self, ids: Iterable[int]) -> None:
        """Remove checkpoints, in one request if the file system supports it."""
        files = self.file_system()
        paths = [self._path(id) for id in ids]
        if not paths:
            return

        def remove() -> None:
            try:
                files.rm(paths)
            except FileNotFoundError:
                for path in paths:
                    with suppress(FileNotFoundError):
                        files.rm_file(path)

        with_retries(f"remove checkpoints in {self.url}", remove)

    def kept(self) -> frozenset[int]:
        """Return the ids of all checkpoints."""
        files = self.file_system()
        files.invalidate_cache()
        try:
            paths = with_retries(f"list {self.url}", lambda: files.ls(self._folder(), detail=False))
        except FileNotFoundError:
            return frozenset()
        names = [str(path).rpartition("/")[2] for path in paths]
        stems = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
        return frozenset(int(stem) for stem in stems if stem.isdecimal())

    def owner(self) -> bytes | None:
        """Return the record of the run that the URL belongs to; None if there is none."""
        files = self.file_system()
        path = f"{self._folder()}/{OWNER}"
        return read_with_retries(f"{self.url}/{OWNER}", lambda: bytes(files.cat_file(path)))

    def record_owner(self, record: bytes, *, replace: bool = False) -> None:
        """Record the owner of the URL, unless there is one; with `replace`, in any case."""
        if self.owner() is not None and not replace:
            return
        with_retries(f"write {self.url}/{OWNER}", lambda: self._write_owner(record, replace))
        # Not every file system can create an object exclusively. Of two runs that wrote at the same
        # time, both now read the later record.
        time.sleep(OWNER_PAUSE)

    def _write_owner(self, record: bytes, replace: bool) -> None:
        files = self.file_system()
        path = f"{self._folder()}/{OWNER}"
        mode = {} if replace else {"mode": "create"}
        try:
            _write(files, path, record, **mode)
        except FileExistsError:
            # Another run was faster.
            return
        except (TypeError, NotImplementedError):
            # This file system, or this version of fsspec, does not know the mode.
            _write(files, path, record)

    def file(self, id: int) -> str:
        """Return the URL of a job's checkpoint."""
        return f"{self.url}/{id}{SUFFIX}"

    def file_system(self) -> Any:
        """Return the file system of the URL, which fsspec caches within a process."""
        try:
            import fsspec

            return fsspec.url_to_fs(self.url)[0]
        except ValueError as error:
            raise ValueError(
                "`storage` must be a folder, or a URL of a file system that fsspec knows, got "
                f"{self.url!r} ({error}); use a place such as /mnt/shared/run, "
                "s3://bucket/run, gs://bucket/run, az://container/run or sftp://host/run"
            ) from None
        except ImportError as error:
            raise MissingExtra(
                f"{self.url} cannot be reached: {error}; install the package that it names, and "
                "fsspec with pip install 'mopbt[ray]'"
            ) from None

    def _path(self, id: int) -> str:
        return f"{self._folder()}/{id}{SUFFIX}"

    def _folder(self) -> str:
        return str(self.file_system()._strip_protocol(self.url)).rstrip("/")


def _write(files: Any, path: str, data: bytes, **options: str) -> None:
    try:
        files.pipe_file(path, data, **options)
    except FileNotFoundError:
        # File systems with folders need the folder first.
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.pipe_file(path, data, **options)
