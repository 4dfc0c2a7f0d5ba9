"""Settings of the golden tests."""

import os

import pytest


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    """Leave out what makes files durable: it takes most of the time and changes no result."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
