import importlib
import json
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

import mopbt
from lanes import examples
from mopbt import run, serialization
from mopbt.algorithms import RandomSearch
from mopbt.device import assign_device
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import run_job
from mopbt.engines.seeding import global_seeds
from mopbt.errors import TaskError, UnreadHyperparameter
from mopbt.function_task import FunctionTask
from mopbt.member import Member
from mopbt.problem import Hyperparameters, problem_of
from mopbt.space import Float, Grid, Ordinal
from mopbt.state import Job
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.testing import TaskConformance

pytestmark = [
    # Many training functions in this file train nothing.
    pytest.mark.filterwarnings("ignore:training did not change"),
    pytest.mark.usefixtures("one_thread"),
]


X = torch.linspace(-1, 1, 24).reshape(8, 3)
Y = (X.sum(1, keepdim=True) > 0).float()


def make(function, *, space=None, interval=3):
    space = space or {"lr": Float(1e-4, 1.0, log=True)}
    return FunctionTask(
        function, space=space, objectives={"loss": "min"}, interval=interval, steps=4 * interval
    )


def interval(task, start, begin, **values):
    """Run one interval as an engine does, from the bytes of a checkpoint (or None) to bytes."""
    hp = Hyperparameters(values)
    with global_seeds(begin):
        model = task.init(0) if start is None else task.load(start)
        model = task.train(model, hp, begin, begin + task.interval, begin)
    hp.check_read()
    return task.dump(model)


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def learn(model, optimizer):
    loss = nn.functional.binary_cross_entropy_with_logits(model(X), Y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# --- five ways to write it, with the rates that the optimizer really used -----------------------


class Styles:
    """The same training in each common style; `used` are the settings at each optimizer step."""

    def __init__(self, build):
        self.build, self.used = build, []

    def loop(self, m, model, optimizer):
        for _ in m.steps():
            group = optimizer.param_groups[0]
            self.used.append((group["lr"], group["weight_decay"]))
            loss = learn(model, optimizer)
        m.report(loss=loss)

    def built_before_track(self, m):
        model = net()
        optimizer = self.build(model.parameters(), lr=m.hp["lr"], weight_decay=m.hp["wd"])
        m.track(model=model, optimizer=optimizer)
        self.loop(m, model, optimizer)

    def bound_before_track(self, m):
        model = net()
        optimizer = self.build(model.parameters(), lr=123.0)
        m.bind(optimizer, lr="lr", weight_decay="wd")
        m.track(model=model, optimizer=optimizer)
        self.loop(m, model, optimizer)

    def bound_after_track(self, m):
        model = net()
        optimizer = self.build(model.parameters(), lr=123.0)
        m.track(model=model, optimizer=optimizer)
        m.bind(optimizer, lr="lr", weight_decay="wd")
        self.loop(m, model, optimizer)

    def set_after_track(self, m):
        model = net()
        optimizer = self.build(model.parameters(), lr=123.0)
        m.track(model=model, optimizer=optimizer)
        for group in optimizer.param_groups:
            group["lr"] = m.hp["lr"]
            group["weight_decay"] = m.hp["wd"]
        self.loop(m, model, optimizer)

    def derived_before_track(self, m):
        model = net()
        optimizer = self.build(
            model.parameters(),
            lr=m.hp["lr"] * 0.5 + m.hp["lr"] * 0.5,
            weight_decay=10 ** np.log10(m.hp["wd"]),
        )
        m.track(model=model, optimizer=optimizer)
        self.loop(m, model, optimizer)


STYLES = [
    "built_before_track",
    "bound_before_track",
    "bound_after_track",
    "set_after_track",
    "derived_before_track",
]
BUILDS = {"AdamW": AdamW, "SGD": lambda p, **kw: SGD(p, momentum=0.9, **kw)}
BOTH = {"lr": Float(1e-4, 1.0, log=True), "wd": Float(1e-4, 1.0)}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("style", STYLES)
def test_new_hyperparameters_win_after_restoring(style, build):
    styles = Styles(BUILDS[build])
    task = make(getattr(styles, style), space=BOTH)
    donor = interval(task, None, 0, lr=0.1, wd=0.01)
    interval(task, donor, 3, lr=0.01, wd=0.02)
    interval(task, donor, 3, lr=0.1, wd=0.01)
    expected = [(0.1, 0.01)] * 3 + [(0.01, 0.02)] * 3 + [(0.1, 0.01)] * 3
    assert styles.used == [pytest.approx(pair, rel=1e-12) for pair in expected]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("style", STYLES)
def test_weights_and_optimizer_state_travel(style, build):
    """Two intervals with a checkpoint between them end where one plain loop of six steps ends."""
    task = make(getattr(Styles(BUILDS[build]), style), space=BOTH)
    first = interval(task, None, 0, lr=0.1, wd=0.01)
    found = task.load(interval(task, first, 3, lr=0.02, wd=0.01)).state
    with global_seeds(0):
        model = net()
    plain = BUILDS[build](model.parameters(), lr=0.1, weight_decay=0.01)
    for step in range(6):
        plain.param_groups[0]["lr"] = 0.1 if step < 3 else 0.02
        learn(model, plain)
    for name, tensor in model.state_dict().items():
        assert torch.allclose(found["model"][name], tensor, rtol=1e-6, atol=0), name
        assert task.load(first).state["model"][name].shape == tensor.shape
    moments = plain.state_dict()["state"]
    assert moments.keys() == found["optimizer"]["state"].keys()
    for index, state in moments.items():
        for key, value in state.items():
            assert torch.allclose(
                found["optimizer"]["state"][index][key], value, rtol=1e-6, atol=1e-12
            ), (index, key)


def test_an_interval_without_the_optimizer_state_would_end_elsewhere():
    # The test above relies on this: momentum matters.
    def forgetful(m):
        model = net()
        m.track(model=model)
        styles.loop(m, model, SGD(model.parameters(), lr=m.hp["lr"], momentum=0.9))

    styles = Styles(BUILDS["SGD"])
    mindful = make(styles.built_before_track, space=BOTH)
    kept = interval(mindful, interval(mindful, None, 0, lr=0.1, wd=0.0), 3, lr=0.1, wd=0.0)
    lost = interval(make(forgetful), interval(make(forgetful), None, 0, lr=0.1), 3, lr=0.1)
    weights = [serialization.loads(data)["model"]["0.weight"] for data in (kept, lost)]
    assert not torch.allclose(*weights)


def test_settings_that_are_not_numbers_win_too():
    used = []

    def train(m):
        model = net()
        optimizer = AdamW(model.parameters(), lr=0.01, betas=(m.hp["beta"], 0.999))
        m.track(model=model, optimizer=optimizer)
        for _ in m.steps():
            used.append(optimizer.param_groups[0]["betas"])
            loss = learn(model, optimizer)
        m.report(loss=loss)

    task = make(train, space={"beta": Float(0, 0.99)})
    interval(task, interval(task, None, 0, beta=0.5), 3, beta=0.75)
    assert used == [(0.5, 0.999)] * 3 + [(0.75, 0.999)] * 3


def test_each_group_has_its_own():
    used = []

    def train(m):
        model = net()
        groups = [
            {"params": model[0].parameters(), "lr": m.hp["lr"]},
            {"params": model[2].parameters(), "lr": 0.5},
        ]
        optimizer = SGD(groups, lr=9.0)
        m.track(model=model, optimizer=optimizer)
        for _ in m.steps():
            used.append([g["lr"] for g in optimizer.param_groups])
            loss = learn(model, optimizer)
        m.report(loss=loss)

    task = make(train, interval=1)
    interval(task, interval(task, None, 0, lr=0.5), 1, lr=0.25)
    assert used == [[0.5, 0.5], [0.25, 0.5]]


# --- schedules ----------------------------------------------------------------------------------

SCHEDULES = {
    "StepLR": lambda o: StepLR(o, 2, gamma=0.5),
    "LambdaLR": lambda o: LambdaLR(o, lambda epoch: 0.9**epoch),
    "CosineAnnealingLR": lambda o: CosineAnnealingLR(o, 20),
    "MultiStepLR": lambda o: MultiStepLR(o, [2, 5], gamma=0.1),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=o.param_groups[0]["lr"], total_steps=20),
}


