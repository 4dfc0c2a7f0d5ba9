import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.rng import derived_seed, stream

names = st.lists(st.one_of(st.text(max_size=8), st.integers(-(2**40), 2**40)), max_size=4).map(
    tuple
)
seeds = st.integers(0, 2**70)


@pytest.mark.parametrize(
    ("name", "first", "seed"),
    [
        ((0, "explore", 3, 10), 0.4364680314103422, 2262914696),
        ((0, "population"), 0.7364335083453727, 3703396585),
        ((7, "ü ∞"), 0.6517809361392232, 3700027151),
        ((2**80,), 0.5168414205914132, 1575591135),
    ],
)
def test_the_numbers_of_a_name_never_change(name, first, seed):
    # Other numbers would change the results of every run, and the decisions of resumed runs.
    assert float(stream(*name).random()) == first
    assert derived_seed(*name) == seed


def test_draws_from_other_generators_change_nothing():
    before = stream(0, "exploit", 4).integers(1000, size=20)
    other = stream(0, "exploit", 5)
    other.random(1000)
    np.random.default_rng(0).random(10)
    assert (stream(0, "exploit", 4).integers(1000, size=20) == before).all()


def test_the_order_of_decisions_changes_nothing():
    decisions = [(s, d, t) for s in (0, 1) for d in ("exploit", "explore") for t in range(5)]
    forwards = {d: stream(*d).random() for d in decisions}
    backwards = {d: stream(*d).random() for d in reversed(decisions)}
    assert forwards == backwards
    assert len(set(forwards.values())) == len(decisions)


@pytest.mark.slow
@given(seeds, names, seeds, names)
def test_different_names_have_different_streams(seed, name, other_seed, other_name):
    same = (seed, *name) == (other_seed, *other_name)
    assert (
        stream(seed, *name).integers(2**63) == stream(other_seed, *other_name).integers(2**63)
    ) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "a", 1), (0, "a", "1")),
        ((0, "ab"), (0, "a", "b")),
        ((0, 12), (0, 1, 2)),
        ((1, 2), (12,)),
        ((0, "a,1"), (0, "a", 1)),
        ((0,), (0, "")),
    ],
)
def test_names_that_look_alike_are_different(one, other):
    assert stream(*one).random() != stream(*other).random()


@given(seeds, names)
def test_numpy_and_torch_accept_a_derived_seed(seed, name):
    found = derived_seed(seed, *name)
    assert type(found) is int
    assert 0 <= found < 2**32


def test_derived_seeds_of_a_run_differ():
    assert (
        len({derived_seed(0, "train", trial, step) for trial in range(64) for step in range(100)})
        == 6400
    )
