"""Attack the store: enumerate power losses, let every call to the disk fail, count what broke.

`make attack` runs it in full; `--sample 0.05 --seed COMMIT` takes a part that the seed chooses.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from attack.crash_states import Recorder, crash_states, write_tree
from attack.faults import KINDS, FailingDisk
from attack.scenarios import SCENARIOS, disk, outcome, sound_reports
from mopbt import Callback
from mopbt.errors import StoreError

SHOWN = 5  # failures of each attack
LONG = 40  # steps of the runs that lose power


class Acknowledged(Callback):
    """Notes after how many calls each report was shown to the user."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.reports = {}

    def on_report(self, run, reports):
        for report in reports:
            if not report.error:
                self.reports[report.job] = len(self.recorder.events)


class Bench:
    """A directory in memory, if the machine has one, that is emptied for each attack."""

    def __init__(self):
        parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="mopbt-attack-", dir=parent))

    def fresh(self):
        """Return an empty directory, always the same one, because a run records its storage."""
        place = self.path / "root"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)


def crash(scenario, sample, seed):
    """Resume a scenario from every state after a power loss; return counts and failures."""
    scenario = replace(scenario, steps=LONG)
    bench = Bench()
    try:
        root = bench.fresh()
        recorder = Recorder(root)
        acknowledged = Acknowledged(recorder)
        with disk(recorder):
            scenario.attack(root, [acknowledged])
        expected = outcome(root)
        rng = random.Random(f"{seed} {scenario.name}")
        count = 0
        failures = []
        for number, tree in crash_states(recorder, seed=seed):
            if rng.random() >= sample:
                continue
            count += 1
            promised = {job for job, at in acknowledged.reports.items() if at <= number}
            try:
                resume_crashed(scenario, bench.fresh(), tree, promised, expected)
            except BaseException:
                failures.append(f"after call {number}: {traceback.format_exc()}")
        return count, failures
    finally:
        bench.close()


def resume_crashed(scenario, root, tree, promised, expected):
    write_tree(tree, root)
    kept = sound_reports(root)
    for job in promised:
        assert kept.get(job) == expected.reports[job], f"the report of job {job} is lost"
    scenario.execute(root)
    resumed = outcome(root)
    if scenario.identical:
        assert resumed == expected, "the resumed run differs"


def fail_calls(scenario, sample, seed):
    """Let each call of a scenario fail once; return counts and failures."""
    bench = Bench()
    try:
        root = bench.fresh()
        with disk(FailingDisk(0, "EIO")) as counting:
            scenario.attack(root)
        expected = outcome(root)
        rng = random.Random(f"{seed} {scenario.name}")
        count = 0
        failures = []
        for call in range(1, counting.calls + 1):
            for kind in KINDS:
                if rng.random() < sample:
                    count += 1
                    try:
                        fail_call(scenario, bench.fresh(), call, kind, expected)
                    except BaseException:
                        failures.append(f"call {call}, {kind}: {traceback.format_exc()}")
        return count, failures
    finally:
        bench.close()


def fail_call(scenario, root, call, kind, expected):
    with disk(FailingDisk(call, kind)) as failing:
        try:
            scenario.attack(root)
        except StoreError as error:
            text = str(error)
            assert kind != "short", f"a short write is completed, got: {text}"
            assert str(root) in text, f"the message names no file: {text}"
            assert "rerun" in text or "try again" in text, f"the message names no remedy: {text}"
    scenario.execute(root)
    resumed = outcome(root)
    if scenario.identical:
        assert resumed == expected, f"the run differs after {failing.failed} failed"


ATTACKS = {"power losses": crash, "failing calls": fail_calls}


def run_attack(task):
    name, number, sample, seed = task
    began = time.monotonic()
    count, failures = ATTACKS[name](SCENARIOS[number], sample, seed)
    return name, SCENARIOS[number].name, count, failures, time.monotonic() - began


def attack(sample, seed, workers):
    """Execute all attacks, print a summary, and return the failures."""
    tasks = [(name, n, sample, seed) for name in ATTACKS for n in range(len(SCENARIOS))]
    totals = dict.fromkeys(ATTACKS, 0)
    every_failure = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, scenario, count, failures, seconds in pool.map(run_attack, tasks):
            print(
                f"{name:14} {scenario:30} {count:6} {len(failures):4} failed {seconds:6.0f} s",
                flush=True,
            )
            for failure in failures[:SHOWN]:
                print(failure, file=sys.stderr)
            totals[name] += count
            every_failure += failures
    parts = ", ".join(f"{count:,} {name}" for name, count in totals.items())
    print(f"{parts}; {len(every_failure)} failed (seed {seed})")
    return every_failure


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=float, default=1.0, help="the share of all attacks")
    parser.add_argument("--seed", default="0", help="chooses the sample")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    sys.exit(1 if attack(arguments.sample, arguments.seed, arguments.workers) else 0)


if __name__ == "__main__":
    main()
