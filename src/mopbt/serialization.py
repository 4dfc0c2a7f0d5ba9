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
from typing import Any

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

# What reading a damaged or hostile file may raise.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)

# The dtype, shape and little-endian data of an array or tensor.
Leaf = tuple[str, tuple[int, ...], bytes]


def dumps(tree: Any) -> bytes:
    """Serialize dicts, lists, tuples, scalars, numpy arrays and PyTorch tensors."""
    leaves: dict[str, Leaf] = {}
    shape = json.dumps(_encode(tree, "", leaves), separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"mopbt": shape}}
    offset = 0
    for name, (dtype, dims, data) in leaves.items():
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": dims,
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    arrays = [data for _, _, data in leaves.values()]
    return b"".join([len(text).to_bytes(8, "little"), text, *arrays])


def loads(data: bytes) -> Any:
    """Restore the tree that `dumps` serialized."""
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : min(end, 8 + HEADER_BYTES)])
        shape = json.loads(header.pop("__metadata__")["mopbt"])
        size = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except _DAMAGED:
        raise ValueError(
            "not a state tree of mopbt: the bytes do not start with its header; pass bytes that "
            "`dumps` returned"
        ) from None
    if len(data) - end != size:
        raise ValueError(
            f"the state tree is damaged: its arrays must have {size} bytes, got {len(data) - end}"
        )
    try:
        leaves = {name: _read_leaf(entry, memoryview(data)[end:]) for name, entry in header.items()}
        return _decode(shape, leaves)
    except _DAMAGED as error:
        raise ValueError(f"the state tree is damaged: {type(error).__name__}: {error}") from None


def _read_leaf(entry: dict[str, Any], arrays: memoryview) -> Leaf:
    """Return an array of a file; ValueError if its shape does not fit its bytes."""
    first, last = entry["data_offsets"]
    dtype = _NAMES[entry["dtype"]]
    shape = tuple(entry["shape"])
    bytes_each = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    if min(shape, default=0) < 0 or math.prod(shape) * bytes_each != last - first or first < 0:
        raise ValueError(f"an array of shape {shape} does not have {last - first} bytes")
    return dtype, shape, bytes(arrays[first:last])


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
    if is_tensor(node):
        return _encode_tensor(node, path, leaves)
    raise TypeError(
        f"a checkpoint can hold dicts, lists, tuples, scalars, numpy arrays and PyTorch tensors, "
        f"got {type(node).__name__} {_describe(path)}"
    )


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
    array = array.astype(array.dtype.newbyteorder("<"))
    name = _add_leaf(leaves, path, array.dtype.name, array.shape, array.tobytes())
    return {_KIND: "scalar" if isinstance(node, np.generic) else "array", "name": name}


def _encode_tensor(node: Any, path: str, leaves: dict[str, Leaf]) -> Any:
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
    tensor = node.detach().cpu().contiguous()
    # Tensors with at most one element may have a stride of 0, which `view` rejects.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    data = flat.view(sys.modules["torch"].uint8).numpy().tobytes()
    name = _add_leaf(leaves, path, dtype, tuple(tensor.shape), data)
    return {_KIND: "tensor", "name": name}


def _add_leaf(
    leaves: dict[str, Leaf], path: str, dtype: str, shape: tuple[int, ...], data: bytes
) -> str:
    """Store a leaf under a unique name and return the name."""
    name = path or "value"
    copies = 1
    # Paths are not unique: {"a.b": x, "a": {"b": y}} has two leaves "a.b".
    while name in leaves or name == "__metadata__":
        copies += 1
        name = f"{path}#{copies}"
    leaves[name] = (dtype, shape, data)
    return name


def _decode(node: Any, leaves: dict[str, Leaf]) -> Any:
    if isinstance(node, list):
        return [_decode(item, leaves) for item in node]
    if not isinstance(node, dict):
        return node
    if _KIND not in node:
        return {key: _decode(value, leaves) for key, value in node.items()}
    return _decode_marked(node, leaves)


def _decode_marked(node: dict[str, Any], leaves: dict[str, Leaf]) -> Any:
    """Decode a node that plain JSON cannot express."""
    match node[_KIND]:
        case "float":
            return float(node["value"])
        case "bytes":
            return bytes.fromhex(node["value"])
        case "tuple":
            return tuple(_decode(item, leaves) for item in node["items"])
        case "dict":
            return {key: _decode(value, leaves) for key, value in node["items"]}
        case "counter":
            return Counter(_decode(node["items"], leaves))
        case "tensor":
            return _decode_tensor(leaves[node["name"]])
        case kind:
            array = _decode_array(leaves[node["name"]])
            return array[()] if kind == "scalar" else array


def _decode_array(leaf: Leaf) -> Any:
    dtype, shape, data = leaf
    return np.frombuffer(bytearray(data), dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)


def _decode_tensor(leaf: Leaf) -> Any:
    import torch

    name, shape, data = leaf
    dtype = getattr(torch, name)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _describe(path: str) -> str:
    return f"at {path!r}" if path else "at its root"


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
