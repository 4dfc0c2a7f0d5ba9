"""What a task's code is made of, as a text that changes with it: its file, and what that imports from its own folder."""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def code_of(task: Any) -> str:
    """Return a text that changes with the code of a task that a program holds, as far as it is in files of the program's own."""
    parts = (
        (type(task), *(part for part in vars(task).values() if callable(part)))
        if hasattr(task, "__dict__")
        else (type(task),)
    )
    digests = set()
    for part in parts:
        module = sys.modules.get(getattr(getattr(part, "func", part), "__module__", None) or "")
        file = Path(getattr(module, "__file__", None) or "")
        if (
            module is not None
            and file.suffix == ".py"
            and file.is_file()
            and not _is_installed(file.resolve())
        ):
            depth = 0 if module.__name__ == "__main__" else module.__name__.count(".")
            digests.add(digest(file.resolve(), depth))
    return (
        "".join(digests)
        if len(digests) < 2
        else hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
    )


def digest(file: Path, depth: int) -> str:
    """Return a digest of a module's file, `depth` packages deep, and of what it imports from the folder where these are."""
    root = file.parents[min(depth + (file.name == "__init__.py"), len(file.parents) - 1)]
    texts, waiting = dict[Path, bytes](), [file]
    while waiting:
        here = waiting.pop()
        if here not in texts:
            texts[here] = here.read_bytes()
            waiting += (
                []
                if root.name in ("site-packages", "dist-packages")
                else _imports(here, texts[here], root)
            )
    if len(texts) == 1:
        return hashlib.sha256(texts[file]).hexdigest()
    names = {os.path.relpath(path, root): text for path, text in texts.items()}
    return hashlib.sha256(
        b"".join(f"{name} {len(names[name])}\n".encode() + names[name] for name in sorted(names))
    ).hexdigest()


def _is_installed(file: Path) -> bool:
    """Tell whether a file belongs to mopbt, to another package or to Python itself."""
    homes = [
        Path(__file__).parent,
        *(
            Path(sysconfig.get_path(kind))
            for kind in ("stdlib", "platstdlib", "purelib", "platlib")
        ),
    ]
    return any(file.is_relative_to(home.resolve()) for home in homes)


def _imports(file: Path, text: bytes, root: Path) -> Iterator[Path]:
    """Go through the files of modules that a module's text imports, as far as they are in a folder, or near the module."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return  # whoever imports it will be told
    names = [
        (root, alias.name) for node in nodes if isinstance(node, ast.Import) for alias in node.names
    ]
    for node in (node for node in nodes if isinstance(node, ast.ImportFrom)):
        base = file.parents[node.level - 1] if node.level else root
        names += [(base, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names]
    for base, name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:end])
            yield from filter(
                Path.is_file, (place.with_name(f"{place.name}.py"), place / "__init__.py")
            )
