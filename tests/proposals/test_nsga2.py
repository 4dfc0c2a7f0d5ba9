import math
import pickle
from collections import Counter

import numpy as np
import pygmo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from lanes import examples
from mopbt.metrics import hypervolume, non_dominated
from mopbt.proposals.base import Trials
from mopbt.proposals.nsga2 import (
    INDEX,
    NSGA2Proposal,
    mutate,
    mutate_position,
    polynomial_mutation,
    select_survivors,
    tournament,
    tournament_places,
    uniform_crossover,
)
from mopbt.ranking import dominates
from mopbt.rng import stream
from mopbt.space import Categorical, Float, Grid, Int, LogGrid, Ordinal, Space
from mopbt.state import Result

MIXED = Space(
    {
        "lr": Float(1e-5, 0.1, log=True),
        "trade": Float(0, 0.8),
        "depth": Int(1, 8),
        "batch": Int(8, 1024, log=True),
        "dropout": Grid(0, 0.8, 10),
        "wd": LogGrid(1e-6, 0.1, 10, zero=True),
        "width": Ordinal([16, 32, 64, 128]),
        "kind": Categorical(["a", "b", "c", "d"]),
    }
)
FAILED = (
    Result(None),
    Result((math.nan, 1.0)),
    Result((1.0, math.inf)),
    Result((0.0, 0.0), math.nan),
)


def trials_of(configs, objectives, violations=None):
    violations = [0.0] * len(objectives) if violations is None else violations
    outcomes = (
        Result(tuple(map(float, f)), float(v)) for f, v in zip(objectives, violations, strict=True)
    )
    return Trials(tuple(configs), tuple(outcomes))


def random_history(space, n, seed, failures=0.0, infeasible=0.0):
    rng = np.random.default_rng(seed)
    trials = trials_of(
        [space.sample(rng) for _ in range(n)],
        rng.normal(size=(n, 2)),
        rng.random(n).round(1) * (rng.random(n) < infeasible),
    )
    outcomes = (
        FAILED[rng.integers(4)] if rng.random() < failures else outcome
        for outcome in trials.results
    )
    return Trials(trials.configs, tuple(outcomes))


# --- Survivors ------------------------------------------------------------------------------


def slow_places(trials, rows):
    """Compute the rank and crowding distance of each row as a sort key, best first."""
    left, keys, number = set(rows), {}, 0
    while left:
        front = [
            i for i in left if not any(beats(trials.results[j], trials.results[i]) for j in left)
        ]
        keys |= {i: (number, -slow_crowding(trials, front)[i]) for i in front}
        left, number = left - set(front), number + 1
    return keys


def beats(a, b):
    if a.violation or b.violation:
        return a.violation < b.violation
    return dominates(a.objectives, b.objectives)


def slow_crowding(trials, front):
    distances = dict.fromkeys(front, 0.0)
    for k in range(2):
        row = sorted(front, key=lambda i: trials.results[i].objectives[k])
        values = [trials.results[i].objectives[k] for i in row]
        for place, i in enumerate(row):
            inner = 0 < place < len(row) - 1
            distances[i] += (
                (values[place + 1] - values[place - 1]) / (values[-1] - values[0])
                if inner
                else math.inf
            )
    return distances


def slow_survivors(trials, population):
    kept = []
    for begin in range(0, len(trials.configs), population):
        block = range(begin, min(begin + population, len(trials.configs)))
        kept += [i for i in block if i in trials.finite_rows]
        keys = slow_places(trials, kept)
        kept = sorted(kept, key=lambda i: (*keys[i], -trials.results[i].objectives[0]))[:population]
    return kept


@examples(60)
@given(
    st.integers(1, 40),
    st.integers(2, 9),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.4]),
)
def test_the_survivors_are_those_of_a_slow_fold(n, population, seed, failures, infeasible):
    trials = random_history(MIXED, n, seed, failures, infeasible)
    assert set(select_survivors(trials, population)) == set(slow_survivors(trials, population))


