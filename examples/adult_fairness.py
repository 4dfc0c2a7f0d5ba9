"""Trade accuracy against fairness of a small network on the Adult data.

Run it with ``python examples/adult_fairness.py``; it needs ``pip install 'mopbt[torch,sklearn]'``.
The loss penalizes DSP, the difference in mean predicted probability between men and women. The
models on the front differ in what they learn, so moving a threshold cannot replace them.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import mopbt
from mopbt.tasks.adult import Preprocessing, load_adult
from mopbt.torch import AdamW, Batches, Dropout, TorchTask

data = load_adult()
preprocessing = Preprocessing.fit(data)


def part(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = data.rows(name)
    x = np.hstack([preprocessing.standardize(data, rows), preprocessing.one_hot(data, rows)])
    return (
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(data.labels[rows]).long(),
        torch.tensor(data.male[rows]),
    )


def gap(outputs: torch.Tensor, male: torch.Tensor) -> torch.Tensor:
    p = outputs.softmax(1)[:, 1]
    is_man = male.float()
    is_woman = 1 - is_man
    men = (p * is_man).sum() / is_man.sum().clamp(min=1)
    women = (p * is_woman).sum() / is_woman.sum().clamp(min=1)
    return (men - women).abs()


def loss(model, batch, hp):
    x, y, male = batch
    outputs = model(x)
    return cross_entropy(outputs, y) + hp["lambda"] * gap(outputs, male)


def metrics(outputs, y, male):
    return {"accuracy": (outputs.argmax(1) == y).float().mean(), "dsp": gap(outputs, male)}


train = part("train")
validation = part("val")
test = part("test")
task = TorchTask(
    lambda: nn.Sequential(
        nn.Linear(train[0].shape[1], 32), nn.ReLU(), Dropout("dropout"), nn.Linear(32, 2)
    ),
    loss=loss,
    metrics=metrics,
    # A step, the time between two decisions, is a fifth of an epoch.
    data=Batches(*train, batch_size=512, updates=10),
    validation=validation,
    test=test,
    optimizer=AdamW(lr="lr", weight_decay="decay"),
    space={
        "lr": mopbt.LogGrid(1e-4, 1e-2, 10),
        "decay": mopbt.LogGrid(1e-6, 0.1, 10, zero=True),
        "dropout": mopbt.Grid(0, 0.8, 10),
        "lambda": mopbt.LogGrid(0.01, 10, 10, zero=True),
    },
    objectives={"accuracy": "max", "dsp": "min"},
    reference={"accuracy": 0.75, "dsp": 0.25},
    steps=40,
    name="adult-fairness",
)

if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    results = mopbt.run(task, out=f"runs/adult-fairness-{population}", population=population)
    for point in results.front().spread(8):
        print("  ".join(f"{name} {score:.4f}" for name, score in point.scores.items()))
