"""The data of the paper's tasks: where they come from, how they are split, and how columns become numbers.

`DATASETS` is the table of them. A data set is looked for in `folder`, or in the folder that the environment variable MOPBT_DATA
names, or in the cache folder; one that is in none is downloaded where its publisher allows that. What was prepared is kept in the
cache folder, under the checksum of what it was made from.
"""

import gzip
import hashlib
import io
import os
import pickle
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import DataMissing, MissingExtra, MopbtError
from mopbt.rng import stream
from mopbt.tasks.adult import load_adult, require_sklearn

RECIPE = 1  # of splitting and preparing; what the cache has of another one is not used
SHIPPED = Path(__file__).parent / "data"
PARTS = ("train", "validation", "test")

State = Literal["shipped", "present", "missing"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


# What a task gets.


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
    cardinalities: tuple[int, ...]  # (c,), how many codes each categorical column has, that of unseen categories included
    substituted: bool = False  # the training rows are not the original ones, but others of the same kind


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


def subset(part: Rows, n: int, seed: int) -> Rows:
    """Return `n` rows of a part, in their order, with the shares of classes and sensitive groups that the part has."""
    labels = part.target if isinstance(part, TabularRows) else part.y
    if not 1 <= n <= len(labels):
        raise ValueError(f"`n` must be from 1 to the number of rows {len(labels)}, got {n!r}")
    groups = labels if part.sensitive is None else labels * 2 + part.sensitive
    rng = stream(seed, "subset")
    rows = [rng.permutation(np.flatnonzero(groups == group))[:quota] for group, quota in _quotas(groups, n)]
    chosen = np.sort(np.concatenate(rows))
    columns = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: column[chosen] for name, column in columns.items() if column is not None})


def _quotas(groups: Ints, n: int) -> Iterable[tuple[int, int]]:
    """Share `n` rows out: whole numbers as near to the groups' shares as they can be."""
    names, counts = np.unique(groups, return_counts=True)
    exact = counts * n
    quotas = exact // len(groups)
    most = np.argsort(-(exact % len(groups)), kind="stable")[: n - quotas.sum()]  # those that lost most by rounding down
    quotas[most] += 1
    return zip(names.tolist(), quotas.tolist(), strict=True)


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
    licence: str
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


def _loaded(name: str, folder: Path | str | None, kind: type[Tabular] | type[Images]) -> Tabular | Images:
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
        raise DataMissing(f"{path} is damaged, or another file: its sha256 is {digest}, not {form.sha256}; get it anew")
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
        raise DataMissing(f"{path} cannot be read: {_reason(error)}. Get it anew, or remove it") from error


def _fetched(name: str, place: Path) -> Form:
    known = _known(name)
    if known.fetch is None:
        raise DataMissing(f"the data set {name!r} is not here: put {known.wanted} into {place}; MOPBT_DATA names another folder")
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
        warnings.filterwarnings("ignore", "A network error|Invalid cache")  # it tries again; what does not help is told at the end
        found = fetch_openml(data_id=number, as_frame=False, parser="liac-arff", data_home=home, n_retries=1)
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


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _to_cache(path: Path, data: Tabular | Images) -> None:
    arrays = {
        f"{part}.{field.name}": column
        for part in PARTS
        for field in fields(getattr(data, part))
        if (column := getattr(getattr(data, part), field.name)) is not None
    }
    if isinstance(data, Tabular):
        arrays |= {"cardinalities": np.array(data.cardinalities, np.int64), "substituted": np.array(data.substituted)}
    with suppress(OSError):  # without a cache all goes as well, if slower
        _save(path, arrays)


def _from_cache(path: Path, kind: type[Tabular] | type[Images]) -> Tabular | Images | None:
    try:
        arrays = _arrays(path)
        if kind is Images:
            return Images(*(_rows(ImageRows, arrays, part) for part in PARTS))
        train, validation, test = (_rows(TabularRows, arrays, part) for part in PARTS)
        return Tabular(train, validation, test, tuple(arrays["cardinalities"].tolist()), bool(arrays["substituted"]))
    except Exception:  # there is none, or it is damaged, which can make a reader raise anything: it is made anew
        return None


def _rows(kind: type[Rows], arrays: Mapping[str, NDArray[Any]], part: str) -> Rows:
    columns: dict[str, Any] = {field.name: arrays[f"{part}.{field.name}"] for field in fields(kind) if field.name != "sensitive"}
    return kind(**columns, sensitive=arrays.get(f"{part}.sensitive"))


