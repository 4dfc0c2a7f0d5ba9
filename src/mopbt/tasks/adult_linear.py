"""Trade precision against recall on the Adult data with a linear classifier.

The task is a real trade-off that is small enough for a laptop. The classifier is scikit-learn's
logistic regression, trained by stochastic gradient descent. The class weight sets which mistakes
it avoids. The learning rate, which should fall during training, and the weight decay set how good
the compromise is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mopbt.objectives import Direction
from mopbt.rates import accuracy, precision, recall
from mopbt.rng import stream
from mopbt.serialization import dumps, loads
from mopbt.space import Domain, Grid, LogGrid
from mopbt.tasks.adult import Part, Preprocessing, load_adult, require_sklearn

# sklearn.linear_model.SGDClassifier, which is not typed.
Classifier = Any


@dataclass(frozen=True)
class AdultLinear:
    """Train logistic regression on Adult for precision and recall; a step is an epoch."""

    name: str = "adult-linear"
    interval: int = 1
    steps: int = 40

    def __post_init__(self) -> None:
        # Fail in the driver rather than in a worker.
        require_sklearn("adult-linear")

    @property
    def space(self) -> Mapping[str, Domain]:
        """Return the hyperparameters.

        Class weight and weight decay are those of the paper's precision/recall tasks.
        """
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
        """Return the worst values, so that the hypervolume is the area under the front."""
        return {"precision": 0.0, "recall": 0.0}

    def init(self, seed: int) -> Classifier:
        """Create a classifier with zero weights; `seed` has no effect."""
        x, _ = features("train")
        return _classifier(np.zeros((1, x.shape[1])), np.zeros(1), 1.0)

    def train(
        self, model: Classifier, hp: Mapping[str, Any], begin: int, end: int, seed: int
    ) -> Classifier:
        """Pass over the training rows once per step, each time in a new order."""
        x, y = features("train")
        weights = np.where(y, hp["positive_weight"], 1 - hp["positive_weight"])
        model.set_params(alpha=hp["weight_decay"], eta0=hp["learning_rate"])
        for step in range(begin, end):
            model.set_params(random_state=int(stream(seed, "rows", step).integers(2**31)))
            model.partial_fit(x, y, sample_weight=weights)
        return model

    def evaluate(self, model: Classifier) -> dict[str, float]:
        """Measure precision, recall and accuracy on the validation rows."""
        return _measure(model, "val")

    @property
    def rows(self) -> tuple[str, ...]:
        """Return the rows that only the models on the front are measured on."""
        return ("test",)

    def evaluate_rows(
        self, model: Classifier, hp: Mapping[str, Any], step: int, rows: str, seed: int
    ) -> dict[str, float]:
        """Measure precision, recall and accuracy on the test rows."""
        return _measure(model, "test")

    def dump(self, model: Classifier) -> bytes:
        """Serialize the weights and the number of updates as safetensors."""
        return dumps({"coef": model.coef_, "intercept": model.intercept_, "t": float(model.t_)})

    def load(self, data: bytes) -> Classifier:
        """Restore a classifier; its inputs come from `features`."""
        state = loads(data)
        return _classifier(state["coef"], state["intercept"], state["t"])


@cache
def features(part: Part) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the features (n, 108) and labels (n,) of a part.

    Numeric columns are standardized, categorical ones one-hot.
    """
    data = load_adult()
    rows = data.rows(part)
    preprocessing = _preprocessing()
    x = np.hstack([preprocessing.standardize(data, rows), preprocessing.one_hot(data, rows)])
    x.flags.writeable = False
    return x, data.labels[rows]


@cache
def _preprocessing() -> Preprocessing:
    return Preprocessing.fit(load_adult())


def _classifier(coef: NDArray[np.float64], intercept: NDArray[np.float64], t: float) -> Classifier:
    """Create a classifier that `partial_fit` continues to train from the given state."""
    from sklearn.linear_model import SGDClassifier

    # With a constant learning rate, coefficients, intercept and step count are the full state.
    model: Classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=1.0)  # type: ignore[no-untyped-call]
    model.classes_ = np.array([False, True])
    model.n_features_in_ = coef.shape[1]
    model.coef_ = coef
    model.intercept_ = intercept
    model.t_ = t
    return model


def _measure(model: Classifier, part: Part) -> dict[str, float]:
    x, y = features(part)
    predicted = model.predict(x)
    # A classifier that predicts no positives has precision 0, or it would look perfect.
    return {
        "precision": precision(predicted, y),
        "recall": recall(predicted, y),
        "accuracy": accuracy(predicted == y),
    }
