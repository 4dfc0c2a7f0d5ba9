import sys
from pathlib import Path

import numpy as np
import pytest

from mopbt.errors import MissingExtra
from mopbt.tasks import adult
from mopbt.tasks.adult import CATEGORICAL, NUMERIC, Preprocessing, load_adult

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def data():
    return load_adult()


@pytest.fixture(scope="module")
def fitted(data):
    return Preprocessing.fit(data)


def test_split_is_the_papers(data):
    file = SHARED / "adult_split.npz"
    if not file.is_file():
        pytest.skip(f"the published split is not at {file}")
    with np.load(file) as authors_variant:
        for part in ("train", "val", "test"):
            np.testing.assert_array_equal(data.rows(part), authors_variant[part])


def test_sizes_and_rates_are_the_published_ones(data):
    assert [len(data.rows(part)) for part in ("train", "val", "test")] == [26_048, 6_513, 16_281]
    assert np.array_equal(
        np.sort(np.concatenate([data.train, data.val, data.test])), np.arange(48_842)
    )
    assert data.labels.mean() == pytest.approx(0.2393, abs=5e-5)
    assert data.male.mean() == pytest.approx(0.6685, abs=5e-5)
    assert data.labels[data.male].mean() == pytest.approx(0.304, abs=5e-4)
    assert data.labels[~data.male].mean() == pytest.approx(0.109, abs=5e-4)


def test_columns_are_the_files(data):
    assert data.numeric[0].tolist() == [39, 77516, 13, 2174, 0, 40]
    assert dict(zip(CATEGORICAL, data.categorical[0].tolist(), strict=True)) == {
        "workclass": "State-gov",
        "education": "Bachelors",
        "marital-status": "Never-married",
        "occupation": "Adm-clerical",
        "relationship": "Not-in-family",
        "race": "White",
        "sex": "Male",
        "native-country": "United-States",
    }
    assert data.numeric.shape == (48_842, len(NUMERIC))
    assert np.array_equal(data.male, data.categorical[:, CATEGORICAL.index("sex")] == "Male")


def test_missing_values_are_a_category(data, fitted):
    missing = dict(zip(CATEGORICAL, (data.categorical == "?").sum(axis=0).tolist(), strict=True))
    assert {name: n for name, n in missing.items() if n} == {
        "workclass": 2799,
        "occupation": 2809,
        "native-country": 857,
    }
    assert (data.categorical == "?").any(axis=1).sum() == 3620
    assert "?" in fitted.categories[CATEGORICAL.index("occupation")]


def test_is_read_once_and_cannot_be_written_to(data):
    assert load_adult() is data
    with pytest.raises(ValueError, match="read-only"):
        data.labels[0] = True


def test_an_unknown_part_is_an_error(data):
    with pytest.raises(
        ValueError, match="`part` must be one of 'train', 'val', 'test', got 'valid'"
    ):
        data.rows("valid")


def test_preprocessing_is_that_of_scikit_learn_fitted_on_train(data, fitted):
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    scaler = StandardScaler().fit(data.numeric[data.train])
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(
        data.categorical[data.train]
    )
    for rows in (data.train, data.val, data.test):
        np.testing.assert_allclose(
            fitted.standardize(data, rows), scaler.transform(data.numeric[rows]), atol=1e-12
        )
        np.testing.assert_array_equal(
            fitted.one_hot(data, rows), encoder.transform(data.categorical[rows])
        )


def test_codes_number_the_categories_and_mark_unseen_ones(data, fitted):
    codes = fitted.codes(data, data.val)
    for j, known in enumerate(fitted.categories):
        names = np.append(known, "unseen")[codes[:, j]]
        raw = data.categorical[data.val, j]
        np.testing.assert_array_equal(names, np.where(np.isin(raw, known), raw, "unseen"))
    seen = adult._encode(np.array(["b", "a", "zz", "", "c"]), np.array(["a", "b", "c"]))
    assert seen.tolist() == [1, 0, 3, 3, 2]


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mopbt\[sklearn\]'"):
        adult._split(np.array([True, False] * 10))
