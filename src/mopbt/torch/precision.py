"""Choose the number formats of training, and scale the gradients of fp16.

Weights, optimizer state and evaluation stay in the model's own type, usually float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mopbt.errors import TaskError
from mopbt.messages import did_you_mean

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

# The values of `torch.amp.GradScaler`.
FIRST_SCALE = 2.0**16
GROWTH = 2.0
BACKOFF = 0.5
GROWTH_INTERVAL = 2000


def check_precision(precision: Any) -> None:
    """Raise ValueError unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        allowed = ", ".join(map(repr, PRECISIONS))
        hint = did_you_mean(precision, PRECISIONS) if isinstance(precision, str) else ""
        raise ValueError(f"`precision` must be one of {allowed}, got {precision!r}{hint}")


def check_supported(precision: str, device: torch.device) -> None:
    """Raise TaskError if a device does not have a precision.

    The error says what to use instead.
    """
    if precision == "fp32":
        return
    supported = supported_precisions(device)
    if precision not in supported:
        raise TaskError(
            f"`precision` {precision!r} is not supported on the device {str(device)!r}, which has "
            f"{', '.join(map(repr, supported))}; use one of these, or another device"
        )


def supported_precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions in which a device can train."""
    if device.type in ("cpu", "mps"):
        # PyTorch accepts tf32 there, and computes in float32 nevertheless.
        return ("fp32", "bf16", "fp16")
    if device.type == "cuda":
        is_recent = torch.version.hip or torch.cuda.get_device_capability(device)[0] >= 8
        return PRECISIONS if is_recent else ("fp32", "fp16")
    if device.type == "xpu":
        return PRECISIONS
    if not torch.amp.is_autocast_available(device.type):
        return ("fp32", "tf32")
    module: Any = torch.get_device_module(device)
    types = module.get_amp_supported_dtype()
    return ("fp32", "tf32", *(name for name, dtype in _TYPES.items() if dtype in types))


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which losses are computed."""
    if precision not in _TYPES:
        return nullcontext()
    # A cache would keep weights that a loss has first used without gradients, which older versions
    # of PyTorch then use for gradients as well.
    return torch.autocast(device.type, _TYPES[precision], cache_enabled=False)


# `torch.autocast` casts the arguments of whole functions. `vmap` splits these before it sees them:
# a convolution would stay in float32, and a cross entropy in fp16.
_LOWER = frozenset(
    (
        *(F.linear, torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm),
        *(F.conv1d, F.conv2d, F.conv3d),
        *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        F.scaled_dot_product_attention,
    )
)
_FULL = frozenset((F.cross_entropy, F.nll_loss, F.kl_div, F.mse_loss, F.l1_loss, F.smooth_l1_loss))
# These take inputs of lower precision beside weights and statistics in float32, except in `vmap`.
_MIXED = frozenset((F.batch_norm, F.instance_norm))
_NORMALIZATIONS = frozenset((F.layer_norm, F.group_norm))
# Accelerators compute these in float32, and CPUs in lower precision.
_SOFTMAX = frozenset(
    (
        *(F.softmax, torch.softmax, Tensor.softmax),
        *(F.log_softmax, torch.log_softmax, Tensor.log_softmax),
    )
)


class StackedAutocast(TorchFunctionMode):
    """Cast the arguments of functions inside `vmap`, like `torch.autocast`."""

    def __init__(self, precision: str, device: torch.device) -> None:
        super().__init__()
        self._type = _TYPES[precision]
        on_cpu = device.type == "cpu"
        self._full = _FULL if on_cpu else _FULL | _SOFTMAX | _NORMALIZATIONS
        self._mixed = _MIXED | _NORMALIZATIONS if on_cpu else _MIXED

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with arguments of the type that it computes in."""
        kwargs = kwargs or {}
        if func in _LOWER:
            args, kwargs = _cast((args, kwargs), self._type)
        elif func in self._full:
            args, kwargs = _cast((args, kwargs), torch.float32)
        elif func in self._mixed and args:
            inputs, *others = args
            return func(_cast(inputs, torch.float32), *others, **kwargs).to(inputs.dtype)
        return func(*args, **kwargs)


def _cast(node: Any, dtype: torch.dtype) -> Any:
    """Cast the tensors of at most single precision in nested arguments."""
    if isinstance(node, Tensor):
        is_cast = node.is_floating_point() and node.dtype != torch.float64
        return node.to(dtype) if is_cast else node
    if isinstance(node, tuple | list):
        return type(node)(_cast(item, dtype) for item in node)
    if isinstance(node, dict):
        return {name: _cast(item, dtype) for name, item in node.items()}
    return node


def stacked_autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context that `autocast` needs in addition inside of `vmap`."""
    return StackedAutocast(precision, device) if precision in _TYPES else nullcontext()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Compute matrix products of float32 in tf32, if that is the precision."""
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def next_scales(scales: Tensor, successes: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales (N,) and successes (N,) after an update.

    They follow the rule of `torch.amp.GradScaler`.

    A scale shrinks after gradients that were not finite, and grows after `GROWTH_INTERVAL` updates
    in a row, unless it would become infinite.
    """
    counted = torch.where(finite, successes + 1, 0)
    grows = counted == GROWTH_INTERVAL
    larger = scales * GROWTH
    grown = torch.where(grows & torch.isfinite(larger), larger, scales)
    return torch.where(finite, grown, scales * BACKOFF), torch.where(grows, 0, counted)


@dataclass
class Scaling:
    """The factors that scale the losses of N members.

    Scaled gradients fit into fp16.

    Attributes:
        scales: The factors, shape (N,).
        successes: The updates of each member since its factor last changed, shape (N,).
    """

    scales: Tensor
    successes: Tensor

    @staticmethod
    def of(members: Sequence[Mapping[str, Any]], device: torch.device) -> "Scaling":
        """Continue the scaling of members; others start with `FIRST_SCALE`."""
        fresh = {"scale": FIRST_SCALE, "successes": 0}
        states = [member.get("scaling", fresh) for member in members]
        scales = torch.tensor([float(state["scale"]) for state in states], device=device)
        return Scaling(scales, torch.tensor([s["successes"] for s in states], device=device))

    def state(self, member: int) -> dict[str, Any]:
        """Return what a checkpoint keeps of one member."""
        return {"scale": float(self.scales[member]), "successes": int(self.successes[member])}

    def unscale(self, gradients: Tensor) -> Tensor:
        """Divide gradients (N, P) by the scales in place.

        Returns which are finite, shape (N,).

        The scales are then those of the next update.
        """
        finite: Tensor = torch.linalg.vector_norm(gradients, ord=torch.inf, dim=1).isfinite()
        gradients.mul_(self.scales.double().reciprocal().to(gradients.dtype)[:, None])
        self.scales, self.successes = next_scales(self.scales, self.successes, finite)
        return finite
