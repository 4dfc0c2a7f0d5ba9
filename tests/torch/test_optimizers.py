import math
from itertools import pairwise

import pytest
import torch
from tests.torch.nets import make_task, mlp, rows

import mopbt
from mopbt.problem import Hyperparameters
from mopbt.torch import SGD, AdamW, Constant, Cosine, Steps
from mopbt.torch.optimizers import clip_rows, resolve_rates

SIZE = 37


def gradients(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=generator) for _ in range(n)]


def ours(optimizer, start, steps, **rates):
    row, updates = start.clone(), torch.zeros(())
    slots = {name: torch.zeros(SIZE) for name in optimizer.slots}
    trace = []
    for gradient in steps:
        updates += 1
        optimizer.update(row, gradient.clone(), slots, updates, rates)
        trace.append(row.clone())
    return trace


def theirs(kind, start, steps, **options):
    parameter = torch.nn.Parameter(start.clone())
    optimizer = kind([parameter], **options)
    trace = []
    for gradient in steps:
        parameter.grad = gradient.clone()
        optimizer.step()
        trace.append(parameter.detach().clone())
    return trace


def assert_traces_close(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_adamw_matches_pytorch(weight_decay, betas):
    start, steps = torch.linspace(-1, 1, SIZE), gradients(8)
    expected = theirs(
        torch.optim.AdamW, start, steps, lr=0.02, weight_decay=weight_decay, betas=betas
    )
    assert_traces_close(
        ours(AdamW(betas=betas), start, steps, lr=0.02, weight_decay=weight_decay), expected
    )


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True), (0.3, True)]
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_sgd_matches_pytorch(momentum, nesterov, weight_decay):
    start, steps = torch.linspace(-1, 1, SIZE), gradients(8)
    options = {"lr": 0.05, "momentum": momentum, "weight_decay": weight_decay}
    assert_traces_close(
        ours(SGD(nesterov=nesterov), start, steps, **options),
        theirs(torch.optim.SGD, start, steps, nesterov=nesterov, **options),
    )


def test_an_update_does_not_change_the_gradient():
    gradient = torch.ones(SIZE)
    slots = {"momentum_buffer": torch.zeros(SIZE)}
    SGD().update(
        torch.zeros(SIZE),
        gradient,
        slots,
        torch.ones(()),
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    )
    torch.testing.assert_close(slots["momentum_buffer"], gradient)


def test_clipping_rows_matches_pytorchs_clipping_of_each_member():
    stacked = torch.stack(
        [scale * g for scale, g in zip((0.001, 1, 100), gradients(3), strict=True)]
    )
    expected = []
    for row in stacked:
        parts = [torch.nn.Parameter(torch.zeros(n)) for n in (10, SIZE - 10)]
        parts[0].grad, parts[1].grad = row[:10].clone(), row[10:].clone()
        torch.nn.utils.clip_grad_norm_(parts, 1.5)
        expected.append(torch.cat([p.grad for p in parts]))
    clip_rows(stacked, 1.5)
    torch.testing.assert_close(stacked, torch.stack(expected), rtol=1e-6, atol=1e-8)
    assert stacked[0].norm() < 0.1
    assert math.isclose(float(stacked[2].norm()), 1.5, rel_tol=1e-5)


def test_a_nan_row_does_not_affect_how_others_are_clipped():
    stacked = torch.stack(gradients(3))
    alone = stacked[:1].clone()
    stacked[1], stacked[2] = float("nan"), float("inf")
    clip_rows(stacked, 1.0)
    clip_rows(alone, 1.0)
    assert torch.equal(stacked[0], alone[0])


def test_schedules_follow_their_formulas():
    assert [Constant()(x) for x in (0, 0.5, 1)] == [1, 1, 1]
    assert [round(Cosine()(x), 12) for x in (0, 1 / 3, 0.5, 1)] == [1, 0.75, 0.5, 0]
    steps = Steps((0.5, 0.75), factor=0.2)
    assert [steps(x) for x in (0, 0.49, 0.5, 0.74, 0.75, 0.99)] == pytest.approx(
        [1, 1, 0.2, 0.2, 0.04, 0.04]
    )
    assert Steps((0.3,))(3 / 10) == pytest.approx(0.1)


def plain_training(model, optimizer, schedule, batches, lr, steps, begin):
    """Train by a plain loop that sets the scheduled rate before each update."""
    for step, of_step in enumerate(batches, start=begin):
        for i, (x, y) in enumerate(of_step):
            for group in optimizer.param_groups:
                group["lr"] = lr * schedule((step + i / len(of_step)) / steps)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def batches_of(task, seed, steps):
    return [[(x[0], y[0]) for x, y in task.data.iter_batches([seed], [step])] for step in steps]


