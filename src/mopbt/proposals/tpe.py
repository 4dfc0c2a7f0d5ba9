"""Multi-objective tree-structured Parzen estimator of BO-MO-ASHA (section 6.3.3).

The trials are split into good and bad ones. Each hyperparameter gets two densities, l of its good
positions and g of its bad ones. Of several candidates drawn from l, the one with the largest l / g
is proposed. A density is the mean of one kernel around each position and one uniform kernel over
the domain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.arguments import check_count
from mopbt.proposals.base import Trials
from mopbt.ranking import hypervolume_order
from mopbt.space import Categorical, Config, Domain, Float, Int, Position, Space

Density = NDArray[np.float64]

# The mass that a kernel of Aitchison and Aitken leaves on its own value (authors' code).
CHOICE = 0.9

# A cell of an integer that is a smaller share of the range counts as a point, because rounding
# would destroy its mass.
POINT = 1e-6

# The smallest width of a kernel as a share of the range, however many positions there are.
NARROWEST = 0.01


class Parzen(Protocol):
    """A density over the positions of one domain."""

    def draw(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` positions from the density."""

    def density(self, positions: Sequence[Position]) -> Density:
        """Return the density (n,) at positions (n,), which is positive everywhere."""


@dataclass(frozen=True)
class Tpe:
    """Propose from Parzen estimators of the good and the bad trials.

    Hyperparameters are independent of each other. So are the configurations of one call, which
    ignore the pending ones; they differ because their candidates do.

    Args:
        gamma: The share of the finite rows that are good, rounded down, but at least one. Good rows
            come first by front and, within a front, by the hypervolume that they add. All others
            are bad, including failed ones.
        candidates: The number of positions drawn from l.
        random: The probability of a uniform configuration.
        ordered: Treat the values of `Grid`, `LogGrid` and `Ordinal` as ordered: a good value makes
            its neighbors likely too. By default, as in the authors' code, they are unrelated.
    """

    gamma: float = 0.10
    candidates: int = 24
    random: float = 1 / 6
    ordered: bool = False

    def __post_init__(self) -> None:
        if not _is_number(self.gamma) or not 0 < self.gamma < 1:
            raise ValueError(f"`gamma` must be in (0, 1), got {self.gamma!r}")
        check_count("candidates", self.candidates, 1)
        if not _is_number(self.random) or not 0 <= self.random <= 1:
            raise ValueError(f"`random` must be in [0, 1], got {self.random!r}")
        if not isinstance(self.ordered, bool):
            raise ValueError(f"`ordered` must be True or False, got {self.ordered!r}")

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations, uniform ones while there are too few trials."""
        if not self.can_fit(space, trials):
            return [space.sample(rng) for _ in range(n)]
        pairs = self._fit(space, trials)
        return [self._propose_one(space, pairs, rng) for _ in range(n)]

    def can_fit(self, space: Space, trials: Trials) -> bool:
        """Check for more than 2 d + 1 finite rows, for d hyperparameters."""
        return len(trials.finite_rows) > 2 * len(space) + 1

    def _fit(self, space: Space, trials: Trials) -> list[tuple[Parzen, Parzen]]:
        """Return l and g of each hyperparameter."""
        good = good_rows(trials, self.gamma)
        bad = sorted(set(range(len(trials.configs))) - set(good))
        pairs = []
        for d, domain in enumerate(space.values()):
            positions = [config[d] for config in trials.configs]
            pairs.append(
                (
                    fit_parzen(domain, [positions[i] for i in good], ordered=self.ordered),
                    fit_parzen(domain, [positions[i] for i in bad], ordered=self.ordered),
                )
            )
        return pairs

    def _propose_one(
        self, space: Space, pairs: list[tuple[Parzen, Parzen]], rng: Generator
    ) -> Config:
        if rng.random() < self.random:
            return space.sample(rng)
        config = []
        for good, bad in pairs:
            candidates = good.draw(self.candidates, rng)
            ratios = good.density(candidates) / bad.density(candidates)
            config.append(candidates[int(np.argmax(ratios))])
        return tuple(config)


def good_rows(trials: Trials, gamma: float) -> list[int]:
    """Return the best floor(gamma n) of the n finite rows, best first.

    It is at least one row if there is any.
    """
    finite = trials.finite_rows
    if not finite:
        return []
    # Rounding first corrects products such as 0.29 * 100, which is 28.999999999999996.
    size = max(math.floor(round(gamma * len(finite), 9)), 1)
    order = hypervolume_order(trials.objectives(finite), trials.violations(finite), cuts=(size,))
    return [finite[i] for i in order[:size]]


def fit_parzen(domain: Domain, positions: Sequence[Position], *, ordered: bool = False) -> Parzen:
    """Estimate the density of positions (m,) of a domain, uniform without any.

    With `ordered`, the indices of a list of ordered values are integers.
    """
    if isinstance(domain, Float | Int):
        return NumericParzen(domain, positions)
    size = len(domain.values)  # type: ignore[attr-defined]
    if ordered and not isinstance(domain, Categorical):
        return NumericParzen(Int(0, size - 1), positions)
    return DiscreteParzen(size, positions)


class DiscreteParzen:
    """Mix kernels of Aitchison and Aitken and a uniform one over `size` values.

    The probabilities `chances` (size,) sum to 1.
    """

    chances: Density

    def __init__(self, size: int, positions: Sequence[Position]) -> None:
        seen = np.bincount(np.array(positions, dtype=np.intp), minlength=size)
        others = len(positions) - seen
        self.chances = (1 / size + CHOICE * seen + (1 - CHOICE) / (size - 1) * others) / (
            len(positions) + 1
        )

    def draw(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` indices of the values."""
        return [int(i) for i in rng.choice(len(self.chances), size=n, p=self.chances)]

    def density(self, positions: Sequence[Position]) -> Density:
        """Return the probabilities (n,) of indices (n,)."""
        return self.chances[np.array(positions, dtype=np.intp)]


