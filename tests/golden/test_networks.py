"""Checkpoints of PyTorch tasks as they were, trained one by one and as a stack.

Digests are over the bytes of named tensors, whatever file format holds them. They are compared
where PyTorch and the processor are those of `networks-machine.json`, and the tests skip elsewhere.
Of the network without dropout, whose random numbers are the same on all machines, the norms of all
tensors are compared everywhere to a tolerance.
"""

import pytest
from tests.golden import adapter, machine
from tests.golden.cases import NETWORK_RUNS, NETWORKS
from tests.golden.recorded import check_lines, check_sections

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'mopbt[torch]'")
pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = {"alone": False, "stacked": True}


@pytest.fixture
def same_machine():
    machine.check("networks-machine.json", "torch")


@pytest.mark.usefixtures("same_machine")
@pytest.mark.parametrize("name", NETWORKS)
def test_checkpoints_are_as_they_were(name):
    made = {}
    for way, stacked in WAYS.items():
        states = adapter.train_networks(NETWORKS[name], stacked=stacked)
        made[way] = [adapter.digests(state) | {"scores": state["scores"]} for state in states]
    check_sections(f"networks/{name}.jsonl", made)


@pytest.mark.parametrize("way", WAYS)
def test_norms_of_weights_are_as_they_were_on_any_machine(way):
    states = adapter.train_networks(NETWORKS["statistics"], stacked=WAYS[way])
    lines = [adapter.norms(state) for state in states]
    check_lines(f"networks/norms-{way}.jsonl", lines, close=1e-3)


@pytest.mark.usefixtures("same_machine")
@pytest.mark.parametrize("engine", ["local", pytest.param("vectorized", marks=pytest.mark.slow)])
def test_a_run_of_networks_is_as_it_was(engine, tmp_path):
    run = adapter.execute(NETWORK_RUNS[engine], tmp_path / "run")
    check_sections(f"networks/run-{engine}.jsonl", adapter.meaning(adapter.journal(run)))
