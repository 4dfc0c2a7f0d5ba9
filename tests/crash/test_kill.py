"""The driver is killed at random moments; the run must end as if nothing had happened."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mopbt import Results
from mopbt.algorithms import algorithm_of
from mopbt.archive import Archive, entry_of
from mopbt.state import State, required_checkpoints, with_jobs
from mopbt.stores.journal import decode_line, read_journal

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the driver of these tests forks")

KILLED = -9
PLACES = [
    ("journal", "before"),
    ("journal", "torn"),
    ("journal", "after"),
    ("acted", ""),
    ("drop", ""),
]
LOCAL_PLACES = [*PLACES, ("checkpoint", "before"), ("checkpoint", "torn"), ("checkpoint", "after")]


class Driver:
    def __init__(self):
        command = [sys.executable, str(Path(__file__).parent / "driver.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, out, engine, asynchronous, kill=None):
        order = {"out": str(out), "engine": engine, "asynchronous": asynchronous, "kill": kill}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def driver():
    driver = Driver()
    yield driver
    driver.close()


def random_kill(rng, engine):
    dice = rng.random()
    if dice < 0.2:
        return ["time", rng.uniform(0.0, 0.08) if engine == "local" else rng.uniform(0.02, 0.5)]
    if engine == "pool" and dice < 0.45:
        return ["worker", rng.choice([2, 4, 6, 8, 10, 12])]
    place, moment = rng.choice(LOCAL_PLACES if engine == "local" else PLACES)
    return [place, rng.randint(1, 8), moment]


def good_part(out):
    journal = out / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    return b"\n".join(lines[:-1] if lines and decode_line(lines[-1]) is None else lines)


def kill_until_done(driver, out, engine, asynchronous, rng):
    """Kill the run at random moments until it ends; no report may be lost by a kill."""
    kills = 0
    while True:
        before = good_part(out)
        code = driver(out, engine, asynchronous, random_kill(rng, engine))
        assert code in (0, KILLED)
        assert good_part(out).startswith(before), "something that was written down is lost"
        if code == 0:
            return kills
        kills += 1


def events(out):
    """Return all jobs and reports of a journal without timings, sorted; each must occur once."""
    exchanges, _ = read_journal(out / "journal.jsonl")
    jobs = [job for exchange in exchanges for job in exchange.jobs]
    reports = [
        (r.job, r.objectives, r.violation, r.scores, r.checksum, r.error)
        for e in exchanges
        for r in e.reports
    ]
    assert len({job.id for job in jobs}) == len(jobs)
    assert len({report[0] for report in reports}) == len(reports) == len(jobs)
    return sorted(jobs, key=lambda job: job.id), sorted(reports, key=lambda report: report[0])


def weights(out):
    results = Results.open(out)
    return {point.model: results.checkpoint(point) for point in results.front()}


def check_disk(out):
    """Only the front, what the run still needs, and one exchange more may be left."""
    results = Results.open(out)
    kept = {int(f.stem) for f in (out / "checkpoints").glob("*.ckpt")}
    front = {point.model for point in results.front()}
    assert front <= kept
    assert len(kept - front) <= 8
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("engine", "least"), [("local", 60), pytest.param("pool", 50, marks=pytest.mark.slow)]
)
def test_a_synchronous_run_ends_as_if_it_had_never_been_killed(driver, tmp_path, engine, least):
    assert driver(tmp_path / "whole", engine, False) == 0
    unbroken = events(tmp_path / "whole"), weights(tmp_path / "whole")
    rng, kills, rounds = random.Random(2 if engine == "local" else 3), 0, 0
    while kills < least:
        out = tmp_path / f"killed-{rounds}"
        kills += kill_until_done(driver, out, engine, False, rng)
        rounds += 1
        assert (events(out), weights(out)) == unbroken
        check_disk(out)
    print(f"{kills} kills in {rounds} synchronous runs on the {engine} engine")


@pytest.mark.parametrize(
    ("engine", "least"), [("local", 50), pytest.param("pool", 45, marks=pytest.mark.slow)]
)
def test_an_asynchronous_run_loses_nothing_and_replays(driver, tmp_path, engine, least):
    rng, kills, rounds = random.Random(5 if engine == "local" else 6), 0, 0
    while kills < least:
        out = tmp_path / f"killed-{rounds}"
        kills += kill_until_done(driver, out, engine, True, rng)
        rounds += 1
        events(out)
        check_disk(out)
        replay(out)
    print(f"{kills} kills in {rounds} asynchronous runs on the {engine} engine")
    if engine == "local":  # one job at a time: then even the asynchronous run is the same
        assert driver(tmp_path / "whole", engine, True) == 0
        assert events(tmp_path / "whole") == events(out)
        assert weights(tmp_path / "whole") == weights(out)


def replay(out):
    """Check that a journal is a finished run whose decisions are those of the scheduler."""
    results = Results.open(out)
    scheduler = algorithm_of(dict(results.settings.algorithm)).scheduler(results.problem)
    state, archive = State(results.settings.seed), Archive()
    for exchange in read_journal(out / "journal.jsonl")[0]:
        if exchange.jobs:
            assert scheduler.ask(state, len(exchange.jobs)) == exchange.jobs, (
                "a recorded job is not what the scheduler orders"
            )
            assert {job.start for job in exchange.jobs} - {None} <= required_checkpoints(state)
            state = with_jobs(state, exchange.jobs)
        for report in exchange.reports:
            state = scheduler.tell(state, report)
            archive.enter(entry_of(report))
    assert scheduler.done(state)
    assert {entry.job for entry in archive.front} == {point.model for point in results.front()}
    return state, archive.front
