"""The errors of metrics that are computed from outputs and targets."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from mopbt.estimate import Estimate

Metrics = Callable[..., Mapping[str, Any]]


def with_errors(
    metrics: Metrics, columns: tuple[Tensor, ...], measured: Mapping[str, float]
) -> dict[str, float]:
    """Add errors to the metrics that have none, by a jackknife over 20 groups of rows.

    A metric that is undefined without some group, because a class is missing then, gets no error.

    Args:
        metrics: The function that computes the metrics.
        columns: Its arguments, all with the same number of rows.
        measured: The metrics on all rows.
    """
    found = dict(measured)
    n = len(columns[0])
    redone = _SubsetMetrics(metrics, columns, measured)
    for name, score in measured.items():
        if isinstance(score, Estimate) or not math.isfinite(score) or n < 2:
            continue
        try:
            estimate = Estimate.jackknife(redone.metric(name), np.arange(n))
        except Exception:
            # The function works on all rows, which is what a run needs.
            continue
        if math.isfinite(estimate.stderr):
            found[name] = estimate
    return found


def without_errors(measured: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as plain numbers."""
    return {name: float(score) for name, score in measured.items()}


class _SubsetMetrics:
    """Metrics on subsets of the rows, each computed once for all names."""

    def __init__(
        self, metrics: Metrics, columns: tuple[Tensor, ...], measured: Mapping[str, float]
    ) -> None:
        self._metrics = metrics
        self._columns = columns
        self._found: dict[bytes, Mapping[str, Any]] = {
            np.arange(len(columns[0])).tobytes(): measured
        }

    def metric(self, name: str) -> Callable[[NDArray[np.int64]], float]:
        """Return one metric as a function of the rows."""
        return lambda rows: float(self._on(rows)[name])

    def _on(self, rows: NDArray[np.int64]) -> Mapping[str, Any]:
        key = rows.tobytes()
        if key not in self._found:
            chosen = from_numpy(rows)
            self._found[key] = self._metrics(*(c[chosen.to(c.device)] for c in self._columns))
        return self._found[key]
