"""Compare algorithms: tasks x algorithms x seeds under a virtual clock.

An `Experiment` is a small TOML file. Each of its runs has its own directory below ``OUT/runs``. A
comparison can be interrupted at any moment, and rerunning it resumes it without repeating finished
runs. Time is virtual (`SimulatedEngine`), so that all algorithms have the same machine, whatever
else the real one does. Algorithms that do not end by themselves get the time of the slowest run of
another one (paper, section 6.4). Runs are executed in parallel, each in its own process on its own
core.

The modules in the order of reading:

- `plan` reads and checks an experiment, and lists its runs.
- `execute` executes those that are missing, in processes that run `worker`. `directory` reads and
  writes the files of a comparison, `reuse` copies runs of others, `progress` shows what is done.
- `collect` reads the finished runs, and writes the table of their evaluations. `run_data` defines
  what is known of a run, and its record, from which it is read if its journal was not kept.
- `measures`, `significance` and `tables` compute the numbers, `table_formats` and `report` write
  them.
"""

from mopbt.compare.collect import Comparison
from mopbt.compare.execute import compare, recompute
from mopbt.compare.plan import AlgorithmEntry, Experiment, PlannedRun
from mopbt.compare.progress import seconds_left
from mopbt.compare.run_data import RunData

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
