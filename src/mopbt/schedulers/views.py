"""What schedulers read from the table of trials, kept up to date with it.

Each view follows from the trials alone. A decision then costs what changed since the last one,
whatever the number of trials.
"""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mopbt.ranking import Cuts, Rank
from mopbt.standings import ResultOrder, standings_of
from mopbt.state import Result, State, Status, Trial
from mopbt.table import Change

Ids = NDArray[np.intp]

_CODES = {status: code for code, status in enumerate(get_args(Status))}
_MISSING = -1


class Statuses:
    """The status and the step of each trial."""

    def __init__(self) -> None:
        self._codes = np.empty(0, dtype=np.int8)
        self._steps = np.empty(0, dtype=np.int64)

    def update(self, changes: Sequence[Change[Trial]]) -> None:
        """Apply changed trials."""
        size = len(self._codes)
        highest = max((id for id, _ in changes), default=-1)
        if highest >= size:
            more = max(highest + 1 - size, size, 16)
            self._codes = np.concatenate([self._codes, np.full(more, _MISSING, dtype=np.int8)])
            self._steps = np.concatenate([self._steps, np.zeros(more, dtype=np.int64)])
        for id, trial in changes:
            self._codes[id] = _MISSING if trial is None else _CODES[trial.status]
            self._steps[id] = 0 if trial is None else trial.step

    def count(self, status: Status) -> int:
        """Return how many trials have a status."""
        return int(np.count_nonzero(self._codes == _CODES[status]))

    def ids(self, status: Status) -> Ids:
        """Return the ids of all trials with a status, ascending."""
        return np.flatnonzero(self._codes == _CODES[status])

    def waiting_at(self, step: int) -> Ids:
        """Return the ids of the trials that wait at a step, ascending."""
        is_waiting = self._codes == _CODES["waiting"]
        return np.flatnonzero(is_waiting & (self._steps == step))

    def ready(self, n: int, *, most_steps_first: bool = False) -> list[int]:
        """Return the first `n` ready trials by step, and by id where steps are equal."""
        ids = self.ids("ready")
        if n <= 0 or not len(ids):
            return []
        steps = -self._steps[ids] if most_steps_first else self._steps[ids]
        if n < len(ids):
            last = np.partition(steps, n - 1)[n - 1] if n > 1 else steps.min()
            before = np.flatnonzero(steps < last)
            chosen = np.concatenate([before, np.flatnonzero(steps == last)[: n - len(before)]])
            ids = ids[chosen]
            steps = steps[chosen]
        # The sort is stable, and ids of equal steps ascend.
        found: list[int] = ids[np.argsort(steps, kind="stable")].tolist()
        return found


class Ranking:
    """The order of one result of each trial.

    Args:
        rank: How results are compared.
        result_of: Which result of a trial is compared; None if it has none.
    """

    def __init__(self, rank: Rank, result_of: Callable[[Trial], Result | None]) -> None:
        self._standings = standings_of(rank)
        self._result_of = result_of

    def update(self, changes: Sequence[Change[Trial]]) -> None:
        """Apply changed trials."""
        self._standings.update(
            [(id, None if trial is None else self._result_of(trial)) for id, trial in changes]
        )

    @property
    def finite(self) -> int:
        """Return the number of finite results."""
        return len(self._standings)

    @property
    def failed(self) -> int:
        """Return the number of results that are not finite."""
        return self._standings.failed

    def order(self, cuts: Cuts, generator: Callable[[], Generator]) -> ResultOrder:
        """Return the order of the finite results, by trial id."""
        return self._standings.order(cuts, generator)


def statuses(state: State) -> Statuses:
    """Return the statuses of the trials of a state."""
    return state.trials.view("statuses", Statuses)


def population_ranking(state: State, rank: Rank) -> Ranking:
    """Return the ranking of the newest results of all trials that are not finished."""
    return state.trials.view(("population", rank), lambda: Ranking(rank, _newest))


def rung_ranking(state: State, rank: Rank, step: int) -> Ranking:
    """Return the ranking of the results at a rung."""
    return state.trials.view(
        ("rung", step, rank), lambda: Ranking(rank, lambda trial: trial.results.get(step))
    )


def _newest(trial: Trial) -> Result | None:
    return None if trial.status == "finished" else trial.latest
