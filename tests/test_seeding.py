import json
import math
import random
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mopbt import serialization
from mopbt.engines.base import ModelCache, RunContext, checked_scores, global_seeds, run_job
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


# --- the global generators ---------------------------------------------------------------------------------------------------


def test_the_global_generators_follow_the_seed():
    with global_seeds(3):
        first = draw()
    with global_seeds(3):
        assert draw() == first
    with global_seeds(4):
        assert all(a != b for a, b in zip(draw(), first, strict=True))


def fail_after_drawing():
    raise ZeroDivisionError(draw())


def test_they_are_put_back_afterwards_even_after_an_error():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    with pytest.raises(ZeroDivisionError), global_seeds(3):
        fail_after_drawing()
    assert before == (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_rng_state().tolist(),
    )


def test_seeds_within_seeds():
    with global_seeds(1):
        expected = [draw(), draw()]
    with global_seeds(1):
        found = [draw()]
        with global_seeds(2):
            draw()
        found.append(draw())
    assert found == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_every_derived_seed_is_accepted(seed):
    with global_seeds(seed):
        assert all(0 <= v < 1 for v in draw())


# --- models in memory --------------------------------------------------------------------------------------------------------


def test_a_warm_model_is_given_once():
    warm = ModelCache(100)
    warm.put(3, "model", 10)
    assert warm.take(3) == "model"
    assert warm.take(3) is None
    assert warm.take(None) is None


def test_the_oldest_go_first():
    warm = ModelCache(100)
    for id in range(4):
        warm.put(id, f"model {id}", 30)
    assert [warm.take(id) for id in range(4)] == [None, "model 1", "model 2", "model 3"]


def test_a_model_that_is_too_large_is_not_kept_and_empties_nothing_for_good():
    warm = ModelCache(100)
    warm.put(0, "large", 101)
    assert warm.take(0) is None
    warm.put(1, "small", 100)
    assert warm.take(1) == "small"


@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 30)), max_size=60),
)
def test_memory_never_holds_more_than_its_limit(limit, plays):
    """Against a plain list of what was put: newest last, the oldest dropped while there is too much; an id may come again."""
    warm, kept = ModelCache(limit), []
    for number, (puts, id, size) in enumerate(plays):
        found = [entry for entry in kept if entry[0] == id]
        if puts:
            warm.put(id, number, size)
            kept = [entry for entry in kept if entry[0] != id] + [(id, number, size)]
            while sum(entry[2] for entry in kept) > limit:
                kept.pop(0)
        else:
            assert warm.take(id) == (found[0][1] if found else None)
            kept = [entry for entry in kept if entry[0] != id]
    assert [warm.take(id) for id in range(5)] == [
        next((n for i, n, _ in kept if i == id), None) for id in range(5)
    ]


# --- scores ------------------------------------------------------------------------------------------------------------------


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
    found = checked_scores(scores)
    assert all(type(v) is float for v in found.values())
    assert repr(found) == "{'a': 1.0, 'b': 0.5, 'c': 0.25, 'd': 1.0, 'e': nan, 'f': 2.0, 'g': inf}"


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "`evaluate` must return a mapping of names to numbers, got None"),
        (0.5, "`evaluate` must return a mapping of names to numbers, got 0.5"),
        ([("a", 1)], "`evaluate` must return a mapping of names to numbers, got [('a', 1)]"),
        ({"a": None}, "the score 'a' must be a number, got None"),
        ({"a": "high"}, "the score 'a' must be a number, got 'high'"),
        ({"a": 1j}, "the score 'a' must be a number, got 1j"),
        ({"a": np.zeros(2)}, "the score 'a' must be a number, got array([0., 0.])"),
        ({"a": torch.zeros(2)}, "the score 'a' must be a number, got tensor([0., 0.])"),
        ({"a": 10**400}, "the score 'a' must be a number, got 1000"),
    ],
)
def test_scores_that_are_not_numbers_are_said(scores, message):
    with pytest.raises(TaskError) as caught:
        checked_scores(scores)
    assert str(caught.value).startswith(message)


# --- carrying out a job ------------------------------------------------------------------------------------------------------

FIRST, SECOND = Job(0, 0, (4, 6), None, 0, 2), Job(1, 0, (4, 6), 0, 2, 4)


def work_on(task, seed=0):
    return RunContext(task, problem_of(task), seed, MemoryCheckpoints())


def test_a_report_holds_what_was_measured_and_saved():
    work = work_on(ToyTask())
    report = run_job(work, FIRST, "", ModelCache(0))
    data = work.checkpoints.load(0, report.checksum)
    scores = work.task.evaluate(work.task.load(data))
    assert report.error == ""
    assert report.scores == scores
    assert report.objectives == (scores["near"], scores["far"])
    assert report.violation == 0.0
    assert report.duration > 0


def test_the_task_gets_the_seeds_of_the_job():
    task = ToyTask()
    report = run_job(work_on(task, seed=5), FIRST, "", ModelCache(0))
    values = task.space["weight"].values[4], task.space["lr"].values[6]
    model = task.train(
        task.init(derived_seed(5, "init", 0)),
        dict(zip(("weight", "lr"), values, strict=True)),
        0,
        2,
        derived_seed(5, "train", 0, 0),
    )
    assert report.checksum == checksum_of(task.dump(model))
    assert run_job(work_on(task, seed=6), FIRST, "", ModelCache(0)).checksum != report.checksum


