"""Averages of state trees."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mopbt.averaging import average_trees

FLOATS = st.floats(-1e3, 1e3)


@given(
    hnp.arrays(np.float64, (3, 4), elements=FLOATS),
    hnp.arrays(np.float64, (3,), elements=st.floats(0.01, 1)),
)
def test_arrays_and_tensors_are_averaged_as_numpy_does(rows, weights):
    weights = weights / weights.sum()
    expected = np.average(rows, axis=0, weights=weights)
    np.testing.assert_allclose(average_trees(list(rows), weights), expected, atol=1e-9)
    tensors = [torch.from_numpy(row) for row in rows]
    np.testing.assert_allclose(average_trees(tensors, weights).numpy(), expected, atol=1e-9)


def test_equal_leaves_stay_exactly_as_they_are():
    row = np.array([0.1, 1 / 3, 1e-300])
    assert (average_trees([row, row.copy(), row.copy()], [0.3, 0.3, 0.4]) == row).all()


def test_counters_and_texts_are_those_of_the_first_tree_and_nothing_is_shared():
    first = {"w": torch.zeros(2), "n": torch.tensor(3), "step": 7, "parts": [(1, "a")]}
    other = {"w": torch.ones(2), "n": torch.tensor(9), "step": 8, "parts": [(2, "b")]}
    mean = average_trees([first, other], [0.75, 0.25])
    assert mean["w"].tolist() == [0.25, 0.25]
    assert (int(mean["n"]), mean["step"], mean["parts"]) == (3, 7, [(1, "a")])
    mean["n"] += 1
    mean["w"] += 1
    assert int(first["n"]) == 3
    assert first["w"].tolist() == [0, 0]


def test_the_type_of_floats_is_kept():
    halves = [np.array([1], np.float16), np.array([2], np.float16)]
    assert average_trees(halves, [0.5, 0.5]).dtype == np.float16


@pytest.mark.parametrize(
    ("trees", "received"),
    [
        ([{"a": 1}, {"b": 1}], "[['a'], ['b']]"),
        ([[1], [1, 2]], "[1, 2]"),
        ([np.zeros(2), np.zeros(3)], "[(2,), (3,)]"),
    ],
)
def test_different_structures_are_an_error_that_shows_them(trees, received):
    with pytest.raises(ValueError, match="same structure") as caught:
        average_trees(trees, [0.5, 0.5])
    assert received in str(caught.value)
