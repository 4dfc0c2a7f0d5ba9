import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanes import examples
from mopbt import chain
from mopbt.chain import ScatteredChain
from mopbt.ranking import scattered_order

# Few places make many equal distances and many identical points.
PLACES = st.one_of(st.integers(0, 12).map(float), st.floats(0, 12, width=16))


def on_a_front(place):
    return (place, 20.0 - place)


def check(following, points):
    ids = sorted(points)
    expected = [ids[row] for row in scattered_order([points[id] for id in ids])]
    assert [following.at(place) for place in range(len(ids))] == expected
    assert [following.place_of(id) for id in expected] == list(range(len(ids)))
    for n in (0, 1, len(ids) // 2, len(ids)):
        assert set(following.first(n).tolist()) == set(expected[:n])


@pytest.mark.parametrize("most", [0, 3, 100])
@given(st.lists(st.dictionaries(st.integers(0, 25), st.none() | PLACES, max_size=4), max_size=12))
@examples(60)
def test_a_chain_equals_algorithm_1_on_its_points(most, steps):
    following, points = ScatteredChain(), {}
    objectives = np.zeros((26, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "MOST_CHANGES", most)
        for step in steps:
            for id, place in step.items():
                points.pop(id, None)
                if place is not None:
                    points[id] = objectives[id] = on_a_front(place)
            following.update(objectives, np.isin(np.arange(26), list(points)))
            if points:
                check(following, points)


def test_a_long_chain_on_a_curve():
    rng = np.random.default_rng(0)
    first = rng.random(700).round(3)
    objectives = np.column_stack([first, np.sqrt(1 - first**2)])
    following, on_front = ScatteredChain(), np.ones(700, dtype=bool)
    following.update(objectives, on_front)
    for _ in range(60):
        moved, flipped = rng.integers(700, size=2)
        objectives = objectives.copy()
        x = rng.random()
        objectives[moved] = x, np.sqrt(1 - x**2)
        on_front[flipped] = ~on_front[flipped]
        following.update(objectives, on_front)
    check(following, {id: tuple(objectives[id]) for id in np.flatnonzero(on_front).tolist()})
