import dataclasses
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.errors import MissingScore
from mopbt.objectives import (
    Constraint,
    Objective,
    parse_constraints,
    parse_objectives,
    signed,
    signed_reference,
    total_violation,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(
    st.characters(exclude_characters="<>=", exclude_categories=["Z", "C"]), min_size=1, max_size=10
)
relations = st.sampled_from([">=", ">", "<=", "<"])
constraints = st.builds(Constraint, names, relations, finite)


def test_directions_are_named_and_keep_their_order():
    parsed = parse_objectives({"dsp": "min", "accuracy": "max"})
    assert parsed == (Objective("dsp", "min"), Objective("accuracy", "max"))
    assert [o.sign for o in parsed] == [-1, 1]
    assert parse_objectives(list(parsed)) == parsed


def test_long_directions_are_stored_in_their_short_form():
    long = parse_objectives({"a": "maximize", "b": "minimize"})
    assert long == parse_objectives({"a": "max", "b": "min"})
    assert [(o.direction, o.sign) for o in long] == [("max", 1), ("min", -1)]


def test_signed_objectives_are_larger_is_better():
    objectives = parse_objectives({"accuracy": "max", "dsp": "min", "loss": "min"})
    scores = {"loss": -0.5, "other": 9.0, "dsp": 0.2, "accuracy": 0.7}
    assert signed(objectives, scores) == (0.7, -0.2, 0.5)
    assert all(
        type(v) is float for v in signed(objectives, {"accuracy": 1, "dsp": True, "loss": 0})
    )


def test_nan_and_infinity_pass_through():
    found = signed(
        parse_objectives({"a": "min", "b": "min", "c": "max"}),
        {"a": math.inf, "b": math.nan, "c": -math.inf},
    )
    assert (found[0], found[2]) == (-math.inf, -math.inf)
    assert math.isnan(found[1])


@given(
    st.dictionaries(names, st.tuples(st.sampled_from(["max", "min"]), finite, finite), min_size=1)
)
def test_the_better_score_is_the_larger_objective(named):
    objectives = parse_objectives({name: direction for name, (direction, _, _) in named.items()})
    one, other = (signed(objectives, {name: row[i] for name, row in named.items()}) for i in (1, 2))
    for (direction, a, b), x, y in zip(named.values(), one, other, strict=True):
        assert (x > y) == ((a > b) if direction == "max" else (a < b))


# --- constraints --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("accuracy >= 0.7", Constraint("accuracy", ">=", 0.7)),
        ("accuracy>=0.7", Constraint("accuracy", ">=", 0.7)),
        ("  latency  <  2e-3 ", Constraint("latency", "<", 0.002)),
        ("loss <= -1", Constraint("loss", "<=", -1.0)),
        ("a > 0", Constraint("a", ">", 0.0)),
        ("worst group accuracy > .5", Constraint("worst group accuracy", ">", 0.5)),
        ("acc@k=5 >= 0.7", Constraint("acc@k=5", ">=", 0.7)),
        ("größe <= 1", Constraint("größe", "<=", 1.0)),
    ],
)
def test_constraints_by_text(text, constraint):
    assert Constraint.parse(text) == constraint
    assert parse_constraints([text, constraint]) == (constraint, constraint)


@given(constraints)
def test_parsing_the_text_of_a_constraint_returns_it(constraint):
    # run.toml stores the text. A bound that lost digits would be another constraint after a resume.
    assert Constraint.parse(str(constraint)) == constraint


def test_the_text_of_a_constraint_is_short():
    assert [str(Constraint.parse(t)) for t in ("a>=0.7", "b <  3", "c > 1e-6")] == [
        "a >= 0.7",
        "b < 3",
        "c > 1e-06",
    ]
    assert str(Constraint("a", ">=", 0.7123456789)) == "a >= 0.7123456789"


@pytest.mark.parametrize(
    ("relation", "score", "violation"),
    [
        (">=", 0.7, 0.0),
        (">=", 0.9, 0.0),
        (">=", 0.35, 0.5),
        (">=", math.inf, 0.0),
        (">=", -math.inf, math.inf),
        (">", 0.7, sys.float_info.min),
        (">", 0.70001, 0.0),
        (">", 0.35, 0.5),
        ("<=", 0.7, 0.0),
        ("<=", 0.0, 0.0),
        ("<=", 1.4, 1.0),
        ("<", 0.7, sys.float_info.min),
        ("<", 0.69999, 0.0),
        ("<", 1.4, 1.0),
        *((relation, math.nan, math.inf) for relation in (">=", ">", "<=", "<")),
    ],
)
def test_violations_by_hand(relation, score, violation):
    assert Constraint("a", relation, 0.7).violation(score) == pytest.approx(
        violation, rel=1e-12, abs=0
    )


def test_a_violation_is_relative_to_a_nonzero_bound():
    assert Constraint("a", "<=", 100).violation(150) == 0.5
    assert Constraint("a", "<=", -100).violation(-50) == 0.5
    assert Constraint("a", "<=", 0).violation(3) == 3


@given(constraints, finite)
def test_a_violation_is_positive_exactly_if_the_relation_fails(constraint, score):
    holds = {
        ">=": score >= constraint.bound,
        ">": score > constraint.bound,
        "<=": score <= constraint.bound,
        "<": score < constraint.bound,
    }
    violation = constraint.violation(score)
    assert (violation == 0) == holds[constraint.relation]
    assert violation >= 0


@given(constraints, finite, finite)
def test_the_violation_grows_with_the_distance(constraint, one, other):
    worse, better = sorted([one, other], reverse=constraint.relation.startswith("<"))
    assert constraint.violation(worse) >= constraint.violation(better)


