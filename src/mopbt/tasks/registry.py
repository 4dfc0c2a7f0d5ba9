"""Find, download, verify and prepare the data sets of the paper's tasks.

`DATASETS` lists them. A data set is searched for in `folder`, else in the folder given by the
environment variable MOPBT_DATA, else in the cache folder. A missing one is downloaded if its
publisher allows it. Prepared arrays are cached under the checksum of their source.
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
from mopbt.tasks.datasets import PARTS, ImageRows, Images, Rows, Tabular, TabularRows, read_arrays
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
    SPLIT_FILES,
    read_adult,
    read_click_csv,
    read_higgs_archive,
    read_higgs_folder,
    read_higgs_part,
    read_openml_arff,
    read_openml_arrays,
)

# Version of splitting and preparation. Cached arrays of another version are ignored.
RECIPE = 1
SHIPPED = Path(__file__).parent / "data"

State = Literal["shipped", "present", "missing"]


@dataclass(frozen=True)
class Form:
    """Describe a file or folder from which a data set can be read.

    Attributes:
        path: A file, or a folder that contains everything in `needs`.
        read: Reads and prepares the data.
        holds: How much of the data set it contains.
        lacks: What of the paper's data is left out or replaced; empty if nothing is.
        sha256: Checksum of the file, if known.
        needs: Names that must exist inside the folder.
    """

    path: str
    read: Callable[[Path], Tabular | Images]
    holds: str
    lacks: str = ""
    sha256: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """Describe a data set, where it comes from and how to get it.

    Attributes:
        kind: The type that loading returns.
        forms: Files or folders it can be read from, most complete first.
        source: Address of the publisher.
        license: License of the data.
        wanted: What to put into the data folder if it is missing.
        fetch: Downloads a form to a path, if the publisher allows it.
        fetched: The number of the form that it downloads.
        shipped: Whether the data is part of the package.
    """

    kind: type[Tabular] | type[Images]
    forms: tuple[Form, ...]
    source: str
    license: str
    wanted: str = ""
    fetch: Callable[[Path], None] | None = None
    fetched: int = 0
    shipped: bool = False


def load_tabular(name: str, folder: Path | str | None = None) -> Tabular:
    """Load and prepare "adult", "higgs" or "click".

    Raises:
        DataMissing: If the data is neither present nor downloadable; the message says what to
            put where.
    """
    return cast(Tabular, _load(name, folder, Tabular))


def load_images(name: str, folder: Path | str | None = None) -> Images:
    """Load and prepare "cifar10", "cifar100" or "celeba".

    Raises:
        DataMissing: If the data is neither present nor downloadable; the message says what to
            put where.
    """
    return cast(Images, _load(name, folder, Images))


def state(name: str, folder: Path | str | None = None) -> State:
    """Return whether a data set is shipped with the package, present or missing."""
    dataset = _get_dataset(name)
    if dataset.shipped:
        return "shipped"
    return "present" if _find_form(dataset, data_folder(folder)) else "missing"


def explain(name: str, folder: Path | str | None = None) -> str:
    """Describe the data that is present, or how to get it."""
    dataset = _get_dataset(name)
    place = data_folder(folder)
    form = _find_form(dataset, place)
    if form is not None:
        return f"{form.path}, {form.holds}"
    automatic = "downloaded on first use, or " if dataset.fetch else ""
    return f"{automatic}{_manual_download(dataset, place)}"


def partial_data(name: str, folder: Path | str | None = None) -> str:
    """Return which of the present data are partial or substituted.

    The result is empty if none are.
    """
    form = _find_form(_get_dataset(name), data_folder(folder))
    return f"{form.path} has {form.lacks}" if form is not None and form.lacks else ""


def complete_data(name: str, folder: Path | str | None = None) -> str:
    """Return how to get the complete data."""
    return _manual_download(_get_dataset(name), data_folder(folder))


def data_folder(folder: Path | str | None) -> Path:
    """Return the folder in which data sets are searched for."""
    return Path(folder or os.environ.get("MOPBT_DATA") or cache_folder()).expanduser()


def cache_folder() -> Path:
    """Return the folder for downloads and prepared arrays; it is safe to delete."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mopbt"


