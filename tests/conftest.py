"""Settings for all tests."""

from hypothesis import settings

settings.register_profile("mopbt", deadline=None)  # a busy machine is no failure
settings.load_profile("mopbt")
