"""Load and preprocess the Adult data set (Census Income, Becker and Kohavi 1996).

The target is whether a person earns more than 50,000 dollars a year. The columns are as published,
with the split of the paper's experiments. `Preprocessing` turns them into numbers and is fitted on
the training rows alone.
"""

import csv
import gzip
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import MissingExtra

NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORICAL = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native-country",
)
# Rows of the published file adult.data; the others are those of adult.test.
TRAINVAL = 32_561

Part = Literal["train", "val", "test"]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Adult:
    """Hold all 48,842 rows and their split, as read-only arrays.

    Attributes:
        numeric: Shape (n, 6), in the order of NUMERIC.
        categorical: Shape (n, 8), in the order of CATEGORICAL; a missing value is "?".
        labels: Shape (n,), whether the income is above 50K.
        male: Shape (n,), the sensitive attribute of the fairness metrics.
        train: Indices of the 26,048 training rows.
        val: Indices of the 6,513 validation rows.
        test: Indices of the 16,281 test rows.
    """

    numeric: NDArray[np.float64]
    categorical: NDArray[np.str_]
    labels: NDArray[np.bool_]
    male: NDArray[np.bool_]
    train: Rows
    val: Rows
    test: Rows

    def __post_init__(self) -> None:
        # All models of a process share one copy.
        for array in vars(self).values():
            array.flags.writeable = False

    def rows(self, part: Part) -> Rows:
        """Return the row indices of a part."""
        if part not in get_args(Part):
            raise ValueError(
                f"`part` must be one of {', '.join(map(repr, get_args(Part)))}, got {part!r}"
            )
        rows: Rows = vars(self)[part]
        return rows


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Standardize numeric columns and encode categorical ones.

    Create it with `Preprocessing.fit(data)`.

    Attributes:
        mean: Shape (6,).
        deviation: Shape (6,), standard deviations.
        categories: Sorted categories of each of the 8 categorical columns.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    categories: tuple[NDArray[np.str_], ...]

    @staticmethod
    def fit(data: Adult) -> "Preprocessing":
        """Fit means, deviations and categories to the training rows."""
        numeric = data.numeric[data.train]
        columns = data.categorical[data.train].T
        return Preprocessing(
            numeric.mean(axis=0),
            numeric.std(axis=0),
            tuple(np.unique(column) for column in columns),
        )

    def standardize(self, data: Adult, rows: Rows) -> NDArray[np.float64]:
        """Scale numeric columns to mean 0 and deviation 1 in training, shape (rows, 6)."""
        return np.asarray((data.numeric[rows] - self.mean) / self.deviation)

    def codes(self, data: Adult, rows: Rows) -> NDArray[np.int64]:
        """Encode the categorical columns as integers, shape (rows, 8).

        A category that is absent from training gets the code after the last.
        """
        columns = [
            _encode(data.categorical[rows, j], known) for j, known in enumerate(self.categories)
        ]
        return np.column_stack(columns)

    def one_hot(self, data: Adult, rows: Rows) -> NDArray[np.float64]:
        """Encode the categorical columns as indicators, shape (rows, 102).

        A category that is absent from training has no indicator.
        """
        codes = self.codes(data, rows)
        blocks = [codes[:, [j]] == np.arange(len(known)) for j, known in enumerate(self.categories)]
        return np.hstack(blocks).astype(np.float64)


def _encode(column: NDArray[np.str_], known: NDArray[np.str_]) -> NDArray[np.int64]:
    codes = np.searchsorted(known, column).clip(max=len(known) - 1)
    return np.where(known[codes] == column, codes, len(known))


@cache
def load_adult() -> Adult:
    """Load the Adult data, once per process."""
    columns = _read_columns()
    labels = columns["income"] == ">50K"
    train, val = _split(labels[:TRAINVAL])
    return Adult(
        numeric=np.column_stack([columns[name].astype(np.float64) for name in NUMERIC]),
        categorical=np.column_stack([columns[name] for name in CATEGORICAL]),
        labels=labels,
        male=columns["sex"] == "Male",
        train=train,
        val=val,
        test=np.arange(TRAINVAL, len(labels)),
    )


def _read_columns() -> dict[str, NDArray[np.str_]]:
    packed = files("mopbt.tasks").joinpath("data", "adult.csv.gz").read_bytes()
    head, *rows = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
    return {
        name: np.array(column) for name, column in zip(head, zip(*rows, strict=True), strict=True)
    }


def _split(labels: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Split rows into training and validation as FT-Transformer and the paper do."""
    require_sklearn("splitting the Adult data")
    from sklearn.model_selection import train_test_split

    split: list[Any] = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=1, stratify=labels
    )
    return split[0], split[1]


def require_sklearn(what: str) -> None:
    """Raise MissingExtra unless scikit-learn is installed, without importing it."""
    if find_spec("sklearn") is None:
        raise MissingExtra(f"{what} needs scikit-learn: pip install 'mopbt[sklearn]'")
