"""Measure members: together as a stack, or one by one where that is faster."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.func import vmap

from mopbt.objectives import FRESH
from mopbt.torch.errors import with_errors, without_errors
from mopbt.torch.memory import attempt, map_rows
from mopbt.torch.program import Program
from mopbt.torch.rows import NO_PARTS, Parts
from mopbt.torch.stack import Stack, swap_parameters
from mopbt.torch.validation import check_metrics
from mopbt.torch.vectorize import stacking

Metrics = Callable[..., Mapping[str, float]]

# With so many rows one member keeps a CPU core busy, and stacking only adds a third for copies.
ROWS_TO_LOOP = 1024


def evaluate_outputs(
    program: Program,
    stack: Stack,
    data: tuple[Tensor, ...],
    metrics: Metrics,
    nan_metrics: Callable[[], dict[str, float]],
    *,
    errors: bool,
    parts: Parts = NO_PARTS,
) -> list[dict[str, float]]:
    """Compute the metrics of each member, with errors, from outputs and targets.

    They are also computed on `parts` of the rows, with names such as `fresh/accuracy`. Only fresh
    rows have errors, because folds are for the error of a difference.

    A member with a NaN or infinite parameter gets `nan_metrics()`. Metrics such as the accuracy
    would turn its outputs into finite numbers, and others raise an exception.
    """
    targets = [t.to(program.device) for t in data[1:]]
    measured = []
    for i, outputs in enumerate(compute_outputs(program, stack, data[0])):
        if not stack.is_finite(i):
            measured.append(nan_metrics())
            continue
        columns = (outputs, *targets)
        scores = _metrics_of(metrics, columns, errors=errors)
        for prefix, rows in parts.of(len(outputs), int(stack.updates[i])).items():
            part = tuple(column[rows.to(column.device)] for column in columns)
            found = _metrics_of(metrics, part, errors=errors and prefix == FRESH)
            scores |= {prefix + name: score for name, score in found.items()}
        measured.append(scores)
    return measured


def _metrics_of(metrics: Metrics, columns: tuple[Tensor, ...], *, errors: bool) -> dict[str, float]:
    found = check_metrics(metrics(*columns), "metrics")
    return with_errors(metrics, columns, found) if errors else without_errors(found)


def evaluate_models(
    program: Program,
    stack: Stack,
    evaluate_model: Metrics,
    data: tuple[Tensor, ...],
    nan_metrics: Callable[[], dict[str, float]],
    *,
    errors: bool,
) -> list[dict[str, float]]:
    """Call `evaluate_model` with each member that has finite parameters, and the data."""
    measured = []
    for i in range(len(stack)):
        if not stack.is_finite(i):
            measured.append(nan_metrics())
            continue
        program.layout.attach(program.module, stack, i)
        # The function may have left the model in training mode.
        program.module.eval()
        found = check_metrics(evaluate_model(program.module, *data), "evaluate_model")
        measured.append(found if errors else without_errors(found))
    return measured


def compute_outputs(program: Program, stack: Stack, inputs: Tensor) -> list[Tensor]:
    """Compute each member's outputs on the same inputs, in parts that fit.

    The inputs may be on another device than the model.
    """
    n = len(stack)
    on_cpu = program.device.type == "cpu"
    if n > 1 and not (on_cpu and len(inputs) >= ROWS_TO_LOOP):
        with stacking(program.device):
            together = attempt(lambda: _compute_together(program, stack, inputs), program.device)
        if together is not None:
            return together
    outputs = []
    for i in range(n):
        program.layout.attach(program.module, stack, i)
        outputs.append(
            map_rows(program.module, [inputs], module=program.module, device=program.device)
        )
    return outputs


def _compute_together(program: Program, stack: Stack, inputs: Tensor) -> list[Tensor]:
    """Compute the outputs of all members with `vmap`."""
    cells = program.layout.cells(program.module)

    def member_outputs(state: Mapping[str, Tensor], part: Tensor) -> Any:
        with swap_parameters(cells, state):
            return program.module(part)

    state = program.layout.by_name(stack.parameters) | stack.others
    outputs_of = vmap(member_outputs, in_dims=(0, None), randomness="different")
    outputs = map_rows(
        lambda part: outputs_of(state, part),
        [inputs],
        module=program.module,
        device=program.device,
        kind=len(stack),
        dim=1,
    )
    return list(outputs)
