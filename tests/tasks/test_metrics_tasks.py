"""Compare metrics with scikit-learn, fairlearn and slow, direct formulations."""

import copy
import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_score, recall_score
from torch import nn
from torch.nn import functional as F

from mopbt import rates
from mopbt.tasks import metrics
from mopbt.tasks.metrics import (
    accuracy,
    decisions,
    deo,
    dsp,
    fairness,
    precision_recall,
    probabilities,
    robustness,
)

pytestmark = pytest.mark.usefixtures("one_thread")

BITS = st.lists(st.integers(0, 1), min_size=1, max_size=30)


@st.composite
def measured(draw):
    """Draw logits (n, 2), labels and groups; classes and groups may be empty, and logits equal."""
    n = draw(st.integers(1, 25))
    values = draw(
        st.lists(
            st.sampled_from([-30.0, -1.5, -0.1, 0.0, 0.1, 1.5, 30.0]),
            min_size=2 * n,
            max_size=2 * n,
        )
    )
    bits = draw(st.lists(st.integers(0, 1), min_size=2 * n, max_size=2 * n))
    return torch.tensor(values).view(n, 2), torch.tensor(bits[:n]), torch.tensor(bits[n:])


def slow_p1(logits):
    return [
        math.exp(b - max(a, b)) / (math.exp(a - max(a, b)) + math.exp(b - max(a, b)))
        for a, b in logits.tolist()
    ]


def slow_gap(p, rows):
    """Return the gap between two groups' means over rows, given as (group, counts) pairs."""
    groups = [
        [v for v, (group, counts) in zip(p, rows, strict=True) if counts and group == wanted]
        for wanted in (0, 1)
    ]
    return (
        abs(sum(groups[0]) / len(groups[0]) - sum(groups[1]) / len(groups[1]))
        if all(groups)
        else 0.0
    )


@given(measured())
def test_precision_recall_and_accuracy_are_scikit_learns(data):
    logits, y, _ = data
    said = [p > 0.5 for p in slow_p1(logits)]
    found = precision_recall(logits, y)
    assert found["precision"] == pytest.approx(precision_score(y, said, zero_division=0))
    assert found["recall"] == pytest.approx(recall_score(y, said, zero_division=0))
    assert found["accuracy"] == pytest.approx(accuracy_score(y, said))


def test_predicting_no_positives_has_precision_and_recall_0():
    found = precision_recall(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 0]))
    assert found == {"precision": 0.0, "recall": 0.0, "accuracy": 0.5}


def test_a_probability_of_one_half_is_class_0():
    assert decisions(torch.tensor([[0.3, 0.3], [0.3, 0.30001]])).tolist() == [False, True]


@given(measured())
def test_gaps_of_probabilities_are_those_of_the_direct_formulation(data):
    logits, y, sensitive = data
    p, groups, labels = slow_p1(logits), sensitive.tolist(), y.tolist()
    found = fairness(logits, y, sensitive)
    assert found["dsp"] == pytest.approx(slow_gap(p, [(a, True) for a in groups]))
    given_label = [
        slow_gap(p, [(a, b == label) for a, b in zip(groups, labels, strict=True)])
        for label in (0, 1)
    ]
    assert found["deo"] == pytest.approx(sum(given_label))
    assert found["accuracy"] == pytest.approx(
        np.mean([(v > 0.5) == b for v, b in zip(p, labels, strict=True)])
    )
    assert list(found) == ["accuracy", "dsp", "deo"]


@pytest.mark.parametrize("seed", range(5))
def test_gaps_of_decisions_are_fairlearns(seed):
    metrics = pytest.importorskip("fairlearn.metrics")
    rng = np.random.default_rng(seed)
    y, a = rng.integers(0, 2, 400), (rng.random(400) < 0.3).astype(int)
    logits = torch.from_numpy(rng.normal(size=(400, 2)) + np.outer(y + 0.7 * a, [0, 1]))
    said, target, group = decisions(logits), torch.from_numpy(y), torch.from_numpy(a)
    arguments = {"y_true": y, "y_pred": said.int().numpy(), "sensitive_features": a}
    assert dsp(said, group) == pytest.approx(metrics.demographic_parity_difference(**arguments))
    odds = [
        getattr(metrics, f"{kind}_positive_rate_difference")(**arguments)
        for kind in ("true", "false")
    ]
    assert deo(said, target, group) == pytest.approx(sum(odds))
    assert deo(said, target, group) == pytest.approx(
        2 * metrics.equalized_odds_difference(**arguments, agg="mean")
    )
    assert sum(odds) > 0.1


