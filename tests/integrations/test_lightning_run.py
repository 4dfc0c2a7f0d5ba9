"""A run of a Lightning module; importing Lightning alone takes as long as many tests."""

import numpy as np
import pytest

import mopbt


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*isinstance\\(treespec, LeafSpec\\)",
    "ignore:The `srun` command is available",
)
def test_models_of_a_run_load_into_a_module(tmp_path):
    pytest.importorskip("lightning")
    import torch

    from integrations.lightning_modules import HP, Net, Rows, task

    results = mopbt.run(task(), out=tmp_path / "run", population=4, engine="local", progress=False)
    assert len(results) == 16
    assert any(
        ancestor.exploited
        for point in results.points()
        if point.step == 4
        for ancestor in results.lineage(point)
    )
    point = results.front()[0]
    net = Net(**HP).eval()
    net.load_state_dict(results.load(point)["model"])
    x, y = Rows().rows[:]
    with torch.no_grad():
        predicted = (net.net(x)[:, 0] > 0).float()
    assert float((predicted * y).sum() / y.sum()) == pytest.approx(point.scores["recall"])
    again = mopbt.Results.open(tmp_path / "run").load(point)
    np.testing.assert_array_equal(again["model"]["net.0.weight"], net.net[0].weight.detach())
