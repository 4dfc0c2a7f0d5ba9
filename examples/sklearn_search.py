"""Search a front of fitted scikit-learn classifiers for precision and recall."""

import sys

from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import precision_score, recall_score
from sklearn.model_selection import train_test_split

import mopbt
from mopbt.integrations.sklearn import MOPBTSearch


def main():
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    x, y = make_classification(
        4000, 20, n_informative=8, weights=[0.8], flip_y=0.1, class_sep=0.5, random_state=0
    )
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    search = MOPBTSearch(
        SGDClassifier(loss="modified_huber", penalty="elasticnet", learning_rate="constant"),
        {
            "alpha": mopbt.LogGrid(1e-6, 0.1, 10),
            "l1_ratio": mopbt.Grid(0, 1, 10),
            "eta0": mopbt.LogGrid(1e-4, 1, 10),
        },
        scoring=["precision", "recall"],
        population=population,
        steps=20,
        random_state=0,
        out=f"runs/sklearn-search-{population}",
    )
    search.fit(x_train, y_train)
    print(search.choice_.why)
    for point, model in zip(search.front_, search.estimators_, strict=True):
        predicted = model.predict(x_test)
        precision = precision_score(y_test, predicted, zero_division=0)
        recall = recall_score(y_test, predicted)
        validation = f"{point.scores['precision']:.3f} {point.scores['recall']:.3f}"
        print(f"validation {validation}, test {precision:.3f} {recall:.3f}")
    precise = search.estimator_of(search.front_.where("recall >= 0.3").best("precision"))
    precision = precision_score(y_test, precise.predict(x_test))
    print(f"most precise model with a recall of at least 0.3: test precision {precision:.3f}")


if __name__ == "__main__":
    main()
