"""Execute the cases of many attacks, in several processes, and record which are finished.

An attack has units, which share their preparation, and a unit has cases. A finished case is a line
in the folder of the campaign, so a campaign that was interrupted continues where it stopped.
"""

import fcntl
import hashlib
import json
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SHOWN = 5  # failures of each unit
# Seconds that a case may take. Lifecycles start Ray several times, slowly on a busy machine.
PATIENCE = 180
# The modules of the attacks; each has `UNITS` and `cases(unit, bench)`.
ATTACKS = {
    "power losses": "attack.power_losses",
    "failing calls": "attack.failing_calls",
    "hostile worlds": "attack.hostile_worlds",
    "lifecycles": "attack.lifecycles",
    "mutated inputs": "attack.mutated_inputs",
}
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Sample:
    """A share of all cases, chosen by a seed."""

    share: float = 1.0
    seed: str = "0"

    def has(self, unit, case):
        """Return whether a case belongs to the sample."""
        digest = hashlib.blake2b(f"{self.seed} {unit} {case}".encode(), digest_size=6).digest()
        return int.from_bytes(digest) < self.share * 2**48


@dataclass(frozen=True)
class Unit:
    """A part of an attack, where it records its cases, and which of them it executes."""

    attack: str
    name: str
    folder: Path
    sample: Sample
    only: str = ""

    @property
    def slug(self):
        """Return a name for files."""
        text = f"{self.attack} {self.name}"
        return "".join(c if c.isalnum() else "-" for c in text).replace("--", "-")

    @property
    def record(self):
        """Return the file of finished cases."""
        return self.folder / f"{self.slug}.jsonl"


class Bench:
    """The places that the cases of a unit use: one in memory, if possible, and one that stays."""

    def __init__(self, unit):
        self.unit = unit
        memory = Path("/dev/shm")
        parent = memory if memory.is_dir() else Path(tempfile.gettempdir())
        key = hashlib.blake2b(str(unit.folder.absolute()).encode(), digest_size=6).hexdigest()
        self.path = parent / f"mopbt-attack-{key}" / unit.slug

    def fresh(self):
        """Return an empty directory, always the same one, because a run records its storage."""
        place = self.path / "root"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    def kept(self, make, *arguments):
        """Return what `make` returned when the campaign was started."""
        file = self.unit.folder / f"{self.unit.slug}.pickle"
        if not file.exists():
            made = pickle.dumps(make(*arguments))
            temporary = file.with_suffix(".tmp")
            temporary.write_bytes(made)
            temporary.replace(file)
        return pickle.loads(file.read_bytes())

    def close(self):
        """Remove the places, and their parent unless another unit uses it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()


class Hangs(BaseException):
    """A case takes too long."""


@contextmanager
def limited(seconds):
    """Raise Hangs after some seconds."""

    def end(number, frame):
        raise Hangs(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_unit(unit):
    """Execute the cases of a unit that are not finished; return the counts and the failures."""
    began = time.process_time()
    bench = Bench(unit)
    finished = _read_record(unit.record)
    module = import_module(ATTACKS[unit.attack])
    total = 0
    try:
        with unit.record.open("a") as record:
            for case, action in module.cases(unit.name, bench):
                total += 1
                wanted = unit.only in case if unit.only else unit.sample.has(unit.name, case)
                if not wanted or (case in finished and not unit.only):
                    continue
                finished[case] = _run_case(action)
                print(json.dumps([case, finished[case]]), file=record, flush=True)
    finally:
        bench.close()
    failures = {case: failure for case, failure in finished.items() if failure}
    return Result(unit, total, len(finished), failures, time.process_time() - began)


@dataclass(frozen=True)
class Result:
    """What became of a unit."""

    unit: Unit
    total: int
    finished: int
    failures: dict[str, str]
    seconds: float


def _read_record(file) -> dict[str, Any]:
    if not file.exists():
        return {}
    text = file.read_text()
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        # The last line was being written when the campaign was interrupted.
        file.write_text(complete)
    return dict(map(json.loads, complete.splitlines()))


def _run_case(action):
    """Return how a case failed; empty if it did not."""
    try:
        with limited(PATIENCE):
            action()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return traceback.format_exc()
    return ""


def fingerprint():
    """Return a hash of the code that is attacked and of the attack."""
    digest = hashlib.blake2b(digest_size=6)
    folders = (ROOT / "src", ROOT / "tests" / "attack")
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def units_of(folder, sample, attacks=(), only=""):
    """Return the units of some attacks, or of all."""
    units = []
    for attack in attacks or ATTACKS:
        for name in import_module(ATTACKS[attack]).UNITS:
            units.append(Unit(attack, name, folder, sample, only))
    return units


@contextmanager
def _locked(folder):
    """Hold the lock of a campaign."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{folder} is in use: another process executes this campaign")
        yield


def execute(units, workers, folder):
    """Execute units in processes, print what became of each, and return all results."""
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    with _locked(folder), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_unit, unit) for unit in units]):
            result = future.result()
            results.append(result)
            unit = result.unit
            print(
                f"{unit.attack:14} {unit.name:30} {result.finished:6} of {result.total:6}, "
                f"{len(result.failures):3} failed, {result.seconds:5.0f} s",
                flush=True,
            )
            for case, failure in list(result.failures.items())[:SHOWN]:
                print(f"{unit.attack}, {unit.name}, case {case}:\n{failure}", file=sys.stderr)
    return results


def summarize(results, sample):
    """Print and return the counts of all attacks."""
    finished = Counter()
    failed = Counter()
    for result in results:
        finished[result.unit.attack] += result.finished
        failed[result.unit.attack] += len(result.failures)
    parts = ", ".join(f"{count:,} {name}" for name, count in finished.items())
    seconds = sum(result.seconds for result in results)
    print(
        f"{parts}; {failed.total()} failed (sample {sample.share:g}, seed {sample.seed}; "
        f"{seconds / 60:.0f} CPU minutes in this session)"
    )
    return finished, failed
