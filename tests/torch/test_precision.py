"""Train in lower precision: formats by device, scaled gradients, and what checkpoints keep."""

import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.nets import cross_entropy, make_task, mlp, rows
from tests.torch.test_stack import MODELS
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

import mopbt
from lanes import examples
from mopbt.engines.placement import AGREEMENT
from mopbt.errors import RunMismatch, TaskError
from mopbt.problem import problem_of, with_precision
from mopbt.run_config import RunConfig, as_recorded
from mopbt.run_directory import read_run_config
from mopbt.tasks.toy import ToyTask
from mopbt.torch import SGD, AdamW, precision
from mopbt.torch.precision import (
    FIRST_SCALE,
    GROWTH_INTERVAL,
    Scaling,
    next_scales,
    supported_precisions,
)

RATES = [{"lr": 0.3}, {"lr": 0.01}, {"lr": 0.1}]
STEEP = {"lr": mopbt.LogGrid(0.001, 1.0, 10), "steepness": mopbt.LogGrid(1.0, 1e6, 3)}


def steep(model, batch, hp):
    """Return a loss whose gradients overflow in fp16 if its factor is large."""
    return hp["steepness"] * F.cross_entropy(model(batch[0]), batch[1])


def train_both_ways(task, hp, members=None, begin=0):
    """Train members one by one and as a stack."""
    members = members or [task.init(i) for i in range(len(hp))]
    seeds = range(11, 11 + len(hp))
    alone = [
        task.train(member, own, begin, begin + task.interval, seed)
        for member, own, seed in zip(members, hp, seeds, strict=True)
    ]
    return alone, task.train_many(members, hp, [begin] * len(hp), list(seeds))


@pytest.mark.parametrize("wrong", ["fp8", "bf 16", "float16", 16, None, torch.bfloat16, ""])
def test_an_unknown_precision_is_an_error(wrong):
    with pytest.raises(ValueError, match="`precision` must be one of 'fp32', 'tf32', 'bf16'"):
        make_task(precision=wrong)


def test_an_error_names_the_precision_that_was_meant():
    with pytest.raises(ValueError, match="did you mean 'bf16'"):
        make_task(precision="bf-16")


def test_a_precision_that_the_device_lacks_is_an_error_before_training():
    with pytest.raises(TaskError, match="'tf32' is not supported on the device 'cpu', which has"):
        make_task(precision="tf32").check()


@pytest.mark.parametrize(
    ("kind", "capability", "types", "expected"),
    [
        ("cuda", (8, 0), (), ("fp32", "tf32", "bf16", "fp16")),
        ("cuda", (9, 0), (), ("fp32", "tf32", "bf16", "fp16")),
        ("cuda", (7, 5), (), ("fp32", "fp16")),
        ("xpu", None, (), ("fp32", "tf32", "bf16", "fp16")),
        ("mps", None, (), ("fp32", "bf16", "fp16")),
        ("cpu", None, (), ("fp32", "bf16", "fp16")),
        ("privateuseone", None, (torch.float16,), ("fp32", "tf32", "fp16")),
        ("vulkan", None, (), ("fp32", "tf32")),
    ],
)
def test_devices_have_different_precisions(kind, capability, types, expected, monkeypatch):
    module = SimpleNamespace(get_amp_supported_dtype=lambda: types)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert supported_precisions(torch.device(kind)) == expected


