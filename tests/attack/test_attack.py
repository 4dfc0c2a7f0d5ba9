"""A sample of `make attack`, chosen by the commit, and the model of the disk itself."""

import random
import subprocess
from pathlib import Path

import pytest

from attack.command import SCENARIOS, crash, fail_calls
from attack.crash_states import Durable, Machine, directory_states, file_states, torn_writes

# The share of all attacks. There are more failing calls, and they differ less.
POWER_LOSSES = 0.05
FAILING_CALLS = 0.01


def commit():
    """Return the hash of the commit, which chooses the sample; a fixed one without git."""
    answer = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return answer.stdout.strip() or "0"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_power_loss_loses_nothing(scenario):
    count, failures = crash(scenario, POWER_LOSSES, commit())
    assert not failures, "\n".join(failures[:3])
    print(f"{count} power losses")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_failing_call_loses_nothing(scenario):
    count, failures = fail_calls(scenario, FAILING_CALLS, commit())
    assert not failures, "\n".join(failures[:3])
    print(f"{count} failing calls")


def test_a_write_that_was_not_synced_may_be_torn_or_lost():
    write = ("write", 0, b"a" * 700, 500)
    torn = [data for _, _, data, _ in torn_writes(write)]
    assert torn[0] == b"a" * 12
    assert torn[1] == b"a" * 12 + b"\0" * 688
    assert torn[2] == b"\0" * 12 + b"a" * 688
    assert torn[3] == b"a" * 524
    assert torn[-1] == b"\0" * 700
    contents = file_states(Durable(b"b" * 500, [write]))
    assert contents[0] == b"b" * 500
    assert contents[1] == b"b" * 500 + b"a" * 700
    assert b"b" * 500 + b"a" * 12 in contents


def test_names_that_were_not_synced_may_be_missing_in_any_order():
    pending = [("name", None, "a.tmp", 1), ("rename", None, "a.tmp", "a", 1), ("unname", None, "b")]
    states = directory_states(Durable({"b": 0}, pending))
    assert {"b": 0} in states
    assert {"a": 1} in states
    assert {"b": 0, "a.tmp": 1} in states
    assert {} in states
    assert {"a": 1, "b": 0} in states


def test_what_was_synced_is_certain():
    root = Path("/disk")
    machine = Machine(root)
    for event in (
        ("name", root, "file", 0),
        ("write", 0, b"data", 0),
        ("sync", 0),
        ("sync", root),
        ("name", root, "other", 1),
    ):
        machine.execute(event)
    trees = list(machine.states(random.Random(0)))
    assert all(tree["file"] == b"data" for tree in trees)
    assert {len(tree) for tree in trees} == {1, 2}
