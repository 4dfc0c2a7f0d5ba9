"""Multi-objective population based training: one run, a front of trained models."""

# First, because it handles Ctrl-C while the others are imported.
from mopbt.startup import is_command as _is_command  # noqa: F401, I001
from mopbt.algorithms import (
    BOMOASHA,
    MOASHA,
    MOPBT,
    NSGA2,
    PBT,
    QNEHVI,
    MaxScalarizationPBT,
    ParEGO,
    RandomScalarizationPBT,
    RandomSearch,
)
from mopbt.callbacks import Callback
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import MopbtError, StopRun
from mopbt.estimate import Estimate
from mopbt.front import Front, Point
from mopbt.function_task import FunctionTask, task
from mopbt.member import Member
from mopbt.objectives import Constraint, Direction, Objective
from mopbt.planning import Plan, plan
from mopbt.problem import Task
from mopbt.results import Results
from mopbt.rng import stream
from mopbt.runner import run
from mopbt.serialization import dumps, loads
from mopbt.session import Budget
from mopbt.space import Categorical, Domain, Float, Grid, Int, LogGrid, Ordinal, Space
from mopbt.version import __version__

__all__ = [
    "run",
    "plan",
    "Plan",
    "Budget",
    "Callback",
    "StopRun",
    "MOPBT",
    "RandomSearch",
    "PBT",
    "RandomScalarizationPBT",
    "MaxScalarizationPBT",
    "MOASHA",
    "BOMOASHA",
    "QNEHVI",
    "NSGA2",
    "ParEGO",
    "Task",
    "task",
    "Member",
    "FunctionTask",
    "Estimate",
    "Space",
    "Domain",
    "Grid",
    "LogGrid",
    "Ordinal",
    "Float",
    "Int",
    "Categorical",
    "Objective",
    "Direction",
    "Constraint",
    "Results",
    "Front",
    "Point",
    "LocalEngine",
    "PoolEngine",
    "VectorizedEngine",
    "RayEngine",
    "SimulatedEngine",
    "stream",
    "dumps",
    "loads",
    "MopbtError",
    "__version__",
]
