"""Run all algorithms on every engine, by name, and with a kill in the middle."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from lanes import slow_except
from mopbt import Budget, LocalEngine, PoolEngine, Results, SimulatedEngine, VectorizedEngine, run
from mopbt.algorithms import (
    ALGORITHMS,
    BOMOASHA,
    MOASHA,
    MOPBT,
    NSGA2,
    PBT,
    QNEHVI,
    MaxScalarizationPBT,
    ParEGO,
    RandomScalarizationPBT,
    RandomSearch,
    algorithm_of,
    options_of,
)
from mopbt.engines.simulated import Lognormal
from mopbt.problem import problem_of
from mopbt.ranking import by_domination, by_max_scalarization, by_objective, by_random_scalarization
from mopbt.stores.journal import read_journal
from mopbt.tasks.synthetic import TradeOff
from mopbt.tasks.toy import ToyTask
from mopbt.testing import SchedulerConformance
from toys import NanToy

SMALL = {
    "mo-pbt": MOPBT(population=6),
    "random-search": RandomSearch(population=6),
    "pbt": PBT(population=6, objective="far"),
    "pbt-random-scalarization": RandomScalarizationPBT(population=6),
    "pbt-max-scalarization": MaxScalarizationPBT(population=6),
    "mo-asha": MOASHA(trials=12),
    "bo-mo-asha": BOMOASHA(trials=12),
    "qnehvi": QNEHVI(batch=2, trainings=8),  # six of them without a model
    "parego": ParEGO(trainings=7),
    "nsga2": NSGA2(population=4, trainings=8),
}
SYNCHRONOUS = [name for name in SMALL if "asha" not in name]
TOY = ToyTask(steps=6)
# One algorithm of each scheduler starts workers in the fast lane; tests/golden does with others.
ON_WORKERS = slow_except(["mo-pbt", "mo-asha", "nsga2"], SMALL)


def test_all_ten_algorithms_are_tested():
    assert list(SMALL) == list(ALGORITHMS)
    assert len(ALGORITHMS) == 10


def conformance(name):
    class Conforms(SchedulerConformance):
        def make(self):
            return SMALL[name].scheduler(self.problem)

    return Conforms


# The fast lane runs these once, on a simulation.
MODELED = ["qnehvi", "parego"]
WITHOUT_MODELS = slow_except([name for name in SMALL if name not in MODELED], SMALL)

for _name in SMALL:
    _tests = conformance(_name)
    globals()[f"Test_{_name.replace('-', '_')}"] = (
        pytest.mark.slow(_tests) if _name in MODELED else _tests
    )


def evaluations(results):
    return {p.model: (p.trial, p.step, p.hp, p.scores) for p in results.points()}


def evaluate_all(name, engine):
    """Run an algorithm to its end and return what it evaluated."""
    results = run(TOY, out=None, algorithm=SMALL[name], engine=engine, progress=False)
    assert results.outcome == "done"
    assert results.front()
    return evaluations(results)


def by_value(found):
    return sorted(map(str, found.values()))


@pytest.mark.parametrize("name", SMALL)
def test_a_simulation_finds_the_same_as_this_process(name):
    simulated = evaluate_all(name, SimulatedEngine(5, Lognormal()))
    local = evaluate_all(name, LocalEngine())
    if name in SYNCHRONOUS:
        assert by_value(simulated) == by_value(local)


@pytest.mark.parametrize("name", ON_WORKERS)
def test_workers_find_the_same_as_this_process(name):
    """Synchronous algorithms give the same results on any engine.

    Asynchronous ones do if reports arrive in the same order.
    """
    on_pool = evaluate_all(name, SimulatedEngine(5, Lognormal(), engine=PoolEngine(2)))
    assert on_pool == evaluate_all(name, SimulatedEngine(5, Lognormal()))
    pool = evaluate_all(name, PoolEngine(2))
    if name in SYNCHRONOUS:
        assert by_value(pool) == by_value(evaluate_all(name, LocalEngine()))


@pytest.mark.parametrize("name", ON_WORKERS)
def test_it_runs_stacked_and_finds_the_same_as_one_by_one(name):
    task, algorithm = TradeOff(steps=6), SMALL[name]
    if isinstance(algorithm, PBT):
        algorithm = replace(algorithm, objective=1)
    alone = run(task, out=None, algorithm=algorithm, engine="local", progress=False)
    stacked = run(
        task, out=None, algorithm=algorithm, engine=VectorizedEngine(2, stack=3), progress=False
    )
    assert stacked.outcome == "done"
    assert stacked.front()
    if name in SYNCHRONOUS:
        assert by_value(evaluations(stacked)) == by_value(evaluations(alone))


KILLED = """
import os, signal, sys
from mopbt import SimulatedEngine, run
from mopbt.engines.simulated import Lognormal
from mopbt.tasks.toy import ToyTask
from test_algorithms import SMALL
from toys import Watcher
def watch(progress):
    if progress.reported >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
