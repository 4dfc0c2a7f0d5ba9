"""Synthetic trainings of which the best is known: five problems, each with one property of real ones, trained in microseconds.

A model is a few numbers and a step a few multiplications, so that comparisons over many seeds take seconds. Every problem knows its
true front, and what constant hyperparameters can reach of it, so that a run can be held against both. Nothing is random but what
`noise`, `failures` and `nans` ask for. Scores are to be maximized and are above 0 once training is under way: the scalarizations of
the paper have no use for negative ones.

| problem | what it shows |
|---|---|
| `TwoQuadratics` | the toy of the PBT paper with two goals: any sound algorithm solves it |
| `Annealing` | a learning rate that must fall: a schedule beats every constant |
| `ThreeSkills` | three objectives, between which effort once spent cannot be moved |
| `LateBloomers` | a trap for the greedy: those who lead early lose late, and selection on the way does harm |
| `TradeOff` | a weight that decides where on the front a model ends: who selects for one place loses the others |
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mopbt import Direction, Domain, Float, Grid, LogGrid, dumps, loads, stream

Columns = tuple[Any, ...]  # of a state: floats for one learner, arrays (n,) for a stack of n
Front = NDArray[np.float64]


class Learner(NamedTuple):
    """A model: what it has learned, for how many steps it has learned, and by how much its measured scores are off."""

    state: tuple[float, ...]
    age: int
    offsets: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Synthetic(ABC):
    """What the problems share. A subclass says how a learner starts, what a step does to it, and what it scores.

    A learner learns for `steps` steps in its life, wherever it is copied to: so nothing beats the front by training longer.
    Scores are measured with their offset; as ``test/...`` they are also given without, and these never beat the front.
    """

    name: ClassVar[str]
    functional: ClassVar[bool] = True  # training leaves the learner that it starts from as it is

    interval: int = 1
    steps: int = 50
    noise: float = 0.0  # standard deviation of each measured score, drawn anew in each interval
    failures: float = 0.0  # the probability that an interval raises an exception
    nans: float = 0.0  # the probability that the scores after an interval are NaN

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"`noise` must be a finite number of at least 0, got {self.noise!r}")
        for name, share in (("failures", self.failures), ("nans", self.nans)):
            if not 0 <= share <= 1:
                raise ValueError(f"`{name}` must be a probability in [0, 1], got {share!r}")

    # What a subclass says.

    @property
    @abstractmethod
    def space(self) -> Mapping[str, Domain]:
        """Return the hyperparameters that are tuned, by name."""

    @abstractmethod
    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, K) spread over the true front; with `constant`, over what constant hyperparameters can reach."""

    @abstractmethod
    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the hypervolume of the whole front above `reference`; with `constant`, of what constants can reach."""

    @abstractmethod
    def _start(self) -> tuple[float, ...]:
        """Return the state of a fresh learner."""

    @abstractmethod
    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        """Return the state after one step; sums and products alone, which are the same for a float and for an array's element."""

    @abstractmethod
    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        """Return the true score of each objective."""

    # What follows from it.

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the two objectives."""
        return {"first": "max", "second": "max"}

    @property
    def reference(self) -> Mapping[str, float]:
        """Return the origin."""
        return dict.fromkeys(self.objectives, 0.0)

    def init(self, seed: int) -> Learner:
        """Start all learners alike; they differ by their hyperparameters."""
        return Learner(self._start(), 0, (0.0,) * len(self.objectives))

    def train(
        self, model: Learner, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Learner:
        """Take the steps that the learner's age still allows, and draw how its scores will be off."""
        offsets, own, state = self._offsets(seed), dict(hp), model.state
        steps = max(min(end - begin, self.steps - model.age), 0)
        for _ in range(steps):
            state = self._step(state, own)
        return Learner(state, model.age + steps, offsets)

    def train_many(
        self,
        models: Sequence[Learner],
        hp: Sequence[Mapping[str, Any]],
        begins: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Learner]:
        """Train several learners for one interval as arrays with an element for each; the same to the bit as one by one."""
        if (
            max(model.age for model in models) > self.steps - self.interval
        ):  # some take fewer steps than others
            together = zip(models, hp, begins, seeds, strict=True)
            return [
                self.train(model, own, begin, begin + self.interval, seed)
                for model, own, begin, seed in together
            ]
        columns: Columns = tuple(np.array([model.state for model in models]).T)
        own = {name: np.array([each[name] for each in hp]) for name in hp[0]}
        for _ in range(self.interval):
            columns = self._step(columns, own)
        states = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Learner(state, model.age + self.interval, self._offsets(seed))
            for state, model, seed in zip(states, models, seeds, strict=True)
        ]

    def evaluate(self, model: Learner) -> dict[str, float]:
        """Measure the objectives with the offsets of the last interval and, as ``test/...``, without."""
        truth = dict(zip(self.objectives, self._scores(model.state), strict=True))
        measured = {
            name: score + offset
            for (name, score), offset in zip(truth.items(), model.offsets, strict=True)
        }
        return measured | {f"test/{name}": score for name, score in truth.items()}

    def evaluate_many(self, models: Sequence[Learner]) -> list[dict[str, float]]:
        """Measure several learners."""
        return [self.evaluate(model) for model in models]

    def dump(self, model: Learner) -> bytes:
        """Return state, age and offsets as bytes."""
        return dumps({"state": list(model.state), "age": model.age, "offsets": list(model.offsets)})

    def load(self, data: bytes) -> Learner:
        """Read a learner back."""
        held = loads(data)
        return Learner(tuple(held["state"]), held["age"], tuple(held["offsets"]))

    def _offsets(self, seed: int) -> tuple[float, ...]:
        """Return how the scores (K,) after an interval are off, or raise where the interval is one of those that fail."""
        K = len(self.objectives)
        if not (self.noise or self.failures or self.nans):
            return (0.0,) * K
        rng = stream(seed, "synthetic")
        failing, lost = rng.random(
            2
        )  # drawn always, so that no option changes what another one does
        if failing < self.failures:
            raise RuntimeError(
                f"this interval fails because `failures` is {self.failures}; with 0 none does"
            )
        noise = rng.normal(0.0, 1.0, K) * self.noise
        return (math.nan,) * K if lost < self.nans else tuple(noise.tolist())


