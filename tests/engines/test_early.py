"""Workers that start while a run is prepared."""

import pytest

import mopbt
from mopbt.engines.early import EarlyWorkers, modules_of
from mopbt.engines.pool import PoolEngine
from mopbt.engines.supervisor import Supervisor
from mopbt.function_task import as_task
from mopbt.tasks.toy import ToyTask

OPTIONS = {"population": 2, "progress": False}


def train(m):
    """Train nothing."""


@pytest.fixture
def spawned(monkeypatch):
    """Return the processes that supervisors start."""
    processes = []
    spawn = Supervisor.spawn

    def remember(self, target, environment):
        process = spawn(self, target, environment)
        processes.append(process)
        return process

    monkeypatch.setattr(Supervisor, "spawn", remember)
    return processes


def have_ended(processes):
    return all(process.popen.poll() is not None for process in processes)


class FailingTask(ToyTask):
    """A task whose check fails after workers have started."""

    def check(self):
        raise ValueError("the check failed")


def test_modules_are_those_that_reading_the_task_imports():
    assert modules_of(ToyTask()) == ["mopbt.tasks.toy"]
    described = {"space": {"x": mopbt.Float(0, 1)}, "objectives": {"a": "max"}, "steps": 1}
    assert modules_of(as_task(train, **described)) == ["mopbt.function_task", __name__]
    # What a script defines is sent by value.
    script = type("Task", (ToyTask,), {"__module__": "__main__"})
    assert modules_of(script()) == []


def test_the_run_uses_the_workers_that_started_early(spawned):
    results = mopbt.run(ToyTask(), out=None, engine=PoolEngine(2), **OPTIONS)
    assert len(results) > 2
    assert len(spawned) == 2
    assert have_ended(spawned)


def test_no_more_start_than_there_are_members_to_train(spawned):
    engine = PoolEngine(8)
    early = engine.start_early(ToyTask(), parallel=1)
    assert len(spawned) == 1
    early.close()
    assert have_ended(spawned)


def test_workers_end_if_the_run_cannot_start(spawned):
    with pytest.raises(ValueError, match="the check failed"):
        mopbt.run(FailingTask(), out=None, engine=PoolEngine(1), **OPTIONS)
    assert len(spawned) == 1
    assert have_ended(spawned)


@pytest.mark.parametrize("engine", ["local", "simulated"])
def test_engines_without_workers_start_none(engine, spawned):
    mopbt.run(ToyTask(), out=None, engine=engine, budget=mopbt.Budget(jobs=2), **OPTIONS)
    # A simulation trains in a pool, whose workers start with the first jobs.
    assert engine == "simulated" or not spawned


def test_a_complete_run_starts_none(tmp_path, spawned):
    mopbt.run(ToyTask(), out=tmp_path, engine="local", **OPTIONS)
    again = mopbt.run(ToyTask(), out=tmp_path, engine=PoolEngine(2), **OPTIONS)
    assert again.outcome == "complete"
    assert not spawned


def test_workers_with_another_environment_are_not_taken(spawned):
    early = EarlyWorkers(ToyTask(), {"OMP_NUM_THREADS": "1"}, 1)
    assert early.take({"OMP_NUM_THREADS": "2"}) is None
    assert early.take({"OMP_NUM_THREADS": "1"}) is spawned[0]
    assert early.take({"OMP_NUM_THREADS": "1"}) is None
    early.close()
    assert have_ended(spawned)