engine = SimulatedEngine(3, Lognormal())
run(ToyTask(steps=6), out=sys.argv[1], algorithm=SMALL[sys.argv[2]], engine=engine,
    callbacks=[Watcher(watch)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_kill_loses_nothing_and_the_run_ends_as_if_there_had_been_none(name, tmp_path):
    def finish(path):
        run(
            TOY,
            out=path,
            algorithm=SMALL[name],
            engine=SimulatedEngine(3, Lognormal()),
            progress=False,
        )
        exchanges = read_journal(path / "journal.jsonl")[0]
        return [job for e in exchanges for job in e.jobs], [
            (r.job, r.objectives) for e in exchanges for r in e.reports
        ]

    unbroken = finish(tmp_path / "unbroken")
    for after in (4, 14):
        path = tmp_path / f"killed-{after}"
        command = [sys.executable, "-c", KILLED, str(path), name, str(after)]
        environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__), "OMP_NUM_THREADS": "1"}
        assert subprocess.run(command, check=False, env=environment).returncode == -signal.SIGKILL
        assert len(Results.open(path)) >= after
        assert finish(path) == unbroken


@pytest.mark.parametrize("name", WITHOUT_MODELS)
def test_nan_does_not_end_it(name):
    results = run(NanToy(steps=6), out=None, algorithm=SMALL[name], engine="local", progress=False)
    assert results.outcome == "done"
    assert any(math.isnan(record["score.near"]) for record in results.records())
    assert len(results.front()) > 0
    assert all(abs(v) < 1e9 for p in results.front() for v in p.scores.values())


@pytest.mark.parametrize("name", SMALL)
def test_options_survive_a_round_trip(name):
    algorithm = SMALL[name]
    assert algorithm_of(options_of(algorithm)) == algorithm
    assert None not in options_of(algorithm).values()  # TOML has no null
    assert algorithm.max_parallel >= 1
    assert type(algorithm).__doc__.partition("\n")[0].endswith(".")
    assert type(algorithm).section


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mo-asha", "bo-mo-asha", "qnehvi"])
def test_without_a_natural_end_it_gets_the_budget_of_a_population(name):
    algorithm = ALGORITHMS[name]()
    assert algorithm.scheduler(problem_of(TOY)).needs_budget
    results = run(TOY, out=None, algorithm=name, engine="local", progress=False)
    assert results.outcome == "done"
    assert len(results) == 32 * 3


def test_a_budget_ends_an_algorithm_without_a_natural_end(tmp_path):
    first = run(
        TOY,
        out=tmp_path,
        algorithm=MOASHA(),
        engine="local",
        budget=Budget(jobs=10),
        progress=False,
    )
    assert (first.outcome, len(first)) == ("done", 10)
    more = run(
        TOY,
        out=tmp_path,
        algorithm=MOASHA(),
        engine="local",
        budget=Budget(jobs=25),
        progress=False,
    )
    assert (more.outcome, len(more)) == ("done", 25)


