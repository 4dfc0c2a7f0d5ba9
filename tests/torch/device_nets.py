"""A task with every kind of state; importing this module registers the device "sim".

Worker processes import it with the task.
"""

import torch
from tests.torch.nets import make_task
from torch import nn

import mopbt
import simulated_device
from mopbt.torch import Hyperparameter

simulated_device.load()

SPACE = {"lr": mopbt.LogGrid(0.01, 0.1, 5), "scale": mopbt.Grid(0.5, 2, 5)}


class Normalized(nn.Module):
    """A network with buffers, running statistics, a frozen parameter and a tuned scale."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.scale = Hyperparameter("scale")
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        """Count the calls in a buffer that is reassigned."""
        if self.training:
            self.calls = self.calls + 1
        return self.last(torch.relu(self.norm(self.first(x))) * self.frozen * self.scale())


def normalized_task(device="sim:0", **options):
    """Build a task with this network on a device."""
    return make_task(Normalized, **{"space": SPACE, "device": device, "clip": 1.0} | options)
