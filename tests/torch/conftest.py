"""Every test of this folder trains on one thread."""

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Take the fixture that other tests ask for by name."""
