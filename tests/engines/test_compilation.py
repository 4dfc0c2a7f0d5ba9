"""Whether compiling pays: the policy, over tables of cases."""

import math

import pytest

from mopbt.engines import compilation
from mopbt.engines.compilation import (
    Compilation,
    CompilationChooser,
    CompilationTrial,
    as_chosen,
    choose_compilation,
    intervals_of_a_worker,
    may_repay,
)
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.trial import Trial
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.tasks.toy import ToyTask


@pytest.mark.parametrize(
    ("training", "expected"),
    [(0.0, False), (30.0, False), (59.0, False), (60.0, True), (3600.0, True), (math.inf, True)],
)
def test_short_trainings_are_not_compiled_to_find_out(training, expected):
    assert may_repay(training) is expected


@pytest.mark.parametrize(
    ("seconds", "usual", "compiled", "updates", "expected"),
    [
        # Compilation takes 30 s, and must save 60 s.
        (30, 0.020, 0.010, 6_000, True),
        (30, 0.020, 0.010, 5_999, False),
        (30, 0.020, 0.010, math.inf, True),
        # A gain of 1.2 is just enough.
        (30, 0.012, 0.010, 30_000, True),
        (30, 0.0119, 0.010, math.inf, False),
        (30, 0.010, 0.020, math.inf, False),
        # From the cache, compilation takes less.
        (5, 0.020, 0.010, 1_000, True),
        (0, 0.020, 0.010, 1, True),
    ],
)
def test_compilation_must_be_faster_and_repay_itself(seconds, usual, compiled, updates, expected):
    choice = choose_compilation(CompilationTrial(seconds, usual, compiled), updates)
    assert choice.compiled is expected
    assert f"{usual / compiled:.2f} times as fast" in choice.why


def test_the_reason_has_the_numbers():
    trial = CompilationTrial(seconds=40, usual=0.03, compiled=0.02)
    assert choose_compilation(trial, 1_000) == Compilation(
        False,
        "compiled updates are 1.50 times as fast, but save 10 s of 30 s and take 40 s to compile",
    )
    failed = CompilationTrial(1, 1, 1, failure="no compiler")
    assert choose_compilation(failed, math.inf) == Compilation(
        False, "training cannot be compiled (no compiler)"
    )


@pytest.mark.parametrize(
    ("engine", "jobs", "parallel", "expected"),
    [
        (LocalEngine(), 100, 10, 100),
        (PoolEngine(2), 100, 10, 50),
        (PoolEngine(8), 100, 4, 25),
        (VectorizedEngine(2, stack=16), 320, 32, 10),
        (VectorizedEngine(2, stack=16), 320, 16, 20),
        (VectorizedEngine(1, stack=64), 320, 32, 10),
        (VectorizedEngine(2, stack=16), math.inf, 32, math.inf),
    ],
)
def test_intervals_of_a_worker(engine, jobs, parallel, expected):
    assert intervals_of_a_worker(engine, jobs, parallel) == expected


def test_engines_without_a_number_of_workers_have_one_per_core(monkeypatch):
    monkeypatch.setattr(compilation, "available_cores", lambda: 4)
    engine = PoolEngine(2)
    engine.workers = None
    assert intervals_of_a_worker(engine, 100, 50) == 25


class Compiling(ToyTask):
    """A task that gives the answers it was built with, and records the questions."""

    compile = "auto"
    asked = None

    def choose_compilation(self, members, intervals, seconds):
        object.__setattr__(self, "asked", (members, intervals, seconds))
        return Compilation(True, "it pays")

    def with_compile(self, compile):
        task = Compiling()
        object.__setattr__(task, "compile", compile)
        return task


class TestChooser:
    def test_it_asks_the_task(self):
        task = Compiling()
        notes = []
        chooser = CompilationChooser(Trial(task), 320, 32, 60.0, notes.append)
        assert chooser.choose(VectorizedEngine(2, stack=16), {}) == Compilation(True, "it pays")
        assert task.asked == (16, 10, 60.0)
        assert len(notes) == 1

    def test_a_stack_is_not_larger_than_the_population(self):
        task = Compiling()
        CompilationChooser(Trial(task), 320, 8).choose(VectorizedEngine(2, stack=16), {})
        assert task.asked == (8, 40, math.inf)

    def test_it_reuses_what_was_recorded(self):
        task = Compiling()
        recorded = Compilation(False, "it did not pay").to_dict()
        chosen = CompilationChooser(Trial(task), 320, 32).choose(LocalEngine(), recorded)
        assert chosen == Compilation(False, "it did not pay")
        assert task.asked is None

    @pytest.mark.parametrize("task", [ToyTask(), Compiling().with_compile(False)])
    def test_tasks_that_are_not_compiled_are_not_asked(self, task):
        assert CompilationChooser(Trial(task), 320, 32).choose(LocalEngine(), {}) is None


def test_a_choice_applies_to_tasks_that_can_be_compiled():
    task = ToyTask()
    assert as_chosen(task, Compilation(True)) is task
    assert as_chosen(Compiling(), None).compile == "auto"
    assert as_chosen(Compiling(), Compilation(True)).compile is True
    assert as_chosen(Compiling(), Compilation(False)).compile is False
    assert Compilation.from_dict({}) is None
