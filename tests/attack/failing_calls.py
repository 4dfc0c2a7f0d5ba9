"""Let every call to the disk, and to a remote storage, fail once in each way that it can."""

from dataclasses import replace
from functools import partial

from attack.crash_states import read_tree, write_tree
from attack.disks import FailingDisk, disk, kinds_of
from attack.scenarios import SCENARIOS, outcome
from mopbt.errors import StoreError
from mopbt.results import Results
from mopbt.verify import verify

# Worker processes of their own cannot share a disk that fails.
_BY_NAME = {s.name: replace(s, steps=4) for s in SCENARIOS if s.engine != "processes"}
READING = "reading a run"
UNITS = (*_BY_NAME, READING)


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
    if name == READING:
        fail_at = partial(fail_reading, bench)
        tree, calls, expected = bench.kept(count_calls_of_reading, bench)
    else:
        fail_at = partial(fail, _BY_NAME[name], bench)
        tree, calls, expected = bench.kept(count_calls, _BY_NAME[name], bench)
    for number, call in enumerate(calls, 1):
        for kind in kinds_of(call):
            yield f"{number} {call} {kind}", partial(fail_at, number, kind, tree, expected)


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


def read(run):
    """Read a run as commands do: verify it, and load all models."""
    verification = verify(run)
    results = Results.open(run)
    return verification, {
        model: results.checkpoint(model) for model in results.models_with_weights()
    }


def count_calls_of_reading(bench):
    """Read a finished run; return its tree, the names of the calls, and what was read."""
    root = bench.fresh()
    _BY_NAME["local"].execute(root)
    with disk(FailingDisk(0, "")) as counting:
        expected = read(root / "run")
    return read_tree(root), counting.calls, expected


def fail_reading(bench, number, kind, tree, expected):
    """Let a call fail: what is read is right, or there is a message; no file is changed."""
    root = bench.fresh()
    write_tree(tree, root)
    with disk(FailingDisk(number, kind)):
        try:
            verification, models = read(root / "run")
        except StoreError as error:
            check_message(str(error), kind, root)
        else:
            assert models == expected[1]
            for finding in verification.findings:
                if finding not in expected[0].findings:
                    check_message(f"{finding.what}; {finding.remedy}", kind, root)
    assert read_tree(root) == tree
