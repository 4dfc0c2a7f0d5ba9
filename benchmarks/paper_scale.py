"""Train one interval of each of the paper's tasks at its own size, on fewer rows.

Run it with ``python benchmarks/paper_scale.py``; the exit code is 1 if an interval takes more than
ten minutes. Networks, batches, rates, attacks and epochs are those of the scale `paper`. Only the
rows are fewer: ``--rows`` sets those of training, a quarter of it those of validation and of
testing. Each task trains in a process of its own; tasks whose data is missing are left out.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from measuring import Row, argument_parser, show

LIMIT = 600.0
# Under attack, an update takes about 13 times and an evaluation about 40 times as long.
ROWS = {"table": 2048, "images": 512, "attacked": 256}
NINE = (
    *("adult-precision-recall", "higgs-precision-recall", "click-precision-recall"),
    *("adult-fairness", "adult-fairness-3", "celeba-fairness", "celeba-fairness-3"),
    *("cifar10-robustness", "cifar100-robustness"),
)


def kind_of(name: str) -> str:
    if name.startswith("cifar"):
        return "attacked"
    return "images" if name.startswith("celeba") else "table"


def measure(name: str, rows: int) -> dict[str, float]:
    """Train and evaluate a member for one interval in this process."""
    import mopbt
    from mopbt.tasks.paper import TASKS

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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": point.duration, "bytes": peak, **point.scores}


def rows_of(tasks: list[str], rows: int | None) -> Iterator[Row]:
    from mopbt.tasks import registry
    from mopbt.tasks.paper import TASKS

    for name in tasks:
        if registry.state(TASKS[name].dataset) == "missing":
            print(f"{name}: its data is missing, {registry.explain(TASKS[name].dataset)}")
            continue
        number = rows or ROWS[kind_of(name)]
        command = [sys.executable, __file__, "--case", name, str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            yield Row(f"seconds: {name}", float("inf"), f"<= {LIMIT:g}", False, "failed")
            continue
        found = json.loads(done.stdout)
        metrics = [f"{key} {found[key]:.3g}" for key in TASKS[name].objectives]
        detail = f"{number} rows, {found['bytes'] / 1e9:.1f} GB, {', '.join(metrics)}"
        seconds = found["seconds"]
        yield Row(f"seconds: {name}", seconds, f"<= {LIMIT:g}", seconds <= LIMIT, detail)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, help=f"rows to train on ({ROWS})")
    parser.add_argument("--task", action="append", choices=NINE, help="only this task; repeatable")
    parser.add_argument("--case", nargs=2, help="measure one task in this process")
    arguments = parser.parse_args()
    if arguments.case:
        name, rows = arguments.case
        print(json.dumps(measure(name, int(rows))))
        return 0
    return show(rows_of(arguments.task or list(NINE), arguments.rows), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
