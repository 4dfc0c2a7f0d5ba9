"""The tasks of recorded runs.

An archive contains the copy of this file with which it was recorded, and its runs resume with that
copy. The file therefore uses little of mopbt, and nothing of the tests.
"""

from dataclasses import dataclass

import numpy as np

import mopbt


@dataclass(frozen=True)
class Plane:
    """Get close to (1, 0) and (0, 1), with gradient steps and momentum."""

    name: str = "plane"
    interval: int = 1
    steps: int = 6
    third: bool = False
    diverging: bool = False
    failing: bool = False
    noise: float = 0.0
    space = {"weight": mopbt.Grid(0, 1, 11), "lr": mopbt.LogGrid(0.01, 1, 9)}

    @property
    def objectives(self):
        size = {"size": "min"} if self.third else {}
        return {"near": "max", "far": "max"} | size

    def init(self, seed):
        return {"place": mopbt.stream(seed, "place").normal(0, 0.1, 2), "speed": np.zeros(2)}

    def train(self, model, hp, begin, end, seed):
        if self.failing and hp["weight"] >= 0.7:
            raise ValueError("the weight is too large")
        goal = np.array([hp["weight"], 1 - hp["weight"]])
        for _ in range(begin, end):
            model["speed"] = 0.5 * model["speed"] + hp["lr"] * (goal - model["place"])
            model["place"] = model["place"] + model["speed"]
        if self.diverging and hp["lr"] >= 0.5:
            model["place"] = model["place"] * np.nan
        return model

    def evaluate(self, model):
        x, y = model["place"]
        metrics = {"near": 1 - (x - 1) ** 2 - y**2, "far": 1 - x**2 - (y - 1) ** 2}
        metrics |= {"size": abs(x) + abs(y)}
        if self.noise:
            return {
                name: mopbt.Estimate(value, stderr=self.noise) for name, value in metrics.items()
            }
        return metrics

    def train_many(self, models, hp, begins, seeds):
        members = zip(models, hp, begins, seeds, strict=True)
        return [self.train(m, h, b, b + self.interval, seed) for m, h, b, seed in members]

    def evaluate_many(self, models):
        return [self.evaluate(model) for model in models]

    def blend(self, models, weights, hp, seed):
        parts = zip(models, weights, strict=True)
        pairs = [(w * model["place"], w * model["speed"]) for model, w in parts]
        return {
            "place": sum(place for place, _ in pairs),
            "speed": sum(speed for _, speed in pairs),
        }

    def dump(self, model):
        return mopbt.dumps(model)

    def load(self, data):
        return mopbt.loads(data)


@dataclass(frozen=True)
class PlaneWithRows(Plane):
    """Have two further sets of rows, outside of the search."""

    rows: tuple[str, ...] = ("test", "holdout")

    def evaluate_rows(self, model, hp, step, rows, seed):
        moved = model["place"] + mopbt.stream(seed, rows).normal(0, 0.01, 2)
        return self.evaluate({"place": moved})


@dataclass(frozen=True)
class EveryDomain(Plane):
    """Have hyperparameters of all kinds."""

    space = {
        "weight": mopbt.Float(0, 1),
        "lr": mopbt.Float(0.01, 1, log=True),
        "zero": mopbt.LogGrid(0.001, 1, 4, zero=True),
        "count": mopbt.Int(1, 8),
        "power": mopbt.Ordinal([1, 2, 4]),
        "mode": mopbt.Categorical(["slow", "fast"]),
    }

    def train(self, model, hp, begin, end, seed):
        factor = (2 if hp["mode"] == "fast" else 1) * hp["power"] / (4 * hp["count"])
        chosen = {"weight": hp["weight"], "lr": hp["lr"] * factor + hp["zero"] / 100}
        return super().train(model, chosen, begin, end, seed)


plane = Plane()
three = Plane(name="three", third=True)
diverging = Plane(name="diverging", diverging=True)
failing = Plane(name="failing", failing=True)
noisy = Plane(name="noisy", noise=0.05)
with_rows = PlaneWithRows(name="with-rows")
noisy_rows = PlaneWithRows(name="noisy-rows", noise=0.05)
every_domain = EveryDomain(name="every-domain")


@mopbt.task(
    space={"target": mopbt.Grid(0, 1, 11), "rate": mopbt.LogGrid(0.01, 1, 9)},
    objectives={"zero": "min", "one": "min"},
    reference={"zero": 1, "one": 1},
    constraints=["zero <= 0.95"],
    steps=6,
    interval=2,
    rows=("test",),
)
def function(m):
    """Move a number, as a training function."""
    x = np.zeros(1)
    m.track(x=x)
    for _ in m.steps():
        x += m.hp["rate"] * (m.hp["target"] - x)
    shift = 0.01 if m.rows == "test" else 0
    m.report(zero=abs(x[0]) + shift, one=abs(x[0] - 1) + shift)
