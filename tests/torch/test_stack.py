"""Training as a stack must give the same members as training one by one."""

import math
from dataclasses import replace

import pytest
import torch
from tests.torch.nets import COLUMNS, cross_entropy, dropping_task, make_task, mlp, weighted
from torch import nn
from torch.nn import functional as F

import mopbt
from mopbt.errors import CannotStack, TaskError, UnreadHyperparameter
from mopbt.problem import Hyperparameters
from mopbt.torch import SGD, AdamW, Cosine, Dropout, Hyperparameter
from mopbt.torch.stack import Layout, Stack

CPU = torch.device("cpu")


def with_batchnorm():
    return nn.Sequential(nn.Linear(COLUMNS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Linear(1, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        tokens = self.embed(x[..., None])
        return self.out(
            self.norm(tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]).mean(
                1
            )
        )


class ScaledDotProduct(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Linear(1, 8), nn.Linear(8, 24), nn.Linear(8, 2)

    def forward(self, x):
        q, k, v = (
            self.mix(self.embed(x[..., None])).view(len(x), COLUMNS, 3, 2, 4).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), COLUMNS, 8)
        return self.out(mixed.mean(1))


class Encoder(nn.Module):
    """A model that PyTorch evaluates by a fast path, which cannot be stacked."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(1, 8), nn.Linear(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.out(self.layer(self.embed(x[..., None])).mean(1))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(1, 4, 2),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, (1, 2), groups=2),
        )
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x.view(len(x), 1, 2, 3))))
        return self.out(self.second(x).flatten(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = (
            nn.Linear(COLUMNS, COLUMNS),
            nn.Linear(COLUMNS, COLUMNS),
            nn.Linear(COLUMNS, 2),
        )
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Odd(nn.Module):
    """A model with frozen, unused and zero-dimensional parameters."""

    def __init__(self):
        super().__init__()
        self.net, self.scale = mlp(), nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)

    def forward(self, x):
        return self.net(x) * self.scale + self.frozen


class Twice(nn.Module):
    """A model that uses one module with buffers in two places."""

    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm1d(COLUMNS)
        self.first, self.second = (
            nn.Sequential(nn.Linear(COLUMNS, COLUMNS), norm),
            nn.Sequential(nn.Tanh(), norm),
        )
        self.out = nn.Linear(COLUMNS, 2)

    def forward(self, x):
        return self.out(self.second(self.first(x)))


class Assigning(nn.Module):
    """A model that assigns new tensors to its buffers, as many do."""

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("mean_in_place", torch.zeros(2))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        outputs = self.net(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * outputs.mean(0)
            self.mean_in_place.mul_(0.9).add_(0.1 * outputs.detach().mean(0))
            self.calls = self.calls + 1
        return outputs


MODELS = [
    mlp,
    with_batchnorm,
    Attention,
    ScaledDotProduct,
    Encoder,
    Conv,
    Tied,
    Odd,
    Twice,
    Assigning,
]
RATES = [{"lr": 0.3}, {"lr": 0.01}, {"lr": 0.1}]


def alone_and_together(task, hp, begins=None, seeds=(11, 12, 13), members=None):
    begins, seeds = begins or [0] * len(hp), list(seeds)[: len(hp)]
    members = members or [task.init(i) for i in range(len(hp))]
    alone = [
        task.train(m, v, b, b + task.interval, s)
        for m, v, b, s in zip(members, hp, begins, seeds, strict=True)
    ]
    return alone, task.train_many(members, hp, begins, seeds)


def assert_same(alone, together, *, atol=2e-6, parts=("model", "optimizer")):
    assert len(alone) == len(together)
    for a, b in zip(alone, together, strict=True):
        assert a["updates"] == b["updates"] > 0
        for part in parts:
            torch.testing.assert_close(b[part], a[part], rtol=1e-4, atol=atol)


def differ(members, name):
    return len({tuple(m["model"][name].flatten().tolist()) for m in members}) == len(members)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shared", [False, True])
def test_stack_and_loop_train_the_same_members(model, shared):
    task = make_task(
        model, shared=shared, interval=2, optimizer=SGD(lr="lr", nesterov=True, weight_decay=0.01)
    )
    alone, together = alone_and_together(task, RATES)
    assert_same(alone, together)
    assert all(m["model"].keys() == model().state_dict().keys() for m in together)
    assert differ(together, next(name for name, p in model().named_parameters() if p.requires_grad))


@pytest.mark.parametrize("model", MODELS)
def test_stack_and_loop_give_the_same_metrics(model):
    task = make_task(model, interval=2)
    members = alone_and_together(task, RATES)[1]
    alone = [task.evaluate(m) for m in members]
    for a, b in zip(alone, task.evaluate_many(members), strict=True):
        assert b == pytest.approx(a, abs=2e-6)
        assert {"loss", "recall"} <= set(b)
    assert len({a["loss"] for a in alone}) == 3


@pytest.mark.parametrize("model", MODELS)
def test_a_plain_model_loads_a_member_and_computes_the_same(model):
    task = make_task(model)
    member = task.load(task.dump(alone_and_together(task, RATES)[1][1]))
    own = model()
    own.load_state_dict(member["model"])
    with torch.no_grad():
        loss = F.cross_entropy(own.eval()(task.validation[0]), task.validation[1])
    assert task.evaluate(member)["loss"] == pytest.approx(float(loss), abs=1e-6)


def test_stacked_training_does_not_change_the_members_it_starts_from():
    task = make_task(with_batchnorm)
    member = task.train(task.init(0), {"lr": 0.1}, 0, 1, 3)
    before = task.dump(member)
    children = task.train_many([member, member], [{"lr": 0.1}, {"lr": 0.5}], [1, 1], [4, 4])
    task.train(member, {"lr": 0.1}, 1, 2, 4)
    task.evaluate_many([member, *children])
    assert task.dump(member) == before != task.dump(children[0])


def test_running_statistics_belong_to_each_member():
    task = make_task(with_batchnorm, interval=2, steps=4)
    members = alone_and_together(task, RATES)[1]
    assert [int(m["model"]["1.num_batches_tracked"]) for m in members] == [
        2 * task.data.updates
    ] * 3
    assert members[0]["model"]["1.num_batches_tracked"].dtype == torch.int64
    again = task.train_many([members[1], task.init(8)], RATES[:2], [2, 0], [1, 2])
    assert [int(m["model"]["1.num_batches_tracked"]) for m in again] == [
        4 * task.data.updates,
        2 * task.data.updates,
    ]
    assert differ(members, "1.running_mean")
    assert differ(members, "1.running_var")
    plain = with_batchnorm()
    plain.load_state_dict(task.init(1)["model"])
    x = next(iter(task.data.iter_batches([12], [0])))[0][0]
    plain.train()(x)
    one = replace(task, data=make_task(updates=1).data, interval=1).train_many(
        [task.init(0), task.init(1)], RATES[:2], [0, 0], [11, 12]
    )
    torch.testing.assert_close(
        one[1]["model"]["1.running_var"], plain[1].running_var, rtol=1e-5, atol=1e-6
    )


def test_buffers_that_are_assigned_are_kept():
    task = make_task(Assigning)
    for members in alone_and_together(task, RATES):
        assert [int(m["model"]["calls"]) for m in members] == [task.data.updates] * 3
        for m in members:
            torch.testing.assert_close(m["model"]["mean"], m["model"]["mean_in_place"])
            assert m["model"]["mean"].abs().max() > 0


class Centered(Assigning):
    """A model that uses the buffer it assigned in the last update."""

    def forward(self, x):
        return super().forward(x) - self.mean


def test_assigned_buffers_pass_no_gradient_to_the_previous_update():
    assert_same(*alone_and_together(make_task(Centered), RATES))


def attack(gradient_of):
    """Return a loss on adversarially perturbed inputs."""

    def loss(model, batch, hp):
        x = batch[0].clone().requires_grad_()
        return F.cross_entropy(
            model(x.detach() + 0.1 * gradient_of(model, x, batch[1]).sign()), batch[1]
        )

    return loss


def by_grad(model, x, y):
    return torch.autograd.grad(F.cross_entropy(model(x), y), x)[0]


def by_backward(model, x, y):
    F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    return x.grad


def test_a_loss_may_run_backward_and_clear_gradients_itself():
    expected = make_task(loss=attack(by_grad)).train(make_task().init(0), RATES[0], 0, 2, 1)
    got = make_task(loss=attack(by_backward)).train(make_task().init(0), RATES[0], 0, 2, 1)
    assert not torch.equal(got["model"]["0.weight"], make_task().init(0)["model"]["0.weight"])
    torch.testing.assert_close(got["model"], expected["model"])


def test_the_model_is_restored_after_a_stack_fails():
    failing = {"now": False}

    def loss(model, batch, hp):
        outputs = model(batch[0])
        if failing["now"]:
            raise ZeroDivisionError
        return F.cross_entropy(outputs, batch[1])

    task = make_task(with_batchnorm, loss=loss)
    members = [task.init(i) for i in range(2)]
    expected = task.train(members[0], RATES[0], 0, 1, 1)
    failing["now"] = True
    with pytest.raises(ZeroDivisionError):
        task.train_many(members, RATES[:2], [0, 0], [1, 2])
    failing["now"] = False
    torch.testing.assert_close(task.train(members[0], RATES[0], 0, 1, 1), expected)


def test_frozen_parameters_stay_and_tied_ones_stay_tied():
    task = make_task(Odd)
    start = [task.init(i) for i in range(3)]
    for members in alone_and_together(task, RATES, members=start):
        for m, before in zip(members, start, strict=True):
            assert torch.equal(m["model"]["frozen"], before["model"]["frozen"])
            assert torch.equal(m["model"]["unused"], before["model"]["unused"])
            assert m["model"]["scale"].shape == ()
            assert m["model"]["scale"] != before["model"]["scale"]
            assert "frozen" not in m["optimizer"]["momentum_buffer"]
    for members in alone_and_together(make_task(Tied), RATES):
        assert all(torch.equal(m["model"]["a.weight"], m["model"]["b.weight"]) for m in members)


def lambda_loss(model, batch, hp):
    penalty = sum((p**2).sum() for p in [model(batch[0])])
    return cross_entropy(model, batch, hp) + hp["lambda"] * penalty / len(batch[0])


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_members_of_a_stack_differ_in_every_hyperparameter(kind):
    """Tune learning rate, weight decay, class weight and a penalty, with clipping."""
    grid = mopbt.LogGrid(0.001, 10, 5)
    space = {"lr": grid, "decay": grid, "balance": grid, "lambda": grid}
    optimizer = kind(lr="lr", weight_decay="decay", schedule=Cosine())

    def loss(model, batch, hp):
        return weighted(model, batch, hp) + lambda_loss(model, batch, hp)

    task = make_task(space=space, optimizer=optimizer, loss=loss, clip=0.5, interval=2)
    base = {"lr": 0.05, "decay": 0.01, "balance": 1.0, "lambda": 0.001}
    hp = [
        base,
        base | {"lr": 0.01},
        base | {"decay": 5.0},
        base | {"balance": 10.0},
        base | {"lambda": 10.0},
    ]
    alone, together = alone_and_together(task, hp, seeds=[11] * 5, members=[task.init(0)] * 5)
    assert_same(alone, together, atol=1e-5)
    assert differ(together, "0.weight")


def test_each_members_gradient_is_clipped_separately():
    task = make_task(
        optimizer=SGD(lr="lr", momentum=0.0),
        clip=0.01,
        updates=1,
        space={"lr": mopbt.Ordinal([1.0, 2.0])},
    )
    start = [task.init(0), task.init(1)]
    for members in alone_and_together(task, [{"lr": 1.0}, {"lr": 2.0}], members=start):
        moved = []
        for m, before in zip(members, start, strict=True):
            moved.append(
                torch.cat(
                    [(m["model"][n] - before["model"][n]).flatten() for n in m["model"]]
                ).norm()
            )
        torch.testing.assert_close(
            torch.stack(moved), torch.tensor([0.01, 0.02]), rtol=1e-3, atol=0
        )


@pytest.mark.parametrize("shared", [False, True])
def test_members_at_different_steps_in_one_stack(shared):
    task = make_task(optimizer=SGD(lr="lr", schedule=Cosine()), interval=2, steps=8, shared=shared)
    warm = task.train(task.init(0), {"lr": 0.1}, 0, 2, 9)
    alone, together = alone_and_together(
        task, RATES, begins=[0, 2, 6], members=[task.init(1), warm, warm]
    )
    assert_same(alone, together)
    assert [m["updates"] for m in together] == [6, 12, 12]


def noisy(batch, hp):
    generator = torch.Generator().manual_seed(1)
    return batch[0] + hp["noise"] * torch.randn(batch[0].shape, generator=generator), batch[1]


def test_augmentation_uses_each_members_hyperparameters():
    space = {"lr": mopbt.LogGrid(0.01, 1, 3), "noise": mopbt.Grid(0, 2, 3)}
    task = make_task(space=space, augment=noisy)
    hp = [{"lr": 0.1, "noise": n} for n in (0.0, 1.0, 2.0)]
    for members in alone_and_together(task, hp, seeds=[5] * 3, members=[task.init(0)] * 3):
        assert differ(members, "0.weight")
    plain = make_task().train(task.init(0), {"lr": 0.1}, 0, 1, 5)
    torch.testing.assert_close(members[0]["model"], plain["model"], rtol=1e-4, atol=1e-6)


def test_losses_agree_for_adam_with_dropout_off():
    task = dropping_task(optimizer=AdamW(lr="lr"), interval=2)
    hp = [
        {"lr": lr, "dropout": 0.0, "balance": b}
        for lr, b in ((0.1, 1.0), (0.01, 0.1), (0.03, 10.0))
    ]
    alone, together = alone_and_together(task, hp)
    for a, b in zip(map(task.evaluate, alone), task.evaluate_many(together), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-4)


def test_mixed_precision_trains_in_loop_and_stack():
    task = make_task(precision="bf16")
    alone, together = alone_and_together(task, RATES)
    assert_same(alone, together, atol=0.02)
    full = make_task().train(make_task().init(0), RATES[0], 0, 1, 11)
    assert together[0]["model"]["0.weight"].dtype == torch.float32
    assert not torch.equal(full["model"]["0.weight"], together[0]["model"]["0.weight"])


def test_double_precision_trains_in_loop_and_stack():
    task = make_task(
        lambda: mlp().double(),
        data=type(make_task().data)(
            make_task().data.tensors[0].double(), make_task().data.tensors[1], batch_size=32
        ),
    )
    task = replace(task, validation=(task.validation[0].double(), task.validation[1]))
    alone, together = alone_and_together(task, RATES)
    assert_same(alone, together, atol=1e-12)
    assert together[0]["model"]["0.weight"].dtype == torch.float64


@pytest.mark.parametrize("model", [mlp, with_batchnorm, Attention, Conv])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_member_that_turns_nan_does_not_affect_its_neighbors(model, clip):
    task = make_task(model, clip=clip, interval=2)
    rates = [{"lr": 0.1}, {"lr": float("inf")}, {"lr": 0.05}]
    calm = [rates[0], {"lr": 0.1}, rates[2]]
    wild = alone_and_together(task, rates)[1]
    quiet = alone_and_together(task, calm)[1]
    assert any(bool(t.isnan().any()) for t in wild[1]["model"].values())
    for i in (0, 2):
        assert all(
            torch.equal(wild[i]["model"][name], quiet[i]["model"][name])
            for name in wild[i]["model"]
        )
    measured = task.evaluate_many(wild)
    assert all(math.isnan(score) for score in measured[1].values())
    assert measured[0]["loss"] == pytest.approx(task.evaluate(quiet[0])["loss"], abs=1e-6)


# Hyperparameters that training reads.


def read_by(task, *, stacked):
    names = [
        {name: d.decode(d.sample(mopbt.stream(i, name))) for name, d in task.space.items()}
        for i in range(2)
    ]
    hp = [Hyperparameters(v) for v in names]
    members = [task.init(0), task.init(1)]
    if stacked:
        task.train_many(members, hp, [0, 0], [1, 2])
    else:
        for member, own in zip(members, hp, strict=True):
            task.train(member, own, 0, task.interval, 3)
    assert hp[0].read == hp[1].read
    for own in hp:
        own.check_read()
    return hp[0].read


class Sleeping(nn.Module):
    """A model that never calls its tuned modules."""

    def __init__(self):
        super().__init__()
        self.net, self.drop, self.tuned = mlp(), Dropout("x"), Hyperparameter("x")

    def forward(self, x):
        return self.net(x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scale = mlp(), Hyperparameter("x")

    def forward(self, x):
        return self.net(x) * self.scale()


SPACE = {"lr": mopbt.LogGrid(0.01, 0.1, 3), "x": mopbt.Grid(0.1, 0.5, 3)}


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"model": Scaled},
        {"model": lambda: nn.Sequential(mlp(), Dropout("x"))},
        {"augment": lambda batch, hp: (batch[0] * hp["x"], batch[1])},
        {"loss": lambda model, batch, hp: cross_entropy(model, batch, hp) * hp["x"]},
        {"optimizer": SGD(lr="lr", momentum="x")},
        {"optimizer": AdamW(lr="lr", weight_decay="x")},
    ],
    ids=["tuned", "dropout", "augment", "loss", "momentum", "decay"],
)
def test_reading_in_one_place_is_enough(options, stacked):
    assert read_by(make_task(**{"space": SPACE} | options), stacked=stacked) == {"lr", "x"}


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("model", [mlp, Sleeping])
def test_a_hyperparameter_without_effect_is_an_error(model, stacked):
    with pytest.raises(UnreadHyperparameter, match="never read 'x'"):
        read_by(make_task(model, space=SPACE), stacked=stacked)


# Losses that cannot be stacked.


def numpy_loss(model, batch, hp):
    outputs = model(batch[0])
    return F.cross_entropy(outputs, batch[1]) * (1 + 0 * float(outputs.detach().numpy().sum()))


UNSTACKABLE = {
    r"\.item\(\)": lambda m, b, hp: (
        cross_entropy(m, b, hp) * (1 + 0 * cross_entropy(m, b, hp).item())
    ),
    "data-dependent control flow": lambda m, b, hp: (
        cross_entropy(m, b, hp) * (2 if cross_entropy(m, b, hp) > 0 else 1)
    ),
    "aten::nonzero": lambda m, b, hp: cross_entropy(
        m, [t[torch.nonzero(b[1])[:, 0]] for t in b], hp
    ),
    "boolean mask": lambda m, b, hp: cross_entropy(m, [t[b[1] > 0] for t in b], hp),
    "Cannot access data pointer": numpy_loss,
    "the hyperparameter 'kind' is not a number": lambda m, b, hp: (
        cross_entropy(m, b, hp) * (2 if hp["kind"] == "a" else 1)
    ),
}


@pytest.mark.parametrize("what", UNSTACKABLE)
def test_the_error_names_what_cannot_be_stacked_and_the_remedy(what):
    space = {"lr": mopbt.LogGrid(0.01, 0.1, 3)} | (
        {"kind": mopbt.Categorical(["a", "b"])} if "kind" in what else {}
    )
    task = make_task(loss=UNSTACKABLE[what], space=space)
    task.check()  # Training one by one works.
    with pytest.raises(CannotStack, match=f"cannot be stacked: .*{what}.*use engine='pool'"):
        task.check_stack()


def test_a_model_that_draws_in_evaluation_can_be_stacked():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x) + 0.01 * torch.randn(2)

    task = make_task(Noisy)
    task.check_stack()
    members = [task.init(0)] * 3
    assert len({s["loss"] for s in task.evaluate_many(members)}) == 3


# Layouts.


def test_members_of_different_shapes_raise_an_error():
    layout = Layout.of(mlp())
    members = [
        {"model": mlp(width).state_dict(), "optimizer": {}, "updates": 0} for width in (8, 9)
    ]
    with pytest.raises(
        TaskError, match=r"'0.weight' must have the shape \(8, 6\) in every member, got \(9, 6\)"
    ):
        Stack.of(members, layout, (), CPU)
    with pytest.raises(TaskError, match="'0.weight' .* got nothing"):
        Stack.of(
            [
                {
                    "model": {"0.bias": torch.zeros(8)} | {"2.weight": torch.zeros(2, 8)},
                    "optimizer": {},
                    "updates": 0,
                }
            ]
            * 2,
            layout,
            (),
            CPU,
        )


def test_unsupported_models_raise_an_error():
    with pytest.raises(TaskError, match="no parameters to train"):
        Layout.of(nn.ReLU())
    with pytest.raises(TaskError, match="of one type, got .*float32.*float64"):
        Layout.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))

    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(TaskError, match="must be parameters and buffers, got '_extra_state'"):
        Layout.of(Extra(2, 2))


def test_stacking_and_unstacking_keeps_members():
    task = make_task(Odd, optimizer=AdamW(lr="lr"))
    members = alone_and_together(task, RATES)[1]
    back = Stack.of(members, Layout.of(Odd()), AdamW.slots, CPU).members()
    assert [task.dump(m) for m in back] == [task.dump(m) for m in members]
