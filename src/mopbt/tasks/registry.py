"""The data of the paper's tasks: where they come from, how they are split, and how columns become numbers.

`DATASETS` is the table of them. A data set is looked for in `folder`, or in the folder that the environment variable MOPBT_DATA
names, or in the cache folder; one that is in none is downloaded where its publisher allows that. What was prepared is kept in the
cache folder, under the checksum of what it was made from.
"""

import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, cast
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import DataMissing, MopbtError
from mopbt.tasks.adult import require_sklearn
from mopbt.tasks.datasets import PARTS, ImageRows, Images, Rows, Tabular, TabularRows, arrays_in
from mopbt.tasks.image_io import (
    CELEBA_ATTRIBUTES,
    CELEBA_IMAGES,
    CELEBA_PARTITION,
    read_celeba,
    read_celeba_part,
    read_cifar,
    read_cifar_part,
)
from mopbt.tasks.tabular_io import (
    read_adult,
    read_click_csv,
    read_higgs_part,
    read_openml_arff,
    read_openml_arrays,
)

RECIPE = 1  # of splitting and preparing; what the cache has of another one is not used
SHIPPED = Path(__file__).parent / "data"

State = Literal["shipped", "present", "missing"]
Floats = NDArray[np.float64]


def load_tabular(name: str, folder: Path | str | None = None) -> Tabular:
    """Return "adult", "higgs" or "click", prepared; raise DataMissing, which says what to put where, if it cannot be had."""
    return cast(Tabular, _loaded(name, folder, Tabular))


def load_images(name: str, folder: Path | str | None = None) -> Images:
    """Return "cifar10", "cifar100" or "celeba"; raise DataMissing, which says what to put where, if it cannot be had."""
    return cast(Images, _loaded(name, folder, Images))


def state(name: str, folder: Path | str | None = None) -> State:
    """Tell whether a data set comes with the package, is in the folder, or is missing."""
    known = _known(name)
    if known.shipped:
        return "shipped"
    return "present" if _found(known, folder_of(folder)) else "missing"


def explain(name: str, folder: Path | str | None = None) -> str:
    """Return what is there of a data set, or how to get it."""
    known, place = _known(name), folder_of(folder)
    form = _found(known, place)
    if form is None:
        fetched = "downloaded when it is needed, or: " if known.fetch else ""
        return f"{fetched}put {known.wanted} into {place} (MOPBT_DATA names another folder)"
    return f"{form.path}, {form.holds}"


# What there is.


@dataclass(frozen=True)
class Form:
    """One of the ways in which a data set can lie in a folder."""

    path: str  # a file, or a folder that holds what `needs` says
    read: Callable[[Path], Tabular | Images]
    holds: str  # how much of the data set
    sha256: str = ""  # of the file, where it is known
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A data set: its forms, best first, and how a person gets it."""

    kind: type[Tabular] | type[Images]
    forms: tuple[Form, ...]
    source: str
    license: str
    wanted: str = ""  # what to put into the folder
    fetch: Callable[[Path], None] | None = None  # writes the first form to a path
    shipped: bool = False


def folder_of(folder: Path | str | None) -> Path:
    """Return the folder in which data sets are looked for."""
    return Path(folder or os.environ.get("MOPBT_DATA") or cache_folder()).expanduser()


def cache_folder() -> Path:
    """Return the folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mopbt"


def _known(name: str) -> DataSet:
    if name not in DATASETS:
        raise ValueError(f"`name` must be one of {', '.join(map(repr, DATASETS))}, got {name!r}")
    return DATASETS[name]


def _found(known: DataSet, place: Path) -> Form | None:
    place = SHIPPED if known.shipped else place
    for form in known.forms:
        if all((place / form.path / part).exists() for part in form.needs or ("",)):
            return form
    return None


def _loaded(
    name: str, folder: Path | str | None, kind: type[Tabular] | type[Images]
) -> Tabular | Images:
    known, place = _known(name), folder_of(folder)
    if known.kind is not kind:
        names = ", ".join(repr(name) for name, other in DATASETS.items() if other.kind is kind)
        raise ValueError(f"`name` must be one of {names}, got {name!r}")
    form = _found(known, place) or _fetched(name, place)
    path = (SHIPPED if known.shipped else place) / form.path
    digest = _checked(form, path)
    cached = cache_folder() / "prepared" / f"{name}-{RECIPE}-{digest[:16]}.npz"
    data = _from_cache(cached, kind)
    if data is None:
        data = _read(form, path)
        _to_cache(cached, data)
    return data


