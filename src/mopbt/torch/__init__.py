"""PyTorch: tasks that train one model pleasantly and thirty-two at a time fast."""

from mopbt.torch.data import Batches
from mopbt.torch.layers import Dropout, Hyperparameter
from mopbt.torch.optimizers import SGD, AdamW, Constant, Cosine, Steps
from mopbt.torch.task import TorchTask

__all__ = [
    "TorchTask",
    "Batches",
    "AdamW",
    "SGD",
    "Constant",
    "Cosine",
    "Steps",
    "Hyperparameter",
    "Dropout",
]