def test_single_objective_by_name_and_by_number():
    problem = problem_of(TOY)
    assert PBT(objective="far").scheduler(problem).rank == by_objective(1)
    assert PBT(objective=1).scheduler(problem).rank == by_objective(1)
    assert PBT().scheduler(problem).rank == by_objective(0)
    for wrong in ("speed", 2, -1):
        with pytest.raises(
            ValueError,
            match=r"`objective` must be one of 'near', 'far' or a number from 0 to 1, got",
        ):
            PBT(objective=wrong).scheduler(problem)


def test_the_rankings_are_the_papers():
    problem = problem_of(TOY)
    assert MOPBT().scheduler(problem).rank == by_domination()
    assert RandomScalarizationPBT().scheduler(problem).rank == by_random_scalarization()
    assert MaxScalarizationPBT().scheduler(problem).rank == by_max_scalarization(vectors=100)
    assert MOASHA().scheduler(problem).rank == by_domination()


def test_the_papers_constants():
    problem = problem_of(ToyTask(interval=2, steps=100))
    asha, bo = MOASHA().scheduler(problem), BOMOASHA()
    assert (asha.eta, asha.grace, asha.kind, asha.rungs) == (3, 1, "stopping", (2, 6, 18, 54))
    assert (bo.gamma, bo.candidates, bo.random) == (0.10, 24, pytest.approx(1 / 6))
    assert bo.scheduler(problem).min_results == 2 * 2 + 2  # more than 2 d + 1
    assert QNEHVI().scheduler(problem).first == 2 * (2 + 1)
    assert (ParEGO().trainings, NSGA2().trainings, ParEGO().scheduler(problem).batch) == (32, 32, 1)


def test_wrong_names_and_options_are_errors_that_list_the_right_ones():
    with pytest.raises(
        ValueError, match=r"`algorithm` must be one of mo-pbt, random-search, .*nsga2, got 'moasha'"
    ):
        run(TOY, out=None, algorithm="moasha", progress=False)
    with pytest.raises(
        ValueError,
        match=r"mo-asha has no option 'fraction'; it has eta, grace, kind, scale, trials, within",
    ):
        algorithm_of({"name": "mo-asha", "fraction": 0.1})
    with pytest.raises(
        ValueError,
        match=r"mo-asha has no population, got 8; leave it out, or set its own options: eta, grace",
    ):
        run(TOY, out=None, algorithm="mo-asha", population=8, progress=False)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            RandomSearch,
            {"population": 1},
            "`population` must be a whole number of at least 2, got 1",
        ),
        (
            RandomSearch,
            {"start": "sobol"},
            "`start` must be one of 'stratified', 'iid', got 'sobol'",
        ),
        (PBT, {"objective": 1.5}, "`objective` must be an objective's name or number, got 1.5"),
        (
            RandomScalarizationPBT,
            {"per_member": 2},
            "`per_member` must be one of True, False, got 2",
        ),
        (
            MaxScalarizationPBT,
            {"vectors": 0},
            "`vectors` must be a whole number of at least 1, got 0",
        ),
        (MaxScalarizationPBT, {"fraction": 0.7}, r"`fraction` must be in \(0, 0.5\], got 0.7"),
        (BOMOASHA, {"gamma": 0.0}, "`gamma` must be"),
        (BOMOASHA, {"candidates": 0}, "`candidates` must be"),
        (BOMOASHA, {"random": 1.5}, "`random` must be"),
        (QNEHVI, {"batch": 0}, "`batch` must be a whole number of at least 1, got 0"),
        (QNEHVI, {"trainings": 0}, "`trainings` must be a whole number of at least 1, got 0"),
        (ParEGO, {"trainings": True}, "`trainings` must be a whole number of at least 1, got True"),
        (NSGA2, {"population": 1}, "`population` must be a whole number of at least 2, got 1"),
    ],
)
def test_wrong_options(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_every_option_is_checked():
    """An option of the wrong type is rejected before a run."""
    for name, kind in ALGORITHMS.items():
        for option in fields(kind):
            if option.name == "objective":
                continue
            with pytest.raises((ValueError, TypeError)):
                replace(SMALL[name], **{option.name: "certainly wrong"})