class TwoQuadratics(Synthetic):
    """The toy of Jaderberg et al. (2017), ``1.2 - θ₀² - θ₁²`` from θ = (0.9, 0.9), and the same with its top at (1, 0).

    Training climbs the surrogate ``h0`` times the one plus ``h1`` times the other. A constant h0 : h1 ends on the segment between
    the tops, and a large sum is there sooner: the easiest of the problems. The front is sqrt(1.2 - first) + sqrt(1.2 - second) = 1;
    training comes within a thousandth of it.
    """

    name = "two-quadratics"
    top: ClassVar[float] = 1.2
    rate: ClassVar[float] = 0.08  # four of the paper's steps, 0.01 times a gradient of 2 θ

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the weights of the two quadratics in the surrogate."""
        return {"h0": Float(0, 1), "h1": Float(0, 1)}

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 2) of the segment between the tops; constants reach all of it."""
        place = np.linspace(0, 1, n)
        return np.column_stack([self.top - place**2, self.top - (1 - place) ** 2])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the area under the front."""
        return self.top**2 - 1 / 6

    def _start(self) -> tuple[float, ...]:
        return (0.9, 0.9)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        x, y = state
        h0, h1 = self.rate * hp["h0"], self.rate * hp["h1"]
        return x - h0 * x + h1 * (1.0 - x), y - (h0 + h1) * y

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        x, y = state
        return self.top - x**2 - y**2, self.top - (x - 1) ** 2 - y**2


class Arc(Synthetic):
    """A place between 0 and 1 that follows `weight`, and a quality: scores are quality times the cosine and sine of the place.

    The front is an arc with the best quality as its radius. The place starts at 1/2, and the arc ends where it can come in time.
    """

    pull: ClassVar[float]  # by which share of the distance the place follows in a step

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 2) of the arc."""
        angles = np.pi / 2 * np.linspace(self._lowest, 1 - self._lowest, n)
        return self._best_quality(constant) * np.column_stack([np.cos(angles), np.sin(angles)])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the area under the arc and of what its ends dominate."""
        angle = (
            math.pi / 2 * self._lowest
        )  # of the one end; the other is as far from the other axis
        return self._best_quality(constant) ** 2 * (
            (math.pi / 2 - 2 * angle) / 2 + math.sin(2 * angle) / 2
        )

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        angle, quality = math.pi / 2 * state[0], self._quality(state[1])
        return quality * math.cos(angle), quality * math.sin(angle)

    def _moved(self, place: Any, hp: Mapping[str, Any]) -> Any:
        return place + self.pull * (hp["weight"] - place)

    @property
    def _lowest(self) -> float:
        return 0.5 * (1 - self.pull) ** self.steps

    @abstractmethod
    def _quality(self, left: float) -> float:
        """Return the quality of a learner that has so much left to learn."""

    @abstractmethod
    def _best_quality(self, constant: bool) -> float:
        """Return the best quality after `steps` steps."""


class Annealing(Arc):
    """A learning rate that must fall: the expected error of stochastic gradient descent on a noisy quadratic.

    A step with the rate a takes the error e to ``(1 - a)² e + 4 a²``: large rates forget the start, small ones average the
    gradient's noise away. The best rate, e / (e + 4), falls from about 1 to a fiftieth, and no constant comes near. Less error now
    never means more error later, so selection on the way is right. Quality is 1 / (1 + e); the place follows `weight` quickly.
    """

    name = "annealing"
    pull = 0.25
    first_error: ClassVar[float] = 100.0
    gradient_noise: ClassVar[float] = 4.0

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the learning rate, and the weight that says where on the arc to go."""
        return {"learning_rate": LogGrid(0.01, 1, 21), "weight": Float(0, 1)}

    def best_schedule(self) -> list[float]:
        """Return the best learning rate of each interval: the greedy ones, as less error before never means more error after."""
        error, schedule = self.first_error, []
        for _ in range(self.steps // self.interval):
            error, rate = min(
                (self._after(error, rate, self.interval), rate) for rate in self._rates
            )
            schedule.append(rate)
        return schedule

    def best_constant(self) -> float:
        """Return the learning rate that is best if it stays the same."""
        return min(self._rates, key=lambda rate: self._after(self.first_error, rate, self.steps))

    @property
    def _rates(self) -> tuple[float, ...]:
        return self.space["learning_rate"].values  # type: ignore[attr-defined, no-any-return]

    def _start(self) -> tuple[float, ...]:
        return (0.5, self.first_error)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        place, error = state
        rate = hp["learning_rate"]
        return self._moved(place, hp), (1.0 - rate) * (
            1.0 - rate
        ) * error + self.gradient_noise * rate * rate

    def _quality(self, left: float) -> float:
        return 1 / (1 + left)

    def _best_quality(self, constant: bool) -> float:
        error = self.first_error
        for rate in (
            [self.best_constant()] * (self.steps // self.interval)
            if constant
            else self.best_schedule()
        ):
            error = self._after(error, rate, self.interval)
        return self._quality(error)

    def _after(self, error: float, rate: float, steps: int) -> float:
        state: Columns = (0.5, error)
        for _ in range(steps):
            state = self._step(state, {"learning_rate": rate, "weight": 0.5})
        return float(state[1])


class TradeOff(Arc):
    """A weight that decides where on the front a model ends, as the class weight and λ do in the paper, and does so slowly.

    The place makes a twentieth of its way in a step while the quality, which is the same everywhere, still grows. A selection that
    draws all members to one place has nobody elsewhere when the quality is there; one that keeps the width has the whole arc. The
    constant rate 1 reaches all of it: the difficulty is to find that rate without giving up a part of the front.
    """

    name = "trade-off"
    pull = 0.05
    progress: ClassVar[float] = 0.06  # of what is left to learn, in a step with the best rate

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the learning rate, best at 1, and the weight that says where on the arc to go."""
        return {"learning_rate": Grid(0, 2, 11), "weight": Float(0, 1)}

    def _start(self) -> tuple[float, ...]:
        return (0.5, 1.0)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        place, left = state
        return self._moved(place, hp), left - self.progress * _efficiency(
            hp["learning_rate"]
        ) * left

    def _quality(self, left: float) -> float:
        return 1 - left

    def _best_quality(self, constant: bool) -> float:
        return 1 - (1 - self.progress) ** self.steps


class ThreeSkills(Synthetic):
    """Three objectives that share one effort: what a step gives to one it cannot give to another, and it is never given back.

    `share` of a step's effort goes to the first skill, and `split` of the rest to the second. A skill's score is the root of its
    part of all effort, so the front is the eighth of the unit sphere above the origin: much surface for a small population.
    """

    name = "three-skills"

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return how effort is shared, and the learning rate, best at 1."""
        return {"learning_rate": Grid(0, 2, 11), "share": Float(0, 1), "split": Float(0, 1)}

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the three objectives."""
        return {"first": "max", "second": "max", "third": "max"}

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 3) spread evenly over the eighth of the sphere; constants reach all of it."""
        height = (np.arange(n) + 0.5) / n  # slices of equal height have equal areas
        angle = (
            np.pi / 2 * (np.arange(n) * (math.sqrt(5) - 1) / 2 % 1)
        )  # the golden ratio keeps neighbors apart
        radius = np.sqrt(1 - height**2)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle), height])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the volume of the eighth of the ball."""
        return math.pi / 6

    def _start(self) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        first, second, third = state
        effort, share, split = (
            _efficiency(hp["learning_rate"]),
            hp["share"],
            hp["split"],
        )
        rest = (1.0 - share) * effort
        return first + share * effort, second + split * rest, third + (1.0 - split) * rest

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(math.sqrt(effort / self.steps) for effort in state)


class LateBloomers(Synthetic):
    """A trap for the greedy: effort for a foundation shows in no score and pays later, so selection on the way does harm.

    A share `head` of a step's effort adds to the scores, times the square of the foundation; the rest lays foundation. The best
    schedule lays foundation for more than half of the time, last of all, and then only scores. `weight` divides what is scored
    between the objectives, so that the front is the line first + second = 1.
    """

    name = "late-bloomers"
    growth: ClassVar[float] = (
        0.1  # of the foundation, which begins as 1, in a step that does nothing else
    )

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the share of effort that scores at once, and the weight of the first objective."""
        return {"head": Grid(0, 1, 11), "weight": Float(0, 1)}

    def best_schedule(self) -> list[float]:
        """Return the best `head` of each step, 0 and then 1; longer intervals may not allow it, and the front is then a bound."""
        # The sum of scores is convex in the head of each step, so a best one is 0 or 1; and of two neighbors 1, 0 scores less than
        # 0, 1, on a larger foundation. That leaves only when to change.
        change = max(range(self.steps + 1), key=self._changing)
        return [0.0] * change + [1.0] * (self.steps - change)

    def best_constant(self) -> float:
        """Return the `head` that is best if it stays the same."""
        return max(self._heads, key=self._constant)

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 2) of the line."""
        weight = np.linspace(0, 1, n)
        return self._best(constant) * np.column_stack([weight, 1 - weight])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the area of the triangle under the line."""
        return self._best(constant) ** 2 / 2

    @property
    def _heads(self) -> tuple[float, ...]:
        return self.space["head"].values  # type: ignore[attr-defined, no-any-return]

    def _start(self) -> tuple[float, ...]:
        return (1.0, 0.0, 0.0)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        foundation, first, second = state
        head, weight = hp["head"], hp["weight"]
        scored = head * foundation * foundation
        return (
            foundation + self.growth * (1.0 - head),
            first + weight * scored,
            second + (1.0 - weight) * scored,
        )

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        return state[1] / self._whole, state[2] / self._whole

    def _best(self, constant: bool) -> float:
        return self._constant(self.best_constant()) / self._whole if constant else 1.0

    @cached_property
    def _whole(self) -> float:
        return max(self._changing(change) for change in range(self.steps + 1))

    def _changing(self, change: int) -> float:
        """Return the sum of both scores, before it is divided by the largest, after 0 up to a step and 1 from then on."""
        return (self.steps - change) * (1 + self.growth * change) ** 2

    def _constant(self, head: float) -> float:
        """Return the sum of both scores, before it is divided by the largest, with a constant head."""
        return head * sum((1 + self.growth * (1 - head) * step) ** 2 for step in range(self.steps))


PROBLEMS: tuple[type[Synthetic], ...] = (
    TwoQuadratics,
    Annealing,
    ThreeSkills,
    LateBloomers,
    TradeOff,
)


def _efficiency(rate: Any) -> Any:
    """Return how much of the possible progress a learning rate makes: gradient descent on a quadratic, 1 at 1, none at 0 and 2."""
    return rate * (2.0 - rate)
