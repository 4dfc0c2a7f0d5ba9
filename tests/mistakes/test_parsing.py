"""Commands that cannot be parsed."""

import pytest

from mistakes.helpers import everything, mopbt_says

UNPARSABLE = [
    ("fly", "mopbt", "fly"),
    ("rum toy", "mopbt", "'run'"),
    ("run", "mopbt run", "'TASK'"),
    ("run toy --sed 3", "mopbt run", "--seed"),
    ("run toy --seed one", "mopbt run", "--seed"),
    ("lineage done best", "mopbt lineage", "MODEL"),
    ("dashboard . --port 99999", "mopbt dashboard", "--port"),
    ("export done logs", "mopbt export", "--to"),
]


@pytest.mark.parametrize(
    ("command", "whose", "part"), UNPARSABLE, ids=[row[0] for row in UNPARSABLE]
)
def test_what_the_command_line_cannot_parse(command, whose, part, here, capsys, monkeypatch):
    before = everything(here)
    code, printed = mopbt_says(command, capsys, monkeypatch)
    assert code == 2
    assert printed.err.startswith(f"Usage: {whose} ")
    assert f"Try '{whose} --help' for help." in printed.err
    assert part in printed.err.partition("Error: ")[2]
    assert "Traceback" not in printed.err
    assert everything(here) == before
