"""Run all tests of this folder on one thread."""

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Request the shared fixture for every test."""
