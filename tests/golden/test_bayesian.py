"""Runs of qNEHVI and ParEGO as they were, on the local and on the simulated engine.

BoTorch fits models by iteration, so that the last digits of the machine can change which of two
configurations is proposed. These journals are compared where the versions and the processor are
those of `bayesian-machine.json`, and the tests skip elsewhere.
"""

import pytest
from tests.golden import adapter, machine
from tests.golden.cases import BAYESIAN, BAYESIAN_JOURNALS
from tests.golden.recorded import assert_same, check_lines, read_lines, rounded, writing

pytest.importorskip("botorch", reason="BoTorch is not installed: pip install 'mopbt[bo]'")
pytestmark = pytest.mark.usefixtures("one_thread")

PACKAGES = ("botorch", "gpytorch", "linear-operator", "numpy", "scipy", "torch")


@pytest.fixture(autouse=True)
def _on_the_same_machine():
    machine.check("bayesian-machine.json", *PACKAGES)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("qnehvi", "parego") else pytest.param(name, marks=pytest.mark.slow)
        for name in BAYESIAN_JOURNALS
    ],
)
def test_a_run_is_as_it_was(name, tmp_path):
    run = adapter.execute(BAYESIAN_JOURNALS[name], tmp_path / "run")
    check_lines(f"journals/{name}.jsonl", adapter.journal(run))


@pytest.mark.skipif(writing(), reason="it compares with what another engine writes")
@pytest.mark.parametrize("name", ["qnehvi", "parego"])
def test_simulated_workers_change_no_synchronous_run(name):
    then, made = (read_lines(f"journals/{file}.jsonl") for file in (name, f"simulated-{name}"))
    assert_same(adapter.meaning(then), adapter.meaning(made), name)


@pytest.mark.slow
@pytest.mark.skipif(writing(), reason="it compares with what another engine writes")
@pytest.mark.parametrize("engine", ["pool", "vectorized"])
def test_another_engine_gives_the_same_synchronous_run(engine, tmp_path):
    run = adapter.execute(BAYESIAN["qnehvi"], tmp_path / "run", engine={"kind": engine})
    made, then = rounded(adapter.journal(run)), read_lines("journals/qnehvi.jsonl")
    assert_same(adapter.meaning(then), adapter.meaning(made), f"qnehvi on {engine}")
