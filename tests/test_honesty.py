"""The script that checks on real data what fronts claim: its arithmetic, and that it resumes."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "honesty.py"


@pytest.fixture(scope="module")
def honesty():
    spec = importlib.util.spec_from_file_location("honesty", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DATA = {
    "values": [[0.9, 0.2], [0.5, 0.5], [0.1, 0.1]],
    "stderr": [[0.03, 0.03], [0.04, 0.0], [0.1, 0.1]],
    "bounds": [[0.6, 0.17], [0.46, 0.5], [0.0, 0.0]],
    "rows": {"observed": [0, 1], "honest": [1]},
    "models": [0, 1],
    "test": [[0.8, 0.2], [0.58, math.nan]],
    "test_stderr": [[0.04, 0.04], [0.03, 0.03]],
}


def test_both_standard_errors_count(honesty):
    """0.9 - 0.8 is more than 1.645 x 0.05, and 0.58 - 0.5 is less; NaN is unknown."""
    np.testing.assert_array_equal(honesty.hits_of(DATA, "observed"), [[0, 1], [1, np.nan]])
    np.testing.assert_array_equal(honesty.hits_of(DATA, "honest"), [[1, np.nan]])


def test_the_interval_is_clustered(honesty):
    """Hundred equal values of a seed are one observation."""
    rng = np.random.default_rng(0)
    clusters = [np.full(100, float(i % 2)) for i in range(10)]
    mean, lower, upper = honesty.clustered_interval(clusters, rng)
    assert mean == 0.5
    assert upper - lower > 0.4
    separate = [np.array([x]) for x in np.concatenate(clusters)]
    _, low, high = honesty.clustered_interval(separate, rng)
    assert high - low < 0.1
    assert np.isnan(honesty.clustered_interval([np.array([np.nan])], rng)).all()


def test_the_honest_front_is_chosen_from_at_its_bounds(honesty):
    data = DATA | {"test": [[0.8, 0.2], [0.4, 0.5]]}
    ends = (np.zeros(2), np.ones(2))
    honest = honesty.choice_of(data, "honest", *ends)
    alone = honesty.value_of_choosing([[0.46, 0.5]], [[0.4, 0.5]], *ends)
    assert honest == alone


@pytest.mark.slow
def test_seeds_draw_their_own_rows_of_one_pool(honesty):
    pytest.importorskip("torch")
    one, same, other = (honesty.redrawn_task("adult-fairness", "smoke", s) for s in (0, 0, 1))
    assert len(one.validation[0]) == 200
    assert len(one.validation[0]) + len(one.test[0]) == 6513 + 16281
    assert (one.validation[0] == same.validation[0]).all()
    assert not (one.validation[0] == other.validation[0]).all()


@pytest.mark.slow
def test_the_script_runs_and_resumes(honesty, tmp_path, capsys):
    pytest.importorskip("torch")
    arguments = ["--quick", "--seeds", "2", "--task", "adult-fairness", "--out", str(tmp_path)]
    honesty.main(arguments)
    first = capsys.readouterr().out
    assert "adult-fairness, seed 1" in first
    for part in ("honest, pooled", "corrected, adult-fairness, dsp", "honest better in"):
        assert part in first
    assert "of 2 runs" in first
    # The task reports errors, on validation and on test rows.
    assert "nan" not in first
    honesty.main(arguments)
    again = capsys.readouterr().out
    assert "seed 1" not in again
    assert again.partition("Random")[0].strip() in first
