"""Find tasks by name.

A name is one that a package registers under the entry point `mopbt.tasks`, or any `module:object`.
"""

import importlib
import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mopbt.fingerprint import digest
from mopbt.function_task import described_by
from mopbt.messages import did_you_mean
from mopbt.objectives import Direction
from mopbt.problem import Problem, Task, is_training_function, problem_of
from mopbt.space import Domain

GROUP = "mopbt.tasks"
# Follows a scale in a reference, if a task may be built from a part of its data.
PARTIAL_DATA = "+partial-data"


@runtime_checkable
class TaskFamily(Protocol):
    """A task that comes in several sizes, registered under one name."""

    @property
    def about(self) -> str:
        """Return one line about the task."""

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the domains of the tuned hyperparameters, by name."""

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the objectives and their directions."""

    @property
    def scales(self) -> Mapping[str, Any]:
        """Return the sizes by name; each may have a `population`."""

    def at(self, scale: str = "paper") -> Task[Any]:
        """Build the task at a scale and load its data."""

    def data_state(self) -> str:
        """Return whether the data is present, and how to get it if not."""


@runtime_checkable
class PartialDataFamily(Protocol):
    """A family that refuses to build a task from partial data, unless that is allowed."""

    def partial_data(self, scale: str) -> str:
        """Return which of the data at a scale are partial or substituted.

        The result is empty if none are.
        """

    def at(self, scale: str = "paper", *, allow_partial_data: bool = False) -> Task[Any]:
        """Build the task at a scale and load its data; DataMissing if it is partial."""


