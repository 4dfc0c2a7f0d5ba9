"""Trade precision against recall of boosted trees from XGBoost.

A step is a boosting round. The learning rate, the depth and the class weight change
while the trees grow.
"""

import sys

import numpy as np
import xgboost

import mopbt

rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 10))
Y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=3000) > 1.5).astype(int)
TRAIN = slice(0, 2000)
VALIDATION = slice(2000, 3000)


@mopbt.task(
    space={
        "eta": mopbt.LogGrid(0.01, 0.5, 8),
        "max_depth": mopbt.Ordinal([2, 3, 4, 5, 6]),
        "scale_pos_weight": mopbt.LogGrid(0.1, 10, 9),
    },
    objectives={"precision": "max", "recall": "max"},
    steps=60,
    interval=3,
)
def train(m):
    state = {"booster": ""}  # all trees so far, as JSON
    m.track(state=state)
    before = None
    if state["booster"]:
        before = xgboost.Booster()
        before.load_model(bytearray(state["booster"], "utf-8"))
    parameters = {name: m.hp[name] for name in ("eta", "max_depth", "scale_pos_weight")}
    parameters |= {"objective": "binary:logistic", "seed": m.seed % 2**31, "nthread": 1}
    booster = xgboost.train(
        parameters,
        xgboost.DMatrix(X[TRAIN], Y[TRAIN]),
        num_boost_round=m.advance(),  # XGBoost has its own loop
        xgb_model=before,
    )
    state["booster"] = booster.save_raw("json").decode()
    said = booster.predict(xgboost.DMatrix(X[VALIDATION])) > 0.5
    true = Y[VALIDATION] == 1
    hits = (said & true).sum()
    m.report(precision=hits / max(said.sum(), 1), recall=hits / true.sum())


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    results = mopbt.run(train, out=f"runs/xgboost-{population}", population=population)
    print(results.front())
