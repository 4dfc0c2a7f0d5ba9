"""Whole runs of populations that are large enough for every incremental path."""

from dataclasses import fields

import pytest

from mopbt import MOPBT
from mopbt.engines.base import RunContext
from mopbt.engines.simulated import Lognormal, SimulatedEngine
from mopbt.history import History
from mopbt.problem import problem_of
from mopbt.schedulers.pbt import Pbt
from mopbt.session import Budget, Session
from mopbt.stores.memory import MemoryStore
from mopbt.tasks.synthetic import ThreeSkills, TradeOff
from schedulers.plain import PlainPbt


def journal(task, scheduler):
    """Return the journal of a simulated run."""
    problem, store, engine = problem_of(task), MemoryStore(), SimulatedEngine(30, Lognormal())
    engine.start(RunContext(task, problem, 0, store.checkpoints))
    history = History(problem)
    Session(scheduler, problem, store, engine, 0, Budget(), lambda progress: None, history).drive()
    engine.close()
    return list(store.lines())


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [TradeOff(steps=12, nans=0.01, failures=0.01), ThreeSkills(steps=6, noise=0.01)],
    ids=["two objectives", "three objectives"],
)
def test_a_large_population_decides_like_one_that_is_ranked_as_a_whole(task):
    scheduler = MOPBT(population=450, asynchronous=True).scheduler(problem_of(task))
    assert isinstance(scheduler, Pbt)
    plain = PlainPbt(**{f.name: getattr(scheduler, f.name) for f in fields(scheduler)})
    # The duration of a job is measured and differs from run to run.
    runs = [
        [
            {
                **line,
                "reports": [{**report, "duration": 0} for report in line.get("reports", ())],
            }
            for line in journal(task, each)
        ]
        for each in (scheduler, plain)
    ]
    assert runs[0] == runs[1]