def test_a_row_that_was_crowded_out_does_not_come_back():
    # Row 3 is the most crowded of the second generation's front. With row 6, it would be one of
    # three non-dominated rows.
    trials = trials_of(
        [(i,) for i in range(7)], [(0, 10), (5, 5), (10, 0), (6, 4), (-1, -1), (-2, -2), (5, 10)]
    )
    assert set(select_survivors(trials, 3)) == {6, 2, 1}
    assert set(non_dominated(trials.objectives(trials.finite_rows))) == {6, 2, 3}


def test_rows_that_failed_never_survive():
    trials = random_history(MIXED, 40, 1, failures=0.5)
    kept = select_survivors(trials, 32)
    assert set(kept) == set(trials.finite_rows)
    assert 0 < len(kept) < 32
    assert select_survivors(Trials(trials.configs[:4], FAILED), 4) == []


@examples(60)
@given(st.integers(1, 25), st.integers(0, 2**32), st.sampled_from([0.0, 0.4]))
def test_places_are_by_front_and_then_by_crowding_distance(n, seed, infeasible):
    trials = random_history(MIXED, n, seed, infeasible=infeasible)
    rows = list(range(n))
    places, keys = (
        tournament_places(trials.objectives(rows), trials.violations(rows)),
        slow_places(trials, rows),
    )
    for i in rows:
        for j in rows:
            same_front = keys[i][0] == keys[j][0]
            close = same_front and keys[i][1] == pytest.approx(keys[j][1], rel=1e-9, abs=1e-12)
            assert close or (places[i] < places[j]) == (keys[i] < keys[j])


def test_both_ends_of_a_front_share_the_first_place():
    assert tournament_places(
        np.array([[0.0, 9.0], [4, 5], [9, 0], [-1, -1]]), np.zeros(4)
    ).tolist() == [
        0,
        1,
        0,
        3,
    ]


# --- Reproduction ----------------------------------------------------------------------------


def test_a_tournament_has_two_contestants_and_the_better_wins():
    # Of nine equally likely pairs of three rows, five contain the best, and one only the worst.
    n, rng = 9000, stream(0, "tournament")
    won = Counter(tournament(np.array([1, 0, 2]), rng) for _ in range(n))
    # The tolerance is five standard deviations.
    assert [won[i] / n for i in range(3)] == pytest.approx([3 / 9, 5 / 9, 1 / 9], abs=0.026)
    even = Counter(tournament(np.zeros(4, dtype=int), rng) for _ in range(n))
    assert [even[i] / n for i in range(4)] == pytest.approx([0.25] * 4, abs=0.023)


def test_crossover_takes_each_hyperparameter_from_either_parent_alike():
    rng = stream(0, "crossover")
    children = np.array([uniform_crossover((0, 0, 0), (1, 1, 1), rng) for _ in range(4000)])
    assert children.mean(axis=0) == pytest.approx([0.5] * 3, abs=0.04)
    assert len({tuple(child) for child in children.tolist()}) == 8


def test_mutation_changes_one_hyperparameter_on_average():
    rng = stream(0, "mutation")
    space = Space({f"x{i}": Categorical([str(v) for v in range(50)]) for i in range(8)})
    changes = [sum(p != 7 for p in mutate(space, (7,) * 8, rng)) for _ in range(3000)]
    assert np.mean(changes) == pytest.approx(
        49 / 50, abs=5 * math.sqrt(8 * (1 / 8) * (7 / 8) / 3000)
    )
    assert max(changes) > 1


@pytest.mark.parametrize(
    ("share", "index"),
    [(0.0, INDEX), (0.01, INDEX), (0.3, INDEX), (0.5, 20), (0.95, INDEX), (1.0, INDEX)],
)
def test_a_move_is_distributed_as_the_polynomial_mutation_of_another_library(share, index):
    numbers = np.random.default_rng(1).random(3000).tolist()
    ours = [polynomial_mutation(share, u, index=index) for u in numbers]
    theirs = [
        pygmo.polynomial_mutation([share], [[0.0], [1.0]], 0, 1.0, index, seed)[0]
        for seed in range(3000)
    ]
    assert ks_2samp(ours, theirs).pvalue > 1e-3


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_move_stays_in_the_range_and_rises_with_its_random_number(share, u, v):
    low, high = sorted((polynomial_mutation(share, u), polynomial_mutation(share, v)))
    assert -1e-12 <= low <= high <= 1 + 1e-12
    assert (low, high) == pytest.approx(
        (polynomial_mutation(share, min(u, v)), polynomial_mutation(share, max(u, v))), abs=1e-12
    )


