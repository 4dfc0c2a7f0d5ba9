"""Run all tests of this folder on one thread, some of them on a simulated accelerator."""

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Request the shared fixture for every test."""


@pytest.fixture
def accelerator():
    """Return the device "sim:0", on which misplaced tensors raise an error."""
    import simulated_device
    from mopbt.engines import seeding

    seeding._accelerator.cache_clear()
    with simulated_device.enabled() as device:
        yield device
    seeding._accelerator.cache_clear()
