"""Fingerprint the code of a task.

`code_of` follows an object: the source of its functions, the constants that they refer to and the
functions and classes that they use, as far as these are the program's own. It works in a script, in
a notebook and in an interactive session. `digest` covers whole files.
"""

import ast
import dataclasses
import dis
import hashlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# Fingerprints of another kind cannot be compared with those of `code_of`.
_KIND = "code "
_SIMPLE = (int, float, complex, str, bytes, type(None), type(...))
_CHANGING = "add append clear discard extend insert pop remove setdefault sort update"
_METHODS_THAT_CHANGE = frozenset(_CHANGING.split())
# What describes a task is compared on its own.
_DESCRIPTION = frozenset(
    ("constraints", "interval", "name", "objectives", "reference", "rows", "space", "steps")
)
# What Python itself notes in a class, some of it only after an object was pickled or checked.
_BOOKKEEPING = frozenset(
    (
        *("__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__"),
        *("__dict__", "__weakref__", "__slotnames__", "__abstractmethods__", "_abc_impl"),
    )
)
# A longer list holds data.
_LONGEST = 1000
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_of(task: Any) -> str:
    """Return a string that changes with the code of a task object.

    It covers the task's class and the functions it holds, the functions and classes that these
    use, and the plain values of the global names that they read. Comments, docstrings and the code
    around them do not count, nor do installed packages.
    """
    digests = _Parts()
    for part in (type(task), *_functions_of(task)):
        digests.visit(part)
    return digests.combined()


def is_changed(before: str, after: str) -> bool:
    """Check whether two fingerprints are of the same kind and differ."""
    if not before or not after or before.startswith(_KIND) != after.startswith(_KIND):
        return False
    return before != after


def _functions_of(task: Any) -> list[Any]:
    """Return the functions and other callables that an object holds."""
    return [part for part in _attributes(task).values() if callable(part)]


def _attributes(found: Any) -> Mapping[str, Any]:
    try:
        return dict(vars(found))
    # An object with slots has no dictionary.
    except TypeError:
        return {}