class NumericParzen:
    """Mix Gaussian kernels truncated to a range and a uniform one.

    Args:
        domain: The domain, whose scale is mapped to [0, 1]. An integer occupies a cell of it.
        positions: The centers of the kernels, (m,).
    """

    def __init__(self, domain: Float | Int, positions: Sequence[Position]) -> None:
        self.domain = domain
        self.centers = np.sort(np.array([domain.to_unit(p) for p in positions], dtype=float))
        self.widths = bandwidths(self.centers)
        self._mass_inside = self._mass_between(0.0, 1.0)

    def draw(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` positions of the domain."""
        return [self.domain.from_unit(self._draw_share(rng)) for _ in range(n)]

    def density(self, positions: Sequence[Position]) -> Density:
        """Return the density (n,) at positions (n,), for integers the mean over a cell."""
        if isinstance(self.domain, Int):
            # Candidates from a short range repeat, so each value is computed once.
            values, places = np.unique(positions, return_inverse=True)
            return self._mean_over_cells(values.tolist())[places]
        return self._density_at(positions)

    def _density_at(self, positions: Sequence[Position]) -> Density:
        shares = np.array([[self.domain.to_unit(p)] for p in positions])
        kernels = np.exp(-0.5 * ((shares - self.centers) / self.widths) ** 2) / (
            self.widths * math.sqrt(2 * math.pi)
        )
        return self._mix(kernels)

    def _mean_over_cells(self, positions: list[int]) -> Density:
        lower = np.array([[self.domain.to_unit(p - 0.5)] for p in positions])
        upper = np.array([[self.domain.to_unit(p + 0.5)] for p in positions])
        spans = upper - lower
        density = self._density_at(positions)
        wide = spans[:, 0] > POINT
        density[wide] = self._mix(self._mass_between(lower[wide], upper[wide]) / spans[wide])
        return density

    def _mass_between(self, lower: float | Density, upper: float | Density) -> Density:
        return _mass_below(upper, self.centers, self.widths) - _mass_below(
            lower, self.centers, self.widths
        )

    def _mix(self, kernels: Density) -> Density:
        """Average the uniform kernel and others (n, m), rescaled for their truncation."""
        total = 1.0 + (kernels / self._mass_inside).sum(axis=-1)
        return np.asarray(total / (len(self.centers) + 1))

    def _draw_share(self, rng: Generator) -> float:
        kernel = int(rng.integers(len(self.centers) + 1))
        if kernel == len(self.centers):
            return float(rng.random())
        # Every center lies inside the range, and so does at least a third of its kernel's mass.
        while True:
            share = float(rng.normal(self.centers[kernel], self.widths[kernel]))
            if 0 <= share <= 1:
                return share


def bandwidths(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the width (m,) of the kernel at each of the sorted centers (m,).

    It is the distance to the farther of the two neighbors; the ends of the range are neighbors too.
    No kernel is narrower than the share 1 / (m + 1) of the range, down to 0.01.
    """
    gaps = np.diff(centers, prepend=0.0, append=1.0)
    return np.maximum(np.maximum(gaps[:-1], gaps[1:]), max(NARROWEST, 1 / (len(centers) + 1)))


def _mass_below(
    share: float | Density, centers: NDArray[np.float64], widths: NDArray[np.float64]
) -> Density:
    """Compute the mass of each Gaussian below one share or shares (n, 1)."""
    z = (share - centers) / (widths * math.sqrt(2))
    masses = (z > 0).astype(float)
    # Farther out the mass is 0 or 1 to machine precision, and most kernels are narrow.
    near = np.abs(z) < 6
    masses[near] = [0.5 + 0.5 * math.erf(v) for v in z[near].tolist()]
    return masses


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
