"""How a job runs: metrics, seeds, models in memory, failures."""

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mopbt import serialization
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import check_scores, run_job
from mopbt.engines.seeding import global_seeds
from mopbt.errors import MissingScore, TaskError, UnreadHyperparameter
from mopbt.problem import problem_of
from mopbt.rng import derived_seed
from mopbt.space import Grid
from mopbt.state import Job
from mopbt.stores.base import checksum_of
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.toy import FailingToy, ToyTask


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


# Metrics.


def test_scores_become_floats():
    scores = {
        "a": 1,
        "b": np.float32(0.5),
        "c": torch.tensor(0.25),
        "d": True,
        "e": math.nan,
        "f": np.array(2.0),
        "g": math.inf,
    }
    found = check_scores(scores)
    assert all(type(v) is float for v in found.values())
    assert repr(found) == "{'a': 1.0, 'b': 0.5, 'c': 0.25, 'd': 1.0, 'e': nan, 'f': 2.0, 'g': inf}"


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "`evaluate` must return a mapping of names to numbers, got None"),
        (0.5, "`evaluate` must return a mapping of names to numbers, got 0.5"),
        ([("a", 1)], "`evaluate` must return a mapping of names to numbers, got [('a', 1)]"),
        ({"a": None}, "the metric 'a' must be a number, got None"),
        ({"a": "high"}, "the metric 'a' must be a number, got 'high'"),
        ({"a": 1j}, "the metric 'a' must be a number, got 1j"),
        ({"a": np.zeros(2)}, "the metric 'a' must be a number, got array([0., 0.])"),
        ({"a": torch.zeros(2)}, "the metric 'a' must be a number, got tensor([0., 0.])"),
        ({"a": 10**400}, "the metric 'a' must be a number, got 1000"),
    ],
)
def test_an_error_names_scores_that_are_not_numbers(scores, message):
    with pytest.raises(TaskError) as caught:
        check_scores(scores)
    assert str(caught.value).startswith(message)


# One job.

FIRST, SECOND = Job(0, 0, (4, 6), None, 0, 2), Job(1, 0, (4, 6), 0, 2, 4)


def context_of(task, seed=0):
    return RunContext(task, problem_of(task), seed, MemoryCheckpoints())


def test_a_report_holds_what_was_measured_and_saved():
    context = context_of(ToyTask())
    report = run_job(context, FIRST, {}, ModelCache(0))
    data = context.checkpoints.load(0, report.checksum)
    scores = context.task.evaluate(context.task.load(data))
    assert report.error == ""
    assert report.scores == scores
    assert report.objectives == (scores["near"], scores["far"])
    assert report.violation == 0.0
    assert report.duration > 0


def test_the_task_gets_the_seeds_of_the_job():
    task = ToyTask()
    report = run_job(context_of(task, seed=5), FIRST, {}, ModelCache(0))
    values = task.space["weight"].values[4], task.space["lr"].values[6]
    model = task.train(
        task.init(derived_seed(5, "init", 0)),
        dict(zip(("weight", "lr"), values, strict=True)),
        0,
        2,
        derived_seed(5, "train", 0, 0),
    )
    assert report.checksum == checksum_of(task.dump(model))
    assert run_job(context_of(task, seed=6), FIRST, {}, ModelCache(0)).checksum != report.checksum


@dataclass(frozen=True)
class Constrained(ToyTask):
    constraints = ("near >= 2", "far < -1")


def test_violations_are_reported():
    report = run_job(context_of(Constrained(noise=0.0)), FIRST, {}, ModelCache(0))
    expected = (2 - report.scores["near"]) / 2 + (report.scores["far"] + 1)
    assert report.violation == pytest.approx(expected)


class TorchTask:
    """A model that draws random numbers when it is built, trained and measured."""

    space = {"p": Grid(0.1, 0.9, 9)}
    objectives = {"sum": "max", "luck": "max"}
    interval, steps = 1, 4

    def init(self, seed):
        return torch.nn.Linear(3, 2)

    def train(self, model, hp, begin, end, seed):
        with torch.no_grad():
            for parameter in model.parameters():
                scale = random.random() * np.random.rand()  # noqa: NPY002
                parameter += scale * torch.nn.functional.dropout(
                    torch.ones_like(parameter), hp["p"]
                )

    def evaluate(self, model):
        return {"sum": sum(p.sum() for p in model.parameters()).detach(), "luck": torch.rand(())}

    def dump(self, model):
        return serialization.dumps(model.state_dict())

    def load(self, data):
        model = self.init(0)  # draws numbers, as building a network does
        model.load_state_dict(serialization.loads(data))
        return model


