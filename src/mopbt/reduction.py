"""Store models that only the front needs without what only training needs."""

from collections.abc import Iterable, Mapping
from typing import IO, Any, Literal

from mopbt.problem import ReducibleTask
from mopbt.serialization import Half, rewrite
from mopbt.stores.base import Checkpoints, ReducibleCheckpoints

KeepPrecision = Literal["fp16", "bf16"]
_HALVES: dict[str, Half] = {"fp16": "float16", "bf16": "bfloat16"}
# Smaller checkpoints stay as they are: writing them again takes longer than their space is worth.
LARGE_CHECKPOINT = 2**24


class Reduction:
    """Reduces the checkpoints of at least 16 MB, or all in half precision."""

    def __init__(
        self, task: ReducibleTask, checkpoints: ReducibleCheckpoints, precision: str | None
    ) -> None:
        self._task = task
        self._checkpoints = checkpoints
        self._precision = precision
        self._done: set[int] = set()

    def apply(self, models: Iterable[int], checksums: Mapping[int, str]) -> None:
        """Reduce the checkpoints of models, unless that has been done or they are small."""
        for model in sorted(set(models) - self._done):
            size = self._checkpoints.size_of(model)
            if size and (self._precision or size >= LARGE_CHECKPOINT):
                self._checkpoints.reduce(model, checksums[model], self._rewrite)
            self._done.add(model)

    def _rewrite(self, source: IO[bytes], target: IO[bytes]) -> None:
        half = _HALVES[self._precision] if self._precision else None
        rewrite(source, target, self._task.without_training_state, half)


def reduction_of(task: Any, checkpoints: Checkpoints, precision: str | None) -> Reduction | None:
    """Return how a run reduces its checkpoints.

    It is None if its task or its storage cannot.

    Raises ValueError if half precision was requested and is impossible.
    """
    if isinstance(task, ReducibleTask) and isinstance(checkpoints, ReducibleCheckpoints):
        return Reduction(task, checkpoints, precision)
    if precision is not None:
        raise ValueError(
            "`keep_precision` needs a TorchTask or a training function, and checkpoints in a "
            f"directory, got {type(task).__name__} and {type(checkpoints).__name__}; leave it out"
        )
    return None


def reduced_bytes(whole: int, model: int, precision: str | None) -> int:
    """Return the size of a reduced checkpoint, given those of whole and model."""
    if precision is not None:
        return (model + 1) // 2
    return model if whole >= LARGE_CHECKPOINT else whole
