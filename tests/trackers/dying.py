"""A process that is killed while it logs a run."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from mopbt.results import Results
from mopbt.trackers.base import evaluations_of, population_metrics

FIRST = 9
SECOND = 20


def log_and_die(run, tracker, killing="pass"):
    """Log some reports in another process, which is killed at the latest after the second part.

    Args:
        run: The directory of the run.
        tracker: Code that builds a tracker.
        killing: Code that changes `tracker` so that the second `write` kills the process.
    """
    program = f"""
from mopbt.trackers import *
from trackers.dying import die, log_parts
tracker = {tracker}
for _ in log_parts({str(run)!r}, tracker):
    {killing}
die()
"""
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The process must not share the W&B service of this one, which would outlive it.
    environment = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    environment["PYTHONPATH"] = path
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=120)
    assert done.returncode == -signal.SIGKILL


def log_parts(run, tracker):
    """Log the reports of a run in two parts and yield after the first."""
    results = Results.open(run)
    evaluations = evaluations_of(results)
    # The run had another reference point when it was shorter, and thus other hypervolumes.
    population = [
        replace(row, metrics={**row.metrics, "hypervolume": row.metrics["hypervolume"] / 2})
        for row in population_metrics(results, evaluations)
    ]
    tracker.begin(results)
    tracker.write(evaluations[:FIRST], population[:FIRST])
    yield
    tracker.write(evaluations[FIRST:SECOND], population[FIRST:SECOND])


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
