"""Tasks from a training function, for code that already has its own training loop.

The function is called once per interval. It builds its objects and passes them to `track`, which
restores them from the checkpoint of the last interval (after an exploit: the donor's). It then
loops over `steps` and reports its metrics.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from mopbt.member import LEFT_OUT, Member, Snapshot, TrainingFunction
from mopbt.objectives import Constraint, Direction, unsigned
from mopbt.problem import (
    Problem,
    Task,
    is_training_function,
    problem_of,
    rows_of,
)
from mopbt.serialization import loads
from mopbt.space import Domain


@dataclass(frozen=True)
class FunctionTask:
    """A task that calls a training function.

    `task` makes one with a decorator.
    """

    function: TrainingFunction
    _: KW_ONLY
    space: Mapping[str, Domain]
    objectives: Mapping[str, Direction]
    steps: int
    interval: int = 1
    constraints: Sequence[str | Constraint] = ()
    reference: Mapping[str, float] | None = None
    name: str = ""
    rows: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.name:
            # A partial and an object with `__call__` have no name of their own.
            name = getattr(self.function, "__name__", type(self.function).__name__)
            object.__setattr__(self, "name", name)

    def __call__(self, member: Member) -> None:
        """Call the training function."""
        self.function(member)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle an object that a decorator left in a module by its name.

        Functions are pickled in the same way.

        The name of the function leads to this object, so the function cannot be sent by its name.
        """
        function = self.function
        if isinstance(function, FunctionType) and function.__module__ != "__main__":
            module = sys.modules.get(function.__module__)
            if module is not None and vars(module).get(function.__qualname__) is self:
                return find_decorated, (function.__module__, function.__qualname__)
        return super().__reduce_ex__(protocol)

    def init(self, seed: int) -> Snapshot:
        """Return an empty snapshot: the function initializes the weights, with seeds set."""
        return Snapshot(None, {})

    def train(
        self, model: Snapshot, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Snapshot:
        """Call the function for one interval."""
        restored = None if model.data is None else loads(model.data)
        member = Member(hp, begin, end, seed, restored)
        self.function(member)
        return member._take_snapshot()

    def evaluate(self, model: Snapshot) -> Mapping[str, float]:
        """Return the metrics of the last report."""
        return model.scores

    def evaluate_rows(
        self, model: Snapshot, hp: Mapping[str, Any], step: int, rows: str, seed: int
    ) -> Mapping[str, Any]:
        """Call the function with an empty interval, in which `m.rows` names the rows."""
        assert model.data is not None
        member = Member(hp, step, step, seed, loads(model.data), rows)
        self.function(member)
        return member._take_evaluation()

    def dump(self, model: Snapshot) -> bytes:
        """Return the tracked state as a safetensors file."""
        assert model.data is not None
        return model.data

    def load(self, data: bytes) -> Snapshot:
        """Wrap the bytes of `dump`; `train` restores the tracked objects from them."""
        return Snapshot(data, {})

    def without_training_state(self, tree: Any) -> Any:
        """Return the state of the tracked objects, without that of optimizers."""
        left_out = [name for name, state in tree.items() if _is_optimizer_state(state)]
        rest = {name: state for name, state in tree.items() if name not in left_out}
        return rest | {LEFT_OUT: left_out} if left_out else rest


def _is_optimizer_state(state: Any) -> bool:
    """Return whether a state is that of an optimizer of PyTorch."""
    return isinstance(state, dict) and state.keys() == {"state", "param_groups"}


def task(
    *,
    space: Mapping[str, Domain],
    objectives: Mapping[str, Direction],
    steps: int,
    interval: int = 1,
    constraints: Sequence[str | Constraint] = (),
    reference: Mapping[str, float] | None = None,
    name: str = "",
    rows: Sequence[str] = (),
) -> Callable[[TrainingFunction], FunctionTask]:
    """Turn a training function into a task, as a decorator.

    ``mopbt.run(train)`` and ``mopbt run file.py:train`` execute it.

    Args:
        space: Hyperparameters of the task.
        objectives: Objectives with their directions: ``{"accuracy": "max", "dsp": "min"}``.
        steps: Steps of training of each member.
        interval: Steps between two decisions.
        constraints: Constraints on metrics: ``["accuracy >= 0.7"]``.
        reference: Reference point of the hypervolume, such as ``{"accuracy": 0.5, "dsp": 1}``.
        name: Name of the task (default: the function's name).
        rows: Names of further rows, such as ``("test",)``, on which the function measures the
            models on the front at the end of a run: `m.rows` names them.
    """

    def decorate(function: TrainingFunction) -> FunctionTask:
        decorated = FunctionTask(
            function,
            space=space,
            objectives=objectives,
            steps=steps,
            interval=interval,
            constraints=constraints,
            reference=reference,
            name=name,
            rows=rows,
        )
        problem_of(decorated)
        rows_of(decorated)
        return decorated

    return decorate


def as_task(subject: Any, **description: Any) -> Task[Any]:
    """Return a task object as it is, or make one of a training function."""
    given = {key: value for key, value in description.items() if value is not None}
    if not is_training_function(subject):
        if given:
            names = ", ".join(f"`{key}`" for key in given)
            raise TypeError(
                f"only training functions take {names}, got a {type(subject).__name__} object, "
                "which has its own; leave it out, or set it there"
            )
        problem_of(subject)
        return subject  # type: ignore[no-any-return]
    missing = [key for key in ("space", "objectives", "steps") if key not in given]
    if missing:
        needed = ", ".join(f"`{key}=`" for key in missing)
        received = ", ".join(f"`{key}=`" for key in given) or "nothing"
        raise TypeError(
            f"a training function needs {needed} as well, got {received}: write "
            "run(train, space={...}, objectives={...}, steps=...), or decorate it with @mopbt.task"
        )
    return FunctionTask(subject, **given)


def described_by(problem: Problem, subject: Any) -> Task[Any]:
    """Return a task object, or make one of a training function and its problem."""
    if not is_training_function(subject):
        return subject  # type: ignore[no-any-return]
    reference = problem.reference
    return FunctionTask(
        subject,
        name=problem.name,
        space=problem.space,
        objectives={objective.name: objective.direction for objective in problem.objectives},
        constraints=problem.constraints,
        interval=problem.interval,
        steps=problem.steps,
        reference=None if reference is None else unsigned(problem.objectives, reference),
    )


def reference_of(task: Any) -> str:
    """Return how the command line finds a decorated function; empty if it cannot.

    A function in a file is named by the file, one in a package by its module.
    """
    function = task.function if isinstance(task, FunctionTask) else None
    if not isinstance(function, FunctionType):
        return ""
    module = sys.modules.get(function.__module__)
    name = function.__qualname__
    if module is None or vars(module).get(name) is not task:
        return ""
    if "." in module.__name__:
        return f"{module.__name__}:{name}"
    file = Path(vars(module).get("__file__") or "").resolve()
    return f"{file}:{name}" if file.suffix == ".py" and file.is_file() else ""


def find_decorated(module: str, name: str) -> Any:
    """Return the task that the decorator left in a module under a function's name."""
    return vars(importlib.import_module(module))[name]
