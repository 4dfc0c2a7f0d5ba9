"""What an experiment of Ray Tune under one of our schedulers leaves behind, and how it is read again."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray.tune import Checkpoint, ResultGrid

from mopbt.errors import StoreError
from mopbt.front import Front, Point
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.stores.memory import MemoryCheckpoints

FOLDER = "mopbt"  # beside the trials of an experiment


@dataclass(frozen=True, eq=False)
class Experiment:
    """What an experiment under one of these schedulers found. Open it in any process, also while it goes on."""

    results: Results  # points, lineages, schedules, hypervolume; models come from `checkpoint`
    path: str
    filesystem: pyarrow.fs.FileSystem
    _paths: Mapping[int, str]

    @staticmethod
    def open(experiment: ResultGrid | Path | str) -> "Experiment":
        """Read an experiment: what `Tuner.fit` returned, or the folder or URL where Tune keeps it."""
        if isinstance(experiment, ResultGrid):
            files, path = experiment.filesystem, experiment.experiment_path
        elif "://" in str(experiment):
            files, path = pyarrow.fs.FileSystem.from_uri(str(experiment))
        else:
            files, path = pyarrow.fs.LocalFileSystem(), str(Path(experiment).absolute())
        log = Log(files, path)
        settings = log.settings()
        if settings is None:
            raise StoreError(
                f"{path} is not an experiment under MOPBT or MOASHA: it has no {FOLDER}/run.toml"
            )
        records = log.read()
        results = Results(settings, MemoryCheckpoints())
        for record in records:
            results.history.extend(record["exchanges"])
        return Experiment(
            results,
            path,
            files,
            {int(job): p for r in records for job, p in r.get("paths", {}).items()},
        )

    def front(self) -> Front:
        """Return the models that no other dominates; each can be loaded."""
        return self.results.front()

    def checkpoint(self, point: Point | int) -> Checkpoint:
        """Return the checkpoint of a point of the front, or of a job; others are gone."""
        job = point.job if isinstance(point, Point) else point
        path = posixpath.join(self.path, self._paths.get(job, ""))
        if (
            job not in self._paths
            or self.filesystem.get_file_info(path).type != pyarrow.fs.FileType.Directory
        ):
            raise StoreError(
                f"the checkpoint of job {job} is gone: only those of the front and of the last members are kept"
            )
        return Checkpoint(path, self.filesystem)


class Log:
    """The journal of an experiment: a file for each record, as not all file systems can append."""

    def __init__(self, files: pyarrow.fs.FileSystem, experiment: str) -> None:
        self.folder = posixpath.join(experiment, FOLDER)
        self._files = files
        self._next = 0

    def settings(self) -> RunConfig | None:
        """Return what the experiment was started with, if it is one of ours."""
        path = posixpath.join(self.folder, "run.toml")
        if self._files.get_file_info(path).type != pyarrow.fs.FileType.File:
            return None
        return RunConfig.from_toml(self._text(path), Path(path))

    def read(self) -> list[dict[str, Any]]:
        """Return all records, in order."""
        found = self._files.get_file_info(
            pyarrow.fs.FileSelector(self.folder, allow_not_found=True)
        )
        paths = sorted(info.path for info in found if info.path.endswith(".json"))
        self._next = len(paths)
        return [json.loads(self._text(path)) for path in paths]

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record: there whole or not at all."""
        self.write(f"{self._next:08}.json", json.dumps(record))
        self._next += 1

    def write(self, name: str, text: str) -> None:
        """Write a file under another name first, so that nobody reads half of it."""
        path = posixpath.join(self.folder, name)
        self._files.create_dir(self.folder, recursive=True)
        with self._files.open_output_stream(f"{path}.tmp") as stream:
            stream.write(text.encode())
        self._files.move(f"{path}.tmp", path)

    def _text(self, path: str) -> str:
        with self._files.open_input_stream(path) as stream:
            return str(stream.read().decode())
