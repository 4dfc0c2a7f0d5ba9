"""Compile training: the same gradients, a fallback, and a choice that runs record."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from tests.torch.nets import COLUMNS, cross_entropy, dropping_task, make_task
from torch import nn
from torch.nn import functional as F

import mopbt
from mopbt.engines.compilation import Compilation
from mopbt.engines.seeding import global_seeds
from mopbt.errors import UnreadHyperparameter
from mopbt.problem import Hyperparameters, problem_of, with_compile
from mopbt.run_config import RunConfig, as_recorded
from mopbt.run_directory import read_run_config
from mopbt.tasks.toy import ToyTask
from mopbt.torch import Dropout, Hyperparameter, compilation
from mopbt.torch.task import TorchTask

HP = [
    {"lr": 0.1, "dropout": 0.5, "balance": 2.0},
    {"lr": 0.03, "dropout": 0.2, "balance": 1.0},
]
WAYS = ["loop", "stack"]


def norm_and_dropout():
    return nn.Sequential(
        nn.Linear(COLUMNS, 8), nn.BatchNorm1d(8), nn.ReLU(), Dropout("dropout"), nn.Linear(8, 2)
    )


def train(task, way, hp=HP, begin=0, members=None):
    """Train two members for an interval; return their checkpoints."""
    members = members or [task.init(0), task.init(1)]
    with global_seeds(7):
        if way == "stack":
            return [task.dump(m) for m in task.train_many(members, hp, [begin] * 2, [3, 4])]
        pairs = zip(members, hp, (3, 4), strict=True)
        trained = [task.train(m, own, begin, begin + task.interval, s) for m, own, s in pairs]
        return [task.dump(m) for m in trained]


def both_tasks(**options):
    """Build a task that is compiled and the same one without compilation."""
    task = replace(dropping_task(**options), model=norm_and_dropout)
    return replace(task, compile=True), task


@pytest.fixture
def compile_with(monkeypatch):
    """Replace `torch.compile` by a function of the function to compile."""

    def use(compiled):
        monkeypatch.setattr(torch, "compile", lambda function, **options: compiled(function))

    return use


@pytest.mark.parametrize("wrong", ["yes", "", 1, None, 0.0])
def test_an_unknown_option_is_an_error(wrong):
    with pytest.raises(ValueError, match="`compile` must be True, False or 'auto', got"):
        make_task(compile=wrong)


@pytest.mark.parametrize("way", WAYS)
class TestFallback:
    def test_trying_out_changes_neither_state_nor_random_numbers(self, way, compile_with):
        compile_with(lambda function: function)
        compiled, usual = both_tasks(interval=2)
        assert train(compiled, way) == train(usual, way)

    def test_a_failure_is_reported_once_and_training_continues(self, way, compile_with):
        def fail(*arguments):
            raise RuntimeError("no compiler\nand more lines")

        compile_with(lambda function: fail)
        compiled, usual = both_tasks(interval=2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained = train(compiled, way)
            train(compiled, way, begin=2)
        assert [str(w.message) for w in caught] == [
            "training continues without compilation: RuntimeError: no compiler. This is reported "
            "once."
        ]
        assert trained == train(usual, way)

    def test_other_gradients_are_not_used(self, way, compile_with):
        def wrong(function):
            def doubled(*arguments):
                found = function(*arguments)
                return 2 * found if way == "loop" else (2 * found[0], found[1])

            return doubled

        compile_with(wrong)
        compiled, usual = both_tasks()
        with pytest.warns(RuntimeWarning, match="compiled gradients differ by 1"):
            trained = train(compiled, way)
        assert trained == train(usual, way)

    def test_a_missing_gradient_is_a_difference(self, way, compile_with):
        def broken(function):
            def nothing(*arguments):
                found = function(*arguments)
                nan = float("nan")
                return nan * found if way == "loop" else (nan * found[0], found[1])

            return nothing

        compile_with(broken)
        compiled, usual = both_tasks()
        with pytest.warns(RuntimeWarning, match="differ by nan"):
            assert train(compiled, way) == train(usual, way)

    @pytest.mark.filterwarnings("ignore:Training members as a stack ran out")
    def test_want_of_memory_is_not_a_failure_of_compilation(self, way, compile_with):
        def exhaust(*arguments):
            raise torch.OutOfMemoryError("out of memory")

        compile_with(lambda function: exhaust)
        task, _ = both_tasks()
        with pytest.raises(torch.OutOfMemoryError):
            train(task, way)

    def test_reads_are_recorded_in_later_intervals_too(self, way, compile_with):
        compile_with(lambda function: function)
        task, _ = both_tasks()
        for begin in (0, 1):
            hp = [Hyperparameters(own) for own in HP]
            train(task, way, hp, begin)
            for own in hp:
                own.check_read()

    def test_an_unread_hyperparameter_stays_one(self, way, compile_with):
        compile_with(lambda function: function)
        task = replace(both_tasks()[0], loss=cross_entropy)
        for begin in (0, 1):
            hp = [Hyperparameters(own) for own in HP]
            train(task, way, hp, begin)
            with pytest.raises(UnreadHyperparameter, match="balance"):
                hp[0].check_read()

    def test_an_error_of_the_task_is_raised_as_usual(self, way, compile_with):
        compile_with(lambda function: function)

        def loss(model, batch, hp):
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        task = make_task(loss=loss, compile=True)
        with pytest.raises(Exception, match="must return a tensor without dimensions"):
            train(task, way, [{"lr": 0.1}] * 2)


def test_one_function_serves_all_intervals(compile_with):
    compiled = []

    def remember(function):
        compiled.append(function)
        return function

    compile_with(remember)
    task, _ = both_tasks()
    for begin in (0, 1, 2):
        train(task, "stack", begin=begin)
        train(task, "loop", begin=begin)
    assert len(compiled) == 2


def test_measurements_do_not_compile(compile_with):
    compile_with(lambda function: pytest.fail("compiled"))
    task, _ = both_tasks()
    task.check()
    task.check_stack()
    task.probe(2, seconds=0.01)
    task.measure_update(seconds=0.01)
    task.measure_interval(seconds=0.01)


class TestChoice:
    """What `compile="auto"` decides, and what a run records of it."""

    @pytest.fixture(autouse=True)
    def _in_short(self, monkeypatch):
        monkeypatch.setattr(compilation, "TRIAL_SECONDS", 0.01)

    def test_a_short_run_is_not_compiled_to_find_out(self, compile_with):
        compile_with(lambda function: pytest.fail("compiled"))
        task = make_task(compile="auto")
        for members in (1, 4):
            chosen = task.choose_compilation(members, intervals=10)
            assert not chosen.compiled
            assert "too short to compile" in chosen.why
        assert "too short" in task.choose_compilation(1, intervals=1e9, seconds=50).why

    @pytest.mark.parametrize(
        ("usual", "compiled", "expected"),
        [([0.03, 0.02], [0.02, 0.01], True), ([0.02, 0.01], [0.01, 0.02], False)],
    )
    def test_a_long_one_is_measured_twice(self, usual, compiled, expected):
        program = make_task(compile=True)._program
        usual_times = iter(usual)
        compiled_times = iter([0.5, *compiled])  # The first update compiles.
        chosen = compilation.try_compilation(
            lambda **options: next(usual_times),
            lambda **options: next(compiled_times),
            program,
            updates=1e9,
            seconds=math.inf,
            is_required=False,
        )
        assert chosen.compiled is expected

    @pytest.mark.parametrize("members", [1, 3])
    def test_both_ways_are_tried(self, members, compile_with, monkeypatch):
        seen = []
        compile_with(lambda function: seen.append(function) or function)
        make_task(compile="auto").choose_compilation(members, intervals=1e9)
        assert len(seen) == 1

    def test_want_of_memory_is_a_reason(self, compile_with):
        def exhaust(*arguments):
            raise torch.OutOfMemoryError("out of memory")

        compile_with(lambda function: exhaust)
        chosen = make_task(compile="auto").choose_compilation(2, intervals=1e9)
        assert chosen == Compilation(False, "there is not enough memory to try compilation")

    @pytest.mark.parametrize("compile", ["auto", True])
    def test_a_failure_is_the_reason(self, compile, compile_with, recwarn):
        def fail(*arguments):
            raise RuntimeError("no compiler")

        compile_with(lambda function: fail)
        chosen = make_task(compile=compile).choose_compilation(2, intervals=1e9)
        assert chosen == Compilation(
            False, "training cannot be compiled (RuntimeError: no compiler)"
        )
        assert not recwarn.list

    def test_a_task_that_asks_for_it_is_compiled_however_short_the_run(self, compile_with):
        compile_with(lambda function: function)
        chosen = make_task(compile=True).choose_compilation(2, intervals=1)
        assert chosen.compiled
        assert "the task asks for it" in chosen.why

    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_a_run_records_it_and_a_resumed_run_reuses_it(
        self, is_compiled, tmp_path, monkeypatch, compile_with
    ):
        asked, compiled = [], []

        def choose(self, members, intervals, seconds):
            asked.append((members, intervals, seconds))
            return Compilation(is_compiled, "it was measured")

        compile_with(lambda function: compiled.append(function) or function)
        monkeypatch.setattr(TorchTask, "choose_compilation", choose)
        options = {"out": tmp_path, "population": 2, "engine": "local", "progress": False}
        for jobs in (2, 4):
            task = make_task(compile="auto")
            mopbt.run(task, budget=mopbt.Budget(jobs=jobs), **options)
        assert asked == [(1, 2, float("inf"))]
        assert len(compiled) == (2 if is_compiled else 0)
        recorded = read_run_config(tmp_path).compilation
        assert recorded == {"compiled": is_compiled, "why": "it was measured"}

    def test_tasks_without_compilation_record_nothing(self, tmp_path):
        options = {"population": 2, "engine": "local", "progress": False}
        mopbt.run(make_task(), out=tmp_path, budget=mopbt.Budget(jobs=2), **options)
        assert "compil" not in (tmp_path / "run.toml").read_text()

    def test_a_run_says_what_was_chosen(self, tmp_path, capfd):
        task = make_task(compile="auto")
        mopbt.run(task, out=tmp_path, population=2, engine="local")
        shown = " ".join(capfd.readouterr().err.split())
        assert "measuring whether compiled training pays off" in shown
        assert "compilation: no, as a worker trains for about 0 s, too short to compile" in shown


class TestCommandLine:
    @pytest.mark.parametrize(
        ("text", "expected"), [("auto", "auto"), ("true", True), ("false", False), (None, "auto")]
    )
    def test_an_option_chooses(self, text, expected):
        assert with_compile(make_task(compile="auto"), text).compile == expected

    def test_wrong_options_are_errors(self):
        with pytest.raises(ValueError, match="`compile` must be auto, true or false, got 'yes'"):
            with_compile(make_task(), "yes")
        with pytest.raises(ValueError, match="such as a TorchTask, got 'true' for 'toy'"):
            with_compile(ToyTask(), "true")

    def test_resume_and_replay_compile_like_the_run(self):
        task = make_task()
        for recorded, expected in (({}, False), ({"compiled": True, "why": "it pays"}, True)):
            settings = RunConfig(problem_of(task), {"name": "mo-pbt"}, 0, compilation=recorded)
            assert as_recorded(task, settings).compile is expected


# The tests from here on call the compiler, and take several seconds each.


class Tuned(nn.Module):
    """A network with a tuned factor, running statistics and a buffer that is assigned."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.factor = Hyperparameter("dropout")
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return self.last(torch.relu(self.norm(self.first(x))) * (1 + self.factor()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # The compiler warns.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", [norm_and_dropout, Tuned])
def test_compiled_training_agrees_with_the_usual_one(way, precision, model):
    compiled, usual = (replace(t, model=model, precision=precision) for t in both_tasks(interval=2))
    a, b = ([usual.load(data) for data in train(task, way)] for task in (usual, compiled))
    assert not compiled._program.compiler.failure
    tolerance = {"fp32": 1e-5}.get(precision, 0.03)
    for own, other in zip(a, b, strict=True):
        torch.testing.assert_close(other["model"], own["model"], rtol=tolerance, atol=tolerance)
        assert other["updates"] == own["updates"]
        assert other.get("scaling") == own.get("scaling")
    for begin in (0, 2):
        hp = [Hyperparameters(own) for own in HP]
        train(compiled, way, hp, begin)
        hp[0].check_read()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_compiled_training_continues_to_the_byte_in_another_process(way):
    first, _ = both_tasks()
    trained = train(first, way)
    whole = train(first, way, begin=1, members=[first.load(data) for data in trained])
    second, _ = both_tasks()  # As in another process, nothing is compiled yet.
    assert train(second, way) == trained
    members = [second.load(data) for data in trained]
    assert train(second, way, begin=1, members=members) == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_python_cannot_trace_is_not_compiled():
    def loss(model, batch, hp):
        value = cross_entropy(model, batch, hp)
        return value * (1 + 0 * value.item())

    # A single member may be compiled in parts.
    alone = make_task(loss=loss, compile=True)
    usual = make_task(loss=loss)
    hp = [{"lr": 0.1}] * 2
    for a, b in zip(train(alone, "loop", hp), train(usual, "loop", hp), strict=True):
        here, there = usual.load(a), usual.load(b)
        torch.testing.assert_close(here["model"], there["model"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_python_state_that_changes_is_noticed():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(COLUMNS, 2)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.net(x) * (2.0 if self.calls % 2 else 0.5)

    hp = [{"lr": 0.1}] * 2
    for way in WAYS:
        compiled, usual = (make_task(Counting, compile=c) for c in (True, False))
        # Trying out calls the model twice, so that the count is as in usual training.
        pairs = zip(train(compiled, way, hp), train(usual, way, hp), strict=True)
        for a, b in pairs:
            here, there = usual.load(a), usual.load(b)
            torch.testing.assert_close(here["model"], there["model"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_of_compiled_stacks(tmp_path):
    compiled, usual = both_tasks()
    engine = mopbt.VectorizedEngine(1, stack=4)
    options = {"population": 4, "engine": engine, "progress": False}
    results = mopbt.run(compiled, out=tmp_path / "compiled", **options)
    expected = mopbt.run(usual, out=tmp_path / "usual", **options)
    assert read_run_config(tmp_path / "compiled").compilation["compiled"]
    assert len(results) == len(expected)
    for point, other in zip(results.points(), expected.points(), strict=True):
        assert point.scores["recall"] == pytest.approx(other.scores["recall"], abs=0.02)
