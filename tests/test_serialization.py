import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mopbt.serialization import dumps, loads

NUMPY = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
]
TORCH = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]


def same(a, b):
    """Check whether two trees are equal to the bit, in types and in the order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            same(a[k], b[k]) and type(k) is type(m) for k, m in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    return repr(a) == repr(b)


def bits(tensor):
    return bytes(tensor.detach().clone(memory_format=torch.contiguous_format).untyped_storage())


arrays = hnp.arrays(
    st.sampled_from(NUMPY).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
tensors = arrays.map(lambda a: torch.from_numpy(a.copy()))
scalars = hnp.arrays(st.sampled_from(NUMPY).map(np.dtype), ()).map(lambda a: a[()])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
    arrays,
    tensors,
    scalars,
)
keys = st.one_of(
    st.text(max_size=4),
    st.sampled_from(["~", "__metadata__", "a.b", "a", "b", "value", "", "1"]),
    st.integers(-5, 5),
)
trees = st.recursive(
    leaves,
    lambda t: st.one_of(
        st.lists(t, max_size=3),
        st.lists(t, max_size=3).map(tuple),
        st.dictionaries(keys, t, max_size=4),
    ),
    max_leaves=12,
)


@given(trees)
def test_any_tree_is_restored(tree):
    data = dumps(tree)
    assert same(loads(data), tree)
    assert dumps(tree) == data
    assert dumps(loads(data)) == data


@given(trees)
def test_safetensors_opens_any_tree(tree):
    opened = safetensors.deserialize(dumps(tree))
    assert len(opened) == len({name for name, _ in opened}) == count_arrays(tree)


def count_arrays(tree):
    if isinstance(tree, dict):
        return sum(map(count_arrays, tree.values()))
    if isinstance(tree, list | tuple):
        return sum(map(count_arrays, tree))
    return isinstance(tree, np.ndarray | np.generic | torch.Tensor)


@pytest.mark.parametrize("dtype", NUMPY)
def test_arrays_of_every_type(dtype):
    values = np.arange(-3, 9).astype(dtype).reshape(3, 4)
    for array in (
        values,
        values[::2, ::-1],
        values.T,
        np.asfortranarray(values),
        values[:0],
        values[0, 0],
        np.array(values[0, 0]),
    ):
        assert same(loads(dumps({"a": array}))["a"], array)


@pytest.mark.parametrize("dtype", TORCH)
def test_tensors_of_every_type(dtype):
    values = torch.arange(12).to(getattr(torch, dtype)).reshape(3, 4)
    for tensor in (
        values,
        values[::2],
        values.T,
        values[:0],
        values[0, 0],
        values.expand(2, 3, 4),
        torch.empty(0, 3, dtype=values.dtype),
    ):
        assert same(loads(dumps({"a": tensor}))["a"], tensor)
    for odd in (
        values[0, 1].expand(1),
        torch.from_numpy(np.zeros(0)).to(values.dtype),
        values[2:, 3:],
        values[:, 1],
    ):
        assert same(loads(dumps({"a": odd}))["a"], odd)


def test_bfloat16_nan_and_tiny_numbers_keep_their_bits():
    tensor = torch.tensor([math.nan, -0.0, math.inf, 1e-40, 1 / 3], dtype=torch.bfloat16)
    assert same(loads(dumps(tensor)), tensor)
    payloads = np.array([0x7FF8000000000123, 0xFFF0000000000001], dtype=np.uint64)
    nans = payloads.view(np.float64)
    assert loads(dumps(nans)).tobytes() == nans.tobytes()


def test_big_endian_arrays_come_back_as_the_same_numbers():
    found = loads(dumps(np.array([1, 2, 300], dtype=">i4")))
    assert found.tolist() == [1, 2, 300]
    assert found.dtype == np.int32
    assert dumps(np.array([1, 2, 300], dtype=">i4")) == dumps(np.array([1, 2, 300], dtype="<i4"))


def test_parameters_come_back_as_plain_tensors():
    parameter = torch.nn.Parameter(torch.ones(2))
    found = loads(dumps({"w": parameter}))["w"]
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert (found == 1).all()


def test_restored_arrays_are_writable_and_share_no_memory():
    tree = {"a": np.zeros(2), "b": torch.zeros(2)}
    data = dumps(tree)
    found = loads(data)
    found["a"] += 1
    found["b"] += 1
    assert tree["a"].sum() == tree["b"].sum() == 0
    assert same(loads(data), tree)


def test_the_safetensors_package_reads_it(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    data = dumps({"model": dict(model.state_dict()), "flag": np.array([True]), "step": 3})
    found = safetensors.torch.load(data)
    assert set(found) == {"flag"} | {f"model.{name}" for name in model.state_dict()}
    assert all(same(found[f"model.{name}"], tensor) for name, tensor in model.state_dict().items())
    assert same(safetensors.numpy.load(data)["model.0.weight"], model[0].weight.detach().numpy())
    (tmp_path / "tree.safetensors").write_bytes(data)
    with safetensors.safe_open(tmp_path / "tree.safetensors", "pt") as file:
        assert "mopbt" in file.metadata()


def test_models_and_optimizers_are_restored():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    assert same(loads(dumps(optimizer.state_dict())), optimizer.state_dict())


@pytest.mark.parametrize(
    "tree",
    [
        {"__metadata__": np.zeros(1)},
        {"a.b": np.zeros(1), "a": {"b": np.ones(1)}},
        {"1": np.zeros(1), 1: np.ones(1)},
        {"": np.zeros(1), "value": np.ones(1)},
        {"value": np.zeros(1), "": {"": np.ones(1)}, "#2": np.ones(2)},
        {"a": [np.zeros(1)], "a.0": np.ones(1), "a.0#2": np.ones(2)},
        {"~": "tuple", "items": [1]},
        {"~": {"~": "tensor", "name": "x"}},
        {"ü": "\ud800", "nul\0": b"\0\xff"},
        (),
        [],
        {},
        ((),),
        None,
        2**100,
    ],
    ids=repr,
)
def test_ambiguous_trees(tree):
    assert same(loads(dumps(tree)), tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": {1, 2}}}, "numpy arrays and PyTorch tensors, got set at 'a.b'"),
        ([0, object()], "got object at '1'"),
        (lambda: 0, "got function at its root"),
        ({"a": 1j}, "got complex at 'a'"),
        ({"a": {1.5: 0}}, "must be strings or whole numbers, got [1.5] at 'a'"),
        ({True: 0}, "must be strings or whole numbers, got [True] at its root"),
        ({None: 0}, "must be strings or whole numbers, got [None] at its root"),
        ({"a": np.zeros(1, complex)}, "arrays must be one of bool, "),
        (np.array(["text"]), "got <U4 at its root"),
        (np.array([{}], dtype=object), "got object at its root"),
        (np.datetime64("2020-01-01"), "got datetime64[D] at its root"),
        ({"a": torch.zeros(1, dtype=torch.complex64)}, "must be one of bool, "),
        ({"a": torch.zeros(1, dtype=torch.float8_e4m3fn)}, "got float8_e4m3fn at 'a'"),
        ({"a": torch.eye(2).to_sparse()}, "got torch.sparse_coo at 'a'; call `to_dense()`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_values_are_named_with_their_place(tree, message):
    with pytest.raises(TypeError) as caught:
        dumps(tree)
    assert message in str(caught.value)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def header(**entries):
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        bytes(100),
        b"\xff" * 100,
        pickle.dumps(Bomb()),
        safetensors.numpy.save({"a": np.zeros(2)}),
        header(__metadata__={"mopbt": "{"}),
        header(__metadata__={"mopbt": "{}"}, a={"dtype": "F32"}),
        header(__metadata__={"mopbt": "{}"}, a={"dtype": "F32", "data_offsets": []}),
        header(__metadata__=None),
        dumps({"a": np.zeros(4)})[:40],
    ],
)
def test_other_bytes_are_an_error(data):
    with pytest.raises(
        ValueError,
        match="not a state tree of mopbt: the bytes do not start with its header",
    ):
        loads(data)


def test_truncated_or_extended_bytes_are_an_error():
    data = dumps({"a": np.zeros(4), "b": [torch.ones(3)]})
    for wrong in (data[:-1], data[:-12], data + b"\0"):
        with pytest.raises(
            ValueError,
            match="the state tree is damaged: its arrays must have 44 bytes, got ",
        ):
            loads(wrong)


def test_neither_writing_nor_reading_arrays_imports_pytorch():
    code = (
        "import sys, numpy, mopbt.serialization as t; t.loads(t.dumps({'a': numpy.ones(2)})); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
