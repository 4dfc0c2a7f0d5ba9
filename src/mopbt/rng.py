"""Randomness that is named, not stepped: every decision has a generator of its own."""

import hashlib
import json

from numpy.random import PCG64, Generator, SeedSequence


def _digest(seed: int, decision: tuple[str | int, ...]) -> int:
    name = json.dumps([seed, *decision], separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big")


def stream(seed: int, *decision: str | int) -> Generator:
    """Return the generator of one named decision, such as ``stream(0, "explore", trial, step)``.

    >>> float(stream(0, "explore", 3, 10).random()) == float(stream(0, "explore", 3, 10).random())
    True
    """
    return Generator(PCG64(SeedSequence(_digest(seed, decision))))


def derived_seed(seed: int, *decision: str | int) -> int:
    """Return the seed in [0, 2**32) of one named decision, for code that wants a number and not a generator."""
    return _digest(seed, decision) % 2**32
