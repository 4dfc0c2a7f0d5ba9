"""The programs in the README and the docs run, and the names in them exist."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import mopbt_command
from mopbt.version import __version__
from readme import execute_readme, extras, programs, terminal_block

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(f.relative_to(ROOT)) for f in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_the_code_on_a_page_runs(page, tmp_path):
    (tmp_path / "page.py").write_text("\n".join(programs(page)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_no_two_pages_have_the_same_run():
    """Pasting a second page would otherwise raise an error about other settings."""
    places = {
        page: {place for program in programs(page) for place in re.findall(r'out="(.+?)"', program)}
        for page in PAGES
    }
    assert sum(map(len, places.values())) == len(set().union(*places.values())) > 8
    # `mopbt run toy` writes there.
    assert "runs/toy" not in set().union(*places.values())


def test_the_program_and_the_commands_of_the_readme_run(tmp_path):
    """In the slow lane they run as printed, in a shell."""
    (program,) = programs("README.md")
    (tmp_path / "first.py").write_text(program)
    subprocess.run([sys.executable, "first.py"], cwd=tmp_path, check=True, capture_output=True)
    front = mopbt_command("front", "runs/first", "--json", cwd=tmp_path).stdout
    block = terminal_block().replace("$model", str(json.loads(front)[0]["model"]))
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    printed = {
        words[1]: mopbt_command(*words[1:], cwd=tmp_path).stdout
        for words in commands
        if words[0] == "mopbt"
    }
    assert len(printed) == 8
    assert "identical" in printed["replay"]
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_readme_runs_as_printed(tmp_path):
    """Use the source tree in place of an installation."""
    bin = tmp_path / "bin"
    bin.mkdir()
    source = str(ROOT / "src")
    for name, arguments in {"python": "", "mopbt": "-m mopbt"}.items():
        script = f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} {arguments} "$@"\n'
        (bin / name).write_text(script)
        (bin / name).chmod(0o755)
    execute_readme(tmp_path, bin)


@pytest.mark.slow
def test_the_readme_runs_from_the_wheel(tmp_path):
    """Install the wheel into a new environment, with the extras that the README names."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    bin = tmp_path / "venv" / "bin"
    pip = [bin / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = tmp_path / "wheels"
    for command in (
        ["wheel", "--no-deps", "--wheel-dir", wheels, ROOT],
        ["install", "--constraint", ROOT / "constraints.txt"],
    ):
        if command[0] == "install":
            (wheel,) = wheels.glob("mopbt-*.whl")
            command.append(f"{wheel}[{extras()}]")
        done = subprocess.run([*pip, *command], capture_output=True, text=True, timeout=500)
        if "No matching distribution" in done.stderr or "connection" in done.stderr.lower():
            pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    (tmp_path / "place").mkdir()
    execute_readme(tmp_path / "place", bin)


def test_every_name_of_the_concordance_exists():
    names = re.findall(r"`(mopbt\.[\w.]+)`", (ROOT / "docs" / "reference" / "paper.md").read_text())
    assert len(names) > 30
    for name in names:
        parts = name.split(".")
        depth = next(i for i in range(len(parts), 0, -1) if importable(".".join(parts[:i])))
        found = importlib.import_module(".".join(parts[:depth]))
        for part in parts[depth:]:
            found = getattr(found, part)


def importable(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def test_every_difference_names_a_test_that_exists():
    rows = [
        line
        for line in (ROOT / "docs" / "reference" / "differences.md").read_text().splitlines()
        if line.startswith("|")
    ][2:]
    assert len(rows) > 15
    for row in rows:
        file = re.search(r"`(tests/[\w/.]+)` \|$", row)
        assert file, row
        assert (ROOT / file[1]).is_file(), row


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "docs/llms.txt"])
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            file = (ROOT / page).parent / target if target else ROOT / page
            assert file.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(file), f"{page}: {target}#{anchor}"


def test_only_small_figures_that_a_page_shows_are_in_the_repository():
    pages = "".join((ROOT / page).read_text() for page in PAGES)
    for figure in [*(ROOT / "docs").rglob("*.png"), *(ROOT / "results").rglob("*.png")]:
        assert figure.stat().st_size < 250_000, figure
        place = figure.relative_to(ROOT)
        shown = place.as_posix() if place.parts[0] == "results" else place.name
        assert shown in pages, f"no page shows {place}: remove it"


def test_every_guide_is_in_llms_txt():
    text = (ROOT / "docs" / "llms.txt").read_text()
    guides = {page.removeprefix("docs/") for page in PAGES if "/how-to/" in page}
    assert guides == set(re.findall(r"\((how-to/[\w-]+\.md)\)", text))


def anchors(file):
    """Return the anchors of the headings of a page, as the site generates them."""
    heads = re.findall(
        r"^#+ (.*)$",
        re.sub(r"^```.*?^```", "", file.read_text(), flags=re.MULTILINE | re.DOTALL),
        re.MULTILINE,
    )
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    """Build a copy; the programs of the gallery are executed by tests of their own."""
    pytest.importorskip("zensical")
    for name in ("docs", "examples", "results", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = subprocess.run(
        [sys.executable, "docs/site/build.py", "--skip-gallery"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build" / "site"
    assert "mopbt.metrics.hypervolume" in (site / "reference" / "api" / "index.html").read_text()
    assert (site / "llms.txt").exists()
    assert (site / "how-to" / "pytorch.md").exists()
    assert "mopbt resume" in (site / "reference" / "command-line" / "index.html").read_text()
    # Every page can be reached from the navigation.
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES[1:]:
        name = page.removeprefix("docs/")
        assert f": {name}\n" in nav, page
        assert (site / name.removesuffix(".md").removesuffix("index") / "index.html").exists()
    # Zensical does not check images.
    for page in site.rglob("*.html"):
        for source in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text()):
            assert (page.parent / source).exists(), f"{page}: {source}"


def test_the_citation_and_the_groups_fit_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {__version__}\n" in citation
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "<" not in project["project"]["requires-python"]
    # Extras are for users; what only developers need is a group.
    extras = project["project"]["optional-dependencies"]
    assert not extras.keys() & project["dependency-groups"].keys()
    tested = re.search(r"^TESTED := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert set(tested.split(",")) == extras.keys() - {"integrations", "demo"}
    groups = set(re.findall(r"--group (\w+)", (ROOT / "Makefile").read_text()))
    assert groups == project["dependency-groups"].keys()
