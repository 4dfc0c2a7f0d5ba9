"""Measure branch coverage per package and compare it with the recorded baseline.

Run ``python baselines/measure_coverage.py [pytest arguments]``. The tests run with coverage.py,
also in worker processes and in programs that tests start. A package is a subpackage of `mopbt` or
a module of its root. The exit code is 1 if the branch coverage of a package fell by more than the
tolerance, or if a test failed.

Baselines are kept per selection of tests: ``-m "not slow"`` compares with a record of
``-m "not slow"`` only. Options of this script come before the arguments for pytest.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "baselines" / "coverage.json"
BUILD = ROOT / "build" / "coverage"
TOLERANCE = 0.5

# Packages renamed or moved since the baseline was recorded: recorded name -> present name.
RENAMED: dict[str, str] = {}


def run_tests(selection: list[str], workers: int) -> int:
    """Run pytest under coverage.py and return its exit code."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    by_file = ["--dist", "loadfile", "--no-loadscope-reorder"]
    parallel = ["-n", str(workers), *by_file] if workers else []
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", *parallel, *selection]
    return subprocess.run(command, cwd=ROOT, env=coverage_environment(), check=False).returncode


def coverage_environment() -> dict[str, str]:
    """Return an environment in which coverage.py finds its settings and data from any directory."""
    settings = {
        "COVERAGE_FILE": str(BUILD / "data"),
        "COVERAGE_RCFILE": str(ROOT / "pyproject.toml"),
    }
    return {**os.environ, **settings}


def read_files() -> dict[str, dict]:
    """Combine the data of all processes and return coverage.py's summary of each source file."""
    coverage = [sys.executable, "-m", "coverage"]
    environment = coverage_environment()
    if any(BUILD.glob("data.*")):
        combine = [*coverage, "combine", "--quiet", "--append"]
        subprocess.run(combine, cwd=ROOT, env=environment, check=True)
    report = BUILD / "report.json"
    export = [*coverage, "json", "--quiet", "-o", str(report)]
    subprocess.run(export, cwd=ROOT, env=environment, check=True)
    files = json.loads(report.read_text())["files"]
    return {name: entry["summary"] for name, entry in files.items()}


def package_of(file: str) -> str:
    """Return the package that a source file counts for."""
    parts = Path(file).with_suffix("").parts
    below = parts[parts.index("mopbt") + 1 :]
    return below[0] if len(below) == 1 else f"{below[0]}/"


def summarize(files: dict[str, dict]) -> dict[str, dict]:
    """Return covered and existing branches and lines per package, and of all together."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    keys = ("covered_branches", "num_branches", "covered_lines", "num_statements")
    for file, summary in files.items():
        for package in (package_of(file), "total"):
            for i, key in enumerate(keys):
                counts[package][i] += summary[key]
    return {
        package: {
            "branch_percent": percent(branches, of_branches),
            "branches": f"{branches}/{of_branches}",
            "line_percent": percent(lines, of_lines),
        }
        for package, (branches, of_branches, lines, of_lines) in sorted(counts.items())
    }


def percent(part: int, whole: int) -> float:
    """Return a percentage with two digits; nothing to cover is fully covered."""
    return round(100 * part / whole, 2) if whole else 100.0


def compare(old: dict[str, dict], new: dict[str, dict]) -> list[str]:
    """Print a table of both measurements and return the packages that fell."""
    old = {RENAMED.get(package, package): entry for package, entry in old.items()}
    fell = []
    print(f"{'package':<20} {'recorded':>9} {'now':>9}  branches covered")
    for package in sorted({*old, *new}, key=lambda name: (name == "total", name)):
        if package not in new:
            print(f"{package:<20} {old[package]['branch_percent']:9.2f} {'gone':>9}")
            continue
        value = new[package]["branch_percent"]
        before = old[package]["branch_percent"] if package in old else None
        shown = "new" if before is None else f"{before:.2f}"
        mark = ""
        if before is not None and value < before - TOLERANCE:
            mark = "  FELL"
            fell.append(package)
        print(f"{package:<20} {shown:>9} {value:9.2f}  {new[package]['branches']}{mark}")
    return fell


def main() -> int:
    """Run the tests, print the table, and record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--record", action="store_true", help="write the baseline")
    parser.add_argument("--reuse", action="store_true", help="read the data of the previous run")
    parser.add_argument("--workers", type=int, default=2, help="test processes, 0 for none")
    options, selection = parser.parse_known_args()
    code = 0 if options.reuse else run_tests(selection, options.workers)
    packages = summarize(read_files())
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    key = shlex.join(selection) or "all tests"
    fell = compare(records.get(key, {}), packages)
    if code:
        print(f"pytest ended with exit code {code}; nothing is recorded", file=sys.stderr)
        return code
    if options.record:
        RECORD.write_text(json.dumps({**records, key: packages}, indent=2) + "\n")
        return 0
    if key not in records:
        print(f"no baseline for {key!r}; record one with --record", file=sys.stderr)
        return 2
    if fell:
        names = ", ".join(fell)
        print(f"fell by more than {TOLERANCE} points: {names}", file=sys.stderr)
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
