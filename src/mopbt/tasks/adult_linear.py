"""Precision against recall on the Adult data with a linear classifier: small enough for a laptop, and a real trade-off.

The classifier is scikit-learn's logistic regression by stochastic gradient descent. Which mistakes it avoids follows from the class
weight; how good the compromise is, from the learning rate, which should fall during training, and from the decay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt import Direction, Domain, Grid, LogGrid, dumps, loads, stream
from mopbt.tasks.adult import Part, Preprocessing, load_adult, require_sklearn

Classifier = Any  # sklearn.linear_model.SGDClassifier, which has no types


@dataclass(frozen=True)
class AdultLinear:
    """A `Task`: logistic regression on Adult, precision against recall. A step is an epoch."""

    name: str = "adult-linear"
    interval: int = 1
    steps: int = 40

    def __post_init__(self) -> None:
        require_sklearn("adult-linear")  # in the driver already, not first in a worker

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the class weight and the decay, as in the paper's own Precision/Recall task, and the learning rate."""
        return {
            "positive_weight": Grid(0.1, 0.9, 10),
            "weight_decay": LogGrid(1e-5, 0.1, 10, zero=True),
            "learning_rate": LogGrid(1e-5, 0.1, 10),
        }

    @property
    def objectives(self) -> Mapping[str, Direction]:
        """Return precision and recall on the validation rows."""
        return {"precision": "max", "recall": "max"}

    @property
    def reference(self) -> Mapping[str, float]:
        """Return the worst scores there are, so that the hypervolume is the area under the front."""
        return {"precision": 0.0, "recall": 0.0}

    def init(self, seed: int) -> Classifier:
        """Start from zero weights; members differ by their hyperparameters and the order of their rows."""
        x, _ = features("train")
        return _classifier(np.zeros((1, x.shape[1])), np.zeros(1), 1.0)

    def train(
        self, model: Classifier, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Classifier:
        """Go through the training rows once for each step, in a new order each time."""
        x, y = features("train")
        weights = np.where(y, hp["positive_weight"], 1 - hp["positive_weight"])
        model.set_params(alpha=hp["weight_decay"], eta0=hp["learning_rate"])
        for step in range(begin, end):
            model.set_params(random_state=int(stream(seed, "rows", step).integers(2**31)))
            model.partial_fit(x, y, sample_weight=weights)
        return model

    def evaluate(self, model: Classifier) -> dict[str, float]:
        """Measure precision, recall and accuracy on the validation rows and, as ``test/...``, on the test rows."""
        return _measured(model, "val") | {
            f"test/{name}": score for name, score in _measured(model, "test").items()
        }

    def dump(self, model: Classifier) -> bytes:
        """Return the weights and the number of updates as a safetensors file."""
        return dumps({"coef": model.coef_, "intercept": model.intercept_, "t": float(model.t_)})

    def load(self, data: bytes) -> Classifier:
        """Return the classifier; `features` gives what it predicts from."""
        state = loads(data)
        return _classifier(state["coef"], state["intercept"], state["t"])


@cache
def features(part: Part) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return standardized numeric and one-hot categorical columns (n, 108) and the labels (n,) of a part of the data."""
    data = load_adult()
    rows, preprocessing = data.rows(part), _preprocessing()
    x = np.hstack([preprocessing.standardized(data, rows), preprocessing.one_hot(data, rows)])
    x.flags.writeable = False
    return x, data.labels[rows]


@cache
def _preprocessing() -> Preprocessing:
    return Preprocessing.fit(load_adult())


def _classifier(coef: NDArray[np.float64], intercept: NDArray[np.float64], t: float) -> Classifier:
    """Return a classifier in the state from which `partial_fit` goes on; with a constant rate it has no other."""
    from sklearn.linear_model import SGDClassifier

    model: Classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=1.0)  # type: ignore[no-untyped-call]
    model.classes_ = np.array([False, True])
    model.n_features_in_ = coef.shape[1]
    model.coef_, model.intercept_, model.t_ = coef, intercept, t
    return model


def _measured(model: Classifier, part: Part) -> dict[str, float]:
    x, y = features(part)
    predicted = model.predict(x)
    hits = float(np.sum(predicted & y))
    # A classifier that never says yes has precision 0: it must not look perfect.
    return {
        "precision": hits / max(float(np.sum(predicted)), 1.0),
        "recall": hits / float(np.sum(y)),
        "accuracy": float(np.mean(predicted == y)),
    }
