"""Run each example with a small population."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# `make test` installs all of these but JAX, which is about as large as PyTorch.
NEEDS = {
    "cartpole_energy": "gymnasium",
    "huggingface_text": "transformers",
    "huggingface_trainer": "transformers",
    "image_folder": "PIL",
    "jax_network": "optax",
    "lightgbm_boosting": "lightgbm",
    "lightning_fairness": "lightning",
    "ray_cluster": "ray",
    "stable_baselines3_ppo": "stable_baselines3",
    "xgboost_boosting": "xgboost",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(file, id=file.stem, marks=[pytest.mark.slow] * (file.stem in NEEDS))
        for file in EXAMPLES
    ],
)
def test_an_example_runs(example, tmp_path):
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    done = subprocess.run(
        [sys.executable, str(example), "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert list((tmp_path / "runs").iterdir())
