"""Explore (Algorithm 3): derive a new configuration from an existing one."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator

from mopbt.space import Categorical, Config, Domain, Position, Space

Explore = Callable[[Space, Config, Generator], Config]


@dataclass(frozen=True)
class Local:
    """Move each hyperparameter locally, or resample it at random (Alg. 3).

    The paper does not state the probability `resample`; the default is that of the authors' code.
    """

    resample: float = 0.2

    def __post_init__(self) -> None:
        is_number = isinstance(self.resample, int | float) and not isinstance(self.resample, bool)
        if not is_number or not 0 <= self.resample <= 1:
            raise ValueError(f"`resample` must be in [0, 1], got {self.resample!r}")

    def __call__(self, space: Space, config: Config, rng: Generator) -> Config:
        """Return a perturbed configuration."""
        # Alg. 3, lines 2 to 8.
        return tuple(
            domain.sample(rng) if rng.random() < self.resample else domain.nearby(position, rng)
            for domain, position in zip(space.values(), config, strict=True)
        )


@dataclass(frozen=True)
class RandomMutation:
    """Resample each of the P hyperparameters with probability 1/P (Appendix A)."""

    def __call__(self, space: Space, config: Config, rng: Generator) -> Config:
        """Return a mutated configuration."""
        return tuple(
            domain.sample(rng) if rng.random() < 1 / len(space) else position
            for domain, position in zip(space.values(), config, strict=True)
        )


def interpolate(space: Space, config: Config, other: Config, weight: float) -> Config:
    """Return the configuration between two.

    A weight of 0 is the first one, 1 the other one.

    Categories have nothing between them: the nearer configuration decides.
    """
    return tuple(
        _between(domain, first, second, weight)
        for domain, first, second in zip(space.values(), config, other, strict=True)
    )


def _between(domain: Domain, first: Position, other: Position, weight: float) -> Position:
    if first == other or weight in (0, 1) or isinstance(domain, Categorical):
        return other if weight > 0.5 else first
    share = (1 - weight) * domain.to_unit(first) + weight * domain.to_unit(other)
    return domain.from_unit(share)
