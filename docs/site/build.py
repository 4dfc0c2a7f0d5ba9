"""Build the documentation in build/site.

Zensical renders the Markdown files of one directory. This script assembles that directory: the
pages of docs/, figures from elsewhere in the project, the gallery with what its programs print
and draw, and the reference of the command line.

``python docs/site/build.py`` executes the programs of the gallery, which took 35 minutes on a busy
machine with two cores; those whose code and library are unchanged since the last build are not
repeated. ``--skip-gallery`` shows them without output. A warning of Zensical is an error.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gallery

import command_line

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PRIVATE = {"site", "drawings", "notebooks"}  # folders of docs/ that are not pages
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)]*)?\)")


def pages() -> list[Path]:
    """Return the files of docs/ that belong to the site."""
    files = (file for file in sorted(DOCS.rglob("*")) if file.is_file())
    return [file for file in files if file.relative_to(DOCS).parts[0] not in PRIVATE]


def relink(text: str, page: Path, target: Path) -> str:
    """Replace links that leave docs/: copy figures, and lead to the gallery for programs."""

    def replacement(match: re.Match[str]) -> str:
        file = (page.parent / match[1]).resolve()
        public = file.is_relative_to(DOCS) and file.relative_to(DOCS).parts[0] not in PRIVATE
        if public or not file.exists():
            return match[0]
        if file.suffix in {".py", ".ipynb"}:
            place = target / "gallery" / f"{gallery.slug(file)}.md"
        else:
            place = target / "files" / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
        here = (target / page.relative_to(DOCS)).parent
        return f"]({os.path.relpath(place, here)})"

    return LINK.sub(replacement, text)


def assemble(target: Path, *, execute: bool) -> None:
    """Write everything that Zensical reads to an empty directory."""
    shutil.rmtree(target, ignore_errors=True)
    for file in pages():
        place = target / file.relative_to(DOCS)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = relink(file.read_text(encoding="utf-8"), file, target)
            place.write_text(text, encoding="utf-8")
        else:
            shutil.copy(file, place)
    (target / "reference" / "command-line.md").write_text(command_line.page(), encoding="utf-8")
    gallery.write(target / "gallery", ROOT / "build" / "gallery", execute=execute)


def main() -> None:
    """Assemble the pages, then build the site."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-gallery", action="store_true", help="do not execute programs")
    arguments = parser.parse_args()
    site = ROOT / "build" / "site"
    assemble(ROOT / "build" / "docs", execute=not arguments.skip_gallery)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if subprocess.run(command, cwd=ROOT).returncode:
        sys.exit("the site has warnings, see above")
    # A program that reads llms.txt wants pages as Markdown.
    for file in (ROOT / "build" / "docs").rglob("*.md"):
        place = site / file.relative_to(ROOT / "build" / "docs")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    print(f"the site is in {site}")


if __name__ == "__main__":
    main()
