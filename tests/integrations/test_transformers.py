"""Hugging Face's Trainer as a task: built once, restored exactly, with the member's own values."""

import numpy as np
import pytest
import torch

import mopbt
from mopbt.engines.pool import PoolEngine
from mopbt.errors import MissingScore, TaskError, TaskFailed, UnknownHyperparameter

transformers = pytest.importorskip("transformers")

from mopbt.integrations.transformers import TrainerTask  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
ROWS = [
    {"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": torch.tensor(i % 2)}
    for i in range(40)
]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rates(transformers.TrainerCallback):
    """Remember the settings of the optimizer at each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, optimizer=None, **unused):
        group = optimizer.param_groups[0]
        self.seen.append((group["lr"], group["weight_decay"]))


class Build:
    """Build a Trainer, and note it in a file that all processes share."""

    def __init__(self, folder, net=Net, **arguments):
        self.folder = folder
        self.net = net
        self.arguments = {
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "per_device_train_batch_size": 10,
            **arguments,
        }
        self.rates = Rates()

    def __call__(self):
        with open(self.folder / "built", "a") as file:
            file.write("built\n")
        arguments = transformers.TrainingArguments(
            str(self.folder / "trainer"),
            report_to="none",
            use_cpu=True,
            **self.arguments,
        )
        return transformers.Trainer(
            self.net(),
            arguments,
            train_dataset=ROWS,
            eval_dataset=ROWS,
            compute_metrics=lambda p: {"accuracy": np.mean(p.predictions.argmax(1) == p.label_ids)},
            callbacks=[self.rates],
        )

    def count(self):
        return (self.folder / "built").read_text().count("built")


def task_of(build, **options):
    space = {"learning_rate": mopbt.LogGrid(1e-3, 0.1, 5), "weight_decay": mopbt.Grid(0, 0.1, 3)}
    described = {"objectives": {"eval_accuracy": "max", "eval_loss": "min"}, "space": space}
    return TrainerTask(build, **(described | {"steps": 8, "interval": 2} | options))


HP = {"learning_rate": 0.01, "weight_decay": 0.1}


def test_a_member_continues_with_its_state_and_its_own_values(tmp_path):
    build = Build(tmp_path)
    task = task_of(build)
    donor = task.train(task.init(0), HP, 0, 2, seed=1)
    taken = task.train(donor, {"learning_rate": 0.1, "weight_decay": 0.0}, 2, 4, seed=2)
    assert build.rates.seen == [(0.01, 0.1)] * 2 + [(0.1, 0.0)] * 2
    assert taken["optimizer"]["state"][0]["step"] == 4
    again = task.train(task.load(task.dump(donor)), HP | {"learning_rate": 0.1}, 2, 4, seed=2)
    assert again["optimizer"]["state"][0]["step"] == 4
    # The donor was not changed, so the same interval gives the same weights.
    repeated = task.train(donor, HP | {"learning_rate": 0.1}, 2, 4, seed=2)
    for name, weights in again["model"].items():
        assert torch.equal(weights, repeated["model"][name])


def test_consecutive_intervals_match_an_unbroken_training(tmp_path):
    # With all rows in each batch, their order does not matter.
    build = Build(tmp_path, per_device_train_batch_size=len(ROWS))
    task = task_of(build)
    unbroken = task.train(task.init(0), HP, 0, 6, seed=1)
    member = task.init(0)
    for begin in range(0, 6, 2):
        member = task.train(member, HP, begin, begin + 2, seed=begin)
    for name, weights in unbroken["model"].items():
        torch.testing.assert_close(weights, member["model"][name])


@pytest.mark.parametrize("arguments", [{}, {"data_seed": 1}])
def test_each_interval_trains_on_other_rows(arguments, tmp_path):
    seen = []

    class Recorder(Net):
        def forward(self, x, labels=None):
            if self.training:
                seen.append(x.sum().item())
            return super().forward(x, labels)

    task = task_of(Build(tmp_path, Recorder, **arguments))
    member = task.init(0)
    for seed in (1, 2, 1):
        member = task.train(member, HP, 0, 2, seed=seed)
    assert set(seen[:2]).isdisjoint(seen[2:4])
    assert seen[4:] == seen[:2]


def test_a_new_member_starts_with_the_weights_of_the_start(tmp_path):
    task = task_of(Build(tmp_path))
    first = task.train(task.init(0), HP, 0, 2, seed=1)
    task.train(first, HP, 2, 4, seed=2)
    again = task.train(task.init(1), HP, 0, 2, seed=1)
    for name, weights in first["model"].items():
        assert torch.equal(weights, again["model"][name])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_is_built_once_in_each_process(workers, tmp_path):
    build = Build(tmp_path)
    engine = PoolEngine(workers) if workers else "local"
    results = mopbt.run(
        task_of(build), out=tmp_path / "run", population=4, engine=engine, progress=False
    )
    assert len(results) == 16
    # Checks before a run may build one in a process of their own.
    assert build.count() <= max(1, workers + 1)
    point = results.front()[0]
    net = Net()
    net.load_state_dict(point.load()["model"])
    said = net.layer(torch.stack([row["x"] for row in ROWS])).argmax(1)
    truth = torch.stack([row["labels"] for row in ROWS])
    assert float((said == truth).float().mean()) == pytest.approx(point.scores["eval_accuracy"])
    assert not [name for name in point.scores if "runtime" in name or "second" in name]


def test_values_that_are_no_arguments_are_applied_or_refused(tmp_path):
    build = Build(tmp_path)
    space = {"dropout": mopbt.Grid(0, 0.5, 3)}
    with pytest.raises(ValueError, match="'dropout' is not a training argument.*give `apply`"):
        task_of(build, space=space)
    with pytest.raises(ValueError, match="must not tune 'max_steps'"):
        task_of(build, space={"max_steps": mopbt.Int(1, 5)})
    applied = []
    task = task_of(build, space=space, apply=lambda trainer, hp: applied.append(hp["dropout"]))
    task.train(task.init(0), {"dropout": 0.25}, 0, 2, seed=1)
    assert applied == [0.25]
    task = task_of(build, space=space, apply=lambda trainer, hp: None)
    with pytest.raises(TaskError, match="`apply` does not read the hyperparameter 'dropout'"):
        task.train(task.init(0), {"dropout": 0.25}, 0, 2, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr_scheduler_type": "linear"}, 'lr_scheduler_type="constant"'),
        ({"save_strategy": "steps"}, 'save_strategy="no"'),
        ({"eval_strategy": "steps"}, 'eval_strategy="no"'),
    ],
)
def test_arguments_that_disturb_a_run_are_refused_before_training(arguments, message, tmp_path):
    task = task_of(Build(tmp_path, **arguments))
    with pytest.raises((TaskError, TaskFailed), match=message):
        mopbt.run(task, out=None, population=4, engine="local", progress=False)


def test_a_trainer_that_stops_early_is_an_error(tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **unused):
            control.should_training_stop = True

    build = Build(tmp_path)
    task = task_of(lambda: _with(build(), Stop()))
    with pytest.raises(TaskError, match="stopped after 1 steps of an interval of 2"):
        task.train(task.init(0), HP, 0, 2, seed=1)


def _with(trainer, callback):
    trainer.add_callback(callback)
    return trainer


def test_wrong_types_raise_an_error_with_the_remedy(tmp_path):
    trainer = Build(tmp_path)()
    for wrong in (trainer, transformers.Trainer, None):
        with pytest.raises(TypeError, match=r"must be a function .* got .*; .*`def build\(\)"):
            task_of(wrong)
    with pytest.raises(TaskError, match="must return a Trainer, got .*NoneType; end the function"):
        task_of(lambda: None).train({}, HP, 0, 2, seed=1)


def test_an_iterable_dataset_is_an_error_because_its_first_rows_would_repeat(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(ROWS)

    def build():
        trainer = Build(tmp_path, max_steps=2)()
        trainer.train_dataset = Stream()
        return trainer

    with pytest.raises(
        TaskError, match=r"`train_dataset` is iterable \(Stream\), .* use a dataset"
    ):
        task_of(build).train({}, HP, 0, 2, seed=1)


def test_a_metric_or_a_name_that_does_not_exist_is_named(tmp_path):
    build = Build(tmp_path)
    task = task_of(build, objectives={"accuracy": "max"})
    with pytest.raises(
        MissingScore,
        match="not measure the objective 'accuracy'; it measured .* did you mean 'eval_accuracy'.*"
        "return it from `compute_metrics`",
    ):
        task.evaluate({})
    space = {"dropout": mopbt.Grid(0, 0.5, 3)}
    task = task_of(build, space=space, apply=lambda trainer, hp: hp["drop"])
    with pytest.raises(UnknownHyperparameter, match="unknown hyperparameter 'drop'; the space has"):
        task.train({}, {"dropout": 0.5}, 0, 2, seed=1)
    with pytest.raises(TypeError, match="`apply` must be a function .*, got 'dropout'"):
        task_of(build, space=space, apply="dropout")
