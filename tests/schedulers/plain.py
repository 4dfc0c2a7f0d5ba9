"""The schedulers without views: they read the whole table of trials at each decision."""

from dataclasses import dataclass, replace

import numpy as np

from mopbt.exploit import quantile_size, truncation
from mopbt.rng import stream
from mopbt.schedulers.asha import Asha
from mopbt.schedulers.base import next_intervals
from mopbt.schedulers.pbt import Pbt
from mopbt.state import updated, with_report
from mopbt.successive_halving import at_rung, places_to_promote, places_to_stay


def ready(state):
    return [t for t in state.trials if t.status == "ready"]


@dataclass(frozen=True)
class PlainPbt(Pbt):
    def ask(self, state, slots):
        members = ready(state)
        if len(state.trials) < self.population:
            members += self._new_members(state, slots)
        members.sort(key=lambda t: t.step)
        return next_intervals(state, members[: max(slots, 0)], self.problem)

    def tell(self, state, report):
        trial = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        if self.asynchronous:
            return self._decide(state, [state.trials[trial]])
        if state.outstanding or len(state.trials) < self.population or ready(state):
            return state
        return self._decide(state, [t for t in state.trials if t.status == "waiting"])

    def done(self, state):
        return len(state.trials) == self.population and all(
            t.status == "finished" for t in state.trials
        )

    def _choose_donors(self, state, deciding):
        members = [t for t in state.trials if t.status != "finished" and t.results]
        finite = [t for t in members if t.is_finite]
        failed = [t for t in members if not t.is_finite]
        if not deciding or not finite:
            return (), {}
        size = quantile_size(len(members), self.fraction)
        moment = (deciding[0].id, deciding[0].step) if self.asynchronous else (deciding[0].step,)
        order = self.rank(
            np.array([t.latest.objectives for t in finite]),
            np.array([t.latest.violation for t in finite]),
            stream(state.seed, "rank", *moment),
            (size, len(members) - size),
        )
        ranked = {t.id: t for t in [*(finite[i] for i in order), *failed]}
        replaced = truncation(
            list(ranked),
            lambda id: self._stream(state, "exploit", ranked[id]),
            fraction=self.fraction,
            failed={t.id for t in failed},
            deciding={t.id for t in deciding},
        )
        donors = sorted((finite[i] for i in order[:size]), key=lambda t: t.id)
        return donors, {loser: ranked[donor] for loser, donor in replaced.items()}


@dataclass(frozen=True)
class PlainAsha(Asha):
    def ask(self, state, slots):
        chosen = sorted(ready(state), key=lambda t: (-t.step, t.id))[: max(slots, 0)]
        if self.kind == "promotion" and len(chosen) < slots:
            chosen += self._promotable(state)[: slots - len(chosen)]
        if len(chosen) < slots:
            chosen += self._new_trials(state, slots - len(chosen))
        return next_intervals(state, chosen, self.problem)

    def tell(self, state, report):
        id = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        trial = state.trials[id]
        return updated(state, [replace(trial, status=self._next_status(state, trial))])

    def done(self, state):
        if self.trials is None or len(state.trials) < self.trials or state.outstanding:
            return False
        return not ready(state) and (self.kind == "stopping" or not self._promotable(state))

    def _next_status(self, state, trial):
        if not trial.is_finite:
            return "stopped"
        if trial.step >= self.problem.steps:
            return "finished"
        if trial.step not in self.rungs:
            return "ready"
        if self.kind == "promotion":
            return "waiting"
        return "ready" if trial.id in self._best(state, trial.step, places_to_stay) else "stopped"

    def _promotable(self, state):
        waiting = [t for t in state.trials if t.status == "waiting"]
        promotable = []
        for step in reversed(self.rungs):
            best = self._best(state, step, places_to_promote)
            promotable += [t for t in waiting if t.step == step and t.id in best]
        return promotable

    def _best(self, state, step, places):
        results = at_rung(state, step)
        ids = list(results)
        n = places(len(ids), self.eta)
        if n >= len(ids):
            return set(ids)
        order = self.rank(
            np.array([r.objectives for r in results.values()]),
            np.array([r.violation for r in results.values()]),
            stream(state.seed, "rank", step, len(ids)),
            (n,),
        )
        return {ids[row] for row in order[:n]}
