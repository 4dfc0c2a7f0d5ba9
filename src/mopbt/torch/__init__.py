"""PyTorch tasks, whose members train one by one or as a stack."""

from mopbt.torch.data import Batches
from mopbt.torch.dataset import DatasetBatches
from mopbt.torch.layers import Dropout, Hyperparameter
from mopbt.torch.optimizers import SGD, AdamW, Constant, Cosine, Steps
from mopbt.torch.task import TorchTask

__all__ = [
    "TorchTask",
    "Batches",
    "DatasetBatches",
    "AdamW",
    "SGD",
    "Constant",
    "Cosine",
    "Steps",
    "Hyperparameter",
    "Dropout",
]
