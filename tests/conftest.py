"""Settings for all tests."""

import pytest
from hypothesis import settings

settings.register_profile("mopbt", deadline=None)  # a busy machine is no failure
settings.load_profile("mopbt")


@pytest.fixture
def one_thread():
    """Train small networks on one thread: more of them only get in each other's way."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
