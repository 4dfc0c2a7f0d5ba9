import dataclasses
import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.rng import stream
from mopbt.space import Categorical, Domain, Float, Grid, Int, LogGrid, Ordinal, Space

WEIGHT_DECAY = LogGrid(1e-6, 0.1, 10, zero=True)
DROPOUT = Grid(0, 0.8, 10)
DOMAINS = [
    DROPOUT,
    WEIGHT_DECAY,
    LogGrid(0.1, 10, 9),
    Ordinal([16, 32, 64]),
    Ordinal(["small", "medium", "large", "huge"]),
    Categorical(["adam", "sgd", True, False, 1, 0]),
    Float(0, 0.8),
    Float(1e-5, 0.1, log=True),
    Int(0, 1),
    Int(1, 8),
    Int(-3, 200),
    Int(1, 2, log=True),
    Int(1, 1024, log=True),
]

# --- any domain, for properties -----------------------------------------------------------------

numbers = st.floats(-1e6, 1e6)
positive = st.floats(1e-9, 1e9)
apart = st.floats(1e-3, 1e3)
items = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
lists = st.lists(items, min_size=2, max_size=8, unique_by=lambda v: (type(v) is bool, v))
domains = st.one_of(
    st.builds(lambda lo, width, n: Grid(lo, lo + width, n), numbers, apart, st.integers(2, 12)),
    st.builds(
        lambda lo, ratio, n, zero: LogGrid(lo, lo * (1 + ratio), n, zero=zero),
        positive,
        apart,
        st.integers(3, 12),
        st.booleans(),
    ),
    st.builds(Ordinal, lists),
    st.builds(Categorical, lists),
    st.builds(lambda lo, width: Float(lo, lo + width), numbers, apart),
    st.builds(lambda lo, ratio: Float(lo, lo * (1 + ratio), log=True), positive, apart),
    st.builds(
        lambda lo, width: Int(lo, lo + width), st.integers(-(10**6), 10**6), st.integers(1, 10**6)
    ),
    st.builds(
        lambda lo, width: Int(lo, lo + width, log=True),
        st.integers(1, 10**6),
        st.integers(1, 10**6),
    ),
)


def allows(domain, value):
    """Check whether a user who wrote this domain would accept this value."""
    if isinstance(domain, Ordinal | Categorical):
        return any(type(value) is type(v) and value == v for v in domain.values)
    zero = isinstance(domain, LogGrid) and domain.zero and value == 0
    whole = not isinstance(domain, Int) or type(value) is int
    return zero or (
        whole
        and not isinstance(value, bool)
        and math.isfinite(value)
        and domain.lo <= value <= domain.hi
    )


@given(
    domains,
    st.integers(0, 2**32),
    st.lists(st.sampled_from(["nearby", "sample", "stratified"]), max_size=30),
)
def test_a_value_never_leaves_its_domain(domain, seed, moves):
    # In other libraries uniform(0, 0.8) reached 1.15 by multiplying with 1.2.
    rng = stream(seed, "moves")
    position = domain.sample(rng)
    for move in moves:
        match move:
            case "nearby":
                position = domain.nearby(position, rng)
            case "sample":
                position = domain.sample(rng)
            case "stratified":
                position = domain.stratified(3, rng)[0]
        assert domain.contains(position)
        assert allows(domain, domain.decode(position)), (domain, position)


@given(domains, st.integers(0, 2**32))
def test_decoding_and_encoding_return_the_same_position(domain, seed):
    rng = stream(seed, "positions")
    for position in [
        domain.sample(rng),
        *domain.stratified(5, rng),
        domain.nearby(domain.sample(rng), rng),
    ]:
        again = domain.encode(domain.decode(position))
        assert again == position
        assert type(again) is type(position)


@pytest.mark.parametrize(
    "domain",
    [d for d in DOMAINS if isinstance(d, Grid | LogGrid | Ordinal | Categorical)],
    ids=repr,
)
def test_every_listed_value_survives_encoding(domain):
    assert [domain.encode(v) for v in domain.values] == list(range(len(domain.values)))


# --- reachability: the failures of peers --------------------------------------------------------