def test_total_violation_adds_up_over_metrics_that_need_not_be_objectives():
    limits = parse_constraints(["accuracy >= 0.8", "latency <= 10", "size < 5"])
    assert total_violation(limits, {"accuracy": 0.9, "latency": 10, "size": 4}) == 0.0
    assert total_violation(limits, {"accuracy": 0.4, "latency": 15, "size": 4}) == pytest.approx(
        1.0
    )
    assert total_violation(limits, {"accuracy": 0.9, "latency": 5, "size": 5}) > 0
    assert total_violation(limits, {"accuracy": math.nan, "latency": 5, "size": 4}) == math.inf
    assert total_violation([], {}) == 0.0
    assert (
        total_violation(parse_constraints(["a <= 1", "b <= 1"]), {"a": 1.7e308, "b": 1.7e308})
        == math.inf
    )


# --- errors -------------------------------------------------------------------------------------

WRONG = [
    (
        lambda: Objective("", "max"),
        "an objective's name must be a nonempty string, got ''",
    ),
    (lambda: Objective(3, "max"), "an objective's name must be a nonempty string, got 3"),
    (
        lambda: Objective("a", "maximum"),
        "must be 'max' or 'min' (or 'maximize' or 'minimize'), got 'maximum'; did you mean 'max'?",
    ),
    (
        lambda: parse_objectives({"a": 1}),
        "direction of objective 'a' must be 'max' or 'min' (or 'maximize' or 'minimize'), got 1",
    ),
    (
        lambda: parse_objectives({}),
        "`objectives` must name at least one objective, as in {'accuracy': 'max'}, got none",
    ),
    (
        lambda: parse_objectives([]),
        "`objectives` must name at least one objective, as in {'accuracy': 'max'}, got none",
    ),
    (
        lambda: parse_objectives("accuracy"),
        "`objectives` must be a mapping like {'accuracy': 'max', 'dsp': 'min'}, got 'accuracy'",
    ),
    (lambda: parse_objectives(["accuracy"]), "`objectives` must be a mapping like"),
    (lambda: parse_objectives(None), "`objectives` must be a mapping like"),
    (
        lambda: parse_objectives([Objective("a", "max"), Objective("a", "min")]),
        "must have distinct names, got ['a', 'a']",
    ),
    (
        lambda: parse_constraints("a >= 1"),
        "`constraints` must be a list like ['accuracy >= 0.7'], got 'a >= 1'",
    ),
    (lambda: parse_constraints({"a >= 1"}), "`constraints` must be a list like"),
    (
        lambda: parse_constraints([3]),
        "must read like 'accuracy >= 0.7' (relations >=, >, <=, <), got 3",
    ),
    *(
        (
            lambda text=text: Constraint.parse(text),
            f"must read like 'accuracy >= 0.7' (relations >=, >, <=, <), got {text!r}",
        )
        for text in [
            "",
            "a",
            "0.5 <= a",
            "0.5 <= a <= 0.9",
            "a >> 1",
            "a != 1",
            "a = 1",
            "a == 1",
            "a => 1",
            "a =< 1",
            ">= 1",
            "a >=",
            "a >= b",
            "a >= nan",
            "a >= inf",
            "a >= 1 2",
        ]
    ),
    (
        lambda: Constraint("a", "==", 1.0),
        "the constraint on 'a' must be one of >=, >, <=, <, got '=='",
    ),
    (
        lambda: Constraint("a", ">=", math.nan),
        "the constraint on 'a' must be a finite number, got nan",
    ),
    (
        lambda: Constraint("a", ">=", "1"),
        "the constraint on 'a' must be a finite number, got '1'",
    ),
    (
        lambda: Constraint("", ">=", 1.0),
        "that of a metric, without < and > and not ending in =, got ''",
    ),
    (lambda: Constraint("a <", ">=", 1.0), "the name in a constraint must be that of a metric"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[-50:] for _, message in WRONG])
def test_an_error_names_what_was_received_and_what_is_allowed(wrong, message):
    with pytest.raises(ValueError) as caught:
        wrong()
    assert message in str(caught.value)


def test_a_metric_that_was_not_measured():
    message = "did not measure the objective 'dsp'; it measured 'accuracy', 'loss'; return it from"
    with pytest.raises(MissingScore, match=message):
        signed(parse_objectives({"accuracy": "max", "dsp": "min"}), {"accuracy": 0.5, "loss": 1.0})
    with pytest.raises(
        MissingScore,
        match="the constraint 'a'; it measured nothing; .* correct the constraint's name",
    ):
        total_violation(parse_constraints(["a >= 1"]), {})


def test_a_reference_point_has_the_direction_and_order_of_the_objectives():
    objectives = parse_objectives({"accuracy": "max", "dsp": "min"})
    assert signed_reference(objectives, {"dsp": 1, "accuracy": 0.5}) == (0.5, -1.0)
    for wrong in ({"dsp": 1}, {"dsp": 1, "accuracy": 0.5, "loss": 2}, (0.5, 1), None):
        with pytest.raises(
            ValueError, match="`reference` must give a number for each of 'accuracy', 'dsp', got "
        ):
            signed_reference(objectives, wrong)
    for wrong in (math.nan, math.inf, "1", True, None):
        with pytest.raises(ValueError, match=r"`reference\['dsp'\]` must be a finite number, got "):
            signed_reference(objectives, {"dsp": wrong, "accuracy": 0.5})


def test_objectives_and_constraints_are_frozen_values():
    for value, field in (
        (Objective("a", "max"), "direction"),
        (Constraint("a", ">", 1.0), "bound"),
    ):
        assert {value: 1}[dataclasses.replace(value)] == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, "min")
