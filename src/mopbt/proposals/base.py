"""The `Propose` protocol and the trials that proposals learn from."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.space import Config, Space
from mopbt.state import Result


@dataclass(frozen=True, slots=True)
class Trials:
    """Hold evaluated configurations with their results, and pending ones.

    Args:
        configs: The evaluated configurations, in the order of their trials.
        results: One result per configuration; some may have failed.
        pending: Configurations that are still being trained.
    """

    configs: tuple[Config, ...] = ()
    results: tuple[Result, ...] = ()
    pending: tuple[Config, ...] = ()

    @property
    def finite_rows(self) -> list[int]:
        """Return the rows whose results can be ranked."""
        return [i for i, result in enumerate(self.results) if result.is_finite]

    def objectives(self, rows: list[int]) -> NDArray[np.float64]:
        """Return the objectives (n, K) of finite rows, larger is better."""
        return np.array([self.results[i].objectives for i in rows], dtype=float)

    def violations(self, rows: list[int]) -> NDArray[np.float64]:
        """Return the constraint violations (n,) of finite rows."""
        return np.array([self.results[i].violation for i in rows], dtype=float)


class Propose(Protocol):
    """Propose configurations; a frozen value.

    It is pure: the same trials and generator give the same configurations.
    """

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space; without trials, the initial ones."""

    def __hash__(self) -> int:
        """Return a hash, so that schedulers can cache proposals."""
