"""The journal of a Ray Tune experiment under `MOPBT` or `MOASHA`, and its results.

Settings and lines are those of a run directory, and `History` reads them. The files cannot be those
of a `RunDirectory`, because Ray Tune opens, drives and restores an experiment itself:

- Its storage may be an object store, which neither appends to a file nor locks one. So each record
  is a file of its own.
- It does not tell a scheduler that the experiment has ended, so a lock would stay until the process
  ends, and `Tuner.restore` would fail in the same process.
- It keeps the checkpoints, under names of its own. So a record says where they are.
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs
from ray.tune import Checkpoint, ResultGrid

from mopbt.errors import StoreError
from mopbt.front import Front, Point
from mopbt.history import History, read_history
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.stores.base import Exchange
from mopbt.stores.memory import MemoryCheckpoints

# The folder beside the trials of an experiment.
FOLDER = "mopbt"


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
        journal = Journal.read(files, path)
        if journal is None:
            raise StoreError(
                f"{path} is not an experiment under MOPBT or MOASHA: it has no {FOLDER}/run.toml"
            )
        results = Results(journal.settings, MemoryCheckpoints())
        results.history = journal.history
        return Experiment(results, path, files, journal.paths)

    def front(self) -> Front:
        """Return the models that no other model dominates; all of them can be loaded."""
        return self.results.front()

    def checkpoint(self, point: Point | int) -> Checkpoint:
        """Return the checkpoint of a model; StoreError if it has been deleted."""
        model = point.model if isinstance(point, Point) else point
        if model in self._paths:
            path = posixpath.join(self.path, self._paths[model])
            if self.filesystem.get_file_info(path).type == pyarrow.fs.FileType.Directory:
                return Checkpoint(path, self.filesystem)
        raise StoreError(
            f"the checkpoint of model {model} has been deleted; only those of the front and of the "
            "last members are kept"
        )


class Journal:
    """What an experiment has recorded so far. Each record is a file.

    Attributes:
        settings: The settings that the experiment was started with.
        history: Its jobs, its reports, and the trials that Ray Tune ended.
        members: The index of a member by Ray Tune's trial id.
        paths: The paths of checkpoints by job, relative to the experiment.
    """

    def __init__(self, files: pyarrow.fs.FileSystem, experiment: str, settings: RunConfig) -> None:
        self.folder = posixpath.join(experiment, FOLDER)
        self.settings = settings
        self.history = History(settings.problem)
        self.members: dict[str, int] = {}
        self.paths: dict[int, str] = {}
        self._files = files
        self._records = 0

    @staticmethod
    def start(files: pyarrow.fs.FileSystem, experiment: str, settings: RunConfig) -> "Journal":
        """Start the journal of a new experiment."""
        journal = Journal(files, experiment, settings)
        journal._write("run.toml", settings.to_toml())
        return journal

    @staticmethod
    def read(files: pyarrow.fs.FileSystem, experiment: str) -> "Journal | None":
        """Read the journal of an experiment; None if it has none."""
        folder = posixpath.join(experiment, FOLDER)
        path = posixpath.join(folder, "run.toml")
        if files.get_file_info(path).type != pyarrow.fs.FileType.File:
            return None
        journal = Journal(files, experiment, RunConfig.from_toml(_text(files, path), Path(path)))
        found = files.get_file_info(pyarrow.fs.FileSelector(folder))
        names = sorted(file.path for file in found if file.path.endswith(".json"))
        records = [json.loads(_text(files, name)) for name in names]
        lines = [line for record in records for line in record["exchanges"]]
        journal.history = read_history(journal.settings.problem, lines, folder)
        for record in records:
            journal.members |= record["members"]
            journal.paths |= {int(job): place for job, place in record["paths"].items()}
        journal._records = len(records)
        return journal

    def append(
        self, exchanges: Sequence[Exchange], members: Mapping[str, int], paths: Mapping[int, str]
    ) -> None:
        """Write a record, then add it to what is recorded."""
        lines = [exchange.to_json() for exchange in exchanges]
        record = {"exchanges": lines, "members": members, "paths": paths}
        self._write(f"{self._records:08}.json", json.dumps(record))
        self._records += 1
        self.history.extend(lines)
        self.members |= members
        self.paths |= paths

    def _write(self, name: str, text: str) -> None:
        """Write a file, under another name first so that it is never incomplete."""
        path = posixpath.join(self.folder, name)
        self._files.create_dir(self.folder, recursive=True)
        with self._files.open_output_stream(f"{path}.tmp") as stream:
            stream.write(text.encode())
        self._files.move(f"{path}.tmp", path)


def _text(files: pyarrow.fs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return str(stream.read().decode())
