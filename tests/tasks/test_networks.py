"""Test that the networks compute what the published ones do, alone and in a stack."""

from dataclasses import replace

import pytest
import rtdl_revisiting_models as rtdl
import torch
from torch import nn
from torch.nn import functional as F

import mopbt
from mopbt.problem import Hyperparameters
from mopbt.tasks.networks import Attention, FTTransformer, WideBlock, WideResNet
from mopbt.torch import SGD, Batches, Dropout, TorchTask

ADULT = (6, [9, 16, 7, 15, 6, 5, 2, 42])
DROPOUTS = ("attention_dropout", "ffn_dropout", "residual_dropout")


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Use one thread in every test."""


# FT-Transformer against rtdl's.


def pair(
    numeric,
    cardinalities,
    blocks=2,
    width=16,
    heads=4,
    hidden=12,
    outputs=3,
    dropouts=(0.0, 0.0, 0.0),
):
    """Return rtdl's network and ours with the same weights.

    rtdl gets one more category per feature, for the unknown ones.
    """
    torch.manual_seed(0)
    theirs = rtdl.FTTransformer(
        n_cont_features=numeric,
        cat_cardinalities=[c + 1 for c in cardinalities],
        d_out=outputs,
        n_blocks=blocks,
        d_block=width,
        attention_n_heads=heads,
        ffn_d_hidden=hidden,
        ffn_d_hidden_multiplier=None,
        **dict(zip(DROPOUTS, dropouts, strict=True)),
    )
    # Biases of 0 and norms of 1 would hide mistakes.
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
    ours = FTTransformer(
        numeric,
        cardinalities,
        outputs=outputs,
        blocks=blocks,
        width=width,
        heads=heads,
        hidden=hidden,
    )
    ours.load_state_dict(
        as_ours(
            {name: p.detach() for name, p in theirs.named_parameters()}, numeric, len(cardinalities)
        )
    )
    return theirs, ours


def as_ours(p, numeric, categorical):
    """Return rtdl's tensors by our names."""
    state = {"tokens.token": p["cls_embedding.weight"][None]}
    biases = [("cont_embeddings.bias", numeric), ("cat_embeddings.bias", categorical)]
    state["tokens.bias"] = torch.cat([p[name] for name, n in biases if n])
    if numeric:
        state["tokens.weight"] = p["cont_embeddings.weight"]
    if categorical:
        state["tokens.table"] = torch.cat(
            [p[f"cat_embeddings.embeddings.{i}.weight"] for i in range(categorical)]
        )
    names = {"head.0": "backbone.output.normalization", "head.2": "backbone.output.linear"}
    parts = {
        "attention.output": "attention.W_out",
        "ffn.input": "ffn.linear1",
        "ffn.output": "ffn.linear2",
        "ffn_norm": "ffn_normalization",
        "attention_norm": "attention_normalization",
    }
    i = 0
    while (block := f"backbone.blocks.{i}") + ".ffn.linear1.bias" in p:
        names |= {f"blocks.{i}.{ours}": f"{block}.{theirs}" for ours, theirs in parts.items()}
        for kind in ("weight", "bias"):
            state[f"blocks.{i}.attention.qkv.{kind}"] = torch.cat(
                [p[f"{block}.attention.W_{x}.{kind}"] for x in "qkv"]
            )
        i += 1
    named = {f"{a}.{kind}": f"{b}.{kind}" for a, b in names.items() for kind in ("weight", "bias")}
    return state | {a: p[b] for a, b in named.items() if b in p}


def rows(numeric, cardinalities, n=20):
    generator = torch.Generator().manual_seed(1)
    codes = [torch.randint(0, c + 1, (n, 1), generator=generator) for c in cardinalities]
    return torch.cat([torch.randn(n, numeric, generator=generator), *codes], dim=1)


def by_rtdl(theirs, x, numeric):
    return theirs(
        x[:, :numeric] if numeric else None, x[:, numeric:].long() if x.shape[1] > numeric else None
    )


