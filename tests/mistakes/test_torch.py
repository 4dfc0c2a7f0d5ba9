"""Mistakes with PyTorch: its own objects where other ones belong."""

import numpy as np
import pytest

import mopbt
from mistakes.helpers import Mistake, check_mistake
from mopbt import Float
from mopbt.errors import CannotStack, MissingScore, UnknownHyperparameter


def torch_task(**said):
    import torch

    from mopbt.torch import AdamW, Batches, TorchTask

    x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    parts = {
        "model": lambda: torch.nn.Linear(4, 2),
        "loss": lambda model, batch, hp: torch.nn.functional.cross_entropy(
            model(batch[0]), batch[1]
        ),
        "data": Batches(x, y, batch_size=4),
        "space": {"lr": Float(1e-4, 1e-1, log=True)},
        "objectives": {"accuracy": "max", "size": "min"},
        "steps": 2,
        "optimizer": AdamW(lr="lr"),
        "metrics": lambda outputs, targets: {"accuracy": 0.5, "size": 1.0},
        "validation": (x, y),
    } | {key: make(torch) if callable(make) else make for key, make in said.items()}
    return TorchTask(parts.pop("model"), **parts)


def torch_running(engine="local", **said):
    return lambda here: mopbt.run(
        torch_task(**said), out="new", engine=engine, population=4, progress=False
    )


def deciding(torch):
    return lambda model, batch, hp: model(batch[0]).mean() * (1 if hp["lr"] > 0.01 else 2)


def batches(*arrays):
    from mopbt.torch import Batches

    return Batches(*arrays, batch_size=4)


MISTAKES = [
    Mistake(
        *(
            "a model where its maker belongs",
            torch_running(model=lambda torch: torch.nn.Linear(4, 2)),
            TypeError,
        ),
        *("got a Linear", "a function that builds the model", "write model=lambda: ..."),
    ),
    Mistake(
        *(
            "an optimizer of PyTorch's",
            torch_running(optimizer=lambda torch: torch.optim.AdamW),
            TypeError,
        ),
        *("got the class AdamW", "one of mopbt.torch (AdamW, SGD)", 'write AdamW(lr="lr")'),
    ),
    Mistake(
        *(
            "a DataLoader",
            torch_running(data=lambda torch: torch.utils.data.DataLoader([1, 2])),
            TypeError,
        ),
        *(
            "got a DataLoader",
            "must be Batches(inputs, labels, batch_size=256)",
            "pass tensors to Batches",
        ),
    ),
    Mistake(
        *(
            "a loss of PyTorch's",
            torch_running(loss=lambda torch: torch.nn.CrossEntropyLoss()),
            TypeError,
        ),
        *(
            "got a CrossEntropyLoss",
            "the model, a batch and the hyperparameters",
            "write def loss(model, batch, hp): ...",
        ),
    ),
    Mistake(
        *("no metrics", torch_running(metrics=None), ValueError),
        *(
            "got `validation`",
            "or `evaluate_model`, but not both",
            "needs `metrics` and `validation`",
        ),
    ),
    Mistake(
        *(
            "metrics without an objective",
            torch_running(objectives={"acuracy": "max", "size": "min"}),
            MissingScore,
        ),
        *(
            "the task measures 'accuracy', 'size'",
            "the objectives name 'acuracy'",
            "correct the name",
        ),
    ),
    Mistake(
        *(
            "a loss that asks for what is not tuned",
            torch_running(loss=lambda torch: lambda model, batch, hp: hp["lrr"]),
            UnknownHyperparameter,
        ),
        *(
            "the unknown hyperparameter 'lrr'",
            "the space has 'lr'",
            "add it there, or correct the name",
        ),
    ),
    Mistake(
        *(
            "a rate that is not in the space",
            torch_running(space={"rate": Float(0.1, 1)}),
            ValueError,
        ),
        *("hyperparameter 'lr'", "the space has 'rate'", "add it to the space"),
    ),
    Mistake(
        *(
            "arrays for tensors",
            torch_running(data=lambda torch: batches(np.zeros((8, 4)), np.zeros(8))),
            ValueError,
        ),
        *("got ndarray, ndarray", "takes tensors with rows", "torch.as_tensor(...)"),
    ),
    Mistake(
        *("a device that there is not", torch_running(device="gpu"), ValueError),
        *("got 'gpu'", "a device that PyTorch finds", "`device` must be 'auto'"),
    ),
    Mistake(
        *(
            "a loss that decides by a value, in a stack",
            torch_running("vectorized", loss=deciding),
            CannotStack,
        ),
        *("the model or its loss", "cannot be stacked", "use engine='pool'"),
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.did)
def test_a_mistake_with_torch(row, here, one_thread):
    check_mistake(row, here)
