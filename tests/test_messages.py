"""Suggestions for misspelled names, and counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.messages import counted, did_you_mean, number, shortened, with_error

NAMES = st.lists(st.text(alphabet="abcdefgh_-", min_size=1, max_size=8), max_size=6, unique=True)


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("acuracy", ["accuracy", "dsp"], "; did you mean 'accuracy'?"),
        ("mopbt", ["pbt", "mo-pbt", "parego"], "; did you mean 'mo-pbt'?"),
        ("LR", ["lr", "wd"], "; did you mean 'lr'?"),
        ("tpr", ["TPR", "FPR"], "; did you mean 'TPR'?"),
        ("speed", ["accuracy", "dsp"], ""),
        ("speed", [], ""),
        (None, ["none", "one"], "; did you mean 'none'?"),
        (3, [True, False], ""),
    ],
)
def test_only_a_close_name_is_suggested(name, known, end):
    assert did_you_mean(name, known) == end


@given(NAMES, st.data())
def test_suggestions_are_known_names_and_survive_an_extra_letter(known, data):
    offered = {"", *(f"; did you mean {name!r}?" for name in known)}
    assert did_you_mean(data.draw(st.text(max_size=9)), known) in offered
    if known:
        name = data.draw(st.sampled_from(known))
        letter = data.draw(st.sampled_from("xyz"))
        assert did_you_mean(letter + name, [name]) == f"; did you mean {name!r}?"


def test_counts_agree_with_their_noun():
    assert [counted(n, "model") for n in (0, 1, 2, 1203)] == [
        "0 models",
        "1 model",
        "2 models",
        "1,203 models",
    ]


def test_a_negative_zero_is_zero():
    assert [number(-0.0), number(-1e-9), number(12345.6)] == ["0", "-1e-09", "1.235e+04"]
    assert with_error(-0.0001, 0.02) == "0.00 ± 0.02"
    assert with_error(-0.04, 0.02) == "-0.04 ± 0.02"


def test_the_middle_of_a_long_text_is_left_out():
    assert shortened("short") == "short"
    assert (
        shortened("a" * 10 + "b" * 100 + "c" * 10, 20) == f"{'a' * 10} (100 characters) {'c' * 10}"
    )
    assert len(shortened("x" * 10**6)) < 5000
