"""NSGA-II (paper, appendix E): each generation is bred from the best of all before it, by fronts and crowding distance.

Nothing is remembered between generations. Who survived is worked out again from the history, whose blocks of `population`
rows are the generations; no random number takes part in that.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.proposals.base import History
from mopbt.ranking import crowded_order, crowding_distance, non_dominated_sort
from mopbt.space import Categorical, Config, Domain, Position, Space

SWAP = 0.5  # the probability with which crossover takes a hyperparameter from the second parent
INDEX = 10.0  # the distribution index of the mutation: a move is about 1/12 of the range on average
ATTEMPTS = 10  # at a child that is not a duplicate; a small space may have none left


@dataclass(frozen=True)
class NSGA2Proposal:
    """Propose children of parents that won binary tournaments by front and crowding distance.

    Crossover takes each hyperparameter from either parent; mutation then moves each of the d hyperparameters with probability
    1 / d, or draws it anew where its values have no order. The first `population` configurations are stratified.

    Args:
        population: The rows of a generation, and how many survive it.
        crossover: The probability with which a child has two parents and not one.
    """

    population: int = 8
    crossover: float = 0.9

    def __post_init__(self) -> None:
        if (
            not isinstance(self.population, int)
            or isinstance(self.population, bool)
            or self.population < 2
        ):
            raise ValueError(
                f"`population` must be a whole number of at least 2, got {self.population!r}"
            )
        if (
            isinstance(self.crossover, bool)
            or not isinstance(self.crossover, int | float)
            or not 0 <= self.crossover <= 1
        ):
            raise ValueError(f"`crossover` must be in [0, 1], got {self.crossover!r}")

    def __call__(self, space: Space, history: History, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations of the space, different from each other and from all before as far as that is possible."""
        parents = survivors(history, self.population)
        if len(history.configs) + len(history.pending) < self.population or not parents:
            return space.stratified(n, rng)
        places = standing(history.objectives(parents), history.violations(parents))
        pool = [history.configs[i] for i in parents]
        taken = {*history.configs, *history.pending}
        return [self._new_child(space, pool, places, taken, rng) for _ in range(n)]

    def _new_child(
        self,
        space: Space,
        pool: list[Config],
        places: NDArray[np.intp],
        taken: set[Config],
        rng: Generator,
    ) -> Config:
        """Return a child, and add it to those that are taken."""
        for _ in range(ATTEMPTS):
            child = mutated(space, self._crossed(pool, places, rng), rng)
            if child not in taken:
                break
        taken.add(child)
        return child

    def _crossed(self, pool: list[Config], places: NDArray[np.intp], rng: Generator) -> Config:
        first = winner(places, rng)
        if len(pool) == 1 or rng.random() >= self.crossover:
            return pool[first]
        second = winner(np.delete(places, first), rng)
        return swapped(pool[first], pool[second + (second >= first)], rng)


def survivors(history: History, population: int) -> list[int]:
    """Return the sound rows that survive all generations of a history, each time the best `population` of old and new."""
    kept: list[int] = []
    for begin in range(0, len(history.configs), population):
        rows = range(begin, min(begin + population, len(history.configs)))
        kept = _best(history, kept + [i for i in rows if history.results[i].is_finite], population)
    return kept


def standing(objectives: NDArray[np.float64], violations: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the place (n,) of objectives (n, K) by front and then by crowding distance; equals share a place."""
    places, before = np.empty(len(objectives), dtype=np.intp), 0
    for front in non_dominated_sort(objectives, violations):
        distances = np.unique(-crowding_distance(objectives[front]), return_inverse=True)[1]
        places[front] = before + distances
        before += len(front)
    return places


def winner(places: NDArray[np.intp], rng: Generator) -> int:
    """Return the better of two rows that are drawn by chance, given their places (n,); the first drawn of equals."""
    first, second = (int(i) for i in rng.integers(len(places), size=2))
    return second if places[second] < places[first] else first


def swapped(first: Config, second: Config, rng: Generator) -> Config:
    """Return the uniform crossover of two configurations: each hyperparameter comes from either of them."""
    return tuple(b if rng.random() < SWAP else a for a, b in zip(first, second, strict=True))


def mutated(space: Space, config: Config, rng: Generator) -> Config:
    """Return a configuration of which each of the d hyperparameters has changed with probability 1 / d."""
    return tuple(
        moved(domain, position, rng) if rng.random() < 1 / len(space) else position
        for domain, position in zip(space.values(), config, strict=True)
    )


def moved(domain: Domain, position: Position, rng: Generator) -> Position:
    """Return a position moved by polynomial mutation on the domain's scale, or drawn anew where there is no order."""
    if isinstance(domain, Categorical):
        return domain.sample(rng)
    return domain.from_unit(polynomial(domain.to_unit(position), float(rng.random())))


def polynomial(share: float, u: float) -> float:
    """Return where the bounded polynomial mutation of Deb moves a share of [0, 1] by a number u of [0, 1).

    >>> round(polynomial(0.3, 0.5), 12), round(polynomial(0.3, 0.9), 2)
    (0.3, 0.44)
    """
    power = INDEX + 1
    if u < 0.5:
        return share - 1 + math.pow(2 * u + (1 - 2 * u) * math.pow(1 - share, power), 1 / power)
    return share + 1 - math.pow(2 * (1 - u) + (2 * u - 1) * math.pow(share, power), 1 / power)


def _best(history: History, rows: list[int], size: int) -> list[int]:
    if len(rows) <= size:
        return rows
    order = crowded_order(history.objectives(rows), history.violations(rows), cuts=(size,))
    return [rows[i] for i in order[:size]]
