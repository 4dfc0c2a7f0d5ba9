"""Follow runs that other processes execute, without their lock.

A look reads only what was added since the last one. What is read may be incomplete, damaged or
hostile: then the run is shown with what is wrong with it. No symbolic link below the directory is
followed, so nothing outside of it is read.
"""

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from mopbt.errors import MopbtError
from mopbt.evaluations import FILE as EVALUATIONS
from mopbt.evaluations import Evaluation, Evaluations
from mopbt.filesystem import open_to_read, read_file, read_settings
from mopbt.history import History
from mopbt.html.run_data import RunData, importance_data, thinned
from mopbt.importance import FEWEST, intervals_of
from mopbt.limits import LINE_BYTES
from mopbt.locking import holder_of
from mopbt.run_config import RunConfig
from mopbt.stores.journal import parse_line

# Maximum number of bytes of a lock that are read.
LARGEST = 2**20
# Maximum number of bytes of evaluations outside of the search that are read.
MOST_EVALUATED = 2**26
# A journal that was cut and has grown again differs in these last bytes that were read.
TAIL = 64
# The importance of hyperparameters of a run in progress is measured after this many reports, and
# again whenever their number has doubled.
SETTLED = 100
# Points of a curve in a list of runs.
SPARK = 60
BROKEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    MopbtError,
)


