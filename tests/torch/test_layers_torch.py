import pytest
import torch
from tests.torch.nets import COLUMNS, make_task
from torch import nn
from torch.func import functional_call, vmap

import mopbt
from mopbt.torch import Dropout, Hyperparameter

N = 40_000


def dropped(layer, p, x):
    """Apply dropout to stacked inputs, each with its own probability."""

    def one(p, x):
        return functional_call(layer, {"p.value": p}, (x,))

    return vmap(one, randomness="different")(torch.tensor(p), x)


def single(p):
    layer = Dropout("p")
    layer.p.value.fill_(p)
    return layer


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.8])
@pytest.mark.parametrize("way", ["one", "stacked", "constant"])
def test_drops_with_its_probability_and_scales_the_rest(p, way):
    torch.manual_seed(1)
    x = torch.full((N,), 2.0)
    if way == "stacked":
        y = dropped(Dropout("p"), [0.3, p, 0.6], x.expand(3, N))[1]
    else:
        y = (single(p) if way == "one" else Dropout(p))(x)
    kept = y != 0
    assert abs(float(kept.float().mean()) - (1 - p)) < 5 * (p * (1 - p) / N) ** 0.5 + 1e-9
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 2 / (1 - p)))
    assert abs(float(y.mean()) - 2) < 0.1


def test_masks_differ_between_members_and_updates_and_are_independent():
    torch.manual_seed(2)
    x = torch.ones(3, N)
    first, second = (dropped(Dropout("p"), [0.5, 0.5, 0.5], x) != 0 for _ in range(2))
    pairs = [
        (first[0], first[1]),
        (first[1], first[2]),
        (first[0], second[0]),
        (first[0][:-1], first[0][1:]),
    ]
    for a, b in pairs:
        assert abs(float((a == b).float().mean()) - 0.5) < 0.02


def test_evaluation_mode_drops_nothing():
    x = torch.randn(50)
    assert torch.equal(single(0.8).eval()(x), x)
    assert torch.equal(Dropout(0.8).eval()(x), x)
    assert torch.equal(
        dropped(Dropout("p").eval(), [0.1, 0.9], torch.stack([x, x])), torch.stack([x, x])
    )


@pytest.mark.parametrize("stacked", [False, True])
def test_gradients_pass_through_kept_elements_only(stacked):
    torch.manual_seed(3)
    x = torch.ones(2, 1000, requires_grad=True)
    y = (
        dropped(Dropout("p"), [0.25, 0.5], x)
        if stacked
        else torch.stack([single(0.25)(x[0]), single(0.5)(x[1])])
    )
    (y * 3).sum().backward()
    torch.testing.assert_close(x.grad, 3 * y.detach())
    assert (y == 0).any()


def test_a_probability_of_one_drops_everything_as_in_pytorch():
    x = torch.ones(2, 1000)
    assert torch.equal(single(1.0)(x), torch.zeros_like(x))
    assert torch.equal(
        dropped(Dropout("p"), [1.0, 0.0], x), torch.stack([torch.zeros(1000), torch.ones(1000)])
    )


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (2, 3, 4, 5), (0, 3)])
def test_any_shape_and_type(shape):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
        assert (y.shape, y.dtype) == (shape, dtype)


def test_the_same_seed_gives_the_same_mask():
    layer, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(layer(x), first)
    assert not torch.equal(layer(x), first)


class WithMasks(nn.Module):
    """A network that drops inputs and keeps its mask in a buffer."""

    def __init__(self, drop):
        super().__init__()
        self.drop, self.out = drop, nn.Linear(COLUMNS, 2)
        self.register_buffer("mask", torch.zeros(32, COLUMNS))

    def forward(self, x):
        if self.training:
            self.mask.copy_(self.drop(torch.ones_like(x)) != 0)
            x = x * self.mask
        return self.out(x)


class OwnDropout(WithMasks):
    def __init__(self):
        super().__init__(Dropout(0.5))


class PlainDropout(WithMasks):
    def __init__(self):
        super().__init__(nn.Dropout(0.5))


@pytest.mark.parametrize("model", [OwnDropout, PlainDropout])
@pytest.mark.parametrize("shared", [False, True])
def test_constant_dropout_differs_between_members_even_on_shared_inputs(model, shared):
    task = make_task(model, shared=shared, updates=1)
    members = task.train_many([task.init(0)] * 4, [{"lr": 0.1}] * 4, [0] * 4, [1, 2, 3, 4])
    masks = torch.stack([m["model"]["mask"] for m in members])
    assert 0.4 < masks.mean() < 0.6
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 4


class Chained(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.out = Dropout("dropout"), nn.Linear(COLUMNS, 2)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.kept += (self.drop(torch.ones(2000) + 0 * self.out.bias[0]) != 0).float().mean()
        return self.out(x)


def test_each_member_has_its_own_probability_stacked_or_alone():
    space = {"lr": mopbt.Grid(0, 1, 2), "dropout": mopbt.Grid(0, 0.8, 5)}
    task, ps = make_task(Chained, space=space), [0.0, 0.2, 0.4, 0.8]
    hp = [{"lr": 0.0, "dropout": p} for p in ps]
    stacked = task.train_many([task.init(0)] * 4, hp, [0] * 4, [1, 2, 3, 4])
    alone = [task.train(task.init(0), v, 0, 1, 1) for v in hp]
    for members in (stacked, alone):
        for p, member in zip(ps, members, strict=True):
            assert abs(float(member["model"]["kept"]) / task.data.updates - (1 - p)) < 0.03


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.temperature = nn.Linear(COLUMNS, 2), Hyperparameter("temperature")

    def forward(self, x):
        return self.net(x) / self.temperature()


def test_a_tuned_value_is_used_in_evaluation_and_saved_with_the_model():
    space = {"lr": mopbt.LogGrid(0.01, 1, 3), "temperature": mopbt.Grid(1, 3, 3)}
    task = make_task(Temperature, space=space)
    hp = [{"lr": 0.1, "temperature": t} for t in (1.0, 2.0, 3.0)]
    stacked = task.train_many([task.init(0)] * 3, hp, [0] * 3, [5] * 3)
    fresh = make_task(Temperature, space=space)  # Its model has no values of earlier members.
    expected = [fresh.evaluate(fresh.train(fresh.init(0), v, 0, 1, 5)) for v in hp]
    for member, measured, value, alone in zip(
        stacked, fresh.evaluate_many(stacked), hp, expected, strict=True
    ):
        model = Temperature()
        model.load_state_dict(member["model"])
        assert float(model.temperature()) == value["temperature"]
        assert measured == pytest.approx(alone, abs=1e-6)
        with torch.no_grad():
            outputs = model.eval()(task.validation[0])
        assert measured["loss"] == pytest.approx(
            float(nn.functional.cross_entropy(outputs, task.validation[1])), abs=1e-6
        )


def test_dropout_is_not_in_the_state_dict():
    model = nn.Sequential(nn.Linear(2, 2), Dropout("dropout"), Dropout(0.5))
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_layers_have_a_repr_and_check_their_arguments():
    assert "dropout" in repr(Dropout("dropout"))
    assert "p=0.25" in repr(Dropout(0.25))
    for p in (-0.1, 1.0, 2):
        with pytest.raises(
            ValueError, match=rf"`p` must be in \[0, 1\) or .* hyperparameter, got {p}"
        ):
            Dropout(p)
    with pytest.raises(ValueError, match="name of a hyperparameter, got ''"):
        Hyperparameter("")
