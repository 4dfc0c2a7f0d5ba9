"""Checkpoints wherever fsspec reaches: `s3://`, `gs://`, `az://`, `sftp://`, or a folder that all nodes share."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mopbt.errors import MissingExtra
from mopbt.stores.base import Checkpoints, checked, checksum_of
from mopbt.stores.directory import DirectoryCheckpoints

_SUFFIX = ".ckpt"


def checkpoints_at(place: Path | str, *, make: bool = True) -> Checkpoints:
    """Return the checkpoints at a place: a folder, which is made if wanted, or a URL such as ``s3://bucket/run``."""
    scheme, separator, rest = str(place).partition("://")
    if separator and scheme not in ("file", "local"):
        remote = RemoteCheckpoints(str(place))
        if make:
            remote._files()  # one that there is not is told before anything is written
        return remote
    folder = Path(rest if separator else place).absolute()
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    return DirectoryCheckpoints(folder)


class RemoteCheckpoints:
    """Checkpoints as objects `<url>/<job>.ckpt`; may be sent to other processes and machines.

    Credentials and endpoints come from where the file system's own package looks for them, or from fsspec's configuration.
    Durable is what the file system has accepted; what it has torn, it has not accepted, and the checksum would tell.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def save(self, id: int, data: bytes) -> str:
        """Make bytes durable under a job's id and return their checksum."""
        files, path = self._files(), self._path(id)
        try:
            files.pipe_file(path, data)
        except FileNotFoundError:  # file systems with folders want them made
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.pipe_file(path, data)
        return checksum_of(data)

    def load(self, id: int, checksum: str) -> bytes:
        """Return the bytes, or raise CorruptCheckpoint if they are gone or do not fit the checksum."""
        try:
            data = bytes(self._files().cat_file(self._path(id)))
        except FileNotFoundError:
            data = None
        return checked(self.file(id), id, data, checksum)

    def drop(self, ids: Iterable[int]) -> None:
        """Remove these objects: together where the file system can."""
        files, paths = self._files(), [self._path(id) for id in ids]
        if not paths:
            return
        try:
            files.rm(paths)
        except FileNotFoundError:
            for path in paths:
                with suppress(FileNotFoundError):
                    files.rm_file(path)

    def kept(self) -> frozenset[int]:
        """Return the ids that are there."""
        files, folder = self._files(), self._folder()
        files.invalidate_cache()
        try:
            names = [str(path).rpartition("/")[2] for path in files.ls(folder, detail=False)]
        except FileNotFoundError:
            return frozenset()
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return frozenset(int(stem) for stem in stems if stem.isdecimal())

    def file(self, id: int) -> str:
        """Return the URL of a job's checkpoint."""
        return f"{self.url}/{id}{_SUFFIX}"

    def _path(self, id: int) -> str:
        return f"{self._folder()}/{id}{_SUFFIX}"

    def _folder(self) -> str:
        return str(self._files()._strip_protocol(self.url)).rstrip("/")

    def _files(self) -> Any:
        """Return the file system; fsspec gives the same object again in the same process."""
        try:
            import fsspec

            return fsspec.url_to_fs(self.url)[0]
        except ValueError as error:
            raise ValueError(
                f"`storage` must be a folder, or a URL of a file system that fsspec knows, got {self.url!r} ({error}); name one "
                f"such as /mnt/shared/run, s3://bucket/run, gs://bucket/run, az://container/run or sftp://host/run"
            ) from None
        except ImportError as error:
            raise MissingExtra(
                f"{self.url} cannot be reached: {error}; pip install 'mopbt[ray]' and what it names"
            ) from None
