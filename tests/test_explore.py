import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.explore import Local, RandomMutation, interpolate
from mopbt.rng import stream
from mopbt.space import Categorical, Float, Grid, Int, LogGrid, Ordinal, Space

SPACE = Space(
    {
        "dropout": Grid(0, 0.8, 10),
        "wd": LogGrid(1e-6, 0.1, 10, zero=True),
        "width": Ordinal([16, 32, 64]),
        "lr": Float(1e-5, 0.1, log=True),
        "p": Float(0, 0.8),
        "depth": Int(1, 8),
        "batch": Int(1, 1024, log=True),
        "kind": Categorical(["a", "b", "c"]),
    }
)
TEN = Space({f"x{i}": Grid(0, 1, 10) for i in range(5)})


@given(
    st.lists(st.sampled_from([Local(), Local(0), Local(1), RandomMutation()]), max_size=40),
    st.integers(0, 2**32),
)
def test_no_sequence_of_explores_leaves_the_space(explores, seed):
    config = SPACE.sample(stream(seed, "start"))
    for i, explore in enumerate(explores):
        before = tuple(config)
        config = explore(SPACE, config, stream(seed, "explore", i))
        assert SPACE.contains(config)
        assert len(config) == len(before)
        values = SPACE.decode(config)
        assert 0 <= values["dropout"] <= 0.8
        assert 0 <= values["p"] <= 0.8
        assert 1 <= values["depth"] <= 8
        assert values["wd"] == 0 or 1e-6 <= values["wd"] <= 0.1


@pytest.mark.parametrize("explore", [Local(), RandomMutation()])
def test_every_value_is_reached_from_the_lowest_corner(explore):
    # Multiplication would keep 0 at 0 and an integer 1 at 1. Here every listed value is reached.
    config = SPACE.encode(
        {
            "dropout": 0,
            "wd": 0,
            "width": 16,
            "lr": 1e-5,
            "p": 0,
            "depth": 1,
            "batch": 1,
            "kind": "a",
        }
    )
    seen = [Counter() for _ in SPACE]
    rng = stream(0, "corner")
    for _ in range(4000):
        config = explore(SPACE, config, rng)
        for counter, position in zip(seen, config, strict=True):
            counter[position] += 1
    by_name = dict(zip(SPACE, seen, strict=True))
    assert {name: len(by_name[name]) for name in ("dropout", "wd", "width", "depth", "kind")} == {
        "dropout": 10,
        "wd": 10,
        "width": 3,
        "depth": 8,
        "kind": 3,
    }
    assert min(by_name["p"]) < 0.05 < 0.75 < max(by_name["p"])
    assert min(by_name["lr"]) < 1e-4 < 1e-2 < max(by_name["lr"])
    assert min(by_name["batch"]) == 1
    assert max(by_name["batch"]) > 512


def test_the_local_explore_is_that_of_algorithm_3_with_a_resample():
    # From the middle of ten values with `resample` 0.2: P(shift s) = 0.8 * local(s) + 0.2 / 10.
    n, start = 8000, (5,) * 5
    counts = Counter()
    for i in range(n):
        counts.update(p - 5 for p in Local()(TEN, start, stream(0, "local", i)))
    for shift in range(-5, 5):
        local = {0: 1 / 4, 1: 1 / 8, 2: 1 / 8, 3: 1 / 8}.get(abs(shift), 0)
        share = 0.2 / 10 + 0.8 * local
        assert counts[shift] / (5 * n) == pytest.approx(
            share, abs=5 * math.sqrt(share * (1 - share) / (5 * n))
        )


def test_without_resampling_a_category_stays_and_lists_move_by_three_at_most():
    space = Space({"kind": Categorical(["a", "b"]), "x": Grid(0, 1, 10)})
    found = {Local(0)(space, (1, 5), stream(i, "moves")) for i in range(300)}
    assert found == {(1, x) for x in range(2, 9)}


def test_resampling_with_probability_one_is_a_fresh_draw():
    counts = Counter(
        Local(1)(Space({"x": Grid(0, 1, 10)}), (0,), stream(i, "fresh"))[0] for i in range(5000)
    )
    assert len(counts) == 10
    assert all(abs(c - 500) < 5 * math.sqrt(450) for c in counts.values())


def test_random_mutation_changes_each_variable_with_1_over_P_times_1_minus_1_over_n():
    n, start = 8000, (5, 0, 9, 3, 7)
    changed = Counter()
    for i in range(n):
        after = RandomMutation()(TEN, start, stream(0, "mutation", i))
        changed.update(k for k in range(5) if after[k] != start[k])
    share = 1 / 5 * (1 - 1 / 10)
    for k in range(5):
        assert changed[k] / n == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


def test_random_mutation_of_one_variable_is_a_fresh_draw():
    space = Space({"x": Grid(0, 1, 10)})
    assert {RandomMutation()(space, (5,), stream(i, "one"))[0] for i in range(300)} == set(
        range(10)
    )


@pytest.mark.parametrize("explore", [Local(), RandomMutation()])
def test_the_same_stream_gives_the_same_configuration(explore):
    config = SPACE.sample(stream(1, "c"))
    assert explore(SPACE, config, stream(0, "explore", 3, 4)) == explore(
        SPACE, config, stream(0, "explore", 3, 4)
    )
    assert len({explore(SPACE, config, stream(0, "explore", 3, step)) for step in range(20)}) > 5


@pytest.mark.parametrize("explore", [Local(), RandomMutation()])
def test_a_configuration_of_another_length_is_an_error(explore):
    with pytest.raises(ValueError, match="zip"):
        explore(TEN, (1, 2), stream(0, "short"))


@pytest.mark.parametrize("resample", [-0.1, 1.1, math.nan, "0.2", None, True])
def test_the_resample_probability_is_a_probability(resample):
    with pytest.raises(ValueError, match=r"`resample` must be in \[0, 1\], got "):
        Local(resample)


# Between two configurations.


@given(st.data(), st.floats(0, 1))
def test_an_interpolated_configuration_lies_between_its_two_ends(data, weight):
    space = Space(
        {
            "grid": Grid(0, 1, 11),
            "log": LogGrid(1e-3, 1, 7, zero=True),
            "real": Float(1e-5, 1.0, log=True),
            "count": Int(1, 64),
            "kind": Categorical(["a", "b", "c"]),
        }
    )
    seeds = data.draw(st.tuples(st.integers(0, 99), st.integers(0, 99)))
    first, other = (space.sample(stream(seed, "test")) for seed in seeds)
    found = interpolate(space, first, other, weight)
    assert space.contains(found)
    for a, b, between in zip(first[:4], other[:4], found[:4], strict=True):
        assert min(a, b) - 1e-12 <= between <= max(a, b) + 1e-12
    assert found[4] == (other[4] if weight > 0.5 else first[4])
    assert interpolate(space, first, other, 0) == first
    assert interpolate(space, first, other, 1) == other


def test_half_way_on_a_grid_is_its_middle():
    space = Space({"grid": Grid(0, 1, 11)})
    assert interpolate(space, (2,), (8,), 0.5) == (5,)