def plain_schedule(schedule, lr, steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler, used = SCHEDULES[schedule](optimizer), []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        learn(model, optimizer)
        scheduler.step()
    return used


def scheduled(schedule, rate, used, *, late=False):
    def train(m):
        model = net()
        optimizer = SGD(model.parameters(), lr=rate(m), momentum=0.9)
        if late:
            m.track(model=model, optimizer=optimizer)
        scheduler = SCHEDULES[schedule](optimizer)
        m.track(scheduler=scheduler) if late else m.track(
            model=model, optimizer=optimizer, scheduler=scheduler
        )
        for _ in m.steps():
            used.append(optimizer.param_groups[0]["lr"])
            learn(model, optimizer)
            scheduler.step()
        m.report(loss=m.hp["lr"])

    return train


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "other", [0.3, 0.1], ids=["another", "a hyperparameter that happens to be the same number"]
)
def test_a_schedule_continues_if_the_rate_is_not_tuned(schedule, other):
    used = []
    task, data = make(scheduled(schedule, lambda m: (m.hp["lr"], 0.1)[1], used)), None
    for begin in (0, 3, 6):
        data = interval(task, data, begin, lr=other)
    assert used == pytest.approx(plain_schedule(schedule, 0.1, 9), rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_continues_if_the_tuned_rate_stays_the_same(schedule):
    used = []
    task, data = make(scheduled(schedule, lambda m: m.hp["lr"], used)), None
    for begin in (0, 3, 6):
        data = interval(task, data, begin, lr=0.1)
    assert used == pytest.approx(plain_schedule(schedule, 0.1, 9), rel=1e-12)


@pytest.mark.parametrize(
    "late",
    [False, True],
    ids=["tracked together", "scheduler built after the optimizer was restored"],
)
@pytest.mark.parametrize("schedule", ["StepLR", "LambdaLR", "CosineAnnealingLR", "MultiStepLR"])
def test_a_new_rate_wins_over_the_donors_schedule(schedule, late):
    # The schedule keeps its progress on the scale of the new rate, as if that had been the rate
    # from the start.
    used = []
    task = make(scheduled(schedule, lambda m: m.hp["lr"], used, late=late))
    donor = interval(task, None, 0, lr=0.1)
    interval(task, interval(task, donor, 3, lr=0.03), 6, lr=0.03)
    first, later = plain_schedule(schedule, 0.1, 9), plain_schedule(schedule, 0.03, 9)
    # A LambdaLR that is built on a restored optimizer resets the first rate.
    skip = late and schedule == "LambdaLR"
    found, expected = np.reshape(used, (3, 3)), np.reshape(first[:3] + later[3:], (3, 3))
    assert found[:, skip:] == pytest.approx(expected[:, skip:], rel=1e-12)


def test_a_plateau_schedule_is_kept():
    used = []

    def train(m):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        loss = m.hp["lr"]
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        m.track(model=model, optimizer=optimizer, scheduler=scheduler)
        for _ in m.steps():
            used.append(optimizer.param_groups[0]["lr"])
            scheduler.step(1.0)
        m.report(loss=loss)

    task = make(train, interval=2)
    interval(task, interval(task, None, 0, lr=0.2), 2, lr=0.2)
    assert used == [0.1, 0.1, 0.05, 0.025]


def test_a_rate_that_the_loop_changes_itself_is_kept():
    used = []

    def train(m):
        model = net()
        optimizer = SGD(model.parameters(), lr=m.hp["lr"])
        m.track(model=model, optimizer=optimizer)
        for _ in m.steps():
            optimizer.param_groups[0]["lr"] *= 0.5
            used.append(optimizer.param_groups[0]["lr"])
        m.report(loss=0.0)

    task = make(train, interval=2)
    data = interval(task, None, 0, lr=0.8)
    interval(task, data, 2, lr=0.8)
    interval(task, data, 2, lr=0.08)
    assert used == pytest.approx([0.4, 0.2, 0.1, 0.05, 0.01, 0.005])


# --- arrays and dicts ---------------------------------------------------------------------------


def counting(m):
    place, seen = np.zeros((2, 2)), {"steps": [], "rng": 5}
    outer = place
    m.track(place=place, seen=seen)
    assert outer is place
    for step in m.steps():
        place += m.hp["lr"]
        seen["steps"].append(step)
    m.report(loss=place.sum())


def test_arrays_and_dicts_are_filled_in_place():
    task = make(counting)
    data = interval(task, interval(task, None, 0, lr=0.5), 3, lr=0.25)
    state = task.load(data).state
    assert state["place"].tolist() == [[2.25, 2.25]] * 2
    assert state["seen"] == {"steps": [0, 1, 2, 3, 4, 5], "rng": 5}
    assert list(state) == ["place", "seen"]


def test_keys_that_a_checkpoint_lacks_do_not_survive():
    def train(m):
        seen = {} if m.begin else {"old": 1}
        seen["new" if m.begin else "first"] = m.hp["lr"]
        m.track(seen=seen)
        list(m.steps())
        m.report(loss=0.0)

    task = make(train)
    assert task.load(interval(task, interval(task, None, 0, lr=0.5), 3, lr=0.1)).state["seen"] == {
        "old": 1,
        "first": 0.5,
    }


GLOBAL = nn.Linear(3, 1)
TABLE = {"rows": [0]}


def with_globals(m):
    """Train a model that the process keeps in a global variable."""
    optimizer = SGD(GLOBAL.parameters(), lr=m.hp["lr"], momentum=0.9)
    m.track(model=GLOBAL, optimizer=optimizer, table=TABLE)
    for step in m.steps():
        TABLE["rows"].append(step)
        loss = learn(GLOBAL, optimizer)
    m.report(loss=loss)


def test_a_checkpoint_does_not_change_when_another_member_trains_the_same_objects():
    task = make(with_globals)
    work = RunContext(task, problem_of(task), 0, MemoryCheckpoints())
    warm, cold = ModelCache(2**20), ModelCache(0)
    first = run_job(work, Job(0, 0, (0.1,), None, 0, 3), {}, warm)
    run_job(work, Job(1, 1, (0.5,), 0, 3, 6), {0: first.checksum}, warm)
    by_memory = run_job(work, Job(2, 0, (0.1,), 0, 3, 6), {0: first.checksum}, warm)
    by_disk = run_job(work, Job(2, 0, (0.1,), 0, 3, 6), {0: first.checksum}, cold)
    assert by_memory.error == by_disk.error == ""
    assert by_memory.checksum == by_disk.checksum


@pytest.mark.parametrize("outside", [net(), np.zeros(3)])
def test_an_object_built_outside_does_not_pass_weights_to_a_new_member(outside):
    """Which member starts from whose weights would silently depend on the number of workers."""

    def train(m):
        m.track(model=outside)
        loop(m)
        m.report(loss=0.0)

    task = make(train)
    start = interval(task, None, 0, lr=0.5)
    assert interval(task, start, 3, lr=0.5), "with a checkpoint it is restored"
    with pytest.raises(
        TaskError,
        match=r"track\(model=...\): another member has already trained this object.*copy.deepcopy",
    ):
        interval(task, None, 0, lr=0.5)


def test_a_diverged_member_may_return_before_the_interval_ends():
    """Hyperparameters that it has not read by then are no error either."""

    def train(m):
        model = {"w": 0.0}
        m.track(model=model)
        for _ in m.steps():
            model["w"] += m.hp["lr"]
            if m.hp["lr"] > 0.01:
                m.report(loss=float("nan"))
                return
            model["w"] *= m.hp["other"]
        m.report(loss=model["w"])

    space = {"lr": Float(1e-4, 1.0, log=True), "other": Grid(1, 2, 3)}
    results = run(make(train, space=space), out=None, population=8, engine="local", progress=False)
    diverged = [point for point in results.points() if np.isnan(point.scores["loss"])]
    assert results.outcome == "done"
    assert not results.failures
    assert diverged
    assert len(results.front()) > 0


# --- the member ---------------------------------------------------------------------------------


def test_what_a_member_knows():
    seen = []

    def train(m):
        m.track(a={})
        seen.append((m.begin, m.end, m.seed, m.step, dict(m.hp)))
        for step in m.steps():
            seen.append((step, m.step))
            m.report(loss=step)
        assert isinstance(m, Member)

    task = make(train)
    model = task.train(task.init(0), Hyperparameters({"lr": 0.5}), 6, 9, 42)
    assert seen == [(6, 9, 42, 6, {"lr": 0.5}), (6, 6), (7, 7), (8, 8)]
    assert task.evaluate(model) == {"loss": 8}  # the last report counts


def test_a_bound_field_is_set_again_at_every_step():
    def train(m):
        model = net()
        optimizer = SGD(model.parameters(), lr=1.0)
        m.track(model=model, optimizer=optimizer)
        m.bind(optimizer, lr="lr")
        for _ in m.steps():
            assert optimizer.param_groups[0]["lr"] == 0.25
            optimizer.param_groups[0]["lr"] = 7.0
        m.report(loss=0.0)

    assert interval(make(train), None, 0, lr=0.25)


def optimizer_of():
    return SGD(net().parameters(), lr=1.0)


def loop(m):
    m.hp["lr"]
    list(m.steps())


WRONG = [
    (
        lambda m: (m.track(a={}), m.report(loss=0)),
        "the training function never iterated over `steps()`; loop over it once",
    ),
    (lambda m: (m.track(a={}), m.steps(), m.report(loss=0)), "never iterated over `steps()`"),
    (
        lambda m: (m.track(a={}), loop(m)),
        "the training function never called `report(...)`; call it after the last step, with each",
    ),
    (
        lambda m: (loop(m), m.report(loss=0)),
        "never called `track(...)`, so its training would be lost",
    ),
    (lambda m: (m.track(), loop(m), m.report(loss=0)), "never called `track(...)`"),
    (
        lambda m: (loop(m), m.track(a={}), m.report(loss=0)),
        "track(...) was called after `steps()`, where restoring would undo the training",
    ),
    (
        lambda m: m.track(a=[1]),
        "`state_dict` and `load_state_dict`, numpy arrays and dicts, got list",
    ),
    (lambda m: m.track(a=torch.zeros(1)), "numpy arrays and dicts, got Tensor"),
    (
        lambda m: (m.track(a={}), next(m.steps()), m.report(loss=0)),
        "left the loop over `steps()` at step 0, but the interval ends at 3; run all steps",
    ),
    (
        lambda m: m.bind(net(), lr="lr"),
        "bind takes an optimizer with `param_groups`, got Sequential",
    ),
    (
        lambda m: m.bind(optimizer_of(), lr="LR"),
        "bind(lr='LR'): no hyperparameter 'LR'; the space has 'lr'",
    ),
    (
        lambda m: m.bind(optimizer_of(), rate="lr"),
        "bind(rate='lr'): the optimizer has no field 'rate'; bind one of dampening, ",
    ),
]


@pytest.mark.parametrize(("train", "message"), WRONG, ids=[message[:50] for _, message in WRONG])
def test_a_broken_contract_is_an_error(train, message):
    with pytest.raises(TaskError) as caught:
        interval(make(train), None, 0, lr=0.5)
    assert message in str(caught.value)


def test_a_hyperparameter_that_is_never_read_is_an_error_that_names_it():
    def train(m):
        m.track(a={"lr": m.hp["lr"]})
        list(m.steps())
        m.report(loss=0)

    with pytest.raises(UnreadHyperparameter, match="training never read 'wd'"):
        interval(make(train, space=BOTH), None, 0, lr=0.5, wd=0.5)


def test_the_same_must_be_tracked_in_every_interval():
    def tracks(**objects):
        return make(lambda m: (m.track(**objects), loop(m), m.report(loss=0)))

    data = interval(tracks(a={}, b=np.zeros(2)), None, 0, lr=0.5)
    with pytest.raises(
        TaskError,
        match=r"track\(c=...\): the checkpoint has only 'a', 'b'; track the same objects",
    ):
        interval(tracks(a={}, c={}), data, 3, lr=0.5)
    with pytest.raises(
        TaskError,
        match="the checkpoint has 'b', not tracked in this interval; track the same objects",
    ):
        interval(tracks(a={}), data, 3, lr=0.5)
    with pytest.raises(
        TaskError,
        match=r"track\(b=...\).*different shape: the array was \(2,\), got \(3, 2\); a",
    ):
        interval(tracks(a={}, b=np.zeros((3, 2))), data, 3, lr=0.5)


def wide(m, layers=1):
    model = nn.Sequential(*(nn.Linear(2, m.hp["lr"]) for _ in range(layers)))
    optimizer = SGD(model.parameters(), lr=0.1)
    m.track(optimizer=optimizer, model=model)
    list(m.steps())
    m.report(loss=m.hp["lr"] + m.seed % 7)


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        (wide, r"track\(model=...\).*different shape: '0.weight' was \(4, 2\), got \(8, 2\); "),
        (
            lambda m: wide(m, 2),
            r"track\(optimizer=...\).*different shape: 'group 0' was 2, got 4; ",
        ),
    ],
)
def test_a_hyperparameter_that_changes_shapes_is_an_error(then, problem):
    data = interval(make(wide), None, 0, lr=4)
    remedy = "remove it from the space, or use an algorithm .* such as random-search or mo-asha"
    with pytest.raises(TaskError, match=f"{problem}.*{remedy}"):
        interval(make(then), data, 3, lr=8)
    assert interval(make(wide), data, 3, lr=4)


