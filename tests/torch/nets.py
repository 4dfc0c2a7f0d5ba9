"""Networks and data of the PyTorch tests, in a module that workers can import."""

import torch
from torch import nn
from torch.nn import functional as F

import mopbt
from mopbt.torch import SGD, Batches, Dropout, TorchTask

ROWS, COLUMNS = 96, 6


def rows(n=ROWS, seed=0):
    """Draw inputs and labels of two classes that a small network can separate."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, COLUMNS, generator=generator)
    return x, (x[:, 0] * x[:, 1] + 0.5 * x[:, 2] > 0).long()


def cross_entropy(model, batch, hp):
    """Return the cross entropy, without any hyperparameter."""
    return F.cross_entropy(model(batch[0]), batch[1])


def weighted(model, batch, hp):
    """Return the cross entropy with a tuned weight of the second class."""
    weight = torch.stack([torch.ones_like(hp["balance"]), hp["balance"]])
    return F.cross_entropy(model(batch[0]), batch[1], weight=weight)


def scores(outputs, y):
    """Return two conflicting metrics and the loss, which shows every bit of outputs."""
    chosen = outputs.argmax(-1)
    return {
        "recall": (chosen[y == 1] == 1).float().mean(),
        "specificity": (chosen[y == 0] == 0).float().mean(),
        "loss": F.cross_entropy(outputs, y),
    }


def mlp(width=8):
    """Build a network without randomness."""
    return nn.Sequential(nn.Linear(COLUMNS, width), nn.Tanh(), nn.Linear(width, 2))


def dropping():
    """Build a network with a tuned dropout probability."""
    return nn.Sequential(nn.Linear(COLUMNS, 16), nn.ReLU(), Dropout("dropout"), nn.Linear(16, 2))


def make_task(model=mlp, **options):
    """Build a small task; options override its defaults."""
    batches = {"batch_size": 32} | {
        k: options.pop(k) for k in ("batch_size", "updates", "shared", "augment") if k in options
    }
    settings = {
        "loss": cross_entropy,
        "data": Batches(*rows(), **batches),
        "space": {"lr": mopbt.LogGrid(0.001, 1.0, 10)},
        "objectives": {"recall": "max", "specificity": "max"},
        "steps": 4,
        "optimizer": SGD(lr="lr"),
        "metrics": scores,
        "validation": rows(64, seed=1),
        "device": "cpu",
    }
    kind = options.pop("kind", TorchTask)
    return kind(model, **settings | options)


def dropping_task(**options):
    """Build a task that tunes learning rate, dropout and class weight."""
    space = {
        "lr": mopbt.LogGrid(0.003, 0.3, 8),
        "dropout": mopbt.Grid(0, 0.8, 9),
        "balance": mopbt.LogGrid(0.1, 10, 9),
    }
    return make_task(dropping, **{"loss": weighted, "space": space} | options)
