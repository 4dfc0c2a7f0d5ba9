import math
from types import SimpleNamespace

import pytest

from mopbt.errors import TaskError, UnreadHyperparameter
from mopbt.objectives import Constraint, Objective
from mopbt.problem import Hyperparameters, make_problem, problem_of
from mopbt.space import Float, Grid, Space
from mopbt.tasks.toy import FailingToy, ToyTask
from mopbt.testing import TaskConformance

SAID = {
    "name": "t",
    "space": {"lr": Grid(0, 1, 3)},
    "objectives": {"a": "max"},
    "constraints": (),
    "interval": 2,
    "steps": 6,
}


def a_task(**changed):
    methods = dict.fromkeys(("init", "train", "evaluate", "dump", "load"), lambda *_: None)
    return SimpleNamespace(**{**methods, **SAID, **changed})


def without(name):
    task = a_task()
    delattr(task, name)
    return task


def test_the_problem_of_a_task():
    problem = problem_of(a_task(constraints=["b >= 0.5"]))
    assert problem.name == "t"
    assert problem.space == Space({"lr": Grid(0, 1, 3)})
    assert problem.objectives == (Objective("a", "max"),)
    assert problem.constraints == (Constraint("b", ">=", 0.5),)
    assert (problem.interval, problem.steps) == (2, 6)
    assert hash(problem) == hash(problem_of(a_task(constraints=["b >= 0.5"])))


def test_name_and_constraints_may_be_left_out():
    task = without("constraints")
    del task.name
    assert problem_of(task).name == "SimpleNamespace"
    assert problem_of(task).constraints == ()


def test_a_task_is_an_object_with_all_its_parts():
    with pytest.raises(
        TypeError, match=r"the task must be an object, got the class ToyTask; pass ToyTask\(\)"
    ):
        problem_of(ToyTask)
    for name in ("init", "train", "evaluate", "dump", "load"):
        with pytest.raises(
            TypeError,
            match=f"SimpleNamespace object is not a task: it has no method `{name}`; see docs/",
        ):
            problem_of(without(name))
    for name in ("space", "objectives", "interval", "steps"):
        with pytest.raises(
            TypeError,
            match=f"SimpleNamespace object is not a task: it has no attribute `{name}`; see docs/",
        ):
            problem_of(without(name))
    with pytest.raises(TypeError, match="it has no method `train`"):
        problem_of(a_task(train=3))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"interval": 0}, "`interval` must be a whole number of at least 1, got 0"),
        ({"interval": 2.0}, "`interval` must be a whole number of at least 1, got 2.0"),
        ({"interval": True}, "`interval` must be a whole number of at least 1, got True"),
        (
            {"steps": -6},
            "`steps` must be a whole number of at least 1, got -6",
        ),
        (
            {"steps": None},
            "`steps` must be a whole number of at least 1, got None",
        ),
        ({"steps": 7}, "must be a multiple of `interval` (2), got 7; use 6"),
        ({"steps": 1}, "must be a multiple of `interval` (2), got 1; use 2"),
        ({"name": None}, "must be a non-empty string, got None"),
        ({"name": ""}, "must be a non-empty string, got ''"),
        (
            {"space": {}},
            "`space` must have at least one hyperparameter, "
            "such as {'lr': Float(1e-5, 0.1, log=True)}, got none",
        ),
        (
            {"objectives": {"a": "up"}},
            "must be 'max' or 'min' (or 'maximize' or 'minimize'), got 'up'",
        ),
        (
            {"constraints": "a > 1"},
            "`constraints` must be a list like ['accuracy >= 0.7'], got 'a > 1'",
        ),
    ],
)
def test_what_a_problem_refuses(changed, message):
    with pytest.raises(ValueError) as caught:
        make_problem(**{**SAID, **changed})
    assert message in str(caught.value)


# Hyperparameters that remember which of them were read.


def test_never_reading_a_value_is_an_error_that_names_it():
    values = Hyperparameters({"lr": 0.1, "wd": 0.0, "p": 0.5})
    assert values["wd"] == 0.0
    assert values.read == {"wd"}
    with pytest.raises(
        UnreadHyperparameter, match=r"training never read 'lr', 'p': .* or remove it from the space"
    ):
        values.check_read()
    assert values.get("lr") == 0.1
    assert dict(values)["p"] == 0.5
    values.check_read()
    assert issubclass(UnreadHyperparameter, TaskError)


@pytest.mark.parametrize(
    "look",
    [len, list, repr, lambda v: "lr" in v, lambda v: v.get("other"), lambda v: v.keys()],
    ids=range(6),
)
def test_looking_is_not_reading(look):
    values = Hyperparameters({"lr": 0.1})
    look(values)
    with pytest.raises(UnreadHyperparameter, match="'lr'"):
        values.check_read()


@pytest.mark.parametrize(
    "read",
    [
        lambda v: v["lr"],
        lambda v: v.get("lr"),
        lambda v: dict(**v),
        lambda v: list(v.values()),
        lambda v: list(v.items()),
    ],
    ids=range(5),
)
def test_ways_of_reading(read):
    values = Hyperparameters({"lr": 0.1})
    assert read(values)
    values.check_read()


def test_an_unknown_hyperparameter_says_which_there_are():
    with pytest.raises(
        KeyError,
        match=r"'LR'.*'lr', 'wd'.*; did you mean 'lr'\?",
    ):
        Hyperparameters({"lr": 0.1, "wd": 0.0})["LR"]


def test_values_do_not_change_with_their_source():
    source = {"lr": 0.1}
    values = Hyperparameters(source)
    source["lr"] = 9.0
    assert values["lr"] == 0.1
    assert (len(values), list(values), repr(values)) == (1, ["lr"], "Hyperparameters({'lr': 0.1})")


# The toy task.


class TestToy(TaskConformance):
    def make(self):
        return ToyTask()


class TestFailingToy(TaskConformance):
    def make(self):
        return FailingToy()


def test_the_toy_comes_to_the_front_it_claims():
    task = ToyTask(noise=0.0)
    for weight in (0.0, 0.25, 0.5, 1.0):
        model = task.train(task.init(0), {"weight": weight, "lr": 0.3}, 0, 200, 0)
        scores = task.evaluate(model)
        assert task.distance_to_front(scores) == pytest.approx(0, abs=1e-6)
        assert math.sqrt(max(1 - scores["near"], 0)) == pytest.approx(
            (1 - weight) * math.sqrt(2), abs=1e-6
        )
    assert task.distance_to_front(task.evaluate(task.init(0))) > 0.1


def test_a_space_that_is_a_space_is_taken_as_it_is():
    space = Space({"lr": Float(0, 1)})
    assert make_problem(**{**SAID, "space": space}).space is space
