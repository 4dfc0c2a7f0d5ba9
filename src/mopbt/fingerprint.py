"""Fingerprint the code of a task: its file and the local files that it imports."""

import ast
import hashlib
import inspect
import os
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any


def code_of(task: Any) -> str:
    """Return a string that changes with the code of a task object.

    Only the program's own files count: those of the task's class and of the functions it holds.
    """
    digests = set()
    for part in (type(task), *_functions_of(task)):
        module = inspect.getmodule(part.func if isinstance(part, partial) else part)
        if module is None:
            continue
        file = Path(vars(module).get("__file__") or "")
        if file.suffix != ".py" or not file.is_file():
            continue
        if not _is_installed(file.resolve()):
            depth = 0 if module.__name__ == "__main__" else module.__name__.count(".")
            digests.add(digest(file.resolve(), depth))
    if len(digests) < 2:
        return "".join(digests)
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def _functions_of(task: Any) -> list[Any]:
    """Return the functions and other callables that an object holds."""
    try:
        held = vars(task)
    # An object with slots has no dictionary.
    except TypeError:
        return []
    return [part for part in held.values() if callable(part)]


def digest(file: Path, depth: int) -> str:
    """Compute a digest of a module's file and of the local files that it imports.

    Args:
        file: The file of the module.
        depth: The number of packages around the module. Imports are followed within the directory
            that contains the outermost one.
    """
    root = file.parents[min(depth + (file.name == "__init__.py"), len(file.parents) - 1)]
    is_local = root.name not in ("site-packages", "dist-packages")
    texts: dict[Path, bytes] = {}
    pending = [file]
    while pending:
        current = pending.pop()
        if current in texts:
            continue
        texts[current] = current.read_bytes()
        if is_local:
            pending += _imported_files(current, texts[current], root)
    if len(texts) == 1:
        return hashlib.sha256(texts[file]).hexdigest()
    by_name = {os.path.relpath(path, root): text for path, text in texts.items()}
    combined = hashlib.sha256()
    for name in sorted(by_name):
        combined.update(f"{name} {len(by_name[name])}\n".encode() + by_name[name])
    return combined.hexdigest()


def _is_installed(file: Path) -> bool:
    """Check whether a file belongs to mopbt, to another package or to Python itself."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    homes = [Path(__file__).parent, *(Path(sysconfig.get_path(kind)) for kind in kinds)]
    return any(file.is_relative_to(home.resolve()) for home in homes)


def _imported_files(file: Path, text: bytes, root: Path) -> Iterator[Path]:
    """Yield the files below `root`, or next to a module, that the module imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        # Importing the module reports the error.
        return
    names: list[tuple[Path, str]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else root
            prefix = f"{node.module}." if node.module else ""
            names += [(base, prefix + alias.name) for alias in node.names]
    for base, name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:end])
            candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
            yield from filter(Path.is_file, candidates)