class TestScales:
    @pytest.mark.slow
    @examples(25)
    @given(
        st.lists(st.booleans(), min_size=1, max_size=20),
        st.sampled_from([1.0, 2.0**16, 3.7, 2.0**126, 2.0**127]),
        st.integers(1, 4),
    )
    def test_they_follow_pytorch(self, outcomes, first, growth_interval):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(precision, "GROWTH_INTERVAL", growth_interval)
            weight = nn.Parameter(torch.zeros(1))
            theirs = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=growth_interval)
            # The scale exists after its first use.
            theirs.scale(torch.ones(()))
            optimizer = torch.optim.SGD([weight], lr=1.0)
            scales, successes = torch.tensor([first]), torch.tensor([0])
            for is_finite in outcomes:
                weight.grad = torch.full((1,), 0.0 if is_finite else math.inf)
                theirs.step(optimizer)
                theirs.update()
                scales, successes = next_scales(scales, successes, torch.tensor([is_finite]))
                assert scales.item() == theirs.get_scale()
                assert successes.item() == theirs._get_growth_tracker()

    @pytest.mark.parametrize(
        ("before", "is_finite", "after"),
        [
            ((65536.0, 0), True, (65536.0, 1)),
            ((65536.0, 7), False, (32768.0, 0)),
            ((65536.0, GROWTH_INTERVAL - 1), True, (131072.0, 0)),
            ((65536.0, GROWTH_INTERVAL - 1), False, (32768.0, 0)),
            ((2.0**127, GROWTH_INTERVAL - 1), True, (2.0**127, 0)),
            ((1.0, 0), False, (0.5, 0)),
        ],
    )
    def test_table(self, before, is_finite, after):
        scales, successes = next_scales(
            torch.tensor([before[0]]), torch.tensor([before[1]]), torch.tensor([is_finite])
        )
        assert (scales.item(), successes.item()) == after

    def test_each_member_has_its_own(self):
        scaling = Scaling(torch.tensor([4.0, 8.0, 2.0]), torch.tensor([5, 6, 7]))
        gradients = torch.tensor([[4.0, 8.0], [math.inf, 1.0], [1.0, math.nan]])
        assert scaling.unscale(gradients).tolist() == [True, False, False]
        assert gradients[0].tolist() == [1.0, 2.0]
        assert scaling.scales.tolist() == [4.0, 4.0, 1.0]
        assert scaling.successes.tolist() == [6, 0, 0]


