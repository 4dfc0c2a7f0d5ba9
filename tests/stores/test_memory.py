from mopbt.stores.memory import MemoryStore
from mopbt.testing import StoreConformance


class TestMemory(StoreConformance):
    def make(self):
        return MemoryStore()
