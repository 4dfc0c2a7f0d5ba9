"""Serialize state trees: nested dicts and lists with scalars, arrays and tensors.

The bytes are a safetensors file, which other programs can open, with the structure of the tree as
JSON in its metadata. Nothing is pickled, so loading executes no code. Equal trees give equal bytes.

The file format is written here and not by the safetensors package, because the low-level functions
of that package have changed between versions. The tests read our files with it.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any, Literal

import numpy as np

from mopbt.limits import HEADER_BYTES

# The key that marks nodes which plain JSON cannot express.
_KIND = "~"
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
_NAMES = {code: name for name, code in _CODES.items()}

# Arrays with fewer bytes are written together.
_CHUNK = 2**20

# What reading a damaged or hostile file may raise.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)

# Bytes that need not be copied to be written.
Bytes = bytearray | memoryview
# The types that a tensor of 32 bits can be rounded to.
Half = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class Leaf:
    """An array or tensor of a tree: what it is, and how to read its bytes.

    Bytes are read when they are needed, so that a large tree is never in memory twice. `was` is
    the type of a tensor that was rounded to half precision.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Bytes]
    was: str = ""

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return math.prod(self.shape) * _item_size(self.dtype)


def dumps(tree: Any) -> bytes:
    """Serialize dicts, lists, tuples, scalars, numpy arrays and PyTorch tensors."""
    header, leaves = _lay_out(tree)
    return b"".join([header, *(leaf.read() for leaf in leaves)])


def dump_to(tree: Any, file: IO[bytes]) -> None:
    """Write what `dumps` returns to a file, one array after the other."""
    header, leaves = _lay_out(tree)
    waiting = bytearray(header)
    for leaf in leaves:
        if leaf.size < _CHUNK:
            waiting += leaf.read()
        else:
            file.write(waiting)
            file.write(leaf.read())
            waiting = bytearray()
        if len(waiting) >= _CHUNK:
            file.write(waiting)
            waiting = bytearray()
    file.write(waiting)


def size_of(tree: Any) -> int:
    """Return the length of what `dumps` returns, without making it."""
    header, leaves = _lay_out(tree)
    return len(header) + sum(leaf.size for leaf in leaves)


def loads(data: bytes) -> Any:
    """Restore the tree that `dumps` serialized."""
    view = memoryview(data)
    return _read_tree(lambda begin, size: bytearray(view[begin : begin + size]), len(view))


def load_from(file: IO[bytes]) -> Any:
    """Restore a tree from a file, one array after the other."""
    return _read_tree(*_parts_of(file))


def rewrite(
    source: IO[bytes], target: IO[bytes], change: Callable[[Any], Any], half: Half | None = None
) -> None:
    """Copy a serialized tree with a change, without reading it as a whole.

    `change` gets the tree with a `Leaf` in the place of each array and tensor, and returns another
    tree with some of them. With `half`, tensors of 32 bits are rounded to 16, and `loads` gives
    them their type back. A tensor whose values float16 cannot hold stays as it is.
    """
    tree = change(_read_tree(*_parts_of(source), lambda leaf: leaf))
    dump_to(tree if half is None else _halved(tree, half), target)


def _lay_out(tree: Any) -> tuple[bytes, list[Leaf]]:
    """Return the header of a file, and the arrays that follow it."""
    leaves: dict[str, Leaf] = {}
    shape = json.dumps(_encode(tree, "", leaves), separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"mopbt": shape}}
    offset = 0
    for name, leaf in leaves.items():
        header[name] = {
            "dtype": _CODES[leaf.dtype],
            "shape": leaf.shape,
            "data_offsets": [offset, offset + leaf.size],
        }
        offset += leaf.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, list(leaves.values())


# Reads bytes: the first one, and how many.
_Read = Callable[[int, int], bytearray]


def _read_tree(read: _Read, size_of_file: int, decode: Callable[[Leaf], Any] | None = None) -> Any:
    """Restore a tree whose arrays are read in order, and decoded by `decode`."""
    try:
        length = int.from_bytes(read(0, min(8, size_of_file)), "little")
        begin = 8 + length
        header = json.loads(read(8, min(length, HEADER_BYTES, size_of_file - 8)))
        shape = json.loads(header.pop("__metadata__")["mopbt"])
        size = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except _DAMAGED:
        raise ValueError(
            "not a state tree of mopbt: the bytes do not start with its header; pass bytes that "
            "`dumps` returned"
        ) from None
    found = size_of_file - begin
    if found != size:
        raise ValueError(
            f"the state tree is damaged: its arrays must have {size} bytes, got {found}"
        )
    try:
        entries = {name: _check_entry(entry, begin) for name, entry in header.items()}
        return _Decoder(read, entries, decode or _decode_leaf).decode(shape)
    except _DAMAGED as error:
        raise ValueError(f"the state tree is damaged: {type(error).__name__}: {error}") from None


