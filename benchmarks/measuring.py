"""Measure CPU times side by side, and print and save rows of benchmarks."""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import mopbt

FILE = Path("build/bench.json")
# The load average up to which a machine counts as quiet.
QUIET = 0.5


class Row(NamedTuple):
    """Hold one measured value.

    Attributes:
        name: What was measured.
        ratio: The value.
        target: The limit, such as "<= 1.1", if there is one.
        met: Whether the target is met; None without a target.
        detail: Further text to print.
        better: "lower" or "higher", if no target says it.
    """

    name: str
    ratio: float
    target: str = ""
    met: bool | None = None
    detail: str = ""
    better: str = ""

    def direction(self) -> str:
        """Return which values are better, "" if none are."""
        return {"<": "lower", ">": "higher"}.get(self.target[:1], self.better)


def cpu_times(*functions: Callable[[], object], number: int = 1, repeats: int = 3) -> list[float]:
    """Return the median CPU seconds of one call of each function.

    The functions take turns, so that all meet the same conditions.
    """
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, seen in zip(functions, times, strict=True):
            begin = time.process_time()
            for _ in range(number):
                function()
            seen.append((time.process_time() - begin) / number)
    return [statistics.median(seen) for seen in times]


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, default=FILE, help=f"save the rows here ({FILE})")
    return parser


def show(rows: Iterable[Row], file: Path) -> int:
    """Print and save rows as they arrive; return 1 if a target is missed, else 0.

    The file has one entry per benchmark, so that several scripts can share it.
    """
    load = os.getloadavg()[0]
    seen = []
    for row in rows:
        verdict = "" if row.met is None else f"{row.target:<8} {'PASS' if row.met else 'FAIL'}"
        detail = f"({row.detail})" if row.detail else ""
        print(f"{row.name:<74} {row.ratio:9.3f}  {verdict:<13}  {detail}".rstrip(), flush=True)
        seen.append(row)
        _save(seen, load, file)
    return 1 if any(row.met is False for row in seen) else 0


def _save(rows: list[Row], load: float, file: Path) -> None:
    entries = [{**row._asdict(), "better": row.direction()} for row in rows]
    for entry in entries:
        entry["ratio"] = float(f"{entry['ratio']:.4g}")
        entry["met"] = None if entry["met"] is None else bool(entry["met"])
    content = json.loads(file.read_text()) if file.exists() else {"benchmarks": {}}
    content["machine"] = {"cores": os.cpu_count(), "python": platform.python_version()}
    benchmark = Path(sys.argv[0]).stem
    content["benchmarks"][benchmark] = {
        "load": round(load, 2),
        "quiet": load <= QUIET,
        "rows": entries,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n")


class EmptyTask:
    """Define a task that does nothing."""

    space = {"x": mopbt.Float(0, 1)}
    objectives = {"a": "max", "b": "max"}
    interval = 1
    steps = 20
    dump = staticmethod(mopbt.dumps)
    load = staticmethod(mopbt.loads)

    def init(self, seed):
        """Create a minimal model."""
        return {"x": 0.0}

    def train(self, model, hp, begin, end, seed):
        """Only read the hyperparameter."""
        model["x"] = hp["x"]

    def evaluate(self, model):
        """Return the hyperparameter as metrics."""
        return {"a": model["x"], "b": -model["x"]}
