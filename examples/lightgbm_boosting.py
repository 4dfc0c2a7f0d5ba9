"""Trade precision against recall of boosted trees from LightGBM.

A step is a boosting round. The learning rate, the leaves and the class weight change
while the trees grow.
"""

import sys

import lightgbm
import numpy as np

import mopbt

rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 10))
Y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=3000) > 1.5).astype(int)
TRAIN = slice(0, 2000)
VALIDATION = slice(2000, 3000)


@mopbt.task(
    space={
        "learning_rate": mopbt.LogGrid(0.01, 0.5, 8),
        "num_leaves": mopbt.Ordinal([4, 8, 16, 32]),
        "scale_pos_weight": mopbt.LogGrid(0.1, 10, 9),
    },
    objectives={"precision": "max", "recall": "max"},
    steps=60,
    interval=3,
)
def train(m):
    state = {"booster": ""}  # all trees so far, as text
    m.track(state=state)
    before = lightgbm.Booster(model_str=state["booster"]) if state["booster"] else None
    parameters = {name: m.hp[name] for name in ("learning_rate", "num_leaves", "scale_pos_weight")}
    parameters |= {"objective": "binary", "seed": m.seed % 2**31, "num_threads": 1, "verbosity": -1}
    booster = lightgbm.train(
        parameters,
        lightgbm.Dataset(X[TRAIN], Y[TRAIN]),
        num_boost_round=m.advance(),  # LightGBM has its own loop
        init_model=before,
    )
    state["booster"] = booster.model_to_string()
    said = np.asarray(booster.predict(X[VALIDATION])) > 0.5
    true = Y[VALIDATION] == 1
    hits = (said & true).sum()
    m.report(precision=hits / max(said.sum(), 1), recall=hits / true.sum())


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    results = mopbt.run(train, out=f"runs/lightgbm-{population}", population=population)
    print(results.front())
