"""Add the figures of results/, which is outside docs/, to the site below results/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[2] / "results"


def on_files(files: Files, config: Any) -> Files:
    """Add the figures of all published comparisons."""
    for figure in sorted(RESULTS.glob("*/*/figures/*.png")):
        place = f"results/{figure.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Convert paths on disk to paths on the site."""
    return re.sub(r"\]\(\.\./results/", "](results/", markdown)