SHAPES = {
    "mixed": {"numeric": 5, "cardinalities": [3, 1, 4]},
    "numeric alone": {"numeric": 4, "cardinalities": []},
    "categorical alone": {"numeric": 0, "cardinalities": [2, 6]},
    "one head": {"numeric": 2, "cardinalities": [3], "heads": 1},
    "one block": {"numeric": 3, "cardinalities": [2], "blocks": 1},
    "one feature": {
        "numeric": 1,
        "cardinalities": [],
        "blocks": 1,
        "heads": 16,
        "hidden": 1,
        "outputs": 1,
    },
    "the default on Adult": dict(zip(("numeric", "cardinalities"), ADULT, strict=True))
    | {"blocks": 3, "width": 192, "heads": 8, "hidden": 256},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_and_gradients_are_those_of_rtdl(shape):
    theirs, ours = pair(**shape)
    x = rows(shape["numeric"], shape["cardinalities"])
    expected, got = by_rtdl(theirs, x, shape["numeric"]), ours(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    gradients = as_ours(gradients, shape["numeric"], len(shape["cardinalities"]))
    for name, p in ours.named_parameters():
        torch.testing.assert_close(
            p.grad,
            gradients[name],
            rtol=1e-3,
            atol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_the_defaults_are_rtdls():
    settings = rtdl.FTTransformer.get_default_kwargs()
    torch.manual_seed(0)
    theirs = rtdl.FTTransformer(n_cont_features=28, cat_cardinalities=[], d_out=2, **settings)
    ours = FTTransformer(28)
    expected = as_ours({name: p.detach() for name, p in theirs.named_parameters()}, 28, 0)
    assert {name: p.shape for name, p in ours.state_dict().items()} == {
        name: p.shape for name, p in expected.items()
    }
    for name, p in ours.state_dict().items():
        # Large tensors must come from the same distribution.
        if p.numel() > 100:
            assert p.abs().max() == pytest.approx(float(expected[name].abs().max()), rel=0.05), name
            assert p.mean() == pytest.approx(float(expected[name].mean()), abs=0.02), name


def test_number_of_parameters_is_the_papers():
    assert sum(p.numel() for p in FTTransformer(28).parameters()) == 902_786
    theirs = rtdl.FTTransformer(
        n_cont_features=6,
        cat_cardinalities=[c + 1 for c in ADULT[1]],
        d_out=2,
        **rtdl.FTTransformer.get_default_kwargs(),
    )
    assert sum(p.numel() for p in FTTransformer(*ADULT).parameters()) == sum(
        p.numel() for p in theirs.parameters()
    )


class Mask(nn.Module):
    """Replace dropout by zeros at fixed places that depend on the kind of dropout."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        i, j, k = (torch.arange(n) for n in x.reshape(-1, *x.shape[-2:]).shape)
        mask = (i[:, None, None] * 7 + j[:, None] * 3 + k * 5 + self.kind) % (3 + self.kind) > 0
        return x * mask.view(x.shape) * (1 + self.kind)


def test_dropouts_stand_where_rtdl_has_them():
    theirs, ours = pair(5, [3, 1, 4], blocks=3, dropouts=(0.5, 0.5, 0.5))
    for a, b in zip(theirs.backbone.blocks, ours.blocks, strict=True):
        a["attention"].dropout = b.attention.dropout = Mask(0)
        a["ffn"].dropout = b.ffn.dropout = Mask(1)
        a["attention_residual_dropout"] = b.attention_residual = Mask(2)
        a["ffn_residual_dropout"] = b.ffn_residual = Mask(3)
    assert not [
        part
        for net in (theirs, ours)
        for part in net.modules()
        if isinstance(part, nn.Dropout | Dropout)
    ]
    x = rows(5, [3, 1, 4])
    masked = ours(x)
    torch.testing.assert_close(masked, by_rtdl(theirs, x, 5), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(masked, pair(5, [3, 1, 4], blocks=3)[1](x), atol=0.1)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_the_class_token_attends_like_any_other(heads):
    attention = Attention(16, heads, 0.0).double()
    nn.init.normal_(attention.qkv.bias)
    x = torch.randn(6, 5, 16, dtype=torch.float64, requires_grad=True)
    alone, among = attention(x, 1), attention(x, 5)[:, :1]
    torch.testing.assert_close(alone, among)
    weights = torch.randn_like(alone)
    ours, theirs = (
        torch.autograd.grad((out * weights).sum(), [x, *attention.parameters()])
        for out in (alone, among)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_each_dropout_has_the_name_that_it_was_given():
    net = FTTransformer(2, attention_dropout="a", ffn_dropout="f", residual_dropout="r")
    for block in net.blocks:
        parts = (
            block.attention.dropout,
            block.ffn.dropout,
            block.attention_residual,
            block.ffn_residual,
        )
        assert [part.p.name for part in parts] == ["a", "f", "r", "r"]
    seen = {}
    for name, part in net.named_modules():
        if isinstance(part, Dropout):
            part.register_forward_hook(
                lambda _, inputs, __, name=name: seen.update({name: inputs[0]})
            )
    net(torch.randn(5, 2))
    torch.testing.assert_close(seen["blocks.0.attention.dropout"].sum(-1), torch.ones(5, 8, 3))
    assert seen["blocks.2.attention.dropout"].shape == (5, 8, 1, 3)
    assert [seen[f"blocks.{i}.ffn.dropout"].shape for i in (0, 2)] == [(5, 3, 256), (5, 1, 256)]
    assert (
        seen["blocks.1.attention_residual"].shape
        == seen["blocks.1.ffn_residual"].shape
        == (5, 3, 192)
    )


def test_no_dropout_acts_in_evaluation():
    net = FTTransformer(
        3,
        [2],
        blocks=2,
        width=8,
        heads=2,
        hidden=8,
        attention_dropout=0.5,
        ffn_dropout=0.5,
        residual_dropout=0.5,
    )
    x = rows(3, [2])
    assert not torch.equal(net(x), net(x))
    assert torch.equal(net.eval()(x), net(x))


@pytest.mark.parametrize("code", [-1, -4, 4, 99, 2**20])
def test_an_unknown_category_has_its_own_embedding(code):
    net = FTTransformer(1, [2, 3, 5], blocks=1, width=8, heads=2, hidden=8)
    x = torch.tensor([[0.5, 1, 2, 3]])
    unknown, other = (torch.tensor([[0.5, 1, c, 3]]) for c in (3, code))
    assert torch.equal(net(other), net(unknown))
    outputs = {tuple(net(torch.tensor([[0.5, 1, c, 3]]))[0].tolist()) for c in range(4)}
    assert len(outputs) == 4
    net(other).sum().backward()
    read = net.tokens.table.grad.abs().sum(1).nonzero()[:, 0].tolist()
    # The table has rows for 2, 3 and 5 known categories, each plus one for unknown ones.
    assert read == [1, 3 + 3, 3 + 4 + 3]
    net.zero_grad()
    net(x).sum().backward()
    assert net.tokens.table.grad.abs().sum(1).nonzero()[:, 0].tolist() == [1, 3 + 2, 3 + 4 + 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"numeric": 0}, "FTTransformer needs features"),
        ({"numeric": -1}, "`numeric` must be an integer of at least 0, got -1"),
        (
            {"numeric": 1, "cardinalities": [3, 0]},
            "`cardinalities` must be an integer of at least 1, got 0",
        ),
        (
            {"numeric": 1, "width": 10, "heads": 4},
            "`width` must be a multiple of `heads` \\(4\\), got 10",
        ),
        ({"numeric": 1, "blocks": 0}, "`blocks` must be an integer of at least 1, got 0"),
        ({"numeric": 1, "hidden": 2.5}, "`hidden` must be an integer of at least 1, got 2.5"),
    ],
)
def test_invalid_transformers_are_errors(options, expected):
    with pytest.raises(ValueError, match=expected):
        FTTransformer(**options)


def test_rows_of_the_wrong_width_are_errors():
    with pytest.raises(ValueError, match=r"rows of 4 columns, got a tensor of shape \(2, 3\)"):
        FTTransformer(3, [2])(torch.zeros(2, 3))


# WideResNet.


def slow(state, x, blocks, training=False):
    """Compute the network from its description, layer by layer."""

    def norm(name, x):
        stats = None if training else (state[f"{name}.running_mean"], state[f"{name}.running_var"])
        mean, var = stats or (x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False))
        shape = (1, -1, 1, 1)
        x = (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
        return x * state[f"{name}.weight"].view(shape) + state[f"{name}.bias"].view(shape)

    def conv(name, x, stride=1):
        weight = state[f"{name}.weight"]
        return F.conv2d(
            x, weight, state[f"{name}.bias"], stride=stride, padding=weight.shape[-1] // 2
        )

    x = conv("stem", x)
    for group in range(3):
        for block in range(blocks):
            here, stride = f"groups.{group}.{block}", 2 if group and not block else 1
            added = conv(f"{here}.first", norm(f"{here}.first_norm", x).clamp(min=0))
            added = conv(f"{here}.second", norm(f"{here}.second_norm", added).clamp(min=0), stride)
            shortcut = (
                conv(f"{here}.shortcut", x, stride) if f"{here}.shortcut.weight" in state else x
            )
            x = shortcut + added
    x = norm("norm", x).clamp(min=0)
    return nn.AdaptiveAvgPool2d(1)(x).flatten(1) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 2)])
def test_the_residual_network_is_the_described_one(depth, width, training):
    torch.manual_seed(0)
    net = WideResNet(depth, width, 5)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    state, x = {name: t.clone() for name, t in net.state_dict().items()}, torch.rand(4, 3, 13, 10)
    torch.testing.assert_close(
        net.train(training)(x), slow(state, x, (depth - 4) // 6, training), rtol=1e-3, atol=1e-4
    )


def test_number_of_parameters_of_the_residual_network_is_the_papers():
    net = WideResNet()
    assert sum(p.numel() for p in net.parameters()) == 1_469_642
    blocks = [part for part in net.modules() if isinstance(part, WideBlock)]
    assert [block.second.out_channels for block in blocks] == [32] * 4 + [64] * 4 + [128] * 4
    assert [
        (block.first.stride[0], block.second.stride[0])
        for block in blocks
        if block.second.stride != (1, 1)
    ] == [(1, 2)] * 2
    assert all(part.momentum == 0.1 for part in net.modules() if isinstance(part, nn.BatchNorm2d))
    assert sum(p.numel() for p in WideResNet(classes=100).parameters()) == 1_469_642 + 90 * 129


@pytest.mark.parametrize("size", [(32, 32), (39, 32), (16, 16), (5, 8), (1, 1)])
def test_the_residual_network_takes_images_of_any_size(size):
    net = WideResNet(10, 1, 7)
    seen = []
    net.groups.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    outputs = net(torch.rand(2, 3, *size))
    assert outputs.shape == (2, 7)
    assert seen == [(2, 64, -(-size[0] // 4), -(-size[1] // 4))]
    outputs.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())


@pytest.mark.parametrize("depth", [4, 11, 26, 10.0])
def test_invalid_depths_are_errors(depth):
    with pytest.raises(ValueError, match="`depth` must be 4 plus a multiple of 6"):
        WideResNet(depth)


# Both networks in tasks, alone and in a stack.


def tabular_task(**options):
    cardinalities = [3, 5]
    x, y = rows(4, cardinalities, 96), torch.arange(96) % 2
    return make_task(
        lambda: FTTransformer(
            4,
            cardinalities,
            blocks=2,
            width=16,
            heads=4,
            hidden=12,
            **{name: name for name in DROPOUTS},
        ),
        (x, y),
        space={name: mopbt.Grid(0, 0.8, 10) for name in DROPOUTS},
        **options,
    )


def image_task(**options):
    generator = torch.Generator().manual_seed(0)
    data = torch.rand(32, 3, 8, 8, generator=generator), torch.arange(32) % 2
    return make_task(
        lambda: WideResNet(10, 1, 2), data, space={"lr": mopbt.LogGrid(0.001, 0.1, 5)}, **options
    )


def make_task(model, data, **options):
    settings = {
        "loss": lambda model, batch, hp: F.cross_entropy(model(batch[0]), batch[1]),
        "data": Batches(*data, batch_size=16, updates=2),
        "objectives": {"loss": "min"},
        "optimizer": SGD(lr=0.1),
        "metrics": lambda outputs, y: {"loss": F.cross_entropy(outputs, y)},
        "validation": data,
        "steps": 4,
        "device": "cpu",
    }
    return TorchTask(model, **settings | options)


def alone_and_together(task, values, seeds=(11, 12, 13)):
    members = [task.init(i) for i in range(len(values))]
    alone = [task.train(m, v, 0, 1, s) for m, v, s in zip(members, values, seeds, strict=True)]
    return alone, task.train_many(members, values, [0] * len(values), list(seeds))


NO_DROPOUT = dict.fromkeys(DROPOUTS, 0.0)


@pytest.mark.parametrize("shared", [False, True])
def test_transformers_train_the_same_alone_and_stacked(shared):
    task = tabular_task()
    task = replace(task, data=Batches(*task.data.tensors, batch_size=16, updates=3, shared=shared))
    values = [Hyperparameters(NO_DROPOUT) for _ in range(3)]
    alone, together = alone_and_together(task, values)
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(b["model"], a["model"], rtol=1e-3, atol=1e-5)
        assert all(torch.isfinite(t).all() for t in b["model"].values())
    assert len({m["model"]["head.2.bias"].sum().item() for m in together}) == 3
    for a, b in zip(map(task.evaluate, alone), task.evaluate_many(together), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
    for own in values:
        own.check_read()


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_member_has_its_own_dropout(name):
    task = tabular_task()
    values = [NO_DROPOUT, NO_DROPOUT | {name: 0.8}, NO_DROPOUT]
    plain, _ = alone_and_together(task, [NO_DROPOUT] * 3)
    for members in alone_and_together(task, values):
        for i in (0, 2):
            torch.testing.assert_close(members[i]["model"], plain[i]["model"], rtol=1e-3, atol=1e-5)
        assert not torch.allclose(
            members[1]["model"]["tokens.bias"], plain[1]["model"]["tokens.bias"], atol=1e-4
        )


def test_residual_networks_train_the_same_alone_and_stacked():
    task = image_task(optimizer=SGD(lr="lr", nesterov=True, weight_decay=5e-4))
    alone, together = alone_and_together(task, [{"lr": 0.03}, {"lr": 0.003}, {"lr": 0.01}])
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(b["model"], a["model"], rtol=1e-3, atol=1e-4)
        assert int(b["model"]["norm.num_batches_tracked"]) == 2
        assert b["model"]["norm.running_mean"].abs().max() > 0
    for a, b in zip(map(task.evaluate, alone), task.evaluate_many(together), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tabular_task, image_task])
def test_tasks_with_these_networks_pass_all_checks(make):
    task = make()
    if "lr" in task.space:
        task = replace(task, optimizer=SGD(lr="lr"))
    task.check()
    task.check_stack()
    assert task.probe(2).disagreement < 1e-3


def test_every_parameter_gets_a_finite_gradient():
    for net, x in (
        (FTTransformer(4, [3, 5], width=16, hidden=12), rows(4, [3, 5], 200)),
        (WideResNet(10, 1), torch.rand(8, 3, 16, 16)),
    ):
        F.cross_entropy(net(x), torch.arange(len(x)) % 2).backward()
        for name, p in net.named_parameters():
            assert torch.isfinite(p.grad).all(), name
            assert p.grad.abs().max() > 0, name
