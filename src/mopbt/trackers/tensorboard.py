"""TensorBoard as a tracker."""

import os
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mopbt.results import Results
from mopbt.trackers.base import (
    PRIVATE,
    Evaluation,
    LogPosition,
    PopulationMetrics,
    Tracker,
    import_package,
    track,
)

MAX_OPEN_FILES = 64
EVENT_FILES = "events.out.tfevents.*"


class TensorBoard(Tracker):
    """Writes event files: one run for the population, one for each branch.

    Metrics are under ``scores/``, hyperparameters under ``hyperparameters/``. The text ``origin``
    says where the weights of a branch came from.

    TensorBoard writes the name of the host into the names of its files. `private` replaces it.
    """

    def __init__(self, directory: Path | str, *, private: bool = False) -> None:
        self._private = private
        self._directory = Path(directory)
        # By name of the run, the one used last at the end.
        self._writers: OrderedDict[str, Any] = OrderedDict()

    def begin(self, results: Results) -> int:
        """Open the log of a run and return the number of reports it already holds."""
        import_package("tensorboard", "tensorboard")
        self._writer_type = import_package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._position = LogPosition.read(self._directory, results)
        if self._position.pending:
            self._remove_pending()
        self._started = time.time() - results.seconds
        return self._position.logged

    def write(
        self, evaluations: Sequence[Evaluation], population: Sequence[PopulationMetrics]
    ) -> None:
        """Add scalars and texts; a fork begins with the metrics of its donor."""
        runs = {"population", *(evaluation.branch.name for evaluation in evaluations)}
        self._position = self._position.begin_write({run: self._sizes(run) for run in runs})
        for evaluation in evaluations:
            self._write_evaluation(evaluation)
        for row in population:
            self._add_scalars("population", row.metrics, row.reports, row.seconds)
        for writer in self._writers.values():
            writer.flush()
        self._position = self._position.commit(len(evaluations))

    def end(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _sizes(self, run: str) -> dict[str, int]:
        """Return the size of each event file of a run."""
        files = (self._directory / run).glob(EVENT_FILES)
        return {file.name: file.stat().st_size for file in files}

    def _remove_pending(self) -> None:
        """Remove what a process wrote that died before it saved its position."""
        for run, sizes in self._position.pending.items():
            for file in (self._directory / run).glob(EVENT_FILES):
                if file.name in sizes:
                    os.truncate(file, sizes[file.name])
                else:
                    file.unlink()
        self._position = self._position.commit(0)

    def _write_evaluation(self, e: Evaluation) -> None:
        run = e.branch.name
        fork = e.branch.fork
        texts = {}
        if e.is_first:
            texts["origin"] = e.branch.origin
            if fork is not None:
                self._add_scalars(run, _prefix("scores", fork.scores), fork.step, fork.seconds)
        self._add_scalars(run, _prefix("scores", e.scores), e.step, e.seconds)
        self._add_scalars(run, _prefix("hyperparameters", e.numeric_hp), e.step, e.seconds)
        for name, value in e.hp.items():
            if name not in e.numeric_hp:
                texts[f"hyperparameters/{name}"] = str(value)
        if e.error:
            texts["error"] = e.error
        for name, text in texts.items():
            self._open(run).add_text(name, text, e.step, self._started + e.seconds)

    def _add_scalars(
        self, run: str, values: Mapping[str, float], step: int, seconds: float
    ) -> None:
        for name, value in values.items():
            self._open(run).add_scalar(name, value, step, self._started + seconds)

    def _open(self, run: str) -> Any:
        """Return the writer of a run.

        If there are too many, it closes the one unused for longest.
        """
        if run not in self._writers:
            with _hidden_host() if self._private else nullcontext():
                self._writers[run] = self._writer_type(str(self._directory / run))
        self._writers.move_to_end(run)
        if len(self._writers) > MAX_OPEN_FILES:
            self._writers.popitem(last=False)[1].close()
        return self._writers[run]


def _prefix(group: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in values.items()}


@contextmanager
def _hidden_host() -> Iterator[None]:
    """Hide the name of the host from TensorBoard, which has no option for that."""
    gethostname = socket.gethostname
    socket.gethostname = lambda: PRIVATE
    try:
        yield
    finally:
        socket.gethostname = gethostname


def to_tensorboard(results: Results, directory: Path | str, *, private: bool = False) -> None:
    """Write a run as TensorBoard event files below a directory."""
    track(results, TensorBoard(directory, private=private))
