"""Settings for all tests, and the two lanes they run in.

`make test` is the fast lane: at most four minutes on two cores, six minutes of CPU time.
`make test-all` runs all tests, with more random examples, in at most 25 minutes.

- A test is marked slow if it takes more than about 1.2 seconds of CPU time, or if a faster test
  covers the same code: of the parameters of a test, often one of each kind is fast (`lanes.py`).
- A test that needs a Ray cluster, a browser or the simulated accelerator is slow, unless it is
  marked `fast`: one with a cluster and one with a browser is.
- A file whose imports alone take seconds is slow as a whole.
- The fast lane has at least a test of every module, every algorithm, every engine, Lightning, the
  commands of the README and 100 kills, some of which take longer. It tries fewer random examples.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
SLOW_FIXTURES = {"accelerator", "cluster", "local_ray", "open_view"}
# Not even imported in the fast lane.
SLOW_FILES = {
    "integrations/test_lightning.py",
    "integrations/test_ray_tune.py",
    "integrations/test_transformers.py",
    "test_examples.py",
    "test_published.py",
    # They compile and register the simulated accelerator.
    "torch/test_accelerator.py",
    "torch/test_memory_on_accelerator.py",
    "torch/test_misplacement.py",
    "torch/test_paper_on_accelerator.py",
}
# The longest files start first, so that no process works alone at the end.
FIRST = (
    *("compare/test_plan.py", "integrations/test_ray_tune.py", "engines/test_ray.py", "attack/"),
    *("proposals/test_botorch.py", "test_examples.py", "crash/", "test_docs.py", "test_cli.py"),
    *("compare/", "test_published.py", "engines/", "golden/", "integrations/", "html/"),
)

# A shell starts background jobs with Ctrl-C ignored; programs that tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Keep compiled modules, even where PYTHONDONTWRITEBYTECODE is set: tests start many programs, and
# each of them would compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Small networks train fastest on one thread: more of them only get in each other's way.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

# A busy machine must not fail a test. The fast lane tries fewer examples.
settings.register_profile("fast", deadline=None, max_examples=20)
settings.register_profile("all", deadline=None)


def is_fast_lane(config):
    return config.option.markexpr == "not slow"


def pytest_configure(config):
    settings.load_profile("fast" if is_fast_lane(config) else "all")


def is_slow_file(path):
    return path.relative_to(TESTS).as_posix() in SLOW_FILES


def pytest_ignore_collect(collection_path, config):
    """Skip files that have no fast test where only fast ones were asked for."""
    return True if is_fast_lane(config) and is_slow_file(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what needs something large as slow, and put the longest files first."""
    for item in items:
        needs_much = SLOW_FIXTURES & set(item.fixturenames) or is_slow_file(item.path)
        if needs_much and item.get_closest_marker("fast") is None:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: place_of(item.path.relative_to(TESTS).as_posix()))


def place_of(file):
    """Return the place of a file in the order of execution."""
    return next((i for i, start in enumerate(FIRST) if file.startswith(start)), len(FIRST))


@pytest.fixture
def one_thread():
    """Train small networks on one thread: more of them only get in each other's way."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
