"""Which name was probably meant, and how many there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.messages import counted, did_you_mean

NAMES = st.lists(st.text(alphabet="abcdefgh_-", min_size=1, max_size=8), max_size=6, unique=True)


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("acuracy", ["accuracy", "dsp"], "; perhaps 'accuracy' was meant"),
        ("mopbt", ["pbt", "mo-pbt", "parego"], "; perhaps 'mo-pbt' was meant"),
        ("LR", ["lr", "wd"], "; perhaps 'lr' was meant"),
        ("tpr", ["TPR", "FPR"], "; perhaps 'TPR' was meant"),
        ("speed", ["accuracy", "dsp"], ""),
        ("speed", [], ""),
        (None, ["none", "one"], "; perhaps 'none' was meant"),
        (3, [True, False], ""),
    ],
)
def test_a_near_name_is_offered_and_no_other(name, known, end):
    assert did_you_mean(name, known) == end


@given(NAMES, st.data())
def test_what_is_offered_is_known_and_one_letter_too_many_finds_it(known, data):
    offered = {"", *(f"; perhaps {name!r} was meant" for name in known)}
    assert did_you_mean(data.draw(st.text(max_size=9)), known) in offered
    if known:
        name = data.draw(st.sampled_from(known))
        letter = data.draw(st.sampled_from("xyz"))
        assert did_you_mean(letter + name, [name]) == f"; perhaps {name!r} was meant"


def test_one_is_not_many():
    assert [counted(n, "model") for n in (0, 1, 2, 1203)] == [
        "0 models",
        "1 model",
        "2 models",
        "1,203 models",
    ]