def neighbors(domain, position, draws=400):
    rng = stream(0, "neighbors", repr(position))
    return {domain.nearby(position, rng) for _ in range(draws)}


def reachable(graph, position):
    seen, new = {position}, {position}
    while new:
        new = set().union(*(graph[p] for p in new)) - seen
        seen |= new
    return seen


FINITE = [
    DROPOUT,
    WEIGHT_DECAY,
    Ordinal([16, 32]),
    Ordinal(list("abcde")),
    Int(0, 1),
    Int(1, 8),
    Int(0, 25),
    Int(1, 2, log=True),
    Int(1, 20, log=True),
]


@pytest.mark.parametrize("domain", FINITE, ids=repr)
def test_every_value_is_reached_from_every_other_by_local_moves(domain):
    if isinstance(domain, Int):
        everything = set(range(domain.lo, domain.hi + 1))
    else:
        everything = set(range(len(domain.values)))
    graph = {position: neighbors(domain, position) for position in everything}
    assert all(reachable(graph, position) == everything for position in everything)


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (WEIGHT_DECAY, 0.0),
        (DROPOUT, 0.0),
        (Float(0, 0.8), 0.0),
        (Float(0, 0.8), 0.8),
        (Int(0, 100), 0),
        (Int(1, 8), 1),
        (Int(1, 1024, log=True), 1),
        (Int(1, 2, log=True), 1),
    ],
    ids=repr,
)
def test_local_moves_leave_zero_one_and_the_ends(domain, value):
    # In other libraries 0 * 1.2 stayed 0, and int(1 * 1.2) stayed 1.
    assert len(neighbors(domain, domain.encode(value))) > 1


@given(
    st.one_of(st.tuples(st.just(False), numbers, apart), st.tuples(st.just(True), positive, apart)),
    st.floats(0, 1),
    st.integers(0, 100),
)
def test_a_local_move_of_a_float_is_at_most_a_third_of_the_range(kind, share, seed):
    log, lo, width = kind
    domain = Float(lo, lo * (1 + width) if log else lo + width, log=log)
    scale = math.log if log else float
    ends = scale(domain.lo), scale(domain.hi)
    start = min(max(domain.lo + share * (domain.hi - domain.lo), domain.lo), domain.hi)
    moved = domain.nearby(start, stream(seed, "third"))
    assert abs(scale(moved) - scale(start)) <= (ends[1] - ends[0]) / 3 * (1 + 1e-6) + 1e-9


# --- distributions ------------------------------------------------------------------------------


def test_the_local_move_is_that_of_algorithm_3():
    # In the middle of 10 values nothing is clipped. Shift 0 has probability 1/4, each other 1/8.
    rng, n = stream(0, "algorithm 3"), 40_000
    counts = Counter(DROPOUT.nearby(5, rng) - 5 for _ in range(n))
    assert set(counts) == set(range(-3, 4))
    for shift, count in counts.items():
        share = 1 / 4 if shift == 0 else 1 / 8
        assert count == pytest.approx(n * share, abs=5 * math.sqrt(n * share * (1 - share)))


@pytest.mark.parametrize(
    ("start", "end", "stays"), [(0, 0, 5 / 8), (1, 0, 3 / 8), (9, 9, 5 / 8), (8, 9, 3 / 8)]
)
def test_moves_past_an_end_are_clipped(start, end, stays):
    rng, n = stream(0, "clipping"), 10_000
    assert sum(DROPOUT.nearby(start, rng) == end for _ in range(n)) / n == pytest.approx(
        stays, abs=0.025
    )


def test_a_short_int_moves_like_a_list():
    for start in range(1, 9):
        ours = [Int(1, 8).nearby(start, stream(s, "int")) for s in range(200)]
        assert ours == [
            1 + Ordinal(range(8)).nearby(start - 1, stream(s, "int")) for s in range(200)
        ]


def test_a_local_move_keeps_a_category():
    assert neighbors(Categorical(["a", "b", "c"]), 1) == {1}


@pytest.mark.parametrize(
    "domain", [DROPOUT, WEIGHT_DECAY, Categorical(list("abcdefghij")), Int(1, 10)], ids=repr
)
def test_sampling_is_uniform_over_values(domain):
    rng, n = stream(0, "uniform"), 10_000
    counts = Counter(domain.sample(rng) for _ in range(n))
    assert len(counts) == 10
    assert all(abs(count - n / 10) < 5 * math.sqrt(n * 0.09) for count in counts.values())