class _Parts:
    """Collects the texts of everything that code refers to."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._seen: dict[int, Any] = {}

    def combined(self) -> str:
        """Return a fingerprint of all texts; empty if there are none."""
        if not self._texts:
            return ""
        texts = "\0".join(sorted(self._texts))
        return _KIND + hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()

    def visit(self, found: Any) -> None:
        """Add an object, and what it refers to, if it belongs to the program."""
        if id(found) in self._seen:
            return
        # The object is kept, so that no other one gets its id.
        self._seen[id(found)] = found
        if isinstance(found, FunctionType):
            self._visit_function(found)
        elif isinstance(found, type):
            self._visit_class(found)
        elif isinstance(found, ModuleType):
            self._visit_file(_module_file(found), found.__name__)
        elif isinstance(found, partial):
            self._add_values("partial", dict(enumerate((found.func, *found.args))))
            self._add_values("partial", found.keywords)
        elif isinstance(found, MethodType | staticmethod | classmethod):
            self.visit(found.__func__)
        elif isinstance(found, property):
            self._add_values("property", {"get": found.fget, "set": found.fset})
        else:
            self._visit_object(found)

    def _add_values(self, owner: str, values: Mapping[Any, Any]) -> None:
        """Add plain values by name, and visit the others."""
        for name, value in values.items():
            text = _plain_text(value)
            if text is None:
                self.visit(value)
            else:
                self._texts.add(f"{owner}.{name} = {text}")

    def _visit_function(self, function: FunctionType) -> None:
        if "__wrapped__" in vars(function):
            self.visit(vars(function)["__wrapped__"])
        if not _is_own(function):
            return
        name = function.__qualname__
        definition = _definition_of(function)
        if definition is None:
            self._texts.add(f"{name}: {_code_text(function.__code__)}")
            used = _referenced_names(function.__code__)
            values: dict[str, Any] = {key: function.__globals__.get(key) for key in used}
        else:
            self._texts.add(f"{name}: {_normalized(definition, function)}")
            used = _referenced_names(function.__code__)
            read = {key: value for key, value in function.__globals__.items() if key in used}
            values = dict(_read_values(definition, read))
            self._visit_imports(definition)
        values |= _closure_of(function)
        changed = _changed_names(function.__code__, definition)
        known = {key: value for key, value in values.items() if key not in changed}
        self._add_values(name, known)
        self._add_values(f"{name}()", dict(enumerate(function.__defaults__ or ())))
        self._add_values(f"{name}()", function.__kwdefaults__ or {})

    def _visit_class(self, found: type) -> None:
        if not _is_own(found):
            return
        for base in found.__bases__:
            self._texts.add(f"{found.__qualname__} < {base.__qualname__}")
            self.visit(base)
        hidden = _BOOKKEEPING | _DESCRIPTION
        if dataclasses.is_dataclass(found):
            # Its fields say what its generated methods do.
            hidden |= {name for name, part in vars(found).items() if _is_generated(part)}
            hidden |= {"__match_args__"}
        values = {name: part for name, part in vars(found).items() if name not in hidden}
        self._add_values(found.__qualname__, values)

    def _visit_object(self, found: Any) -> None:
        """Add the parts of a list or a dict, or the class and the fields of an object."""
        if type(found) in (list, tuple, dict):
            pairs = found.items() if isinstance(found, dict) else enumerate(found)
            self._add_values(type(found).__name__, dict(pairs) if len(found) <= _LONGEST else {})
        elif _is_own(type(found)):
            self.visit(type(found))
            if dataclasses.is_dataclass(found):
                names = {field.name for field in dataclasses.fields(found)} - _DESCRIPTION
                held = _attributes(found)
                values = {name: held[name] for name in sorted(names & held.keys())}
                self._add_values(type(found).__qualname__, values)

    def _visit_imports(self, definition: _Function) -> None:
        """Add the files of the program that a function itself imports."""
        for node in ast.walk(definition):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                self._visit_file(_file_of(name), name)

    def _visit_file(self, file: str | None, name: str) -> None:
        if file and file.endswith(".py") and Path(file).is_file():
            path = Path(file).resolve()
            if not _is_installed(path):
                self._texts.add(f"{name}: {digest(path, name.count('.'))}")


def _is_own(found: Any) -> bool:
    """Check whether a function or a class belongs to the program."""
    if isinstance(found, FunctionType):
        file = Path(found.__code__.co_filename)
        if file.is_file():
            return not _is_installed(file.resolve())
    if found.__module__ == "__main__":
        return True
    # A module without a file is built in.
    place = _module_file(sys.modules.get(found.__module__))
    return place is not None and not _is_installed(Path(place).resolve())


def _module_file(module: ModuleType | None) -> str | None:
    return None if module is None else vars(module).get("__file__")


def _is_generated(part: Any) -> bool:
    return isinstance(part, FunctionType) and part.__code__.co_filename == "<string>"


def _definition_of(function: FunctionType) -> _Function | None:
    """Return the syntax tree of a function; None for a lambda, or without its source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    definition = tree.body[0] if tree.body else None
    if isinstance(definition, _Function) and definition.name == function.__code__.co_name:
        return definition
    return None