@pytest.mark.parametrize("factor", [1.0, 1e5])
def test_fp16_trains_as_a_loop_of_pytorch_with_a_grad_scaler(factor):
    task = make_task(loss=steep, space=STEEP, precision="fp16", optimizer=SGD(lr="lr"))
    hp = {"lr": 0.001, "steepness": factor}
    start = task.init(0)
    trained = task.train(start, hp, 0, 1, 5)

    own = mlp()
    own.load_state_dict(start["model"])
    optimizer = torch.optim.SGD(own.parameters(), lr=0.001, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    steps = 0
    for x, y in task._built_data.iter_batches([5], [0]):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = steep(own, (x[0], y[0]), {"steepness": torch.tensor(factor)})
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        steps += scaler.get_scale() >= before
    assert trained["updates"] == steps
    assert trained["scaling"] == {
        "scale": scaler.get_scale(),
        "successes": scaler._get_growth_tracker(),
    }
    # With a steep loss, the first updates are skipped.
    assert (steps < 3) == (factor > 1)
    torch.testing.assert_close(trained["model"], dict(own.state_dict()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_stack_and_loop_agree(kind, model):
    rates = [{"lr": 0.1}, {"lr": 0.02}]
    alone, together = train_both_ways(make_task(model, precision=kind), rates)
    full = train_both_ways(make_task(model), rates)[0]
    for a, b, c in zip(alone, together, full, strict=True):
        torch.testing.assert_close(b["model"], a["model"], rtol=0.02, atol=0.02)
        torch.testing.assert_close(c["model"], a["model"], rtol=0.1, atol=0.05)
        assert a["updates"] == b["updates"] == 3
        assert a.get("scaling") == b.get("scaling")
        assert {t.dtype for t in a["optimizer"]["momentum_buffer"].values()} == {torch.float32}
        assert any(not torch.equal(c["model"][name], a["model"][name]) for name in a["model"])


def random(*shape):
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))


LABELS = torch.tensor([0, 1, 2])
FUNCTIONS = {
    "linear": (F.linear, random(3, 8), random(4, 8), random(4)),
    "linear without bias": (F.linear, random(3, 8), random(4, 8)),
    "matmul": (torch.matmul, random(3, 8), random(8, 4)),
    "addmm": (torch.addmm, random(4), random(3, 8), random(8, 4)),
    "baddbmm": (torch.baddbmm, random(2, 3, 4), random(2, 3, 8), random(2, 8, 4)),
    "conv1d": (F.conv1d, random(2, 3, 6), random(4, 3, 3), random(4)),
    "conv2d": (F.conv2d, random(2, 3, 6, 6), random(4, 3, 3, 3)),
    "conv3d": (F.conv3d, random(2, 3, 4, 4, 4), random(4, 3, 3, 3, 3), random(4)),
    "transposed": (F.conv_transpose2d, random(2, 3, 6, 6), random(3, 4, 3, 3), random(4)),
    "attention": (F.scaled_dot_product_attention, *(random(2, 5, 8) for _ in range(3))),
    "layer norm": (lambda x, w: F.layer_norm(x.half(), (8,), w, w), random(3, 8), random(8)),
    "group norm": (lambda x, w: F.group_norm(x.half(), 2, w, w), random(3, 8), random(8)),
    "batch norm": (
        lambda x, w: F.batch_norm(x.half(), w * 0, w.abs(), w, w),
        *(random(3, 8), random(8)),
    ),
    "instance norm": (lambda x: F.instance_norm(x.half()), random(3, 2, 8)),
    "softmax": (lambda x: x.half().softmax(-1), random(3, 8)),
    "log softmax": (lambda x: F.log_softmax(x.half(), -1), random(3, 8)),
    "cross entropy": (lambda x: F.cross_entropy(x.half(), LABELS), random(3, 8)),
    "squared error": (lambda x: F.mse_loss(x.half(), torch.zeros(3, 8)), random(3, 8)),
    "absolute error": (lambda x: F.l1_loss(x.half(), torch.zeros(3, 8)), random(3, 8)),
    "gelu": (lambda x: F.gelu(x.half()), random(3, 8)),
}


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_types_of_autocast_inside_vmap(kind, name):
    function, *arguments = FUNCTIONS[name]
    device = torch.device("cpu")

    def alone(*own):
        with precision.autocast(kind, device):
            return function(*own)

    def together(*own):
        with precision.stacked_autocast(kind, device):
            return alone(*own)

    single = [alone(*(tensor[i] for tensor in arguments)) for i in range(2)]
    stacked = vmap(together)(*arguments)
    assert stacked.dtype == single[0].dtype
    torch.testing.assert_close(stacked, torch.stack(single), rtol=0.02, atol=0.02)


def test_double_precision_and_whole_numbers_are_not_cast():
    device = torch.device("cpu")
    with precision.stacked_autocast("bf16", device), precision.autocast("bf16", device):
        assert F.linear(torch.ones(2, 2).double(), torch.ones(2, 2).double()).dtype == torch.float64
        assert F.embedding(torch.tensor([0, 1]), torch.ones(2, 2)).dtype == torch.float32
        assert F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1])).dim() == 0


def test_a_member_that_overflows_skips_its_own_updates_only():
    task = make_task(loss=steep, space=STEEP, precision="fp16", interval=2)
    hp = [{"lr": 0.001, "steepness": factor} for factor in (1.0, 1e6, 1.0)]
    members = [task.init(0)] * 3
    alone, together = train_both_ways(task, hp, members)
    for a, b in zip(alone, together, strict=True):
        assert a["scaling"] == b["scaling"]
        assert a["updates"] == b["updates"]
        torch.testing.assert_close(b["model"], a["model"], rtol=0.02, atol=0.02)
    assert [member["updates"] for member in together] == [6, 0, 6]
    assert together[1]["scaling"] == {"scale": FIRST_SCALE / 2**6, "successes": 0}
    assert together[0]["scaling"] == {"scale": FIRST_SCALE, "successes": 6}
    assert torch.equal(together[1]["model"]["0.weight"], members[1]["model"]["0.weight"])
    slots = together[1]["optimizer"]["momentum_buffer"]
    assert not any(bool(tensor.any()) for tensor in slots.values())


