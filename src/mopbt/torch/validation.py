"""Check the arguments of a `TorchTask` before training starts."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mopbt.engines.execution import check_scores
from mopbt.errors import TaskError
from mopbt.torch.data import Batches
from mopbt.torch.optimizers import Optimizer
from mopbt.torch.rows import Rows, held_rows


def check_parts(model: Any, loss: Any, data: Any, optimizer: Any) -> None:
    """Raise TypeError for objects of PyTorch where `TorchTask` takes something else."""
    if isinstance(model, nn.Module) or not callable(model):
        raise TypeError(
            f"`model` must be a function that builds the model, because each member has its own "
            f"weights, got {_describe(model)}; write model=lambda: ..."
        )
    if isinstance(optimizer, type) or not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"`optimizer` must be one of mopbt.torch (AdamW, SGD), because one object updates all "
            f'members, got {_describe(optimizer)}; write AdamW(lr="lr") to tune the learning rate'
        )
    if not isinstance(data, Batches):
        raise TypeError(
            f"`data` must be Batches(inputs, labels, batch_size=256), got {_describe(data)}; "
            f"pass tensors to Batches, or a Dataset to DatasetBatches or IterableBatches"
        )
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
        signature.bind(None, None, None)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`loss` must take the model, a batch and the hyperparameters, "
            f"got {_describe(loss)} ({error}); write def loss(model, batch, hp): ..."
        ) from None


def check_evaluation(**given: Any) -> None:
    """Raise ValueError unless exactly one way of evaluation is given."""
    names = {name for name, argument in given.items() if argument is not None}
    ways = names & {"metrics", "evaluate_model"}
    if ways == {"evaluate_model"} and len(names) == 1:
        return
    if len(ways) == 1 and "validation" in names:
        return
    got = " and ".join(f"`{name}`" for name in given if name in names)
    raise ValueError(
        f"TorchTask needs `metrics` and `validation`, or `evaluate_model`, but not both; `test` "
        f"and `holdout` need `validation`; got {got or 'none of them'}"
    )


def check_tensors(name: str, data: Any) -> None:
    """Raise ValueError unless `data` is None or tensors with the same number of rows."""
    if data is None:
        return
    is_sequence = isinstance(data, tuple | list) and len(data) > 0
    if not is_sequence or not all(isinstance(t, Tensor) and t.dim() for t in data):
        raise ValueError(
            f"`{name}` must be tensors with rows, such as (inputs, labels), "
            f"got {type(data).__name__}"
        )
    rows = [len(t) for t in data]
    if len(set(rows)) > 1:
        raise ValueError(f"the tensors of `{name}` must have the same number of rows, got {rows}")


def check_holdout(holdout: Any, validation: Rows | None) -> None:
    """Raise ValueError unless `holdout` is None, tensors, or a share of some rows."""
    if not isinstance(holdout, int | float):
        check_tensors("holdout", holdout)
        return
    n = 0 if validation is None else len(validation[0])
    if not (isinstance(holdout, float) and 0 < held_rows(n, holdout) < n):
        raise ValueError(
            f"`holdout` must be a share of the validation rows such as 0.25 that leaves some of "
            f"them on both sides, or tensors, got {holdout!r} of {n} rows"
        )


def check_fresh_rows(share: Any, validation: Rows | None, metrics: Any) -> None:
    """Raise ValueError unless `fresh_rows` is None or a share that leaves some rows."""
    if share is None:
        return
    n = 0 if validation is None else len(validation[0])
    is_share = isinstance(share, float) and 0 < share < 1 and 0 < held_rows(n, share) < n
    if metrics is None or not is_share:
        raise ValueError(
            f"`fresh_rows` must be a share of the validation rows such as 0.5, for a task with "
            f"`metrics`, got {share!r} of {n} rows"
        )


def check_folds(folds: Any, validation: Rows | None, metrics: Any) -> None:
    """Raise ValueError unless `folds` is None or a valid number of parts."""
    if folds is None:
        return
    n = 0 if validation is None else len(validation[0])
    if metrics is None or type(folds) is not int or not 2 <= folds <= n // 2:
        raise ValueError(
            f"`folds` must be a number of parts of the validation rows such as 8, for a task with "
            f"`metrics`, got {folds!r} of {n} rows"
        )


def check_metrics(metrics: Any, source: str) -> dict[str, float]:
    """Convert the metrics that `source` returned to floats, or raise TaskError."""
    if not isinstance(metrics, Mapping):
        raise TaskError(f"`{source}` must return a mapping of names to numbers, got {metrics!r}")
    return check_scores(metrics)


def _describe(argument: Any) -> str:
    """Describe an argument by its type: "a Linear", "the class AdamW"."""
    if isinstance(argument, type):
        return f"the class {argument.__name__}"
    name = type(argument).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