@pytest.mark.parametrize(
    ("domain", "middle"),
    [
        (Float(0, 0.8), 0.4),
        (Float(1e-5, 0.1, log=True), 1e-3),
        (Int(0, 99), 49.5),
        (Int(1, 1024, log=True), math.sqrt(0.5 * 1024.5)),
    ],
)
def test_the_median_is_the_middle_of_the_scale(domain, middle):
    rng = stream(0, "median")
    below = sum(domain.sample(rng) < middle for _ in range(4000)) / 4000
    assert below == pytest.approx(0.5, abs=0.04)


# --- the initial population ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "domain",
    [
        DROPOUT,
        WEIGHT_DECAY,
        Ordinal(list("abcdefghij")),
        Categorical(list("abcdefghij")),
        Int(1, 10),
    ],
    ids=repr,
)
def test_32_stratified_draws_of_10_values_have_each_3_or_4_times(domain, seed):
    drawn = domain.stratified(32, stream(seed, "population"))
    assert len(drawn) == 32
    assert sorted(Counter(drawn).values()) == [3] * 8 + [4] * 2
    # The draws are concatenated permutations, so every ten contain all values.
    for block in range(3):
        assert len(set(drawn[10 * block : 10 * block + 10])) == 10


@pytest.mark.parametrize("domain", [Float(0, 0.8), Float(1e-5, 0.1, log=True)], ids=repr)
def test_stratified_floats_have_one_draw_in_each_cell(domain):
    drawn = domain.stratified(32, stream(0, "cells"))
    share = [math.log(v / 1e-5) / math.log(1e4) if domain.log else v / 0.8 for v in drawn]
    assert sorted(int(s * 32) for s in share) == list(range(32))
    assert drawn != sorted(drawn)


def test_stratified_ints_with_more_values_than_draws_are_spread():
    drawn = Int(1, 1000).stratified(10, stream(0, "ints"))
    assert sorted((v - 1) // 100 for v in drawn) == list(range(10))


@given(domains, st.integers(0, 40), st.integers(0, 100))
def test_stratified_gives_as_many_as_asked(domain, n, seed):
    drawn = domain.stratified(n, stream(seed, "n"))
    assert len(drawn) == n
    assert all(domain.contains(p) for p in drawn)


def test_iid_draws_are_not_stratified():
    space = Space({"a": DROPOUT, "b": WEIGHT_DECAY})
    drawn = [space.sample(stream(0, "population", i)) for i in range(32)]
    assert max(Counter(a for a, _ in drawn).values()) > 4


def test_columns_of_a_stratified_population_are_independent():
    population = Space({"a": DROPOUT, "b": DROPOUT}).stratified(32, stream(0, "population"))
    assert all(
        sorted(Counter(column).values()) == [3] * 8 + [4] * 2
        for column in zip(*population, strict=True)
    )
    assert any(a != b for a, b in population)


# --- the paper's lists --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (
            WEIGHT_DECAY,
            [0, 1e-6, 4.217e-6, 1.778e-5, 7.499e-5, 3.162e-4, 1.334e-3, 5.623e-3, 2.371e-2, 1e-1],
        ),
        (
            LogGrid(0.01, 10, 10, zero=True),
            [0, 0.01, 0.02371, 0.05623, 0.1334, 0.3162, 0.7499, 1.778, 4.217, 10],
        ),
        (
            LogGrid(0.1, 10, 10, zero=True),
            [0, 0.1, 0.1778, 0.3162, 0.5623, 1, 1.778, 3.162, 5.623, 10],
        ),
        (DROPOUT, [0.8 * i / 9 for i in range(10)]),
        (Grid(0.1, 0.9, 10), [0.1 + 0.8 * i / 9 for i in range(10)]),
        (Grid(0, 1, 10), [i / 9 for i in range(10)]),
    ],
)
def test_the_lists_of_the_paper(domain, values):
    assert domain.values == pytest.approx(values, rel=5e-4)
    # The ends are exact, and so is the 0.
    assert (domain.values[0], domain.values[-1]) == (values[0], values[-1])
    assert all(type(v) is float for v in domain.values)


