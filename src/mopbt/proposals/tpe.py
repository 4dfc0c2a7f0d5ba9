"""The multi-objective tree-structured Parzen estimator of BO-MO-ASHA (paper, section 6.3.3).

The tried configurations are split into the good and the bad. For each hyperparameter on its own there are two densities,
l of its good positions and g of its bad ones: of some candidates drawn from l, the one with the largest l / g is proposed.
A density is a mean of kernels, one around each position that was seen and one that is uniform over the domain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.proposals.base import History
from mopbt.ranking import hypervolume_order
from mopbt.space import Config, Domain, Float, Int, Position, Space

Density = NDArray[np.float64]

CHOICE = 0.9  # what a kernel of Aitchison and Aitken leaves on its own choice; the authors' code's
POINT = 1e-6  # the share of the range down to which a whole number's cell is more than a point; the mass of less is lost in rounding
NARROWEST = 0.01  # kernel, as a share of the range, however many positions were seen


class Parzen(Protocol):
    """A density over the positions of one domain."""

    def draw(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` positions from the density."""

    def density(self, positions: Sequence[Position]) -> Density:
        """Return the density (n,) at positions (n,); it is above 0 everywhere."""


@dataclass(frozen=True)
class Tpe:
    """Propose by one Parzen estimator for each hyperparameter, fitted to the good and the bad of the history.

    Several proposals are drawn independently of each other and of the pending configurations; the candidates differ.

    Args:
        gamma: The share of the sound rows, rounded down but at least one, that are good: those that come first by fronts and,
            within a front, by the hypervolume that each adds. All others are bad, the failed ones too.
        candidates: How many positions are drawn from l.
        random: The probability with which a configuration is drawn uniformly instead.
    """

    gamma: float = 0.10
    candidates: int = 24
    random: float = 1 / 6

    def __post_init__(self) -> None:
        if not _is_number(self.gamma) or not 0 < self.gamma < 1:
            raise ValueError(f"`gamma` must be in (0, 1), got {self.gamma!r}")
        if (
            not isinstance(self.candidates, int)
            or isinstance(self.candidates, bool)
            or self.candidates < 1
        ):
            raise ValueError(
                f"`candidates` must be a whole number of at least 1, got {self.candidates!r}"
            )
        if not _is_number(self.random) or not 0 <= self.random <= 1:
            raise ValueError(f"`random` must be in [0, 1], got {self.random!r}")

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space; uniform ones as long as the history is not enough."""
        if not self.enough(space, history):
            return [space.sample(rng) for _ in range(n)]
        pairs = self._fitted(space, history)
        return [self._one(space, pairs, rng) for _ in range(n)]

    def enough(self, space: Space, history: History) -> bool:
        """Tell whether densities are fitted to this history: it needs more than 2 d + 1 sound rows for d hyperparameters."""
        return len(history.is_finite) > 2 * len(space) + 1

    def _fitted(self, space: Space, history: History) -> list[tuple[Parzen, Parzen]]:
        """Return l and g of each hyperparameter."""
        good = good_rows(history, self.gamma)
        bad = sorted(set(range(len(history.configs))) - set(good))
        return [
            (
                parzen(domain, [history.configs[i][d] for i in good]),
                parzen(domain, [history.configs[i][d] for i in bad]),
            )
            for d, domain in enumerate(space.values())
        ]

    def _one(self, space: Space, pairs: list[tuple[Parzen, Parzen]], rng: Generator) -> Config:
        if rng.random() < self.random:
            return space.sample(rng)
        return tuple(self._best(good, bad, rng) for good, bad in pairs)

    def _best(self, good: Parzen, bad: Parzen, rng: Generator) -> Position:
        drawn = good.draw(self.candidates, rng)
        return drawn[int(np.argmax(good.density(drawn) / bad.density(drawn)))]


def good_rows(history: History, gamma: float) -> list[int]:
    """Return the best floor(gamma n) of the n sound rows, at least one if there is any, best first."""
    sound = history.is_finite
    if not sound:
        return []
    size = max(math.floor(round(gamma * len(sound), 9)), 1)  # 0.29 * 100 is 28.999999999999996
    order = hypervolume_order(history.objectives(sound), history.violations(sound), cuts=(size,))
    return [sound[i] for i in order[:size]]


def parzen(domain: Domain, positions: Sequence[Position]) -> Parzen:
    """Return the density of positions (m,) that were seen in a domain; without any it is uniform."""
    if isinstance(domain, Float | Int):
        return RangedParzen(domain, positions)
    return ListedParzen(len(domain.values), positions)  # type: ignore[attr-defined]


class ListedParzen:
    """Kernels of Aitchison and Aitken over a list of `size` values, and one that is uniform; `chances` (size,) sum to 1."""

    chances: Density

    def __init__(self, size: int, positions: Sequence[Position]) -> None:
        seen = np.bincount(np.array(positions, dtype=np.intp), minlength=size)
        others = len(positions) - seen
        self.chances = (1 / size + CHOICE * seen + (1 - CHOICE) / (size - 1) * others) / (
            len(positions) + 1
        )

    def draw(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` indices of the list."""
        return [int(i) for i in rng.choice(len(self.chances), size=n, p=self.chances)]

    def density(self, positions: Sequence[Position]) -> Density:
        """Return the probabilities (n,) of indices (n,)."""
        return self.chances[np.array(positions, dtype=np.intp)]


