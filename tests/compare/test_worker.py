"""The worker processes of a comparison, and the pool that supervises them."""

import os
import signal
import sys

import pytest

from compare.helpers import experiment, task
from lanes import slow_except
from mopbt.compare import Experiment
from mopbt.compare.execute import WorkerPool
from mopbt.compare.resources import Resources
from mopbt.errors import CannotStack, TaskFailed
from mopbt.registry import task_fingerprint
from mopbt.run_config import RunConfig


@pytest.fixture
def pool():
    with WorkerPool(Resources(1)) as pool:
        yield pool


def options(place, name):
    return {"task": task(place, name), "cost": "measured", "engine": "local", "stack": 1}


def test_the_death_of_a_process_is_reported_and_the_next_one_works(place, pool, tmp_path):
    (tmp_path / "problems.py").write_text(
        "import os\n"
        "from mopbt.tasks.toy import ToyTask\n"
        "class Exits(ToyTask):\n"
        "    def train(self, model, hp, begin, end, seed):\n"
        "        os._exit(7)\n"
    )
    with pytest.raises(TaskFailed, match=r"Exits cannot be measured: its process died .*code 7"):
        pool.measure(**options(tmp_path, "Exits"))
    assert pool.measure(**options(place, "quick"))["cost"] >= 1e-4


def test_an_idle_process_is_used_again(place, pool):
    for _ in range(3):
        assert pool.measure(**options(place, "quick"))["engine"] == "local"
    assert len(pool._idle) == 1


def test_closing_the_pool_ends_all_processes(place):
    with WorkerPool(Resources(1)) as pool:
        pool.measure(**options(place, "quick"))
        (worker,) = pool._idle
    assert worker.popen.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(worker.popen.pid, 0)


CHECKS = {
    "raise ValueError('wrong')": (ValueError, r"^wrong$"),
    "raise mopbt.errors.CannotStack('wrong')": (CannotStack, r"^wrong$"),
    "raise KeyError('wrong')": (TaskFailed, r"Mine cannot be loaded: KeyError: 'wrong' \(only_in"),
    "os._exit(7)": (TaskFailed, r"Mine cannot be loaded: its process died \(exit code 7\)"),
}


@pytest.mark.parametrize("code", slow_except(["os._exit(7)"], CHECKS))
def test_an_error_of_a_task_is_raised_before_any_run(pool, tmp_path, code):
    """The task is loaded in a worker, so that its code cannot end this process."""
    (tmp_path / "only_in_worker.py").write_text(
        "import os, mopbt\n"
        "from mopbt.tasks.toy import ToyTask\n"
        "class Mine(ToyTask):\n"
        "    def check(self):\n"
        f"        {code}\n"
    )
    reference = f"{tmp_path / 'only_in_worker.py'}:Mine"
    one = Experiment(name="one", tasks=(reference,), algorithms={"A": {"name": "mo-pbt"}})
    kind, message = CHECKS[code]
    with pytest.raises(kind, match=message):
        pool.prepare(one, reference, None)
    assert "only_in_worker" not in sys.modules


def test_a_prepared_task_has_the_settings_of_its_runs(place, pool):
    algorithms = {
        "A": {"name": "mo-pbt", "population": 4, "constraints": ["near >= 0"]},
        "B": {"name": "mo-asha"},
    }
    one = experiment(place, "quick", time_of="A", algorithms=algorithms)
    prepared = pool.prepare(one, one.tasks[0], None)
    settings = RunConfig.from_toml(prepared["algorithms"]["A"]["settings"], place)
    assert str(settings.problem.constraints[0]) == "near >= 0"
    assert settings.algorithm["population"] == 4
    assert settings.task_fingerprint == task_fingerprint(one.tasks[0])
    assert prepared["algorithms"]["A"]["max_parallel"] == 4
    needs_budget = {label: own["needs_budget"] for label, own in prepared["algorithms"].items()}
    assert needs_budget == {"A": False, "B": True}
    assert not prepared["may_stack"]
