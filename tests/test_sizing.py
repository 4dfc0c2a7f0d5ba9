"""Advice on the size of a run: given where it is needed, and nowhere else."""

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from mopbt import Estimate, run
from mopbt.progress_display import Display
from mopbt.rng import stream
from mopbt.tasks.toy import ToyTask

SIZES = {"engine": "local", "progress": False, "out": None}


@dataclass(frozen=True)
class Fixed(ToyTask):
    """A toy whose metrics are those of the model, noise, or all equal."""

    measures: str = "model"

    def evaluate(self, model):
        scores = super().evaluate(model)
        rng = stream(0, "noise", model["place"].tobytes().hex())
        if self.measures == "noise":
            return {name: rng.normal() for name in scores}
        if self.measures == "noise with errors":
            return {name: Estimate(rng.normal(), stderr=1.0) for name in scores}
        if self.measures == "errors":
            return {name: Estimate(value, stderr=1e-6) for name, value in scores.items()}
        return scores | {"near": 0.76} if self.measures == "trivial" else scores


def test_a_run_of_sufficient_size_gets_no_advice():
    for measures in ("model", "errors"):
        assert run(Fixed(steps=40, measures=measures), population=16, **SIZES).advice() == []


def test_few_intervals_and_a_small_population_are_named_with_a_remedy():
    few, small = run(ToyTask(steps=20), population=6, **SIZES).advice()
    assert "only 10 intervals" in few
    assert "at least 20, by more `steps` (20) or a shorter `interval` (2)" in few
    assert "a population of 6" in small
    assert "at least 8" in small


@pytest.mark.parametrize("algorithm", ["random-search", "mo-asha"])
def test_algorithms_that_never_exploit_get_none(algorithm):
    assert run(Fixed(measures="noise", steps=4), algorithm=algorithm, **SIZES).advice() == []


@pytest.mark.parametrize(
    ("measures", "reason"),
    [
        ("trivial", "after the first interval 16 of 16 members have the same near"),
        ("noise", "the rank of a model says nothing about its rank one interval later"),
        ("noise with errors", "little more than the errors of their metrics"),
    ],
)
def test_an_interval_that_does_not_tell_members_apart_is_named(measures, reason):
    (advice,) = run(Fixed(steps=40, measures=measures), population=16, **SIZES).advice()
    assert reason in advice
    assert "use a longer `interval` than 2" in advice


def test_the_display_gives_each_advice_once():
    text = io.StringIO()
    display = Display(Console(file=text, width=400))
    run(Fixed(steps=8, measures="trivial"), population=8, callbacks=[display], **SIZES)
    assert text.getvalue().count("advice: only 4 intervals") == 1
    assert text.getvalue().count("advice: after the first interval 8 of 8 members") == 1
