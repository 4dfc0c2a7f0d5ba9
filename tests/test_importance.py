"""Importance finds the hyperparameters that move an objective, in runs where that is known."""

import subprocess
import sys

import numpy as np
import pytest

import mopbt
from mopbt.importance import FEWEST, Intervals, importance_of
from mopbt.problem import problem_of
from mopbt.tasks.synthetic import ThreeSkills
from mopbt.tasks.toy import ToyTask


@pytest.fixture(scope="module")
def results():
    return mopbt.run(ThreeSkills(steps=20), population=16, out=None, engine="local", progress=False)


@pytest.mark.slow
def test_the_hyperparameters_that_move_an_objective_are_found(results):
    first, second, third = results.importance()
    # By construction `share` moves the first skill, and both divide the rest: `split` of it goes to
    # the second. All learning rates near 1 do the same.
    assert first.shares["share"] > 0.8
    assert first.shifts["share"] > 0
    for other, sign in ((second, 1), (third, -1)):
        assert max(other.shares, key=other.shares.get) == "split"
        assert sign * other.shifts["split"] > 0
        assert other.shares["share"] > other.shares["learning_rate"]
        assert other.shifts["share"] < 0
    for found in (first, second, third):
        assert sum(found.shares.values()) == pytest.approx(1)
        assert found.explained > 0.5


def random_intervals(change):
    """Return intervals with two hyperparameters, whose change of one objective is a function."""
    rng = np.random.default_rng(0)
    inputs = rng.random((300, 3))
    changes = np.column_stack([change(inputs, rng), np.zeros(300)])
    return Intervals(problem_of(ToyTask()), inputs, changes)


def test_pure_noise_explains_nothing():
    noise, _ = importance_of(random_intervals(lambda inputs, rng: rng.normal(size=len(inputs))))
    assert noise.explained < 0.1


def test_the_start_of_an_interval_is_not_taken_for_a_hyperparameter():
    """Members with good hyperparameters are also those that start from good models."""
    found, _ = importance_of(random_intervals(lambda inputs, rng: inputs[:, 2] + inputs[:, 1] / 10))
    assert found.shares["lr"] > 0.9
    assert found.explained > 0.8


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_values_of_any_size_are_explained(size):
    found, _ = importance_of(random_intervals(lambda inputs, rng: size * inputs[:, 1]))
    assert found.shares["lr"] > 0.9
    assert 0 < found.shifts["lr"] < size


def test_constant_objectives_and_short_runs_have_no_importance():
    constant, _ = importance_of(random_intervals(lambda inputs, rng: np.ones(len(inputs))))
    assert constant.explained == 0
    assert set(constant.shares.values()) == {0.0}
    short = mopbt.run(ToyTask(steps=4), population=4, out=None, engine="local", progress=False)
    assert len(short) < FEWEST
    assert short.importance() == []
    with pytest.raises(ValueError, match=f"at least {FEWEST} intervals"):
        short.plot_importance()


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_objective(results):
    figure = results.plot_importance()
    assert [ax.get_title(loc="left").split(" ")[0] for ax in figure.axes] == [
        "first",
        "second",
        "third",
    ]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        "learning_rate",
        "share",
        "split",
    ]


@pytest.mark.slow
def test_without_scikit_learn_the_error_names_the_extra():
    program = (
        "import sys; sys.modules['sklearn.ensemble'] = None\n"
        "import mopbt; from mopbt.tasks.toy import ToyTask\n"
        "mopbt.run(ToyTask(), population=8, out=None, engine='local', progress=False).importance()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'mopbt[sklearn]'" in done.stderr