def test_a_skipped_first_update_leaves_the_average_as_it_is():
    options = {"loss": steep, "space": STEEP, "ema": 0.9, "clip": 1.0, "optimizer": AdamW(lr="lr")}
    task = make_task(precision="fp16", **options)
    hp = [{"lr": 0.01, "steepness": factor} for factor in (1e6, 1.0)]
    for members in train_both_ways(task, hp):
        assert torch.equal(members[0]["model"]["0.weight"], task.init(0)["model"]["0.weight"])
        assert members[1]["updates"] == 3
        assert all(bool(t.isfinite().all()) for m in members for t in m["model"].values())


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("stacked", [False, True])
def test_training_continues_from_a_checkpoint_to_the_byte(kind, stacked):
    task = make_task(loss=steep, space=STEEP, precision=kind)
    hp = [{"lr": 0.01, "steepness": factor} for factor in (1.0, 1e4)]

    def continued(members):
        return [task.dump(m) for m in train_both_ways(task, hp, members, begin=1)[stacked]]

    first = train_both_ways(task, hp)[stacked]
    restored = [task.load(task.dump(member)) for member in first]
    assert continued(first) == continued(restored)
    if kind == "fp16":
        assert restored[0]["scaling"] == {"scale": FIRST_SCALE, "successes": 3}
        assert restored[1]["scaling"]["scale"] < FIRST_SCALE
        fresh = [member | {"scaling": task.init(0).get("scaling", {})} for member in restored]
        assert all(member.pop("scaling") == {} for member in fresh)
        assert continued(fresh) != continued(restored)


def test_full_precision_keeps_no_scaling():
    task = make_task()
    for members in train_both_ways(task, RATES):
        assert all(m.keys() == {"model", "optimizer", "updates"} for m in members)


def test_members_of_another_precision_can_be_continued():
    half, full = make_task(precision="fp16"), make_task()
    for first, second in ((half, full), (full, half)):
        trained = first.train(first.init(0), RATES[0], 0, 1, 3)
        further = second.train(trained, RATES[0], 1, 2, 3)
        assert ("scaling" in further) == (second is half)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_a_loss_may_call_the_model_without_gradients_first(kind):
    def loss(model, batch, hp):
        with torch.no_grad():
            model(batch[0])
        return cross_entropy(model, batch, hp)

    for usual, other in zip(
        train_both_ways(make_task(precision=kind), RATES),
        train_both_ways(make_task(loss=loss, precision=kind), RATES),
        strict=True,
    ):
        for a, b in zip(usual, other, strict=True):
            torch.testing.assert_close(a["model"], b["model"])


def test_losses_and_models_compute_in_the_precision_and_metrics_in_float32():
    seen = []

    def loss(model, batch, hp):
        outputs = model(batch[0])
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs, batch[1])

    def metrics(outputs, y):
        assert outputs.dtype == torch.float32
        return {"recall": 0.5, "specificity": 0.5}

    task = make_task(loss=loss, metrics=metrics, precision="bf16", errors=False)
    for members in train_both_ways(task, RATES):
        task.evaluate_many(members)
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_the_probe_compares_gradients_in_full_precision(kind):
    assert make_task(precision=kind).probe(2, seconds=0.01).disagreement < AGREEMENT / 100


@pytest.mark.parametrize("kind", ["fp32", "tf32"])
@pytest.mark.parametrize("fails", [False, True])
def test_matrix_products_are_tf32_only_while_training(kind, fails, monkeypatch):
    monkeypatch.setattr("mopbt.torch.task.check_supported", lambda precision, device: None)
    seen = []

    def loss(model, batch, hp):
        seen.append(torch.get_float32_matmul_precision())
        return cross_entropy(model, batch, hp) / (0 if fails else 1)

    task = make_task(loss=loss, precision=kind)
    if fails:
        task = replace(task, loss=lambda model, batch, hp: loss(model, batch, hp).missing)
        with pytest.raises(AttributeError):
            task.train(task.init(0), RATES[0], 0, 1, 3)
    else:
        train_both_ways(task, RATES)
    assert set(seen) == {"high" if kind == "tf32" else "highest"}
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("engine", ["local", pytest.param("vectorized", marks=pytest.mark.slow)])
def test_a_run_in_fp16_resumes_to_the_byte(engine, tmp_path):
    task = make_task(loss=steep, space=STEEP, precision="fp16")

    def run(path, jobs):
        budget = mopbt.Budget(jobs=jobs)
        chosen = "local" if engine == "local" else mopbt.VectorizedEngine(1, stack=3)
        options = {"population": 3, "engine": chosen, "budget": budget, "progress": False}
        results = mopbt.run(task, out=path, **options)
        return results, [report.checksum for report in results.history.reports]

    _, whole = run(tmp_path / "whole", 9)
    run(tmp_path / "resumed", 3)
    results, resumed = run(tmp_path / "resumed", 9)
    assert len(whole) == 9
    assert whole == resumed
    assert "scaling" in results.load(results.front()[0])


