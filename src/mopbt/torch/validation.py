"""What people give to a `TorchTask`, checked before anything is trained."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mopbt.engines.execution import check_scores
from mopbt.errors import TaskError
from mopbt.torch.data import Batches


def check_parts(model: Any, loss: Any, data: Any, optimizer: Any) -> None:
    """Raise TypeError where a part of a task is PyTorch's own and not what stands for it here."""
    if isinstance(model, nn.Module) or not callable(model):
        raise TypeError(
            f"`model` must be a function that builds the model, got {_an(model)}; write model=lambda: ..., as each member has "
            f"weights of its own"
        )
    if isinstance(optimizer, type) or not hasattr(optimizer, "rates"):
        raise TypeError(
            f"`optimizer` must be one of mopbt.torch (AdamW, SGD), as one object serves all members, got {_an(optimizer)}; "
            f'write AdamW(lr="lr") for a tuned rate'
        )
    if not isinstance(data, Batches):
        raise TypeError(
            f"`data` must be Batches(inputs, labels, batch_size=256), got {_an(data)}; give it the tensors themselves"
        )
    try:
        inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).bind(
            None, None, None
        )
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`loss` must take the model, a batch and the hyperparameters, got {_an(loss)} ({error}); write "
            f"def loss(model, batch, hp): ..."
        ) from None


def _an(given: Any) -> str:
    """Return in words what was given."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def check_rows(name: str, data: Any) -> None:
    """Raise ValueError unless these are tensors with equally many rows, or nothing."""
    if data is None:
        return
    if (
        not isinstance(data, tuple | list)
        or not data
        or not all(isinstance(t, Tensor) and t.dim() for t in data)
    ):
        raise ValueError(
            f"`{name}` must be tensors with rows, such as (inputs, labels), got {type(data).__name__}"
        )
    if len({len(t) for t in data}) > 1:
        raise ValueError(
            f"the tensors of `{name}` must have equally many rows, got {[len(t) for t in data]}"
        )


def named_numbers(scores: Any, source: str) -> dict[str, float]:
    """Return scores as numbers by name, or say which function gave something else."""
    if not isinstance(scores, Mapping):
        raise TaskError(f"`{source}` must return a mapping of names to numbers, got {scores!r}")
    return check_scores(scores)
