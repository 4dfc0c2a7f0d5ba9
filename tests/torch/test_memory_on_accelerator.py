"""Continue when the memory of a simulated accelerator runs out."""

import warnings

import pytest
import torch
from tests.torch.nets import dropping_task, make_task, mlp

import simulated_device
from mopbt.torch import AdamW
from mopbt.torch.device import free_memory
from mopbt.torch.memory import limits_of, live_bytes

# PyTorch prepares for devices at the first backward pass of a process, so the device is registered
# when tests are collected.
try:
    simulated_device.load()
except simulated_device.Unavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

CPU = torch.device("cpu")


def test_agrees_with_the_memory_of_a_device(accelerator):
    network = mlp(64).to(accelerator)
    x = torch.ones(200, 6, device=accelerator)
    for _ in range(2):
        before = simulated_device.used_bytes()
        simulated_device.peak_bytes(reset=True)
        network.zero_grad()
        with live_bytes() as counted:
            network(x).square().sum().backward()
    assert counted.peak == pytest.approx(simulated_device.peak_bytes() - before, rel=0.1)


def test_free_memory_is_that_of_the_device(accelerator):
    with simulated_device.enabled(memory=10**9):
        used = simulated_device.used_bytes()
        assert free_memory(accelerator) == 10**9 - used
    assert free_memory(CPU) > 10**6


@pytest.mark.parametrize("members", [1, 3])
def test_evaluation_continues_when_the_device_is_full(accelerator, members):
    inputs = torch.randn(900, 6)
    validation = (inputs, (inputs[:, 0] > 0).long())
    trees = [dropping_task().init(i) for i in range(members)]
    whole = dropping_task(device="sim", validation=validation).evaluate_many(trees)
    task = dropping_task(device="sim", validation=validation)
    task.evaluate_many(trees)
    simulated_device.set_memory(simulated_device.used_bytes() + 900 * 16 * 4)
    with pytest.warns(RuntimeWarning, match="Computing rows ran out of memory") as caught:
        measured = task.evaluate_many(trees)
    assert len(caught) == 1
    assert measured == whole
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert task.evaluate_many(trees) == whole


def test_training_continues_when_the_device_is_full(accelerator):
    def make():
        return make_task(lambda: mlp(128), device="sim", optimizer=AdamW(lr="lr"))

    task = make()
    hp = task._sample_hp(8)
    members = [task.init(i) for i in range(8)]
    whole = task.train_many(members, hp, [0] * 8, range(8))
    expected = [task.evaluate(member)["loss"] for member in whole]
    del whole
    task = make()
    task.train_many(members, hp, [0] * 8, range(8))
    needed = task._bytes_per_member()
    simulated_device.set_memory(simulated_device.used_bytes() + 5 * needed)
    with pytest.warns(RuntimeWarning, match="as a stack ran out of memory with 8"):
        trained = task.train_many(members, hp, [0] * 8, range(8))
    assert [task.evaluate(m)["loss"] for m in trained] == pytest.approx(expected, rel=1e-4)


def test_a_stack_is_sized_by_the_memory_of_the_device(accelerator):
    task = make_task(lambda: mlp(128), device="sim")
    members = [task.init(i) for i in range(8)]
    needed = task._bytes_per_member()
    simulated_device.set_memory(simulated_device.used_bytes() + 9 * needed)
    with pytest.warns(RuntimeWarning, match="a stack of 8 members needs about"):
        task.train_many(members, task._sample_hp(8), [0] * 8, range(8))
    assert limits_of(task._program.module)._limits["stack"] == 4
