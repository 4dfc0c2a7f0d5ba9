"""Measure how long the command line takes to start, and to show a finished run."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from measuring import Row, argument_parser, show

LIMIT = 0.3


def seconds(arguments, repeats):
    """Return the median seconds and CPU seconds of a command."""
    command = [sys.executable, "-m", "mopbt", *arguments]
    # An installed package is compiled.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    walls = []
    cpus = []
    for _ in range(repeats):
        before = os.times()
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        walls.append(time.perf_counter() - began)
        after = os.times()
        children = after.children_user + after.children_system
        cpus.append(children - before.children_user - before.children_system)
    return statistics.median(walls), statistics.median(cpus)


def rows(repeats):
    """Measure commands that users wait for."""
    with tempfile.TemporaryDirectory() as folder:
        run = ["run", "toy", "--population", "8", "--engine", "local", "--quiet", "--out"]
        # This also compiles the modules.
        seconds([*run, f"{folder}/run"], 1)
        for name, arguments in {
            "mopbt --help": ["--help"],
            "mopbt front RUN, 8 x 10 reports": ["front", f"{folder}/run"],
        }.items():
            wall, cpu = seconds(arguments, repeats)
            detail = f"{cpu:.2f} s of CPU time"
            yield Row(f"{name}, seconds", wall, f"<= {LIMIT}", wall <= LIMIT, detail)


def main():
    """Print all rows."""
    parser = argument_parser(__doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=9)
    options = parser.parse_args()
    return show(rows(options.repeats), options.json)


if __name__ == "__main__":
    sys.exit(main())
