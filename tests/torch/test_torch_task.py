import pickle
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.torch.nets import (
    COLUMNS,
    cross_entropy,
    dropping,
    dropping_task,
    make_task,
    mlp,
    rows,
    scores,
)
from torch import nn

import mopbt
from mopbt.device import assign_device
from mopbt.errors import CannotStack, MissingScore, TaskError, UnreadHyperparameter
from mopbt.testing import TaskConformance
from mopbt.torch import SGD, AdamW, Batches, Dropout, Hyperparameter, TorchTask
from mopbt.torch.device import find_device
from mopbt.torch.memory import limits_of


class TestTorchTask(TaskConformance):
    def make(self):
        return dropping_task(optimizer=AdamW(lr="lr"), interval=2)


class TestWithBatchNorm(TaskConformance):
    def make(self):
        return make_task(
            lambda: nn.Sequential(nn.Linear(COLUMNS, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            clip=1.0,
        )


def check_refused(tmp_path, error, message, **options):
    """Check that a run raises an error before it writes anything."""
    for engine in ("local", "auto"):
        with pytest.raises(error, match=message):
            mopbt.run(
                make_task(**options),
                out=tmp_path / "run",
                population=4,
                engine=engine,
                progress=False,
            )
    assert not (tmp_path / "run").exists()


class Grown(nn.Sequential):
    """A model with a random shape."""

    def __init__(self):
        width = int(torch.randint(2, 10_000, ()))
        super().__init__(nn.Linear(COLUMNS, width), nn.Linear(width, 2))


BAD = {
    "the optimizer's `lr` uses the hyperparameter 'rate', but the space has 'lr'": (
        ValueError,
        {"optimizer": SGD(lr="rate")},
    ),
    "the model uses the hyperparameter 'heat', but the space has 'lr'": (
        TaskError,
        {"model": lambda: nn.Sequential(mlp(), Dropout("heat"))},
    ),
    "the metric 'recall' must be a number, got 'good'": (
        TaskError,
        {"metrics": lambda o, y: {"recall": "good", "specificity": 1}},
    ),
    "the metric 'recall' must be a number, got None": (
        TaskError,
        {"metrics": lambda o, y: {"recall": None, "specificity": 1}},
    ),
    "the metric 'recall' must be a number, got tensor": (
        TaskError,
        {"metrics": lambda o, y: {"recall": o, "specificity": 1}},
    ),
    "`metrics` must return a mapping of names to numbers, got 0.5": (
        TaskError,
        {"metrics": lambda o, y: 0.5},
    ),
    "objectives name 'specificity', but the task measures 'recall'": (
        MissingScore,
        {"metrics": lambda o, y: {"recall": 1.0}},
    ),
    "constraints name 'size', but the task measures 'recall'": (
        MissingScore,
        {"constraints": ["size <= 3"]},
    ),
    "`evaluate_model` must return a mapping": (
        TaskError,
        {"metrics": None, "validation": None, "evaluate_model": lambda model: None},
    ),
    r"`loss` must return a tensor without dimensions, got a tensor of shape \(32,\)": (
        TaskError,
        {"loss": lambda m, b, hp: nn.functional.cross_entropy(m(b[0]), b[1], reduction="none")},
    ),
    "`loss` must return a tensor without dimensions, got 0.5": (
        TaskError,
        {"loss": lambda m, b, hp: 0.5},
    ),
    "`loss` does not depend on any parameter": (TaskError, {"loss": lambda m, b, hp: b[0].sum()}),
    "in every member": (TaskError, {"model": Grown}),
    "same number of rows, got .64, 60.": (ValueError, {"validation": (rows(64)[0], rows(60)[1])}),
    "tensors of `test` must have the same number of rows": (
        ValueError,
        {"test": (rows(64)[0], rows(60)[1])},
    ),
    r"`validation` must be tensors with rows, such as \(inputs, labels\), got Tensor": (
        ValueError,
        {"validation": rows(64)[0]},
    ),
    "needs `metrics` and `validation`, .*but not both": (
        ValueError,
        {"evaluate_model": lambda model: {}},
    ),
    "needs `metrics` and `validation`, or `evaluate_model`": (ValueError, {"metrics": None}),
    "`holdout` must be a share .* got 1.0 of 64": (ValueError, {"holdout": 1.0}),
    "`holdout` must be a share .* got 0.001 of 64": (ValueError, {"holdout": 0.001}),
    "`holdout` must be a share .* got 1 of 64": (ValueError, {"holdout": 1}),
    "the tensors of `holdout` must have the same": (
        ValueError,
        {"holdout": (rows(5)[0], rows(4)[1])},
    ),
    "`clip` must be a positive number": (ValueError, {"clip": 0.0}),
    "`steps` .*must be a multiple of `interval`": (ValueError, {"interval": 3}),
    "no parameters to train": (TaskError, {"model": nn.Identity}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_raise_an_error_before_anything_is_written(tmp_path, message):
    error, options = BAD[message]
    check_refused(tmp_path, error, message, **options)


def test_metrics_and_evaluate_model_exclude_each_other():
    for options in ({"validation": None}, {}):
        with pytest.raises(ValueError, match="but not both"):
            make_task(evaluate_model=lambda model: {}, **options)
    for name in ("test", "holdout"):
        options = {"metrics": None, "validation": None, name: rows(10)}
        with pytest.raises(ValueError, match="`test` and `holdout` need `validation`"):
            make_task(evaluate_model=lambda model: {}, **options)


def test_a_hyperparameter_without_effect_stops_a_run():
    space = {"lr": mopbt.LogGrid(0.01, 1, 3), "idle": mopbt.Grid(0, 1, 3)}
    with pytest.raises(UnreadHyperparameter, match="never read 'idle'"):
        mopbt.run(make_task(space=space), out=None, population=4, engine="local", progress=False)


def test_global_random_states_are_restored():
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    task = dropping_task()
    task.check()
    task.probe(2)
    task.init(5)
    got = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert torch.equal(got[0], expected[0])
    assert got[1:] == expected[1:]


def test_a_seed_determines_the_initial_weights():
    task = make_task()
    assert task.dump(task.init(3)) == task.dump(task.init(3)) != task.dump(task.init(4))


def test_evaluate_model_gets_each_member_in_evaluation_mode():
    def measure(model):
        assert not model.training
        model.train()  # The task must not rely on the mode that the function leaves.
        with torch.enable_grad():
            assert model(x).requires_grad
        return scores(model.eval()(x), y)

    x, y = rows(64, seed=1)
    usual = dropping_task()
    task = replace(usual, metrics=None, validation=None, evaluate_model=measure)
    members = [task.init(i) for i in range(3)]
    for member, measured in zip(members, task.evaluate_many(members), strict=True):
        assert measured == pytest.approx(usual.evaluate(member), abs=1e-6)


def test_evaluation_in_parts_gives_the_same_metrics(monkeypatch):
    task = dropping_task()
    members = [task.init(i) for i in range(3)]
    complete = task.evaluate_many(members)
    monkeypatch.setattr("mopbt.torch.memory.CPU_BYTES", 2000)
    in_parts = dropping_task()
    for a, b in zip(in_parts.evaluate_many(members), complete, strict=True):
        assert a == pytest.approx(b, abs=1e-6)
    assert in_parts.evaluate(members[0]) == pytest.approx(complete[0], abs=1e-6)
    limits = limits_of(in_parts._program.module)._limits
    assert all(rows < 64 for rows in limits.values())
    assert len(limits) == 2


def test_a_checkpoint_is_a_safetensors_file_of_model_and_optimizer():
    task = dropping_task(optimizer=AdamW(lr="lr"))
    member = task.train(task.init(0), {"lr": 0.1, "dropout": 0.5, "balance": 1.0}, 0, 1, 2)
    tensors = safetensors.torch.load(task.dump(member))
    assert torch.equal(tensors["model.0.weight"], member["model"]["0.weight"])
    assert torch.equal(
        tensors["optimizer.exp_avg_sq.0.weight"], member["optimizer"]["exp_avg_sq"]["0.weight"]
    )
    assert len(tensors) == 3 * len(dropping().state_dict())
    assert task.load(task.dump(member))["updates"] == task.data.updates


def test_an_exploit_copies_the_optimizer_state():
    task = make_task(optimizer=SGD(lr="lr", momentum=0.99), updates=1)
    donor = task.train(task.init(0), {"lr": 0.5}, 0, 1, 2)
    still = {**donor, "optimizer": {}}
    with_state, without = (
        task.train(task.load(task.dump(m)), {"lr": 0.5}, 1, 2, 3) for m in (donor, still)
    )
    moved = [m["model"]["0.weight"] - donor["model"]["0.weight"] for m in (with_state, without)]
    carried = 0.5 * 0.99 * donor["optimizer"]["momentum_buffer"]["0.weight"]
    torch.testing.assert_close(moved[0] - moved[1], -carried, rtol=1e-3, atol=1e-5)


def test_a_used_task_can_be_pickled():
    task = make_task(mlp)
    task.check()
    copy = pickle.loads(pickle.dumps(task))
    assert not [name for name in vars(copy) if name.startswith("_built")]
    assert copy.dump(copy.init(1)) == task.dump(task.init(1))


def test_shared_data_may_have_several_inputs_in_the_loss():
    def pairwise(model, batch, hp):
        a, b, same = batch
        return nn.functional.cosine_embedding_loss(model(a), model(b), same)

    x, y = rows()
    data = Batches(x, x.flip(0), torch.where(y == y.flip(0), 1, -1), batch_size=32)
    task = make_task(loss=pairwise, data=data)
    members = [task.init(0), task.init(1)]
    hp = [{"lr": 0.1}, {"lr": 0.01}]
    alone = [task.train(m, v, 0, 1, 4) for m, v in zip(members, hp, strict=True)]
    for a, b in zip(alone, task.train_many(members, hp, [0, 0], [4, 4]), strict=True):
        torch.testing.assert_close(b["model"], a["model"], rtol=1e-4, atol=1e-6)


def test_a_model_learns():
    task = make_task(optimizer=AdamW(lr="lr"), steps=30, interval=30, model=lambda: mlp(32))
    start = task.init(0)
    assert (
        task.evaluate(task.train(start, {"lr": 0.02}, 0, 30, 1))["loss"]
        < 0.75 * task.evaluate(start)["loss"]
    )


@pytest.mark.slow
def test_a_script_with_lambdas_and_without_a_main_guard_works_on_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch
from torch import nn
import mopbt
from mopbt.torch import AdamW, Batches, Dropout, TorchTask

x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), Dropout("p"), nn.Linear(8, 2))
    def forward(self, x):
        return self.layers(x)
task = TorchTask(
    lambda: Net(),
    loss=lambda model, batch, hp: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    data=Batches(x, y, batch_size=32),
    space={"lr": mopbt.LogGrid(0.01, 0.1, 5), "p": mopbt.Grid(0, 0.5, 3)},
    objectives={"a": "max", "b": "max"},
    steps=2,
    optimizer=AdamW(lr="lr"),
    metrics=lambda out, y: {"a": (out.argmax(1) == y).float().mean(), "b": -out.abs().mean()},
    validation=(x, y),
    device="cpu",
)
for engine in (mopbt.PoolEngine(1), mopbt.VectorizedEngine(1, stack=4)):
    results = mopbt.run(task, out=None, population=4, engine=engine, progress=False)
    Net().load_state_dict(results.load(results.front()[0])["model"])
    print("reports", len(results), "failures", len(results.failures))
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["reports 8 failures 0"] * 2


def test_names_are_public():
    assert isinstance(make_task(), TorchTask)
    assert Hyperparameter("a").name == "a"
    assert cross_entropy(mlp(), rows(8), {}).dim() == 0


@pytest.mark.parametrize("way", ["loop", "stack"])
def test_mixed_precision_trains_in_full_precision_weights(way):
    task = make_task(precision="bf16")
    members = [task.init(0), task.init(1)]
    hp = [{"lr": 0.1}, {"lr": 0.1}]
    if way == "loop":
        trained = [
            task.train(member, own, 0, 1, 7) for member, own in zip(members, hp, strict=True)
        ]
    else:
        trained = task.train_many(members, hp, [0, 0], [7, 7])
    full = make_task().train(members[0], hp[0], 0, 1, 7)
    for name, tensor in full["model"].items():
        assert trained[0]["model"][name].dtype == torch.float32
        torch.testing.assert_close(trained[0]["model"][name], tensor, rtol=0.1, atol=0.05)
        assert not torch.equal(trained[0]["model"][name], tensor)


@pytest.fixture
def assign():
    yield assign_device
    assign_device("")


@pytest.mark.parametrize("name", ["auto", "meta", "meta:3"])
def test_a_task_trains_on_the_device_that_the_engine_assigned(assign, name):
    assert find_device("auto").type == "cpu"
    assign("meta")
    assert find_device(name) == torch.device("meta")
    assert make_task(device=name)._program.module.state_dict()["0.weight"].is_meta


def test_a_device_of_another_kind_than_the_assigned_one_is_an_error(assign):
    assign("meta")
    with pytest.raises(
        TaskError, match="sets device='cpu', but the engine assigned 'meta'.*leave `device` at"
    ):
        find_device("cpu")


class TestCategories:
    """Strings reach the loss of members that train one by one; elsewhere they are an error."""

    SPACE = {
        "lr": mopbt.LogGrid(0.001, 1.0, 10),
        "activation": mopbt.Categorical(["relu", "gelu"]),
    }

    def test_a_loss_reads_a_string(self, tmp_path):
        seen = set()

        def loss(model, batch, hp):
            seen.add(hp["activation"])
            hidden = getattr(torch.nn.functional, hp["activation"])(model[0](batch[0]))
            return torch.nn.functional.cross_entropy(model[2](hidden), batch[1])

        task = make_task(loss=loss, space=self.SPACE)
        results = mopbt.run(
            task, out=tmp_path / "run", population=8, engine="local", progress=False
        )
        assert seen == {"relu", "gelu"}
        assert {point.hp["activation"] for point in results.points()} <= seen
        with pytest.raises(CannotStack, match="hyperparameter 'activation' is not a number"):
            task.check_stack()

    def test_a_model_that_needs_a_number_names_the_alternative(self, tmp_path):
        model = lambda: nn.Sequential(nn.Linear(COLUMNS, 2), Hyperparameter("activation"))  # noqa: E731
        message = r"the model uses the hyperparameter 'activation', which must be a number.*in the"
        check_refused(tmp_path, TaskError, message, model=model, space=self.SPACE)

    def test_an_optimizer_that_needs_a_number_names_the_alternative(self):
        with pytest.raises(ValueError, match=r"`lr` uses the hyperparameter 'activation'.*number"):
            make_task(optimizer=SGD(lr="activation"), space=self.SPACE)
