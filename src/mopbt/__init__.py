"""Multi-objective population based training: one training run, a front of trained models."""

from mopbt.algorithms import MoPbt
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.errors import MopbtError
from mopbt.function import Member
from mopbt.objectives import Constraint, Objective
from mopbt.results import Front, Point, Results
from mopbt.run import Budget, run
from mopbt.space import Categorical, Float, Grid, Int, LogGrid, Ordinal, Space
from mopbt.task import Task
from mopbt.tree import dumps, loads
from mopbt.version import __version__

__all__ = [
    "run",
    "Budget",
    "MoPbt",
    "Task",
    "Member",
    "Space",
    "Grid",
    "LogGrid",
    "Ordinal",
    "Float",
    "Int",
    "Categorical",
    "Objective",
    "Constraint",
    "Results",
    "Front",
    "Point",
    "LocalEngine",
    "PoolEngine",
    "dumps",
    "loads",
    "MopbtError",
    "__version__",
]
