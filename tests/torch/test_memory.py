"""Compute in parts that fit into memory, and continue when memory runs out."""

import math

import pytest
import torch
from tests.torch.nets import make_task
from torch import nn

from mopbt.engines.seeding import global_seeds
from mopbt.torch import AdamW, memory
from mopbt.torch.device import is_out_of_memory
from mopbt.torch.memory import limits_of, live_bytes, map_members, map_rows

CPU = torch.device("cpu")


class Recorder(nn.Module):
    """Doubles its inputs, records the sizes of calls and fails above a number of rows."""

    def __init__(self, limit=math.inf, error="CUDA out of memory. Tried to allocate 2 GiB"):
        super().__init__()
        self.limit, self.error, self.sizes = limit, error, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise RuntimeError(self.error)
        return x * 2


def in_parts(module, x):
    return map_rows(module, [x], module=module, device=CPU)


class TestLiveBytes:
    def test_counts_what_lives_at_the_same_time(self):
        x = torch.ones(1000)
        with live_bytes() as counted:
            y = x + 1
            z = y * 2
            del y
            (z.view(10, 100) + 0).sum()
            x.add_(1)
        assert 8000 <= counted.peak <= 8010
        assert counted._now == 4000

    def test_counts_what_a_backward_pass_needs(self):
        layer = nn.Linear(100, 100, bias=False)
        x = torch.ones(50, 100)
        with torch.no_grad(), live_bytes() as forward:
            layer(layer(layer(x)))
        with live_bytes() as both:
            layer(layer(layer(x))).sum().backward()
        assert forward.peak == 2 * x.nbytes
        # Three activations and the gradient of the weight.
        assert both.peak >= 3 * x.nbytes + layer.weight.nbytes


class TestRows:
    def test_a_call_takes_as_many_rows_as_fit(self, monkeypatch):
        # A row of 1000 floats needs 4000 bytes for its result.
        x = torch.rand(100, 1000)
        module = Recorder()
        monkeypatch.setattr(memory, "CPU_BYTES", 4000 * 40)
        assert torch.equal(in_parts(module, x), x * 2)
        assert module.sizes == [8, 16, 32, 32, 32, 4]
        module.sizes.clear()
        in_parts(module, x[:20])
        assert module.sizes == [20]

    def test_little_free_memory_makes_small_parts(self, monkeypatch):
        module = Recorder()
        monkeypatch.setattr(memory, "free_memory", lambda device: 4000 * 4 * 20)
        in_parts(module, torch.rand(100, 1000))
        assert max(module.sizes) == 16

    def test_much_memory_makes_one_part(self):
        module = Recorder()
        in_parts(module, torch.rand(100, 1000))
        assert module.sizes == [8, 16, 100]

    def test_few_rows_do_not_limit_later_ones(self):
        """A check computes a few rows before a run computes all of them."""
        module = Recorder()
        in_parts(module, torch.rand(8, 1000))
        in_parts(module, torch.rand(100, 1000))
        assert module.sizes == [8, 8, 16, 100]

    def test_out_of_memory_halves_the_part_and_is_reported_once(self):
        x = torch.rand(100, 3)
        module = Recorder(limit=30)
        with pytest.warns(RuntimeWarning, match="ran out of memory with 100") as caught:
            assert torch.equal(in_parts(module, x), x * 2)
        assert len(caught) == 1
        assert module.sizes == [8, 16, 100, 50, 25, 25, 25, 25]
        module.sizes.clear()
        assert torch.equal(in_parts(module, x), x * 2)
        assert module.sizes == [25] * 4

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate "
                         "memory: you tried to allocate 40000000000000 bytes."),
            torch.OutOfMemoryError("HIP out of memory"),
            MemoryError(),
        ],
    )  # fmt: skip
    def test_errors_for_want_of_memory_are_recognized(self, error):
        assert is_out_of_memory(error)

    def test_a_real_one_on_the_cpu_is_recognized(self):
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**60)
        assert is_out_of_memory(caught.value)

    def test_other_errors_are_raised(self):
        with pytest.raises(RuntimeError, match="size mismatch"):
            in_parts(Recorder(limit=30, error="size mismatch"), torch.rand(100, 3))

    def test_a_row_that_does_not_fit_is_an_error(self):
        module = Recorder(limit=0)
        with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="out of memory"):
            in_parts(module, torch.rand(100, 3))
        assert module.sizes[-1] == 1

    def test_no_rows(self):
        assert in_parts(Recorder(), torch.rand(0, 3)).shape == (0, 3)

    def test_measuring_draws_no_random_numbers_of_the_run(self):
        class Noisy(nn.Module):
            def forward(self, x):
                return x + torch.rand(())

        x = torch.zeros(100, 3)
        with global_seeds(1):
            expected = torch.rand(())
        with global_seeds(1):
            assert torch.equal(in_parts(Noisy(), x), x + expected)


class TestMembers:
    def test_a_stack_that_does_not_fit_is_halved(self):
        sizes = []

        def train(part):
            members = list(range(10))[part]
            sizes.append(len(members))
            if len(members) > 3:
                raise torch.OutOfMemoryError("out of memory")
            return members

        module = nn.Identity()

        def train_all():
            return map_members(train, 10, module=module, device=CPU, measure=lambda: 1)

        with pytest.warns(RuntimeWarning, match="as a stack ran out of memory with 10") as caught:
            assert train_all() == list(range(10))
        assert len(caught) == 1
        assert sizes == [10, 5, 2, 2, 2, 2, 2]
        sizes.clear()
        assert train_all() == list(range(10))
        assert sizes == [2] * 5

    def test_members_that_would_not_fit_are_not_stacked(self, monkeypatch):
        monkeypatch.setattr(memory, "free_memory", lambda device: 1000.0)
        sizes = []

        def train(part):
            members = list(range(10))[part]
            sizes.append(len(members))
            return members

        with pytest.warns(RuntimeWarning, match="a stack of 10 members needs about"):
            map_members(train, 10, module=nn.Identity(), device=CPU, measure=lambda: 120)
        assert sizes == [4, 4, 2]

    def test_parts_of_a_stack_train_as_the_whole(self, monkeypatch):
        task = make_task(optimizer=AdamW(lr="lr"))
        members = [task.init(i) for i in range(5)]
        hp = task._sample_hp(5)
        whole = task.train_many(members, hp, [0] * 5, range(5))
        limits_of(task._program.module)._limits["stack"] = 2
        for one, other in zip(task.train_many(members, hp, [0] * 5, range(5)), whole, strict=True):
            for name, tensor in other["model"].items():
                torch.testing.assert_close(one["model"][name], tensor)
