import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.proposals.base import Trials
from mopbt.proposals.uniform import Stratified, Uniform
from mopbt.rng import stream
from mopbt.space import Categorical, Float, Grid, Int, Space
from mopbt.state import Result

SPACE = Space(
    {
        "x": Float(1e-3, 10, log=True),
        "n": Int(1, 5),
        "p": Grid(0, 1, 10),
        "kind": Categorical(["a", "b", "c"]),
        "y": Float(0, 1),
    }
)
KNOWN = Trials(((1.0, 2, 3, 0, 0.5),), (Result((1.0, 2.0)),), ((2.0, 1, 1, 1, 0.1),))


@given(st.sampled_from([Uniform(), Stratified()]), st.integers(0, 40), st.integers(0, 2**32))
def test_there_are_as_many_configurations_of_the_space_as_asked_for(propose, n, seed):
    configs = propose(SPACE, Trials(), n, stream(seed, "uniform"))
    assert len(configs) == n
    assert all(map(SPACE.contains, configs))


@pytest.mark.parametrize("propose", [Uniform(), Stratified()])
def test_the_trials_change_nothing_and_the_generator_everything(propose):
    first = propose(SPACE, Trials(), 5, stream(0, "uniform"))
    assert propose(SPACE, KNOWN, 5, stream(0, "uniform")) == first
    assert not set(propose(SPACE, Trials(), 5, stream(1, "uniform"))) & set(first)


@pytest.mark.parametrize("propose", [Uniform(), Stratified()])
def test_a_proposal_is_a_value(propose):
    assert pickle.loads(pickle.dumps(propose)) == propose
    assert hash(propose) == hash(type(propose)())


def test_uniform_draws_are_independent_and_those_of_a_stratified_batch_are_spread_evenly():
    drawn = Stratified()(SPACE, Trials(), 30, stream(0, "stratified"))
    assert set(Counter(config[2] for config in drawn).values()) == {3}
    assert set(Counter(config[3] for config in drawn).values()) == {10}
    assert sorted(int(config[4] * 30) for config in drawn) == list(range(30))
    alone = Uniform()(SPACE, Trials(), 30, stream(0, "uniform"))
    assert len(set(Counter(config[2] for config in alone).values())) > 1
    assert len({int(config[4] * 30) for config in alone}) < 30


def test_uniform_draws_fall_on_every_part_of_a_domain_alike():
    drawn = Uniform()(SPACE, Trials(), 6000, stream(1, "uniform"))
    decades = Counter(min(int(SPACE["x"].to_unit(config[0]) * 4), 3) for config in drawn)
    # The tolerance is five standard deviations.
    assert [decades[i] / 6000 for i in range(4)] == pytest.approx([0.25] * 4, abs=0.028)
    assert [Counter(c[1] for c in drawn)[i] / 6000 for i in range(1, 6)] == pytest.approx(
        [0.2] * 5, abs=0.026
    )
