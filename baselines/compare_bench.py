"""Compare two files that benchmarks wrote and list the values that got worse.

Run ``python baselines/compare_bench.py OLD NEW [--tolerance 0.2]``. The exit code is 1 if a value
is worse than before by more than the tolerance, or if a target that was met is missed. The
tolerance is relative: 0.2 allows a ratio of 1.0 to become 1.2 where lower is better. Rows without
a direction, such as times of other tools, are left out.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Rows = dict[tuple[str, str], dict[str, Any]]

# Rows that were renamed since the baseline was recorded: recorded name -> present name.
RENAMED: dict[str, str] = {}


def read(file: Path) -> Rows:
    """Return the rows of a file by benchmark and name."""
    rows = {}
    for benchmark, entry in json.loads(file.read_text())["benchmarks"].items():
        for row in entry["rows"]:
            rows[benchmark, RENAMED.get(row["name"], row["name"])] = row
    return rows


def verdict(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> str:
    """Return what got worse between two measurements of one row, "" if nothing did."""
    if old["met"] and new["met"] is False:
        return f"target {new['target']} was met and is missed"
    limit = old["ratio"] * (1 + tolerance)
    if new["better"] == "lower" and new["ratio"] > limit:
        return "worse"
    limit = old["ratio"] / (1 + tolerance)
    if new["better"] == "higher" and new["ratio"] < limit:
        return "worse"
    return ""


def main() -> int:
    """Print what got worse, what is gone and what is new."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.2, help="relative (0.2)")
    options = parser.parse_args()
    old, new = read(options.old), read(options.new)
    worse = 0
    for key in sorted(old.keys() & new.keys()):
        if found := verdict(old[key], new[key], options.tolerance):
            ratios = f"{old[key]['ratio']:.3f} -> {new[key]['ratio']:.3f}"
            print(f"{key[0]}: {key[1]}: {ratios}, {found}")
            worse += 1
    for title, missing in (("gone", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        for benchmark, name in sorted(missing):
            print(f"{benchmark}: {name}: {title}")
    print(f"{len(old.keys() & new.keys())} rows compared, {worse} worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