# Tables.


class Columns(NamedTuple):
    """A part of a table as it was published."""

    numeric: Floats  # (n, f), NaN where a value is missing
    categorical: NDArray[np.str_]  # (n, c), where a missing value is a category
    target: NDArray[Any]  # (n,)
    sensitive: NDArray[Any] | None = None  # (n,)


def prepare(train: Columns, validation: Columns, test: Columns, *, substituted: bool = False) -> Tabular:
    """Turn columns into numbers; what that takes is learned from the training rows alone.

    Missing numbers become the mean; numeric columns are made normal by their quantiles, as in the paper's experiments; categories
    are numbered in alphabetical order.
    """
    require_sklearn("preparing tables")
    parts = (train, validation, test)
    numeric, (categorical, cardinalities) = _made_normal(parts), _numbered(parts)
    rows = (
        TabularRows(x, codes, part.target.astype(np.int64), None if part.sensitive is None else part.sensitive.astype(np.int64))
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
    return [encoder.transform(part.categorical) + 1 for part in parts], tuple(len(known) + 1 for known in encoder.categories_)


def _read_adult(_: Path) -> Tabular:
    data = load_adult()

    def part(rows: Ints) -> Columns:
        return Columns(data.numeric[rows], data.categorical[rows], data.labels[rows], data.male[rows])

    return prepare(part(data.train), part(data.val), part(data.test))


def _read_higgs_part(path: Path) -> Tabular:
    arrays = _arrays(path)
    parts = [_all_numeric(arrays[f"x_{part}"].astype(np.float64), arrays[f"y_{part}"]) for part in ("train", "val", "test")]
    return prepare(*parts, substituted=True)


def _read_click_csv(path: Path) -> Tabular:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",", ndmin=2)
    target = names.index("click")
    return _split_in_three(np.delete(table, target, axis=1), table[:, target], as_large_as_test=True)


def _read_openml_arrays(path: Path, *, as_large_as_test: bool) -> Tabular:
    arrays = _arrays(path)
    return _split_in_three(arrays["x"], arrays["y"], as_large_as_test=as_large_as_test)


def _read_openml_arff(path: Path, target: str, *, as_large_as_test: bool) -> Tabular:
    require_sklearn("reading ARFF files")
    from scipy.io.arff import loadarff  # type: ignore[import-untyped]  # comes with scikit-learn

    table, _ = loadarff(path)
    columns = {name: table[name].astype(np.float64) for name in table.dtype.names}
    y = columns.pop(target)
    return _split_in_three(np.column_stack(list(columns.values())), y, as_large_as_test=as_large_as_test)


