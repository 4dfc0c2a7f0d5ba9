"""What a task gets of a data set: rows of numbers in three parts, and fewer of them."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mopbt.rng import stream

PARTS = ("train", "validation", "test")

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TabularRows:
    """A part of a table, prepared."""

    numeric: NDArray[np.float32]  # (n, f), about normal in training
    categorical: Ints  # (n, c), 0 for a category that training lacks, the others from 1
    target: Ints  # (n,), 0 or 1
    sensitive: Ints | None  # (n,), the group, 0 or 1, which fairness is measured by


@dataclass(frozen=True, eq=False)
class Tabular:
    """A table in three parts; preparation was fitted on the first alone."""

    train: TabularRows
    validation: TabularRows
    test: TabularRows
    cardinalities: tuple[
        int, ...
    ]  # (c,), how many codes each categorical column has, that of unseen categories included
    substituted: bool = (
        False  # the training rows are not the original ones, but others of the same kind
    )


@dataclass(frozen=True, eq=False)
class ImageRows:
    """A part of a set of images."""

    x: NDArray[np.uint8]  # (n, 3, height, width)
    y: Ints  # (n,), the class
    sensitive: Ints | None  # (n,), the group, 0 or 1, which fairness is measured by


@dataclass(frozen=True, eq=False)
class Images:
    """Images in three parts."""

    train: ImageRows
    validation: ImageRows
    test: ImageRows


Rows = TypeVar("Rows", TabularRows, ImageRows)


def subset(part: Rows, n: int, seed: int) -> Rows:
    """Return `n` rows of a part, in their order, with the shares of classes and sensitive groups that the part has."""
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
    columns = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(
        part, **{name: column[chosen] for name, column in columns.items() if column is not None}
    )


def _quotas(groups: Ints, n: int) -> Iterable[tuple[int, int]]:
    """Share `n` rows out: whole numbers as near to the groups' shares as they can be."""
    names, counts = np.unique(groups, return_counts=True)
    exact = counts * n
    quotas = exact // len(groups)
    most = np.argsort(-(exact % len(groups)), kind="stable")[
        : n - quotas.sum()
    ]  # those that lost most by rounding down
    quotas[most] += 1
    return zip(names.tolist(), quotas.tolist(), strict=True)


def arrays_in(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays in an npz file; nothing else that may be in it."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)
