"""Count the files and call edges that everyday actions pass through.

Run ``python baselines/measure_trace.py``. The exit code is 1 if an action enters more files or
passes over more edges than recorded.

Definitions:

- A *file* of `mopbt` is entered if one of its functions is called. Running the top level of a
  module and the bodies of its classes, which importing it does, is no call.
- An *edge* is a pair of different files of `mopbt`: the file of a called function, and the file of
  the innermost function of `mopbt` that was running. Frames of other packages, of generated code
  such as the `__init__` of a dataclass, and of this script are skipped on the way to the caller.
- Resuming a generator counts as a call by the function that resumes it.
- Only the process that drives is traced, with all of its threads; workers are not.

Actions:

- `generation`: MO-PBT with 8 members on a pool of two workers, from handing out the first job of
  the second generation to handing out the first job of the third. This includes one exploit.
- `comparison`: the function `mopbt.compare.compare` on two algorithms, two seeds and a synthetic
  task: plan, execute, collect.
- `compare`: the command ``mopbt compare`` on the same experiment, which also prints and writes
  tables and draws figures.
- `report`: the command ``mopbt report`` on the run of `generation`.
"""

import argparse
import inspect
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import mopbt
from mopbt.cli import app
from mopbt.compare import compare as compare_algorithms
from mopbt.tasks.toy import ToyTask

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "baselines" / "trace.json"
PACKAGE = str(Path(mopbt.__file__).parent) + "/"
EXPERIMENT = """
name = "small"
seeds = 2
workers = 4
time_of = "MO-PBT"
tasks = ["two-quadratics"]

[algorithms]
"MO-PBT" = { name = "mo-pbt", population = 8 }
"random search" = { name = "random-search" }
"""


class Tracer:
    """Collects the files that are entered and the calls between them."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        """Trace this thread and those that it starts."""
        threading.setprofile(self._handle)
        sys.setprofile(self._handle)

    def stop(self) -> None:
        """Trace no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def _handle(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        file = file_of(frame)
        if file is None or is_top_level(frame):
            return
        caller = frame.f_back
        while caller is not None and file_of(caller) is None:
            caller = caller.f_back
        if caller is not None and is_top_level(caller):
            return
        self.files.add(file)
        if caller is not None and file_of(caller) != file:
            self.calls[file_of(caller), file] += 1

    def summary(self) -> dict[str, Any]:
        """Return the counts and the lists; numbers of calls depend on timing and are left out."""
        edges = sorted(f"{caller} -> {called}" for caller, called in self.calls)
        counts = {"files": len(self.files), "edges": len(edges)}
        return {**counts, "entered": sorted(self.files), "passed": edges}


def file_of(frame: FrameType) -> str | None:
    """Return the path of a frame's code within the package, None for code of others."""
    path = frame.f_code.co_filename
    return path[len(PACKAGE) :] if path.startswith(PACKAGE) else None


def is_top_level(frame: FrameType) -> bool:
    """Return whether a frame runs a module or the body of a class, and not a function."""
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


class TracedPool(mopbt.PoolEngine):
    """A pool engine that traces the driver during the second generation."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(2)
        self.tracer = tracer

    def submit(self, jobs: Sequence[Any], *arguments: Any) -> None:
        """Start the trace with the second generation, stop it once the third is under way."""
        generation = max(job.begin for job in jobs) // ToyTask.interval
        if generation == 1:
            self.tracer.start()
        super().submit(jobs, *arguments)
        if generation == 2:
            self.tracer.stop()


def trace_generation(out: Path) -> Tracer:
    """Trace one generation on the pool."""
    tracer = Tracer()
    mopbt.run(ToyTask(), out=out, engine=TracedPool(tracer), population=8, progress=False)
    return tracer


def trace_comparison(experiment: Path, out: Path) -> Tracer:
    """Trace the function that executes a comparison."""
    tracer = Tracer()
    tracer.start()
    try:
        compare_algorithms(experiment, out=out, progress=False)
    finally:
        tracer.stop()
    return tracer


def trace_command(*arguments: str) -> Tracer:
    """Trace a command."""
    tracer = Tracer()
    tracer.start()
    try:
        app(list(arguments), prog_name="mopbt", standalone_mode=False)
    finally:
        tracer.stop()
    return tracer


def measure() -> dict[str, dict[str, Any]]:
    """Trace all actions in a temporary directory."""
    with tempfile.TemporaryDirectory() as folder:
        run, experiment = Path(folder, "run"), Path(folder, "small.toml")
        experiment.write_text(EXPERIMENT)
        # Equal texts are parsed once, and each action is to parse its own.
        other = Path(folder, "other.toml")
        other.write_text(EXPERIMENT.replace("small", "other"))
        comparison, page = str(Path(folder, "small")), str(Path(folder, "run.html"))
        tracers = {
            "generation": trace_generation(run),
            "comparison": trace_comparison(other, Path(folder, "other")),
            "compare": trace_command("compare", str(experiment), "--out", comparison, "--quiet"),
            "report": trace_command("report", str(run), "--out", page),
        }
    return {action: tracer.summary() for action, tracer in tracers.items()}


def compare(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> bool:
    """Print the counts of both and what is new; return whether a count rose."""
    rose = False
    for action, found in new.items():
        before = old.get(action, {})
        for count in ("files", "edges"):
            mark = "  ROSE" if found[count] > before.get(count, found[count]) else ""
            rose = rose or bool(mark)
            shown = before.get(count, "new")
            print(f"{action:<12} {count:<6} recorded {shown:>4}   now {found[count]:>4}{mark}")
        for edge in sorted({*found["passed"]} - {*before.get("passed", found["passed"])}):
            print(f"    new edge: {edge}")
    return rose


def main() -> int:
    """Trace, print the table, and record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the baseline")
    options = parser.parse_args()
    found = measure()
    rose = compare(json.loads(RECORD.read_text()) if RECORD.exists() else {}, found)
    if options.record:
        RECORD.write_text(json.dumps(found, indent=2) + "\n")
        return 0
    return 1 if rose else 0


if __name__ == "__main__":
    sys.exit(main())
