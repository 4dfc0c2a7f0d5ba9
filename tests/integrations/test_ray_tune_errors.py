"""Errors of the schedulers for Ray Tune that need no cluster; Ray Tune is imported with them."""

import json

import pytest

import mopbt
from mopbt.errors import StoreError

# All of these warnings come from Ray.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def pbt():
    pytest.importorskip("ray")
    from mopbt.integrations.ray_tune import MOPBT

    usual = {
        "space": {"lr": mopbt.Float(0.01, 0.5)},
        "objectives": {"near": "max", "loss": "min"},
        "interval": 2,
        "max_t": 8,
        "seed": 3,
    }
    return lambda **options: MOPBT(**usual | options)


def test_wrong_options_are_errors_at_once(pbt):
    with pytest.raises(ValueError, match="mo-pbt has no option 'quantile'; it has asynchronous"):
        pbt(quantile=0.5)
    with pytest.raises(ValueError, match="`population` is `num_samples` in TuneConfig"):
        pbt(population=8)
    with pytest.raises(ValueError, match=r"`fraction` must be in \(0, 0.5\]"):
        pbt(fraction=0.7)
    with pytest.raises(ValueError, match="must be a multiple of `interval`"):
        pbt(max_t=7)


def test_a_folder_without_an_experiment_is_an_error(tmp_path):
    pytest.importorskip("ray")
    from mopbt.integrations.ray_tune import Experiment

    with pytest.raises(StoreError, match="is not an experiment under MOPBT or MOASHA"):
        Experiment.open(tmp_path)


def test_the_error_of_a_damaged_journal_names_its_folder(pbt, tmp_path):
    import pyarrow.fs

    from mopbt.integrations.ray_tune import Experiment
    from mopbt.integrations.ray_tune_results import Journal

    scheduler = pbt()
    settings = scheduler._run_config(scheduler._build_algorithm(4))
    Journal.start(pyarrow.fs.LocalFileSystem(), str(tmp_path), settings)
    lines = [{"reports": [{"job": 3, "objectives": [0.5, 0.5]}]}]
    record = {"exchanges": lines, "members": {}, "paths": {}}
    (tmp_path / "mopbt" / "00000000.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match=f"{tmp_path}/mopbt"):
        Experiment.open(tmp_path)
