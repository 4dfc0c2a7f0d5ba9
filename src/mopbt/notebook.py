"""Show objects in a notebook: short tables, and a block that is updated."""

import importlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_CELL = "padding:2px 10px;text-align:right;white-space:nowrap"


def table_html(rows: Iterable[Sequence[str]], *, title: str = "", header: bool = True) -> str:
    """Return cells as an HTML table.

    The first row is its header, or the first column is.
    """
    lines = []
    for index, row in enumerate(rows):
        cells = []
        for column, cell in enumerate(row):
            place = index if header else column
            tag = "td" if place else "th"
            cells.append(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heading = f"<div><b>{escape(title)}</b></div>" if title else ""
    table = f'<table style="border-collapse:collapse">{"".join(lines)}</table>'
    return f'<div style="overflow-x:auto">{heading}{table}</div>'


def note_html(text: str) -> str:
    """Return a remark as an HTML paragraph; empty for an empty text."""
    return f"<div><i>{escape(text)}</i></div>" if text else ""


class Block:
    """One output of a notebook's cell, whose text is replaced in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show a text instead of the one before."""
        display = importlib.import_module("IPython.display")
        page = f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'
        content = {"text/plain": text, "text/html": page}
        if self._handle is None:
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
