"""All tables and figures of a comparison of 500 runs, in CPU time: against a minute, and against parsing the journals' JSON alone.

Run it with ``python benchmarks/report.py [COMPARISON]``; the exit code is 1 if a target is missed. The runs of a comparison, or of
one on synthetic problems that it makes, are copied under further seeds until they are 500.
"""

import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from measuring import Row, argument_parser, cpu_times, show

from mopbt.compare import Experiment, compare

RUNS = 500
TASKS = ("two-quadratics", "annealing", "trade-off", "three-skills", "late-bloomers")
ALGORITHMS = ("mo-pbt", "random-search", "pbt-random-scalarization", "pbt-max-scalarization", "mo-asha")


def made(out: Path) -> None:
    """Make a comparison on synthetic problems."""
    algorithms = {name: {"name": name} for name in ALGORITHMS}
    compare(Experiment(name="made", tasks=TASKS, algorithms=algorithms, seeds=(0,), time_of="mo-pbt"), out=out)


def multiplied(source: Path, out: Path) -> None:
    """Copy the finished runs of a comparison under further seeds."""
    about = json.loads((source / "about.json").read_text())
    experiment = Experiment.read(source / "experiment.toml").at(about["scale"])
    there = {run for run in experiment.plan() if (source / run.directory / "finished.json").exists()}
    many = replace(experiment, seeds=len(experiment.seeds) * math.ceil(RUNS / len(there)), scales={})
    for run in many.plan():
        original = replace(run, seed=experiment.seeds[run.seed % len(experiment.seeds)])
        if original in there:
            shutil.copytree(
                source / original.directory, out / run.directory, ignore=shutil.ignore_patterns("checkpoints", "models")
            )
    (out / "experiment.toml").write_text(many.to_toml())
    (out / "about.json").write_text(json.dumps(about | {"scale": None}))


def parsed(out: Path) -> int:
    """Parse every line of all journals, and nothing else; return how many there are."""
    return sum(len([json.loads(line) for line in file.open()]) for file in out.glob("runs/*/*/*/journal.jsonl"))


def reported(out: Path) -> float:
    """Return the CPU seconds of a report by the command, from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "mopbt", "compare", out / "experiment.toml", "--out", out, "--only-report"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(source: Path | None) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        if source is None:
            source = Path(place, "made")
            made(source)
        out = Path(place, "out")
        out.mkdir()
        multiplied(source, out)
        runs = len(list(out.glob("runs/*/*/*/finished.json")))
        seconds = reported(out)
        (floor,) = cpu_times(lambda: parsed(out), repeats=1)
    minutes = seconds / 60 * RUNS / runs
    return [
        Row(f"report of {RUNS} runs, CPU minutes", minutes, "<= 1", minutes <= 1),
        Row("report / parsing the journals' JSON", seconds / floor, "<= 10", seconds <= 10 * floor),
    ]


if __name__ == "__main__":
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("comparison", nargs="?", type=Path, help="a finished comparison, such as results/small/tables-5-7-tabular")
    arguments = parser.parse_args()
    sys.exit(show(rows(arguments.comparison), arguments.json))
