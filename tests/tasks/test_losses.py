"""Compare losses and attacks with slow, direct formulations, alone and in a stack."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

import mopbt
from mopbt.tasks import losses
from mopbt.tasks.losses import (
    divergence,
    fair_cross_entropy,
    gap,
    pgd,
    trades,
    weighted_cross_entropy,
)
from mopbt.torch import SGD, Batches, TorchTask

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(seed, n=12, classes=2):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, *(torch.randint(0, k, (n,), generator=generator) for k in (classes, 2))


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


def slow_cross_entropy(logits, y, weights):
    """Weight each row by its class, and divide by the sum of the weights."""
    total = given = 0.0
    for row, label in zip(logits.tolist(), y.tolist(), strict=True):
        total += weights[label] * (math.log(sum(math.exp(v) for v in row)) - row[label])
        given += weights[label]
    return total / given


def slow_gap(logits, sensitive):
    groups = {0: [], 1: []}
    for row, group in zip(logits.tolist(), sensitive.tolist(), strict=True):
        groups[group].append(math.exp(row[1]) / (math.exp(row[0]) + math.exp(row[1])))
    return abs(np.mean(groups[1]) - np.mean(groups[0])) if groups[0] and groups[1] else 0.0


def slow_gradient(function, logits, h=1e-6):
    """Return central differences."""
    slope = torch.zeros_like(logits)
    for i in np.ndindex(*logits.shape):
        ends = []
        for sign in (1, -1):
            moved = logits.clone()
            moved[i] += sign * h
            ends.append(function(moved))
        slope[i] = (ends[0] - ends[1]) / (2 * h)
    return slope


def gradient(function, logits):
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


@given(st.integers(0, 10_000), st.sampled_from(np.linspace(0.1, 0.9, 10)))
def test_class_0_weighs_w_and_class_1_the_rest(seed, w):
    logits, y, _ = drawn(seed)
    assert weighted_cross_entropy(logits, y, number(w)).item() == pytest.approx(
        slow_cross_entropy(logits, y, [w, 1 - w])
    )


def test_gradient_of_the_weighted_loss_is_that_of_the_slow_one():
    logits, y, _ = drawn(1)
    slow = slow_gradient(lambda at: slow_cross_entropy(at, y, [0.2, 0.8]), logits)
    torch.testing.assert_close(
        gradient(lambda at: weighted_cross_entropy(at, y, number(0.2)), logits),
        slow,
        atol=1e-8,
        rtol=0,
    )


@given(st.integers(0, 10_000), st.sampled_from([0, 0.01, 0.3162, 10]))
def test_fairness_adds_the_gap_between_mean_probabilities(seed, strength):
    logits, y, sensitive = drawn(seed)
    slow = slow_cross_entropy(logits, y, [1, 1]) + strength * slow_gap(logits, sensitive)
    assert fair_cross_entropy(logits, y, sensitive, number(strength)).item() == pytest.approx(slow)


def test_gradient_of_the_fairness_loss_is_that_of_the_slow_one():
    logits, y, sensitive = drawn(2)
    slow = slow_gradient(
        lambda at: slow_cross_entropy(at, y, [1, 1]) + 4 * slow_gap(at, sensitive), logits
    )
    ours = gradient(lambda at: fair_cross_entropy(at, y, sensitive, number(4)), logits)
    torch.testing.assert_close(ours, slow, atol=1e-8, rtol=0)


@pytest.mark.parametrize("group", [0, 1])
def test_a_batch_with_one_group_gives_plain_cross_entropy_and_a_finite_gradient(group):
    logits, y, _ = drawn(3)
    sensitive = torch.full_like(y, group)
    fair, plain = (
        (lambda at: fair_cross_entropy(at, y, sensitive, number(10))),
        (lambda at: F.cross_entropy(at, y)),
    )
    assert torch.equal(fair(logits), plain(logits))
    torch.testing.assert_close(gradient(fair, logits), gradient(plain, logits))


def test_strength_0_gives_plain_cross_entropy():
    logits, y, sensitive = drawn(4)
    fair, plain = (
        (lambda at: fair_cross_entropy(at, y, sensitive, number(0))),
        (lambda at: F.cross_entropy(at, y)),
    )
    assert torch.equal(fair(logits), plain(logits))
    torch.testing.assert_close(gradient(fair, logits), gradient(plain, logits))


def test_equal_groups_have_a_gap_of_0_with_a_finite_gradient():
    p, one = torch.full((4,), 0.5, requires_grad=True), torch.tensor([True, False, True, False])
    apart = gap(p, one, ~one)
    apart.backward()
    assert apart.item() == 0
    assert torch.isfinite(p.grad).all()


def weighted(logits, y, sensitive, weight):
    return weighted_cross_entropy(logits, y, weight)


@pytest.mark.parametrize("loss", [weighted, fair_cross_entropy])
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_members_have_the_losses_and_gradients_that_they_have_alone(loss, shared):
    members = [drawn(seed) for seed in range(4)]
    # The last batch has one group only.
    members[3] = (*members[3][:2], torch.ones_like(members[3][2]))
    if shared:
        members = [(own[0], *members[0][1:]) for own in members]
    values = torch.linspace(0.0, 0.9, 4, dtype=torch.float64)
    logits, y, sensitive = (torch.stack(parts) for parts in zip(*members, strict=True))
    axis = None if shared else 0
    targets = (y[0], sensitive[0]) if shared else (y, sensitive)
    leaf = logits.clone().requires_grad_()
    stacked = vmap(loss, in_dims=(0, axis, axis, 0))(leaf, *targets, values)
    slopes = torch.autograd.grad(stacked.sum(), leaf)[0]
    for i, own in enumerate(members):
        torch.testing.assert_close(stacked[i], loss(*own, values[i]))
        torch.testing.assert_close(
            slopes[i], gradient(lambda at, own=own, i=i: loss(at, *own[1:], values[i]), own[0])
        )


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_divergence_is_that_of_torchs_distributions(seed, classes):
    ours, theirs = drawn(seed, 5, classes)[0], drawn(seed + 1, 5, classes)[0]
    slow = torch.distributions.kl_divergence(
        *(torch.distributions.Categorical(logits=z) for z in (ours, theirs))
    ).mean()
    torch.testing.assert_close(divergence(ours, theirs), slow)


# Attacks.


class Counted(nn.Module):
    """Record the mode of each call of a small network with BatchNorm."""

    def __init__(self, classes=3):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, classes),
        )
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return self.layers(x)


def network(seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Counted(**options).double()
        for _ in range(5):
            # Give BatchNorm statistics that differ from those of any batch.
            made(torch.rand(16, 3, 6, 6, dtype=torch.float64))
    made.modes.clear()
    return made


def images(n=7, seed=0, classes=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, 6, 6, generator=generator, dtype=torch.float64)
    return x.round(decimals=1), torch.randint(0, classes, (n,), generator=generator)


def slow_ascent(model, x, start, loss):
    """Ascend by backward passes; return all positions."""
    path = [start.detach()]
    for _ in range(10):
        at = path[-1].clone().requires_grad_()
        slope = torch.autograd.grad(loss(model(at)), at)[0]
        moved = path[-1] + 0.003 * slope.sign()
        path.append((x + (moved - x).clamp(-0.031, 0.031)).clamp(0, 1))
    return path


def slow_trades(model, x, y, beta):
    """Compute the loss of the TRADES paper with PyTorch's KL and backward passes."""
    kl = nn.KLDivLoss(reduction="sum")
    model.eval()
    target = model(x).softmax(1).detach()
    start = x + 0.001 * torch.randn(x.shape, dtype=x.dtype)
    attacked = slow_ascent(model, x, start, lambda z: kl(z.log_softmax(1), target))[-1]
    model.train()
    natural = F.cross_entropy(model(x), y)
    return natural + beta / len(x) * kl(model(attacked).log_softmax(1), model(x).softmax(1))


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0, 10.0])
def test_trades_and_its_gradient_are_those_of_the_direct_formulation(beta):
    x, y = images()
    ours, theirs = network(), network()
    torch.manual_seed(5)
    loss = trades(ours, x, y, number(beta))
    torch.manual_seed(5)
    slow = slow_trades(theirs, x, y, beta)
    torch.testing.assert_close(loss, slow)
    assert (slow > F.cross_entropy(network()(x), y)) == (beta > 0)
    loss.backward()
    slow.backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


