"""A Lightning module resumes exactly, with its own hyperparameters."""

import importlib
import sys
import warnings

import pytest

lightning = pytest.importorskip("lightning")

import torch  # noqa: E402
from lightning.pytorch.callbacks import Callback, EarlyStopping  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import mopbt  # noqa: E402
from integrations.lightning_modules import CPU, HP, SPACE, Net, Rows, task  # noqa: E402
from mopbt.engines.seeding import global_seeds  # noqa: E402
from mopbt.errors import MissingExtra, MissingScore, TaskError, UnreadHyperparameter  # noqa: E402
from mopbt.integrations.lightning import LightningTask  # noqa: E402
from mopbt.problem import Hyperparameters  # noqa: E402
from mopbt.testing import TaskConformance  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers",
        "ignore:.*isinstance\\(treespec, LeafSpec\\)",
        "ignore:The `srun` command is available",
    ),
]


def trained(subject, member, begin, end, hp=HP, seed=7):
    with global_seeds(seed):
        return subject.train(member, Hyperparameters(hp), begin, end, seed)


class TestLightningTask(TaskConformance):
    def make(self):
        return task()


def by_hand(epochs, schedule=None, changes=()):
    """Train by a plain loop, with changes of settings before some epochs."""
    with global_seeds(0):
        net = Net(**HP).net
    optimizer = torch.optim.SGD(net.parameters(), lr=HP["lr"], momentum=0.9)
    scheduler = schedule(optimizer) if schedule else None
    net[3].p = 0.0
    for epoch in range(epochs):
        net.train()
        for at, change in changes:
            if at == epoch:
                change(optimizer, scheduler)
        for i in range(0, 120, 20):
            x, y = Rows().rows[i : i + 20]
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(
                net(x)[:, 0], y, weight=torch.full_like(y, 0.5)
            ).backward()
            optimizer.step()
        if scheduler:
            scheduler.step()
    return {
        f"net.{name}": tensor for name, tensor in net.state_dict().items()
    }, optimizer.param_groups[0]["lr"]


class InOrder(Rows):
    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=20)


STILL = HP | {"dropout": 0.0}


def same(state, expected):
    assert set(state) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", [None, lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)])
def test_consecutive_intervals_match_a_plain_loop(schedule):
    subject = task(schedule, data=InOrder())
    member = subject.init(0)
    for begin in range(4):
        member = subject.load(subject.dump(trained(subject, member, begin, begin + 1, STILL)))
    expected, rate = by_hand(4, schedule)
    same(member["model"], expected)
    assert member["lightning"]["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(
        rate
    )
    assert member["lightning"]["epoch"] == 4
    assert member["lightning"]["global_step"] == 24


def test_an_exploiting_member_uses_its_own_rate():
    subject = task(data=InOrder())
    donor = trained(subject, subject.init(0), 0, 2, STILL)
    child = trained(subject, donor, 2, 4, STILL | {"lr": 0.003})

    def slower(optimizer, scheduler):
        optimizer.param_groups[0]["lr"] = 0.003

    same(child["model"], by_hand(4, changes=[(2, slower)])[0])
    assert child["lightning"]["optimizer_states"][0]["param_groups"][0]["lr"] == 0.003


def test_a_schedule_keeps_its_position_and_takes_the_new_rate():
    schedule = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)  # noqa: E731
    subject = task(schedule, data=InOrder())
    donor = trained(subject, subject.init(0), 0, 3, STILL)
    child = trained(subject, donor, 3, 4, STILL | {"lr": 0.2})

    def faster(optimizer, scheduler):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(
            0.05
        )  # The schedule has halved it once.
        optimizer.param_groups[0]["lr"] = 0.1
        scheduler.base_lrs = [0.2]

    expected, rate = by_hand(4, schedule, [(3, faster)])
    same(child["model"], expected)
    assert (
        rate
        == pytest.approx(child["lightning"]["optimizer_states"][0]["param_groups"][0]["lr"])
        == 0.05
    )


def test_a_tuned_factor_of_a_schedule_overrides_the_donors():
    space = {"gamma": mopbt.Grid(0.1, 0.9, 9), "steps": mopbt.Ordinal([1, 2])}

    def module(hp):
        return Net(
            **STILL, schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, hp["steps"], hp["gamma"])
        )

    subject = LightningTask(
        module, space=space, objectives={"recall": "max"}, steps=4, data=InOrder(), trainer=CPU
    )
    donor = trained(subject, subject.init(0), 0, 2, {"gamma": 0.5, "steps": 1})
    child = trained(subject, donor, 2, 4, {"gamma": 0.1, "steps": 1})
    assert child["lightning"]["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(
        0.1 * 0.5**2 * 0.1**2
    )


def test_an_exploiting_member_uses_its_own_dropout_and_loss():
    subject = task()
    donor = trained(subject, subject.init(0), 0, 1)
    usual = subject.dump(trained(subject, donor, 1, 2))
    for change in ({"dropout": 0.5}, {"positive": 0.9}):
        assert subject.dump(trained(subject, donor, 1, 2, HP | change)) != usual
    # The donor has not changed.
    assert subject.dump(trained(subject, donor, 1, 2)) == usual


