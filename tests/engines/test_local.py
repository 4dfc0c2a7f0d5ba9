import sys

import mopbt
from mopbt.engines.local import LocalEngine
from mopbt.tasks.toy import ToyTask
from mopbt.testing import EngineConformance


class TestLocal(EngineConformance):
    def make(self):
        return LocalEngine()


class TestLocalWithoutCache(EngineConformance):
    def make(self):
        return LocalEngine(warm_bytes=0)


def test_has_room_for_one_job():
    assert LocalEngine().capacity == 1


class ExitingToy(ToyTask):
    def train(self, model, hp, begin, end, seed):
        if begin == 2 and hp["weight"] > 0.5:
            sys.exit(0)
        return super().train(model, hp, begin, end, seed)


def test_a_task_that_calls_exit_is_a_failed_interval():
    options = {"population": 6, "engine": "local", "progress": False}
    results = mopbt.run(ExitingToy(steps=8), out=None, **options)
    assert results.outcome == "done"
    assert results.failures
    assert all("SystemExit: 0" in error for error in results.failures.values())
