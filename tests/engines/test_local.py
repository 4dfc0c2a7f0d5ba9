from mopbt.engines.local import LocalEngine
from mopbt.testing import EngineConformance


class TestLocal(EngineConformance):
    def make(self):
        return LocalEngine()


class TestLocalWithoutCache(EngineConformance):
    def make(self):
        return LocalEngine(warm_bytes=0)


def test_has_room_for_one_job():
    assert LocalEngine().capacity == 1
