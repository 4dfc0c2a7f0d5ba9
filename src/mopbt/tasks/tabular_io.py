"""Reading tables: how files become columns, how rows are split in three parts, and how columns become numbers."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mopbt.tasks.adult import load_adult, require_sklearn
from mopbt.tasks.datasets import PARTS, Ints, Tabular, TabularRows, arrays_in

Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """A part of a table as it was published."""

    numeric: Floats  # (n, f), NaN where a value is missing
    categorical: NDArray[np.str_]  # (n, c), where a missing value is a category
    target: NDArray[Any]  # (n,)
    sensitive: NDArray[Any] | None = None  # (n,)


def prepare(
    train: Columns, validation: Columns, test: Columns, *, substituted: bool = False
) -> Tabular:
    """Turn columns into numbers; what that takes is learned from the training rows alone.

    Missing numbers become the mean; numeric columns are made normal by their quantiles, as in the paper's experiments; categories
    are numbered in alphabetical order.
    """
    require_sklearn("preparing tables")
    parts = (train, validation, test)
    numeric, (categorical, cardinalities) = _made_normal(parts), _numbered(parts)
    rows = (
        TabularRows(
            x,
            codes,
            part.target.astype(np.int64),
            None if part.sensitive is None else part.sensitive.astype(np.int64),
        )
        for part, x, codes in zip(parts, numeric, categorical, strict=True)
    )
    prepared = dict(zip(PARTS, rows, strict=True))
    return Tabular(**prepared, cardinalities=cardinalities, substituted=substituted)


def _made_normal(parts: Sequence[Columns]) -> list[NDArray[np.float32]]:
    from sklearn.preprocessing import QuantileTransformer

    if not parts[0].numeric.shape[1]:
        return [part.numeric.astype(np.float32) for part in parts]
    means = np.nanmean(parts[0].numeric, axis=0)
    whole = [np.where(np.isnan(part.numeric), means, part.numeric) for part in parts]
    quantiles = max(min(len(whole[0]) // 30, 1000), 10)
    settings: Any = {"output_distribution": "normal", "subsample": 10**9, "random_state": 42}
    transformer: Any = QuantileTransformer(n_quantiles=quantiles, **settings)  # type: ignore[no-untyped-call]
    transformer.fit(whole[0])
    return [transformer.transform(columns).astype(np.float32) for columns in whole]


def _numbered(parts: Sequence[Columns]) -> tuple[list[Ints], tuple[int, ...]]:
    from sklearn.preprocessing import OrdinalEncoder

    if not parts[0].categorical.shape[1]:
        return [np.empty(part.categorical.shape, np.int64) for part in parts], ()
    settings: Any = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "dtype": np.int64}
    encoder: Any = OrdinalEncoder(**settings).fit(parts[0].categorical)  # type: ignore[no-untyped-call]
    return [encoder.transform(part.categorical) + 1 for part in parts], tuple(
        len(known) + 1 for known in encoder.categories_
    )


def read_adult(_: Path) -> Tabular:
    """Return the table that comes with the package."""
    data = load_adult()

    def part(rows: Ints) -> Columns:
        return Columns(
            data.numeric[rows], data.categorical[rows], data.labels[rows], data.male[rows]
        )

    return prepare(part(data.train), part(data.val), part(data.test))


def read_higgs_part(path: Path) -> Tabular:
    """Read a compact file, whose training rows are others than the original ones."""
    arrays = arrays_in(path)
    parts = [
        _all_numeric(arrays[f"x_{part}"].astype(np.float64), arrays[f"y_{part}"])
        for part in ("train", "val", "test")
    ]
    return prepare(*parts, substituted=True)


def read_click_csv(path: Path) -> Tabular:
    """Read a compressed CSV file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",", ndmin=2)
    target = names.index("click")
    return _split_in_three(
        np.delete(table, target, axis=1), table[:, target], as_large_as_test=True
    )


def read_openml_arrays(path: Path, *, as_large_as_test: bool) -> Tabular:
    """Read what OpenML gave, as it was kept."""
    arrays = arrays_in(path)
    return _split_in_three(arrays["x"], arrays["y"], as_large_as_test=as_large_as_test)


def read_openml_arff(path: Path, target: str, *, as_large_as_test: bool) -> Tabular:
    """Read a file of OpenML's own format."""
    require_sklearn("reading ARFF files")
    from scipy.io.arff import loadarff  # type: ignore[import-untyped]  # comes with scikit-learn

    table, _ = loadarff(path)
    columns = {name: table[name].astype(np.float64) for name in table.dtype.names}
    y = columns.pop(target)
    return _split_in_three(
        np.column_stack(list(columns.values())), y, as_large_as_test=as_large_as_test
    )


def _split_in_three(x: Floats, y: Floats, *, as_large_as_test: bool) -> Tabular:
    """Set a fifth apart for testing and then, for validation, as many rows or a fifth of what is left."""
    rest, test = split(y, -(-len(y) // 5))
    train, validation = split(y[rest], len(test) if as_large_as_test else len(rest) // 5)
    return prepare(
        *(_all_numeric(x[rows], y[rows]) for rows in (rest[train], rest[validation], test))
    )


def _all_numeric(x: Floats, y: NDArray[Any]) -> Columns:
    return Columns(x, np.empty((len(x), 0), np.str_), y)


def split(labels: NDArray[Any], n: int) -> tuple[Ints, Ints]:
    """Return rows to keep and `n` rows to set apart, stratified, as scikit-learn's StratifiedShuffleSplit has them from seed 0."""
    require_sklearn("splitting data")
    from sklearn.model_selection import train_test_split

    kept, apart = train_test_split(
        np.arange(len(labels)), test_size=n, random_state=0, stratify=labels
    )
    return kept, apart
