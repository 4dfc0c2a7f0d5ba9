"""Seed mistakes of placement into the library: each fails on the simulated accelerator.

A mistake replaces a piece of a function's source, so the tests also fail if the piece is gone.
"""

import inspect
import textwrap

import pytest
import torch
from tests.torch.nets import dropping_task
from tests.torch.test_accelerator import normalized_task, train

from mopbt import serialization
from mopbt.tasks import image_ops, metrics
from mopbt.tasks.augment import Augmentation, Cutout, RandAugment, _key
from mopbt.tasks.networks import WideResNet
from mopbt.torch import AdamW, TorchTask
from mopbt.torch.data import Batches
from mopbt.torch.evaluation import evaluate_outputs
from mopbt.torch.hyperparameters import StackedHyperparameters, TensorHyperparameters
from mopbt.torch.layers import draw_mask
from mopbt.torch.memory import map_rows
from mopbt.torch.program import Program
from mopbt.torch.stack import Stack

pytestmark = pytest.mark.usefixtures("accelerator")


def mutate(monkeypatch, function, old, new):
    """Replace a piece of a function's source."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not in {function.__qualname__} once"
    scope = {}
    undecorated = source[source.index("def ") :]
    exec(undecorated.replace(old, new), function.__globals__, scope)
    monkeypatch.setattr(function, "__code__", scope[function.__name__].__code__)


def train_alone():
    """Train members with dropout, tuned weights, buffers and a frozen parameter one by one."""
    for task in (dropping_task(device="sim"), normalized_task(optimizer=AdamW(lr="lr"))):
        members, _ = train(task, stacked=False)
        trained = task.train(members[0], task._sample_hp(1)[0], 1, 2, 5)
        task.load(task.dump(trained))


def train_stacked():
    """Train the same members as stacks."""
    for task in (dropping_task(device="sim"), normalized_task(optimizer=AdamW(lr="lr"))):
        train(task, stacked=True)


def augment():
    """Apply all operations to images on the device."""
    images = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8).to("sim")
    augmentation = Augmentation(RandAugment(), cutout=Cutout())
    hp = {
        "augment_count": 4.0,
        "augment_magnitude": 7.0,
        "cutout_probability": 1.0,
        "cutout_magnitude": 9.0,
    }
    on_device = {name: torch.tensor(value, device="sim") for name, value in hp.items()}
    augmented, *_ = augmentation((images,), on_device)
    assert augmented.device.type == "sim"


def attack():
    """Measure a network on the device with held-out images of the CPU."""
    network = WideResNet(10, 1, 4).to("sim")
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    metrics.robustness(network, images, torch.arange(20) % 4, steps=1)


MISTAKES = {
    "model": (
        TorchTask.__dict__["_built_program"].func,
        "self.model().to(device)",
        "self.model()",
        train_alone,
    ),
    "data": (Batches.to, "(t.to(device) for t in", "(t for t in", train_alone),
    "index": (
        Batches.iter_batches,
        "self._draw_orders(seeds, steps).to(self.tensors[0].device)",
        "self._draw_orders(seeds, steps)",
        train_alone,
    ),
    "held-out rows": (map_rows, "t[begin:end].to(device)", "t[begin:end]", train_alone),
    "target": (
        evaluate_outputs,
        "[t.to(program.device) for t in data[1:]]",
        "list(data[1:])",
        train_alone,
    ),
    "parameters": (Stack.of, "parameters = zeros()", "parameters = zeros().cpu()", train_stacked),
    "optimizer state": (Stack.of, "slot: zeros() for", "slot: zeros().cpu() for", train_alone),
    "number of updates": (
        Stack.of,
        "for member in members], device=device)",
        "for member in members])",
        train_alone,
    ),
    "buffer": (Stack.of, '["model"][name].to(device)', '["model"][name].cpu()', train_stacked),
    "hyperparameter of one member": (
        TensorHyperparameters._convert,
        "torch.tensor(float(value), device=self._device)",
        "torch.tensor(float(value))",
        train_alone,
    ),
    "hyperparameters of a stack": (
        StackedHyperparameters.__init__,
        "torch.tensor(rows, device=device)",
        "torch.tensor(rows)",
        train_stacked,
    ),
    "hyperparameter inside a model": (
        Program.tuned_buffers,
        "torch.tensor(values, device=self.device)",
        "torch.tensor(values)",
        train_stacked,
    ),
    "mask": (
        draw_mask,
        "torch.rand(x.shape, device=p.device)",
        "torch.rand(x.shape)",
        train_alone,
    ),
    "checkpoint": (
        serialization._bytes_of,
        "tensor.detach().cpu().contiguous()",
        "tensor.detach().contiguous()",
        train_alone,
    ),
    "draws of an augmentation": (
        Augmentation.of_members,
        "torch.cat(parts).to(images.device)",
        "torch.cat(parts)",
        augment,
    ),
    "key of images": (_key, "images.cpu()", "images", augment),
    "table of levels": (
        image_ops.equalize,
        "torch.arange(256, device=images.device)",
        "torch.arange(256)",
        augment,
    ),
    "affine map": (
        image_ops._identity_except,
        "dtype=numbers.dtype, device=numbers.device",
        "dtype=numbers.dtype",
        augment,
    ),
    "positions of pixels": (
        image_ops.apply_maps,
        "images.shape[-1], device=images.device",
        "images.shape[-1]",
        augment,
    ),
    "generator": (
        metrics.robustness,
        "generator=generator, dtype=rows.dtype",
        "generator=generator, dtype=rows.dtype, device=device",
        attack,
    ),
    "labels of the attack": (metrics.robustness, "y = y.to(device)", "y = y", attack),
}


@pytest.mark.parametrize("exercise", [train_alone, train_stacked, augment, attack])
def test_without_a_mistake_everything_is_in_its_place(exercise):
    exercise()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails(name, monkeypatch):
    function, old, new, exercise = MISTAKES[name]
    mutate(monkeypatch, function, old, new)
    with pytest.raises((RuntimeError, TypeError), match=r"(?i)device|incompatible tensor type"):
        exercise()