@pytest.mark.parametrize(
    ("y", "sensitive"), [([0, 1, 1], [1, 1, 1]), ([0, 1, 1], [0, 0, 0]), ([1, 1, 1], [0, 1, 0])]
)
def test_an_empty_group_gives_no_nan(y, sensitive):
    found = fairness(
        torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 3.0]]),
        torch.tensor(y),
        torch.tensor(sensitive),
    )
    assert all(math.isfinite(score) for score in found.values())
    assert (found["dsp"] == 0) == (len(set(sensitive)) == 1)


def test_gaps_of_many_rows_are_exact():
    """Single precision loses the gap of a hundred thousand rows."""
    p, group = torch.full((200_001,), 0.1), torch.arange(200_001) % 2
    p[group == 1] += 1e-6
    assert dsp(p, group) == pytest.approx(float(p[1].double() - p[0].double()), rel=1e-6)


def test_probabilities_are_of_class_1():
    assert probabilities(torch.tensor([[0.0, math.log(3)]])).item() == pytest.approx(0.75)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_give_nan_for_all(bad):
    logits, y = torch.tensor([[1.0, 0.0], [0.0, bad]]), torch.tensor([0, 0])
    for found in (precision_recall(logits, y), fairness(logits, y, torch.tensor([0, 1]))):
        assert len(found) == 3
        assert all(math.isnan(score) for score in found.values())


@given(st.integers(0, 1000), st.integers(2, 10))
def test_accuracy_is_scikit_learns(seed, classes):
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(size=(20, classes)), rng.integers(0, classes, 20)
    assert accuracy(torch.from_numpy(logits), torch.from_numpy(y)) == pytest.approx(
        accuracy_score(y, logits.argmax(1))
    )


# Robustness.


def striped(n, seed):
    """Return gray images, one class with faint stripes: easy to classify and easy to attack."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=generator)
    stripes = 0.02 * torch.tensor([1.0, -1.0]).repeat(4).view(1, 1, 1, 8)
    return (
        0.5
        + 0.1 * torch.randn(n, 3, 8, 8, generator=generator)
        + stripes * (2 * y - 1).view(-1, 1, 1, 1)
    ).clamp(0, 1), y


@pytest.fixture
def trained():
    return copy.deepcopy(trained_network())


@cache
def trained_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 2),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        x, y = striped(600, 0)
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def test_an_attack_lowers_the_accuracy_of_a_trained_network(trained):
    x, y = striped(700, 1)
    found = robustness(trained, x, y)
    trained.eval()
    assert found["accuracy"] == pytest.approx(accuracy(trained(x), y))
    assert found["accuracy"] > 0.9
    assert found["robust_accuracy"] < 0.3
    weaker = robustness(trained, x, y, epsilon=0.005)["robust_accuracy"]
    assert found["robust_accuracy"] < weaker < found["accuracy"]
    few = robustness(trained, x, y, steps=2)["robust_accuracy"]
    assert found["robust_accuracy"] < few < found["accuracy"]


def test_measuring_leaves_model_mode_and_random_numbers_alone(trained):
    trained.train()
    before, state = copy.deepcopy(trained.state_dict()), torch.get_rng_state()
    found = robustness(trained, *striped(20, 2))
    assert trained.training
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, before[name])
    assert found == robustness(trained, *striped(20, 2))


def test_the_seed_sets_where_attacks_start(trained, monkeypatch):
    starts = []
    monkeypatch.setattr(
        metrics, "pgd", lambda model, x, y, start, **_: starts.append(start) or start
    )
    x, y = striped(600, 3)
    # The first call also measures how many rows fit into memory.
    robustness(trained, x, y)
    starts.clear()
    for seed in (0, 0, 1):
        robustness(trained, x, y, seed=seed)
    assert [len(start) for start in starts] == [500, 100] * 3
    assert torch.equal(starts[0], starts[2])
    assert not torch.equal(starts[0], starts[4])
    assert not torch.equal(starts[0][:100] - x[:100], starts[1] - x[500:])
    moved = starts[0] - x[:500]
    assert 0.0309 < moved.max() <= 0.0311
    assert -0.0311 <= moved.min() < -0.0309
    assert abs(moved.mean()) < 0.001


def test_a_broken_network_has_no_robustness(trained):
    broken = copy.deepcopy(trained)
    with torch.no_grad():
        broken[0].weight.fill_(math.nan)
    assert all(math.isnan(score) for score in robustness(broken, *striped(5, 4)).values())


def test_gaps_have_the_means_of_their_estimates():
    rng = np.random.default_rng(3)
    p, y, sensitive = rng.random(200), rng.random(200) < 0.3, rng.random(200) < 0.4
    tensors = torch.tensor(p), torch.tensor(y), torch.tensor(sensitive)
    assert metrics.dsp(tensors[0], tensors[2]) == pytest.approx(rates.dsp(p, sensitive))
    assert metrics.deo(*tensors) == pytest.approx(rates.deo(p, y, sensitive))
