"""The `Propose` protocol, and the history that proposals are made from."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.space import Config, Space
from mopbt.state import Result


@dataclass(frozen=True, slots=True)
class History:
    """Configurations that were tried with what came of them, in the order of their trials, and those still on the way."""

    configs: tuple[Config, ...] = ()
    results: tuple[Result, ...] = ()  # of each configuration; some may have failed
    pending: tuple[Config, ...] = ()

    @property
    def is_finite(self) -> list[int]:
        """Return the rows whose results can be ranked."""
        return [i for i, result in enumerate(self.results) if result.is_finite]

    def objectives(self, rows: list[int]) -> NDArray[np.float64]:
        """Return the objectives (n, K) of sound rows, larger is better."""
        return np.array([self.results[i].objectives for i in rows], dtype=float)

    def violations(self, rows: list[int]) -> NDArray[np.float64]:
        """Return the constraint violations (n,) of sound rows."""
        return np.array([self.results[i].violation for i in rows], dtype=float)


class Propose(Protocol):
    """A frozen value that proposes configurations. Pure: the same history and generator give the same configurations."""

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space; with an empty history, the first ones."""

    def __hash__(self) -> int:
        """Return a hash, so that a block of proposals can be remembered."""
