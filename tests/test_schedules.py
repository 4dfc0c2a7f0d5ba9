"""Learning rate schedules of PyTorch continue over intervals; an exploit changes their rate."""

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from mopbt.function_task import FunctionTask
from mopbt.space import Float

STEPS = 8


def sequential(optimizer):
    parts = [
        schedules.LinearLR(optimizer, 0.1, total_iters=3),
        schedules.CosineAnnealingLR(optimizer, 5),
    ]
    return schedules.SequentialLR(optimizer, parts, milestones=[3])


def sequential_steps(optimizer):
    parts = [
        schedules.LinearLR(optimizer, 0.1, total_iters=3),
        schedules.MultiStepLR(optimizer, [2, 4], 0.5),
    ]
    return schedules.SequentialLR(optimizer, parts, milestones=[3])


def chained(optimizer):
    return schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.5, 3), schedules.ExponentialLR(optimizer, 0.9)]
    )


SCHEDULES = {
    "warm-up from 0": lambda o: schedules.LambdaLR(o, lambda step: step / 10),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, STEPS),
    "steps": lambda o: schedules.MultiStepLR(o, [2, 5], 0.1),
    "sequential": sequential,
    "sequential steps": sequential_steps,
    "chained": chained,
}
ORDERS = ("together", "scheduler after the optimizer was tracked")


def trained(make, rates, order):
    """Return the learning rates of all steps: one interval of two steps for each of these rates."""
    seen = []

    def train(m):
        model = torch.nn.ParameterList([torch.zeros(1)])
        (weight,) = model
        optimizer = torch.optim.SGD(model.parameters(), lr=m.hp["lr"], momentum=0.9)
        if order == "together":
            schedule = make(optimizer)
            m.track(model=model, optimizer=optimizer, schedule=schedule)
        else:
            m.track(model=model, optimizer=optimizer)
            schedule = make(optimizer)
            m.track(schedule=schedule)
        for _ in m.steps():
            seen.append(optimizer.param_groups[0]["lr"])
            weight.grad = torch.ones(1)
            optimizer.step()
            schedule.step()
        m.report(a=0, b=0)

    task = FunctionTask(
        train,
        space={"lr": Float(0.01, 2)},
        objectives={"a": "max", "b": "max"},
        steps=STEPS,
        interval=2,
    )
    model = task.init(0)
    for i, rate in enumerate(rates):
        model = task.load(task.dump(task.train(model, {"lr": rate}, 2 * i, 2 * i + 2, 0)))
    return seen


def unbroken(make, rate):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=rate)
    schedule, seen = make(optimizer), []
    for _ in range(STEPS):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_continues_over_intervals(name, order):
    assert trained(SCHEDULES[name], [1.0] * 4, order) == pytest.approx(
        unbroken(SCHEDULES[name], 1.0)
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_new_rate_wins_and_the_schedule_stands_where_it_stood(name, order):
    want = unbroken(SCHEDULES[name], 1.0)[:4] + unbroken(SCHEDULES[name], 0.25)[4:]
    assert trained(SCHEDULES[name], [1.0, 1.0, 0.25, 0.25], order) == pytest.approx(want)
