"""Resume runs from every state of the disk that a power loss may leave."""

import shutil
from dataclasses import replace
from functools import partial

from attack.crash_states import crash_states, read_tree, write_tree
from attack.disks import disk
from attack.record import Recorder
from attack.scenarios import SCENARIOS, outcome, sound_reports

_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
UNITS = tuple(_BY_NAME)
# One in so many states of a run with worker processes is resumed with worker processes, too.
REAL = 100


def record(scenario, bench):
    """Execute a scenario; return the tree before, the events, and the outcome."""
    root = bench.fresh()
    scenario.prepare(root)
    tree = read_tree(root)
    is_real = scenario.engine == "processes"
    recorder = Recorder(root, bench.path / "log" if is_real else None)
    with disk(recorder):
        scenario.attack(root, installs=recorder if is_real else None)
    return tree, recorder.events, outcome(root)


def cases(name, bench):
    """Yield the states of a scenario, each with what resumes it."""
    scenario = _BY_NAME[name]
    tree, events, expected = bench.kept(record, scenario, bench)
    for digest, state, promised in states_of(events, tree):
        engine = scenario.engine
        if engine == "processes" and int(digest, 16) % REAL:
            engine = "pool"
        resumed = replace(scenario, engine=engine)
        yield digest, partial(resume, resumed, bench, digest, state, promised, expected)


def states_of(events, tree):
    """Yield the states after a power loss, with the jobs whose reports were shown before it."""
    shown = [(n, event[1]) for n, event in enumerate(events, 1) if event[0] == "shown"]
    for number, digest, state in crash_states(events, tree):
        yield digest, state, [job for at, job in shown if at <= number]


def resume(scenario, bench, digest, state, promised, expected):
    """Resume a run from a state; keep the state if something is lost."""
    root = bench.fresh()
    write_tree(state, root)
    try:
        kept = sound_reports(root)
        for job in promised:
            assert kept.get(job) == expected.reports[job], f"the report of job {job} is lost"
        scenario.execute(root)
        resumed = outcome(root)
        if scenario.identical:
            assert resumed == expected, "the resumed run differs"
    except BaseException:
        place = bench.unit.folder / "failed" / f"{bench.unit.slug}-{digest}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        write_tree(state, place)
        raise
