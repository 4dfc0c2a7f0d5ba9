"""Changed code is detected in scripts, in notebooks and in interactive sessions."""

import copy
import linecache
import sys
import types

import pytest

import mopbt
from mopbt.errors import RunMismatch
from mopbt.fingerprint import code_of, is_changed

CELL = """
WIDTH = 2
LAYERS = [64, 64]
seen = []

def scale(x):
    return x * WIDTH

class Net:
    depth = 1
    def forward(self, x):
        return scale(x)

def train(m):
    "Train."
    seen.append(m.begin)
    state = {"w": 0.0}
    m.track(w=state)
    for _ in m.steps():
        state["w"] += Net().forward(m.hp["x"]) * len(LAYERS)
    m.report(up=state["w"], down=m.hp["x"])
"""


class Notebook:
    """Executes cells as IPython does: in one module, with their source in the line cache."""

    def __init__(self, *, has_source=True):
        self.names = {"__name__": "__main__", "mopbt": mopbt}
        self.has_source = has_source
        self.cells = 0

    def execute(self, cell):
        self.cells += 1
        file = f"<cell-{id(self)}-{self.cells}>"
        if self.has_source:
            linecache.cache[file] = (len(cell), None, cell.splitlines(True), file)
        exec(compile(cell, file, "exec"), self.names)
        return self.names["train"]


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("m.report(up=state", "m.report(up=2 * state"),
        ('state = {"w": 0.0}', 'state = {"w": 1.0}'),
        ("WIDTH = 2", "WIDTH = 3"),
        ("LAYERS = [64, 64]", "LAYERS = [64, 32]"),
        ("return x * WIDTH", "return x + WIDTH"),
        ("depth = 1", "depth = 2"),
        ("return scale(x)", "return -scale(x)"),
    ],
)
def test_a_changed_cell_changes_the_fingerprint(before, after, has_source):
    assert before in CELL
    first = code_of_function(Notebook(has_source=has_source).execute(CELL))
    second = code_of_function(Notebook(has_source=has_source).execute(CELL.replace(before, after)))
    assert is_changed(first, second)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"Train."', '"Train a member."'),
        ("    for _", "    # one step\n    for _"),
        ("\ndef train", "\nUNUSED = 1\n\ndef train"),
        ("seen = []", "seen = [1]"),
    ],
)
def test_comments_and_unused_names_do_not_count(before, after):
    assert before in CELL
    first = code_of_function(Notebook().execute(CELL))
    second = code_of_function(Notebook().execute(CELL.replace(before, after)))
    assert first
    assert first == second


def test_a_cell_that_is_executed_again_is_the_same_code():
    notebook = Notebook()
    first = code_of_function(notebook.execute(CELL))
    assert first == code_of_function(notebook.execute(CELL))
    notebook.execute("WIDTH = 5")
    assert is_changed(first, code_of_function(notebook.names["train"]))


def test_a_function_of_another_local_module_counts_and_the_rest_of_it_does_not(tmp_path):
    helper = types.ModuleType("local_helper")
    helper.__file__ = str(tmp_path / "local_helper.py")
    sys.modules["local_helper"] = helper
    cell = "import local_helper\ndef train(m):\n    return local_helper.FACTOR * m.hp['x']\n"
    try:
        helper.FACTOR = 1
        helper.OTHER = 1
        first = code_of_function(Notebook().execute(cell))
        helper.OTHER = 2
        assert first == code_of_function(Notebook().execute(cell))
        helper.FACTOR = 2
        assert is_changed(first, code_of_function(Notebook().execute(cell)))
    finally:
        del sys.modules["local_helper"]


def test_values_of_a_surrounding_function_count():
    def make(factor):
        def train(m):
            return m.hp["x"] * factor

        return train

    assert code_of_function(make(1)) == code_of_function(make(1))
    assert is_changed(code_of_function(make(1)), code_of_function(make(2)))


def test_a_counter_is_state_and_not_code():
    calls = 0

    def train(m):
        nonlocal calls
        calls += 1

    before = code_of_function(train)
    train(None)
    assert before == code_of_function(train)


