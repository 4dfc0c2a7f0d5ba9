"""Trade accuracy against demographic parity of a Lightning module on the Adult data."""

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

# The rows are in memory, so data loaders need no workers.
warnings.filterwarnings("ignore", ".*does not have many workers.*")


@functools.cache
def part(name):
    """Return a part of Adult; cached, because a Trainer sets up its data in every interval."""
    data = load_adult()
    rows = data.rows(name)
    preprocessing = Preprocessing.fit(data)
    x = np.hstack([preprocessing.standardize(data, rows), preprocessing.one_hot(data, rows)])
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
        p = outputs.softmax(1)[:, 1]
        is_man = male.float()
        is_woman = 1 - is_man
        men = (p * is_man).sum() / is_man.sum().clamp(min=1)
        women = (p * is_woman).sum() / is_woman.sum().clamp(min=1)
        return (men - women).abs()

    def training_step(self, batch, index):
        x, y, male = batch
        outputs = self.net(x)
        penalty = self.hparams.weight * self.gap(outputs, male)
        return nn.functional.cross_entropy(outputs, y) + penalty

    def validation_step(self, batch, index):
        x, y, male = batch
        outputs = self.net(x)
        accuracy = (outputs.argmax(1) == y).float().mean()
        self.log_dict({"accuracy": accuracy, "dsp": self.gap(outputs, male)})

    def configure_optimizers(self):
        return torch.optim.AdamW(
            self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.decay
        )


def module(hp):
    """Build a module with a member's hyperparameters; its weights come from a checkpoint."""
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
    # A step, the time between two decisions, is a fifth of an epoch.
    trainer={"accelerator": "cpu", "limit_train_batches": 10},
    name="lightning-fairness",
)

if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    results = mopbt.run(task, out=f"runs/lightning-fairness-{population}", population=population)
    choice = results.front().knee()
    print(choice.why)
    # The weights are an ordinary state_dict.
    weights = results.load(choice)["model"]
    print(f"{sum(tensor.numel() for tensor in weights.values()):,} parameters")