def _checked(form: Form, path: Path) -> str:
    """Return the checksum of what a form is in, and raise DataMissing if it is known to be another."""
    digest = _digest(path)
    if form.sha256 not in ("", digest):
        raise DataMissing(
            f"{path} is damaged, or another file: its sha256 is {digest}, not {form.sha256}; get it anew"
        )
    return digest


def _digest(path: Path) -> str:
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    seen = hashlib.sha256()  # of a folder, which can have 200,000 files, what the system tells
    for part in sorted(path.rglob("*")):
        about = part.stat()
        seen.update(f"{part.relative_to(path)}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return seen.hexdigest()


def _read(form: Form, path: Path) -> Tabular | Images:
    try:
        return form.read(path)
    except MopbtError:
        raise
    except Exception as error:  # damaged bytes can make a reader raise anything
        raise DataMissing(
            f"{path} cannot be read: {_reason(error)}. Get it anew, or remove it"
        ) from error


def _fetched(name: str, place: Path) -> Form:
    known = _known(name)
    if known.fetch is None:
        raise DataMissing(
            f"the data set {name!r} is not here: put {known.wanted} into {place}; MOPBT_DATA names another folder"
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        known.fetch(place / known.forms[0].path)
    except (OSError, ValueError, HTTPException) as error:
        raise DataMissing(
            f"the data set {name!r} is not here and could not be downloaded ({_reason(error)}): "
            f"put {known.wanted} into {place}; MOPBT_DATA names another folder"
        ) from error
    return known.forms[0]


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().rstrip(".")


def _download(url: str, sha256: str, target: Path) -> None:
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with urlopen(url, timeout=60) as response, temporary.open("wb") as file:
            shutil.copyfileobj(response, file, 2**20)
        if (digest := _digest(temporary)) != sha256:
            raise OSError(f"what {url} sent has the sha256 {digest}, not {sha256}")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _download_openml(number: int, target: Path) -> None:
    require_sklearn("downloading from OpenML")
    from sklearn.datasets import fetch_openml

    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "A network error|Invalid cache"
        )  # it tries again; what does not help is told at the end
        found = fetch_openml(
            data_id=number, as_frame=False, parser="liac-arff", data_home=home, n_retries=1
        )
    _save(target, {"x": found.data.astype(np.float64), "y": found.target.astype(np.float64)})


# The cache.


def _save(target: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file of arrays that is there whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **cast(Any, arrays))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _to_cache(path: Path, data: Tabular | Images) -> None:
    arrays = {
        f"{part}.{field.name}": column
        for part in PARTS
        for field in fields(getattr(data, part))
        if (column := getattr(getattr(data, part), field.name)) is not None
    }
    if isinstance(data, Tabular):
        arrays |= {
            "cardinalities": np.array(data.cardinalities, np.int64),
            "substituted": np.array(data.substituted),
        }
    with suppress(OSError):  # without a cache all goes as well, if slower
        _save(path, arrays)


def _from_cache(path: Path, kind: type[Tabular] | type[Images]) -> Tabular | Images | None:
    try:
        arrays = arrays_in(path)
        if kind is Images:
            return Images(*(_rows(ImageRows, arrays, part) for part in PARTS))
        train, validation, test = (_rows(TabularRows, arrays, part) for part in PARTS)
        return Tabular(
            train,
            validation,
            test,
            tuple(arrays["cardinalities"].tolist()),
            bool(arrays["substituted"]),
        )
    except (
        Exception
    ):  # there is none, or it is damaged, which can make a reader raise anything: it is made anew
        return None


def _rows(kind: type[Rows], arrays: Mapping[str, NDArray[Any]], part: str) -> Rows:
    columns: dict[str, Any] = {
        field.name: arrays[f"{part}.{field.name}"]
        for field in fields(kind)
        if field.name != "sensitive"
    }
    return kind(**columns, sensitive=arrays.get(f"{part}.sensitive"))


# The table.

CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR = "https://www.cs.toronto.edu/~kriz"
CIFAR10_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
CIFAR100_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"

_higgs = partial(read_openml_arff, target="class", as_large_as_test=False)
_click = partial(read_openml_arff, target="click", as_large_as_test=True)
_cifar10 = partial(
    read_cifar,
    folder="cifar-10-batches-py",
    train=CIFAR10_BATCHES,
    test="test_batch",
    labels="labels",
)
_cifar100 = partial(
    read_cifar, folder="cifar-100-python", train=("train",), test="test", labels="fine_labels"
)

DATASETS: Mapping[str, DataSet] = {
    "adult": DataSet(
        kind=Tabular,
        forms=(
            Form(
                "adult.csv.gz",
                read_adult,
                "the paper's split of 48,842 rows",
                sha256="020e937679cdc52788c5245ee380b93586fdfdcbd89503550194edbfa5a35831",
            ),
        ),
        source="https://doi.org/10.24432/C5XW20",
        license="CC BY 4.0 (Becker and Kohavi 1996)",
        shipped=True,
    ),
    "higgs": DataSet(
        kind=Tabular,
        forms=(
            Form(
                "openml-23512.npz",
                partial(read_openml_arrays, as_large_as_test=False),
                "all 98,050 rows, a split of our own",
            ),
            Form("openml-23512.arff", _higgs, "all 98,050 rows, a split of our own"),
            Form(
                "higgs_small_part.npz",
                read_higgs_part,
                "the paper's validation and test rows; 15,716 other rows for training",
                sha256="008894544bee4da1a12447f55d4392e4209a4019ccdfff6eb3f2bbdc9e7a856b",
            ),
        ),
        source="https://www.openml.org/d/23512",
        license="CC BY 4.0 (Whiteson 2014)",
        wanted="the ARFF file of https://www.openml.org/d/23512, as openml-23512.arff,",
        fetch=partial(_download_openml, 23512),
    ),
    "click": DataSet(
        kind=Tabular,
        forms=(
            Form(
                "openml-1220.npz",
                partial(read_openml_arrays, as_large_as_test=True),
                "all 39,948 rows, a split of our own",
            ),
            Form("openml-1220.arff", _click, "all 39,948 rows, a split of our own"),
            Form(
                "click_prediction_small.csv.gz",
                read_click_csv,
                "all 39,948 rows, a split of our own",
                sha256="508b354ce2683f6dc7b6f0e4d3a321e1095f3f0bfe3c81a7cdf0d6050423f098",
            ),
        ),
        source="https://www.openml.org/d/1220",
        license="none stated; public on OpenML (KDD Cup 2012, Tencent)",
        wanted="the ARFF file of https://www.openml.org/d/1220, as openml-1220.arff,",
        fetch=partial(_download_openml, 1220),
    ),
    "cifar10": DataSet(
        kind=Images,
        forms=(
            Form("cifar-10-python.tar.gz", _cifar10, "all 60,000 images", sha256=CIFAR10_SHA256),
            Form(
                "cifar-10-batches-py",
                _cifar10,
                "all 60,000 images",
                needs=(*CIFAR10_BATCHES, "test_batch"),
            ),
            Form(
                "cifar10_12k.npz",
                read_cifar_part,
                "10,000 of the training and 2,000 of the test images",
                sha256="47ad88f46bd22634f06c0765c1f54124e005ee32a3cc34fcee3a0edf62f6c581",
            ),
        ),
        source=f"{CIFAR}/cifar.html",
        license="none stated; cite Krizhevsky 2009",
        wanted=f"cifar-10-python.tar.gz from {CIFAR}/cifar.html, unpacked or not,",
        fetch=partial(_download, f"{CIFAR}/cifar-10-python.tar.gz", CIFAR10_SHA256),
    ),
    "cifar100": DataSet(
        kind=Images,
        forms=(
            Form("cifar-100-python.tar.gz", _cifar100, "all 60,000 images", sha256=CIFAR100_SHA256),
            Form("cifar-100-python", _cifar100, "all 60,000 images", needs=("train", "test")),
            Form(
                "cifar100_12k.npz",
                read_cifar_part,
                "10,000 of the training and 2,000 of the test images",
                sha256="67ca1bc3d6350572d55b6cfe95a296b17d1264004597f03ad12f4dd11e7b2201",
            ),
        ),
        source=f"{CIFAR}/cifar.html",
        license="none stated; cite Krizhevsky 2009",
        wanted=f"cifar-100-python.tar.gz from {CIFAR}/cifar.html, unpacked or not,",
        fetch=partial(_download, f"{CIFAR}/cifar-100-python.tar.gz", CIFAR100_SHA256),
    ),
    "celeba": DataSet(
        kind=Images,
        forms=(
            Form(
                "celeba",
                read_celeba,
                "all images",
                needs=(CELEBA_IMAGES, CELEBA_ATTRIBUTES, CELEBA_PARTITION),
            ),
            Form(
                "celeba_15k_39x32.npz",
                read_celeba_part,
                "15,000 of the 202,599 images, in the official partitions",
                sha256="61fd51424e4c0afcdd430f9548929be5a5b2108038edf92cbb328987b59a73f3",
            ),
        ),
        source="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        license="for non-commercial research only, and not to be passed on (Liu et al. 2015)",
        wanted=(
            f"a folder celeba with {CELEBA_IMAGES}/, {CELEBA_ATTRIBUTES} and {CELEBA_PARTITION} "
            "from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
        ),
    ),
}
