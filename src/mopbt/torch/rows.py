"""Choose which rows a model is measured on."""

from torch import Tensor, from_numpy, zeros
from torch import bool as bool_

from mopbt.rng import stream

Rows = tuple[Tensor, ...]


def split_holdout(validation: Rows, holdout: float | Rows | None) -> tuple[Rows, Rows | None]:
    """Return the validation rows that guide the search, and those that do not.

    A share is drawn from the validation rows once, the same for every run and member.
    """
    if not isinstance(holdout, float):
        return validation, holdout
    n = len(validation[0])
    held = from_numpy(stream(0, "holdout", n).permutation(n)[: held_rows(n, holdout)])
    is_held = zeros(n, dtype=bool_)
    is_held[held] = True
    kept = tuple(t[(~is_held).to(t.device)] for t in validation)
    return kept, tuple(t[is_held.to(t.device)] for t in validation)


def held_rows(n: int, share: float) -> int:
    """Return how many of n rows a share reserves."""
    return round(share * n)
