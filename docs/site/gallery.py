"""Write the gallery: the notebooks and examples with what they print and draw."""

import ast
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [
    ROOT / "docs" / "notebooks" / f"{name}.ipynb"
    for name in ("first-front", "pytorch-script", "choose-and-ship")
]
HEAD = """# Gallery

Complete programs with what they print and draw. Notebooks are in `docs/notebooks`, scripts in
`examples`. The fronts come from one small run each on a CPU, made when this site was built. They
show what a program does, not how good an algorithm is.

"""
# Colors, and the control of a line of progress.
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Entry:
    """A page of the gallery: its Markdown, and its figures as base64 by file name."""

    title: str
    summary: str
    text: str
    figures: dict[str, str] = field(default_factory=dict)


def slug(file: Path) -> str:
    """Return the name of the page of a program."""
    return file.stem.replace("_", "-")


def programs() -> list[Path]:
    """Return notebooks, then examples."""
    return [*NOTEBOOKS, *sorted((ROOT / "examples").glob("*.py"))]


def write(target: Path, cache: Path, *, execute: bool) -> None:
    """Write a page for each program, and one that lists them."""
    target.mkdir(parents=True)
    cards = []
    for file in programs():
        entry = cached_entry(file, cache) if execute else make_entry(file, None)
        name = slug(file)
        for figure, data in entry.figures.items():
            (target / f"{name}-{figure}").write_bytes(base64.b64decode(data))
        (target / f"{name}.md").write_text(f"# {entry.title}\n\n{entry.text}", encoding="utf-8")
        picture = "".join(
            f"[![]({name}-{figure})]({name}.md)\n\n    " for figure in list(entry.figures)[:1]
        )
        cards.append(f"-   {picture}**[{entry.title}]({name}.md)**\n\n    {entry.summary}\n\n")
    grid = f'<div class="grid cards gallery" markdown>\n\n{"".join(cards)}</div>\n'
    (target / "index.md").write_text(HEAD + grid, encoding="utf-8")


def cached_entry(file: Path, cache: Path) -> Entry:
    """Execute a program unless that was done with the same code and library."""
    digest = hashlib.sha256(file.read_bytes())
    for source in sorted((ROOT / "src").rglob("*.py")):
        digest.update(source.read_bytes())
    place = cache / slug(file)
    stored = place / f"{digest.hexdigest()[:16]}.json"
    if not stored.exists():
        shutil.rmtree(place, ignore_errors=True)
        work = place / "work"
        work.mkdir(parents=True)
        print(f"executing {file.relative_to(ROOT)}", flush=True)
        stored.write_text(json.dumps(asdict(make_entry(file, work))), encoding="utf-8")
    return Entry(**json.loads(stored.read_text(encoding="utf-8")))


def make_entry(file: Path, work: Path | None) -> Entry:
    """Convert a program, executed in `work` if that is given."""
    entry = from_notebook(file, work) if file.suffix == ".ipynb" else from_example(file, work)
    # The place where a page was made is of no interest to its readers.
    text = entry.text.replace(f"{work}/", "").replace(f"{ROOT}/", "")
    return replace(entry, text=text)


def from_example(file: Path, work: Path | None) -> Entry:
    """Convert a script: its docstring, its code, what it prints, and the fronts of its runs."""
    source = file.read_text(encoding="utf-8")
    title, _, rest = (ast.get_docstring(ast.parse(source)) or file.stem).partition("\n")
    code = source.split('"""\n', 1)[1].strip()
    about = re.sub(r"``(.+?)``", r"`\1`", rest.strip())
    parts = [about, f"`examples/{file.name}`:", f"```python\n{code}\n```"]
    figures: dict[str, str] = {}
    if work is not None:
        done = execute([sys.executable, str(file)], work)
        if done.returncode == 0:
            printed = CONTROL.sub("", done.stdout).strip()
            parts += ["It prints:", f"```text\n{printed}\n```"]
            figures = fronts(work)
            parts += [f"![The front]({slug(file)}-{name})" for name in figures]
        else:
            parts.append(f"Not executed when this site was built: {reason(done.stderr)}.")
    title = title.rstrip(".")
    return Entry(title, f"`examples/{file.name}`", "\n\n".join(parts) + "\n", figures)


def execute(command: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    """Execute a program in a directory, with the library of this project."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    return subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, timeout=900
    )


def reason(stderr: str) -> str:
    """Return why a program ended; only a missing package is acceptable."""
    last = stderr.strip().splitlines()[-1]
    if "ModuleNotFoundError" not in last:
        raise RuntimeError(stderr)
    package = re.findall(r"'([\w.]+)'", last)[0]
    return f"the package `{package}` was not installed"


def fronts(work: Path) -> dict[str, str]:
    """Draw the front of the first run below `work`."""
    script = """
import sys, mopbt
from pathlib import Path
runs = sorted(file.parent for file in Path("runs").rglob("run.toml"))
mopbt.Results.open(runs[0]).front().plot().savefig("front.png", dpi=110)
"""
    done = execute([sys.executable, "-c", script], work)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {"front.png": base64.b64encode((work / "front.png").read_bytes()).decode()}


def from_notebook(file: Path, work: Path | None) -> Entry:
    """Convert a notebook: its cells, and what they show."""
    import nbclient
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    if work is not None:
        os.environ["PYTHONPATH"] = str(ROOT / "src")
        place = {"metadata": {"path": str(work)}}
        nbclient.NotebookClient(notebook, timeout=300, resources=place).execute()
    first, *cells = notebook.cells
    title, _, summary = first.source.partition("\n")
    parts = [summary.strip(), f"`docs/notebooks/{file.name}`"]
    figures: dict[str, str] = {}
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(show(output, slug(file), figures))
    text = "\n\n".join(part for part in parts if part) + "\n"
    summary = summary.strip().split(" You need")[0]
    return Entry(title.removeprefix("# "), summary, text, figures)


def show(output: Any, name: str, figures: dict[str, str]) -> str:
    """Return an output of a cell as Markdown, and collect its figure."""
    if output.output_type == "stream":
        printed = CONTROL.sub("", output.text).strip() if output.name == "stdout" else ""
        return f"```text\n{printed}\n```" if printed else ""
    data = output.data
    if "image/png" in data:
        figure = f"{len(figures) + 1}.png"
        figures[figure] = data["image/png"]
        return f"![]({name}-{figure})"
    if "text/html" in data:
        return f'<div class="cell-output">\n{data["text/html"].strip()}\n</div>'
    return f"```text\n{data['text/plain']}\n```"
