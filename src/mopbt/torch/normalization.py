"""The running statistics of batch normalization.

Averaged weights must measure them again.
"""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def has_batch_statistics(module: nn.Module) -> bool:
    """Return whether a model evaluates with statistics of its training batches."""
    return bool(_layers(module))


def measure_batch_statistics(module: nn.Module, inputs: Iterable[Tensor]) -> None:
    """Replace the running statistics by their means over batches of inputs.

    Only the normalization layers are in training mode, so that dropout is off.
    """
    layers = _layers(module)
    momenta = [layer.momentum for layer in layers]
    module.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            # The mean over all batches instead of a moving average.
            layer.momentum = None
            layer.train()
        for batch in inputs:
            module(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        module.eval()


def _layers(module: nn.Module) -> list[_BatchNorm]:
    return [
        part
        for part in module.modules()
        if isinstance(part, _BatchNorm) and part.track_running_stats
    ]
