"""Where the runs of a comparison train, and what their processes really receive."""

import json

import pytest

import simulated_device
from compare.helpers import TESTS, experiment, plain
from mopbt import Results
from mopbt.compare import Experiment, compare, resources
from mopbt.compare.resources import find_resources
from mopbt.engines import devices
from mopbt.engines.devices import Device

FOUND = tuple(Device("cuda", i, name) for i, name in enumerate(("4", "GPU-x", "MIG-y")))
NOTES = f"""
import json, os, sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from mopbt.device import assigned_device
from mopbt.tasks.toy import ToyTask
from toys import HangingToy

class Noting(ToyTask):
    "Writes down what its process received."
    device = "auto"
    def train(self, model, hp, begin, end, seed):
        names = ("MOPBT_DEVICE", "CUDA_VISIBLE_DEVICES")
        seen = {{name: os.environ.get(name) for name in names}} | {{"assigned": assigned_device()}}
        (Path(__file__).parent / f"{{os.getpid()}}.json").write_text(json.dumps(seen))
        return super().train(model, hp, begin, end, seed)

task = Noting(steps=4)
"""


@pytest.fixture
def three(monkeypatch):
    """Pretend that this process sees three devices."""
    for module in (devices, resources):
        monkeypatch.setattr(module, "discover", lambda refresh=False: FOUND)


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(resources, "available_cores", lambda: 16)


@pytest.mark.parametrize(
    ("options", "jobs", "expected", "names"),
    [
        ({}, None, 3, ["4", "GPU-x", "MIG-y"]),
        ({}, 5, 5, ["4", "GPU-x", "MIG-y"]),
        ({"workers_per_device": 2}, None, 6, ["4", "GPU-x", "MIG-y"]),
        ({"devices": ["0", "MIG-y"]}, None, 2, ["4", "MIG-y"]),
        ({"devices": ["1"], "workers_per_device": 4}, None, 4, ["GPU-x"]),
        ({"devices": ["cpu"]}, None, 16, [""]),
        ({"devices": []}, 3, 3, [""]),
    ],
)
def test_one_run_per_device_or_per_core(three, cores, options, jobs, expected, names):
    found = find_resources("auto", options, jobs)
    assert found.jobs == expected
    assert [device.id for device in found.devices] == names
    assert found.assigned == ("devices" in options)


def test_a_machine_without_accelerators_has_one_run_per_core(monkeypatch, cores):
    monkeypatch.setattr(resources, "discover", lambda: ())
    found = find_resources("auto", {"timeout": 3, "stack": 4}, None)
    assert (found.jobs, found.devices, found.timeout, found.stack) == (16, (), 3, 4)
    assert found.environment(0) == {}


def test_a_comparison_on_ray_has_one_run_at_a_time_unless_their_actors_are_counted():
    options = {"num_gpus": 0.5, "address": "auto", "stack": 8}
    found = find_resources("ray", options, None)
    assert (found.jobs, found.stack) == (1, 8)
    assert found.cluster == {"name": "ray", "num_gpus": 0.5, "address": "auto"}
    assert find_resources("ray", options | {"workers": 2}, 3).jobs == 3