@dataclass(frozen=True)
class Constrained(ToyTask):
    constraints = ("near >= 2", "far < -1")


def test_violations_are_reported():
    report = run_job(work_on(Constrained(noise=0.0)), FIRST, "", ModelCache(0))
    expected = (2 - report.scores["near"]) / 2 + (report.scores["far"] + 1)
    assert report.violation == pytest.approx(expected)


class TorchTask:
    """A model that draws random numbers when it is made, when it is trained, and when it is measured."""

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


def chain(warm_bytes, count=3):
    work, warm, reports = work_on(TorchTask()), ModelCache(warm_bytes), []
    for i in range(count):
        reports.append(
            run_job(
                work,
                Job(i, 0, (4,), i - 1 if i else None, i, i + 1),
                reports[-1].checksum if i else "",
                warm,
            )
        )
    return [(r.objectives, r.checksum, r.error) for r in reports]


def test_a_model_from_memory_and_one_from_disk_train_alike():
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


def test_warm_models_are_those_of_the_checkpoint():
    work, warm = work_on(ToyTask()), ModelCache(2**20)
    first = run_job(work, FIRST, "", warm)
    work.checkpoints.drop([0])
    assert run_job(work, SECOND, first.checksum, warm).error == ""  # in memory still
    assert "checkpoint 0 is not there" in run_job(work, SECOND, first.checksum, warm).error  # taken


def test_a_failure_is_a_report_and_saves_nothing():
    work = work_on(FailingToy())
    report = run_job(work, Job(0, 0, (10, 6), None, 0, 2), "", ModelCache(0))
    assert report.objectives is None
    assert "ZeroDivisionError" in report.error
    assert "in train" in report.error  # with its traceback
    assert work.checkpoints.kept() == frozenset()


def test_a_failure_does_not_leave_a_half_trained_model_in_memory():
    task = ToyTask()
    work, warm = work_on(task), ModelCache(2**20)
    first = run_job(work, FIRST, "", warm)
    expected = run_job(work, SECOND, first.checksum, ModelCache(0)).checksum

    class Breaks(ToyTask):
        def train(self, model, hp, begin, end, seed):
            super().train(model, hp, begin, end, seed)
            raise RuntimeError("after training in place")

    broken = Breaks()
    assert (
        "after training"
        in run_job(
            RunContext(broken, work.problem, 0, work.checkpoints), SECOND, first.checksum, warm
        ).error
    )
    assert run_job(work, SECOND, first.checksum, warm).checksum == expected


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
        ("dump", TaskError, r"`dump` must return bytes, got str; mopbt.dumps\(...\) makes bytes"),
    ],
)
def test_a_broken_contract_ends_the_run_before_anything_is_saved(part, error, message):
    work = work_on(Broken(part=part))
    with pytest.raises(error, match=message):
        run_job(work, FIRST, "", ModelCache(0))
    assert work.checkpoints.kept() == frozenset()


class Anew(ToyTask):
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


@pytest.mark.parametrize("kind", [Anew, InPlace, Buffers])
def test_training_in_place_and_anew_and_other_kinds_of_bytes_are_the_same(kind):
    assert (
        run_job(work_on(kind()), FIRST, "", ModelCache(0)).checksum
        == run_job(work_on(ToyTask()), FIRST, "", ModelCache(0)).checksum
    )


# --- PyTorch that is imported in the middle of an interval -------------------------------------------------------------------

LATE = """
    import json, sys
    if "early" in sys.argv:
        import torch
    from mopbt.engines.base import Warm, Work, perform
    from mopbt.space import Grid
    from mopbt.state import Job
    from mopbt.stores.memory import MemoryCheckpoints
    from mopbt.problem import problem_of

    class Late:
        space, objectives, interval, steps = {"x": Grid(0, 1, 3)}, {"a": "max"}, 1, 2
        trained = []
        def init(self, seed):
            return [0.0]
        def train(self, model, hp, begin, end, seed):
            self.trained.append(list(model))
            if begin:
                import torch  # in the second interval
                model[0] += float(torch.rand(()))
            model[0] += hp["x"]
        def evaluate(self, model):
            return {"a": model[0]}
        def dump(self, model):
            return json.dumps(model).encode()
        def load(self, data):
            return json.loads(data)

    task = Late()
    work, warm = Work(task, problem_of(task), 0, MemoryCheckpoints()), Warm(1000)
    first = perform(work, Job(0, 0, (1,), None, 0, 1), "", warm)
    second = perform(work, Job(1, 0, (1,), 0, 1, 2), first.checksum, warm)
    again = perform(work, Job(1, 0, (1,), 0, 1, 2), first.checksum, warm)
    json.dump([second.error, second.scores, again.scores, second.checksum == again.checksum, task.trained], sys.stdout)
"""


def run_late(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(LATE), *arguments],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.slow
def test_pytorch_that_is_imported_midway_is_seeded_all_the_same():
    late, early = run_late(), run_late("early")
    assert late[0] == ""
    assert late[1] == late[2] == early[1] == early[2]
    assert late[3]
    # Once more from the same start, by the checkpoint: the model in memory had been trained on.
    assert late[4] == [[0.0], [0.5], [0.5], [0.5]]
    assert early[4] == [[0.0], [0.5], [0.5]]