@given(numbers, apart, st.integers(2, 30))
def test_a_grid_is_even_and_has_its_ends(lo, width, n):
    values = Grid(lo, lo + width, n).values
    assert (values[0], values[-1], len(values)) == (lo, lo + width, n)
    assert np.diff(values) == pytest.approx(
        np.full(n - 1, (values[-1] - values[0]) / (n - 1)), rel=1e-4, abs=1e-8
    )


@given(positive, apart, st.integers(2, 30))
def test_a_log_grid_is_even_in_the_logarithm_and_has_its_ends(lo, ratio, n):
    hi = lo * (1 + ratio)
    values = LogGrid(lo, hi, n).values
    assert (values[0], values[-1], len(values)) == (lo, hi, n)
    assert np.diff(np.log(values)) == pytest.approx(
        np.full(n - 1, math.log(hi / lo) / (n - 1)), rel=1e-6, abs=1e-9
    )


def test_grid_values_have_no_rounding_noise():
    assert Grid(0, 1, 11).values == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert LogGrid(0.001, 1, 4).values == (0.001, 0.01, 0.1, 1.0)
    assert Grid(0.1, 0.9, 5) == Grid(0.1, 0.9, 5) != Grid(0.1, 0.9, 6)


# --- encoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "value", "position"),
    [
        (DROPOUT, 0.8 / 9, 1),  # the grid has 0.0888888888888889
        (Grid(0, 1, 11), 0.1 + 0.2, 3),
        (Grid(1 / 3, 1, 3), 1 / 3, 0),
        (Ordinal([16, 32]), 32.0, 1),
        (Ordinal([16, 32]), np.int64(32), 1),
        (Ordinal([10**10, 10**10 + 1]), 10**10 + 1, 1),  # close, but not the same
        (Ordinal([1.0, 1 + 1e-10]), 1 + 1e-10, 1),
        (Categorical([0, False, 1, True]), True, 3),
        (Categorical([0, False, 1, True]), 1, 2),
        (Categorical([False, True]), np.True_, 1),
        (Float(0, 1), 1, 1.0),
        (Float(0, 1), np.float64(0.5), 0.5),
        (Int(1, 8), 8, 8),
    ],
)  # fmt: skip
def test_values_that_are_allowed(domain, value, position):
    assert domain.encode(value) == position
    assert type(domain.encode(value)) is type(position)


@pytest.mark.parametrize(
    ("domain", "value", "allowed"),
    [
        (DROPOUT, 0.1, "must be one of 0.0, 0.0888888888888889, "),
        (DROPOUT, math.nan, "must be one of 0.0, "),
        (Ordinal([16, 32]), 33, "must be one of 16, 32, got 33"),
        (Ordinal([16, 32]), "16", "must be one of 16, 32, got '16'"),
        (Ordinal([16, 32]), np.array([16, 32]), "must be one of 16, 32, got array"),
        (Ordinal([0, 1]), True, "must be one of 0, 1, got True"),
        (Ordinal(range(100)), 100, "10, 11, ..., got 100"),
        (Categorical([True, False]), 1, "must be one of True, False, got 1"),
        (Categorical(["adam", "sgd"]), None, "must be one of 'adam', 'sgd', got None"),
        (Float(0, 0.8), 1.15, "must be a number in [0, 0.8], got 1.15"),
        (Float(0, 0.123456789), 0.1234568, "must be a number in [0, 0.123456789], got 0.1234568"),
        (Float(0, 0.8), math.nan, "must be a number in [0, 0.8], got nan"),
        (Float(0, 0.8), True, "must be a number in [0, 0.8], got True"),
        (Float(0, 0.8), "0.5", "must be a number in [0, 0.8], got '0.5'"),
        (Int(1, 8), 0, "must be a whole number in [1, 8], got 0"),
        (Int(1, 8), 1.5, "must be a whole number in [1, 8], got 1.5"),
        (Int(1, 8), True, "must be a whole number in [1, 8], got True"),
    ],
)
def test_values_that_are_not_allowed(domain, value, allowed):
    with pytest.raises(ValueError) as caught:
        Space({"x": domain}).encode({"x": value})
    assert str(caught.value).startswith("'x' must be ")
    assert allowed in str(caught.value)