def test_the_description_in_a_decorator_does_not_count():
    cell = (
        "@mopbt.task(space={'x': mopbt.Grid(0, 1, 5)}, objectives={'up': 'max', 'down': 'min'},\n"
        "            steps=4)\ndef train(m):\n    m.report(up=1, down=2)\n"
    )
    first = code_of(Notebook().execute(cell))
    assert first == code_of(Notebook().execute(cell.replace("steps=4", "steps=8")))
    assert is_changed(first, code_of(Notebook().execute(cell.replace("up=1", "up=2"))))


def test_installed_tasks_have_no_fingerprint_of_their_own():
    from mopbt.tasks.toy import ToyTask

    assert code_of(ToyTask()) == ""


def test_packages_of_another_environment_do_not_count(tmp_path):
    place = tmp_path / "other" / "site-packages"
    place.mkdir(parents=True)
    file = place / "library.py"
    cell = "import library\ndef train(m):\n    return library.f(m)\n"
    notebook = Notebook()
    fingerprints = []
    for value in (1, 2):
        file.write_text(f"def f(m):\n    return {value}\n")
        library = types.ModuleType("library")
        library.__file__ = str(file)
        exec(compile(file.read_text(), str(file), "exec"), vars(library))
        notebook.names["library"] = sys.modules["library"] = library
        fingerprints.append(code_of_function(notebook.execute(cell)))
    del sys.modules["library"]
    assert fingerprints[0] == fingerprints[1]


def code_of_function(function):
    return code_of(as_task(function))


def as_task(function):
    space = {"x": mopbt.Grid(0, 1, 5)}
    objectives = {"up": "max", "down": "min"}
    return mopbt.task(space=space, objectives=objectives, steps=4)(function)


def start(function, out, **options):
    return mopbt.run(
        as_task(function), out=out, population=4, engine="local", progress=False, **options
    )


def test_a_run_of_other_code_is_an_error_with_remedies(tmp_path):
    notebook = Notebook()
    first = start(notebook.execute(CELL), tmp_path / "run", budget=mopbt.Budget(jobs=4))
    assert not first.done
    changed = notebook.execute(CELL.replace("WIDTH = 2", "WIDTH = 4"))
    with pytest.raises(RunMismatch, match=r"other code of 'train'.*`out`.*on_change=\"continue\""):
        start(changed, tmp_path / "run")
    assert len(mopbt.Results.open(tmp_path / "run")) == len(first)
    done = start(changed, tmp_path / "run", on_change="continue")
    assert done.outcome == "done"
    with pytest.raises(RunMismatch, match="restore the code"):
        start(changed, tmp_path / "run")
    restored = start(notebook.execute(CELL), tmp_path / "run")
    assert restored.outcome == "complete"


def test_a_run_without_reports_restarts_with_the_new_code(tmp_path):
    class Stop(mopbt.Callback):
        def on_start(self, run):
            raise mopbt.StopRun

    notebook = Notebook()
    start(notebook.execute(CELL), tmp_path / "run", callbacks=[Stop()])
    changed = notebook.execute(CELL.replace("WIDTH = 2", "WIDTH = 4"))
    assert start(changed, tmp_path / "run").outcome == "done"
    assert start(changed, tmp_path / "run").outcome == "complete"


def test_on_change_must_be_one_of_two_words(tmp_path):
    with pytest.raises(ValueError, match="`on_change` must be 'error' or 'continue', got 'ask'"):
        start(Notebook().execute(CELL), tmp_path / "run", on_change="ask")


@pytest.mark.slow
def test_a_changed_cell_is_an_error_in_a_jupyter_kernel(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    start_cell = (
        "import mopbt\n"
        "def start(): return mopbt.run(train, out='run', space={'x': mopbt.Grid(0, 1, 5)},\n"
        "    objectives={'up': 'max', 'down': 'min'}, steps=4, population=4, engine='local')\n"
    )
    attempt = "try:\n    start()\nexcept mopbt.errors.RunMismatch as error:\n    print(error)\n"
    cells = [CELL, start_cell, "start()", "start().outcome", "WIDTH = 9", attempt]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=place).execute()
    outputs = [cell["outputs"] for cell in notebook.cells]
    assert "complete" in str(outputs[3])
    assert "on_change" in str(outputs[5])


def test_a_pickled_object_does_not_change_the_code_of_its_class():
    class Plain:
        def train(self):
            return 1

    before = code_of(Plain())
    copy.copy(Plain())
    assert "__slotnames__" in vars(Plain)
    assert code_of(Plain()) == before
