"""Checkpoints on file systems that fsspec reaches, such as `s3://` and `gs://`."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mopbt.errors import MissingExtra
from mopbt.stores.base import Checkpoints, checksum_of, read_with_retries, verify_checkpoint
from mopbt.stores.directory import SUFFIX, DirectoryCheckpoints


def checkpoints_at(place: Path | str, *, make: bool = True) -> Checkpoints:
    """Return the checkpoints in a folder or at a URL such as ``s3://bucket/run``.

    With `make`, a missing folder is created, and a URL that fsspec cannot reach is an error now
    rather than at the first save.
    """
    scheme, separator, rest = str(place).partition("://")
    if separator and scheme not in ("file", "local"):
        remote = RemoteCheckpoints(str(place))
        if make:
            remote.file_system()
        return remote
    folder = Path(rest if separator else place).absolute()
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    return DirectoryCheckpoints(folder)


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
        try:
            files.pipe_file(path, data)
        except FileNotFoundError:
            # File systems with folders need the folder first.
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.pipe_file(path, data)
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Read a checkpoint; CorruptCheckpoint if it is missing or its checksum is wrong."""
        files = self.file_system()
        path = self._path(id)
        data = read_with_retries(self.file(id), lambda: bytes(files.cat_file(path)))
        return verify_checkpoint(self.file(id), id, data, checksum)

    def drop(self, ids: Iterable[int]) -> None:
        """Remove checkpoints, in one request if the file system supports it."""
        files = self.file_system()
        paths = [self._path(id) for id in ids]
        if not paths:
            return
        try:
            files.rm(paths)
        except FileNotFoundError:
            for path in paths:
                with suppress(FileNotFoundError):
                    files.rm_file(path)

    def kept(self) -> frozenset[int]:
        """Return the ids of all checkpoints."""
        files = self.file_system()
        files.invalidate_cache()
        try:
            names = [
                str(path).rpartition("/")[2] for path in files.ls(self._folder(), detail=False)
            ]
        except FileNotFoundError:
            return frozenset()
        stems = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
        return frozenset(int(stem) for stem in stems if stem.isdecimal())

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
