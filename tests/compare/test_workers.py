"""Worker processes of a comparison."""

import os
import signal

import pytest

from compare.helpers import task
from mopbt.compare.workers import WorkerPool


@pytest.fixture
def pool():
    with WorkerPool() as pool:
        yield pool


def options(place, name):
    return {"task": task(place, name), "cost": "measured", "engine": "local", "stack": 1}


def test_the_death_of_a_process_is_reported_and_the_next_one_works(place, pool, tmp_path):
    (tmp_path / "problems.py").write_text(
        "import os\n"
        "from mopbt.testing import ToyTask\n"
        "class Exits(ToyTask):\n"
        "    def train(self, model, hp, begin, end, seed):\n"
        "        os._exit(7)\n"
    )
    died = pool.measure(**options(tmp_path, "Exits"))
    assert died == {"failed": "its process died (exit code 7)"}
    assert pool.measure(**options(place, "quick"))["measured"]["cost"] >= 1e-4


def test_an_idle_process_is_used_again(place, pool):
    for _ in range(3):
        assert "measured" in pool.measure(**options(place, "quick"))
    assert len(pool._idle) == 1


def test_closing_the_pool_ends_all_processes(place):
    with WorkerPool() as pool:
        pool.measure(**options(place, "quick"))
        (worker,) = pool._idle
    assert worker.popen.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(worker.popen.pid, 0)