def chain(cache_bytes, count=3):
    context, cache, reports = context_of(TorchTask()), ModelCache(cache_bytes), []
    for i in range(count):
        reports.append(
            run_job(
                context,
                Job(i, 0, (4,), i - 1 if i else None, i, i + 1),
                {i - 1: reports[-1].checksum} if i else {},
                cache,
            )
        )
    return [(r.objectives, r.checksum, r.error) for r in reports]


def test_a_model_from_memory_and_one_from_a_checkpoint_train_alike():
    assert chain(2**20) == chain(0)
    assert all(error == "" for _, _, error in chain(0))
    assert len({checksum for _, checksum, _ in chain(0)}) == 3


def test_a_result_does_not_depend_on_what_was_drawn_before_and_leaves_no_trace():
    expected = chain(0)
    with global_seeds(99):
        undisturbed = draw()
    with global_seeds(99):
        assert chain(0) == expected
        assert draw() == undisturbed


def test_a_model_in_memory_replaces_its_checkpoint_once():
    context, cache = context_of(ToyTask()), ModelCache(2**20)
    first = run_job(context, FIRST, {}, cache)
    context.checkpoints.drop([0])
    assert run_job(context, SECOND, {0: first.checksum}, cache).error == ""
    assert "checkpoint 0" in run_job(context, SECOND, {0: first.checksum}, cache).error


def test_a_failure_is_a_report_and_saves_nothing():
    context = context_of(FailingToy())
    report = run_job(context, Job(0, 0, (10, 6), None, 0, 2), {}, ModelCache(0))
    assert report.objectives is None
    assert "ZeroDivisionError" in report.error
    assert "in train" in report.error  # with its traceback
    assert context.checkpoints.kept() == frozenset()


def test_a_failure_does_not_leave_a_half_trained_model_in_memory():
    task = ToyTask()
    context, cache = context_of(task), ModelCache(2**20)
    first = run_job(context, FIRST, {}, cache)
    expected = run_job(context, SECOND, {0: first.checksum}, ModelCache(0)).checksum

    class Breaks(ToyTask):
        def train(self, model, hp, begin, end, seed):
            super().train(model, hp, begin, end, seed)
            raise RuntimeError("after training in place")

    broken = Breaks()
    assert (
        "after training"
        in run_job(
            RunContext(broken, context.problem, 0, context.checkpoints),
            SECOND,
            {0: first.checksum},
            cache,
        ).error
    )
    assert run_job(context, SECOND, {0: first.checksum}, cache).checksum == expected


@dataclass(frozen=True)
class Broken(ToyTask):
    part: str = ""

    def train(self, model, hp, begin, end, seed):
        return model if self.part == "train" else super().train(model, hp, begin, end, seed)

    def evaluate(self, model):
        return {"missing": {"near": 1.0}, "none": None}.get(self.part) or (
            None if self.part == "none" else super().evaluate(model)
        )

    def dump(self, model):
        return "text" if self.part == "dump" else super().dump(model)


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ("train", UnreadHyperparameter, "training never read 'weight', 'lr'"),
        ("missing", MissingScore, "did not measure the objective 'far'; it measured 'near'"),
        ("none", TaskError, "`evaluate` must return a mapping of names to numbers, got None"),
        ("dump", TaskError, r"`dump` must return bytes, got str; mopbt.dumps\("),
    ],
)
def test_a_broken_contract_ends_the_run_before_anything_is_saved(part, error, message):
    context = context_of(Broken(part=part))
    with pytest.raises(error, match=message):
        run_job(context, FIRST, {}, ModelCache(0))
    assert context.checkpoints.kept() == frozenset()


class Copying(ToyTask):
    def train(self, model, hp, begin, end, seed):
        return {
            key: value.copy()
            for key, value in super().train(dict(model), hp, begin, end, seed).items()
        }


class InPlace(ToyTask):
    def train(self, model, hp, begin, end, seed):
        super().train(model, hp, begin, end, seed)


class Buffers(ToyTask):
    def dump(self, model):
        return memoryview(bytearray(super().dump(model)))


@pytest.mark.parametrize("kind", [Copying, InPlace, Buffers])
def test_training_in_place_or_on_a_copy_and_other_kinds_of_bytes_are_the_same(kind):
    assert (
        run_job(context_of(kind()), FIRST, {}, ModelCache(0)).checksum
        == run_job(context_of(ToyTask()), FIRST, {}, ModelCache(0)).checksum
    )


class Blends(ToyTask):
    """A toy whose models can be averaged."""

    def blend(self, models, weights, hp, seed):
        return {
            name: sum(w * model[name] for model, w in zip(models, weights, strict=True))
            for name in models[0]
        }