@pytest.mark.parametrize("schedule", [Cosine(), Steps((0.25, 0.6), factor=0.3)])
def test_training_matches_a_plain_pytorch_loop(schedule):
    """In the second interval the schedule continues at the member's own step."""
    task = make_task(
        optimizer=SGD(lr="lr", nesterov=True, weight_decay=0.01, schedule=schedule),
        steps=4,
        interval=2,
    )
    member = task.init(5)
    model = mlp()
    model.load_state_dict(member["model"])
    theirs = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    )
    for begin, seed in ((0, 11), (2, 12)):
        member = task.train(member, {"lr": 0.1}, begin, begin + 2, seed)
        member = task.load(task.dump(member))
        plain_training(
            model, theirs, schedule, batches_of(task, seed, (begin, begin + 1)), 0.1, 4, begin
        )
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(member["model"][name], parameter.detach(), rtol=1e-5, atol=1e-6)
        buffer = member["optimizer"]["momentum_buffer"][name]
        torch.testing.assert_close(
            buffer, theirs.state[parameter]["momentum_buffer"], rtol=1e-5, atol=1e-6
        )
    assert member["updates"] == 4 * len(rows()[0]) // 32


def test_an_exploiting_member_uses_the_rate_of_its_own_step():
    """Weights and optimizer state are the donor's, the rate depends on the own step."""
    task = make_task(optimizer=AdamW(lr="lr", schedule=Cosine()), steps=10)
    donor = task.train(task.init(0), {"lr": 0.1}, 0, 1, 3)
    early, late = (task.train(donor, {"lr": 0.1}, begin, begin + 1, 3) for begin in (1, 9))
    moved = [
        float((m["model"]["0.weight"] - donor["model"]["0.weight"]).abs().max())
        for m in (early, late)
    ]
    assert moved[1] < 0.15 * moved[0]
    assert early["updates"] == late["updates"] == 2 * donor["updates"] > 0


def test_adams_bias_correction_counts_a_members_own_updates():
    task = make_task(optimizer=AdamW(lr=0.05), space={"x": mopbt.Grid(0, 1, 2)}, updates=1)
    fresh, old = task.init(0), task.init(0)
    for begin in range(3):
        old = task.train(old, {"x": 0.0}, begin, begin + 1, 7 + begin)
    pairs = task.train_many([fresh, old], [{"x": 0.0}] * 2, [0, 3], [1, 2])
    assert [pair["updates"] for pair in pairs] == [1, 4]
    first = (pairs[0]["model"]["0.weight"] - fresh["model"]["0.weight"]).abs()
    decay = 0.05 * 0.01 * fresh["model"]["0.weight"].abs()
    # Adam's first step has the size of the learning rate, whatever the gradient.
    assert float((first - 0.05).abs().max() - decay.max()) < 1e-3


def test_rates_are_resolved_for_each_member_and_count_as_read():
    hp = [Hyperparameters({"lr": 0.1, "other": 1}), Hyperparameters({"lr": 0.2, "other": 1})]
    assert resolve_rates(SGD(lr="lr", momentum=0.5).rates(), hp) == [
        {"lr": lr, "weight_decay": 0.0, "momentum": 0.5} for lr in (0.1, 0.2)
    ]
    assert all(v.read == {"lr"} for v in hp)


def test_bad_arguments_raise_an_error():
    with pytest.raises(TypeError, match="learning_rate"):
        AdamW(learning_rate="lr")
    for kind, name, value in (
        (AdamW, "lr", -1),
        (SGD, "momentum", True),
        (SGD, "weight_decay", math.inf),
        (AdamW, "lr", ""),
    ):
        with pytest.raises(
            ValueError,
            match=f"{kind.__name__}: `{name}` must be a number of at least 0 or .*, got {value!r}",
        ):
            kind(**{name: value})
    with pytest.raises(
        ValueError, match="`eps` must be a positive number .it cannot be tuned., got 'epsilon'"
    ):
        AdamW(eps="epsilon")
    for betas in ("beta", (0.9, "beta"), (0.9,), (0.9, 1.0)):
        with pytest.raises(ValueError, match="`betas` must be two numbers"):
            AdamW(betas=betas)
    for schedule in ("cosine", Cosine):
        with pytest.raises(ValueError, match="`schedule` must be an object such as Cosine"):
            SGD(schedule=schedule)
    for position in (0.0, 1.0, 5):
        with pytest.raises(ValueError, match="`at` must be fractions of the training"):
            Steps((position,))


def test_cosine_always_decreases():
    factors = [Cosine()(i / 50) for i in range(51)]
    assert all(b < a for a, b in pairwise(factors))
