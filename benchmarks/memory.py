"""Measure the memory that evaluations of the paper's networks take, above the loaded data.

Run it with ``python benchmarks/memory.py``; the exit code is 1 if a target is missed. Each network
has the size of the scale `paper` and evaluates random rows in a process of its own. Peak memory is
reached with the first part of the rows, so a few hundred show what all rows need; ``--rows``
sets their number. Targets: 2 GB, alone and with a population of 8 members.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measuring import Row, argument_parser, show

TARGET = 2.0
CASES = {
    "CelebA, one member": ("celeba", 1),
    "CelebA, eight members": ("celeba", 8),
    "CIFAR-10 under attack, one member": ("cifar10", 1),
    "Higgs, one member": ("higgs", 1),
}
# The attack of an evaluation takes 40 times the time of a plain one.
ATTACKED_ROWS = 150


def build_task(data: str, rows: int) -> Any:
    """Build the paper's task with random rows."""
    import numpy as np

    from mopbt.tasks import registry
    from mopbt.tasks.datasets import ImageRows, Images, Tabular, TabularRows
    from mopbt.tasks.paper import TASKS

    rng = np.random.default_rng(0)

    def labels(n: int, classes: int = 2) -> Any:
        return rng.integers(classes, size=n)

    def images(n: int) -> ImageRows:
        height = 39 if data == "celeba" else 32
        x = rng.integers(256, size=(n, 3, height, 32), dtype=np.uint8)
        return ImageRows(x, labels(n, 2 if data == "celeba" else 10), labels(n))

    def table(n: int) -> TabularRows:
        numeric = rng.normal(size=(n, 28)).astype(np.float32)
        return TabularRows(numeric, np.zeros((n, 0), dtype=np.int64), labels(n), None)

    sizes = (1000, rows, 16)
    registry.load_images = lambda name: Images(*map(images, sizes))  # type: ignore[assignment]
    registry.load_tabular = lambda name: Tabular(  # type: ignore[assignment]
        *map(table, sizes), cardinalities=()
    )
    found = next(task for task in TASKS.values() if task.dataset == data)
    return found.at("paper", allow_partial_data=True)


def measure(data: str, members: int, rows: int) -> dict[str, float]:
    """Evaluate in this process; return its memory above the loaded data and the seconds."""
    import torch

    torch.set_num_threads(1)
    task = build_task(data, rows)
    models = [task.init(seed) for seed in range(members)]
    # A plain multiplication loads the libraries that every call uses.
    torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(2, 3, 3, 3))
    before = reset_peak()
    begin = time.perf_counter()
    task.evaluate_many(models)
    return {"bytes": peak_bytes() - before, "seconds": time.perf_counter() - begin}


def reset_peak() -> int:
    """Forget the peak of building the data, and return the memory of this process; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_of("VmRSS")


def peak_bytes() -> int:
    return memory_of("VmHWM")


def memory_of(key: str) -> int:
    """Return a number of bytes that the system knows about this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, default=600, help="rows to evaluate (19867 in CelebA)")
    parser.add_argument("--case", nargs=3, help="measure one case in this process")
    arguments = parser.parse_args()
    if arguments.case:
        data, members, rows = arguments.case
        print(json.dumps(measure(data, int(members), int(rows))))
        return 0
    results = []
    for name, (data, members) in CASES.items():
        rows = min(arguments.rows, ATTACKED_ROWS) if data == "cifar10" else arguments.rows
        command = [sys.executable, __file__, "--case", data, str(members), str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        gigabytes = found["bytes"] / 1e9
        detail = f"{rows} rows in {found['seconds']:.0f} s"
        results.append(Row(f"GB: {name}", gigabytes, f"<= {TARGET:g}", gigabytes <= TARGET, detail))
    return show(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
