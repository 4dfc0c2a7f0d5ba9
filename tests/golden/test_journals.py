"""Whole runs of all algorithms as they were: a change of any decision or number shows here.

The local and the simulated engine are deterministic, also where the algorithm is asynchronous. All
that their journals say is compared: which jobs were ordered together, in which order, what they
measured, by the virtual clock when, and the final front with its weights.

The pool and the vectorized engine report in any order. Synchronous runs must mean the same there as
on the local engine, whatever the order. Of asynchronous runs on the pool it is checked that each
recorded job is what the scheduler orders at that moment, and that each report is what the job gives
where it is executed again.

`MOPBT_GOLDEN=write pytest tests/golden` writes all golden files. Look at the difference before you
commit it.
"""

import pytest
from tests.golden import adapter
from tests.golden.cases import (
    BAYESIAN_JOURNALS,
    JOURNALS,
    LOCAL,
    ON_OTHER_ENGINES,
    ON_POOL_ASYNC,
    RESUMED,
    SAME_SIMULATED,
    SIMULATED,
)
from tests.golden.recorded import FOLDER, assert_same, check_lines, read_lines, rounded, writing

from lanes import slow_except

ALGORITHMS = sorted(adapter.ALGORITHMS)
compares = pytest.mark.skipif(writing(), reason="it compares with what another engine writes")


def file_of(name):
    return f"journals/{name}.jsonl"


@pytest.mark.parametrize("name", JOURNALS)
def test_a_run_is_as_it_was(name, tmp_path):
    run = adapter.execute(JOURNALS[name], tmp_path / "run")
    check_lines(file_of(name), adapter.journal(run))
    adapter.check_decisions(run)
    adapter.check_checkpoints(run)


# Some cases fail on purpose, in a stack as well.
@pytest.mark.filterwarnings("ignore:.* as one stack failed:RuntimeWarning")
@compares
@pytest.mark.parametrize(
    ("engine", "name"),
    slow_except(
        [("pool", "mo-pbt-scaled"), ("pool", "nsga2-three"), ("vectorized", "mo-pbt")],
        [(engine, name) for engine, names in ON_OTHER_ENGINES.items() for name in names],
    ),
)
def test_another_engine_gives_the_same_synchronous_run(engine, name, tmp_path):
    run = adapter.execute(LOCAL[name], tmp_path / "run", engine={"kind": engine})
    made = rounded(adapter.journal(run))
    then = read_lines(file_of(name))
    assert_same(adapter.meaning(then), adapter.meaning(made), f"{name} on {engine}")
    adapter.check_decisions(run)


@compares
@pytest.mark.parametrize("name", SAME_SIMULATED)
def test_simulated_workers_change_no_synchronous_run(name):
    then, made = read_lines(file_of(name)), read_lines(file_of(f"simulated-{name}"))
    assert_same(adapter.meaning(then), adapter.meaning(made), name)


@compares
def test_a_simulation_of_stacks_is_that_of_single_members(tmp_path):
    name = "simulated-pbt-max-scalarization-async"
    case = SIMULATED[name]
    engine = case["engine"] | {"on": {"kind": "vectorized"}}
    made = rounded(adapter.journal(adapter.execute(case, tmp_path / "run", engine=engine)))
    assert_same(read_lines(file_of(name)), made, name)


@pytest.mark.parametrize("name", slow_except(["mo-asha"], ON_POOL_ASYNC))
def test_an_asynchronous_run_on_the_pool_is_what_its_scheduler_orders(name, tmp_path):
    run = adapter.execute(LOCAL[name], tmp_path / "run", engine={"kind": "pool"})
    adapter.check_decisions(run)
    adapter.check_results(run)
    adapter.check_checkpoints(run)
    assert run.results.done


@compares
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_stopped_and_resumed_is_the_whole_run(name, tmp_path):
    for budget in RESUMED[name]:
        adapter.execute(JOURNALS[name], tmp_path / "run", budget=budget)
    run = adapter.execute(JOURNALS[name], tmp_path / "run")
    made, then = rounded(adapter.journal(run)), read_lines(file_of(name))
    assert sum("stopped" in line for line in made) > sum("stopped" in line for line in then)
    without = [[line for line in lines if "stopped" not in line] for lines in (then, made)]
    assert_same(*without, name)


def test_every_golden_journal_has_a_case():
    files = {file.name for file in (FOLDER / "journals").iterdir()}
    assert files == {f"{name}.jsonl" for name in JOURNALS | BAYESIAN_JOURNALS}


def test_every_algorithm_has_cases_on_the_local_and_the_simulated_engine():
    cases = (JOURNALS | BAYESIAN_JOURNALS).values()
    for kind in ("local", "simulated"):
        named = {case["algorithm"] for case in cases if case["engine"]["kind"] == kind}
        assert sorted(named) == ALGORITHMS == adapter.known_algorithms()