@pytest.mark.parametrize("domain", MIXED.values(), ids=repr)
def test_a_move_reaches_other_positions_of_the_domain_nearby_ones_first(domain):
    rng = stream(0, "moves")
    start = domain.from_unit(0.45)
    found = [mutate_position(domain, start, rng) for _ in range(2000)]
    assert all(map(domain.contains, found))
    assert len(set(found)) > 2
    shares = np.array([domain.to_unit(p) for p in found])
    mean = np.abs(shares - domain.to_unit(start)).mean()
    assert mean > 0.2 if isinstance(domain, Categorical) else 0.01 < mean < 0.15


# --- The proposals ----------------------------------------------------------------------------

domains = st.sampled_from(
    [
        *MIXED.values(),
        Int(0, 1),
        Int(-3, 200),
        Float(-5, 5),
        Categorical(["a", "b"]),
        Ordinal([1, 2]),
    ]
)
spaces = st.lists(domains, min_size=1, max_size=5).map(
    lambda ds: Space({f"x{i}": d for i, d in enumerate(ds)})
)


@given(
    spaces,
    st.integers(0, 30),
    st.integers(2, 9),
    st.integers(0, 5),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_proposals_are_always_inside_the_space(space, rows, population, n, seed, failures):
    trials = random_history(space, rows, seed, failures)
    configs = NSGA2Proposal(population)(space, trials, n, stream(seed, "nsga2"))
    assert len(configs) == n
    assert all(map(space.contains, configs))
    assert configs == NSGA2Proposal(population)(space, trials, n, stream(seed, "nsga2"))


def test_the_first_generation_is_stratified_and_so_is_one_after_failures_only():
    model, first = NSGA2Proposal(8), MIXED.stratified(8, stream(0, "first"))
    assert model(MIXED, Trials(), 8, stream(0, "first")) == first
    some = random_history(MIXED, 7, 0)
    assert model(MIXED, some, 8, stream(0, "first")) == first
    assert model(MIXED, Trials(some.configs[:4] * 3, FAILED * 3), 8, stream(0, "first")) == first
    assert (
        model(MIXED, Trials(some.configs, some.results, some.configs[:1]), 8, stream(0, "first"))
        != first
    )
    assert model(MIXED, random_history(MIXED, 8, 0), 8, stream(0, "first")) != first


def test_children_come_from_finite_rows_only():
    space = Space({f"x{i}": Categorical([str(v) for v in range(40)]) for i in range(6)})
    trials = Trials(
        ((1,) * 6, (2,) * 6, (3,) * 6), (Result((0.0, 1.0)), Result((1.0, 0.0)), Result(None))
    )
    values = Counter(
        v
        for s in range(50)
        for child in NSGA2Proposal(2)(space, trials, 8, stream(s, "x"))
        for v in child
    )
    inherited, failed = values[1] + values[2], values[3]
    assert inherited / values.total() == pytest.approx(5 / 6 + 1 / 6 * 2 / 40, abs=0.05)
    assert failed < 0.01 * inherited


def test_a_feasible_parent_beats_an_infeasible_one_with_better_objectives():
    space = Space({f"x{i}": Categorical([str(v) for v in range(40)]) for i in range(6)})
    trials = Trials(((1,) * 6, (2,) * 6), (Result((0.0, 0.0)), Result((5.0, 5.0), 0.1)))
    children = [
        c
        for s in range(40)
        for c in NSGA2Proposal(2, crossover=0)(space, trials, 8, stream(s, "x"))
    ]
    from_feasible = np.mean([child.count(1) > child.count(2) for child in children])
    # In a quarter of the tournaments both contestants are infeasible.
    assert from_feasible == pytest.approx(3 / 4, abs=5 * math.sqrt(3 / 16 / len(children)))


def test_without_crossover_a_child_has_one_parent():
    space = Space({f"x{i}": Categorical([str(v) for v in range(40)]) for i in range(6)})
    trials = Trials(((1,) * 6, (2,) * 6), (Result((0.0, 1.0)), Result((1.0, 0.0))))
    alone = [
        set(c)
        for s in range(20)
        for c in NSGA2Proposal(2, crossover=0)(space, trials, 8, stream(s, "x"))
    ]
    pairs = [
        set(c)
        for s in range(20)
        for c in NSGA2Proposal(2, crossover=1)(space, trials, 8, stream(s, "x"))
    ]
    assert np.mean([values >= {1, 2} for values in alone]) < 0.05
    assert np.mean([values >= {1, 2} for values in pairs]) > 0.8


def test_children_are_neither_copies_of_each_other_nor_of_any_row_before():
    space = Space({"x": Grid(0, 1, 10), "y": Grid(0, 1, 10), "z": Grid(0, 1, 10)})
    trials = random_history(space, 16, 0)
    pending = tuple(space.sample(stream(i, "pending")) for i in range(100))
    for seed in range(20):
        children = NSGA2Proposal(8)(
            space, Trials(trials.configs, trials.results, pending), 12, stream(seed, "nsga2")
        )
        assert len({*children}) == 12
        assert not {*children} & {*trials.configs, *pending}


def test_an_exhausted_space_gives_duplicates():
    space = Space({"x": Ordinal([1, 2]), "y": Ordinal([1, 2])})
    trials = trials_of([(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (0, 1), (1, 0), (1, 1)])
    children = NSGA2Proposal(4)(space, trials, 6, stream(0, "nsga2"))
    assert len(children) == 6
    assert all(map(space.contains, children))


def test_the_algorithm_is_a_value():
    assert pickle.loads(pickle.dumps(NSGA2Proposal(16))) == NSGA2Proposal(16) != NSGA2Proposal()
    assert hash(NSGA2Proposal()) == hash(NSGA2Proposal())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 1}, "`population` must be a whole number of at least 2, got 1"),
        ({"population": 8.0}, "`population` must be a whole number of at least 2, got 8.0"),
        ({"population": True}, "`population` must be a whole number of at least 2, got True"),
        ({"crossover": 1.1}, r"`crossover` must be in \[0, 1\], got 1.1"),
        ({"crossover": -1}, r"`crossover` must be in \[0, 1\], got -1"),
        ({"crossover": math.nan}, r"`crossover` must be in \[0, 1\], got nan"),
        ({"crossover": False}, r"`crossover` must be in \[0, 1\], got False"),
        ({"index": -1}, "`index` must be a finite number of at least 0, got -1"),
        ({"index": math.inf}, "`index` must be a finite number of at least 0, got inf"),
    ],
)
def test_wrong_options_are_errors_that_say_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        NSGA2Proposal(**options)


