"""A small network and its rows for the tests of Lightning."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mopbt
from mopbt.integrations.lightning import LightningTask

CPU = {"accelerator": "cpu"}
SPACE = {
    "lr": mopbt.LogGrid(1e-3, 0.3, 6),
    "dropout": mopbt.Grid(0, 0.5, 6),
    "positive": mopbt.Grid(0.1, 0.9, 5),
}
HP = {"lr": 0.1, "dropout": 0.2, "positive": 0.5}


class Net(lightning.LightningModule):
    def __init__(self, lr, dropout, positive, schedule=None):
        super().__init__()
        self.save_hyperparameters(ignore="schedule")
        self.schedule = schedule
        self.net = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1)
        )

    def training_step(self, batch, index):
        x, y = batch
        weight = torch.where(y > 0, self.hparams.positive, 1 - self.hparams.positive)
        return nn.functional.binary_cross_entropy_with_logits(self.net(x)[:, 0], y, weight=weight)

    def validation_step(self, batch, index):
        x, y = batch
        predicted = (self.net(x)[:, 0] > 0).float()
        self.log_dict(
            {
                "precision": (predicted * y).sum() / predicted.sum().clamp(min=1),
                "recall": (predicted * y).sum() / y.sum(),
            }
        )

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return optimizer if self.schedule is None else ([optimizer], [self.schedule(optimizer)])


class Rows(lightning.LightningDataModule):
    def __init__(self, batch_size=20):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(120, 5, generator=generator)
        self.rows = TensorDataset(
            x, (x[:, 0] + 0.5 * torch.randn(120, generator=generator) > 0.3).float()
        )
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows, batch_size=120)


def task(schedule=None, **options):
    given = {
        "space": SPACE,
        "objectives": {"precision": "max", "recall": "max"},
        "steps": 4,
        "data": Rows(),
        "trainer": CPU,
        "module": lambda hp: Net(hp["lr"], hp["dropout"], hp["positive"], schedule),
    }
    return LightningTask(**(given | options))
