"""Explore (Algorithm 3): derive a new configuration from an existing one."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator

from mopbt.space import Config, Space

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
