"""Train synthetic problems with a known optimum in microseconds.

A model is a few numbers and a step a few multiplications, so comparisons over many seeds take
seconds. Every problem knows its true front, and the front that constant hyperparameters can
reach. Nothing is random except what `noise`, `failures` and `nans` ask for. All objectives are
maximized, and they are positive once training has started, because the paper's scalarizations
cannot handle negative ones.

| problem | property |
|---|---|
| `TwoQuadratics` | the toy problem of the PBT paper with two goals; every algorithm solves it |
| `Annealing` | the learning rate must fall: a schedule beats every constant |
| `ThreeSkills` | three objectives share one effort, which cannot be moved once spent |
| `LateBloomers` | early leaders lose late: greedy selection does harm |
| `TradeOff` | a weight sets the place on the front: selecting for one place loses the others |
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mopbt.objectives import Direction
from mopbt.rng import stream
from mopbt.serialization import dumps, loads
from mopbt.space import Domain, Float, Grid, LogGrid

# Components of a state: floats for one learner, arrays of shape (n,) for a stack of n.
Columns = tuple[Any, ...]
Front = NDArray[np.float64]


class Learner(NamedTuple):
    """Hold a model: its state, its age in steps and the offsets of its metrics."""

    state: tuple[float, ...]
    age: int
    offsets: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Synthetic(ABC):
    """Implement a task from the start, step and metrics that a subclass defines.

    A learner learns for at most `steps` steps, including those of the learner it was copied
    from, so training longer cannot beat the front. Measured metrics include the offsets;
    ``test/...`` metrics do not, and never beat the front.

    Args:
        interval: Steps between two decisions.
        steps: Steps of training.
        noise: Standard deviation of each measured metric, drawn independently per interval.
        failures: Probability that an interval raises an exception.
        nans: Probability that the metrics after an interval are NaN.
    """

    name: ClassVar[str]
    # Training does not modify the learner it starts from.
    functional: ClassVar[bool] = True

    interval: int = 1
    steps: int = 50
    noise: float = 0.0
    failures: float = 0.0
    nans: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"`noise` must be a finite number of at least 0, got {self.noise!r}")
        for name, probability in (("failures", self.failures), ("nans", self.nans)):
            if not 0 <= probability <= 1:
                raise ValueError(f"`{name}` must be a probability in [0, 1], got {probability!r}")

    @property
    @abstractmethod
    def space(self) -> Mapping[str, Domain]:
        """Return the hyperparameters by name."""

    @abstractmethod
    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, K) spread over the true front.

        With `constant`, over the front that constant hyperparameters can reach.
        """

    @abstractmethod
    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the hypervolume of the complete front above `reference`.

        With `constant`, of the front that constant hyperparameters can reach.
        """

    @abstractmethod
    def _start(self) -> tuple[float, ...]:
        """Return the state of an untrained learner."""

    @abstractmethod
    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        """Return the state after one step.

        Use sums and products only: they give the same bits for floats and for array elements.
        """

    @abstractmethod
    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        """Return the true value of each objective."""

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return the two objectives."""
        return {"first": "max", "second": "max"}

    @property
    def reference(self) -> Mapping[str, float]:
        """Return the origin."""
        return dict.fromkeys(self.objectives, 0.0)

    def init(self, seed: int) -> Learner:
        """Create an untrained learner; all learners start equal."""
        return Learner(self._start(), 0, (0.0,) * len(self.objectives))

    def train(
        self, model: Learner, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Learner:
        """Train for as many steps as the learner's age allows, and draw its offsets."""
        offsets = self._offsets(seed)
        own = dict(hp)
        state = model.state
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
        """Train several learners for one interval as arrays, bit-identical to `train`."""
        # Learners near the end of their training take fewer steps than the others.
        if max(model.age for model in models) > self.steps - self.interval:
            return [
                self.train(model, own, begin, begin + self.interval, seed)
                for model, own, begin, seed in zip(models, hp, begins, seeds, strict=True)
            ]
        columns: Columns = tuple(np.array([model.state for model in models]).T)
        stacked = {name: np.array([own[name] for own in hp]) for name in hp[0]}
        for _ in range(self.interval):
            columns = self._step(columns, stacked)
        states = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Learner(state, model.age + self.interval, self._offsets(seed))
            for state, model, seed in zip(states, models, seeds, strict=True)
        ]

    def evaluate(self, model: Learner) -> dict[str, float]:
        """Measure the objectives with the offsets, and ``test/...`` without."""
        truth = dict(zip(self.objectives, self._scores(model.state), strict=True))
        measured = {
            name: score + offset
            for (name, score), offset in zip(truth.items(), model.offsets, strict=True)
        }
        return measured | {f"test/{name}": score for name, score in truth.items()}

    def evaluate_many(self, models: Sequence[Learner]) -> list[dict[str, float]]:
        """Evaluate several learners."""
        return [self.evaluate(model) for model in models]

    def dump(self, model: Learner) -> bytes:
        """Serialize a learner."""
        return dumps({"state": list(model.state), "age": model.age, "offsets": list(model.offsets)})

    def load(self, data: bytes) -> Learner:
        """Restore a learner."""
        held = loads(data)
        return Learner(tuple(held["state"]), held["age"], tuple(held["offsets"]))

    def _offsets(self, seed: int) -> tuple[float, ...]:
        """Draw the offsets (K,) of the metrics, or raise if the interval is drawn to fail."""
        K = len(self.objectives)
        if not (self.noise or self.failures or self.nans):
            return (0.0,) * K
        rng = stream(seed, "synthetic")
        # Both are always drawn, so that no option changes the draws of another.
        failing, lost = rng.random(2)
        if failing < self.failures:
            raise RuntimeError(
                f"simulated failure, because `failures` is {self.failures}; set it to 0 to disable"
            )
        noise = rng.normal(0.0, 1.0, K) * self.noise
        return (math.nan,) * K if lost < self.nans else tuple(noise.tolist())