def _get_dataset(name: str) -> DataSet:
    if name not in DATASETS:
        raise ValueError(f"`name` must be one of {', '.join(map(repr, DATASETS))}, got {name!r}")
    return DATASETS[name]


def _find_form(dataset: DataSet, place: Path) -> Form | None:
    """Return the most complete form that is present."""
    place = SHIPPED if dataset.shipped else place
    for form in dataset.forms:
        if all((place / form.path / part).exists() for part in form.needs or ("",)):
            return form
    return None


def _load(
    name: str, folder: Path | str | None, kind: type[Tabular] | type[Images]
) -> Tabular | Images:
    dataset = _get_dataset(name)
    if dataset.kind is not kind:
        names = ", ".join(repr(name) for name, other in DATASETS.items() if other.kind is kind)
        raise ValueError(f"`name` must be one of {names}, got {name!r}")
    place = data_folder(folder)
    form = _find_form(dataset, place) or _fetch(name, place)
    path = (SHIPPED if dataset.shipped else place) / form.path
    digest = _digest(path)
    if form.sha256 not in ("", digest):
        raise DataMissing(
            f"{path} is damaged or a different file: its sha256 is {digest}, "
            f"expected {form.sha256}; download it again"
        )
    cached = cache_folder() / "prepared" / f"{name}-{RECIPE}-{digest[:16]}.npz"
    data = _read_cache(cached, kind)
    if data is None:
        data = _read(form, path)
        _write_cache(cached, data)
    return data


