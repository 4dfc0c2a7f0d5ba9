"""Reading images: the publishers' archives and the compact files, as arrays of bytes (n, 3, height, width)."""

import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import MissingExtra
from mopbt.tasks.datasets import ImageRows, Images, Ints, arrays_in
from mopbt.tasks.tabular_io import split

CELEBA_IMAGES, CELEBA_ATTRIBUTES, CELEBA_PARTITION = (
    "img_align_celeba",
    "list_attr_celeba.txt",
    "list_eval_partition.txt",
)


def read_cifar(path: Path, folder: str, train: Sequence[str], test: str, labels: str) -> Images:
    """Read the publisher's archive, or the folder that it unpacks to."""
    wanted = (*train, test)
    files = (
        _unpacked(path, folder, wanted)
        if path.is_file()
        else {name: (path / name).read_bytes() for name in wanted}
    )
    x, y = zip(*(_batch(files[name], labels.encode()) for name in train), strict=True)
    return _with_validation(
        np.concatenate(x), np.concatenate(y), ImageRows(*_batch(files[test], labels.encode()), None)
    )


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
        raise ValueError(
            f"a batch must be bytes of shape ({len(y)}, 3072), got {x.dtype} of shape {x.shape}"
        )
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
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, and only arrays and plain types are read"
            )
        return self._allowed[module, name]


def read_cifar_part(path: Path) -> Images:
    """Read a compact file of some of the images."""
    arrays = arrays_in(path)
    test = ImageRows(_channels_first(arrays["x_test"]), arrays["y_test"].astype(np.int64), None)
    return _with_validation(
        _channels_first(arrays["x_train"]), arrays["y_train"].astype(np.int64), test
    )


def _with_validation(x: NDArray[np.uint8], y: Ints, test: ImageRows) -> Images:
    train, validation = split(y, len(y) // 5)
    return Images(
        ImageRows(x[train], y[train], None), ImageRows(x[validation], y[validation], None), test
    )


def read_celeba_part(path: Path) -> Images:
    """Read a compact file of some of the images."""
    arrays = arrays_in(path)

    def part(name: str) -> ImageRows:
        labels = (arrays[f"{what}_{name}"].astype(np.int64) for what in ("attractive", "male"))
        return ImageRows(_channels_first(arrays[f"x_{name}"]), *labels)

    return Images(part("train"), part("val"), part("test"))


def read_celeba(path: Path) -> Images:
    """Read the official partitions; shrinking all 202,599 images takes minutes, but only once."""
    attributes = _celeba_attributes((path / CELEBA_ATTRIBUTES).read_text(encoding="utf-8"))
    parts: tuple[list[str], ...] = ([], [], [])
    for line in (path / CELEBA_PARTITION).read_text(encoding="utf-8").splitlines():
        name, part = line.split()
        parts[int(part)].append(name)
    rows = []
    for names in parts:
        labels = np.array([attributes[name] for name in names], np.int64).reshape(-1, 2)
        rows.append(
            ImageRows(
                _shrunk([path / CELEBA_IMAGES / name for name in names]), labels[:, 0], labels[:, 1]
            )
        )
    return Images(*rows)


def _celeba_attributes(text: str) -> dict[str, tuple[bool, bool]]:
    """Return "Attractive" and "Male" by the names of images."""
    count, head, *lines = text.splitlines()
    if len(lines) != int(count):
        raise ValueError(
            f"{CELEBA_ATTRIBUTES} must have {int(count)} rows, as its first line says, got {len(lines)}"
        )
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
            images.append(
                np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR))
            )
    return _channels_first(np.stack(images))


def _channels_first(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
