"""Compute gradients of compiled losses, of one member or of a stack.

`torch.compile` traces the loss, with `vmap` around it for a stack, and compiles it together with
its gradients. PyTorch keeps what it compiled in a folder, so that other processes and later runs
find it: ``TORCHINDUCTOR_CACHE_DIR``, by default a folder of the user in the temporary directory.

The first update of each shape is computed both ways. Training is not compiled if that fails, or if
the gradients differ.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mopbt.engines.compilation import (
    AGREEMENT,
    Compilation,
    CompilationTrial,
    choose_compilation,
    may_repay,
    too_short,
)
from mopbt.engines.seeding import global_seeds
from mopbt.torch.data import Batch
from mopbt.torch.device import is_out_of_memory
from mopbt.torch.gradients import GradientMethod, LoopGradients, StackedGradients
from mopbt.torch.layers import Hyperparameter
from mopbt.torch.memory import attempt
from mopbt.torch.program import Program
from mopbt.torch.stack import Stack

# Rounding in lower precision depends on which operations are compiled into one.
ROUNDING = {"bf16": 0.05, "fp16": 0.05}
# How long the updates of a trial are measured, at least.
TRIAL_SECONDS = 0.3


class _CompiledGradients:
    """Calls compiled losses, and usual ones where that fails.

    It is mixed into methods of gradients.
    """

    _program: Program
    _stack: Stack
    _all_hp: Sequence[Mapping[str, Any]]

    def __init__(self, program: Program, stack: Stack, hp: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(program, stack, hp)  # type: ignore[call-arg]
        assert program.compiler is not None
        self._compiler = program.compiler
        self._is_compiled = False
        self._all_hp = hp
        self._mark_read()

    def __call__(self, batch: Batch, *, shared: bool) -> Tensor:
        """Return the gradients of the members' losses."""
        shape = (len(self._stack), shared, *(tensor.shape for tensor in batch))
        if not self._compiler.failure and self._compiler.is_new(shape):
            self._try_out(batch, shared)
        if not self._compiler.failure:
            try:
                return self._compute(batch, shared, is_compiled=True)
            except Exception as error:
                self._handle(error)
        return self._compute(batch, shared, is_compiled=False)

    def _compute(self, batch: Batch, shared: bool, *, is_compiled: bool) -> Tensor:
        self._is_compiled = is_compiled
        gradients: Tensor = super().__call__(batch, shared=shared)  # type: ignore[misc]
        return gradients

    def _try_out(self, batch: Batch, shared: bool) -> None:
        """Compute an update both ways from the same state, and give up if they differ."""
        with self._unchanged_state():
            usual = self._compute(batch, shared, is_compiled=False).clone()
        self._compiler.reads |= self._names_read()
        try:
            with self._unchanged_state():
                compiled = self._compute(batch, shared, is_compiled=True)
        except Exception as error:
            self._handle(error)
            return
        difference = float((usual - compiled).abs().max() / (usual.abs().max() + 1e-12))
        # A gradient that is not finite says nothing, and a difference of NaN is too large.
        is_close = difference <= ROUNDING.get(self._program.precision, AGREEMENT)
        if bool(usual.isfinite().all()) and not is_close:
            self._compiler.give_up(
                f"compiled gradients differ by {difference:.1g}; a model or a loss that changes "
                f"with the state of Python objects cannot be compiled"
            )

    def _handle(self, error: Exception) -> None:
        if is_out_of_memory(error):
            raise error
        text = str(error).strip().partition("\n")[0]
        self._compiler.give_up(f"{type(error).__name__}: {text}")

    @contextmanager
    def _unchanged_state(self) -> Iterator[None]:
        """Restore buffers and random numbers afterwards."""
        before = {name: tensor.clone() for name, tensor in self._stack.others.items()}
        with global_seeds(0):
            yield
        for name, tensor in before.items():
            self._stack.others[name].copy_(tensor)

    def _names_read(self) -> set[str]:
        modules = self._program.module.modules()
        parts = [part for part in modules if isinstance(part, Hyperparameter)]
        names: set[str] = self._hp.read  # type: ignore[attr-defined]
        return names | {part.name for part in parts if part.was_read}

    def _mark_read(self) -> None:
        for own in self._all_hp:
            for name in self._compiler.reads:
                own[name]


