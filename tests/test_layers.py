"""The architecture: layers, purity, optional packages, and the one module that writes files."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import mopbt

SOURCE = Path(__file__).parent.parent / "src" / "mopbt"

# A folder stands for all of its modules. The empty name is the package itself.
LAYERS = {
    # Nouns.
    0: {
        *("table", "arguments"),
        *("version", "errors", "messages", "limits", "rng", "space", "objectives", "state"),
        *("problem", "serialization", "averaging", "estimate"),
    },
    # The paper's verbs.
    1: {
        *("chain", "staircases", "standings"),
        *("ranking", "exploit", "explore", "scalarization", "successive_halving", "metrics"),
        *("archive", "proposals", "rates", "uncertainty"),
    },
    2: {"schedulers", "algorithms"},
    2.5: {
        *("engines", "stores", "filesystem", "locking"),
        # Handles Ctrl-C while the command line is imported.
        "startup",
        # The device that an engine assigned to this process.
        "device",
    },
    # What a journal means, and the one lifecycle of a run.
    3: {
        *("columns", "history", "run_config", "ownership", "run_directory"),
        *("evaluations", "retention", "reduction"),
        *("fingerprint", "progress"),
        *("repair", "session", "stall"),
        # A task made of a function. A member remembers the objects that this process has tracked.
        *("function_task", "member", "tracked_objects"),
    },
    4: {
        *("", "front", "noise", "importance", "sizing", "results", "selection", "export", "replay"),
        "verify",
        *("callbacks", "notebook", "progress_display"),
        *("torch", "tasks", "testing", "registry"),
        # `run` returns `Results` and draws the progress, so it is above both.
        *("opening", "runner", "warm_start"),
        "planning",
    },
    5: {"plots", "html", "compare", "trackers", "integrations", "cli"},
    6: {"__main__"},
}
# The modules of a folder in layer 5 that other folders may import.
INTERFACES = {
    "compare": {
        *("compare", "compare.report"),
        # The figures of comparisons draw these.
        "compare.measures",
        # Tells the runs of a comparison from others.
        "compare.directory",
    },
    # The view of a run that pages, figures and tables share.
    "html": {"html.report", "html.dashboard", "html.run_data"},
    "integrations": {"integrations.optuna"},
    "plots": {
        *("plots.front", "plots.against"),
        # The figures that the report of a comparison contains.
        *("plots.style", "plots.progress", "plots.objective_space", "plots.final"),
    },
    "trackers": {"trackers"},
    "cli": set(),
}
# Methods that draw load the figures when they are called.
DEFERRED = {"front": {"plots.run"}, "results": {"plots.run", "plots.front"}}
WITH_TORCH = {
    f"torch.{name}"
    for name in (
        "data",
        "device",
        "memory",
        "dataset",
        "validation",
        "layers",
        "optimizers",
        "precision",
        "compilation",
        "compiler",
        "probe",
        "stack",
        "task",
        "errors",
        "evaluation",
        "gradients",
        "program",
        "rows",
        "vectorize",
        "hyperparameters",
        "normalization",
    )
}
HEAVY = {
    "botorch": {"proposals.botorch"},
    "gpytorch": {"proposals.botorch"},
    "linear_operator": {"proposals.botorch"},
    "torch": {
        *("proposals.botorch", "serialization"),
        *("integrations.lightning", "integrations.transformers"),
        *WITH_TORCH,
        *(
            "tasks.networks",
            "tasks.image_ops",
            "tasks.augment",
            "tasks.losses",
            "tasks.metrics",
            "tasks.paper",
        ),
    },
    "pandas": {"front"},
    "matplotlib": {
        "plots.front",
        "plots.run",
        "plots.style",
        "plots.progress",
        "plots.objective_space",
        "plots.final",
        "compare.report",
    },
    "sklearn": {
        "importance",
        "tasks.adult",
        "tasks.adult_linear",
        "tasks.tabular_io",
        "tasks.registry",
        "integrations.sklearn",
    },
    "joblib": {"integrations.sklearn"},
    "lightning": {"integrations.lightning"},
    "transformers": {"integrations.transformers"},
    "optuna": {"integrations.optuna"},
    "tensorboard": {"trackers.tensorboard"},
    "mlflow": {"trackers.mlflow"},
    "wandb": {"trackers.wandb"},
    "ray": {"engines.ray", "integrations.ray_tune", "integrations.ray_tune_results"},
    "pyarrow": {"integrations.ray_tune", "integrations.ray_tune_results"},
    "fsspec": {"stores.fsspec"},
    "rich": {
        *("progress_display", "compare.progress", "cli.output", "cli.inspect", "cli.list"),
        "cli.doctor",
        "cli.evaluate",
    },
    "typer": {
        "cli.application",
        "cli.options",
        "cli.run",
        "cli.inspect",
        "cli.pick",
        "cli.export",
        "cli.evaluate",
        "cli.compare",
        "cli.doctor",
        "cli.report",
        "cli.verify",
    },
}

# These extend classes of PyTorch or Ray, so only code that uses the package imports them.
OF_TORCH = {"tasks.networks", "tasks.image_ops", "tasks.augment", "tasks.losses", "tasks.metrics"}
OF_RAY = {"integrations.ray_tune", "integrations.ray_tune_results"}
# Likewise for scikit-learn and Lightning.
OF_OTHERS = {"integrations.sklearn", "integrations.lightning"}


def modules():
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), ast.parse(file.read_text())


def imports(tree):
    """Yield the imported module and whether the import stands at the top of the file."""
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node in top) for alias in node.names)


MODULES = dict(modules())


def layer_of(module):
    """Return the layer of a module: its own, or the one of its folder."""
    folder = module.partition(".")[0]
    found = [layer for layer, names in LAYERS.items() if folder in names]
    assert len(found) == 1, f"give {module} a layer"
    return found[0]


def ours(name):
    """Return the module of the package that an import names, if it is one of ours."""
    if name != "mopbt" and not name.startswith("mopbt."):
        return None
    parts = name.split(".")[1:]
    while ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts)


def imported_modules(module):
    """Return the other modules of the package that a module imports."""
    return {
        other for name, _ in imports(MODULES[module]) if (other := ours(name)) not in (None, module)
    }


def test_a_module_imports_lower_layers_only():
    for module in MODULES:
        here = layer_of(module)
        for other in imported_modules(module) - DEFERRED.get(module, set()):
            there = layer_of(other)
            assert there <= here, f"{module} (layer {here}) imports {other} (layer {there})"
            assert {here, there} != {2, 2.5}, (
                f"schedulers and engines must not know each other: {module} imports {other}"
            )
            if module.startswith("stores"):
                assert not other.startswith("engines"), "stores must not know engines"


def test_every_name_in_the_table_is_a_module():
    names = [name for layer in LAYERS.values() for name in layer]
    assert len(names) == len(set(names))
    assert set(names) <= set(MODULES)
    assert set(INTERFACES) == LAYERS[5]
    assert set().union(*INTERFACES.values()) <= set(MODULES)


def test_a_folder_of_the_last_layer_uses_only_the_interface_of_another():
    used = {folder: set() for folder in INTERFACES}
    for module in MODULES:
        folder = module.partition(".")[0]
        for other in imported_modules(module):
            if folder in INTERFACES and (its := other.partition(".")[0]) in INTERFACES:
                used[its] |= {other} if its != folder else set()
    assert used == INTERFACES


def test_private_names_stay_in_their_folder():
    for module in MODULES:
        folder = module.partition(".")[0]
        for name, _ in imports(MODULES[module]):
            if (other := ours(name)) is not None and other.partition(".")[0] != folder:
                last = name.rpartition(".")[2]
                assert not last.startswith("_") or last.endswith("__"), f"{module} imports {name}"


def test_no_module_imports_through_the_package():
    """`from mopbt import x` inside the package makes an import cycle."""
    found = {
        module
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "mopbt")
        or (isinstance(node, ast.Import) and any(alias.name == "mopbt" for alias in node.names))
    }
    assert not found


@pytest.mark.parametrize(
    "module", [name for name in MODULES if (SOURCE / name.replace(".", "/")).is_dir()]
)
def test_no_public_callable_has_the_name_of_a_submodule(module):
    """`mopbt.run` must not mean a function to one reader and a module to the next."""
    package = importlib.import_module(f"mopbt.{module}".rstrip("."))
    submodules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    for name in submodules & set(vars(package)):
        assert inspect.ismodule(vars(package)[name]), f"mopbt.{module}: {name}"


def test_the_public_names_of_the_package_are_not_modules():
    assert not {name for name in mopbt.__all__ if inspect.ismodule(vars(mopbt)[name])}


# Layers 0 to 2 are pure. What a module does decides, not its text.

IMPURE_IMPORTS = {
    *("os", "pathlib", "io", "shutil", "tempfile", "time", "datetime", "logging", "random"),
    *("threading", "multiprocessing", "concurrent", "asyncio", "subprocess", "socket", "signal"),
}
IMPURE_CALLS = {"open", "print", "input", "default_rng"}
CONTAINERS = {
    *("list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "count", "iter"),
}
CHANGES = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove"),
    *("discard", "clear", "sort", "reverse", "appendleft", "popleft", "move_to_end"),
}


def impure(tree):
    """Yield what a module does that a pure one must not do."""
    for name, _ in imports(tree):
        if name.split(".")[0] in IMPURE_IMPORTS:
            yield f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"rebinds {', '.join(node.names)}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            of_numpy = called.startswith(("np.random.", "numpy.random."))
            if of_numpy or called.rpartition(".")[2] in IMPURE_CALLS:
                yield f"calls {called}"
    yield from (f"changes {name}" for name in containers_of(tree) & changed_names(tree))


def containers_of(tree):
    """Return the names that a module binds to containers that can change."""
    names = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        value = node.value
        called = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
        literal = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
        if isinstance(value, literal) or called in CONTAINERS:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def changed_names(tree):
    """Return the names whose objects a module changes."""
    changed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed.add(ast.unparse(node.value))
        elif isinstance(node, ast.AugAssign):
            changed.add(ast.unparse(node.target))
        elif isinstance(node, ast.Call):
            owner, _, method = ast.unparse(node.func).rpartition(".")
            if method in CHANGES:
                changed.add(owner)
            elif method == "next" and node.args:
                changed.add(ast.unparse(node.args[0]))
    return changed


def test_layers_0_to_2_are_pure():
    for module in MODULES:
        if layer_of(module) <= 2:
            assert not list(impure(MODULES[module])), module


@pytest.mark.parametrize(
    "code",
    [
        *("import os.path", "from time import monotonic", "def f():\n    import random"),
        *("x = 0\ndef f():\n    global x\n    x = 1", "open('a')", "path.open()", "print(1)"),
        *("np.random.seed(0)", "numpy.random.default_rng()", "default_rng(3)"),
        "SEEN = {}\ndef f(key):\n    SEEN[key] = 1",
        "SEEN: dict[str, int] = dict()\ndef f(key):\n    del SEEN[key]",
        "SEEN = weakref.WeakValueDictionary()\ndef f(key):\n    SEEN.setdefault(key, 1)",
        "SEEN = [1]\ndef f():\n    SEEN.append(2)",
        "NUMBERS = itertools.count()\ndef f():\n    return next(NUMBERS)",
    ],
)
def test_impure_code_is_recognized(code):
    assert list(impure(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        '"""It says open(path) and print(x), and mentions default_rng."""',
        "TABLE = {'a': 1}\ndef f(key):\n    return TABLE[key]",
        "def f():\n    seen = []\n    seen.append(1)\n    return seen",
        "from numpy.random import Generator",
    ],
)
def test_pure_code_is_not_taken_for_impure(code):
    assert not list(impure(ast.parse(code)))


def test_heavy_packages_stand_in_the_one_file_that_needs_them():
    for module in MODULES:
        for name, at_top in imports(MODULES[module]):
            package = name.split(".")[0]
            if package in HEAVY:
                assert module in HEAVY[package], f"{module} imports {package}"
                if (
                    package not in ("rich", "typer")
                    and not module.startswith("torch")
                    and module not in OF_TORCH | OF_RAY | OF_OTHERS
                ):
                    assert not at_top, f"{module} must import {package} where it is used"


def test_no_cycles_between_modules():
    graph = {module: imported_modules(module) - DEFERRED.get(module, set()) for module in MODULES}
    done = set()
    path = []

    def visit(module):
        assert module not in path, f"import cycle: {' -> '.join([*path, module])}"
        if module in done:
            return
        path.append(module)
        for other in sorted(graph[module]):
            visit(other)
        path.pop()
        done.add(module)

    for module in graph:
        visit(module)
    assert done == set(graph)


# What other modules than `filesystem` write is not a file of a run.
WRITERS = {
    "compare.report": "removes figures of an earlier report",
    "engines.supervisor": "opens the null device",
    "export": "writes exported models where the user asks",
    "html.report": "writes a page where the user asks",
    "tasks.registry": "keeps downloaded data sets",
    "trackers.tensorboard": "removes events of a tracker that was killed",
    "trackers.wandb": "removes W&B runs of a tracker that was killed",
}
WRITING_METHODS = {
    *("write_text", "write_bytes", "unlink", "truncate", "touch", "rename", "rmdir"),
    *("symlink_to", "hardlink_to"),
}
WRITING_CALLS = {
    f"os.{name}"
    for name in (
        *("open", "write", "pwrite", "replace", "rename", "truncate", "ftruncate", "fsync"),
        *("remove", "unlink", "link", "symlink", "rmdir", "removedirs"),
    )
} | {f"shutil.{name}" for name in ("rmtree", "move", "copy", "copyfile", "copytree")}


def writes(node):
    """Return whether a node of the syntax tree is a call that writes, moves or removes a file."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    if called in WRITING_CALLS or called.rpartition(".")[2] in WRITING_METHODS:
        return True
    if called.rpartition(".")[2] != "open":
        return False
    # The mode is the second argument of the function and the first of the method of a path.
    texts = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
    texts += [keyword.value.value for keyword in node.keywords if keyword.arg == "mode"]
    return any(set(str(text)) <= set("rwaxbt+") and set(str(text)) & set("wax+") for text in texts)


@pytest.mark.parametrize(
    "code",
    [
        *('open(path, "w")', 'open(path, "ab")', 'path.open("wb")', 'open(path, mode="r+")'),
        *("os.open(path, 0)", "os.replace(a, b)", "os.ftruncate(fd, 3)", "os.pwrite(fd, b, 0)"),
        "shutil.rmtree(path)",
        *("path.write_text(text)", "self.file(3).write_bytes(data)", "path.unlink()"),
    ],
)
def test_writing_is_recognized(code):
    assert writes(ast.parse(code).body[0].value)


@pytest.mark.parametrize(
    "code", ["open(path)", 'open(path, "rb")', 'Results.open("runs/adult")', "path.read_text()"]
)
def test_reading_is_not_taken_for_writing(code):
    assert not writes(ast.parse(code).body[0].value)


def test_files_of_a_run_are_written_by_one_module():
    found = {module for module, tree in MODULES.items() if any(map(writes, ast.walk(tree)))}
    assert found == {"filesystem", *WRITERS}


def test_only_the_history_folds_exchanges():
    """A journal has one meaning. The conformance suites fold it plainly, to compare."""
    folding = {
        module
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("tell", "with_jobs")
    }
    assert folding == {"history", "testing"}
