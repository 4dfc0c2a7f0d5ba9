"""Choose which rows a model is measured on."""

from dataclasses import dataclass

from torch import Tensor, from_numpy, zeros
from torch import bool as bool_

from mopbt.objectives import FOLD, FRESH
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


@dataclass(frozen=True)
class Parts:
    """The parts of the rows on which a model is measured in addition to all of them.

    Attributes:
        fresh_share: The share of the rows that is drawn for each interval, or None.
        folds: The number of disjoint parts of equal size, or None.
    """

    fresh_share: float | None = None
    folds: int | None = None

    def of(self, n: int, updates: int) -> dict[str, Tensor]:
        """Return the rows of each part by the prefix of its metrics.

        All members of a generation have the same number of updates, and so the same rows.
        """
        parts = {}
        if self.fresh_share is not None:
            drawn = stream(0, "fresh rows", updates).permutation(n)
            parts[FRESH] = from_numpy(drawn[: held_rows(n, self.fresh_share)])
        if self.folds is not None:
            order = stream(0, "folds", n).permutation(n)
            for i in range(self.folds):
                parts[f"{FOLD}{i}/"] = from_numpy(order[i :: self.folds].copy())
        return parts


NO_PARTS = Parts()
