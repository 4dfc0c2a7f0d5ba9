"""Selecting a model from a front: the rules, and the sentence that explains the choice."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mopbt import selection
from mopbt.errors import StoreError
from mopbt.front import Front, Point
from mopbt.objectives import Constraint, parse_objectives
from mopbt.problem import make_problem
from mopbt.space import Grid

PROBLEM = make_problem(
    name="p",
    space={"x": Grid(0, 1, 10)},
    objectives={"accuracy": "max", "dsp": "min"},
    constraints=(),
    interval=1,
    steps=4,
)
SCORES = [(0.860, 0.17), (0.856, 0.08), (0.850, 0.07), (0.80, 0.01), (0.759, 0.0)]
FRONT = Front(
    [
        Point(i, i, 4, {"x": 0.5}, {"accuracy": a, "dsp": d, "loss": a / 2})
        for i, (a, d) in enumerate(SCORES)
    ],
    PROBLEM,
)


@st.composite
def fronts(draw):
    """Draw points that do not dominate each other."""
    k = draw(st.integers(2, 4))
    points = draw(
        hnp.arrays(
            float,
            (draw(st.integers(1, 12)), k),
            elements=st.integers(-8, 8).map(float),
            unique=False,
        )
    )
    kept = [p for p in points if not any((q >= p).all() and (q > p).any() for q in points)]
    return np.unique(np.array(kept), axis=0)


def test_the_knee_is_farthest_from_the_line_through_the_ends():
    points = selection.scaled(np.array([(a, -d) for a, d in SCORES]))
    first, last = points[0], points[-1]
    along = (last - first) / np.linalg.norm(last - first)
    distances = [abs(along[0] * (p - first)[1] - along[1] * (p - first)[0]) for p in points]
    assert FRONT.knee().model == int(np.argmax(distances)) == 1


@given(fronts(), st.floats(0.1, 10), st.floats(-5, 5))
def test_the_knee_does_not_depend_on_units(front, factor, offset):
    sums = selection.scaled(front).sum(axis=1)
    stretched = front * np.array([factor] + [1.0] * (front.shape[1] - 1)) + offset
    assert sums[selection.knee(selection.scaled(stretched))] == pytest.approx(sums.max())


@given(fronts())
def test_weights_can_reach_every_model_of_a_front(front):
    shortfall = 1 - selection.scaled(front)
    for row, short in enumerate(shortfall):
        if (short > 0).all():
            assert selection.weighted(1 - shortfall, 1 / short) == row


@given(fronts(), st.data())
def test_all_weight_on_one_objective_selects_its_best(front, data):
    k = data.draw(st.integers(0, front.shape[1] - 1))
    weights = [float(i == k) for i in range(front.shape[1])]
    for row in (
        selection.weighted(selection.scaled(front), weights),
        selection.best(selection.scaled(front), k),
    ):
        assert front[row, k] == front[:, k].max()


def test_the_best_within_a_limit():
    choice = FRONT.where("accuracy >= 0.85").best("dsp")
    # An accuracy of 0.850 satisfies the limit exactly.
    assert choice.model == 2
    assert FRONT.where("accuracy > 0.85").best("dsp").model == 1
    assert FRONT.where("accuracy >= 0.8", "dsp < 0.08").best("accuracy").model == 2
    # A limit may be on any metric.
    assert FRONT.where(Constraint("loss", "<=", 0.4)).best("accuracy").model == 3
    assert FRONT.where("dsp <= 0.009").knee().model == 4


def front_with(rows):
    """Return a front of models with these metrics, which maximizes f and g."""
    problem = make_problem(
        name="p",
        space={"x": Grid(0, 1, 10)},
        objectives={"f": "max", "g": "max"},
        constraints=(),
        interval=1,
        steps=4,
    )
    return Front([Point(i, i, 4, {"x": 0.5}, scores) for i, scores in enumerate(rows)], problem)


def test_limits_do_not_change_the_scale():
    """Weights and the knee refer to the complete front, whichever models satisfy the limits."""
    scores = [(0, 10), (4, 9), (5, 8), (6, 4), (10, 0)]
    front = front_with([{"f": float(f), "g": float(g)} for f, g in scores])
    # Scaled by the front, rows 0 to 4 have the sums 1.0, 1.3, 1.3, 1.0, 1.0 and the worst
    # shortfalls 1.0, 0.6, 0.5, 0.6, 1.0.
    assert front.where("f >= 4").knee().model == front.knee().model == 1
    assert (
        front.where("f >= 4").weighted({"f": 1, "g": 1}).model
        == front.weighted({"f": 1, "g": 1}).model
        == 2
    )
    assert front.where("f >= 6").knee().model == 3


def test_models_without_a_metric_do_not_satisfy_a_limit_on_it():
    """An expensive metric may be measured only for some models."""
    rows = [
        {"f": 0.0, "g": 2.0},
        {"f": 1.0, "g": 1.0, "slow": 0.3},
        {"f": 2.0, "g": 0.0, "slow": math.nan},
    ]
    front = front_with(rows)
    assert front.where("slow >= 0.1").best("f").model == 1
    with pytest.raises(
        ValueError, match="no model of the front has slow >= 0.5; it reaches slow 0.3: relax"
    ):
        front.where("slow >= 0.5").best("f")


def test_a_choice_says_what_it_costs():
    why = FRONT.where("accuracy >= 0.855").best("dsp").why
    assert why.startswith("Model 1 is the best in dsp of the 2 models with accuracy >= 0.855")
    assert "gives up 0.004 of accuracy for 0.09 of dsp" in why
    assert "gives up 0.08 of dsp for 0.097 of accuracy" in why
    assert "weights accuracy 2, dsp 1" in FRONT.weighted({"accuracy": 2, "dsp": 1}).why
    assert (
        Front(FRONT[:1], PROBLEM).knee().why
        == "Model 0 is the knee: no other model is better in any objective."
    )


def test_a_single_model_is_counted_in_the_singular():
    why = FRONT.where("accuracy >= 0.86").best("dsp").why
    assert " is the only model with accuracy >= 0.86: " in why
    assert repr(Front(FRONT[:1], PROBLEM)) == "<Front of 1 model: accuracy (max), dsp (min)>"


def test_if_no_model_satisfies_the_constraints_the_choice_says_only_that():
    problem = replace(
        PROBLEM, constraints=(Constraint.parse("accuracy >= 99"), Constraint.parse("dsp < 1"))
    )
    near, far = (
        replace(FRONT[0], model=model, violation=violation)
        for model, violation in ((3, 0.9494), (4, 0.96))
    )
    front = Front([near], problem)
    shortfall = front.shortfall(near)
    assert "no model satisfies accuracy >= 99 and dsp < 1" in shortfall
    assert "(violation 0.95)" in shortfall
    assert front.knee().why == front.best("dsp").why == f"Model 3: {shortfall}."
    assert "not satisfy accuracy >= 99 and dsp < 1 (violation 0.96)" in front.shortfall(far)
    assert Front(FRONT, problem).shortfall(far) == front.shortfall(far)
    assert Front(FRONT, problem).shortfall(FRONT[0]) == ""


def test_a_trade_names_every_objective_that_changes():
    objectives = parse_objectives({"a": "max", "b": "min", "c": "max", "d": "max"})
    chosen = {"a": 1.0, "b": 5.0, "c": 3.0, "d": 0.0}
    other = {"a": 2.0, "b": 7.0, "c": 1.0, "d": 0.0}
    assert selection.trade(objectives, chosen, other) == "gives up 1 of a for 2 of b and 2 of c"
    assert selection.trade(objectives, other, chosen) == "gives up 2 of b and 2 of c for 1 of a"
    assert selection.trade(objectives, chosen, chosen) == "is equally good"
    assert selection.trade(objectives, chosen | {"d": 1.0}, chosen) == "gains 1 of d at no cost"
    assert selection.trade(objectives, chosen, chosen | {"d": 1.0}) == "gives up 1 of d for nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ({"accuracy": 1, "fairness": 2},),
            "weights must name objectives \\('accuracy', 'dsp'\\), got 'fairness'",
        ),
        (({"accuracy": -1},), "the weight of 'accuracy' must be a number of at least 0, got -1"),
        (({"accuracy": 0},), "at least one of 'accuracy', 'dsp' more than 0"),
    ],
)
def test_wrong_rules_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        FRONT.weighted(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best": "loss"}, "`best` must be an objective \\('accuracy', 'dsp'\\), got 'loss'"),
        (
            {"best": "dsp", "where": "acc >= 0.8"},
            "`where` must name one of 'accuracy', 'dsp', 'loss', got 'acc'",
        ),
        ({"best": "dsp", "where": "accuracy => 0.8"}, "must read like 'accuracy >= 0.7'"),
        (
            {"best": "dsp", "where": "accuracy >= 0.9"},
            "no model of the front has accuracy >= 0.9; it reaches accuracy 0.86:",
        ),
        (
            {"best": "dsp", "where": ["accuracy >= 0.86", "dsp < 0.1"]},
            "reaches accuracy 0.86, dsp 0 \\(not in one model\\)",
        ),
    ],
)
def test_wrong_limits_are_explained(options, message):
    limits = options.get("where", [])
    limits = [limits] if isinstance(limits, str) else limits
    with pytest.raises(ValueError, match=message):
        FRONT.where(*limits).best(options["best"])


def test_weights_that_are_no_mapping_are_explained():
    with pytest.raises(TypeError, match=r"such as \{'accuracy': 2\}, got 'knee'"):
        FRONT.weighted("knee")


def test_a_point_loads_its_model_and_is_pickled_without_its_run():
    class Run:
        def load(self, point):
            return f"model {point.model}"

        def export(self, point, file, *, private):
            return f"model {point.model} in {file}" + ", private" * private

    point = replace(FRONT[0], source=Run())
    assert point.load() == f"model {point.model}"
    assert point.export("m.safetensors") == f"model {point.model} in m.safetensors"
    assert point.export("m", private=True) == f"model {point.model} in m, private"
    alone = pickle.loads(pickle.dumps(point))
    assert alone == point
    with pytest.raises(StoreError, match=rf"pickled .* use results\.load\({point.model}"):
        alone.load()
    with pytest.raises(StoreError, match=r"results\.export\("):
        alone.export("m.safetensors")


def test_an_empty_front_has_nothing_to_pick():
    with pytest.raises(ValueError, match="the front is empty"):
        Front([], PROBLEM).knee()
