"""Read tables, split them into three parts and turn their columns into numbers."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mopbt.tasks.adult import load_adult, require_sklearn
from mopbt.tasks.datasets import Ints, Tabular, TabularRows, read_arrays

# The files of a table with numeric features in the archive of Gorishniy et al. 2021.
SPLIT_FILES = tuple(
    f"{kind}_{part}.npy" for part in ("train", "val", "test") for kind in ("N", "y")
)

Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """Hold one part of a table as published.

    Attributes:
        numeric: Shape (n, f), NaN where a value is missing.
        categorical: Shape (n, c); a missing value is a category.
        target: Shape (n,).
        sensitive: Shape (n,).
    """

    numeric: Floats
    categorical: NDArray[np.str_]
    target: NDArray[Any]
    sensitive: NDArray[Any] | None = None


def prepare(
    train: Columns, validation: Columns, test: Columns, *, substituted: bool = False
) -> Tabular:
    """Turn columns into numbers, fitted on the training rows alone.

    Missing numbers become the mean. Numeric columns are transformed to a normal distribution by
    their quantiles, as in the paper's experiments. Categories are numbered in alphabetical order.
    """
    require_sklearn("preparing tables")
    parts = (train, validation, test)
    numeric = _normalize(parts)
    categorical, cardinalities = _encode(parts)
    train_rows, validation_rows, test_rows = (
        TabularRows(
            x,
            codes,
            part.target.astype(np.int64),
            None if part.sensitive is None else part.sensitive.astype(np.int64),
        )
        for part, x, codes in zip(parts, numeric, categorical, strict=True)
    )
    return Tabular(train_rows, validation_rows, test_rows, cardinalities, substituted)


def _normalize(parts: Sequence[Columns]) -> list[NDArray[np.float32]]:
    from sklearn.preprocessing import QuantileTransformer

    if not parts[0].numeric.shape[1]:
        return [part.numeric.astype(np.float32) for part in parts]
    means = np.nanmean(parts[0].numeric, axis=0)
    filled = [np.where(np.isnan(part.numeric), means, part.numeric) for part in parts]
    quantiles = max(min(len(filled[0]) // 30, 1000), 10)
    settings: Any = {"output_distribution": "normal", "subsample": 10**9, "random_state": 42}
    transformer: Any = QuantileTransformer(n_quantiles=quantiles, **settings)  # type: ignore[no-untyped-call]
    transformer.fit(filled[0])
    return [transformer.transform(columns).astype(np.float32) for columns in filled]


def _encode(parts: Sequence[Columns]) -> tuple[list[Ints], tuple[int, ...]]:
    """Return the category codes of each part and the number of codes of each column."""
    from sklearn.preprocessing import OrdinalEncoder

    if not parts[0].categorical.shape[1]:
        return [np.empty(part.categorical.shape, np.int64) for part in parts], ()
    settings: Any = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "dtype": np.int64}
    encoder: Any = OrdinalEncoder(**settings).fit(parts[0].categorical)  # type: ignore[no-untyped-call]
    # Unknown categories are encoded as -1, so the shift turns them into 0.
    codes = [encoder.transform(part.categorical) + 1 for part in parts]
    return codes, tuple(len(known) + 1 for known in encoder.categories_)


def read_adult(_: Path) -> Tabular:
    """Read the table that is shipped with the package."""
    data = load_adult()

    def part(rows: Ints) -> Columns:
        return Columns(
            data.numeric[rows], data.categorical[rows], data.labels[rows], data.male[rows]
        )

    return prepare(part(data.train), part(data.val), part(data.test))


def read_higgs_part(path: Path) -> Tabular:
    """Read a compact npz file whose training rows replace the original ones."""
    arrays = read_arrays(path)
    parts = [
        _numeric_columns(arrays[f"x_{part}"].astype(np.float64), arrays[f"y_{part}"])
        for part in ("train", "val", "test")
    ]
    return prepare(*parts, substituted=True)


def read_higgs_archive(path: Path) -> Tabular:
    """Read the paper's own split from the archive of the FT-Transformer's authors.

    Its files are in a folder ``higgs_small``, at any depth.
    """
    found: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        # Iterate once: seeking backwards in a compressed archive decompresses it again.
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            is_wanted = folder.rpartition("/")[2] == "higgs_small" and name in SPLIT_FILES
            if is_wanted and (file := archive.extractfile(member)) is not None:
                found[name] = file.read()
    if missing := [name for name in SPLIT_FILES if name not in found]:
        raise ValueError(f"the archive has no higgs_small/{missing[0]}")
    return _read_split(found)


def read_higgs_folder(path: Path) -> Tabular:
    """Read the paper's own split from the unpacked archive."""
    return _read_split({name: (path / name).read_bytes() for name in SPLIT_FILES})


def _read_split(files: Mapping[str, bytes]) -> Tabular:
    arrays = {name: np.load(io.BytesIO(data), allow_pickle=False) for name, data in files.items()}
    parts = [
        _numeric_columns(arrays[f"N_{part}.npy"].astype(np.float64), arrays[f"y_{part}.npy"])
        for part in ("train", "val", "test")
    ]
    return prepare(*parts)


def read_click_csv(path: Path) -> Tabular:
    """Read a compressed CSV file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",", ndmin=2)
    target = names.index("click")
    x = np.delete(table, target, axis=1)
    return _split_in_three(x, table[:, target], as_large_as_test=True)


def read_openml_arrays(path: Path, *, as_large_as_test: bool) -> Tabular:
    """Read an npz file saved after a download from OpenML."""
    arrays = read_arrays(path)
    return _split_in_three(arrays["x"], arrays["y"], as_large_as_test=as_large_as_test)


def read_openml_arff(path: Path, target: str, *, as_large_as_test: bool) -> Tabular:
    """Read an ARFF file downloaded from OpenML."""
    require_sklearn("reading ARFF files")
    # SciPy is a dependency of scikit-learn.
    from scipy.io.arff import loadarff  # type: ignore[import-untyped]

    table, _ = loadarff(path)
    columns = {name: table[name].astype(np.float64) for name in table.dtype.names}
    y = columns.pop(target)
    x = np.column_stack(list(columns.values()))
    return _split_in_three(x, y, as_large_as_test=as_large_as_test)


def _split_in_three(x: Floats, y: Floats, *, as_large_as_test: bool) -> Tabular:
    """Hold out test rows, then validation rows, and prepare the three parts.

    The test part is a fifth. The validation part has as many rows, or a fifth of the rest.
    """
    rest, test = split(y, -(-len(y) // 5))
    train, validation = split(y[rest], len(test) if as_large_as_test else len(rest) // 5)
    parts = (rest[train], rest[validation], test)
    return prepare(*(_numeric_columns(x[rows], y[rows]) for rows in parts))


def _numeric_columns(x: Floats, y: NDArray[Any]) -> Columns:
    return Columns(x, np.empty((len(x), 0), np.str_), y)


def split(labels: NDArray[Any], n: int) -> tuple[Ints, Ints]:
    """Split rows into those to keep and `n` to hold out, stratified by label.

    The rows are those of scikit-learn's StratifiedShuffleSplit with seed 0.
    """
    require_sklearn("splitting data")
    from sklearn.model_selection import train_test_split

    kept, held_out = train_test_split(
        np.arange(len(labels)), test_size=n, random_state=0, stratify=labels
    )
    return kept, held_out
