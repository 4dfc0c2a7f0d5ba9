"""Execute the README as a reader would. `tools/release.py` uses this without pytest."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def programs(page):
    """Return the Python programs on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def terminal_block():
    """Return the commands of the README that use its program."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your own")[2]
    return re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)[0]


def extras():
    """Return the extras that the README installs for its program."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r"`pip install '\.\[([\w,]+)\]'`", text)[1]


def execute_readme(place, path):
    """Execute the program and the terminal block of the README, with `path` before PATH."""
    (program,) = programs("README.md")
    assert len([line for line in program.splitlines() if line.strip()]) <= 21
    (place / "first.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", terminal_block()],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=500,
        env=environment | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"'precision': .*'lr': ", done.stdout)) >= 2
    for file in ("front.png", "model.safetensors", "runs/first/report.html", "runs/second"):
        assert (place / file).exists(), file
    assert "identical" in done.stdout