class TwoQuadratics(Synthetic):
    """Climb two quadratics at once, the easiest of the problems.

    The first is the toy problem of Jaderberg et al. (2017), ``1.2 - θ₀² - θ₁²`` from
    θ = (0.9, 0.9). The second is the same with its maximum at (1, 0).

    Training climbs the surrogate: ``h0`` times the first plus ``h1`` times the second. A constant
    ratio h0 : h1 ends on the segment between the maxima, and a larger sum gets there sooner. The
    front is sqrt(1.2 - first) + sqrt(1.2 - second) = 1; training comes within 0.001 of it.
    """

    name = "two-quadratics"
    top: ClassVar[float] = 1.2
    # Four steps of the PBT paper, each 0.01 times a gradient of 2 θ.
    rate: ClassVar[float] = 0.08

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the weights of the two quadratics in the surrogate."""
        return {"h0": Float(0, 1), "h1": Float(0, 1)}

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 2) of the front; constants reach all of it."""
        place = np.linspace(0, 1, n)
        return np.column_stack([self.top - place**2, self.top - (1 - place) ** 2])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the area under the front."""
        return self.top**2 - 1 / 6

    def _start(self) -> tuple[float, ...]:
        return (0.9, 0.9)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        x, y = state
        h0 = self.rate * hp["h0"]
        h1 = self.rate * hp["h1"]
        return x - h0 * x + h1 * (1.0 - x), y - (h0 + h1) * y

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        x, y = state
        return self.top - x**2 - y**2, self.top - (x - 1) ** 2 - y**2


class Arc(Synthetic):
    """Place learners on an arc whose radius is their quality.

    A learner has a place in [0, 1], which follows `weight`, and a quality. Its metrics are the
    quality times the cosine and the sine of the place. The place starts at 1/2, and the arc ends
    where the place can arrive within `steps` steps.
    """

    # Share of the distance to `weight` that the place covers in a step.
    pull: ClassVar[float]

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 2) of the arc."""
        angles = np.pi / 2 * np.linspace(self._lowest, 1 - self._lowest, n)
        return self._best_quality(constant) * np.column_stack([np.cos(angles), np.sin(angles)])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the area that the arc dominates."""
        # The arc starts this far from one axis and ends as far from the other.
        angle = math.pi / 2 * self._lowest
        sector = (math.pi / 2 - 2 * angle) / 2
        return self._best_quality(constant) ** 2 * (sector + math.sin(2 * angle) / 2)

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        angle = math.pi / 2 * state[0]
        quality = self._quality(state[1])
        return quality * math.cos(angle), quality * math.sin(angle)

    def _move(self, place: Any, hp: Mapping[str, Any]) -> Any:
        return place + self.pull * (hp["weight"] - place)

    @property
    def _lowest(self) -> float:
        return 0.5 * (1 - self.pull) ** self.steps

    @abstractmethod
    def _quality(self, left: float) -> float:
        """Return the quality of a learner with this much left to learn."""

    @abstractmethod
    def _best_quality(self, constant: bool) -> float:
        """Return the best quality after `steps` steps."""


class Annealing(Arc):
    """Tune a learning rate that must fall.

    The error is the expected error of stochastic gradient descent on a noisy quadratic. A step
    with the rate a takes the error e to ``(1 - a)² e + 4 a²``: large rates forget the start, small
    rates average out the noise of the gradient. The best rate, e / (e + 4), falls from about 1 to
    1/50, and no constant comes close. A smaller error now never means a larger error later, so
    selection during training is right. The quality is 1 / (1 + e). The place follows `weight`
    quickly.
    """

    name = "annealing"
    pull = 0.25
    first_error: ClassVar[float] = 100.0
    gradient_noise: ClassVar[float] = 4.0

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the learning rate, and the weight that sets the place on the arc."""
        return {"learning_rate": LogGrid(0.01, 1, 21), "weight": Float(0, 1)}

    def best_schedule(self) -> list[float]:
        """Return the best learning rate of each interval."""
        # The greedy schedule is optimal: a smaller error never means a larger error later.
        error = self.first_error
        schedule = []
        for _ in range(self.steps // self.interval):
            error, rate = min(
                (self._error_after(error, rate, self.interval), rate) for rate in self._rates
            )
            schedule.append(rate)
        return schedule

    def best_constant(self) -> float:
        """Return the best constant learning rate."""
        return min(
            self._rates, key=lambda rate: self._error_after(self.first_error, rate, self.steps)
        )

    @property
    def _rates(self) -> tuple[float, ...]:
        return self.space["learning_rate"].values  # type: ignore[attr-defined, no-any-return]

    def _start(self) -> tuple[float, ...]:
        return (0.5, self.first_error)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        place, error = state
        rate = hp["learning_rate"]
        remaining = (1.0 - rate) * (1.0 - rate) * error
        return self._move(place, hp), remaining + self.gradient_noise * rate * rate

    def _quality(self, left: float) -> float:
        return 1 / (1 + left)

    def _best_quality(self, constant: bool) -> float:
        if constant:
            schedule = [self.best_constant()] * (self.steps // self.interval)
        else:
            schedule = self.best_schedule()
        error = self.first_error
        for rate in schedule:
            error = self._error_after(error, rate, self.interval)
        return self._quality(error)

    def _error_after(self, error: float, rate: float, steps: int) -> float:
        state: Columns = (0.5, error)
        for _ in range(steps):
            state = self._step(state, {"learning_rate": rate, "weight": 0.5})
        return float(state[1])


class TradeOff(Arc):
    """Tune a weight that slowly sets where on the front a model ends.

    The class weight and λ of the paper act in the same way. The place covers 1/20 of its distance
    in a step while the quality, which is the same everywhere, still grows. A selection that draws
    all members to one place leaves no member elsewhere when the quality is high; one that keeps
    the members spread out has the complete arc. The constant rate 1 reaches all of it: the
    difficulty is to find that rate without giving up part of the front.
    """

    name = "trade-off"
    pull = 0.05
    # Share of what is left to learn that a step with the best rate learns.
    progress: ClassVar[float] = 0.06

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the learning rate, best at 1, and the weight, the place on the arc."""
        return {"learning_rate": Grid(0, 2, 11), "weight": Float(0, 1)}

    def _start(self) -> tuple[float, ...]:
        return (0.5, 1.0)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        place, left = state
        learned = self.progress * _efficiency(hp["learning_rate"]) * left
        return self._move(place, hp), left - learned

    def _quality(self, left: float) -> float:
        return 1 - left

    def _best_quality(self, constant: bool) -> float:
        return 1 - (1 - self.progress) ** self.steps


class ThreeSkills(Synthetic):
    """Share one effort among three objectives, irrevocably.

    `share` of a step's effort goes to the first skill, and `split` of the rest to the second. The
    metric of a skill is the square root of its part of all effort, so the front is the octant of
    the unit sphere: a large surface for a small population.
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
        """Return `n` points (n, 3) spread evenly; constants reach all of the front."""
        # Slices of equal height have equal areas, and the golden ratio keeps neighbors apart.
        height = (np.arange(n) + 0.5) / n
        angle = np.pi / 2 * (np.arange(n) * (math.sqrt(5) - 1) / 2 % 1)
        radius = np.sqrt(1 - height**2)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle), height])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the volume of the octant of the ball."""
        return math.pi / 6

    def _start(self) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        first, second, third = state
        effort = _efficiency(hp["learning_rate"])
        share = hp["share"]
        split = hp["split"]
        rest = (1.0 - share) * effort
        return first + share * effort, second + split * rest, third + (1.0 - split) * rest

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(math.sqrt(effort / self.steps) for effort in state)


class LateBloomers(Synthetic):
    """Trap greedy selection: early effort pays only later.

    A share `head` of a step's effort adds to the metrics, times the square of the foundation; the
    rest builds the foundation, which shows in no metric. The best schedule only builds for more
    than half of the time and then only scores. `weight` divides the gain between the objectives,
    so the front is the line first + second = 1.
    """

    name = "late-bloomers"
    # Growth of the foundation, which starts at 1, in a step that does nothing else.
    growth: ClassVar[float] = 0.1

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the share of effort that scores, and the first objective's weight."""
        return {"head": Grid(0, 1, 11), "weight": Float(0, 1)}

    def best_schedule(self) -> list[float]:
        """Return the best `head` of each step: 0 at first, then 1.

        Intervals of several steps may not allow it; the front is then an upper bound.
        """
        # The sum of the metrics is convex in the head of each step, so 0 or 1 is optimal. Of two
        # neighboring steps, 0 then 1 scores more than 1 then 0, on a larger foundation. Only the
        # step of the change is left to choose.
        change = max(range(self.steps + 1), key=self._total_with_change)
        return [0.0] * change + [1.0] * (self.steps - change)

    def best_constant(self) -> float:
        """Return the best constant `head`."""
        heads: tuple[float, ...] = self.space["head"].values  # type: ignore[attr-defined]
        return max(heads, key=self._total_with_constant)

    def front(self, n: int, *, constant: bool = False) -> Front:
        """Return `n` points (n, 2) of the line."""
        weight = np.linspace(0, 1, n)
        return self._best_sum(constant) * np.column_stack([weight, 1 - weight])

    def best_hypervolume(self, *, constant: bool = False) -> float:
        """Return the area of the triangle under the line."""
        return self._best_sum(constant) ** 2 / 2

    def _start(self) -> tuple[float, ...]:
        return (1.0, 0.0, 0.0)

    def _step(self, state: Columns, hp: Mapping[str, Any]) -> Columns:
        foundation, first, second = state
        head = hp["head"]
        weight = hp["weight"]
        scored = head * foundation * foundation
        return (
            foundation + self.growth * (1.0 - head),
            first + weight * scored,
            second + (1.0 - weight) * scored,
        )

    def _scores(self, state: tuple[float, ...]) -> tuple[float, ...]:
        return state[1] / self._largest_total, state[2] / self._largest_total

    def _best_sum(self, constant: bool) -> float:
        if not constant:
            return 1.0
        return self._total_with_constant(self.best_constant()) / self._largest_total

    @cached_property
    def _largest_total(self) -> float:
        return max(self._total_with_change(change) for change in range(self.steps + 1))

    def _total_with_change(self, change: int) -> float:
        """Return the unscaled sum of both metrics if `head` changes from 0 to 1 at a step."""
        return (self.steps - change) * (1 + self.growth * change) ** 2

    def _total_with_constant(self, head: float) -> float:
        """Return the unscaled sum of both metrics with a constant `head`."""
        return head * sum((1 + self.growth * (1 - head) * step) ** 2 for step in range(self.steps))


PROBLEMS: tuple[type[Synthetic], ...] = (
    TwoQuadratics,
    Annealing,
    ThreeSkills,
    LateBloomers,
    TradeOff,
)


def _efficiency(rate: Any) -> Any:
    """Return the share of the possible progress that a learning rate makes.

    As in gradient descent on a quadratic, it is 1 at the rate 1 and 0 at the rates 0 and 2.
    """
    return rate * (2.0 - rate)
