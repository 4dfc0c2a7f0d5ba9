"""Runs that released versions wrote can be opened, verified and resumed.

A case that fails here breaks the runs of users. Change the code, not the record.
"""

import json
import math

import pytest

from command_line import mopbt_command
from compatibility.cases import CASES
from compatibility.recorded import VERSIONS, archive_of, expectations_of, extract, resume, summary
from lanes import slow_except
from mopbt import Results
from mopbt.algorithms import ALGORITHMS

RUNS = [(version, name) for version in VERSIONS for name in CASES]
WITHOUT_TORCH = [run for run in RUNS if not run[1].startswith("torch")]
# Each of these shapes the format in its own way, and resumes in a fraction of a second.
QUICK = {
    *("mo-pbt-async", "mo-asha", "nsga2", "simulated", "failing", "every-domain", "storage"),
    *("evaluated-noisy-rows", "extended-members", "repaired", "warm-start", "interpolation"),
}


def expected(version, name):
    return json.loads(expectations_of(version).read_text())[name]


def assert_same(found, recorded, path=""):
    """Compare nested values; numbers within the rounding of other builds of numpy."""
    if isinstance(recorded, dict):
        # Later versions may say more.
        assert recorded.keys() <= found.keys(), path
        for key in recorded:
            assert_same(found[key], recorded[key], f"{path}.{key}")
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), path
        for number, pair in enumerate(zip(found, recorded, strict=True)):
            assert_same(*pair, f"{path}[{number}]")
    elif isinstance(recorded, float):
        assert math.isclose(found, recorded, rel_tol=1e-9, abs_tol=1e-12), path
    else:
        assert found == recorded, path


@pytest.mark.parametrize(("version", "name"), slow_except(WITHOUT_TORCH, RUNS))
def test_a_recorded_run_opens_with_its_front(version, name, tmp_path):
    extract(version, tmp_path, [name])
    verified = json.loads(mopbt_command("verify", name, "--json", cwd=tmp_path).stdout)
    assert verified["ok"], verified
    assert not [finding for finding in verified["findings"] if finding["severity"] == "error"]
    assert_same(summary(tmp_path, name), expected(version, name)["recorded"])
    results = Results.open(tmp_path / name)
    kept = results.models_with_weights()
    loaded = [results.load(point) for point in results.front() if point.model in kept]
    assert loaded


@pytest.mark.parametrize(("version", "name"), slow_except([r for r in RUNS if r[1] in QUICK], RUNS))
def test_a_recorded_run_resumes(version, name, tmp_path):
    extract(version, tmp_path, [name])
    options = ["verify", name, "--code", "--json"]
    assert json.loads(mopbt_command(*options, cwd=tmp_path).stdout)["code"] == "same"
    resumed = resume(tmp_path, name)
    recorded = expected(version, name)["resumed"]
    if not CASES[name].exact:
        # Weights, and with them decisions, depend on the machine or on the order of reports.
        for key in ("front", "hypervolume", "intervals", "failures"):
            recorded.pop(key)
    assert_same(resumed, recorded)
    assert resumed["state"] == "done"
    assert json.loads(mopbt_command("verify", name, "--json", cwd=tmp_path).stdout)["ok"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_record_covers_every_algorithm_and_is_small(version):
    recorded = {name: expected(version, name)["recorded"] for name in CASES}
    assert {run["algorithm"] for run in recorded.values()} == ALGORITHMS.keys()
    assert archive_of(version).stat().st_size < 2**20
