"""Train, attack, augment and evaluate the paper's tasks on a simulated accelerator.

The rows are random: placement does not depend on them, and the tests need no data set.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.torch.test_accelerator import assert_close, train

import simulated_device
from mopbt.tasks import registry
from mopbt.tasks.datasets import ImageRows, Images, Tabular, TabularRows
from mopbt.tasks.paper import TASKS

pytestmark = pytest.mark.usefixtures("accelerator")
FAST = ("adult-fairness", "higgs-precision-recall", "celeba-fairness")
CLASSES = {"celeba": 2, "cifar10": 10, "cifar100": 100}


@pytest.fixture(autouse=True)
def _random_rows(monkeypatch):
    rng = np.random.default_rng(0)

    def table_part(n):
        codes = rng.integers(1, 4, (n, 2))
        labels, groups = rng.integers(2, size=n), rng.integers(2, size=n)
        return TabularRows(rng.normal(size=(n, 3)).astype(np.float32), codes, labels, groups)

    def image_part(n, classes):
        shape = (n, 3, 39, 32) if classes == 2 else (n, 3, 32, 32)
        images = rng.integers(256, size=shape, dtype=np.uint8)
        return ImageRows(images, np.arange(n) % classes, rng.integers(2, size=n))

    def load_tabular(name):
        return Tabular(*(table_part(n) for n in (300, 250, 250)), cardinalities=(4, 4))

    def load_images(name):
        return Images(*(image_part(n, CLASSES[name]) for n in (200, 100, 100)))

    monkeypatch.setattr(registry, "load_tabular", load_tabular)
    monkeypatch.setattr(registry, "load_images", load_images)


def make(name, device):
    return replace(TASKS[name].at("smoke"), device=device)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in TASKS]
)
def test_a_paper_task_trains_and_is_measured(name, stacked):
    task = make(name, "sim")
    before = simulated_device.operators()
    members, measured = train(task, stacked)
    assert simulated_device.operators() > before + 500
    assert {tensor.device.type for tensor in members[0]["model"].values()} == {"sim"}
    if task.data.augment is None:
        # Masks of dropout are drawn in another way than on the CPU.
        assert all(torch.isfinite(t).all() for t in members[0]["model"].values())
        return
    on_cpu = replace(task, device="cpu")
    expected, expected_metrics = train(on_cpu, stacked)
    assert_close(on_cpu, members, expected)
    for own, others in zip(measured, expected_metrics, strict=True):
        assert own == pytest.approx(others, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult-fairness", "cifar10-robustness"])
def test_a_paper_task_checks_itself(name):
    task = make(name, "sim")
    task.check()
    task.check_stack()