class RangedParzen:
    """Gaussian kernels on the scale of a range, cut off at its ends, and one that is uniform.

    Args:
        domain: The density is that of its scale's share in [0, 1]; a whole number owns a cell of the scale.
        positions: The kernels' centers, (m,).
    """

    def __init__(self, domain: Float | Int, positions: Sequence[Position]) -> None:
        self.domain = domain
        self.centers = np.sort(np.array([domain.to_unit(p) for p in positions], dtype=float))
        self.widths = bandwidths(self.centers)
        self._within = _mass_below(1.0, self.centers, self.widths) - _mass_below(
            0.0, self.centers, self.widths
        )

    def draw(self, n: int, rng: Generator) -> list[Position]:
        """Draw `n` positions of the domain."""
        return [self.domain.from_unit(self._draw_share(rng)) for _ in range(n)]

    def density(self, positions: Sequence[Position]) -> Density:
        """Return the density (n,) of the scale at real numbers (n,), or its mean (n,) over the cells of whole numbers (n,)."""
        if isinstance(self.domain, Int):
            values, places = np.unique(
                positions, return_inverse=True
            )  # a short range is drawn again and again
            return self._over_cells(values.tolist())[places]
        return self._at(positions)

    def _at(self, positions: Sequence[Position]) -> Density:
        shares = np.array([[self.domain.to_unit(p)] for p in positions])
        kernels = np.exp(-0.5 * ((shares - self.centers) / self.widths) ** 2) / (
            self.widths * math.sqrt(2 * math.pi)
        )
        return self._mixed(kernels)

    def _over_cells(self, positions: list[int]) -> Density:
        cells = np.array(
            [[[self.domain.to_unit(p - 0.5)], [self.domain.to_unit(p + 0.5)]] for p in positions]
        )
        spans = cells[:, 1] - cells[:, 0]
        density, wide = self._at(positions), spans[:, 0] > POINT
        masses = _mass_below(cells[wide, 1], self.centers, self.widths) - _mass_below(
            cells[wide, 0], self.centers, self.widths
        )
        density[wide] = self._mixed(masses / spans[wide])
        return density

    def _mixed(self, kernels: Density) -> Density:
        """Return the mean (n,) of the uniform kernel and the others (n, m), scaled for what was cut off from them."""
        return np.asarray((1.0 + (kernels / self._within).sum(axis=-1)) / (len(self.centers) + 1))

    def _draw_share(self, rng: Generator) -> float:
        kernel = int(rng.integers(len(self.centers) + 1))
        if kernel == len(self.centers):
            return float(rng.random())
        while True:  # a center lies within the range, and so does at least a third of its kernel
            share = float(rng.normal(self.centers[kernel], self.widths[kernel]))
            if 0 <= share <= 1:
                return share


def bandwidths(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the width (m,) of the kernel at each of the sorted centers (m,): the distance to the farther of its neighbors.

    The ends of the range are neighbors too. No kernel is narrower than the share 1 / (m + 1) of the range, down to 0.01.
    """
    gaps = np.diff(centers, prepend=0.0, append=1.0)
    return np.maximum(np.maximum(gaps[:-1], gaps[1:]), max(NARROWEST, 1 / (len(centers) + 1)))


def _mass_below(
    share: float | Density, centers: NDArray[np.float64], widths: NDArray[np.float64]
) -> Density:
    """Return which part of each Gaussian lies below a share, or below each of some shares (n, 1)."""
    z = (share - centers) / (widths * math.sqrt(2))
    masses = (z > 0).astype(float)
    near = np.abs(z) < 6  # beyond that nothing is left, and most kernels are narrow
    masses[near] = [0.5 + 0.5 * math.erf(v) for v in z[near].tolist()]
    return masses


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
