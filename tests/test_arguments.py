"""Checks of arguments name the argument, what it must be and what was received."""

import math

import numpy as np
import pytest

from mopbt.arguments import check_choice, check_count, check_share, check_timeout


@pytest.mark.parametrize("value", [2, 3, 10])
def test_a_whole_number_within_its_limits_passes(value):
    check_count("n", value, 2, 10)


@pytest.mark.parametrize("value", [1, 2.0, True, "3", None, math.nan])
def test_other_values_are_not_counts(value):
    with pytest.raises(ValueError) as caught:
        check_count("n", value, 2)
    assert str(caught.value) == f"`n` must be a whole number of at least 2, got {value!r}"


def test_a_count_has_a_largest_value():
    with pytest.raises(ValueError, match="`n` must be at most 1,000, got 1001"):
        check_count("n", 1001, 1, 1000)


def test_an_optional_count_may_be_left_out():
    check_count("n", None, 1, optional=True)
    with pytest.raises(ValueError, match="`n` must be a whole number of at least 1, got 0"):
        check_count("n", 0, 1, optional=True)


def test_an_integer_of_numpy_is_to_be_converted():
    with pytest.raises(ValueError, match=r"got np.int64\(3\); pass int\(n\)"):
        check_count("n", np.int64(3), 1)


@pytest.mark.parametrize("value", [1, 0, "tru", None])
def test_a_choice_is_one_of_those_allowed(value):
    check_choice("x", True, (True, False, "auto"))
    check_choice("x", "auto", (True, False, "auto"))
    with pytest.raises(ValueError, match=f"one of True, False, 'auto', got {value!r}"):
        check_choice("x", value, (True, False, "auto"))


def test_a_misspelled_choice_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'random'"):
        check_choice("explore", "randm", ("local", "random"))


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 2.5, True, "0.5", math.nan])
def test_a_share_is_between_0_and_1(value):
    check_share("share", 0.5)
    check_share("share", None)
    with pytest.raises(ValueError, match="`share` must be between 0 and 1, or None, got"):
        check_share("share", value)


@pytest.mark.parametrize("value", [0, -1, True, "1", math.inf, math.nan])
def test_a_timeout_is_above_0(value):
    check_timeout(None)
    check_timeout(0.5)
    with pytest.raises(ValueError, match="`timeout` must be a number of seconds above 0, got"):
        check_timeout(value)