class CompiledLoop(_CompiledGradients, LoopGradients):
    """Compute the gradient of a single member by a compiled loss."""

    def _compute_loss(self, batch: Batch) -> Tensor:
        if not self._is_compiled:
            return super()._compute_loss(batch)
        program = self._program

        def loss_of(batch: Batch, hp: Mapping[str, Any]) -> Tensor:
            return program.compute_loss(program.module, batch, hp)

        compiled = self._compiler.find("loop", loss_of, device=program.device, whole=False)
        loss: Tensor = compiled(batch, self._hp.untracked)
        return loss


class CompiledStack(_CompiledGradients, StackedGradients):
    """Compute the gradients of a stack by a compiled loss of all members."""

    def _compute_losses(self, batch: Batch, *, shared: bool) -> tuple[Tensor, dict[str, Tensor]]:
        if not self._is_compiled:
            return super()._compute_losses(batch, shared=shared)
        device = self._program.device
        losses_of = self._losses_of(self._hp.untracked, shared=shared)
        compiled = self._compiler.find(shared, losses_of, device=device, whole=True)
        found: tuple[Tensor, dict[str, Tensor]] = compiled(batch, self._hp.numbers, self._state())
        return found


def check_compile(compile: Any) -> None:
    """Raise ValueError unless `compile` is True, False or "auto"."""
    if compile not in (True, False, "auto") or not isinstance(compile, bool | str):
        raise ValueError(f"`compile` must be True, False or 'auto', got {compile!r}")


def compiled_method(method: GradientMethod) -> GradientMethod:
    """Return the compiled way to compute gradients."""
    return CompiledLoop if method is LoopGradients else CompiledStack


def try_compilation(
    time_usual: Callable[..., float],
    time_compiled: Callable[..., float],
    program: Program,
    *,
    updates: float,
    seconds: float,
    is_required: bool,
) -> Compilation:
    """Compile training if that may pay, and choose by what is measured.

    Args:
        time_usual: Measures an update without compilation.
        time_compiled: Measures a compiled update.
        program: What is compiled.
        updates: The updates that a worker makes.
        seconds: How long it trains at most.
        is_required: Compile if that is possible, whether it pays or not.
    """
    usual = time_usual(min_seconds=TRIAL_SECONDS)
    updates = min(updates, seconds / usual)
    if not is_required and not may_repay(updates * usual):
        return too_short(updates * usual)
    begin = _work_seconds(program.device)
    with warnings.catch_warnings():
        # The choice says why.
        warnings.simplefilter("ignore")
        first = attempt(lambda: time_compiled(min_updates=1), program.device)
    if first is None:
        return Compilation(False, "there is not enough memory to try compilation")
    taken = _work_seconds(program.device) - begin
    assert program.compiler is not None
    failure = program.compiler.failure
    if is_required and not failure:
        return Compilation(True, f"the task asks for it; it took {taken:.0f} s")
    compiled = usual
    if not failure:
        compiled = time_compiled(min_seconds=TRIAL_SECONDS)
        # Both are measured again, in case the machine was busy.
        usual = min(usual, time_usual(min_seconds=TRIAL_SECONDS))
        compiled = min(compiled, time_compiled(min_seconds=TRIAL_SECONDS))
    return choose_compilation(CompilationTrial(taken, usual, compiled, failure), updates)


def _work_seconds(device: torch.device) -> float:
    """Return the time of this process and, on a CPU, of its C++ compiler."""
    if device.type != "cpu":
        return time.perf_counter()
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
