"""A remote file system for fsspec, `attack://`, whose calls the attack sees and lets fail."""

from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from attack.record import WatchedDisk
from mopbt import filesystem
from mopbt.stores import base
from mopbt.stores import fsspec as remote

# No attack waits for a connection.
base.RETRY_PAUSES = (0.0, 0.0, 0.0)
remote.OWNER_PAUSE = 0.0


class AttackedFileSystem(LocalFileSystem):
    """Keeps objects in a local folder. Its calls are not those of the machine's own disk."""

    protocol = ("attack",)
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("attack://"))

    def pipe_file(self, path, value, mode="overwrite", **options):
        with _call("put", path, value):
            if mode == "create" and Path(path).exists():
                raise FileExistsError(path)
            Path(path).write_bytes(value)

    def cat_file(self, path, start=None, end=None, **options):
        with _call("get", path):
            return Path(path).read_bytes()[start:end]

    def rm(self, path, recursive=False, maxdepth=None):
        for one in [path] if isinstance(path, str) else path:
            self.rm_file(one)

    def rm_file(self, path):
        with _call("rm", path):
            Path(path).unlink()

    def ls(self, path, detail=False, **options):
        with _call("ls", path):
            return super().ls(path, detail=detail, **options)


class _call:
    """Tell the disk of a call before it happens, and after it has succeeded."""

    def __init__(self, name, path, data=None):
        self._arguments = (name, path, data)
        self._disk = filesystem.disk if isinstance(filesystem.disk, WatchedDisk) else WatchedDisk()

    def __enter__(self):
        self._disk.remote(*self._arguments)

    def __exit__(self, kind, error, trace):
        if kind is None and self._arguments[0] in ("put", "rm"):
            self._disk.remote_done(*self._arguments)


fsspec.register_implementation("attack", AttackedFileSystem, clobber=True)
