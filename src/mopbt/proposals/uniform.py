"""Propose random configurations, independent of each other or evenly spread."""

from dataclasses import dataclass

from numpy.random import Generator

from mopbt.proposals.base import Trials
from mopbt.space import Config, Space


@dataclass(frozen=True)
class Uniform:
    """Draw every configuration uniformly and independently."""

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space."""
        return [space.sample(rng) for _ in range(n)]


@dataclass(frozen=True)
class Stratified:
    """Draw configurations that spread each hyperparameter evenly over its domain."""

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space."""
        return space.stratified(n, rng)