def test_trades_has_the_papers_settings():
    assert (losses.EPSILON, losses.STEP, losses.TRAINING_STEPS, losses.EVALUATION_STEPS) == (
        0.031,
        0.003,
        10,
        20,
    )
    model, (x, y) = network(), images()
    trades(model, x, y, number(1))
    # The attack evaluates its target and ten steps; the loss then calls the model three times.
    assert model.modes == [False] * 11 + [True] * 3


def test_statistics_have_two_shares_of_natural_and_one_of_attacked_images(monkeypatch):
    model, other, (x, y) = network(), network(), images()
    # An attack that no statistics overlook.
    monkeypatch.setattr(losses, "_trades_attack", lambda model, x, *_: 1 - x)
    trades(model, x, y, number(1))
    for seen in (x, 1 - x, x):
        other(seen)
    for mine, expected in zip(model.layers[1].buffers(), other.layers[1].buffers(), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_even_after_an_error(training):
    model = network().train(training)
    trades(model, *images(), number(1))
    assert model.training is training
    with pytest.raises(RuntimeError, match="shape|size|channels"):
        pgd(
            model,
            torch.zeros(2, 5, 6, 6, dtype=torch.float64),
            torch.zeros(2),
            torch.zeros(2, 5, 6, 6, dtype=torch.float64),
        )
    assert model.training is training
    assert model.layers[1].training is training


class Member:
    """Replace a model inside a stack."""

    def __init__(self, module, state):
        self.module, self.state = module, state
        self.eval, self.train = module.eval, module.train

    training = property(lambda self: self.module.training)

    def __call__(self, x):
        return functional_call(self.module, self.state, (x,))


def stacked_trades(members, x, y, betas, axis=None):
    """Return losses, gradients by parameter, buffers, and the modes of all calls."""
    parameters, buffers = stack_module_state(members)
    module = copy.deepcopy(members[0])
    module.modes.clear()

    def one(parameters, buffers, x, y, beta):
        state = {**parameters, **buffers}
        return trades(Member(module, state), x, y, beta), {
            name: state[name].detach() for name in buffers
        }

    stacked = vmap(one, in_dims=(0, 0, axis, axis, 0), randomness="different")
    found, buffers = stacked(parameters, buffers, x, y, torch.tensor(betas, dtype=torch.float64))
    slopes = torch.autograd.grad(found.sum(), list(parameters.values()))
    return found, dict(zip(parameters, slopes, strict=True)), buffers, module.modes


@pytest.mark.parametrize("shared", [True, False])
def test_stacked_trades_is_what_each_member_has_alone(shared, monkeypatch):
    noise = torch.randn(7, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(losses.torch, "randn_like", lambda x: noise)
    members, betas = [network(seed) for seed in range(3)], [0.0, 1.0, 10.0]
    data = [images(seed=0 if shared else seed) for seed in range(3)]
    x, y = data[0] if shared else (torch.stack(parts) for parts in zip(*data, strict=True))
    found, slopes, buffers, _ = stacked_trades(members, x, y, betas, None if shared else 0)
    for i, member in enumerate(members):
        loss = trades(member, *data[i], number(betas[i]))
        torch.testing.assert_close(found[i], loss)
        loss.backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(slopes[name][i], parameter.grad, atol=1e-9, rtol=1e-6)
        for name, buffer in member.named_buffers():
            torch.testing.assert_close(buffers[name][i], buffer)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_statistics_of_a_member_do_not_depend_on_its_neighbors(beta, monkeypatch):
    noise = torch.randn(7, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(losses.torch, "randn_like", lambda x: noise)
    x, y = images()
    alone = network(0)
    trades(alone, x, y, number(beta))
    for neighbors in ([], [0.0], [10.0], [0.0, 10.0]):
        members = [network(i) for i in range(1 + len(neighbors))]
        _, _, buffers, modes = stacked_trades(members, x, y, [beta, *neighbors])
        assert len(modes) == 14
        for name, buffer in alone.named_buffers():
            torch.testing.assert_close(buffers[name][0], buffer)


def test_members_that_share_images_start_their_attacks_apart():
    found, *_ = stacked_trades([network(0), network(0)], *images(), [1.0, 1.0])
    assert found[0] != found[1]


@given(st.integers(0, 1000), st.sampled_from([0.001, 0.031, 0.3]), st.integers(1, 5))
def test_pgd_stays_in_its_ball_and_in_the_range_of_images(seed, epsilon, steps):
    model, (x, y) = network().eval(), images(seed=seed)
    # Black and white images are at the bounds.
    x[0], x[1] = x[0].round(), 1 - x[0].round()
    start = x + epsilon * (
        2 * torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed)) - 1
    )
    attacked = pgd(model, x, y, start, epsilon=epsilon, steps=steps)
    assert (attacked - x).abs().max() <= epsilon + 1e-12
    assert attacked.min() >= 0
    assert attacked.max() <= 1


def test_pgd_is_the_direct_formulation():
    model, (x, y) = network().eval(), images()
    start = x + 0.031 * (
        2 * torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)) - 1
    )
    slow = slow_ascent(model, x, start, lambda z: F.cross_entropy(z, y))
    torch.testing.assert_close(pgd(model, x, y, start, steps=10), slow[-1])
    torch.testing.assert_close(pgd(model, x, y, start, steps=1), slow[1])


def test_an_attack_needs_no_gradients_and_leaves_none():
    model, (x, y) = network().train(), images()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        attacked = pgd(model, x, y, x)
    assert not attacked.requires_grad
    assert not pgd(model, x, y, x, steps=1).requires_grad
    assert (attacked - x).abs().max() > 0.03
    assert set(model.modes) == {False}
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_task_trains_with_trades_one_by_one():
    x, y = images(32)
    seen = []

    def loss(model, batch, hp):
        found = trades(model, *batch, hp["beta"])
        seen.append(len(model.modes))
        model.modes.clear()
        return found

    task = TorchTask(
        lambda: Counted().float(),
        loss=loss,
        data=Batches(x.float(), y, batch_size=16),
        space={"beta": mopbt.LogGrid(0.1, 10, 10, zero=True)},
        objectives={"accuracy": "max"},
        steps=2,
        optimizer=SGD(lr=0.1),
        metrics=lambda z, y: {"accuracy": (z.argmax(1) == y).double().mean()},
        validation=(x.float(), y),
        device="cpu",
    )
    for beta in (0.0, 1.0):
        seen.clear()
        task.train(task.init(0), {"beta": beta}, 0, 1, 0)
        assert seen == [14, 14]
