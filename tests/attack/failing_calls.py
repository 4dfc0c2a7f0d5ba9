"""Let every call to the disk, and to a remote storage, fail once in each way that it can."""

from dataclasses import replace
from functools import partial

from attack.crash_states import read_tree, write_tree
from attack.disks import FailingDisk, disk, kinds_of
from attack.scenarios import SCENARIOS, outcome
from mopbt.errors import StoreError

# Worker processes of their own cannot share a disk that fails.
_BY_NAME = {s.name: replace(s, steps=4) for s in SCENARIOS if s.engine != "processes"}
UNITS = tuple(_BY_NAME)


def count_calls(scenario, bench):
    """Execute a scenario; return the tree before, the names of its calls, and the outcome."""
    root = bench.fresh()
    scenario.prepare(root)
    tree = read_tree(root)
    with disk(FailingDisk(0, "")) as counting:
        scenario.attack(root)
    return tree, counting.calls, outcome(root)


def cases(name, bench):
    """Yield each call of a scenario with each way in which it can fail."""
    scenario = _BY_NAME[name]
    tree, calls, expected = bench.kept(count_calls, scenario, bench)
    for number, call in enumerate(calls, 1):
        for kind in kinds_of(call):
            action = partial(fail, scenario, bench, number, kind, tree, expected)
            yield f"{number} {call} {kind}", action


def fail(scenario, bench, number, kind, tree, expected):
    """Let a call fail: the run recovers, or stops with a message, and can be resumed."""
    root = bench.fresh()
    write_tree(tree, root)
    with disk(FailingDisk(number, kind)) as failing:
        try:
            scenario.attack(root)
        except StoreError as error:
            check_message(str(error), kind, root)
    scenario.execute(root)
    resumed = outcome(root)
    if scenario.identical:
        assert resumed == expected, f"the run differs after {failing.failed} failed"


def check_message(text, kind, root):
    """Check that a message names the file and the remedy, and that the error was justified."""
    assert kind != "short", f"a short read or write is completed, got: {text}"
    places = (str(place) for place in (root, *root.parents[:-1]))
    assert any(place in text for place in places), f"the message names no file: {text}"
    assert "rerun" in text or "try again" in text, f"the message names no remedy: {text}"
