"""The PyTorch tasks of recorded runs; see `recorded_tasks.py`."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import mopbt
from mopbt.torch import AdamW, Batches, TorchTask

generator = torch.Generator().manual_seed(0)
x = torch.randn(120, 4, generator=generator)
y = (x[:, 0] + x[:, 1] > 0.5).long()


def model():
    return nn.Linear(4, 2)


def loss(model, batch, hp):
    inputs, labels = batch
    weight = torch.stack([1 - hp["positive"], hp["positive"]])
    return cross_entropy(model(inputs), labels, weight=weight)


def metrics(outputs, labels):
    said = outputs.argmax(1)
    hits = (said & labels).sum()
    return {"precision": hits / said.sum().clamp(min=1), "recall": hits / labels.sum()}


def network(name, **options):
    return TorchTask(
        model,
        loss=loss,
        metrics=metrics,
        validation=(x[60:100], y[60:100]),
        test=(x[100:], y[100:]),
        data=Batches(x[:60], y[:60], batch_size=20),
        optimizer=AdamW(lr="lr"),
        space={"lr": mopbt.LogGrid(1e-3, 1e-1, 9), "positive": mopbt.Grid(0.1, 0.9, 9)},
        objectives={"precision": "max", "recall": "max"},
        name=name,
        interval=1,
        steps=4,
        **options,
    )


net = network("net")
averaged = network("averaged", ema=0.9, holdout=0.25)
bf16 = network("bf16", precision="bf16", compile="auto")