@pytest.mark.parametrize(
    ("engine", "options", "jobs", "message"),
    [
        ("pool", {}, None, "`engine` of a comparison must be 'auto' or 'ray', got 'pool'"),
        ("auto", {"num_gpus": 1}, None, "`num_gpus` is for the engines 'ray', got 1 for 'auto'"),
        ("auto", {"address": "auto"}, None, "`address` is the address of a Ray cluster"),
        ("auto", {"workers": 2}, None, "`workers` is for a comparison on Ray, got 2"),
        ("auto", {"workers_per_device": 2}, 3, "set `jobs` or `workers_per_device`, not both"),
        ("auto", {"devices": ["0", "0"]}, None, "must name each device once"),
        ("auto", {"devices": ["7"]}, None, "names '7', but this process sees cuda:0"),
        ("auto", {"timeout": 0}, None, "`timeout` must be a number of seconds above 0"),
        ("ray", {"devices": ["0"]}, None, "`devices` is for the engines 'auto'"),
        ("ray", {}, 2, "`jobs` above 1 on Ray needs `workers`"),
        ("ray", {"stack": 0}, None, "`stack` must be a whole number of at least 1"),
        ("auto", {}, 0, "`jobs` must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_options_are_errors(three, engine, options, jobs, message):
    with pytest.raises(ValueError, match=message):
        find_resources(engine, options, jobs)


def test_the_size_of_stacks_needs_an_experiment_with_stacks(place, tmp_path):
    one = experiment(place, "quick", engine="local")
    with pytest.raises(ValueError, match="`stack` is for experiments with engine = 'auto'"):
        compare(one, out=tmp_path / "out", engine_options={"stack": 4}, progress=False)
    assert not (tmp_path / "out").exists()


def one_algorithm(reference, **fields):
    algorithms = {"A": {"name": "random-search", "population": 4}}
    usual = {"name": "one", "seeds": (0, 1), "workers": 4, "cost": 1.0, "algorithms": algorithms}
    return Experiment(tasks=(reference,), **usual | fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "masks", "assigned"),
    [
        ({}, {"4", "GPU-x"}, {""}),
        ({"devices": ["1"], "workers_per_device": 2}, {"GPU-x"}, {"cuda:0"}),
        ({"devices": ["0", "2"]}, {"4", "MIG-y"}, {"cuda:0"}),
        ({"devices": ["cpu"]}, {"-1"}, {"cpu"}),
        # A time limit needs a worker of its own, which inherits the device.
        ({"devices": ["1"], "timeout": 60}, {"GPU-x"}, {"cuda:0"}),
    ],
)
def test_each_process_sees_its_own_device(three, tmp_path, options, masks, assigned):
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(NOTES)
    one = one_algorithm(f"{file}:task")
    jobs = {} if "workers_per_device" in options else {"jobs": 2}
    done = compare(one, out=tmp_path / "out", engine_options=options, progress=False, **jobs)
    assert len(done.runs) == 2
    received = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    assert {own["CUDA_VISIBLE_DEVICES"] for own in received} <= masks
    assert {own["assigned"] for own in received} == assigned
    assert {own["MOPBT_DEVICE"] or "" for own in received} == assigned


@pytest.mark.slow
def test_a_comparison_trains_on_the_simulated_accelerator(tmp_path):
    try:
        simulated_device.load()
    except simulated_device.Unavailable as reason:
        pytest.skip(str(reason))
    file = tmp_path / "on_device.py"
    file.write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]\n"
        "from tests.torch.device_nets import normalized_task\n"
        "from tests.torch.nets import scores\n"
        "from pathlib import Path\n"
        "def noted(outputs, y):\n"
        "    (Path(__file__).parent / str(outputs.device)).touch()\n"
        "    return scores(outputs, y)\n"
        "task = normalized_task(device='auto', metrics=noted)\n"
    )
    one = one_algorithm(f"{file}:task", seeds=(0,), engine="vectorized")
    options = {"devices": ["sim:1"], "stack": 2}
    done = compare(one, out=tmp_path / "out", engine_options=options, progress=False)
    assert not done.failures
    assert len(done.runs) == 1
    assert (tmp_path / "sim:1").exists()
    assert not (tmp_path / "cpu").exists()


@pytest.mark.slow
def test_an_interval_that_hangs_does_not_stop_a_comparison(tmp_path):
    file = tmp_path / "hanging.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n"
        "from toys import HangingToy\n"
        f"task = HangingToy(left={str(tmp_path / 'left')!r}, steps=2)\n"
    )
    (tmp_path / "left").write_text("1")
    algorithms = {"A": {"name": "random-search", "population": 12}}
    one = one_algorithm(f"{file}:task", seeds=(0,), algorithms=algorithms)
    done = compare(one, out=tmp_path / "out", engine_options={"timeout": 5}, progress=False)
    assert (tmp_path / "left").read_text() == "0"
    assert not done.failures
    (run,) = one.plan()
    assert not Results.open(tmp_path / "out" / run.directory).failures


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::DeprecationWarning:ray.*")
def test_a_comparison_on_ray_gives_the_runs_of_one_on_this_machine(place, tmp_path):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    one = experiment(place, "quick")
    here = compare(one, out=tmp_path / "here", jobs=1, progress=False)
    small = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    try:
        options = {"address": cluster.address, "num_cpus": 1, "workers": 2}
        there = compare(
            one, out=tmp_path / "there", engine="ray", engine_options=options, progress=False
        )
    finally:
        cluster.shutdown()
    assert not there.failures
    assert len(there.runs) == len(here.runs) == 4
    for run in one.plan():
        own, expected = (Results.open(tmp_path / out / run.directory) for out in ("there", "here"))
        assert plain(own) == plain(expected)
