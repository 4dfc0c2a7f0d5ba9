"""NSGA-II (paper, appendix E).

Each generation descends from the best of all before it, by front and crowding distance. No state
is kept between generations: the survivors are recomputed from the trials, whose blocks of
`population` rows are the generations. No randomness is involved in that.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.arguments import check_count
from mopbt.proposals.base import Trials
from mopbt.ranking import crowded_order, crowding_distance, non_dominated_sort
from mopbt.space import Categorical, Config, Domain, Position, Space

# The probability with which crossover takes a hyperparameter from the second parent.
SWAP = 0.5

# The distribution index of the mutation. With 10, a move is 1/12 of the range on average.
INDEX = 10.0

# How often to retry a child that is a duplicate. A small space may have no new configuration left.
ATTEMPTS = 10


@dataclass(frozen=True)
class NSGA2Proposal:
    """Propose children of parents that won binary tournaments.

    A tournament compares front and crowding distance. Crossover takes each hyperparameter from
    either parent. Mutation then moves each of the d hyperparameters with probability 1 / d, or
    resamples it if its values have no order. The first `population` configurations are stratified.

    Args:
        population: The size of a generation, and the number of its survivors.
        crossover: The probability with which a child has two parents instead of one.
        index: The distribution index of the mutation; a larger one makes smaller moves.
    """

    population: int = 8
    crossover: float = 0.9
    index: float = INDEX

    def __post_init__(self) -> None:
        check_count("population", self.population, 2)
        crossover = self.crossover
        is_number = isinstance(crossover, int | float) and not isinstance(crossover, bool)
        if not is_number or not 0 <= crossover <= 1:
            raise ValueError(f"`crossover` must be in [0, 1], got {crossover!r}")
        is_number = isinstance(self.index, int | float) and not isinstance(self.index, bool)
        if not is_number or not 0 <= self.index < math.inf:
            raise ValueError(f"`index` must be a finite number of at least 0, got {self.index!r}")

    def __call__(self, space: Space, trials: Trials, n: int, rng: Generator) -> list[Config]:
        """Return `n` configurations that are new, as far as the space has any."""
        parents = select_survivors(trials, self.population)
        if len(trials.configs) + len(trials.pending) < self.population or not parents:
            return space.stratified(n, rng)
        places = tournament_places(trials.objectives(parents), trials.violations(parents))
        pool = [trials.configs[i] for i in parents]
        taken = {*trials.configs, *trials.pending}
        children = []
        for _ in range(n):
            child = self._breed_new(space, pool, places, taken, rng)
            taken.add(child)
            children.append(child)
        return children

    def _breed_new(
        self,
        space: Space,
        pool: list[Config],
        places: NDArray[np.intp],
        taken: set[Config],
        rng: Generator,
    ) -> Config:
        for _ in range(ATTEMPTS):
            child = mutate(space, self._cross(pool, places, rng), rng, index=self.index)
            if child not in taken:
                break
        return child

    def _cross(self, pool: list[Config], places: NDArray[np.intp], rng: Generator) -> Config:
        first = tournament(places, rng)
        if len(pool) == 1 or rng.random() >= self.crossover:
            return pool[first]
        second = tournament(np.delete(places, first), rng)
        return uniform_crossover(pool[first], pool[second + (second >= first)], rng)


def select_survivors(trials: Trials, population: int) -> list[int]:
    """Return the finite rows that survive all generations.

    Each generation keeps the best `population` rows of its survivors and its children.
    """
    survivors: list[int] = []
    for begin in range(0, len(trials.configs), population):
        generation = range(begin, min(begin + population, len(trials.configs)))
        rows = survivors + [i for i in generation if trials.results[i].is_finite]
        if len(rows) > population:
            objectives = trials.objectives(rows)
            violations = trials.violations(rows)
            order = crowded_order(objectives, violations, cuts=(population,))
            rows = [rows[i] for i in order[:population]]
        survivors = rows
    return survivors


def tournament_places(
    objectives: NDArray[np.float64], violations: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Rank rows (n, K) by front, then by crowding distance; equals share a place."""
    places = np.empty(len(objectives), dtype=np.intp)
    before = 0
    for front in non_dominated_sort(objectives, violations):
        distances = crowding_distance(objectives[front])
        _, places_within = np.unique(-distances, return_inverse=True)
        places[front] = before + places_within
        before += len(front)
    return places


def tournament(places: NDArray[np.intp], rng: Generator) -> int:
    """Return the better of two random rows, given their places (n,).

    Of equals, the row drawn first wins.
    """
    first, second = (int(i) for i in rng.integers(len(places), size=2))
    return second if places[second] < places[first] else first


def uniform_crossover(first: Config, second: Config, rng: Generator) -> Config:
    """Take each hyperparameter from either of two configurations."""
    return tuple(b if rng.random() < SWAP else a for a, b in zip(first, second, strict=True))


def mutate(space: Space, config: Config, rng: Generator, *, index: float = INDEX) -> Config:
    """Change each of the d hyperparameters with probability 1 / d."""
    return tuple(
        mutate_position(domain, position, rng, index=index)
        if rng.random() < 1 / len(space)
        else position
        for domain, position in zip(space.values(), config, strict=True)
    )


def mutate_position(
    domain: Domain, position: Position, rng: Generator, *, index: float = INDEX
) -> Position:
    """Move a position by polynomial mutation, or resample it if there is no order."""
    if isinstance(domain, Categorical):
        return domain.sample(rng)
    share = polynomial_mutation(domain.to_unit(position), float(rng.random()), index=index)
    return domain.from_unit(share)


def polynomial_mutation(share: float, u: float, *, index: float = INDEX) -> float:
    """Apply Deb's bounded polynomial mutation to a number in [0, 1].

    Args:
        share: The number to move.
        u: A uniform random number in [0, 1); 0.5 does not move.
        index: The distribution index; a larger one makes smaller moves.

    >>> round(polynomial_mutation(0.3, 0.5), 12), round(polynomial_mutation(0.3, 0.9), 2)
    (0.3, 0.44)
    """
    power = index + 1
    if u < 0.5:
        return share - 1 + math.pow(2 * u + (1 - 2 * u) * math.pow(1 - share, power), 1 / power)
    return share + 1 - math.pow(2 * (1 - u) + (2 * u - 1) * math.pow(share, power), 1 / power)
