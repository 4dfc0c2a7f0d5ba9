"""Settings for all tests, and the two lanes they run in.

`make test` is the fast lane: everything but tests that are marked slow, in about two minutes.
`make test-all` runs both lanes. A test is slow if it takes more than about 1.5 seconds, or if it
needs a Ray cluster, a browser or BoTorch's models; of each of these, one test marked `fast` stays
in the fast lane.
"""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
SLOW_FIXTURES = {"cluster", "local_ray", "open_view"}
SLOW_FILES = {"test_examples.py", "test_published.py"}  # not even imported in the fast lane
FIRST = ("compare", "proposals", "ray", "cli", "docs", "examples")  # the longest files start first

# A shell starts background jobs with Ctrl-C ignored; programs that tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("mopbt", deadline=None)  # a busy machine must not fail a test
settings.load_profile("mopbt")


def pytest_ignore_collect(collection_path, config):
    """Skip files that have no fast test where only fast ones were asked for."""
    name = collection_path.relative_to(TESTS).as_posix()
    return True if config.option.markexpr == "not slow" and name in SLOW_FILES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what needs something large as slow, and put the longest files first."""
    for item in items:
        needs_much = SLOW_FIXTURES & set(item.fixturenames) or item.path.name in SLOW_FILES
        if needs_much and item.get_closest_marker("fast") is None:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not any(word in item.nodeid.partition("::")[0] for word in FIRST))


@pytest.fixture
def one_thread():
    """Train small networks on one thread: more of them only get in each other's way."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