def test_evaluation_rows_are_the_same_tensors():
    # A model that was trained in mixed precision is an ordinary float32 model.
    task = make_task(precision="bf16")
    member = task.train(task.init(0), RATES[0], 0, 1, 3)
    own = mlp()
    own.load_state_dict(task.load(task.dump(member))["model"])
    x, y = rows(64, seed=1)
    expected = F.cross_entropy(own(x), y).item()
    assert task.evaluate(member)["loss"] == pytest.approx(expected, abs=1e-6)


class TestRecord:
    """A run keeps its precision."""

    OPTIONS = {"population": 2, "engine": "local", "progress": False}

    def test_a_run_in_another_precision_is_another_run(self, tmp_path):
        budget = mopbt.Budget(jobs=2)
        mopbt.run(make_task(precision="bf16"), out=tmp_path, budget=budget, **self.OPTIONS)
        assert read_run_config(tmp_path).precision == "bf16"
        with pytest.raises(RunMismatch, match="precision is not set, it was bf16"):
            mopbt.run(make_task(), out=tmp_path, **self.OPTIONS)

    def test_the_usual_precision_is_not_recorded(self, tmp_path):
        mopbt.run(make_task(), out=tmp_path, budget=mopbt.Budget(jobs=2), **self.OPTIONS)
        assert "precision" not in (tmp_path / "run.toml").read_text()

    @pytest.mark.parametrize(
        ("recorded", "given", "expected"),
        [
            ("", None, "fp32"),
            ("bf16", None, "bf16"),
            ("bf16", "fp32", "fp32"),
            ("", "fp16", "fp16"),
        ],
    )
    def test_a_resumed_run_has_the_recorded_precision_or_the_given_one(
        self, recorded, given, expected
    ):
        for own in ("fp32", "bf16"):
            task = make_task(precision=own)
            settings = RunConfig(problem_of(task), {"name": "mo-pbt"}, 0, precision=recorded)
            assert as_recorded(task, settings, given).precision == expected

    def test_a_task_without_a_precision_refuses_one(self):
        task = ToyTask()
        settings = RunConfig(problem_of(task), {"name": "mo-pbt"}, 0)
        assert as_recorded(task, settings) is task
        with pytest.raises(ValueError, match="such as a TorchTask, got 'bf16' for 'toy'"):
            with_precision(task, "bf16")

    @pytest.mark.slow
    def test_the_command_line_trains_the_papers_tasks_in_a_precision(self, tmp_path):
        def mopbt_command(*arguments, code=0):
            done = subprocess.run(
                [sys.executable, "-m", "mopbt", *map(str, arguments)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == code, done.stdout + done.stderr
            return done

        command = ["run", "adult-fairness", "--scale", "smoke", "--engine", "local", "--out", "run"]
        stopped = ["--budget-jobs", 4]
        mopbt_command(*command, "--precision", "fp16", *stopped, code=3)
        assert 'precision = "fp16"' in (tmp_path / "run" / "run.toml").read_text()
        assert "it was fp16" in mopbt_command(*command, code=1).stderr
        mopbt_command("resume", "run", "--engine", "local")
        results = mopbt.Results.open(tmp_path / "run")
        assert all("scaling" in results.load(point) for point in results.front())
        best = results.front()[0].model
        assert "identical" in mopbt_command("replay", "run", best).stdout
        plan = mopbt_command(
            "plan", "adult-fairness", "--scale", "smoke", "--precision", "tf32", code=1
        )
        assert "'tf32' is not supported on the device 'cpu'" in plan.stderr
