"""Measure members: together as a stack, or one by one where that is faster."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from mopbt.torch.program import Program
from mopbt.torch.stack import Stack, swap_parameters
from mopbt.torch.validation import check_metrics
from mopbt.torch.vectorize import stacking

Metrics = Callable[..., Mapping[str, float]]

# Rows times members that a model computes in one call.
ROWS_PER_CALL = 2**16

# With so many rows one member keeps a CPU core busy, and stacking only adds a third for copies.
ROWS_TO_LOOP = 1024


def evaluate_outputs(
    program: Program,
    stack: Stack,
    data: tuple[Tensor, ...],
    metrics: Metrics,
    nan_metrics: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:
    """Compute the metrics of each member from its outputs and the targets.

    A member with a NaN or infinite parameter gets `nan_metrics()`. Metrics such as the accuracy
    would turn its outputs into finite numbers, and others raise an exception.
    """
    inputs = data[0].to(program.device)
    targets = [t.to(program.device) for t in data[1:]]
    measured = []
    for i, outputs in enumerate(compute_outputs(program, stack, inputs)):
        if stack.is_finite(i):
            measured.append(check_metrics(metrics(outputs, *targets), "metrics"))
        else:
            measured.append(nan_metrics())
    return measured


def evaluate_models(
    program: Program,
    stack: Stack,
    evaluate_model: Callable[[nn.Module], Mapping[str, float]],
    nan_metrics: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:
    """Call `evaluate_model` with each member that has finite parameters."""
    measured = []
    for i in range(len(stack)):
        if not stack.is_finite(i):
            measured.append(nan_metrics())
            continue
        program.layout.attach(program.module, stack, i)
        # The function may have left the model in training mode.
        program.module.eval()
        measured.append(check_metrics(evaluate_model(program.module), "evaluate_model"))
    return measured


def compute_outputs(program: Program, stack: Stack, inputs: Tensor) -> list[Tensor]:
    """Compute each member's outputs on the same inputs, a limited part at a time."""
    n = len(stack)
    if n == 1 or (program.device.type == "cpu" and len(inputs) >= ROWS_TO_LOOP):
        outputs = []
        for i in range(n):
            program.layout.attach(program.module, stack, i)
            parts = [program.module(part) for part in torch.split(inputs, ROWS_PER_CALL)]
            outputs.append(torch.cat(parts))
        return outputs

    cells = program.layout.cells(program.module)

    def member_outputs(state: Mapping[str, Tensor], part: Tensor) -> Any:
        with swap_parameters(cells, state):
            return program.module(part)

    state = program.layout.by_name(stack.parameters) | stack.others
    outputs_of = vmap(member_outputs, in_dims=(0, None), randomness="different")
    with stacking(program.device):
        parts = [
            outputs_of(state, part) for part in torch.split(inputs, max(ROWS_PER_CALL // n, 1))
        ]
    return list(torch.cat(parts, dim=1))
