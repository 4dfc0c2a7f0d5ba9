"""Proposals that learn nothing: uniform draws, each on its own or spread evenly."""

from dataclasses import dataclass

from numpy.random import Generator

from mopbt.proposals.base import History
from mopbt.space import Config, Space


@dataclass(frozen=True)
class Uniform:
    """Draw every configuration uniformly and independently."""

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space."""
        return [space.sample(rng) for _ in range(n)]


@dataclass(frozen=True)
class Stratified:
    """Draw configurations of which each hyperparameter is spread evenly over its domain, among those drawn together."""

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space."""
        return space.stratified(n, rng)
