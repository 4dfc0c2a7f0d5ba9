"""What the benchmarks share: CPU times side by side, and rows that are printed and kept as JSON."""

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

FILE = Path("build/bench.json")
QUIET = 0.5  # the load average up to which a machine counts as quiet


class Row(NamedTuple):
    """One measured value; without a target, `met` is None."""

    name: str
    ratio: float
    target: str = ""
    met: bool | None = None
    detail: str = ""
    better: str = ""  # "lower" or "higher", where no target says it

    def direction(self) -> str:
        """Return which values are better, "" if none are."""
        return {"<": "lower", ">": "higher"}.get(self.target[:1], self.better)


def cpu_times(*functions: Callable[[], object], number: int = 1, repeats: int = 3) -> list[float]:
    """Return the median CPU seconds of one call of each function, in turns so that all meet the same machine."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, seen in zip(functions, times, strict=True):
            begin = time.process_time()
            for _ in range(number):
                function()
            seen.append((time.process_time() - begin) / number)
    return [statistics.median(seen) for seen in times]


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, default=FILE, help=f"keep the rows here ({FILE})")
    return parser


def show(rows: Iterable[Row], file: Path) -> int:
    """Print rows as they come and keep them in a file; return 1 if a target is missed, else 0.

    The file has one entry per benchmark, so that several scripts can share it.
    """
    load = os.getloadavg()[0]
    seen = []
    for row in rows:
        verdict = "" if row.met is None else f"{row.target:<8} {'PASS' if row.met else 'FAIL'}"
        detail = f"({row.detail})" if row.detail else ""
        print(f"{row.name:<74} {row.ratio:9.3f}  {verdict:<13}  {detail}".rstrip(), flush=True)
        seen.append(row)
        _keep(seen, load, file)
    return 1 if any(row.met is False for row in seen) else 0


def _keep(rows: list[Row], load: float, file: Path) -> None:
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
