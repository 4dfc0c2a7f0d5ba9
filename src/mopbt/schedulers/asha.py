"""Asynchronous successive halving: many trials start, and at each rung the best of them go on (MO-ASHA, BO-MO-ASHA)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mopbt.problem import Problem
from mopbt.proposals.base import History, Propose
from mopbt.ranking import Rank
from mopbt.rng import stream
from mopbt.schedulers.base import next_intervals
from mopbt.space import Config
from mopbt.state import Job, Report, State, Status, Trial, updated, with_report
from mopbt.successive_halving import (
    ETA,
    at_rung,
    best_of,
    places_to_promote,
    places_to_stay,
    rung_steps,
)

AshaKind = Literal["stopping", "promotion"]


@dataclass(frozen=True)
class Asha:
    """Successive halving with any ranking.

    Stopping: who arrives at a rung and is not among its best so far stops there, for good. Promotion: everybody waits at a rung,
    and the best that wait go on when there is room. Free slots serve trials under way first, the deepest before the others.
    """

    problem: Problem
    rank: Rank
    propose: Propose
    kind: AshaKind = "stopping"
    eta: int = ETA
    grace: int = 1  # intervals before the first rung
    trials: int | None = None  # how many to start; None: as many as the budget lets
    enough: int | None = (
        None  # results at a rung from which proposals can learn; None: they learn from nothing
    )

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return the steps at which trials are compared."""
        return rung_steps(self.problem.interval, self.problem.steps, grace=self.grace, eta=self.eta)

    @property
    def total_jobs(self) -> int | None:
        """Return None: how long trials last depends on what they measure."""
        return None

    @property
    def needs_budget(self) -> bool:
        """Tell whether only a budget ends it."""
        return self.trials is None

    @property
    def decides_together(self) -> bool:
        """Return whether all trials of a generation are decided together."""
        return False

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Order intervals: first of the trials under way, then of those that are promoted, then of new ones."""
        under_way = sorted(
            (t for t in state.trials if t.status == "ready"), key=lambda t: (-t.step, t.id)
        )
        chosen = under_way[: max(slots, 0)]
        if self.kind == "promotion" and len(chosen) < slots:
            chosen += self._promoted(state, slots - len(chosen))
        if len(chosen) < slots:
            chosen += self._newcomers(state, slots - len(chosen))
        return next_intervals(state, chosen, self.problem)

    def tell(self, state: State, report: Report) -> State:
        """Enter a report; at a rung, decide."""
        id = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        return updated(
            state, [replace(state.trials[id], status=self._next(state, state.trials[id]))]
        )

    def done(self, state: State) -> bool:
        """Tell whether all trials have started and nobody can go on."""
        if self.trials is None or len(state.trials) < self.trials or state.outstanding:
            return False
        going_on = any(t.status == "ready" for t in state.trials)
        return not going_on and not (self.kind == "promotion" and self._promoted(state, 1))

    def _next(self, state: State, trial: Trial) -> Status:
        if not trial.is_finite:
            return "stopped"
        if trial.step >= self.problem.steps:
            return "finished"
        if trial.step not in self.rungs:
            return "ready"
        if self.kind == "promotion":
            return "waiting"
        return "ready" if trial.id in self._best(state, trial.step, places_to_stay) else "stopped"

    def _best(self, state: State, step: int, places: Callable[[int, int], int]) -> set[int]:
        results = at_rung(state, step)
        ids, rng = list(results), stream(state.seed, "rank", step, len(results))
        return {
            ids[row]
            for row in best_of(list(results.values()), places(len(ids), self.eta), self.rank, rng)
        }

    def _promoted(self, state: State, most: int) -> list[Trial]:
        """Return trials that wait at a rung and are among its best, the highest rung first."""
        waiting = [t for t in state.trials if t.status == "waiting"]
        promoted: list[Trial] = []
        for step in reversed(self.rungs):
            here = [t for t in waiting if t.step == step]
            best = self._best(state, step, places_to_promote) if here else set()
            promoted += [t for t in here if t.id in best]
        return promoted[:most]

    def _newcomers(self, state: State, most: int) -> list[Trial]:
        n = len(state.trials)
        most = most if self.trials is None else min(most, self.trials - n)
        history = self._history(state) if most > 0 else History()
        return [Trial(id, self._proposed(state, history, id)) for id in range(n, n + most)]

    def _proposed(self, state: State, history: History, id: int) -> Config:
        return self.propose(self.problem.space, history, 1, stream(state.seed, "population", id))[0]

    def _history(self, state: State) -> History:
        """Return what is known at the highest rung that has enough results, or nothing."""
        if self.enough is None:
            return History()
        for step in reversed(self.rungs):
            results = at_rung(state, step)
            if len(results) >= self.enough:
                return History(
                    tuple(state.trials[id].config for id in results), tuple(results.values())
                )
        return History()
