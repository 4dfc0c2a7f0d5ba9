"""Models in memory, and what engines declare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.engines.base import (
    ClockedEngine,
    Engine,
    InProcessEngine,
    ModelCache,
    StackingEngine,
)
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.ray import RayEngine
from mopbt.engines.simulated import SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine


def test_a_cached_model_is_returned_once():
    cache = ModelCache(100)
    cache.put(3, "model", 10)
    assert cache.take(3) == "model"
    assert cache.take(3) is None
    assert cache.take(None) is None


def test_the_oldest_models_are_dropped_first():
    cache = ModelCache(100)
    for id in range(4):
        cache.put(id, f"model {id}", 30)
    assert [cache.take(id) for id in range(4)] == [None, "model 1", "model 2", "model 3"]


def test_a_model_that_is_too_large_is_not_kept_and_leaves_the_cache_usable():
    cache = ModelCache(100)
    cache.put(0, "large", 101)
    assert cache.take(0) is None
    cache.put(1, "small", 100)
    assert cache.take(1) == "small"


@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 30)), max_size=60),
)
def test_a_cache_never_holds_more_than_its_limit(limit, plays):
    """The cache behaves as a plain list of entries, newest last, whose oldest are dropped."""
    cache, kept = ModelCache(limit), []
    for number, (puts, id, size) in enumerate(plays):
        found = [entry for entry in kept if entry[0] == id]
        if puts:
            cache.put(id, number, size)
            kept = [entry for entry in kept if entry[0] != id] + [(id, number, size)]
            while sum(entry[2] for entry in kept) > limit:
                kept.pop(0)
        else:
            assert cache.take(id) == (found[0][1] if found else None)
            kept = [entry for entry in kept if entry[0] != id]
    assert [cache.take(id) for id in range(5)] == [
        next((n for i, n, _ in kept if i == id), None) for id in range(5)
    ]


# What engines declare.


@pytest.mark.parametrize(
    ("engine", "abilities"),
    [
        (LocalEngine(), {InProcessEngine}),
        (PoolEngine(1), {StackingEngine}),
        (VectorizedEngine(1), {StackingEngine}),
        (RayEngine(1), {StackingEngine}),
        (SimulatedEngine(1), {InProcessEngine, StackingEngine, ClockedEngine}),
    ],
)
def test_an_engine_has_the_abilities_that_it_declares(engine, abilities):
    assert isinstance(engine, Engine)
    known = {InProcessEngine, StackingEngine, ClockedEngine}
    assert {ability for ability in known if isinstance(engine, ability)} == abilities


def test_a_simulation_has_the_abilities_of_the_engine_that_trains():
    assert SimulatedEngine(4).in_process
    assert SimulatedEngine(4).stack == 1
    stacking = SimulatedEngine(4, engine=VectorizedEngine(1, stack=3))
    assert not stacking.in_process
    assert stacking.stack == 3