def test_a_tuned_shape_stops_the_run_unless_weights_are_never_copied():
    problem = {
        "space": {"lr": Ordinal([4, 8, 16, 32])},
        "objectives": {"loss": "min"},
        "steps": 9,
        "interval": 3,
    }
    quietly = {"out": None, "engine": "local", "progress": False}
    with pytest.raises(TaskError, match="the checkpoint has a different shape"):
        run(wide, population=8, **problem, **quietly)
    assert not run(wide, algorithm=RandomSearch(population=8), **problem, **quietly).failures


def test_other_errors_while_restoring_or_training_pass_through():
    class Busy:
        def state_dict(self):
            return {"weights": np.zeros(2)}

        def load_state_dict(self, state):
            raise RuntimeError("out of memory")

    def trains(m):
        m.track(net=net())
        if m.begin:
            raise RuntimeError("size mismatch elsewhere")
        loop(m)
        m.report(loss=0)

    for train in (lambda m: (m.track(busy=Busy()), loop(m), m.report(loss=0)), trains):
        data = interval(make(train), None, 0, lr=0.5)
        with pytest.raises(RuntimeError, match="out of memory|elsewhere"):
            interval(make(train), data, 3, lr=0.5)


def test_a_checkpoint_is_a_safetensors_file_without_pickles():
    data = interval(make(Styles(AdamW).built_before_track, space=BOTH), None, 0, lr=0.5, wd=0.1)
    names = set(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]))
    assert {
        "model.0.weight",
        "model.1.running_mean",
        "optimizer.state.0.exp_avg",
        "optimizer.state.0.step",
    } <= names
    assert b"pickle" not in data


