"""Represent prepared data sets as arrays in three parts, and draw smaller subsets."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mopbt.rng import stream

PARTS = ("train", "validation", "test")

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TabularRows:
    """Hold the prepared rows of one part of a table.

    Attributes:
        numeric: Shape (n, f), approximately normal in training.
        categorical: Codes of shape (n, c) from 1; 0 is a category that is absent from training.
        target: Shape (n,), 0 or 1.
        sensitive: Shape (n,), the group for fairness metrics, 0 or 1.
    """

    numeric: NDArray[np.float32]
    categorical: Ints
    target: Ints
    sensitive: Ints | None


@dataclass(frozen=True, eq=False)
class Tabular:
    """Hold a table in three parts; the preparation is fitted on `train` alone.

    Attributes:
        train: Training rows.
        validation: Validation rows.
        test: Test rows.
        cardinalities: Number of codes of each categorical column, including code 0.
        substituted: Whether the training rows replace the original ones with similar rows.
    """

    train: TabularRows
    validation: TabularRows
    test: TabularRows
    cardinalities: tuple[int, ...]
    substituted: bool = False


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Hold one part of an image data set.

    Attributes:
        x: Images of shape (n, 3, height, width).
        y: Classes of shape (n,).
        sensitive: Shape (n,), the group for fairness metrics, 0 or 1.
    """

    x: NDArray[np.uint8]
    y: Ints
    sensitive: Ints | None


@dataclass(frozen=True, eq=False)
class Images:
    """Hold an image data set in three parts."""

    train: ImageRows
    validation: ImageRows
    test: ImageRows


Rows = TypeVar("Rows", TabularRows, ImageRows)


def subset(part: Rows, n: int, seed: int) -> Rows:
    """Draw `n` rows, stratified by class and sensitive group, in their original order."""
    labels = part.target if isinstance(part, TabularRows) else part.y
    if not 1 <= n <= len(labels):
        raise ValueError(f"`n` must be from 1 to the number of rows {len(labels)}, got {n!r}")
    groups = labels if part.sensitive is None else labels * 2 + part.sensitive
    rng = stream(seed, "subset")
    rows = [
        rng.permutation(np.flatnonzero(groups == group))[:quota]
        for group, quota in _quotas(groups, n)
    ]
    chosen = np.sort(np.concatenate(rows))
    columns = {name: column[chosen] for name, column in vars(part).items() if column is not None}
    return replace(part, **columns)


def _quotas(groups: Ints, n: int) -> list[tuple[int, int]]:
    """Divide `n` rows among the groups in proportion, by the largest remainders."""
    names, counts = np.unique(groups, return_counts=True)
    exact = counts * n
    quotas = exact // len(groups)
    by_remainder = np.argsort(-(exact % len(groups)), kind="stable")
    quotas[by_remainder[: n - quotas.sum()]] += 1
    return list(zip(names.tolist(), quotas.tolist(), strict=True))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file, and refuse pickled objects."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)