# The dtype and shape of an array in a file, and its first byte.
_Entry = tuple[str, tuple[int, ...], int]


def _check_entry(entry: dict[str, Any], begin: int) -> _Entry:
    """Return an array of a file; ValueError if its shape does not fit its bytes."""
    first, last = entry["data_offsets"]
    dtype = _NAMES[entry["dtype"]]
    shape = tuple(entry["shape"])
    size = math.prod(shape) * _item_size(dtype)
    if min(shape, default=0) < 0 or size != last - first or first < 0:
        raise ValueError(f"an array of shape {shape} does not have {last - first} bytes")
    return dtype, shape, begin + first


def _item_size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _parts_of(file: IO[bytes]) -> tuple[_Read, int]:
    """Return a function that reads parts of a file, and its size."""

    def read(begin: int, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        file.seek(begin)
        done = 0
        while done < size:
            # Binary files have `readinto`, which makes no copy.
            part = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not part:
                raise ValueError(f"the file ends {size - done} bytes too early")
            done += part
        return data

    end_of_file = 2
    return read, file.seek(0, end_of_file)


def _halved(node: Any, half: Half) -> Any:
    """Round the tensors of a tree of leaves."""
    if isinstance(node, Leaf):
        return _halved_leaf(node, half)
    if isinstance(node, dict):
        return {key: _halved(value, half) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_halved(value, half) for value in node)
    return node


def _halved_leaf(leaf: Leaf, half: Half) -> Leaf:
    import torch

    if leaf.kind != "tensor" or leaf.dtype != "float32" or not leaf.size:
        return leaf
    type_of = {"float16": torch.float16, "bfloat16": torch.bfloat16}[half]

    def rounded() -> Any:
        return torch.frombuffer(leaf.read(), dtype=torch.float32).to(type_of)

    values = torch.frombuffer(leaf.read(), dtype=torch.float32)
    if bool((values.isfinite() & ~values.to(type_of).isfinite()).any()):
        return leaf
    return replace(leaf, dtype=half, read=lambda: _bytes_of(rounded()), was=leaf.dtype)


def is_pickle(data: bytes) -> bool:
    """Return whether bytes look like a pickle, without reading it.

    The checkpoints of scikit-learn's estimators are pickles.
    """
    return data[:1] == b"\x80" and data[-1:] == b"."


def is_tensor(node: Any) -> bool:
    """Check whether a leaf is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(node, torch.Tensor)


def _encode(node: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    match node:
        case None | bool() | str() | int():
            return node
        case np.ndarray() | np.generic():
            return _encode_array(node, path, leaves)
        case float():
            return node if math.isfinite(node) else {_KIND: "float", "value": repr(node)}
        case list() | tuple():
            items = [_encode(item, _join(path, i), leaves) for i, item in enumerate(node)]
            return items if isinstance(node, list) else {_KIND: "tuple", "items": items}
        case dict():
            return _encode_dict(node, path, leaves)
        case bytes():
            return {_KIND: "bytes", "value": node.hex()}
    leaf = node if isinstance(node, Leaf) else _tensor_leaf(node, path)
    return _add_leaf(leaves, path, leaf)


def _encode_dict(node: dict[Any, Any], path: str, leaves: dict[str, Leaf]) -> Any:
    if isinstance(node, Counter):
        # Some learning rate schedulers keep one in their state.
        return {_KIND: "counter", "items": _encode_dict(dict(node), path, leaves)}
    items = [(key, _encode(value, _join(path, key), leaves)) for key, value in node.items()]
    if all(isinstance(key, str) for key in node) and _KIND not in node:
        return dict(items)
    if all(isinstance(key, str | int) and not isinstance(key, bool) for key in node):
        return {_KIND: "dict", "items": [list(item) for item in items]}
    raise TypeError(
        f"the keys of a checkpoint's dicts must be strings or whole numbers, got {list(node)!r} "
        f"{_describe(path)}"
    )


def _encode_array(node: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    array = np.asarray(node)
    if array.dtype.name not in _CODES:
        raise TypeError(
            f"the dtype of a checkpoint's arrays must be one of {', '.join(_CODES)}, got "
            f"{array.dtype} {_describe(path)}"
        )
    kind = "scalar" if isinstance(node, np.generic) else "array"

    def read() -> Bytes:
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return plain.reshape(-1).view(np.uint8).data

    return _add_leaf(leaves, path, Leaf(kind, array.dtype.name, array.shape, read))


def _tensor_leaf(node: Any, path: str) -> Leaf:
    if not is_tensor(node):
        raise TypeError(
            f"a checkpoint can hold dicts, lists, tuples, scalars, numpy arrays and PyTorch "
            f"tensors, got {type(node).__name__} {_describe(path)}"
        )
    dtype = str(node.dtype).removeprefix("torch.")
    if dtype not in _CODES:
        raise TypeError(
            f"the dtype of a checkpoint's tensors must be one of {', '.join(_CODES)}, got {dtype} "
            f"{_describe(path)}"
        )
    if node.layout is not sys.modules["torch"].strided:
        raise TypeError(
            f"a checkpoint's tensors must be dense, got {node.layout} {_describe(path)}; call "
            f"`to_dense()`"
        )
    return Leaf("tensor", dtype, tuple(node.shape), lambda: _bytes_of(node))


def _bytes_of(tensor: Any) -> Bytes:
    """Return the bytes of a tensor, without a copy if their order allows it."""
    plain = tensor.detach().cpu().contiguous()
    # Tensors with at most one element may have a stride of 0, which `view` rejects.
    flat = plain.as_strided((plain.numel(),), (1,))
    data: Bytes = flat.view(sys.modules["torch"].uint8).numpy().data
    return data


def _add_leaf(leaves: dict[str, Leaf], path: str, leaf: Leaf) -> dict[str, Any]:
    """Store a leaf under a unique name and return its node."""
    name = path or "value"
    copies = 1
    # Paths are not unique: {"a.b": x, "a": {"b": y}} has two leaves "a.b".
    while name in leaves or name == "__metadata__":
        copies += 1
        name = f"{path}#{copies}"
    leaves[name] = leaf
    node = {_KIND: leaf.kind, "name": name}
    return node | {"was": leaf.was} if leaf.was else node


class _Decoder:
    """Rebuilds a tree from its JSON form and the arrays of a file."""

    def __init__(
        self, read: _Read, entries: Mapping[str, _Entry], decode_leaf: Callable[[Leaf], Any]
    ) -> None:
        self._read = read
        self._entries = entries
        self._decode_leaf = decode_leaf

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        if _KIND not in node:
            return {key: self.decode(value) for key, value in node.items()}
        return self._decode_marked(node)

    def _decode_marked(self, node: dict[str, Any]) -> Any:
        """Decode a node that plain JSON cannot express."""
        match node[_KIND]:
            case "float":
                return float(node["value"])
            case "bytes":
                return bytes.fromhex(node["value"])
            case "tuple":
                return tuple(self.decode(item) for item in node["items"])
            case "dict":
                return {key: self.decode(value) for key, value in node["items"]}
            case "counter":
                return Counter(self.decode(node["items"]))
            case kind:
                return self._decode_leaf(self._leaf(kind, node))

    def _leaf(self, kind: str, node: dict[str, Any]) -> Leaf:
        dtype, shape, begin = self._entries[node["name"]]
        size = math.prod(shape) * _item_size(dtype)
        was = str(node.get("was", ""))
        if was and was not in _CODES:
            raise ValueError(f"unknown type {was!r}")
        return Leaf(kind, dtype, shape, lambda: self._read(begin, size), was)


def _decode_leaf(leaf: Leaf) -> Any:
    if leaf.kind == "tensor":
        return _decode_tensor(leaf)
    dtype = np.dtype(leaf.dtype).newbyteorder("<")
    array = np.frombuffer(leaf.read(), dtype=dtype).reshape(leaf.shape)
    return array[()] if leaf.kind == "scalar" else array


def _decode_tensor(leaf: Leaf) -> Any:
    import torch

    stored, wanted = (getattr(torch, name) for name in (leaf.dtype, leaf.was or leaf.dtype))
    if not leaf.size:
        return torch.empty(leaf.shape, dtype=wanted)
    return torch.frombuffer(leaf.read(), dtype=stored).reshape(leaf.shape).to(wanted)


def _describe(path: str) -> str:
    return f"at {path!r}" if path else "at its root"


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
