"""Average state trees: the weights of relatives, leaf by leaf."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mopbt.serialization import is_tensor


def average_trees(trees: Sequence[Any], weights: Sequence[float]) -> Any:
    """Return the weighted mean of trees of the same structure; the weights sum to 1.

    Arrays and tensors of floating-point numbers are averaged. All other leaves, such as counters,
    are those of the first tree.
    """
    first = trees[0]
    if isinstance(first, dict):
        if any(tree.keys() != first.keys() for tree in trees):
            raise _different(f"the keys {[sorted(map(str, tree)) for tree in trees]}")
        return {key: average_trees([tree[key] for tree in trees], weights) for key in first}
    if isinstance(first, list | tuple):
        if any(len(tree) != len(first) for tree in trees):
            raise _different(f"sequences of {[len(tree) for tree in trees]} items")
        items = [average_trees(parts, weights) for parts in zip(*trees, strict=True)]
        return items if isinstance(first, list) else tuple(items)
    if is_tensor(first) or isinstance(first, np.ndarray):
        return _average_arrays(trees, weights)
    return first


def _average_arrays(arrays: Sequence[Any], weights: Sequence[float]) -> Any:
    first = arrays[0]
    if any(array.shape != first.shape for array in arrays):
        raise _different(f"the shapes {[tuple(array.shape) for array in arrays]}")
    mean = first.clone() if is_tensor(first) else first.copy()
    if _is_floating(first):
        # Differences are added to the first, so that equal values stay exactly as they are.
        for array, weight in zip(arrays[1:], weights[1:], strict=True):
            mean += (array - first) * weight
    return mean


def _is_floating(leaf: Any) -> bool:
    if is_tensor(leaf):
        return bool(leaf.is_floating_point())
    return np.issubdtype(leaf.dtype, np.floating)


def _different(what: str) -> ValueError:
    return ValueError(
        f"only models whose states have the same structure can be averaged, got {what}"
    )
