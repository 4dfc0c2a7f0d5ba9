"""A tracker that writes to a file, where tests and other processes can read it."""

from pathlib import Path

from mopbt.trackers import Tracker


class Recorder(Tracker):
    """Writes a line with the jobs for each call of `write`, and "end" for each call of `end`."""

    def __init__(self, file, fails=False):
        self.file = Path(file)
        self.fails = fails

    def begin(self, results):
        return len(self.jobs())

    def write(self, evaluations, population):
        assert len(evaluations) == len(population)
        self._append(" ".join(str(e.model) for e in evaluations))
        if self.fails:
            raise OSError("the server is gone")

    def end(self):
        self._append("end")

    def lines(self):
        return self.file.read_text().splitlines() if self.file.exists() else []

    def jobs(self):
        return [int(job) for line in self.lines() if line != "end" for job in line.split()]

    def _append(self, line):
        with self.file.open("a") as file:
            file.write(line + "\n")