def _digest(path: Path) -> str:
    """Return the sha256 of a file, or of the names, sizes and times in a folder."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    # A folder can have 200,000 files, which are too slow to read just to identify it.
    seen = hashlib.sha256()
    for part in sorted(path.rglob("*")):
        about = part.stat()
        seen.update(f"{part.relative_to(path)}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return seen.hexdigest()


def _read(form: Form, path: Path) -> Tabular | Images:
    try:
        return form.read(path)
    except MopbtError:
        raise
    # Damaged bytes can make a reader raise any exception.
    except Exception as error:
        raise DataMissing(
            f"cannot read {path}: {_reason(error)}; download it again or delete it"
        ) from error


def _fetch(name: str, place: Path) -> Form:
    """Download a data set."""
    dataset = _get_dataset(name)
    remedy = _manual_download(dataset, place)
    if dataset.fetch is None:
        raise DataMissing(f"data set {name!r} not found: {remedy}")
    form = dataset.forms[dataset.fetched]
    try:
        place.mkdir(parents=True, exist_ok=True)
        dataset.fetch(place / form.path)
    except (OSError, ValueError, HTTPException) as error:
        raise DataMissing(
            f"data set {name!r} not found, and the download failed ({_reason(error)}): {remedy}"
        ) from error
    return form


def _manual_download(dataset: DataSet, place: Path) -> str:
    return f"put {dataset.wanted} into {place}, or set MOPBT_DATA to another folder"


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().rstrip(".")


def _download(url: str, sha256: str, target: Path) -> None:
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with urlopen(url, timeout=60) as response, temporary.open("wb") as file:
            shutil.copyfileobj(response, file, 2**20)
        if (digest := _digest(temporary)) != sha256:
            raise OSError(f"the file from {url} has the sha256 {digest}, expected {sha256}")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _download_openml(number: int, target: Path) -> None:
    require_sklearn("downloading from OpenML")
    from sklearn.datasets import fetch_openml

    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        # scikit-learn warns before each retry. A download that still fails raises.
        warnings.filterwarnings("ignore", "A network error|Invalid cache")
        found = fetch_openml(
            data_id=number, as_frame=False, parser="liac-arff", data_home=home, n_retries=1
        )
    _save(target, {"x": found.data.astype(np.float64), "y": found.target.astype(np.float64)})


def _save(target: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to an npz file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **cast(Any, arrays))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_cache(path: Path, data: Tabular | Images) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for part in PARTS:
        for name, column in vars(vars(data)[part]).items():
            if column is not None:
                arrays[f"{part}.{name}"] = column
    if isinstance(data, Tabular):
        arrays["cardinalities"] = np.array(data.cardinalities, np.int64)
        arrays["substituted"] = np.array(data.substituted)
    # The cache only saves time, so a folder that cannot be written is no error.
    with suppress(OSError):
        _save(path, arrays)


def _read_cache(path: Path, kind: type[Tabular] | type[Images]) -> Tabular | Images | None:
    """Read prepared arrays; return None if they are missing or damaged."""
    try:
        arrays = read_arrays(path)
        if kind is Images:
            return Images(*(_rows(ImageRows, arrays, part) for part in PARTS))
        train, validation, test = (_rows(TabularRows, arrays, part) for part in PARTS)
        cardinalities = tuple(arrays["cardinalities"].tolist())
        return Tabular(train, validation, test, cardinalities, bool(arrays["substituted"]))
    # Damaged bytes can make numpy raise any exception. The data is then prepared again.
    except Exception:
        return None


def _rows(kind: type[Rows], arrays: Mapping[str, NDArray[Any]], part: str) -> Rows:
    columns: dict[str, Any] = {
        field.name: arrays[f"{part}.{field.name}"]
        for field in fields(kind)
        if field.name != "sensitive"
    }
    return kind(**columns, sensitive=arrays.get(f"{part}.sensitive"))


CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR = "https://www.cs.toronto.edu/~kriz"
CIFAR10_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
CIFAR100_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"

HIGGS_SPLIT = "all 98,050 rows in the paper's split"
CIFAR_PART = (
    "8,000 of 40,000 images for training, 2,000 of 10,000 for validation and 2,000 of 10,000 for "
    "testing"
)

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
            Form("data.tar.gz", read_higgs_archive, HIGGS_SPLIT),
            Form("data/higgs_small", read_higgs_folder, HIGGS_SPLIT, needs=SPLIT_FILES),
            Form("higgs_small", read_higgs_folder, HIGGS_SPLIT, needs=SPLIT_FILES),
            Form(
                "openml-23512.npz",
                partial(read_openml_arrays, as_large_as_test=False),
                "all 98,050 rows, split by mopbt",
            ),
            Form("openml-23512.arff", _higgs, "all 98,050 rows, split by mopbt"),
            Form(
                "higgs_small_part.npz",
                read_higgs_part,
                "the paper's validation and test rows; 15,716 other rows for training",
                lacks="15,716 substituted rows instead of the paper's 62,752 training rows",
                sha256="008894544bee4da1a12447f55d4392e4209a4019ccdfff6eb3f2bbdc9e7a856b",
            ),
        ),
        source="https://www.openml.org/d/23512",
        license="CC BY 4.0 (Whiteson 2014)",
        wanted=(
            "the archive data.tar.gz of Gorishniy et al. 2021 (Revisiting Deep Learning Models for "
            "Tabular Data), unpacked or not, or the ARFF file of https://www.openml.org/d/23512, "
            "saved as openml-23512.arff,"
        ),
        fetch=partial(_download_openml, 23512),
        fetched=3,
    ),
    "click": DataSet(
        kind=Tabular,
        forms=(
            Form(
                "openml-1220.npz",
                partial(read_openml_arrays, as_large_as_test=True),
                "all 39,948 rows, split by mopbt",
            ),
            Form("openml-1220.arff", _click, "all 39,948 rows, split by mopbt"),
            Form(
                "click_prediction_small.csv.gz",
                read_click_csv,
                "all 39,948 rows, split by mopbt",
                sha256="508b354ce2683f6dc7b6f0e4d3a321e1095f3f0bfe3c81a7cdf0d6050423f098",
            ),
        ),
        source="https://www.openml.org/d/1220",
        license="none stated; public on OpenML (KDD Cup 2012, Tencent)",
        wanted="the ARFF file of https://www.openml.org/d/1220, saved as openml-1220.arff,",
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
                lacks=CIFAR_PART,
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
                lacks=CIFAR_PART,
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
                lacks="10,000 of 162,770 images for training, 2,000 of 19,867 for validation and "
                "3,000 of 19,962 for testing",
                sha256="61fd51424e4c0afcdd430f9548929be5a5b2108038edf92cbb328987b59a73f3",
            ),
        ),
        source="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        license="non-commercial research only, no redistribution (Liu et al. 2015)",
        wanted=(
            f"a folder celeba with {CELEBA_IMAGES}/, {CELEBA_ATTRIBUTES} and {CELEBA_PARTITION} "
            "from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
        ),
    ),
}