def registered() -> dict[str, EntryPoint]:
    """Return the entry points of all registered tasks, sorted by name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: point for point in points}


def find_task(reference: str, problem: Problem | None = None) -> tuple[Any, str]:
    """Return the task that a reference names, and a reference that works anywhere.

    A reference is a registered name, ``package.module:object``, or ``path/to/file.py:object``. For
    a task that comes in several sizes, ``@scale`` follows; ``@scale+partial-data`` allows a part of
    its data. A class is called without arguments to
    create the task. If a `problem` is given, the reference may also name a training function.
    """
    bare, scale = split_scale(reference)
    found, absolute = _find_object(bare)
    if isinstance(found, TaskFamily):
        if scale is None:
            return found.at(), absolute
        return _at(found, scale, bare), f"{absolute}@{scale}"
    if scale is not None:
        raise ValueError(f"{bare} comes in one size only, got the scale {scale!r}; leave it out")
    task = _instantiate(found, bare) if isinstance(found, type) else found
    if is_training_function(task) and problem is not None:
        return described_by(problem, task), absolute
    if is_training_function(task):
        raise ValueError(
            f"{bare} is a function; make it a task with a decorator: @mopbt.task(space=..., "
            f"objectives=..., steps=...)"
        )
    problem_of(task)
    return task, absolute


def _at(family: TaskFamily, scale: str, name: str) -> Any:
    """Build the task of a family at a scale.

    It uses a part of the data if the scale says so.
    """
    if not scale.endswith(PARTIAL_DATA):
        return family.at(scale)
    if not isinstance(family, PartialDataFamily):
        raise ValueError(
            f"{name} has no data that could be partial, got the scale {scale!r}; leave out "
            f"{PARTIAL_DATA} (--allow-partial-data)"
        )
    return family.at(scale.removesuffix(PARTIAL_DATA), allow_partial_data=True)


def with_scale(reference: str, scale: str | None, *, allow_partial_data: bool = False) -> str:
    """Return a reference with a scale and with leave to use partial data.

    Each is added only if it is given.
    """
    if allow_partial_data:
        reference, own = split_scale(reference)
        wanted = (scale or own or "paper").removesuffix(PARTIAL_DATA)
        return f"{reference}@{wanted}{PARTIAL_DATA}"
    return reference if scale is None else f"{reference}@{scale}"


def split_scale(reference: str) -> tuple[str, str | None]:
    """Split a reference into its name and its scale, or None.

    Only an @ after the last colon separates a scale, because a directory may have one in its name.
    """
    place, colon, name = reference.rpartition(":")
    name, at, scale = name.partition("@")
    return place + colon + name, scale if at else None


def task_fingerprint(reference: str) -> str:
    """Return a string that changes with the definition of a task.

    For a registered task it names the version of its package and the numbers of its scale. For any
    other task it is a digest of its module and of the local modules that this imports.
    """
    bare, scale = split_scale(reference)
    known = registered()
    if bare in known:
        found = known[bare].load()
        package = known[bare].dist
        own_scale = (scale or "paper").removesuffix(PARTIAL_DATA)
        size = found.scales.get(own_scale, "") if isinstance(found, TaskFamily) else ""
        # It was found among the installed packages.
        assert package is not None
        return f"{package.name} {package.version} {size!r}"
    place, name = bare.rsplit(":", 1)
    if place.endswith(".py"):
        return digest(Path(place).resolve(), 0)
    file = _import_place(place, name)[0].__file__
    return digest(Path(file).resolve(), place.count(".")) if file else ""


def find_family(reference: str) -> Any:
    """Return the object that a reference without a scale names.

    It is a task, or an object whose `at` returns the task of each scale.
    """
    return _find_object(reference)[0]


def _find_object(reference: str) -> tuple[Any, str]:
    """Return the object that a reference names, and a reference that works anywhere."""
    known = registered()
    if reference in known:
        return known[reference].load(), reference
    place, colon, name = reference.rpartition(":")
    if reference.endswith(".py") and Path(reference).is_file():
        raise ValueError(
            f"TASK must name an object in the file, as in {reference}:task, got the file "
            f"{reference} alone"
        )
    if not colon or not place or not name:
        raise ValueError(
            f"TASK must be one of {', '.join(known)}, or name an object like package.module:task "
            f"or path/to/file.py:task, got {reference!r}{did_you_mean(reference, known)}"
        )
    module, absolute = _import_place(place, name)
    # Not by `vars`, because a module may define names lazily, with `__getattr__`.
    if not hasattr(module, name):
        offered = ", ".join(n for n in vars(module) if not n.startswith("_"))
        raise ValueError(
            f"{place} has no {name!r}; it has {offered or 'nothing'}: name one of them"
            f"{did_you_mean(name, vars(module))}"
        )
    return getattr(module, name), absolute


def _import_place(place: str, name: str) -> tuple[Any, str]:
    """Import the module of a reference; return it with an absolute reference."""
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        not_found = (
            f"there is no module {place!r} here; name a file with its extension, as in "
            f"{place}.py:{name}"
        )
        return _import_module(place, not_found), f"{place}:{name}"
    file = Path(place).resolve()
    if not file.is_file():
        raise ValueError(
            f"there is no file {place}; name an existing one, as in path/to/file.py:{name}"
        )
    # Worker processes find the module the same way.
    sys.path.insert(0, str(file.parent))
    module = _import_module(file.stem, f"{place} cannot be imported")
    # Without this check, another module of the same name would silently be used.
    origin = vars(module).get("__file__") or "Python itself"
    if Path(origin).resolve() != file:
        raise ValueError(
            f"{place} cannot be imported: there is another module {file.stem!r} ({origin}); "
            f"rename the file"
        )
    return module, f"{file}:{name}"


def _import_module(name: str, not_found: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise ValueError(not_found) from error
        raise ValueError(
            f"{name} needs the module {missing!r}, which is not installed: install it in the "
            f"environment of mopbt"
        ) from error
    except Exception as error:
        # The code of a task can raise anything.
        raise ValueError(
            f"{name} cannot be imported: {type(error).__name__}: {error}; fix it; --traceback "
            f"shows where the error comes from"
        ) from error


def _instantiate(kind: type[Any], reference: str) -> Any:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise ValueError(
            f"{reference} is a class that cannot be called without arguments ({error}); create an "
            f"instance in its file, as in task = {kind.__name__}(...), and name that"
        ) from None
    return kind()