# --- Comparison with other libraries --- -------------------------------------------------------

SIX = Space({f"x{i}": Float(0, 1) for i in range(6)})
TWO = Space({"x": Float(0, 1), "y": Float(0, 1)})


def zdt1(values):
    first, *rest = values.values()
    g = 1 + 9 * sum(rest) / len(rest)
    return -first, -g * (1 - math.sqrt(first / g))


def zdt2(values):
    first, *rest = values.values()
    g = 1 + 9 * sum(rest) / len(rest)
    return -first, -g * (1 - (first / g) ** 2)


def branin_currin(values):
    x, y = values["x"], values["y"]
    u, v = 15 * x - 5, 15 * y
    branin = (
        (v - 5.1 / (4 * math.pi**2) * u**2 + 5 / math.pi * u - 6) ** 2
        + 10 * (1 - 1 / (8 * math.pi)) * math.cos(u)
        + 10
    )
    factor = 1 - math.exp(-1 / (2 * y)) if y > 0 else 1.0
    return -branin, -factor * (2300 * x**3 + 1900 * x**2 + 2092 * x + 60) / (
        100 * x**3 + 500 * x**2 + 4 * x + 20
    )


def training(values):
    """Simulate a training.

    One hyperparameter sets the trade-off, and the others have best values.
    """
    trade = values["trade"] / 0.8
    loss = (
        (math.log10(values["lr"]) + 2.5) ** 2 / 4
        + ((values["depth"] - 5) / 4) ** 2
        + (math.log2(values["batch"] / 64) / 4) ** 2
    )
    loss += 4 * (values["dropout"] - 0.3) ** 2 + (math.log10(values["wd"] + 1e-7) + 4) ** 2 / 9
    loss += {16: 0.6, 32: 0.2, 64: 0.0, 128: 0.3}[values["width"]] + {
        "a": 0.5,
        "b": 0.0,
        "c": 0.8,
        "d": 0.3,
    }[values["kind"]]
    return -(trade**2) - loss / 2, -((1 - trade) ** 2) - loss / 2


