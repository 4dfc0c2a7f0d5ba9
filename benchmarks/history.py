"""The cost of opening and resuming long runs, as ratios to `json.loads` on the same lines.

Run it with ``python benchmarks/history.py``. It writes journals of a million lines (100 trials x
5,000 intervals, and 10,000 trials x 100) to a temporary directory, then opens each in a process of
its own: history, front, hypervolume and curve. Resuming adds the state of an asynchronous MO-PBT.
The exit code is 1 if a target is missed.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import Row, argument_parser, show

import mopbt
from mopbt.history import read_history
from mopbt.problem import Problem, make_problem
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange
from mopbt.stores.journal import encode_line, read_lines

SIZES = ((100, 5_000), (10_000, 100))
MEBIBYTE = 2**20


def problem_for(intervals: int) -> Problem:
    """Return a problem with three hyperparameters and two objectives."""
    return make_problem(
        name="long",
        space={
            "lr": mopbt.LogGrid(1e-4, 1, 10),
            "weight": mopbt.Grid(0, 1, 11),
            "dropout": mopbt.Float(0, 1),
        },
        objectives={"accuracy": "max", "dsp": "min"},
        constraints=(),
        interval=1,
        steps=intervals,
    )


def write_journal(file: Path, trials: int, intervals: int) -> None:
    """Write a run in which one of ten intervals starts from another trial's checkpoint."""
    rng = random.Random(0)
    latest: list[int | None] = [None] * trials
    with open(file, "wb") as out:
        for step in range(intervals):
            for trial in range(trials):
                id = step * trials + trial
                start = latest[trial]
                if step and rng.random() < 0.1:
                    start = latest[rng.randrange(trials)]
                config = (rng.randrange(10), rng.randrange(11), rng.random())
                job = Job(id, trial, config, start, step, step + 1)
                accuracy, dsp = rng.random(), rng.random()
                scores = {"accuracy": accuracy, "dsp": dsp}
                scores |= {f"test/{name}": score for name, score in scores.items()}
                report = Report(
                    id,
                    (accuracy, -dsp),
                    scores=scores,
                    checksum=f"{rng.getrandbits(128):032x}",
                    seconds=id / 100,
                    duration=0.01,
                )
                out.write(encode_line(Exchange(jobs=(job,))))
                out.write(encode_line(Exchange(reports=(report,))))
                latest[trial] = id


def measure(file: Path, trials: int, intervals: int) -> dict[str, float]:
    """Return the CPU seconds of parsing, opening and resuming, and the memory of opening."""
    began = time.process_time()
    with open(file, "rb") as lines:
        for line in lines:
            json.loads(line)
    parsed = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    history = read_history(problem_for(intervals), read_lines(file), file)
    history.hypervolume()
    history.curve()
    opened = time.process_time()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    algorithm = mopbt.MOPBT(population=trials, asynchronous=True)
    history.state(algorithm.scheduler(history.problem), 0)
    resumed = time.process_time()
    return {
        "floor": parsed - began,
        "open": opened - parsed,
        "resume": resumed - parsed,
        "mebibytes": (after - before) * 1024 / MEBIBYTE,
    }


def rows() -> Iterator[Row]:
    """Yield the ratios of both journals."""
    with tempfile.TemporaryDirectory() as folder:
        for trials, intervals in SIZES:
            file = Path(folder) / f"{trials}x{intervals}.jsonl"
            write_journal(file, trials, intervals)
            command = [
                sys.executable,
                __file__,
                "--measure",
                str(file),
                str(trials),
                str(intervals),
            ]
            seen = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            file.unlink()
            name = f"{2 * trials * intervals:,} lines, {trials:,} trials x {intervals:,} intervals"
            opened, resumed = (seen[key] / seen["floor"] for key in ("open", "resume"))
            detail = f"{seen['open']:.1f} s against {seen['floor']:.1f} s"
            yield Row(f"{name}: open / json.loads", opened, "<= 4", opened <= 4, detail)
            detail = f"{seen['resume']:.1f} s"
            yield Row(f"{name}: resume / json.loads", resumed, "<= 8", resumed <= 8, detail)
            memory = seen["mebibytes"]
            yield Row(f"{name}: MiB to open", memory, "<= 400", memory <= 400)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
    else:
        arguments = argument_parser(__doc__).parse_args()
        sys.exit(show(rows(), arguments.json))
