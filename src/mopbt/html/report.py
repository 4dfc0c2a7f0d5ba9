"""Write a page about runs as one self-contained HTML file."""

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

from mopbt.evaluations import read_evaluations
from mopbt.html.follower import driver_of
from mopbt.html.run_data import RunData, check_comparable, compared, importance_data
from mopbt.importance import intervals_of
from mopbt.run_directory import read_run

# Escapes of the characters by which a text could end the element that contains it.
ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def write_report(runs: Sequence[Path | str], out: Path | str, *, private: bool = False) -> Path:
    """Write a page about a run, or a comparison of several runs, and return its file.

    `private` leaves out the folders above the runs and above the file with the task.
    """
    out = Path(out)
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(
            f"`out` must be a file in an existing directory, such as report.html, got {out}"
        )
    names = distinct_names([Path(run) for run in runs])
    read = [read_run_data(Path(run), name) for run, name in zip(runs, names, strict=True)]
    if private:
        for run in read:
            run.hide_places()
    text = report(read, ["" if private else driver_of(Path(run)) for run in runs])
    out.write_text(text, encoding="utf-8")
    return out


def report(runs: Sequence[RunData], drivers: Sequence[str]) -> str:
    """Return a self-contained page about runs."""
    data = [run.data(driver=driver) for run, driver in zip(runs, drivers, strict=True)]
    style = _policy_hash(read_part("page.css"))
    script = _policy_hash(read_part("page.js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {style}; script-src {script}; "
        f"base-uri 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return fill_page(as_json(payload(runs, data)), title_of(runs), head=meta)


def live_page(data: str, title: str, nonce: str) -> str:
    """Return a page that asks its server for updates of its JSON data.

    The nonce allows its style and script in the Content-Security-Policy header.
    """
    return fill_page(data, title, nonce=f' nonce="{nonce}"')


def payload(runs: Sequence[RunData], data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of the page: each run, and the comparison of several."""
    if len(runs) == 1:
        return {"runs": list(data)}
    check_comparable(runs)
    return {"runs": list(data), "comparison": compared(runs)}


def fill_page(data: str, title: str, *, nonce: str = "", head: str = "") -> str:
    """Insert JSON data, title, style and script into the page."""
    return Template(read_part("page.html")).substitute(
        style=read_part("page.css"),
        script=read_part("page.js"),
        policy=head,
        nonce=nonce,
        title=html.escape(title),
        data=data.translate(ESCAPES),
    )


def as_json(data: Mapping[str, Any]) -> str:
    """Encode data as one line of ASCII JSON; NaN and infinity raise ValueError."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Name runs by the last parts of their paths, as many as distinguish them.

    >>> distinct_names([Path("/runs/mo-pbt/0"), Path("/runs/random/0")])
    ['mo-pbt/0', 'random/0']
    """
    places = [path.resolve().parts for path in paths]
    length = 1
    while len({parts[-length:] for parts in places}) < len(set(places)):
        length += 1
    return ["/".join(parts[-length:]) for parts in places]


def read_run_data(path: Path, name: str | None = None) -> RunData:
    """Read the run in a directory, and call it by its name, or that of the directory."""
    settings, history = read_run(path)
    run = RunData(
        settings,
        history,
        name=name or path.resolve().name,
        path=str(path),
        evaluations=read_evaluations(path),
    )
    run.importance = importance_data(intervals_of(history))
    return run


@cache
def read_part(name: str) -> str:
    """Read one of the files that a page is made of."""
    return files("mopbt.html").joinpath(name).read_text(encoding="utf-8")


def title_of(runs: Sequence[RunData]) -> str:
    """Return the title of a page about runs."""
    return " · ".join([*dict.fromkeys(run.problem.name for run in runs), "mopbt"])


def _policy_hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a style or script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
