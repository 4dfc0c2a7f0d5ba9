"""Golden files: write them, read them, and find where a result differs from them.

Values are plain JSON. Whole numbers, texts, None and the structure must be equal. Real numbers may
differ by `CLOSE`. Those of decisions, below the keys `DECISIONS`, keep all their digits and may
differ in the last ones alone, which are the machine's.
"""

import csv
import io
import json
import math
import os
from pathlib import Path

FOLDER = Path(__file__).parent
CLOSE = 1e-7
DECISIONS = ("jobs", "positions")
MEASURED = ("report",)  # numbers of another kind below these
SHOWN = 8  # differences in a message


def writing():
    """Return whether golden files are written and not compared with."""
    return os.environ.get("MOPBT_GOLDEN") == "write"


def rounded(value):
    """Return plain JSON with numbers of nine decimals but in decisions; NaN is a text."""
    if isinstance(value, dict):
        kept = {key for key in DECISIONS if isinstance(value.get(key), list)}
        return {key: item if key in kept else rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return round(value, 9) + 0.0 if math.isfinite(value) else repr(value)
    return value


def differences(then, now, path="", close=CLOSE):
    """Return where two values differ, a line for each place."""
    if _is_number(then) and _is_number(now):
        whole = isinstance(then, int) and isinstance(now, int)
        same = then == now if whole else math.isclose(then, now, rel_tol=1e-9, abs_tol=close)
        return [] if same else [f"{path}: was {then!r}, is {now!r}"]
    lines = []
    if isinstance(then, dict) and isinstance(now, dict) and then.keys() == now.keys():
        for key in then:
            limit = 0.0 if key in DECISIONS else CLOSE if key in MEASURED else close
            lines += differences(then[key], now[key], f"{path}.{key}", limit)
    elif isinstance(then, list) and isinstance(now, list):
        for i, (a, b) in enumerate(zip(then, now, strict=False)):
            lines += differences(a, b, f"{path}[{i}]", close)
        if len(then) != len(now):
            lines.append(f"{path}: had {len(then)} items, has {len(now)}")
    elif then != now or type(then) is not type(now):
        lines.append(f"{path}: was {then!r}, is {now!r}")
    return lines


def assert_same(then, now, what, close=CLOSE):
    """Fail with the first differences between a golden value and another one."""
    found = differences(then, now, close=close)
    shown = "\n  ".join(found[:SHOWN])
    assert not found, f"{what} differs from its golden file in {len(found)} places:\n  {shown}"


def check_lines(name, lines, close=CLOSE):
    """Compare values with the lines of a golden file, or write them there."""
    file = FOLDER / name
    lines = rounded(lines)
    if writing():
        _write(file, "".join(_compact(line) for line in lines))
    assert_same(read_lines(name), lines, name, close)


def read_lines(name):
    """Return the values of a golden file with one on each line."""
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


def check_sections(name, sections):
    """Compare named values with those of a golden file, or write them there, each on a line."""
    made = [{key: value} for key, value in sections.items()]
    check_lines(name, made)


def check_table(name, rows):
    """Compare rows, dicts with the same keys, with a golden CSV file, or write them there."""
    if writing():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rounded(rows))
        _write(FOLDER / name, text.getvalue())
    assert_same(read_table(name), as_table(rows), name)


def read_table(name):
    """Return the rows of a golden CSV file."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as source:
        return as_table(list(csv.DictReader(source)))


def as_table(rows):
    """Return rows as they are read from a CSV file: with numbers where a cell is one."""
    return [{key: _number(str(cell)) for key, cell in row.items()} for row in rounded(rows)]


def _write(file, text):
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, "utf-8")


def _compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _number(text):
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)
