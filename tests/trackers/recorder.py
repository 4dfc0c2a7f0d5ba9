"""A tracker that writes what it is told into a file, where other processes and the tests find it."""

from pathlib import Path


class Recorder:
    """Writes a line for each piece that it gets: the jobs, or that it came to an end."""

    def __init__(self, file, fails=False):
        self.file, self.fails = Path(file), fails

    def begin(self, results):
        return len(self.jobs())

    def write(self, evaluations, standings):
        assert len(evaluations) == len(standings)
        self._append(" ".join(str(e.job) for e in evaluations))
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
