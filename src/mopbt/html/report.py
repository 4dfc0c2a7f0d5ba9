"""One page for runs, whole in itself: its style, its program and its data stand in it, and it asks no network for anything."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from mopbt.history import read_history
from mopbt.html.follower import driver_of
from mopbt.html.run_data import RunData, check_comparable, compared
from mopbt.run_directory import read_run_config
from mopbt.stores.journal import read_lines

UNSAFE = {
    ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"
}  # so that no text ends the element it stands in


def write_report(runs: Sequence[Path | str], out: Path | str) -> Path:
    """Write a page about a run, or about several beside each other, into a file, and return it."""
    out = Path(out)
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(
            f"`out` must be a file in a directory that is there, such as report.html, got {out}"
        )
    text = report([read_run(Path(run)) for run in runs], [driver_of(Path(run)) for run in runs])
    out.write_text(text, encoding="utf-8")
    return out


def report(stories: Sequence[RunData], drivers: Sequence[str]) -> str:
    """Return the page of runs, which needs nothing besides itself."""
    told = [story.data(driver=driver) for story, driver in zip(stories, drivers, strict=True)]
    style, script = part("page.css"), part("page.js")
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return filled(as_json(payload(stories, told)), title_of(stories), head=meta)


def live_page(told: str, title: str, nonce: str) -> str:
    """Return the page of JSON about runs that go on; it asks where it came from for what comes later, bound to a header's nonce."""
    return filled(told, title, nonce=f' nonce="{nonce}"')


def payload(stories: Sequence[RunData], told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the page's program reads of runs: each one's data, and of several how they compare."""
    if len(stories) == 1:
        return {"runs": list(told)}
    check_comparable(stories)
    return {"runs": list(told), "comparison": compared(stories)}


def filled(told: str, title: str, *, nonce: str = "", head: str = "") -> str:
    """Return the page with its data, which are JSON."""
    parts = {"style": part("page.css"), "script": part("page.js"), "policy": head, "nonce": nonce}
    return Template(part("page.html")).substitute(
        parts, title=html.escape(title), data=told.translate(UNSAFE)
    )


def as_json(told: Mapping[str, Any]) -> str:
    """Return data as JSON in one line of ASCII; NaN and infinities are no JSON, and an error."""
    return json.dumps(told, separators=(",", ":"), allow_nan=False)


def read_run(path: Path) -> RunData:
    """Read a run's directory."""
    settings, journal = read_run_config(path), path / "journal.jsonl"
    history = read_history(settings.problem, read_lines(journal), journal)
    return RunData(settings, history, name=path.resolve().name, path=str(path))


@cache
def part(name: str) -> str:
    """Return one of the files that a page is made of."""
    return files("mopbt.html").joinpath(name).read_text(encoding="utf-8")


def title_of(stories: Sequence[RunData]) -> str:
    """Return the title of the page of runs."""
    return " · ".join([*dict.fromkeys(story.problem.name for story in stories), "mopbt"])


def _hash(text: str) -> str:
    """Return how a policy names the one style or program that a page may have."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
