"""The tables of mistakes themselves."""

import importlib
from pathlib import Path


def test_there_are_enough_rows_and_no_two_alike():
    rows = []
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"mistakes.{file.stem}")
        rows += [row.did for row in getattr(module, "MISTAKES", ())]
        rows += [(row.command, row.got, row.remedy) for row in getattr(module, "COMMANDS", ())]
    assert len(rows) == len(set(rows)) >= 160
