"""State trees to bytes and back: nested dicts, lists and scalars with arrays or tensors as leaves.

The bytes are a safetensors file, which other programs can open; the shape of the tree stands as JSON in its metadata. Nothing
is pickled, so loading executes nothing, and the same tree gives the same bytes. (The format is so short that it is written here:
the low-level functions of the safetensors package have changed between its versions, and the tests read our files with it.)
"""

import json
import math
import sys
from collections import Counter
from typing import Any

import numpy as np

_KIND = "~"  # marks the nodes that plain JSON lacks
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
}
_CODES |= {
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
_NAMES = {code: name for name, code in _CODES.items()}

Leaf = tuple[str, tuple[int, ...], bytes]  # dtype, shape, little-endian data


def dumps(tree: Any) -> bytes:
    """Return a tree of dicts, lists, tuples, scalars, numpy arrays and PyTorch tensors as bytes."""
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
    return b"".join(
        [len(text).to_bytes(8, "little"), text, *(data for _, _, data in leaves.values())]
    )


def loads(data: bytes) -> Any:
    """Return the tree that `dumps` made bytes of."""
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        shape = json.loads(header.pop("__metadata__")["mopbt"])
        size = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            "these bytes are not a state tree of mopbt: they do not begin with its header; `loads` reads what `dumps` wrote"
        ) from None
    if len(data) - end != size:
        raise ValueError(
            f"this state tree of mopbt is damaged: its arrays must take {size} bytes, got {len(data) - end}"
        )
    leaves = {
        name: (
            _NAMES[entry["dtype"]],
            tuple(entry["shape"]),
            data[end + entry["data_offsets"][0] : end + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }
    return _decode(shape, leaves)


def is_tensor(node: Any) -> bool:
    """Tell whether a leaf is a PyTorch tensor."""
    torch = sys.modules.get("torch")  # whoever holds a tensor has imported PyTorch
    return torch is not None and isinstance(node, torch.Tensor)


def _encode(node: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    match node:
        case None | bool() | str():
            return node
        case np.ndarray() | np.generic():
            return _encode_array(node, path, leaves)
        case int():
            return node
        case float():
            return node if math.isfinite(node) else {_KIND: "float", "value": repr(node)}
        case list():
            return [_encode(item, _join(path, i), leaves) for i, item in enumerate(node)]
        case tuple():
            return {
                _KIND: "tuple",
                "items": [_encode(item, _join(path, i), leaves) for i, item in enumerate(node)],
            }
        case dict():
            return _encode_dict(node, path, leaves)
        case bytes():
            return {_KIND: "bytes", "value": node.hex()}
    if is_tensor(node):
        return _encode_tensor(node, path, leaves)
    raise TypeError(
        f"a checkpoint can hold dicts, lists, tuples, scalars, numpy arrays and PyTorch tensors, got {type(node).__name__} "
        f"{_place(path)}"
    )


def _encode_dict(node: dict[Any, Any], path: str, leaves: dict[str, Leaf]) -> Any:
    if isinstance(node, Counter):  # in the state of some learning rate schedules
        return {_KIND: "counter", "items": _encode_dict(dict(node), path, leaves)}
    items = [(key, _encode(value, _join(path, key), leaves)) for key, value in node.items()]
    if all(isinstance(key, str) for key in node) and _KIND not in node:
        return dict(items)
    if all(isinstance(key, str | int) and not isinstance(key, bool) for key in node):
        return {_KIND: "dict", "items": [list(item) for item in items]}
    raise TypeError(
        f"a checkpoint's dicts must be keyed by strings or whole numbers, got {list(node)!r} {_place(path)}"
    )


def _encode_array(node: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    array = np.asarray(node)
    if array.dtype.name not in _CODES:
        raise TypeError(
            f"a checkpoint's arrays must have one of the types {', '.join(_CODES)}, got {array.dtype} {_place(path)}"
        )
    array = array.astype(array.dtype.newbyteorder("<"))
    name = _enter(leaves, path, array.dtype.name, array.shape, array.tobytes())
    return {_KIND: "scalar" if isinstance(node, np.generic) else "array", "name": name}


def _encode_tensor(node: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    dtype = str(node.dtype).removeprefix("torch.")
    if dtype not in _CODES:
        raise TypeError(
            f"a checkpoint's tensors must have one of the types {', '.join(_CODES)}, got {dtype} {_place(path)}"
        )
    if node.layout is not sys.modules["torch"].strided:
        raise TypeError(
            f"a checkpoint's tensors must be dense, got {node.layout} {_place(path)}; use `to_dense()`"
        )
    tensor = node.detach().cpu().contiguous()
    flat = tensor.as_strided(
        (tensor.numel(),), (1,)
    )  # empty tensors and those of one element may have a stride of 0
    data = flat.view(sys.modules["torch"].uint8).numpy().tobytes()
    name = _enter(leaves, path, dtype, tuple(tensor.shape), data)
    return {_KIND: "tensor", "name": name}


def _enter(
    leaves: dict[str, Leaf], path: str, dtype: str, shape: tuple[int, ...], data: bytes
) -> str:
    name, copies = path or "value", 1
    while (
        name in leaves or name == "__metadata__"
    ):  # {"a.b": x, "a": {"b": y}} would name both leaves a.b
        copies += 1
        name = f"{path}#{copies}"
    leaves[name] = (dtype, shape, data)
    return name


def _decode(node: Any, leaves: dict[str, Leaf]) -> Any:
    if isinstance(node, list):
        return [_decode(item, leaves) for item in node]
    if not isinstance(node, dict):
        return node
    match node.get(_KIND):
        case None:
            return {key: _decode(value, leaves) for key, value in node.items()}
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

    dtype, shape, data = leaf
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


def _place(path: str) -> str:
    return f"at {path!r}" if path else "at its root"


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
