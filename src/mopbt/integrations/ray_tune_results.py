"""The journal of a Ray Tune experiment under `MOPBT` or `MOASHA`, and its results."""

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
from mopbt.history import read_history
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.stores.memory import MemoryCheckpoints

FOLDER = "mopbt"  # beside the trials of an experiment


@dataclass(frozen=True, eq=False)
class Experiment:
    """The results of an experiment. Any process can open it, also while it executes.

    `results` gives points, lineages, schedules and the hypervolume. Models come from `checkpoint`.
    """

    results: Results
    path: str
    filesystem: pyarrow.fs.FileSystem
    _paths: Mapping[int, str]

    @staticmethod
    def open(experiment: ResultGrid | Path | str) -> "Experiment":
        """Open an experiment: what `Tuner.fit` returned, or its folder or URL."""
        if isinstance(experiment, ResultGrid):
            files = experiment.filesystem
            path = experiment.experiment_path
        elif "://" in str(experiment):
            files, path = pyarrow.fs.FileSystem.from_uri(str(experiment))
        else:
            files = pyarrow.fs.LocalFileSystem()
            path = str(Path(experiment).absolute())
        log = Log(files, path)
        settings = log.settings()
        if settings is None:
            raise StoreError(
                f"{path} is not an experiment under MOPBT or MOASHA: it has no {FOLDER}/run.toml"
            )
        results = Results(settings, MemoryCheckpoints())
        records = log.read()
        lines = [line for record in records for line in record["exchanges"]]
        results.history = read_history(settings.problem, lines, log.folder)
        paths: dict[int, str] = {}
        for record in records:
            for job, checkpoint in record.get("paths", {}).items():
                paths[int(job)] = checkpoint
        return Experiment(results, path, files, paths)

    def front(self) -> Front:
        """Return the models that no other model dominates; all of them can be loaded."""
        return self.results.front()

    def checkpoint(self, point: Point | int) -> Checkpoint:
        """Return the checkpoint of a point or job; StoreError if it has been deleted."""
        job = point.job if isinstance(point, Point) else point
        if job in self._paths:
            path = posixpath.join(self.path, self._paths[job])
            if self.filesystem.get_file_info(path).type == pyarrow.fs.FileType.Directory:
                return Checkpoint(path, self.filesystem)
        raise StoreError(
            f"the checkpoint of job {job} has been deleted; only those of the front and of the "
            "last members are kept"
        )


class Log:
    """The journal of an experiment, a file per record because not every file system can append."""

    def __init__(self, files: pyarrow.fs.FileSystem, experiment: str) -> None:
        self.folder = posixpath.join(experiment, FOLDER)
        self._files = files
        self._next = 0

    def settings(self) -> RunConfig | None:
        """Return the settings of the experiment; None if there are none."""
        path = posixpath.join(self.folder, "run.toml")
        if self._files.get_file_info(path).type != pyarrow.fs.FileType.File:
            return None
        return RunConfig.from_toml(self._read_text(path), Path(path))

    def read(self) -> list[dict[str, Any]]:
        """Return all records, in order."""
        selector = pyarrow.fs.FileSelector(self.folder, allow_not_found=True)
        files = self._files.get_file_info(selector)
        paths = sorted(file.path for file in files if file.path.endswith(".json"))
        self._next = len(paths)
        return [json.loads(self._read_text(path)) for path in paths]

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record."""
        self.write(f"{self._next:08}.json", json.dumps(record))
        self._next += 1

    def write(self, name: str, text: str) -> None:
        """Write a file, under another name first so that it is never incomplete."""
        path = posixpath.join(self.folder, name)
        self._files.create_dir(self.folder, recursive=True)
        with self._files.open_output_stream(f"{path}.tmp") as stream:
            stream.write(text.encode())
        self._files.move(f"{path}.tmp", path)

    def _read_text(self, path: str) -> str:
        with self._files.open_input_stream(path) as stream:
            return str(stream.read().decode())
