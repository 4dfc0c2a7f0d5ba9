"""PyTorch: tasks that train one model pleasantly and thirty-two at a time fast."""

from mopbt.torch.batches import Batches
from mopbt.torch.layers import Dropout, Tuned
from mopbt.torch.optimizers import SGD, AdamW, Constant, Cosine, Steps
from mopbt.torch.task import TorchTask

__all__ = ["TorchTask", "Batches", "AdamW", "SGD", "Constant", "Cosine", "Steps", "Tuned", "Dropout"]