def _normalized(definition: _Function, function: FunctionType) -> str:
    """Return a function's source without comments, docstrings and our decorators."""
    for node in ast.walk(definition):
        if isinstance(node, _Function | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    kept = []
    for decorator in definition.decorator_list:
        roots = [node.id for node in ast.walk(decorator) if isinstance(node, ast.Name)]
        found = function.__globals__.get(roots[0]) if roots else None
        if not isinstance(found, FunctionType | ModuleType | type):
            kept.append(decorator)
            continue
        name = found.__name__ if isinstance(found, ModuleType) else found.__module__
        # Such a decorator describes the task, and its description is compared on its own.
        if name.partition(".")[0] != "mopbt":
            kept.append(decorator)
    definition.decorator_list = kept
    return ast.unparse(definition)


def _read_values(definition: _Function, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the global names that a function reads, and attributes of own modules."""
    inner: set[ast.AST] = set()
    for node in ast.walk(definition):
        if node in inner:
            continue
        if isinstance(node, ast.Name) and node.id in names:
            yield node.id, names[node.id]
        elif isinstance(node, ast.Attribute):
            path = [node.attr]
            root = node.value
            nested: list[ast.AST] = [root]
            while isinstance(root, ast.Attribute):
                path.insert(0, root.attr)
                root = root.value
                nested.append(root)
            if isinstance(root, ast.Name) and isinstance(names.get(root.id), ModuleType):
                inner.update(nested)
                yield from _module_value(names[root.id], root.id, path)


def _module_value(module: Any, name: str, path: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield what a dotted name stands for, if it leads to the program's own module."""
    found = module
    for part in path:
        if not isinstance(found, ModuleType):
            break
        file = _module_file(found)
        if file is None or _is_installed(Path(file).resolve()):
            return
        if part not in vars(found):
            break
        found = vars(found)[part]
        name = f"{name}.{part}"
    yield name, found


def _closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the values of the surrounding function that a function reads."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            # A function may refer to a name that is not yet bound.
            continue
    return values


def _changed_names(code: CodeType, definition: _Function | None) -> set[str]:
    """Return the names of outer variables that a function changes.

    They are state, not constants.
    """
    changed = set()
    for part in _nested_codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"):
                changed.add(str(instruction.argval))
    if definition is not None:
        changed |= {name for node in ast.walk(definition) for name in _changed_by(node)}
    return changed


def _changed_by(node: ast.AST) -> Iterator[str]:
    """Yield the name of the container that a node of a syntax tree changes."""
    container: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _METHODS_THAT_CHANGE:
            container = node.func.value
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        container = node.value
    if isinstance(container, ast.Name):
        yield container.id


def _referenced_names(code: CodeType) -> set[str]:
    """Return the global names that compiled code reads."""
    names = set()
    for part in _nested_codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(str(instruction.argval))
    return names


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _code_text(code: CodeType) -> str:
    """Return compiled code as text that does not depend on its place in a file."""
    constants = []
    for constant in code.co_consts:
        is_code = isinstance(constant, CodeType)
        constants.append(_code_text(constant) if is_code else _plain_text(constant))
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return f"{code.co_code.hex()} {constants} {names}"


def _plain_text(value: Any) -> str | None:
    """Return a plain value as text that is the same in every process.

    Returns None for other objects.
    """
    if isinstance(value, _SIMPLE):
        return repr(value) if type(value) in (bool, *_SIMPLE) else None
    if type(value) in (tuple, list, set, frozenset, dict) and len(value) > _LONGEST:
        return None
    texts: Sequence[str | None]
    if type(value) in (tuple, list):
        texts = [_plain_text(item) for item in value]
    elif type(value) in (set, frozenset):
        texts = sorted(_plain_text(item) or "" for item in value)
    elif type(value) is dict:
        texts = [_plain_text(item) for pair in value.items() for item in pair]
    else:
        return None
    if any(text is None or not text for text in texts):
        return None
    return f"{type(value).__name__}({', '.join(map(str, texts))})"


def _file_of(module: str) -> str | None:
    """Return the file of a module without importing it."""
    root = module.partition(".")[0]
    try:
        found = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None
    return found.origin if found is not None else None


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


@cache
def _is_installed(file: Path) -> bool:
    """Check whether a file belongs to mopbt, to another package or to Python itself."""
    # Those of the user, of the system and of other environments on the path count as well.
    if not {"site-packages", "dist-packages"}.isdisjoint(file.parts):
        return True
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
