"""A module imports only lower layers, and the pure layers have no side effects."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mopbt"

WITH_TORCH = {
    f"torch.{name}"
    for name in (
        "data",
        "validation",
        "layers",
        "optimizers",
        "probe",
        "stack",
        "task",
        "evaluation",
        "gradients",
        "program",
        "vectorize",
        "hyperparameters",
    )
}
LAYERS = {
    0: {
        "version",
        "device",
        "errors",
        "messages",
        "rng",
        "space",
        "objectives",
        "state",
        "serialization",
        "problem",
        "function_task",
    },
    1: {
        *(
            "ranking",
            "exploit",
            "explore",
            "scalarization",
            "metrics",
            "archive",
            "successive_halving",
            "selection",
        ),
        *("proposals", "proposals.base"),
        *("proposals.uniform", "proposals.tpe", "proposals.nsga2", "proposals.botorch"),
    },
    2: {
        "schedulers",
        "schedulers.base",
        "schedulers.pbt",
        "schedulers.asha",
        "schedulers.full_training",
        "algorithms",
    },
    2.5: {
        "filesystem",
        *(
            "stores",
            "stores.base",
            "stores.memory",
            "stores.journal",
            "stores.directory",
            "stores.fsspec",
        ),
        *(
            "engines",
            "engines.base",
            "engines.crashes",
            "engines.execution",
            "engines.seeding",
            "engines.supervisor",
            "engines.local",
            "engines.worker",
            "engines.pool",
            "engines.vectorized",
            "engines.auto",
        ),
        *("engines.simulated", "engines.ray"),
    },
    3: {
        "columns",
        "front",
        "history",
        "run_directory",
        "run_config",
        "progress",
        "progress_display",
        "results",
        "repair",
        "session",
        "fingerprint",
        "runner",
        "export",
        "replay",
    },
    4: {
        *(
            "",
            "registry",
            "tasks.toy",
            "testing",
            "plots",
            "html",
            "plots.front",
            "compare.measures",
            "compare.tables",
            "compare.table_formats",
            "compare.report",
        ),
        *(
            "plots.style",
            "plots.progress",
            "plots.objective_space",
            "plots.final",
            "compare.significance",
        ),
        *(
            "compare",
            "compare.plan",
            "compare.directory",
            "compare.prepare",
            "compare.collect",
            "compare.single_run",
            "compare.workers",
            "compare.progress",
            "compare.reuse",
            "compare.execute",
        ),
        *("html.run_data", "plots.against", "html.follower", "html.report", "html.dashboard"),
    },
    4.1: {
        "integrations",
        "trackers",
        "trackers.base",
        "trackers.tensorboard",
        "trackers.mlflow",
        "trackers.wandb",
        *(
            f"integrations.{name}"
            for name in (
                "ray_tune_results",
                "ray_tune",
                "sklearn",
                "lightning",
                "optuna",
            )
        ),
    },
    4.3: {"__main__"},
    4.2: {
        f"cli{name}"
        for name in (
            "",
            ".app",
            ".output",
            ".run",
            ".inspect",
            ".pick",
            ".export",
            ".list",
            ".compare",
            ".report",
        )
    },
    4.5: {
        "torch",
        *WITH_TORCH,
    },
    5: {
        *(
            "tasks",
            "tasks.adult",
            "tasks.adult_linear",
            "tasks.synthetic",
            "tasks.networks",
            "tasks.image_ops",
            "tasks.augment",
        ),
        *(
            "tasks.datasets",
            "tasks.tabular_io",
            "tasks.image_io",
            "tasks.registry",
            "tasks.losses",
            "tasks.metrics",
            "tasks.paper",
        ),
    },
}
LAYER = {module: layer for layer, modules in LAYERS.items() for module in modules}
WORLD = {
    "os",
    "pathlib",
    "time",
    "datetime",
    "logging",
    "threading",
    "random",
    "subprocess",
    "socket",
    "tempfile",
}
HEAVY = {
    "botorch": {"proposals.botorch"},
    "gpytorch": {"proposals.botorch"},
    "linear_operator": {"proposals.botorch"},
    "torch": {
        *("proposals.botorch", "serialization"),
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
        "plots.style",
        "plots.progress",
        "plots.objective_space",
        "plots.final",
        "compare.report",
    },
    "sklearn": {
        "tasks.adult",
        "tasks.adult_linear",
        "tasks.tabular_io",
        "tasks.registry",
        "integrations.sklearn",
    },
    "joblib": {"integrations.sklearn"},
    "lightning": {"integrations.lightning"},
    "optuna": {"integrations.optuna"},
    "tensorboard": {"trackers.tensorboard"},
    "mlflow": {"trackers.mlflow"},
    "wandb": {"trackers.wandb"},
    "ray": {"engines.ray", "integrations.ray_tune", "integrations.ray_tune_results"},
    "pyarrow": {"integrations.ray_tune", "integrations.ray_tune_results"},
    "fsspec": {"stores.fsspec"},
    "rich": {"progress_display", "compare.progress", "cli.output", "cli.inspect", "cli.list"},
    "typer": {
        "cli.app",
        "cli.run",
        "cli.inspect",
        "cli.pick",
        "cli.export",
        "cli.compare",
        "cli.report",
    },
}

# What these define is PyTorch's, or Ray's: nobody imports them who does not use it.
OF_TORCH = {"tasks.networks", "tasks.image_ops", "tasks.augment", "tasks.losses", "tasks.metrics"}
OF_RAY = {"integrations.ray_tune", "integrations.ray_tune_results"}
OF_OTHERS = {
    "integrations.sklearn",
    "integrations.lightning",
}  # as these are scikit-learn's and Lightning's


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


def ours(name):
    """Return the module of the package that an import names, if it is one of ours."""
    if not name.startswith("mopbt"):
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in LAYER:
        parts.pop()
    return ".".join(parts)


@pytest.mark.parametrize(
    ("module", "tree"), list(modules()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_module_imports_lower_layers_only(module, tree):
    assert module in LAYER, f"give {module} a layer"
    here = LAYER[module]
    for name, _ in imports(tree):
        other = ours(name)
        if other is None or other == module:
            continue
        assert LAYER[other] <= here, (
            f"{module} (layer {here}) imports {other} (layer {LAYER[other]})"
        )
        assert {here, LAYER[other]} != {2, 2.5}, (
            f"schedulers and engines must not know each other: {module} imports {other}"
        )
        if module.startswith("stores"):
            assert not other.startswith("engines"), "stores must not know engines"


@pytest.mark.parametrize(
    ("module", "tree"), list(modules()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_pure_layers_touch_nothing_of_the_world(module, tree):
    if LAYER[module] > 2:
        return
    used = {name.split(".")[0] for name, _ in imports(tree)}
    assert not used & WORLD
    source = ast.unparse(tree)
    assert "default_rng" not in source.replace("no default_rng", "")
    assert "np.random." not in source
    assert "open(" not in source
    assert "print(" not in source


@pytest.mark.parametrize(
    ("module", "tree"), list(modules()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_heavy_packages_stand_in_the_one_file_that_needs_them(module, tree):
    for name, at_top in imports(tree):
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
    graph = {}
    for module, tree in modules():
        graph[module] = {
            other for name, _ in imports(tree) if (other := ours(name)) not in (None, module)
        }
    done, path = set(), []

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


def test_all_layers_are_inhabited():
    assert {module for module, _ in modules()} == set(LAYER)


# What other modules than `filesystem` write is not a file of a run.
WRITERS = {
    "compare.report": "removes figures of an earlier report",
    "engines.supervisor": "opens the null device",
    "export": "writes exported models where the user asks",
    "html.follower": "opens journals for reading, without following links",
    "html.report": "writes a page where the user asks",
    "tasks.registry": "keeps downloaded data sets",
    "trackers.base": "marks the folder of a tracker",
}
WRITING_METHODS = {"write_text", "write_bytes", "unlink", "truncate", "touch"}
WRITING_CALLS = {
    f"os.{name}"
    for name in (
        *("open", "write", "pwrite", "replace", "rename", "truncate", "ftruncate", "fsync"),
        *("remove", "unlink"),
    )
}


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
    found = {module for module, tree in modules() if any(map(writes, ast.walk(tree)))}
    assert found == {"filesystem", *WRITERS}
