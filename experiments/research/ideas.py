"""Ideas that were tried for the recommended algorithm and are no options of MO-PBT.

Each is a scheduler that changes one decision of `Pbt`. A variant of `better.toml` names it as its
`idea`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from mopbt.algorithms import MOPBT
from mopbt.exploit import draw_donor
from mopbt.problem import Problem
from mopbt.proposals.base import Trials
from mopbt.proposals.tpe import Tpe, good_rows
from mopbt.rng import stream
from mopbt.schedulers.pbt import Pbt
from mopbt.state import State, Trial, updated


@dataclass(frozen=True)
class Agreement(Pbt):
    """Exploit only where two successive evaluations agree.

    A member is replaced if it was among the worst both times, by one that was among the best both
    times. Where evaluations contradict each other, members thus train longer between decisions.
    """

    def _exploit_within(self, state, members, deciding):
        donors, replaced = super()._exploit_within(state, members, deciding)
        before = [_before(trial) for trial in members if len(trial.results) > 1]
        old_donors, old_replaced = super()._exploit_within(state, before, deciding)
        lasting = {trial.id for trial in old_donors}
        own = {trial.id: trial for trial in donors if trial.id in lasting}
        if not own:
            return donors, {}
        ids = list(own)
        return donors, {
            loser: own[draw_donor(ids, self._stream(state, "exploit", state.trials[loser]))]
            for loser in replaced
            if loser in old_replaced
        }


def _before(trial: Trial) -> Trial:
    """Return a trial as it was before its latest result."""
    *earlier, _ = trial.results.items()
    return replace(trial, results=dict(earlier))


@dataclass(frozen=True)
class WideStart(Pbt):
    """Start with more members, and stop the worst ones after a part of the training.

    In the intervals of 32 members, 56 members train for the first fifth and 26 for the rest, or 96
    for the first tenth and 24 for the rest.
    """

    @property
    def total_jobs(self):
        """Return None: members stop at different steps."""
        return None

    def _decide(self, state: State, deciding: Sequence[Trial]) -> State:
        part, kept = {56: (5, 26), 96: (10, 24)}[self.population]
        cut = self.problem.steps // part
        if not deciding or deciding[0].step != cut:
            return super()._decide(state, deciding)
        order = self.rank(
            np.array([trial.latest.objectives for trial in deciding]),
            np.zeros(len(deciding)),
            stream(state.seed, "wide start"),
            (kept,),
        )
        best = {deciding[i].id for i in order[:kept]}
        stopped = [replace(t, status="finished") for t in deciding if t.id not in best]
        state = updated(state, stopped)
        return super()._decide(state, [t for t in deciding if t.id in best])


@dataclass(frozen=True)
class PaidMoves(Pbt):
    """Explore where members did well lately.

    Of 16 configurations that explore proposes, the one is taken that is likeliest among the best
    quarter of the last five generations, relative to the other three quarters (as in TPE).
    """

    def _successor(self, state, trial, donor, donors):
        successor = super()._successor(state, trial, donor, donors)
        if donor is None:
            return successor
        pairs = self._densities(state, trial.step)
        if pairs is None:
            return successor
        rng = self._stream(state, "paid moves", trial)
        explore = self._explore_at(trial.step)
        configs = [explore(self.problem.space, donor.config, rng) for _ in range(16)]
        gain = np.zeros(len(configs))
        for d, (good, bad) in enumerate(pairs):
            positions = [config[d] for config in configs]
            gain += np.log(good.density(positions)) - np.log(bad.density(positions))
        return replace(successor, config=configs[int(np.argmax(gain))])

    def _densities(self, state: State, step: int):
        since = step - 5 * self.problem.interval
        results = [r for t in state.trials for s, r in t.results.items() if s > since]
        trials = Trials(tuple(r.config for r in results), tuple(results))
        tpe = Tpe(gamma=0.25, ordered=True)
        if not tpe.can_fit(self.problem.space, trials) or not good_rows(trials, 0.25):
            return None
        return tpe._fit(self.problem.space, trials)


IDEAS = {"agreement": Agreement, "wide start": WideStart, "paid moves": PaidMoves}


class Idea(MOPBT):
    """MO-PBT with the decisions of an idea."""

    def __init__(self, idea: str, **options):
        super().__init__(**options)
        object.__setattr__(self, "idea", idea)

    def scheduler(self, problem: Problem) -> Pbt:
        """Build the scheduler."""
        plain = super().scheduler(problem)
        return IDEAS[self.idea](**{f.name: getattr(plain, f.name) for f in fields(Pbt)})
