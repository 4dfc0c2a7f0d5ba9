"""The Adult data (Census Income, Becker and Kohavi 1996): does a person earn more than 50,000 dollars a year?

The raw columns come as they were published, with the split of the paper's experiments; `Preprocessing` turns them into numbers and
is fitted on the training rows alone.
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
TRAINVAL = 32_561  # rows of adult.data; the rest is adult.test

Part = Literal["train", "val", "test"]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Adult:
    """All 48,842 rows, and which of them are for training, validation and testing; the arrays cannot be written to."""

    numeric: NDArray[np.float64]  # (n, 6), in the order of NUMERIC
    categorical: NDArray[
        np.str_
    ]  # (n, 8), in the order of CATEGORICAL; a missing value is the category "?"
    labels: NDArray[np.bool_]  # (n,), more than 50K
    male: NDArray[np.bool_]  # (n,), the sex, which fairness is measured by
    train: Rows  # (26048,)
    val: Rows  # (6513,)
    test: Rows  # (16281,)

    def __post_init__(self) -> None:
        for array in vars(self).values():
            array.flags.writeable = False  # one copy serves all models of a process

    def rows(self, part: Part) -> Rows:
        """Return the row numbers of a part of the data."""
        if part not in get_args(Part):
            raise ValueError(
                f"`part` must be one of {', '.join(map(repr, get_args(Part)))}, got {part!r}"
            )
        rows: Rows = getattr(self, part)
        return rows


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """How columns become numbers: standardized, coded or one-hot. Make one with `Preprocessing.fit(data)`."""

    mean: NDArray[np.float64]  # (6,)
    deviation: NDArray[np.float64]  # (6,)
    categories: tuple[NDArray[np.str_], ...]  # 8 sorted lists

    @staticmethod
    def fit(data: Adult) -> "Preprocessing":
        """Learn means, deviations and categories from the training rows."""
        numeric, columns = data.numeric[data.train], data.categorical[data.train].T
        return Preprocessing(
            numeric.mean(axis=0),
            numeric.std(axis=0),
            tuple(np.unique(column) for column in columns),
        )

    def standardized(self, data: Adult, rows: Rows) -> NDArray[np.float64]:
        """Return the numeric columns with mean 0 and deviation 1 in training, shape (rows, 6)."""
        return np.asarray((data.numeric[rows] - self.mean) / self.deviation)

    def codes(self, data: Adult, rows: Rows) -> NDArray[np.int64]:
        """Return the categorical columns as numbers, shape (rows, 8); one that training lacks gets the code after the last."""
        columns = [
            _coded(data.categorical[rows, j], known) for j, known in enumerate(self.categories)
        ]
        return np.column_stack(columns)

    def one_hot(self, data: Adult, rows: Rows) -> NDArray[np.float64]:
        """Return an indicator for each known category, shape (rows, 102); a category that training lacks has none."""
        codes = self.codes(data, rows)
        blocks = [codes[:, [j]] == np.arange(len(known)) for j, known in enumerate(self.categories)]
        return np.hstack(blocks).astype(np.float64)


def _coded(column: NDArray[np.str_], known: NDArray[np.str_]) -> NDArray[np.int64]:
    codes = np.searchsorted(known, column).clip(max=len(known) - 1)
    return np.where(known[codes] == column, codes, len(known))


@cache
def load_adult() -> Adult:
    """Return the Adult data, read once in each process."""
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
    """Return the rows for training and validation that the paper's experiments used (those of FT-Transformer)."""
    require_sklearn("the split of the Adult data")
    from sklearn.model_selection import train_test_split

    split: list[Any] = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=1, stratify=labels
    )
    return split[0], split[1]


def require_sklearn(what: str) -> None:
    """Raise MissingExtra unless scikit-learn is installed; it is not imported yet."""
    if find_spec("sklearn") is None:
        raise MissingExtra(f"{what} needs scikit-learn: pip install 'mopbt[sklearn]'")