def test_fresh_weights_have_no_state():
    task = make(counting)
    assert task.init(0).state is None
    assert task.name == "counting"


# --- as a task ----------------------------------------------------------------------------------


def noisy(m):
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(m.hp["p"]), nn.Linear(4, 1))
    optimizer = AdamW(model.parameters(), lr=m.hp["lr"])
    m.track(model=model, optimizer=optimizer)
    for _ in m.steps():
        loss = learn(model, optimizer)  # dropout draws from the global generator
    m.report(loss=loss)


class TestNoisyFunction(TaskConformance):
    def make(self):
        return make(noisy, space={"lr": Float(1e-4, 1.0, log=True), "p": Grid(0, 0.8, 10)})


class TestArraysFunction(TaskConformance):
    def make(self):
        return make(counting)


@examples(15)
@given(st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=4), st.sampled_from(STYLES))
def test_any_history_of_rates_is_the_one_that_was_used(rates, style):
    styles = Styles(AdamW)
    task, data = make(getattr(styles, style), space=BOTH, interval=1), None
    for begin, rate in enumerate(rates):
        data = interval(task, data, begin, lr=rate, wd=rate / 2)
    assert styles.used == [pytest.approx((rate, rate / 2), rel=1e-9) for rate in rates]


def test_a_training_function_reads_the_device_that_the_engine_assigned():
    member = Member({}, 0, 1, 0, None)
    assert member.device == "cpu"
    assign_device("cuda:0")
    try:
        assert member.device == "cuda:0"
    finally:
        assign_device("")


