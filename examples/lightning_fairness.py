"""Accuracy against demographic parity of a Lightning module on Adult: the Trainer trains, the population tunes."""

import functools
import sys
import warnings

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mopbt
from mopbt.integrations.lightning import LightningTask
from mopbt.tasks.adult import Preprocessing, load_adult

warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the rows are in memory


@functools.cache
def part(name):
    """Return rows of Adult, which come with the package; cached, as a Trainer sets its data up at every interval."""
    data = load_adult()
    rows, preprocessing = data.rows(name), Preprocessing.fit(data)
    x = np.hstack([preprocessing.standardized(data, rows), preprocessing.one_hot(data, rows)])
    return TensorDataset(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(data.labels[rows]).long(),
        torch.tensor(data.male[rows]),
    )


class Adult(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(part("train"), batch_size=512, shuffle=True)

    def val_dataloader(self):
        return DataLoader(part("val"), batch_size=len(part("val")))


class Classifier(L.LightningModule):
    def __init__(self, lr, decay, dropout, weight):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(part("train")[0][0].shape[0], 32),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(32, 2),
        )

    def gap(self, outputs, male):
        p, weight = outputs.softmax(1)[:, 1], male.float()
        men, women = (
            (p * weight).sum() / weight.sum().clamp(min=1),
            (p * (1 - weight)).sum() / (1 - weight).sum().clamp(min=1),
        )
        return (men - women).abs()

    def training_step(self, batch, index):
        x, y, male = batch
        outputs = self.net(x)
        return nn.functional.cross_entropy(outputs, y) + self.hparams.weight * self.gap(
            outputs, male
        )

    def validation_step(self, batch, index):
        x, y, male = batch
        outputs = self.net(x)
        self.log_dict(
            {"accuracy": (outputs.argmax(1) == y).float().mean(), "dsp": self.gap(outputs, male)}
        )

    def configure_optimizers(self):
        return torch.optim.AdamW(
            self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.decay
        )


def module(hp):
    """Build a module with the hyperparameters of a member; its weights come from the checkpoint."""
    return Classifier(hp["lr"], hp["decay"], hp["dropout"], hp["weight"])


task = LightningTask(
    module,
    data=Adult(),
    space={
        "lr": mopbt.LogGrid(1e-4, 1e-2, 10),
        "decay": mopbt.LogGrid(1e-6, 0.1, 10, zero=True),
        "dropout": mopbt.Grid(0, 0.8, 10),
        "weight": mopbt.LogGrid(0.01, 10, 10, zero=True),
    },
    objectives={"accuracy": "max", "dsp": "min"},
    reference={"accuracy": 0.75, "dsp": 0.25},
    steps=8,
    trainer={
        "accelerator": "cpu",
        "limit_train_batches": 10,
    },  # a fifth of an epoch between decisions
    name="lightning-fairness",
)

if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    results = mopbt.run(task, out=f"runs/lightning-fairness-{population}", population=population)
    choice = results.front().pick("knee")
    print(choice.why)
    weights = results.load(choice)["model"]  # an ordinary state_dict
    print(f"{sum(tensor.numel() for tensor in weights.values()):,} parameters")