PROBLEMS = {
    "zdt1": (SIX, zdt1, (-1.1, -6)),
    "zdt2": (SIX, zdt2, (-1.1, -6)),
    "branin-currin": (TWO, branin_currin, (-100, -15)),
    "mixed": (MIXED, training, (-2.5, -2.5)),
}


def ours(problem, population, generations, seed):
    space, function, reference = PROBLEMS[problem]
    trials = Trials()
    for g in range(generations):
        configs = tuple(
            NSGA2Proposal(population)(space, trials, population, stream(seed, "propose", g))
        )
        outcomes = tuple(Result(function(space.decode(config))) for config in configs)
        trials = Trials(trials.configs + configs, trials.results + outcomes)
    return hypervolume(trials.objectives(trials.finite_rows), reference)


class Continuous:
    """A continuous problem for pygmo that records its evaluations."""

    def __init__(self, problem):
        self.space, self.function, _ = PROBLEMS[problem]
        self.seen = []

    def fitness(self, x):
        self.seen.append(self.function(dict(zip(self.space, map(float, x), strict=True))))
        return [-f for f in self.seen[-1]]

    def get_nobj(self):
        return 2

    def get_bounds(self):
        return [0.0] * len(self.space), [1.0] * len(self.space)


def pygmos(problem, population, generations, seed):
    task = pygmo.problem(Continuous(problem))
    algorithm = pygmo.nsga2(
        gen=generations - 1, cr=0.9, eta_c=15, m=1 / len(PROBLEMS[problem][0]), eta_m=20, seed=seed
    )
    evolved = pygmo.algorithm(algorithm).evolve(pygmo.population(task, population, seed=seed))
    seen = evolved.problem.extract(Continuous).seen
    assert len(seen) == population * generations
    return hypervolume(seen, PROBLEMS[problem][2])


def optunas(problem, population, generations, seed):
    import optuna

    space, function, reference = PROBLEMS[problem]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.NSGAIISampler(population_size=population, seed=seed)
    study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    distributions = {name: distribution(domain) for name, domain in space.items()}
    seen = []
    for _ in range(population * generations):
        trial = study.ask(distributions)
        seen.append(function(space.decode(tuple(trial.params[name] for name in space))))
        study.tell(trial, seen[-1])
    return hypervolume(seen, reference)


def distribution(domain):
    """Suggest a position of a domain with Optuna."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Float):
        return FloatDistribution(domain.lo, domain.hi, log=domain.log)
    if isinstance(domain, Int):
        return IntDistribution(domain.lo, domain.hi, log=domain.log)
    positions = range(len(domain.values))
    return (
        CategoricalDistribution(positions)
        if isinstance(domain, Categorical)
        else IntDistribution(0, positions[-1])
    )


def assert_comparable(found, others):
    """Check that the means differ by at most two standard errors to our disadvantage."""
    error = math.sqrt(np.var(found, ddof=1) / len(found) + np.var(others, ddof=1) / len(others))
    assert np.mean(found) > np.mean(others) - 2 * error, (np.mean(found), np.mean(others), error)


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["zdt1", "zdt2", "branin-currin"])
def test_the_hypervolume_is_not_below_that_of_pygmo_with_simulated_binary_crossover(problem):
    found = [ours(problem, 32, 25, seed) for seed in range(4)]
    assert_comparable(found, [pygmos(problem, 32, 25, seed) for seed in range(8)])


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_hypervolume_is_not_below_that_of_optuna(problem):
    found = [ours(problem, 16, 12, seed) for seed in range(10)]
    assert_comparable(found, [optunas(problem, 16, 12, seed) for seed in range(10)])
