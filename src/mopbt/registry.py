"""Tasks by name: those that packages register under the entry point `mopbt.tasks`, and any `module:object`."""

import importlib
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mopbt.fingerprint import digest
from mopbt.messages import did_you_mean
from mopbt.problem import problem_of

GROUP = "mopbt.tasks"


def registered() -> dict[str, Any]:
    """Return the registered tasks: name to entry point."""
    return {
        point.name: point
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)
    }


def find_task(reference: str) -> tuple[Any, str]:
    """Return the task that a reference names, and a reference that finds it again from anywhere.

    A reference is a registered name, ``package.module:object``, or ``path/to/file.py:object``, with ``@scale`` behind it for a task
    that comes in several sizes. An object that is a class is made into a task by calling it without arguments.
    """
    bare, scale = split_scale(reference)
    found, found_again = _found(bare)
    if not hasattr(found, "at"):
        if scale is not None:
            raise ValueError(
                f"{bare} comes in one size only, got the scale {scale!r}; leave it out"
            )
        return _checked(found, bare), found_again
    return (
        (found.at(), found_again) if scale is None else (found.at(scale), f"{found_again}@{scale}")
    )


def split_scale(reference: str) -> tuple[str, str | None]:
    """Return a reference without its scale, and the scale if it has one; a folder may have an @ in its name."""
    place, colon, name = reference.rpartition(":")
    name, at, scale = name.partition("@")
    return place + colon + name, scale if at else None


def task_fingerprint(reference: str) -> str:
    """Return a text that changes with what a task is made of.

    That is the package and the numbers of its scale, or its module's file with those beside it and below that it imports.
    """
    bare, scale = split_scale(reference)
    if bare in (known := registered()):
        size = getattr(known[bare].load(), "scales", {}).get(scale or "paper", "")
        return f"{known[bare].dist.name} {known[bare].dist.version} {size!r}"
    place, name = bare.rsplit(":", 1)
    file = place if place.endswith(".py") else _imported(place, name)[0].__file__
    return (
        digest(Path(file).resolve(), 0 if place.endswith(".py") else place.count("."))
        if file
        else ""
    )


def find_family(reference: str) -> Any:
    """Return what a reference without a scale names: a task, or what has one for each scale (`at`)."""
    return _found(reference)[0]


def _found(reference: str) -> tuple[Any, str]:
    """Return what a reference names, and a reference that finds it again from anywhere."""
    known = registered()
    if reference in known:
        return known[reference].load(), reference
    place, colon, name = reference.rpartition(":")
    if reference.endswith(".py") and Path(reference).is_file():
        raise ValueError(
            f"TASK must name an object in the file, as in {reference}:task, got the file {reference} alone"
        )
    if not colon or not place or not name:
        raise ValueError(
            f"TASK must be one of {', '.join(known)}, or name an object like package.module:task or path/to/file.py:task, "
            f"got {reference!r}{did_you_mean(reference, known)}"
        )
    module, reference = _imported(place, name)
    if not hasattr(module, name):
        offered = ", ".join(n for n in vars(module) if not n.startswith("_"))
        raise ValueError(
            f"{place} has no {name!r}; it has {offered or 'nothing'}: name one of them{did_you_mean(name, vars(module))}"
        )
    return getattr(module, name), reference


def _imported(place: str, name: str) -> tuple[Any, str]:
    if place.endswith(".py"):
        file = Path(place).resolve()
        if not file.is_file():
            raise ValueError(
                f"there is no file {place}; name one that is there, as in path/to/file.py:{name}"
            )
        sys.path.insert(0, str(file.parent))  # also how worker processes find it
        module = _module(file.stem, f"{place} cannot be imported")
        origin = getattr(module, "__file__", None) or "Python itself"
        if (
            Path(origin).resolve() != file
        ):  # of the same name: it would be taken for this one without a word
            raise ValueError(
                f"{place} cannot be imported: there is another module {file.stem!r} ({origin}); rename the file"
            )
        return module, f"{file}:{name}"
    sys.path.insert(0, str(Path.cwd()))
    unknown = f"there is no module {place!r} here; a file is named with its ending, as in {place}.py:{name}"
    return _module(place, unknown), f"{place}:{name}"


def _module(place: str, unknown: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        is_itself = place == missing or place.startswith(missing + ".")
        lacking = f"{place} needs the module {missing!r}, which is not installed: install it where mopbt is installed"
        raise ValueError(unknown if is_itself else lacking) from error
    except Exception as error:  # of somebody's code, which can raise anything
        raise ValueError(
            f"{place} cannot be imported: {type(error).__name__}: {error}; mend it, or see with --traceback where it comes from"
        ) from error


def _made(kind: type[Any], reference: str) -> Any:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise ValueError(
            f"{reference} is a class that cannot be called without arguments ({error}); make an object of it in its file, as in "
            f"task = {kind.__name__}(...), and name that"
        ) from None
    return kind()


def _checked(found: Any, reference: str) -> Any:
    task = _made(found, reference) if isinstance(found, type) else found
    if callable(task) and not hasattr(task, "train"):
        raise ValueError(
            f"{reference} is a function; wrap it in a task: task = mopbt.FunctionTask(train, space=..., objectives=..., steps=...)"
        )
    problem_of(task)
    return task
