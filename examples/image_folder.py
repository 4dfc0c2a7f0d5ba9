"""Train on a folder of images that are read while training.

Run it with ``python examples/image_folder.py``; it needs ``pip install 'mopbt[torch]' pillow``. The
images are drawn here: striped (class 0) or noisy (class 1). Loader processes read them from disk,
in an order of its own for each member. The front trades precision against recall.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import mopbt
from mopbt.torch import SGD, Cosine, DatasetBatches, TorchTask

SIDE = 16


class ImageFolder(Dataset):
    """The images of a folder; the first letter of a file's name is its class."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as image:
            pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        return pixels[None], int(self.files[index].name[0])


def draw_images(folder: Path, n: int, seed: int) -> ImageFolder:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    stripes = np.where(np.arange(SIDE) % 4 < 2, 134.0, 116.0)
    for i in range(n):
        label = int(rng.random() < 0.3)
        image = rng.normal(125 if label else stripes, 60, size=(SIDE, SIDE)).clip(0, 255)
        Image.fromarray(image.astype(np.uint8)).save(folder / f"{label}-{i:04}.png")
    return ImageFolder(folder)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, 2)
    )


def loss(model, batch, hp):
    images, labels = batch
    weight = torch.stack([1 - hp["positive"], hp["positive"]])
    return cross_entropy(model(images), labels, weight=weight)


def metrics(outputs, labels):
    said = outputs.argmax(1)
    hits = (said & labels).sum()
    return {"precision": hits / said.sum().clamp(min=1), "recall": hits / labels.sum()}


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    with tempfile.TemporaryDirectory() as folder:
        training = draw_images(Path(folder) / "train", 600, seed=0)
        held_out = draw_images(Path(folder) / "validation", 300, seed=1)
        task = TorchTask(
            network,
            loss=loss,
            data=DatasetBatches(training, batch_size=50, loader_workers=1),
            metrics=metrics,
            # What is measured at every decision fits in memory.
            validation=DatasetBatches(held_out, batch_size=300).head(300),
            space={"lr": mopbt.LogGrid(0.001, 0.3, 10), "positive": mopbt.Grid(0.1, 0.9, 9)},
            objectives={"precision": "max", "recall": "max"},
            optimizer=SGD(lr="lr", schedule=Cosine()),
            steps=6,
            name="image-folder",
        )
        results = mopbt.run(task, out="runs/image-folder", population=population)
        print(results.front())
