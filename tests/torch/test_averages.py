"""Moving averages of weights, and members that start between two others."""

import pytest
import torch
from tests.torch.nets import COLUMNS, make_task, mlp, rows
from torch import nn

from mopbt.problem import BlendableTask
from mopbt.torch import SGD

HP = {"lr": 0.1}


def normalized():
    """Build a network whose evaluation depends on statistics of training batches."""
    return nn.Sequential(
        nn.Linear(COLUMNS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


def flat(state):
    return torch.cat([state[name].reshape(-1) for name in sorted(state)])


def test_the_average_is_the_weighted_mean_of_all_trained_weights():
    decay, updates = 0.7, 3
    plain = make_task(optimizer=SGD(lr="lr"), updates=1, steps=updates)
    averaged = make_task(optimizer=SGD(lr="lr"), updates=1, steps=updates, ema=decay)
    member, trace = plain.init(0), []
    for step in range(updates):
        member = plain.train(member, HP, step, step + 1, seed=5)
        trace.append(flat(member["model"]))
    # Each update weighs `decay` times as much as the next one, from the definition.
    weights = torch.tensor([decay ** (updates - 1 - i) for i in range(updates)])
    expected = (torch.stack(trace) * weights[:, None]).sum(0) / weights.sum()
    found = averaged.init(0)
    for step in range(updates):
        found = averaged.train(found, HP, step, step + 1, seed=5)
    torch.testing.assert_close(flat(found["model"]), expected)
    torch.testing.assert_close(flat(found["trained"]), trace[-1])


def test_the_average_is_what_is_evaluated_and_survives_a_checkpoint():
    task = make_task(optimizer=SGD(lr="lr"), ema=0.9)
    member = task.train(task.init(0), HP, 0, 1, seed=1)
    copy = make_task().evaluate({**member, "trained": None})
    assert task.evaluate(member) == copy
    restored = task.load(task.dump(member))
    direct, again = (task.train(m, HP, 1, 2, seed=2) for m in (member, restored))
    assert task.dump(direct) == task.dump(again)


def test_a_stack_averages_like_single_members():
    task = make_task(optimizer=SGD(lr="lr"), ema=0.9)
    members = [task.init(0), task.init(1)]
    stacked = task.train_many(members, [HP, HP], [0, 0], [3, 4])
    for member, seed, together in zip(members, (3, 4), stacked, strict=True):
        alone = task.train(member, HP, 0, 1, seed)
        torch.testing.assert_close(flat(together["model"]), flat(alone["model"]))


@pytest.mark.parametrize("ema", [0, 1.0, "high", True])
def test_a_decay_outside_its_range_is_an_error(ema):
    with pytest.raises(ValueError, match="`ema` must be between 0 and 1") as caught:
        make_task(ema=ema)
    assert repr(ema) in str(caught.value)


def test_a_blend_averages_weights_moments_and_averages():
    task = make_task(model=mlp, ema=0.9)
    assert isinstance(task, BlendableTask)
    ancestor = task.train(task.init(0), HP, 0, 1, seed=1)
    pair = [task.train(ancestor, HP, 1, 2, seed=seed) for seed in (2, 3)]
    before = [task.dump(member) for member in pair]
    child = task.blend(pair, [0.75, 0.25], HP, seed=0)
    for key in ("model", "trained"):
        expected = 0.75 * flat(pair[0][key]) + 0.25 * flat(pair[1][key])
        torch.testing.assert_close(flat(child[key]), expected)
    for slot, moments in child["optimizer"].items():
        first, other = (flat(member["optimizer"][slot]) for member in pair)
        torch.testing.assert_close(flat(moments), 0.75 * first + 0.25 * other)
    assert child["updates"] == pair[0]["updates"]
    assert [task.dump(member) for member in pair] == before


def test_a_blend_measures_the_statistics_of_batch_normalization_again():
    task = make_task(model=normalized, batch_size=96, updates=1)
    ancestor = task.train(task.init(0), HP, 0, 1, seed=1)
    pair = [task.train(ancestor, HP, 1, 2, seed=seed) for seed in (2, 3)]
    child = task.blend(pair, [0.5, 0.5], HP, seed=0)
    hidden = nn.Linear(COLUMNS, 8)
    hidden.load_state_dict({key: child["model"][f"0.{key}"] for key in ("weight", "bias")})
    # One batch holds all rows, so its statistics do not depend on their order.
    activations = hidden(rows()[0]).detach()
    torch.testing.assert_close(child["model"]["1.running_mean"], activations.mean(0))
    torch.testing.assert_close(child["model"]["1.running_var"], activations.var(0))
    layer = task._program.module[1]
    assert (layer.momentum, layer.training) == (0.1, False)
