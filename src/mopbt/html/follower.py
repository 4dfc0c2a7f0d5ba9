"""Following runs while others drive them: only reading, each journal from where the last look ended, and never with a run's lock.

What is read may be half-written, damaged, or hostile: the worst that it does is that a run is shown with what is wrong with it. No
symbolic link is followed below the directory, so nothing outside it is read.
"""

import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mopbt.errors import MopbtError
from mopbt.html.story import Story, thinned
from mopbt.run_config import RunConfig
from mopbt.stores.journal import decode_line

LARGEST = 2**20  # bytes of a run.toml or a lock
TAIL = 64  # bytes before the place that was read to: a journal that was cut and has grown again has others there
SPARK = 60  # points of a curve in a list of runs
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
    """A run that is followed: `look` reads what has come, `data` and `row` tell of it."""

    def __init__(self, path: Path, name: str, *, shown: str | None = None) -> None:
        self.path, self.name = path, name
        self.version = 0  # grows with every change
        self._shown = str(path) if shown is None else shown
        self._story: Story | None = None
        self._file, self._size, self._offset = (
            (-1, -1),
            -1,
            0,
        )  # of the journal: device and inode; how far it was seen, and read
        self._tail = b""
        self._driver = self._trouble = self._unread = ""

    def look(self) -> None:
        """Read what has come since the last look."""
        before = self._seen()
        self._unread = ""
        try:
            self._read()
        except OSError as error:
            self._unread = f"it cannot be read: {error.strerror or error}"
        except BROKEN as error:
            self._trouble = f"it cannot be shown: {error or type(error).__name__}"
        self._driver = driver_of(self.path)
        self.version += before != self._seen()

    @property
    def trouble(self) -> str:
        """Return what is wrong with the run; the empty string if nothing is."""
        return self._trouble or self._unread

    def _seen(self) -> tuple[Any, ...]:
        return self._file, self._offset, self._tail, self._driver, self.trouble

    def row(self) -> dict[str, Any]:
        """Return the run's line in a list, as JSON has it; where it cannot be shown, with the reason."""
        try:
            curve = thinned(self.story.curve(), SPARK)
            row = self.story.summary(driver=self._driver, trouble=self.trouble) | {"curve": curve}
            if (
                self.story.problem.reference is None
            ):  # above a point of its own, it cannot be compared
                row["hypervolume"] = None
            json.dumps(row, allow_nan=False)
        except BROKEN as error:
            return {"name": self.name, "path": self._shown, "trouble": self.trouble or str(error)}
        return row

    def data(self) -> dict[str, Any]:
        """Return the run's story, as JSON has it; ValueError where it cannot be told."""
        try:
            return self.story.data(driver=self._driver, trouble=self.trouble)
        except BROKEN as error:
            raise ValueError(f"the run {self.name} cannot be shown: {error}") from None

    @property
    def story(self) -> Story:
        """Return the run's story so far; ValueError says why there is none."""
        if self._story is None:
            raise ValueError(self.trouble or "it has not begun")
        return self._story

    def _read(self) -> None:
        if self.path.resolve() != self.path:
            raise OSError("its directory is a link now")
        with open_plainly(self.path / "journal.jsonl") as file:
            state = os.fstat(file.fileno())
            file.seek(self._offset - len(self._tail))
            if (state.st_dev, state.st_ino) != self._file or file.read(
                len(self._tail)
            ) != self._tail:
                self._begin((state.st_dev, state.st_ino))
            if state.st_size != self._size:
                self._size = state.st_size
                file.seek(self._offset)
                self._fold(
                    file.read().split(b"\n")[:-1]
                )  # what follows the last end of line is being written

    def _begin(self, file: tuple[int, int]) -> None:
        """Begin anew with a journal that was not seen before: the first, or one that was mended."""
        self._file, self._size, self._offset, self._tail, self._trouble = file, -1, 0, b"", ""
        self._story = Story(read_run_config(self.path), name=self.name, path=self._shown)

    def _fold(self, lines: list[bytes]) -> None:
        assert self._story is not None, "the settings were read first"
        for number, line in enumerate(lines, 1):
            exchange = decode_line(line)
            if exchange is None:
                if number < len(lines):  # the last one may be torn: then it never happened
                    self._trouble = f"a line of its journal is damaged; what stands before it is shown ({self._offset:,} bytes)"
                return
            self._story.fold([exchange])
            self._offset += len(line) + 1
            self._tail = (line + b"\n")[-TAIL:]


def open_plainly(path: Path) -> Any:
    """Open a regular file for reading, without following a link, and without waiting where it is none."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(f"{path.name} is not a regular file")


def read_run_config(path: Path) -> RunConfig:
    """Read the settings of a run's directory, without following a link."""
    with open_plainly(path / "run.toml") as file:
        return RunConfig.from_toml(file.read(LARGEST).decode("utf-8", "replace"), path / "run.toml")


def driver_of(path: Path) -> str:
    """Return who says to drive a run, if it is not a process of this machine that is gone; the run's lock is not touched."""
    try:
        with open_plainly(path / "lock") as file:
            said = file.read(LARGEST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    process = re.match(r"process (\d{1,9}) on (.*) since ", said)
    is_gone = (
        process is not None
        and process[2] == socket.gethostname()
        and not _is_alive(int(process[1]))
    )
    return "" if is_gone else str(said)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # the signal 0 only asks
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Go through the names and paths of the runs below a directory, which may be one itself; no link is followed."""
    for place, directories, files in os.walk(root):
        directories[:] = sorted(name for name in directories if name != "checkpoints")
        if "run.toml" in files:
            path = Path(place)
            name = root.resolve().name if path == root else path.relative_to(root).as_posix()
            yield os.fsencode(name).decode("utf-8", "replace"), path
