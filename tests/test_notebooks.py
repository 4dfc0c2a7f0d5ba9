"""The tutorial notebooks execute, and are stored without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@each
def test_a_notebook_is_stored_without_outputs(file):
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@each
def test_a_notebook_executes(file, tmp_path):
    """Execute the cells in order, in a kernel where one is installed."""
    try:
        import nbclient
        import nbformat
    except ImportError:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        script = tmp_path / "cells.py"
        script.write_text(code)
        environment = os.environ | {"PYTHONWARNINGS": "default"}
        command = [sys.executable, str(script)]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=120, env=environment)
        return
    notebook = nbformat.read(file, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=place).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("text/html" in output.get("data", {}) for output in shown)