def _split_in_three(x: Floats, y: Floats, *, as_large_as_test: bool) -> Tabular:
    """Set a fifth apart for testing and then, for validation, as many rows or a fifth of what is left."""
    rest, test = _split(y, -(-len(y) // 5))
    train, validation = _split(y[rest], len(test) if as_large_as_test else len(rest) // 5)
    return prepare(*(_all_numeric(x[rows], y[rows]) for rows in (rest[train], rest[validation], test)))


def _all_numeric(x: Floats, y: NDArray[Any]) -> Columns:
    return Columns(x, np.empty((len(x), 0), np.str_), y)


def _split(labels: NDArray[Any], n: int) -> tuple[Ints, Ints]:
    """Return rows to keep and `n` rows to set apart, stratified, as scikit-learn's StratifiedShuffleSplit has them from seed 0."""
    require_sklearn("splitting data")
    from sklearn.model_selection import train_test_split

    kept, apart = train_test_split(np.arange(len(labels)), test_size=n, random_state=0, stratify=labels)
    return kept, apart


# Images.


def _read_cifar(path: Path, folder: str, train: Sequence[str], test: str, labels: str) -> Images:
    wanted = (*train, test)
    files = _unpacked(path, folder, wanted) if path.is_file() else {name: (path / name).read_bytes() for name in wanted}
    x, y = zip(*(_batch(files[name], labels.encode()) for name in train), strict=True)
    return _with_validation(np.concatenate(x), np.concatenate(y), ImageRows(*_batch(files[test], labels.encode()), None))


def _unpacked(path: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    found, wanted = {}, {f"{folder}/{name}": name for name in names}
    with tarfile.open(path) as archive:
        for member in archive:  # in one go: an archive that is compressed cannot be read backwards
            if member.name in wanted and (file := archive.extractfile(member)) is not None:
                found[wanted[member.name]] = file.read()
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"it has no {folder}/{missing[0]}")
    return found


def _batch(data: bytes, labels: bytes) -> tuple[NDArray[np.uint8], Ints]:
    """Return the images (n, 3, 32, 32) and the classes (n,) of a pickled batch, as its publisher made it."""
    batch = ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    x, y = np.asarray(batch[b"data"]), np.asarray(batch[labels], np.int64)
    if x.dtype != np.uint8 or x.shape != (len(y), 3072):
        raise ValueError(f"a batch must be bytes of shape ({len(y)}, 3072), got {x.dtype} of shape {x.shape}")
    return x.reshape(-1, 3, 32, 32), y


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of arrays and plain types, and nothing that could run code."""

    _rebuilt = np.empty(0).__reduce__()[0]  # the function that pickled arrays name
    _allowed: Mapping[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _rebuilt,
        ("numpy._core.multiarray", "_reconstruct"): _rebuilt,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return what arrays are made of, and refuse everything else."""
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays and plain types are read")
        return self._allowed[module, name]


def _read_cifar_part(path: Path) -> Images:
    arrays = _arrays(path)
    test = ImageRows(_channels_first(arrays["x_test"]), arrays["y_test"].astype(np.int64), None)
    return _with_validation(_channels_first(arrays["x_train"]), arrays["y_train"].astype(np.int64), test)


def _with_validation(x: NDArray[np.uint8], y: Ints, test: ImageRows) -> Images:
    train, validation = _split(y, len(y) // 5)
    return Images(ImageRows(x[train], y[train], None), ImageRows(x[validation], y[validation], None), test)


def _read_celeba_part(path: Path) -> Images:
    arrays = _arrays(path)

    def part(name: str) -> ImageRows:
        labels = (arrays[f"{what}_{name}"].astype(np.int64) for what in ("attractive", "male"))
        return ImageRows(_channels_first(arrays[f"x_{name}"]), *labels)

    return Images(part("train"), part("val"), part("test"))


def _read_celeba(path: Path) -> Images:
    """Read the official partitions; shrinking all 202,599 images takes minutes, but only once."""
    attributes = _celeba_attributes((path / CELEBA_ATTRIBUTES).read_text(encoding="utf-8"))
    parts: tuple[list[str], ...] = ([], [], [])
    for line in (path / CELEBA_PARTITION).read_text(encoding="utf-8").splitlines():
        name, part = line.split()
        parts[int(part)].append(name)
    rows = []
    for names in parts:
        labels = np.array([attributes[name] for name in names], np.int64).reshape(-1, 2)
        rows.append(ImageRows(_shrunk([path / CELEBA_IMAGES / name for name in names]), labels[:, 0], labels[:, 1]))
    return Images(*rows)


def _celeba_attributes(text: str) -> dict[str, tuple[bool, bool]]:
    """Return "Attractive" and "Male" by the names of images."""
    count, head, *lines = text.splitlines()
    if len(lines) != int(count):
        raise ValueError(f"{CELEBA_ATTRIBUTES} must have {int(count)} rows, as its first line says, got {len(lines)}")
    target, sensitive = (head.split().index(name) + 1 for name in ("Attractive", "Male"))
    table = map(str.split, lines)
    return {row[0]: (row[target] == "1", row[sensitive] == "1") for row in table}


def _shrunk(files: Sequence[Path]) -> NDArray[np.uint8]:
    """Return images (n, 3, height, width) whose short side is 32: the aligned ones, 178 x 218, become 32 x 39."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("reading CelebA's images needs Pillow: pip install pillow") from None
    images = []
    for file in files:
        with Image.open(file) as image:
            short = min(image.size)
            width, height = (32 * side // short for side in image.size)
            images.append(np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)))
    return _channels_first(np.stack(images))


def _channels_first(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


# The table.

CELEBA_IMAGES, CELEBA_ATTRIBUTES, CELEBA_PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR = "https://www.cs.toronto.edu/~kriz"
CIFAR10_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
CIFAR100_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"

_higgs = partial(_read_openml_arff, target="class", as_large_as_test=False)
_click = partial(_read_openml_arff, target="click", as_large_as_test=True)
_cifar10 = partial(_read_cifar, folder="cifar-10-batches-py", train=CIFAR10_BATCHES, test="test_batch", labels="labels")
_cifar100 = partial(_read_cifar, folder="cifar-100-python", train=("train",), test="test", labels="fine_labels")

DATASETS: Mapping[str, DataSet] = {
    "adult": DataSet(
        kind=Tabular,
        forms=(
            Form(
                "adult.csv.gz",
                _read_adult,
                "the paper's split of 48,842 rows",
                sha256="020e937679cdc52788c5245ee380b93586fdfdcbd89503550194edbfa5a35831",
            ),
        ),
        source="https://doi.org/10.24432/C5XW20",
        licence="CC BY 4.0 (Becker and Kohavi 1996)",
        shipped=True,
    ),
    "higgs": DataSet(
        kind=Tabular,
        forms=(
            Form("openml-23512.npz", partial(_read_openml_arrays, as_large_as_test=False), "all 98,050 rows, a split of our own"),
            Form("openml-23512.arff", _higgs, "all 98,050 rows, a split of our own"),
            Form(
                "higgs_small_part.npz",
                _read_higgs_part,
                "the paper's validation and test rows; 15,716 other rows for training",
                sha256="008894544bee4da1a12447f55d4392e4209a4019ccdfff6eb3f2bbdc9e7a856b",
            ),
        ),
        source="https://www.openml.org/d/23512",
        licence="CC BY 4.0 (Whiteson 2014)",
        wanted="the ARFF file of https://www.openml.org/d/23512, as openml-23512.arff,",
        fetch=partial(_download_openml, 23512),
    ),
    "click": DataSet(
        kind=Tabular,
        forms=(
            Form("openml-1220.npz", partial(_read_openml_arrays, as_large_as_test=True), "all 39,948 rows, a split of our own"),
            Form("openml-1220.arff", _click, "all 39,948 rows, a split of our own"),
            Form(
                "click_prediction_small.csv.gz",
                _read_click_csv,
                "all 39,948 rows, a split of our own",
                sha256="508b354ce2683f6dc7b6f0e4d3a321e1095f3f0bfe3c81a7cdf0d6050423f098",
            ),
        ),
        source="https://www.openml.org/d/1220",
        licence="none stated; public on OpenML (KDD Cup 2012, Tencent)",
        wanted="the ARFF file of https://www.openml.org/d/1220, as openml-1220.arff,",
        fetch=partial(_download_openml, 1220),
    ),
    "cifar10": DataSet(
        kind=Images,
        forms=(
            Form("cifar-10-python.tar.gz", _cifar10, "all 60,000 images", sha256=CIFAR10_SHA256),
            Form("cifar-10-batches-py", _cifar10, "all 60,000 images", needs=(*CIFAR10_BATCHES, "test_batch")),
            Form(
                "cifar10_12k.npz",
                _read_cifar_part,
                "10,000 of the training and 2,000 of the test images",
                sha256="47ad88f46bd22634f06c0765c1f54124e005ee32a3cc34fcee3a0edf62f6c581",
            ),
        ),
        source=f"{CIFAR}/cifar.html",
        licence="none stated; cite Krizhevsky 2009",
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
                _read_cifar_part,
                "10,000 of the training and 2,000 of the test images",
                sha256="67ca1bc3d6350572d55b6cfe95a296b17d1264004597f03ad12f4dd11e7b2201",
            ),
        ),
        source=f"{CIFAR}/cifar.html",
        licence="none stated; cite Krizhevsky 2009",
        wanted=f"cifar-100-python.tar.gz from {CIFAR}/cifar.html, unpacked or not,",
        fetch=partial(_download, f"{CIFAR}/cifar-100-python.tar.gz", CIFAR100_SHA256),
    ),
    "celeba": DataSet(
        kind=Images,
        forms=(
            Form("celeba", _read_celeba, "all images", needs=(CELEBA_IMAGES, CELEBA_ATTRIBUTES, CELEBA_PARTITION)),
            Form(
                "celeba_15k_39x32.npz",
                _read_celeba_part,
                "15,000 of the 202,599 images, in the official partitions",
                sha256="61fd51424e4c0afcdd430f9548929be5a5b2108038edf92cbb328987b59a73f3",
            ),
        ),
        source="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        licence="for non-commercial research only, and not to be passed on (Liu et al. 2015)",
        wanted=(
            f"a folder celeba with {CELEBA_IMAGES}/, {CELEBA_ATTRIBUTES} and {CELEBA_PARTITION} "
            "from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
        ),
    ),
}