class Counting(Callback):
    def __init__(self):
        self.epochs = 0

    def on_train_epoch_end(self, trainer, module):
        self.epochs += 1

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


def test_callbacks_keep_their_states():
    subject = task(callbacks=lambda: [Counting()], interval=2)
    member = trained(subject, trained(subject, subject.init(0), 0, 2), 2, 4)
    assert member["lightning"]["callbacks"]["Counting"] == {"epochs": 4}


def test_a_data_module_may_depend_on_hyperparameters():
    subject = task(
        data=lambda hp: Rows(hp["batch"]), space=SPACE | {"batch": mopbt.Ordinal([10, 40])}
    )
    member = trained(subject, subject.init(0), 0, 1, HP | {"batch": 40})
    member = trained(subject, member, 1, 2, HP | {"batch": 10})
    assert member["lightning"]["global_step"] == 3 + 12


def test_a_hyperparameter_that_the_module_never_reads_is_an_error():
    subject = task(space=SPACE | {"unread": mopbt.Grid(0, 1, 3)})
    with pytest.raises(UnreadHyperparameter, match="'unread'"):
        mopbt.run(subject, out=None, population=2, engine="local", progress=False)


def test_a_metric_that_is_not_logged_is_an_error():
    with pytest.raises(
        MissingScore,
        match="not log the objective 'f1'; it logged 'precision', 'recall'; call `self.log",
    ):
        mopbt.run(
            task(objectives={"f1": "max"}), out=None, population=2, engine="local", progress=False
        )


def test_stopping_early_is_an_error_with_the_remedy():
    subject = task(callbacks=lambda: [EarlyStopping("recall", patience=0, mode="min")], interval=4)
    with pytest.raises(
        TaskError,
        match="stopped after epoch [123], .* ends at epoch 4; remove .* EarlyStopping",
    ):
        trained(subject, subject.init(0), 0, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainer": {"max_epochs": 3}}, "must not set 'max_epochs'; leave it out"),
        ({"trainer": {"callbacks": []}}, "must not set 'callbacks'; use `callbacks=`"),
        ({"trainer": {"check_val_every_n_epoch": 2}}, r"must divide `interval` \(1\), got 2"),
        ({"trainer": {"check_val_every_n_epoch": "2"}}, r"must divide `interval` \(1\), got '2'"),
        ({"trainer": {"acelerator": "cpu"}}, "not an option .*; did you mean 'accelerator'"),
    ],
)
def test_bad_options_raise_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        task(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"module": Net}, "must be a function .*, got the class Net; write `lambda hp: Net"),
        ({"module": Net(**HP)}, "must be a function .*, got an object of type Net; write `lambda"),
        ({"data": Rows}, r"got the class Rows; create an object: `data=Rows\(\)`"),
        ({"data": Rows().train_dataloader()}, "got an object of type DataLoader; .*from_datasets"),
        ({"data": None}, "must be a LightningDataModule, .*, got None; "),
        ({"trainer": None}, "must be a mapping of options, .*, got None; pass the options"),
        ({"callbacks": []}, "must be a function .*, got an object of type list; .*lambda:"),
    ],
)
def test_wrong_types_raise_an_error_with_the_remedy(options, message):
    with pytest.raises(TypeError, match=message):
        task(**options)


class WithoutOptimizer(Net):
    def configure_optimizers(self):
        return None


class WithoutValidationRows(Rows):
    val_dataloader = lightning.LightningDataModule.val_dataloader


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"module": lambda hp: None}, "`module` must return a LightningModule, got None; return"),
        ({"data": lambda hp: []}, "`data` must return a LightningDataModule, got .*list; write"),
        ({"data": WithoutValidationRows()}, "logged nothing; .* give .* a `val_dataloader`"),
        ({"callbacks": lambda: EarlyStopping("recall")}, "must return a list, got .*EarlyStopping"),
        ({"module": lambda hp: WithoutOptimizer(**hp)}, "no optimizer updates .* return one from"),
        ({"trainer": {"accelerator": "cpu", "devices": 2}}, "one device, .* asks for 2 on 1"),
    ],
)
# Lightning warns about some of them.
@pytest.mark.filterwarnings("ignore")
def test_what_a_task_builds_is_checked(options, message):
    with pytest.raises(TaskError, match=message):
        trained(task(**options), {"seed": 0}, 0, 1)


def test_shapes_that_depend_on_hyperparameters_are_an_error():
    def module(hp):
        net = Net(**hp)
        net.head = torch.nn.Linear(5, round(10 * hp["positive"]))
        return net

    subject = task(module=module)
    member = trained(subject, subject.init(0), 0, 1)
    with pytest.raises(TaskError, match=r"'head.weight' has the shape \(9, 5\) .* but \(5, 5\)"):
        trained(subject, member, 1, 2, HP | {"positive": 0.9})


def test_training_is_quiet(capfd, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(task(), task().init(0), 0, 1)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "mopbt.integrations.lightning")
    with pytest.raises(
        MissingExtra, match=r"LightningTask needs Lightning: pip install 'mopbt\[lightning\]'"
    ):
        importlib.import_module("mopbt.integrations.lightning")
