"""Let others judge our algorithms: COCO's functions, learning curves, ARLBench.

``python benchmarks/judges.py`` measures all parts and writes docs/judges.md with its figures. Name
parts to measure only those. Every unit that is finished is one line in results/judges, so a rerun
resumes. ``--page`` only writes the page. The sizes are in `judging/plan.py`.

The parts `nsga2`, `tpe`, `grids` and `bayes` need the group `bench` and the extras `bo`, `optuna`
and `plot`. The part `arlbench` needs an environment of its own, with Python 3.11:

    python3.11 -m venv build/arlbench
    build/arlbench/bin/pip install -r benchmarks/judging/arlbench.txt
    python benchmarks/judges.py arlbench --arlbench build/arlbench/bin/python

All parts take about four hours of CPU time on one core, estimated from a few runs of each.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Small models are fastest on one thread. It must be set before numpy is imported.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

from judging.plan import FULL, PARTS, QUICK, Key, keys_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "judges"
ALGORITHMS = ("mo-pbt", "random-search")


def main(arguments: list[str] | None = None) -> None:
    """Measure what is missing, then write the page."""
    options = parse(arguments)
    size = QUICK if options.quick else FULL
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.page:
        for part in options.parts or PARTS:
            keys = keys_of(part, size, dict(map(read_algorithm, options.algorithms)))
            measure_missing(keys, options.out / f"{part}.jsonl", options.arlbench)
    from judging import page

    page.write(options.out, options.docs)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the lines are")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page is")
    parser.add_argument("--arlbench", default=sys.executable, help="Python of ARLBench")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        default=ALGORITHMS,
        help='algorithms of the part arlbench: names, or LABEL={"name": ..., OPTION: ...}',
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"a part must be one of {', '.join(PARTS)}, got {', '.join(unknown)}")
    if options.quick and options.out.resolve() == RESULTS:
        parser.error("--quick needs --out, so that its lines stay apart from the published ones")
    return options


def read_algorithm(text: str) -> tuple[str, dict[str, Any]]:
    """Return the label and the options of an algorithm.

    >>> read_algorithm('half={"name": "mo-pbt", "fraction": 0.5}')
    ('half', {'name': 'mo-pbt', 'fraction': 0.5})
    """
    from mopbt.algorithms import algorithm_of

    label, _, options = text.partition("=")
    algorithm = json.loads(options) if options else {"name": label}
    # It raises an error if an option is wrong.
    algorithm_of(algorithm)
    return label, algorithm


def measure_missing(keys: list[Key], file: Path, arlbench: str) -> None:
    """Measure the keys that the file lacks, and append a line for each."""
    known = {identity(line) for line in read(file)}
    missing = [key for key in keys if identity(key) not in known]
    begin = time.perf_counter()
    for n, key in enumerate(missing, 1):
        with file.open("a") as lines:
            lines.write(json.dumps(key | measure(key, arlbench)) + "\n")
        if n % 20 == 0 or n == len(missing):
            minutes = (time.perf_counter() - begin) / 60
            print(f"{file.stem}: {n} of {len(missing)} units in {minutes:.0f} min", flush=True)


def identity(line: Key) -> str:
    """Return what identifies a unit, without what was measured."""
    measured = {"hits", "gap", "value", "front", "cpu"}
    return json.dumps({key: value for key, value in line.items() if key not in measured})


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a file; remove an incomplete last one."""
    if not file.exists():
        return
    text = file.read_text()
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    yield from map(json.loads, text.splitlines())


def measure(key: Key, arlbench: str) -> dict[str, Any]:
    """Measure one unit."""
    if key["part"] == "arlbench":
        return measure_elsewhere(key, arlbench)
    if key["part"] == "halving":
        from judging import curves

        return curves.measure(key)
    from judging import functions

    return functions.measure(key)


def measure_elsewhere(key: Key, python: str) -> dict[str, Any]:
    """Measure one unit with another Python, which needs ARLBench."""
    script = Path(__file__).parent / "judging" / "cartpole.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [python, str(script), json.dumps(key)], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        hint = "; see arlbench.txt" if "No module named" in done.stderr else ""
        raise SystemExit(f"ARLBench failed with {python}{hint}:\n{done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main()
