"""Random generators by name: each decision has its own.

No generator state is shared or saved, so results do not depend on the order of decisions.
"""

import hashlib
import json

from numpy.random import PCG64, Generator, SeedSequence


def _digest(seed: int, decision: tuple[str | int, ...]) -> int:
    name = json.dumps([seed, *decision], separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big")


def stream(seed: int, *decision: str | int) -> Generator:
    """Create the generator of one decision: ``stream(0, "explore", trial, step)``.

    >>> float(stream(0, "explore", 3, 10).random()) == float(stream(0, "explore", 3, 10).random())
    True
    """
    return Generator(PCG64(SeedSequence(_digest(seed, decision))))


def derived_seed(seed: int, *decision: str | int) -> int:
    """Return the seed of one decision in [0, 2**32), for code that needs an integer."""
    return _digest(seed, decision) % 2**32