class Follower:
    """A run that another process executes.

    `look` reads what is new, `row` and `data` show it.
    """

    def __init__(self, path: Path, name: str, *, shown: str | None = None) -> None:
        self.path = path
        self.name = name
        # Grows with every change.
        self.version = 0
        self._shown = str(path) if shown is None else shown
        self._run: RunData | None = None
        # Device and inode of the journal.
        self._file = (-1, -1)
        self._size = -1
        # How many bytes of the journal were read.
        self._offset = 0
        self._tail = b""
        # How many bytes of evaluations were read.
        self._evaluated = 0
        # How many reports the measured importance covers.
        self._explained = 0
        self._measuring: threading.Thread | None = None
        self._driver = ""
        self._trouble = ""
        self._unread = ""
        self._last_seen = self._seen()

    def look(self) -> None:
        """Read what has come since the last look."""
        self._unread = ""
        try:
            self._read()
        except OSError as error:
            self._unread = f"it cannot be read: {error.strerror or error}"
        except BROKEN as error:
            self._trouble = f"it cannot be shown: {error or type(error).__name__}"
        self._driver = driver_of(self.path)
        # What was measured in another thread since the last look counts as well.
        seen = self._seen()
        self.version += seen != self._last_seen
        self._last_seen = seen

    @property
    def trouble(self) -> str:
        """Return what is wrong with the run; empty if nothing is."""
        return self._trouble or self._unread

    def _seen(self) -> tuple[Any, ...]:
        journal = (self._file, self._offset, self._tail)
        return *journal, self._evaluated, self._explained, self._driver, self.trouble

    def row(self) -> dict[str, Any]:
        """Return the run's row in a list; if it cannot be shown, the row says why."""
        try:
            row = self.run.summary(driver=self._driver, trouble=self.trouble)
            row["curve"] = thinned(self.run.curve(), SPARK)
            if self.run.problem.reference is None:
                # A hypervolume above the run's own reference point cannot be compared.
                row["hypervolume"] = None
            json.dumps(row, allow_nan=False)
        except BROKEN as error:
            return {"name": self.name, "path": self._shown, "trouble": self.trouble or str(error)}
        return row

    def data(self) -> dict[str, Any]:
        """Return the data of the run's page; ValueError if it cannot be shown."""
        try:
            self._measure_importance()
            return self.run.data(driver=self._driver, trouble=self.trouble)
        except BROKEN as error:
            raise ValueError(f"the run {self.name} cannot be shown: {error}") from None

    @property
    def run(self) -> RunData:
        """Return the run as far as it was read; ValueError if nothing was."""
        if self._run is None:
            raise ValueError(self.trouble or "it has not begun")
        return self._run

    def _read(self) -> None:
        if self.path.resolve() != self.path:
            raise OSError("its directory has become a link")
        with open_to_read(self.path / "journal.jsonl", follow_links=False) as file:
            state = os.fstat(file.fileno())
            file.seek(self._offset - len(self._tail))
            is_same = (state.st_dev, state.st_ino) == self._file
            if not is_same or file.read(len(self._tail)) != self._tail:
                self._start_over((state.st_dev, state.st_ino))
            if state.st_size != self._size:
                self._size = state.st_size
                file.seek(self._offset)
                self._extend(file)
        self._read_evaluations()

    def _read_evaluations(self) -> None:
        """Read the metrics on other rows, if there are new ones."""
        try:
            data = read_file(self.path / EVALUATIONS, MOST_EVALUATED, follow_links=False)
        except FileNotFoundError:
            data = b""
        if len(data) != self._evaluated:
            self._evaluated = len(data)
            lines = filter(None, map(parse_line, data.splitlines()))
            self.run.evaluations = Evaluations(map(Evaluation.from_json, lines))

    def _measure_importance(self) -> None:
        """Measure the importance of hyperparameters, if it is due, without waiting for it."""
        count = len(self.run.history.reports)
        due = max(SETTLED, 2 * self._explained) if self._driver else self._explained + 1
        due = max(due, FEWEST)
        is_busy = self._measuring is not None and self._measuring.is_alive()
        if count < due or is_busy:
            return
        run = self.run
        # The history may grow meanwhile.
        intervals = intervals_of(run.history)

        def measure() -> None:
            with suppress(*BROKEN):
                run.importance = importance_data(intervals)
            self._explained = count

        self._measuring = threading.Thread(target=measure, daemon=True)
        self._measuring.start()

    def _start_over(self, file: tuple[int, int]) -> None:
        """Forget everything: this journal was not seen before, or was repaired."""
        self._file = file
        self._size = -1
        self._offset = 0
        self._tail = b""
        self._evaluated = 0
        self._explained = 0
        self._trouble = ""
        settings = read_run_config(self.path)
        self._run = RunData(settings, History(settings.problem), name=self.name, path=self._shown)

    def _extend(self, file: IO[bytes]) -> None:
        # What follows the last newline is still being written.
        while (line := file.readline(LINE_BYTES)).endswith(b"\n"):
            parsed = parse_line(line[:-1])
            if parsed is None:
                # An incomplete last line is ignored.
                if file.readline(LINE_BYTES).endswith(b"\n"):
                    self._trouble = (
                        "a line of its journal is damaged; what comes before it is shown "
                        f"({self._offset:,} bytes)"
                    )
                return
            self.run.history.extend([parsed])
            self._offset += len(line)
            self._tail = line[-TAIL:]
        if len(line) == LINE_BYTES:
            self._trouble = f"a line of its journal has more than {LINE_BYTES:,} bytes"


def read_run_config(path: Path) -> RunConfig:
    """Read the settings of a run's directory, without following a link."""
    file = path / "run.toml"
    return RunConfig.from_toml(read_settings(file, follow_links=False), file)


def driver_of(path: Path) -> str:
    """Return the process that is executing a run, as its lock file names it.

    A process of this machine that has ended does not count. The lock itself is not touched.
    """
    try:
        with open_to_read(path / "lock", follow_links=False) as file:
            holder = file.read(LARGEST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    process = re.match(r"process (\d{1,9}) on (.*) since ", holder)
    if sys.platform == "win32":
        # Signal 0 would be Ctrl-C there.
        return holder_of(path)
    is_gone = (
        process is not None
        and process[2] == socket.gethostname()
        and not _is_alive(int(process[1]))
    )
    return "" if is_gone else str(holder)


def _is_alive(process: int) -> bool:
    try:
        # Signal 0 only tests whether the process exists.
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of the runs below a directory.

    Links are not followed.
    """
    for place, directories, files in os.walk(root):
        directories[:] = sorted(name for name in directories if name != "checkpoints")
        if "run.toml" in files:
            path = Path(place)
            name = root.resolve().name if path == root else path.relative_to(root).as_posix()
            yield os.fsencode(name).decode("utf-8", "replace"), path