DECORATED = """
import mopbt
import numpy as np

@mopbt.task(space={"rate": mopbt.Grid(0.1, 1, 9)}, objectives={"a": "maximize"}, steps=4)
def train(m):
    w = np.zeros(1)
    m.track(w=w)
    for _ in m.steps():
        w += m.hp["rate"]
    m.report(a=w[0])

if __name__ == "__main__":
    options = {"population": 2, "progress": False, "engine": mopbt.PoolEngine(1)}
    print(mopbt.run(train, out="script", **options).records()[-1]["score.a"])
"""


@pytest.fixture
def decorated(tmp_path, monkeypatch):
    (tmp_path / "decorated.py").write_text(DECORATED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("decorated").train
    del sys.modules["decorated"]


def test_a_decorated_function_is_a_task_that_can_still_be_called(decorated):
    assert problem_of(decorated).name == "train"
    assert [o.direction for o in problem_of(decorated).objectives] == ["max"]
    member = Member({"rate": 0.5}, 0, 2, 0, None)
    decorated(member)
    assert member._take_snapshot().scores == {"a": 1.0}


def test_a_decorated_function_is_pickled_by_its_name(decorated):
    for pickler in (pickle, cloudpickle):
        data = pickler.dumps(decorated)
        assert len(data) < 200
        assert pickle.loads(data) is decorated
    # A changed copy is not what the name leads to.
    longer = replace(decorated, steps=8)
    copied = pickle.loads(cloudpickle.dumps(longer))
    assert copied.steps == 8
    assert copied.function.__name__ == "train"


@pytest.mark.slow
def test_a_decorated_function_runs_from_python_a_script_and_the_command_line(decorated, tmp_path):
    options = {"population": 2, "progress": False, "engine": mopbt.PoolEngine(1)}
    records = mopbt.run(decorated, out="module", **options).records()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for arguments in (
        ["decorated.py"],
        ["-m", "mopbt", "run", "decorated.py:train", "--out", "cli", "--population", "2"],
    ):
        subprocess.run([sys.executable, *arguments], check=True, env=environment, timeout=120)
    for place in ("script", "cli"):
        others = mopbt.Results.open(place).records()
        assert [r["score.a"] for r in others] == [r["score.a"] for r in records]


@pytest.mark.parametrize(
    ("decorate", "error", "message"),
    [
        (lambda: mopbt.task(len), TypeError, "positional"),
        (
            lambda: mopbt.task(space={}, objectives={"a": "max"}, steps=1)(len),
            ValueError,
            "`space` must have at least one hyperparameter",
        ),
    ],
)
def test_a_wrong_decorator_is_an_error_at_once(decorate, error, message):
    with pytest.raises(error, match=message):
        decorate()


# What a training function gets wrong silently elsewhere


def train_once(function, **options):
    """Train a member of a function for an interval of two steps."""
    task = FunctionTask(function, **(SIMPLE | options))
    return task.train(task.init(0), Hyperparameters({"rate": 0.5}), 0, 2, 0)


SIMPLE = {"space": {"rate": Grid(0, 1, 3)}, "objectives": {"a": "max"}, "steps": 2}


@pytest.mark.parametrize("make", [lambda: np.zeros(2), lambda: {"x": 0.0}])
def test_rebinding_a_tracked_object_is_an_error_even_if_others_are_trained(make):
    def train(m):
        w = np.zeros(2)
        bias = make()
        m.track(w=w, b=bias)
        for _ in m.steps():
            w += m.hp["rate"]
            bias = {"x": bias["x"] + 1} if isinstance(bias, dict) else bias + 1
        m.report(a=w.sum())

    with pytest.raises(TaskError, match=r"track\(b=\.\.\.\): .* assigned another object to `bias`"):
        train_once(train)


def test_views_conversions_and_copies_back_are_no_rebinding():
    def train(m):
        w = np.zeros((2, 2))
        frozen = np.ones(3)
        m.track(w=w, frozen=frozen)
        saved = w
        w = w.reshape(4)
        frozen = [*frozen]
        for _ in m.steps():
            w = w + m.hp["rate"]
        saved[...] = w.reshape(2, 2)
        m.report(a=w.sum())

    assert serialization.loads(train_once(train).data)["w"].tolist() == [[1, 1], [1, 1]]


def test_a_hyperparameter_that_is_read_only_after_the_loop_is_an_error():
    def train(m):
        state = {"x": 0}
        m.track(state=state)
        for _ in m.steps():
            state["x"] += 1
        m.report(a=m.hp["rate"])

    with pytest.raises(UnreadHyperparameter, match="'rate' only after the loop over `steps"):
        train_once(train)


def test_a_library_with_its_own_loop_gets_the_number_of_steps():
    def train(m):
        state = {"x": 0}
        m.track(state=state)
        n = m.advance()
        state["x"] += n * m.hp["rate"]
        m.report(a=state["x"])

    trained = train_once(train)
    assert (trained.scores, trained.state) == ({"a": 1.0}, {"state": {"x": 1.0}})

    def twice(m):
        m.track(state={})
        for _ in m.steps():
            m.advance()

    with pytest.raises(TaskError, match="`steps\\(\\)` or `advance\\(\\)` twice"):
        train_once(twice)


def test_a_tensor_with_a_gradient_is_a_metric_without_a_warning():
    weight = torch.ones(1, requires_grad=True)

    def train(m):
        state = {"x": 0}
        m.track(state=state)
        for _ in m.steps():
            state["x"] += m.hp["rate"]
        m.report(a=(weight * 2).sum(), b=((weight * 3).sum(), weight.sum()))

    scores = train_once(train).scores
    assert (float(scores["a"]), float(scores["b"]), scores["b"].stderr) == (2, 3, 1)


def adversaries(m, tracked):
    """Train two networks and track some of their objects."""
    networks = [torch.nn.Linear(2, 1) for _ in range(2)]
    objects = {
        **{f"network{i}": network for i, network in enumerate(networks)},
        **{
            f"optimizer{i}": torch.optim.Adam(network.parameters(), lr=m.hp["rate"])
            for i, network in enumerate(networks)
        },
    }
    first, second = objects["optimizer0"], objects["optimizer1"]
    m.track(**{name: objects[name] for name in tracked})
    for _ in m.steps():
        for network, optimizer in zip(networks, (first, second), strict=True):
            network(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    m.report(up=1.0, down=1.0)


@pytest.mark.parametrize(
    ("tracked", "warning"),
    [
        (("network0", "optimizer0"), "`second` trains parameters that are not tracked"),
        (("network0", "network1", "optimizer0"), "`second` is not tracked, so its state"),
        (("network0", "network1", "optimizer0", "optimizer1"), None),
    ],
)
def test_training_that_no_checkpoint_holds_is_a_warning(tracked, warning):
    task = FunctionTask(
        lambda m: adversaries(m, tracked),
        space={"rate": Grid(0.1, 0.2, 2)},
        objectives={"up": "max", "down": "max"},
        steps=2,
    )
    expected = nullcontext() if warning is None else pytest.warns(UserWarning, match=warning)
    with expected:
        task.train(task.init(0), {"rate": 0.1}, 0, 1, 0)
