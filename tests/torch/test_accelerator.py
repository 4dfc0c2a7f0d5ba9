"""Train, evaluate, save and resume on a simulated accelerator, which checks placement."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch
from tests.torch.nets import dropping_task, make_task, mlp, rows, scores
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

import mopbt
import simulated_device
from mopbt.engines.seeding import global_seeds, seed_globals
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.torch import SGD, AdamW, Batches

# PyTorch prepares for devices at the first backward pass of a process, so the device is registered
# when tests are collected.
try:
    from tests.torch.device_nets import normalized_task
except simulated_device.Unavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("accelerator")


def train(task, stacked):
    """Train two members for an interval, check them and return them with their metrics."""
    hp = task._sample_hp(2)
    members = [task.init(0), task.init(1)]
    with global_seeds(5):
        if stacked:
            trained = task.train_many(members, hp, [0, 0], [3, 4])
            return trained, task.evaluate_many(trained)
        both = zip(members, hp, (3, 4), strict=True)
        trained = [task.train(member, own, 0, task.interval, seed) for member, own, seed in both]
        return trained, [task.evaluate(member) for member in trained]


def assert_close(task, members, expected):
    for one, other in zip(members, expected, strict=True):
        here, there = task.load(task.dump(one)), task.load(task.dump(other))
        assert here["updates"] == there["updates"]
        for name, tensor in there["model"].items():
            torch.testing.assert_close(here["model"][name], tensor, rtol=1e-4, atol=1e-5)
        for slot, state in there["optimizer"].items():
            for name, tensor in state.items():
                torch.testing.assert_close(
                    here["optimizer"][slot][name], tensor, rtol=1e-4, atol=1e-5
                )


class TestSimulatedDevice:
    """The simulated device raises where CUDA raises, and computes what the CPU computes."""

    @pytest.mark.parametrize(
        "misplace",
        [
            lambda data: data + torch.ones(6),
            lambda data: torch.ones(6) * data,
            lambda data: data.index_select(0, torch.tensor([1])),
            lambda data: data.gather(0, torch.tensor([1])),
            lambda data: torch.where(data > 0, data, torch.zeros(6)),
            lambda data: data.masked_fill(torch.ones(6, dtype=torch.bool), 0.0),
            lambda data: torch.cat([data, torch.ones(1)]),
            lambda data: torch.stack([data[0], torch.tensor(1.0)]),
            lambda data: data[None] @ torch.ones(6, 1),
            lambda data: F.linear(torch.ones(1, 6), data[None]),
            lambda data: F.embedding(torch.tensor([1]), data[:, None]),
            lambda data: F.cross_entropy(data[None], torch.tensor([1])),
            lambda data: F.conv2d(torch.ones(1, 1, 6, 1), data.view(1, 1, 6, 1)),
            lambda data: nn.BatchNorm1d(6).eval()(data[None]),
            lambda data: torch.rand(3, device=data.device, generator=torch.Generator()),
            lambda data: torch.rand(3, generator=torch.Generator(data.device)),
            lambda data: data + torch.ones(6, device="sim:1"),
        ],
    )
    def test_mixed_devices_are_an_error(self, accelerator, misplace):
        with pytest.raises(RuntimeError, match=r"same device|device type for generator"):
            misplace(torch.arange(6.0, device=accelerator))

    def test_no_array_shares_its_memory(self, accelerator):
        with pytest.raises(TypeError, match="can't convert sim:0"):
            torch.ones(2, device=accelerator).numpy()

    def test_what_cuda_allows_is_allowed(self, accelerator):
        data = torch.arange(6.0, device=accelerator)
        assert (data + torch.tensor(1.0)).device == accelerator
        assert data[torch.tensor([2, 4])].tolist() == [2, 4]
        assert data.copy_(torch.ones(6)).sum().item() == 6
        assert torch.rand(3, device=accelerator, generator=torch.Generator(accelerator)).dim() == 1

    def test_it_computes_what_the_cpu_computes(self, accelerator):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        x = torch.randn(5, 3, 6, 6)
        expected = network(x)
        (expected.square().sum()).backward()
        gradient = network[0].weight.grad.clone()
        network.zero_grad()
        moved = network.to(accelerator)
        outputs = moved(x.to(accelerator))
        outputs.square().sum().backward()
        torch.testing.assert_close(outputs.cpu(), expected)
        torch.testing.assert_close(moved[0].weight.grad.cpu(), gradient)
        batched = vmap(lambda row: (row * 2).sum())(x.to(accelerator))
        torch.testing.assert_close(batched.cpu(), x.sum((1, 2, 3)) * 2, rtol=1e-4, atol=1e-4)

    def test_memory_runs_out(self, accelerator):
        with simulated_device.enabled(memory=1000), pytest.raises(torch.OutOfMemoryError):
            torch.ones(1000, device=accelerator)


class TestTraining:
    @pytest.mark.parametrize("stacked", [False, True])
    @pytest.mark.parametrize("optimizer", [SGD(lr="lr"), AdamW(lr="lr")])
    @pytest.mark.parametrize("shared", [False, True])
    def test_members_are_those_of_the_cpu(self, stacked, optimizer, shared):
        options = {"optimizer": optimizer, "shared": shared, "test": rows(40, seed=2)}
        before = simulated_device.operators()
        members, measured = train(normalized_task(**options), stacked)
        assert simulated_device.operators() > before + 100
        assert all(tensor.device.type == "sim" for m in members for tensor in m["model"].values())
        expected, on_cpu = train(normalized_task("cpu", **options), stacked)
        assert_close(normalized_task(), members, expected)
        for own, others in zip(measured, on_cpu, strict=True):
            assert own == pytest.approx(others, rel=1e-3, abs=1e-5)

    @pytest.mark.parametrize("stacked", [False, True])
    def test_dropout_and_augmentation(self, stacked):
        def jitter(batch, hp):
            return batch[0] + 0.01 * torch.randn_like(batch[0]) * hp["balance"], batch[1]

        task = dropping_task(device="sim", augment=jitter)
        _, measured = train(task, stacked)
        _, again = train(task, stacked)
        assert measured == again

    @pytest.mark.parametrize("kind", ["tf32", "bf16", "fp16"])
    @pytest.mark.parametrize("stacked", [False, True])
    def test_lower_precision(self, stacked, kind):
        seen = set()

        def loss(model, batch, hp):
            outputs = model(batch[0])
            weights = outputs.softmax(-1)
            normalized = F.layer_norm(weights, (2,))
            seen.add((outputs.dtype, normalized.dtype, torch.get_float32_matmul_precision()))
            return F.cross_entropy(outputs, batch[1]) + normalized.sum() * 0

        members, measured = train(normalized_task(loss=loss, precision=kind), stacked)
        lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
        # Unlike a CPU, an accelerator normalizes in float32.
        assert seen == {(lower, torch.float32, "high" if kind == "tf32" else "highest")}
        expected, on_cpu = train(normalized_task("cpu"), stacked)
        for own, other in zip(members, expected, strict=True):
            assert ("scaling" in own) == (kind == "fp16")
            here = own["model"]["first.weight"].cpu()
            torch.testing.assert_close(here, other["model"]["first.weight"], rtol=0.1, atol=0.05)
        for own, others in zip(measured, on_cpu, strict=True):
            assert own["loss"] == pytest.approx(others["loss"], rel=0.05)

    def test_a_second_device(self):
        members, _ = train(normalized_task("sim:1"), stacked=True)
        assert {t.device.index for m in members for t in m["model"].values()} == {1}

    def test_checks_and_the_probe(self):
        task = normalized_task()
        task.check()
        task.check_stack()
        probe = task.probe(2, seconds=0.01)
        assert probe.disagreement < 1e-5

    def test_automatic_is_the_accelerator(self):
        members, _ = train(make_task(device="auto"), stacked=False)
        assert members[0]["model"]["0.weight"].device == torch.device("sim:0")

    def test_evaluate_model(self):
        inputs, labels = (t.to("sim") for t in rows(64, seed=1))

        def evaluate(model):
            return scores(model(inputs), labels)

        options = {"evaluate_model": evaluate, "metrics": None, "validation": None}
        for stacked in (False, True):
            _, measured = train(make_task(device="sim", **options), stacked)
            _, expected = train(make_task(device="sim"), stacked)
            for own, others in zip(measured, expected, strict=True):
                assert own == pytest.approx(others)

    def test_generators_of_devices_are_seeded_and_restored(self, accelerator):
        torch.sim.manual_seed_all(1)
        expected = torch.rand(3, device=accelerator).tolist()
        torch.sim.manual_seed_all(1)
        with global_seeds(5):
            inner = torch.rand(3, device=accelerator).tolist()
            seed_globals(5)
            assert torch.rand(3, device=accelerator).tolist() == inner
        assert torch.rand(3, device=accelerator).tolist() == expected


class LoadsModels(mopbt.Callback):
    """A callback that loads the models of a run while it trains on the device."""

    def __init__(self):
        self.devices = set()

    def on_report(self, run, reports):
        for point in run.front():
            self.devices |= {t.device.type for t in run.load(point)["model"].values()}


class TestRuns:
    def run(self, task, out, **options):
        settings = {"engine": "local", "population": 4, "progress": False}
        return mopbt.run(task, out=out, **settings | options)

    @pytest.mark.parametrize(
        "engine",
        ["local", pytest.param("stacks", marks=pytest.mark.slow)],
    )
    def test_a_run_moves_between_devices(self, tmp_path, engine):
        """Half a run on the device and half on the CPU is the run on either."""

        def make_engine():
            return "local" if engine == "local" else VectorizedEngine(workers=1, stack=4)

        callback = LoadsModels()
        half = mopbt.Budget(jobs=8)
        for first, second in (("sim", "cpu"), ("cpu", "sim")):
            out = tmp_path / first
            self.run(normalized_task(first), out, budget=half, engine=make_engine())
            results = self.run(
                normalized_task(second), out, callbacks=[callback], engine=make_engine()
            )
            assert results.done
            assert not results.failures
            expected = self.run(normalized_task("cpu"), tmp_path / f"{first}-whole")
            for one, other in zip(results.points(), expected.points(), strict=True):
                assert one.scores == pytest.approx(other.scores, rel=1e-2, abs=1e-4)
        assert callback.devices == {"cpu"}

    def test_replay_and_export(self, tmp_path):
        results = self.run(normalized_task(), tmp_path / "run")
        best = results.front()[0]
        for device in ("sim", "cpu"):
            replayed = results.replay(best, normalized_task(device))
            assert max(map(abs, replayed.differences.values())) < 1e-4
        exported = results.export(best, tmp_path / "model.safetensors")
        state = safetensors.torch.load_file(exported.weights)
        assert {tensor.device.type for tensor in state.values()} == {"cpu"}
        network = normalized_task().model()
        network.load_state_dict(state)
        network.eval()
        inputs, labels = rows(64, seed=1)
        with torch.no_grad():
            measured = scores(network(inputs), labels)
        measured = {name: float(value) for name, value in measured.items()}
        assert measured == pytest.approx(best.scores, abs=1e-5)

    def test_loaded_models_are_on_the_cpu(self, tmp_path):
        task = normalized_task()
        results = self.run(task, tmp_path / "run")
        loaded = mopbt.Results.open(tmp_path / "run", task).load(results.front()[0])
        assert {tensor.device.type for tensor in loaded["model"].values()} == {"cpu"}
        network = task.model().to("sim")
        network.load_state_dict(loaded["model"])
        assert task.evaluate(loaded) == pytest.approx(results.front()[0].scores)

    def test_a_run_on_the_device_computes_there(self, tmp_path):
        before = simulated_device.operators()
        self.run(make_task(mlp, device="auto"), tmp_path / "run")
        assert simulated_device.operators() > before + 200


def test_data_of_another_device_is_moved():
    x, y = rows()
    data = Batches(x.to("sim"), y.to("sim"), batch_size=32)
    members, _ = train(replace(make_task(), data=data, device="cpu"), stacked=True)
    expected, _ = train(make_task(), stacked=True)
    assert_close(make_task(), members, expected)
