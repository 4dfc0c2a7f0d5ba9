"""Read images from publishers' archives and compact files as uint8 (n, 3, H, W)."""

import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.errors import MissingExtra
from mopbt.tasks.datasets import ImageRows, Images, Ints, read_arrays
from mopbt.tasks.tabular_io import split

CELEBA_IMAGES = "img_align_celeba"
CELEBA_ATTRIBUTES = "list_attr_celeba.txt"
CELEBA_PARTITION = "list_eval_partition.txt"


def read_cifar(path: Path, folder: str, train: Sequence[str], test: str, labels: str) -> Images:
    """Read the publisher's archive, or the folder it unpacks to."""
    names = (*train, test)
    if path.is_file():
        files = _extract(path, folder, names)
    else:
        files = {name: (path / name).read_bytes() for name in names}
    batches = [_read_batch(files[name], labels.encode()) for name in train]
    x, y = zip(*batches, strict=True)
    return _hold_out_validation(
        np.concatenate(x),
        np.concatenate(y),
        ImageRows(*_read_batch(files[test], labels.encode()), None),
    )


def _extract(path: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the named files, which the archive keeps in `folder`."""
    wanted = {f"{folder}/{name}": name for name in names}
    found = {}
    with tarfile.open(path) as archive:
        # Iterate once: seeking backwards in a compressed archive decompresses it again.
        for member in archive:
            if member.name in wanted and (file := archive.extractfile(member)) is not None:
                found[wanted[member.name]] = file.read()
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"the archive has no {folder}/{missing[0]}")
    return found


def _read_batch(data: bytes, labels: bytes) -> tuple[NDArray[np.uint8], Ints]:
    """Return the images (n, 3, 32, 32) and classes (n,) of a pickled CIFAR batch."""
    batch = ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    x = np.asarray(batch[b"data"])
    y = np.asarray(batch[labels], np.int64)
    if x.dtype != np.uint8 or x.shape != (len(y), 3072):
        raise ValueError(
            f"a batch must be uint8 of shape ({len(y)}, 3072), got {x.dtype} of shape {x.shape}"
        )
    return x.reshape(-1, 3, 32, 32), y


class ArrayUnpickler(pickle.Unpickler):
    """Read pickles of arrays and plain types, and refuse anything that could run code."""

    # The function that a pickled array refers to.
    _reconstruct = np.empty(0).__reduce__()[0]
    _allowed: Mapping[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function that arrays consist of, and refuse any other."""
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(
                f"the pickle refers to {module}.{name}; only arrays and plain types are allowed"
            )
        return self._allowed[module, name]


def read_cifar_part(path: Path) -> Images:
    """Read a compact npz file with some of the images."""
    arrays = read_arrays(path)
    test = ImageRows(_channels_first(arrays["x_test"]), arrays["y_test"].astype(np.int64), None)
    return _hold_out_validation(
        _channels_first(arrays["x_train"]), arrays["y_train"].astype(np.int64), test
    )


def _hold_out_validation(x: NDArray[np.uint8], y: Ints, test: ImageRows) -> Images:
    train, validation = split(y, len(y) // 5)
    return Images(
        ImageRows(x[train], y[train], None), ImageRows(x[validation], y[validation], None), test
    )


def read_celeba_part(path: Path) -> Images:
    """Read a compact npz file with some of the images."""
    arrays = read_arrays(path)

    def part(name: str) -> ImageRows:
        target = arrays[f"attractive_{name}"].astype(np.int64)
        sensitive = arrays[f"male_{name}"].astype(np.int64)
        return ImageRows(_channels_first(arrays[f"x_{name}"]), target, sensitive)

    return Images(part("train"), part("val"), part("test"))


def read_celeba(path: Path) -> Images:
    """Read the official partitions.

    The first time, resizing 202,599 images takes minutes.
    """
    attributes = _read_celeba_attributes((path / CELEBA_ATTRIBUTES).read_text(encoding="utf-8"))
    parts: tuple[list[str], ...] = ([], [], [])
    for line in (path / CELEBA_PARTITION).read_text(encoding="utf-8").splitlines():
        name, part = line.split()
        parts[int(part)].append(name)
    rows = []
    for names in parts:
        labels = np.array([attributes[name] for name in names], np.int64).reshape(-1, 2)
        x = _resize([path / CELEBA_IMAGES / name for name in names])
        rows.append(ImageRows(x, labels[:, 0], labels[:, 1]))
    return Images(*rows)


def _read_celeba_attributes(text: str) -> dict[str, tuple[bool, bool]]:
    """Return the attributes "Attractive" and "Male" of each image by name."""
    count, head, *lines = text.splitlines()
    if len(lines) != int(count):
        raise ValueError(
            f"{CELEBA_ATTRIBUTES} must have {int(count)} rows, as its first line says, "
            f"got {len(lines)}"
        )
    target, sensitive = (head.split().index(name) + 1 for name in ("Attractive", "Male"))
    table = map(str.split, lines)
    return {row[0]: (row[target] == "1", row[sensitive] == "1") for row in table}


def _resize(files: Sequence[Path]) -> NDArray[np.uint8]:
    """Return images (n, 3, height, width) whose shorter side is 32 pixels.

    The aligned images of 178 x 218 pixels become 32 x 39.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("reading CelebA's images needs Pillow: pip install pillow") from None
    images = []
    for file in files:
        with Image.open(file) as image:
            short = min(image.size)
            width, height = (32 * side // short for side in image.size)
            rgb = image.convert("RGB")
            images.append(np.asarray(rgb.resize((width, height), Image.Resampling.BILINEAR)))
    return _channels_first(np.stack(images))


def _channels_first(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
