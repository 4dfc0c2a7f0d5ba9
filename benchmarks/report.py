"""Measure the CPU time of all tables and figures of a comparison of 500 runs.

Run it with ``python benchmarks/report.py [COMPARISON]``; the exit code is 1 if a target is missed.
The targets are a minute, and ten times the parsing of the journals' JSON. Without a comparison, the
script runs one on synthetic problems. Runs are copied under further seeds until there are 500.
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
ALGORITHMS = (
    "mo-pbt",
    "random-search",
    "pbt-random-scalarization",
    "pbt-max-scalarization",
    "mo-asha",
)


def run_comparison(out: Path) -> None:
    """Run a comparison on synthetic problems."""
    algorithms = {name: {"name": name} for name in ALGORITHMS}
    compare(
        Experiment(name="made", tasks=TASKS, algorithms=algorithms, seeds=(0,), time_of="mo-pbt"),
        out=out,
    )


def multiply_runs(source: Path, out: Path) -> None:
    """Copy the finished runs of a comparison under further seeds."""
    about = json.loads((source / "about.json").read_text())
    experiment = Experiment.read(source / "experiment.toml").at(about["scale"])
    finished = {
        run for run in experiment.plan() if (source / run.directory / "finished.json").exists()
    }
    seeds = len(experiment.seeds) * math.ceil(RUNS / len(finished))
    many = replace(experiment, seeds=seeds, scales={})
    for run in many.plan():
        original = replace(run, seed=experiment.seeds[run.seed % len(experiment.seeds)])
        if original in finished:
            shutil.copytree(
                source / original.directory,
                out / run.directory,
                ignore=shutil.ignore_patterns("checkpoints", "models"),
            )
    (out / "experiment.toml").write_text(many.to_toml())
    (out / "about.json").write_text(json.dumps(about | {"scale": None}))


def parse_journals(out: Path) -> int:
    """Parse all lines of all journals, and return their number."""
    return sum(
        len([json.loads(line) for line in file.open()])
        for file in out.glob("runs/*/*/*/journal.jsonl")
    )


def time_report(out: Path) -> float:
    """Return the CPU seconds of the command that writes the report."""
    command = [sys.executable, "-m", "mopbt", "compare", out / "experiment.toml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, "--out", out, "--only-report"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(source: Path | None) -> list[Row]:
    """Measure a report of the given comparison, or of a new one."""
    with tempfile.TemporaryDirectory() as place:
        if source is None:
            source = Path(place, "made")
            run_comparison(source)
        out = Path(place, "out")
        out.mkdir()
        multiply_runs(source, out)
        runs = len(list(out.glob("runs/*/*/*/finished.json")))
        seconds = time_report(out)
        (floor,) = cpu_times(lambda: parse_journals(out), repeats=1)
    return [
        Row(
            f"report of {RUNS} runs, CPU minutes",
            seconds / 60 * RUNS / runs,
            "<= 1",
            seconds * RUNS / runs <= 60,
        ),
        Row("report / parsing the journals' JSON", seconds / floor, "<= 10", seconds <= 10 * floor),
    ]


if __name__ == "__main__":
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "comparison",
        nargs="?",
        type=Path,
        help="a finished comparison, such as results/small/tables-5-7-tabular",
    )
    arguments = parser.parse_args()
    sys.exit(show(rows(arguments.comparison), arguments.json))