WRONG = [
    (lambda: Grid(1, 0, 3), "Grid: `lo` must be below `hi`, got 1 and 0"),
    (lambda: Grid(1, 1, 3), "Grid: `lo` must be below `hi`, got 1 and 1"),
    (lambda: Grid("0", 1, 3), "Grid: `lo` must be a finite number, got '0'"),
    (lambda: Grid(0, math.inf, 3), "Grid: `hi` must be a finite number, got inf"),
    (lambda: Grid(math.nan, 1, 3), "Grid: `lo` must be a finite number, got nan"),
    (lambda: Grid(0, True, 3), "Grid: `hi` must be a finite number, got True"),
    (lambda: Grid(0, 10**400, 3), "Grid: `hi` must be a finite number, got 1000"),
    (
        lambda: Grid(-1e308, 1e308, 3),
        "Grid: the range from `lo` to `hi` overflows a float, got -1e+308 and 1e+308",
    ),
    (lambda: Grid(0, 1, 1), "Grid: `n` must be a whole number of at least 2, got 1"),
    (lambda: Grid(0, 1, 2.0), "Grid: `n` must be a whole number of at least 2, got 2.0"),
    (lambda: Grid(0, 1, True), "Grid: `n` must be a whole number of at least 2, got True"),
    (
        lambda: Grid(1, 1 + 1e-15, 10),
        "Grid: `lo` and `hi` must be far enough apart for 10 different values",
    ),
    (
        lambda: LogGrid(0, 1, 5),
        "`lo` must be above 0 on a logarithmic scale, got 0; use the smallest value above 0",
    ),
    (lambda: LogGrid(0, 1, 5, zero=True), "LogGrid(..., zero=True) adds an exact 0"),
    (
        lambda: LogGrid(-1, 1, 5),
        "LogGrid: `lo` must be above 0 on a logarithmic scale, got -1; use a linear domain",
    ),
    (
        lambda: LogGrid(0.1, 1, 2, zero=True),
        "LogGrid: `n` must be a whole number of at least 3, got 2",
    ),
    (lambda: LogGrid(0.1, 1, 5, zero="no"), "LogGrid: `zero` must be True or False, got 'no'"),
    (
        lambda: LogGrid(1, 1 + 1e-15, 10),
        "LogGrid: `lo` and `hi` must be far enough apart for 10 different values",
    ),
    (
        lambda: LogGrid(5e-324, 1e308, 10),
        "LogGrid: the range from `lo` to `hi` overflows a float, got 5e-324 and 1e+308",
    ),
    (
        lambda: Ordinal("abc"),
        "Ordinal: `values` must be a list, such as ['a', 'b'] or [16, 32, 64], got 'abc'",
    ),
    (
        lambda: Ordinal({1, 2}),
        "Ordinal: `values` must be a list, such as ['a', 'b'] or [16, 32, 64], got {1, 2}",
    ),
    (lambda: Ordinal([]), "Ordinal: `values` must have at least two values, got []"),
    (lambda: Ordinal([1]), "Ordinal: `values` must have at least two values, got [1]"),
    (lambda: Ordinal([1, 2, 1.0]), "Ordinal: `values` must be distinct, got [1, 2, 1.0]"),
    (
        lambda: Ordinal([1, None]),
        "Ordinal: values must be finite numbers, strings or booleans, got None",
    ),
    (
        lambda: Ordinal([1, math.inf]),
        "Ordinal: values must be finite numbers, strings or booleans, got inf",
    ),
    (
        lambda: Categorical(["a", ["b"]]),
        "Categorical: values must be finite numbers, strings or booleans, got ['b']",
    ),
    (lambda: Categorical(["a", "a"]), "Categorical: `values` must be distinct, got ['a', 'a']"),
    (lambda: Float(1, 0), "Float: `lo` must be below `hi`, got 1 and 0"),
    (
        lambda: Float(0, 1, log=True),
        "`lo` must be above 0 on a logarithmic scale, got 0; use the smallest value above 0",
    ),
    (lambda: Float(0.1, 1, log="yes"), "Float: `log` must be True or False, got 'yes'"),
    (lambda: Float(-1.7e308, 1.7e308), "Float: the range from `lo` to `hi` overflows a float"),
    (
        lambda: Float(5e-324, 1e308, log=True),
        "Float: the range from `lo` to `hi` overflows a float",
    ),
    (
        lambda: Int(0.5, 2),
        "Int: `lo` and `hi` must be whole numbers, got 0.5; use Float for real numbers",
    ),
    (lambda: Int(False, 2), "Int: `lo` and `hi` must be whole numbers, got False"),
    (lambda: Int(0, 2**60), "Int: `lo` and `hi` must be within ±2**53"),
    (lambda: Int(3, 3), "Int: `lo` must be below `hi`, got 3 and 3"),
    (lambda: Int(0, 3, log=True), "Int: `lo` must be above 0 on a logarithmic scale, got 0"),
    (lambda: Int(1, 3, log=1), "Int: `log` must be True or False, got 1"),
    (
        lambda: Space({}),
        "at least one hyperparameter, such as {'lr': Float(1e-5, 0.1, log=True)}, got none",
    ),
    (lambda: Space({"": DROPOUT}), "the keys of `space` must be names, got ''"),
    (lambda: Space({1: DROPOUT}), "the keys of `space` must be names, got 1"),
    (
        lambda: Space({"lr": (0, 1)}),
        "`space['lr']` must be a domain such as Float(1e-5, 0.1, log=True)",
    ),
    (lambda: Space({"lr": 0.1}), "Categorical(['a', 'b']), got 0.1"),
    (lambda: Space({"lr": Float}), "`space['lr']` must be a domain"),
    (
        lambda: Space({"lr": DROPOUT}).encode({}),
        "a configuration must name exactly 'lr'; missing 'lr'",
    ),
    (
        lambda: Space({"lr": DROPOUT}).encode({"lR": 0, 3: 1}),
        "must name exactly 'lr'; unknown 'lR', 3 and missing 'lr'",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_an_error_names_what_was_received_and_what_is_allowed(wrong, message):
    with pytest.raises(ValueError) as caught:
        wrong()
    assert message in str(caught.value)


def test_a_space_is_a_mapping():
    with pytest.raises(
        TypeError, match=r"`space` must be a mapping of names to domains, such as .*, got \["
    ):
        Space([("lr", DROPOUT)])


# --- spaces -------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_domains_are_frozen_hashable_values(domain):
    assert isinstance(domain, Domain)
    again = pickle.loads(pickle.dumps(domain))
    assert again == domain
    assert hash(again) == hash(domain)
    assert eval(repr(domain)) == domain
    field = dataclasses.fields(domain)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(domain, field, 0)
    assert not any(a == b for a, b in itertools.combinations(DOMAINS, 2))


@pytest.mark.parametrize(
    ("domain", "position"),
    [
        *((DROPOUT, p) for p in (10, -1, 1.0, True, "1", None)),
        *((Float(0, 1), p) for p in (1.01, -1e-9, math.nan, True, "0.5")),
        *((Int(1, 8), p) for p in (0, 9, 2.0, True, None)),
    ],
)
def test_what_is_not_a_position(domain, position):
    assert not domain.contains(position)
    assert not Space({"x": domain}).contains((position,))


@given(
    st.dictionaries(st.text(min_size=1, max_size=6), domains, min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_decoding_and_encoding_return_the_same_configuration(named, seed):
    space = Space(named)
    config = space.sample(stream(seed, "config"))
    values = space.decode(config)
    assert list(values) == list(named)
    assert space.encode(dict(reversed(values.items()))) == config
    assert space.contains(config)
    assert not space.contains(config[:-1])
    assert not space.contains((*config, 0))


def test_a_space_is_an_ordered_value():
    one, other = Space({"a": DROPOUT, "b": WEIGHT_DECAY}), Space({"b": WEIGHT_DECAY, "a": DROPOUT})
    assert one == Space({"a": DROPOUT, "b": WEIGHT_DECAY})
    assert hash(one) == hash(Space({"a": DROPOUT, "b": WEIGHT_DECAY}))
    assert one != other  # a configuration of one is not one of the other
    assert one != {"a": DROPOUT, "b": WEIGHT_DECAY}
    assert (list(one), len(one), one["b"]) == (["a", "b"], 2, WEIGHT_DECAY)
    assert repr(one) == f"Space({{'a': {DROPOUT!r}, 'b': {WEIGHT_DECAY!r}}})"


def test_a_space_does_not_change_with_its_dict():
    named = {"a": DROPOUT}
    space = Space(named)
    named["b"] = WEIGHT_DECAY
    assert list(space) == ["a"]


# --- the unit interval --------------------------------------------------------------------------


@given(domains, st.integers(0, 2**32))
def test_to_unit_and_from_unit_return_the_same_position(domain, seed):
    position = domain.sample(stream(seed, "unit"))
    share = domain.to_unit(position)
    again = domain.from_unit(share)
    assert 0 <= share <= 1
    assert type(again) is type(position)
    # Rounding moves a float by a few parts in 1e16 of the larger end, and never an index or an int.
    room = 1e-12 * max(abs(domain.lo), abs(domain.hi)) if isinstance(domain, Float) else 0
    assert abs(again - position) <= room


@given(domains, st.one_of(st.floats(-1e9, 1e9), st.floats(-0.1, 1.1)))
def test_every_number_maps_to_a_position(domain, share):
    position = domain.from_unit(share)
    assert domain.contains(position)
    assert position == domain.from_unit(min(max(share, 0.0), 1.0))


@given(domains, st.floats(0, 1), st.floats(0, 1))
def test_larger_numbers_map_to_larger_positions(domain, share, other):
    lower, upper = sorted([share, other])
    assert domain.from_unit(lower) <= domain.from_unit(upper)


@pytest.mark.parametrize(
    ("domain", "shares"),
    [
        (Ordinal(list("abcd")), {0: 0.125, 1: 0.375, 2: 0.625, 3: 0.875}),
        (Categorical([True, False]), {0: 0.25, 1: 0.75}),
        (Grid(0, 1, 5), {0: 0.1, 2: 0.5, 4: 0.9}),
        (LogGrid(1e-3, 10, 5, zero=True), {0: 0.1, 2: 0.5, 4: 0.9}),
        (Float(-1, 3), {-1.0: 0.0, 0.0: 0.25, 3.0: 1.0}),
        (Float(1e-4, 1, log=True), {1e-4: 0.0, 1e-2: 0.5, 1.0: 1.0}),
        (Int(1, 4), {1: 0.125, 2: 0.375, 4: 0.875}),
        (Int(1, 4, log=True), {1: math.log(2) / math.log(9), 4: math.log(8) / math.log(9)}),
    ],
    ids=repr,
)
def test_shares_worked_by_hand(domain, shares):
    assert {position: domain.to_unit(position) for position in shares} == pytest.approx(
        shares, abs=1e-12
    )


@pytest.mark.parametrize(
    "domain",
    [DROPOUT, WEIGHT_DECAY, Ordinal([16, 32, 64]), Categorical(list("abcde")), Int(1, 8)],
    ids=repr,
)
def test_equal_parts_of_the_unit_interval_map_to_equally_many_positions(domain):
    values = len(domain.values) if hasattr(domain, "values") else domain.hi - domain.lo + 1
    counts = Counter(domain.from_unit((i + 0.5) / (100 * values)) for i in range(100 * values))
    assert list(counts.values()) == [100] * values


@pytest.mark.parametrize(
    "domain", [Float(0, 0.8), Float(1e-5, 0.1, log=True), Int(1, 1024, log=True)], ids=repr
)
def test_uniform_numbers_are_distributed_like_samples(domain):
    rng = stream(0, "shares")
    drawn = np.sort([domain.sample(rng) for _ in range(4000)])
    spread = np.array([domain.from_unit((i + 0.5) / 4000) for i in range(4000)])
    own = (np.arange(4000) + 0.5) / 4000
    below, upto = (np.searchsorted(drawn, spread, side=side) / 4000 for side in ("left", "right"))
    assert ((below - 0.04 < own) & (own < upto + 0.04)).all()
