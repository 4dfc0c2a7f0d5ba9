"""Asynchronous successive halving (MO-ASHA, BO-MO-ASHA).

Many trials start, and only the best of them continue at each rung.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mopbt.problem import Problem
from mopbt.proposals.base import Propose, Trials
from mopbt.ranking import Rank
from mopbt.rng import stream
from mopbt.schedulers.base import check_initial, next_intervals, start_with_given
from mopbt.schedulers.views import rung_ranking, statuses
from mopbt.standings import ResultOrder
from mopbt.state import Job, Report, State, Status, Trial, updated, with_report
from mopbt.successive_halving import (
    ETA,
    at_rung,
    places_to_promote,
    places_to_stay,
    rung_steps,
)

AshaKind = Literal["stopping", "promotion"]


@dataclass(frozen=True)
class Asha:
    """Run successive halving with any ranking.

    Stopping: a trial that reaches a rung and is not among the best so far stops for good.
    Promotion: every trial waits at a rung, and the best of them continue when a slot is free.
    Free slots serve running trials first, those with the most steps before the others.

    Args:
        problem: The problem to solve.
        rank: How results at a rung are compared.
        propose: Where new configurations come from.
        kind: Stopping or promotion.
        eta: One of `eta` trials continues at each rung.
        grace: The number of intervals before the first rung.
        trials: How many trials to start; None: as many as the budget allows.
        min_results: How many results a rung needs before proposals learn from it; None: they learn
            from no results.
    """

    problem: Problem
    rank: Rank
    propose: Propose
    kind: AshaKind = "stopping"
    eta: int = ETA
    grace: int = 1
    trials: int | None = None
    min_results: int | None = None

    def __post_init__(self) -> None:
        check_initial(self.problem, self.trials)

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return the steps at which trials are compared."""
        return rung_steps(self.problem.interval, self.problem.steps, grace=self.grace, eta=self.eta)

    @property
    def total_jobs(self) -> int | None:
        """Return None: the length of a trial depends on its metrics."""
        return None

    @property
    def needs_budget(self) -> bool:
        """Return whether only a budget ends a run."""
        return self.trials is None

    @property
    def decides_together(self) -> bool:
        """Return whether all trials of a generation are decided together."""
        return False

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Order intervals of running trials, then of promoted ones, then of new ones."""
        ready = statuses(state).ready(slots, most_steps_first=True)
        chosen = [state.trials[id] for id in ready]
        if self.kind == "promotion" and len(chosen) < slots:
            chosen += self._promotable(state)[: slots - len(chosen)]
        if len(chosen) < slots:
            chosen += self._new_trials(state, slots - len(chosen))
        return next_intervals(state, chosen, self.problem)

    def tell(self, state: State, report: Report) -> State:
        """Record a report and decide whether its trial continues."""
        id = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        trial = state.trials[id]
        return updated(state, [replace(trial, status=self._next_status(state, trial))])

    def done(self, state: State) -> bool:
        """Return whether all trials have started and none can continue."""
        if self.trials is None or len(state.trials) < self.trials or state.outstanding:
            return False
        if statuses(state).count("ready"):
            return False
        return self.kind == "stopping" or not self._promotable(state)

    def _next_status(self, state: State, trial: Trial) -> Status:
        if not trial.is_finite:
            return "stopped"
        if trial.step >= self.problem.steps:
            return "finished"
        if trial.step not in self.rungs:
            return "ready"
        if self.kind == "promotion":
            return "waiting"
        order, n = self._order(state, trial.step, places_to_stay)
        return "ready" if order.precedes(trial.id, n) else "stopped"

    def _order(
        self, state: State, step: int, places: Callable[[int, int], int]
    ) -> tuple[ResultOrder, int]:
        """Return the order at a rung, and how many of its first places are the best."""
        # Failed trials are not compared.
        ranking = rung_ranking(state, self.rank, step)
        n = places(ranking.finite, self.eta)
        order = ranking.order((n,), lambda: stream(state.seed, "rank", step, ranking.finite))
        return order, n

    def _promotable(self, state: State) -> list[Trial]:
        """Return waiting trials that are among the best of their rung, highest first."""
        promotable: list[Trial] = []
        for step in reversed(self.rungs):
            waiting = statuses(state).waiting_at(step)
            if len(waiting):
                order, n = self._order(state, step, places_to_promote)
                is_best = np.zeros(len(state.trials), dtype=bool)
                is_best[order.first(n)] = True
                promotable += [state.trials[id] for id in waiting[is_best[waiting]].tolist()]
        return promotable

    def _new_trials(self, state: State, slots: int) -> list[Trial]:
        n = len(state.trials)
        count = slots if self.trials is None else min(slots, self.trials - n)
        if count <= 0:
            return []
        known = self._known_trials(state)
        trials = []
        for id in range(n, n + count):
            rng = stream(state.seed, "population", id)
            proposed = tuple(self.propose(self.problem.space, known, 1, rng))
            (config,) = start_with_given(self.problem, id, proposed)
            trials.append(Trial(id, config))
        return trials

    def _known_trials(self, state: State) -> Trials:
        """Return the trials of the highest rung with enough results, if there is one."""
        if self.min_results is None:
            return Trials()
        for step in reversed(self.rungs):
            results = at_rung(state, step)
            if len(results) >= self.min_results:
                configs = tuple(state.trials[id].config for id in results)
                return Trials(configs, tuple(results.values()))
        return Trials()
