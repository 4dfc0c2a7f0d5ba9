"""Train one interval of each of the paper's tasks at its own size, on fewer rows.

Run it with ``python benchmarks/paper_scale.py``; the exit code is 1 if a task takes more than ten
minutes of CPU time on one core, including the start of its process and the check. Networks,
batches, rates, attacks and epochs are those of the scale `paper`. Only the rows are fewer:
``--rows`` sets those of training, a quarter of it those of validation and of testing. Each task
trains in a process of its own; tasks whose data is missing are left out. ``--results`` names a file
to which each task appends a line of JSON. Tasks that are in the file are not measured again.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from measuring import Row, argument_parser, show

LIMIT = 600.0
RESULTS = Path("build/paper_scale.jsonl")
# Under attack, an update takes about 13 times and an evaluation about 40 times as long.
ROWS = {"table": 16384, "images": 2048, "attacked": 256}
NINE = (
    *("adult-precision-recall", "higgs-precision-recall", "click-precision-recall"),
    *("adult-fairness", "adult-fairness-3", "celeba-fairness", "celeba-fairness-3"),
    *("cifar10-robustness", "cifar100-robustness"),
)


def kind_of(name: str) -> str:
    if name.startswith("cifar"):
        return "attacked"
    return "images" if name.startswith("celeba") else "table"


def measure(name: str, rows: int) -> dict[str, Any]:
    """Train and evaluate a member for one interval in this process."""
    import torch

    import mopbt
    from mopbt.tasks.paper import TASKS

    torch.set_num_threads(1)
    found = TASKS[name]
    held_out = max(rows // 4, 1)
    scale = replace(found.scales["paper"], rows=rows, validation=held_out, test=held_out)
    task = found.build(found, scale)
    results = mopbt.run(
        task,
        out=None,
        algorithm="random-search",
        population=2,
        engine="local",
        budget=mopbt.Budget(jobs=1),
        progress=False,
    )
    (point,) = results.points()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "task": name,
        "rows": rows,
        "seconds": point.duration,
        "cpu": usage.ru_utime + usage.ru_stime,
        "bytes": usage.ru_maxrss * 1024,
        "load": os.getloadavg()[0],
        "metrics": {key: point.scores[key] for key in found.objectives},
    }


def measured(tasks: list[str], rows: int | None, file: Path) -> Iterator[dict[str, Any]]:
    """Measure tasks that are not in the file, and append them to it; yield all of them."""
    from mopbt.tasks import registry
    from mopbt.tasks.paper import TASKS

    lines = file.read_text().splitlines() if file.exists() else []
    known = {found["task"]: found for found in map(json.loads, lines)}
    for name in tasks:
        if name in known:
            yield known[name]
            continue
        if registry.state(TASKS[name].dataset) == "missing":
            print(f"{name}: its data is missing, {registry.explain(TASKS[name].dataset)}")
            continue
        number = rows or ROWS[kind_of(name)]
        command = [sys.executable, __file__, "--case", name, str(number)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            # The process has printed its traceback.
            yield {"task": name, "cpu": float("inf")}
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines_of:
            lines_of.write(done.stdout)
        yield json.loads(done.stdout)


def rows_of(tasks: list[str], rows: int | None, file: Path) -> Iterator[Row]:
    for found in measured(tasks, rows, file):
        detail = "failed"
        if "metrics" in found:
            metrics = ", ".join(f"{key} {value:.3g}" for key, value in found["metrics"].items())
            elapsed = f"{found['seconds']:.0f} s elapsed with a load of {found['load']:.0f}"
            detail = f"{found['rows']} rows, {elapsed}, {found['bytes'] / 1e9:.1f} GB, {metrics}"
        seconds = found["cpu"]
        label = f"CPU seconds: {found['task']}"
        yield Row(label, seconds, f"<= {LIMIT:g}", seconds <= LIMIT, detail)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, help=f"rows to train on ({ROWS})")
    parser.add_argument("--task", action="append", choices=NINE, help="only this task; repeatable")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"a file ({RESULTS})")
    parser.add_argument("--case", nargs=2, help="measure one task in this process")
    arguments = parser.parse_args()
    if arguments.case:
        name, rows = arguments.case
        print(json.dumps(measure(name, int(rows))))
        return 0
    tasks = arguments.task or list(NINE)
    return show(rows_of(tasks, arguments.rows, arguments.results), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
