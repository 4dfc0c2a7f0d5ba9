"""A toy problem with a known front, trained in microseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mopbt.averaging import average_trees
from mopbt.rng import stream
from mopbt.serialization import dumps, loads
from mopbt.space import Domain, Grid, LogGrid


@dataclass(frozen=True)
class ToyTask:
    """Maximize two concave functions of a point in the plane.

    `near` and `far` are 1 minus the squared distance to (1, 0) and (0, 1). The Pareto set is the
    segment between these two points, so the front is sqrt(1 - near) + sqrt(1 - far) = sqrt(2).
    Training takes noisy gradient steps with momentum; `weight` decides where on the front a member
    ends.
    """

    name: str = "toy"
    interval: int = 2
    steps: int = 20
    noise: float = 0.05

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the domains of the objective weight and the learning rate."""
        return {"weight": Grid(0, 1, 11), "lr": LogGrid(0.001, 1, 10)}

    @property
    def objectives(self) -> Mapping[str, Any]:
        """Return the two objectives, both maximized."""
        return {"near": "max", "far": "max"}

    def init(self, seed: int) -> dict[str, Any]:
        """Start from a random point near the origin."""
        rng = stream(seed, "toy")
        return {"place": rng.normal(0, 0.1, 2), "speed": np.zeros(2)}

    def train(
        self, model: dict[str, Any], hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> dict[str, Any]:
        """Take noisy gradient steps on the weighted sum of both objectives."""
        rng = stream(seed, "toy")
        goal = hp["weight"] * np.array([1.0, 0.0]) + (1 - hp["weight"]) * np.array([0.0, 1.0])
        for _ in range(begin, end):
            gradient = goal - model["place"] + rng.normal(0, self.noise, 2)
            model["speed"] = 0.5 * model["speed"] + hp["lr"] * gradient
            model["place"] = model["place"] + model["speed"]
        return model

    def evaluate(self, model: dict[str, Any]) -> dict[str, float]:
        """Measure both objectives, without noise."""
        x, y = model["place"]
        return {"near": 1 - float((x - 1) ** 2 + y**2), "far": 1 - float(x**2 + (y - 1) ** 2)}

    def dump(self, model: dict[str, Any]) -> bytes:
        """Serialize the point and its momentum."""
        return dumps(model)

    def load(self, data: bytes) -> dict[str, Any]:
        """Restore the point and its momentum."""
        model: dict[str, Any] = loads(data)
        return model

    def blend(
        self,
        models: Sequence[dict[str, Any]],
        weights: Sequence[float],
        hp: Mapping[str, Any],
        seed: int,
    ) -> dict[str, Any]:
        """Average places and momenta."""
        mean: dict[str, Any] = average_trees(models, weights)
        return mean

    @staticmethod
    def distance_to_front(scores: Mapping[str, float]) -> float:
        """Measure how far metrics are from the known front, 0 on it."""
        near = np.sqrt(max(1 - scores["near"], 0))
        far = np.sqrt(max(1 - scores["far"], 0))
        return float(near + far - np.sqrt(2))


@dataclass(frozen=True)
class FailingToy(ToyTask):
    """Fail wherever the weight is 1, and train like `ToyTask` elsewhere."""

    def train(
        self, model: dict[str, Any], hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> dict[str, Any]:
        """Divide by zero where the weight is 1, and take gradient steps elsewhere."""
        1 / (1 - hp["weight"])
        return super().train(model, hp, begin, end, seed)


@dataclass(frozen=True)
class RowsToy(ToyTask):
    """Have rows besides those of the search.

    `test` has its own optimum and random draws.
    """

    rows: tuple[str, ...] = ("test",)

    def evaluate_rows(
        self, model: dict[str, Any], hp: Mapping[str, Any], step: int, rows: str, seed: int
    ) -> dict[str, float]:
        """Measure both objectives from a place that is moved at random."""
        moved = model["place"] + stream(seed, rows).normal(0, 0.01, 2)
        return self.evaluate({"place": moved}) | {"step": step, "weight": hp["weight"]}
