"""PyTorch tasks, whose members train one by one or as a stack."""

from importlib.util import find_spec as _find_spec

from mopbt.errors import MissingExtra

if _find_spec("torch") is None:
    raise MissingExtra("mopbt.torch needs PyTorch: pip install 'mopbt[torch]'")

from mopbt.torch.data import Batches
from mopbt.torch.dataset import DatasetBatches, IterableBatches
from mopbt.torch.layers import Dropout, Hyperparameter
from mopbt.torch.optimizers import SGD, AdamW, Constant, Cosine, Steps
from mopbt.torch.task import TorchTask

__all__ = [
    "TorchTask",
    "Batches",
    "DatasetBatches",
    "IterableBatches",
    "AdamW",
    "SGD",
    "Constant",
    "Cosine",
    "Steps",
    "Hyperparameter",
    "Dropout",
]
