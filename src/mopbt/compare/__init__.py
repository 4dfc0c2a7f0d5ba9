"""Comparisons: tasks x algorithms x seeds under a virtual clock, as one plan that can be stopped at any moment and goes on.

An `Experiment` is a small TOML file. Each of its runs is a run's directory below ``OUT/runs``, and finished ones are not repeated.
Time is virtual (`SimulatedEngine`), so that all algorithms have the same machine, whatever else this one does meanwhile; those
without an end of their own get the time of the slowest run of another one (paper, section 6.4). Runs are carried out side by side,
each in a process and on a core of its own.
"""

from mopbt.compare.collect import Comparison, RunData
from mopbt.compare.execute import compare, recompute
from mopbt.compare.plan import AlgorithmEntry, Experiment, PlannedRun
from mopbt.compare.progress import seconds_left

__all__ = [
    "Comparison",
    "AlgorithmEntry",
    "Experiment",
    "PlannedRun",
    "RunData",
    "compare",
    "recompute",
    "seconds_left",
]
