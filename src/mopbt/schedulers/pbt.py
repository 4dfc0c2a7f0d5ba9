"""Population based training: a population trains side by side; the worst take over from the best (Algorithm 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.random import Generator

from mopbt.exploit import quantile_size, truncation
from mopbt.explore import Explore
from mopbt.problem import Problem
from mopbt.proposals.base import History
from mopbt.proposals.uniform import Stratified, Uniform
from mopbt.ranking import Rank
from mopbt.rng import stream
from mopbt.schedulers.base import next_intervals
from mopbt.space import Config
from mopbt.state import Job, Report, State, Trial, updated, with_report


@dataclass(frozen=True)
class Pbt:
    """Population based training with any ranking.

    Synchronous: the whole population reports, then the bottom `fraction` takes over from the top one. Asynchronous: each member
    decides when it reports, ranked among the latest results of all.
    """

    problem: Problem
    rank: Rank
    explore: Explore
    population: int = 32
    fraction: float = 0.25
    asynchronous: bool = False
    inherit_step: bool = (
        False  # an exploiting member goes on at its donor's step if that is ahead; else at its own
    )
    start: Literal["stratified", "iid"] = "stratified"

    @property
    def total_jobs(self) -> int | None:
        """Return how many jobs a whole run has."""
        return (
            None
            if self.inherit_step
            else self.population * self.problem.steps // self.problem.interval
        )

    @property
    def needs_budget(self) -> bool:
        """Return False: a population is trained to its end."""
        return False

    @property
    def decides_together(self) -> bool:
        """Return whether all trials of a generation are decided together."""
        return not self.asynchronous

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Order intervals of the members that are ready, lowest step first, so that none starves."""
        ready = [t for t in state.trials if t.status == "ready"]
        if len(state.trials) < self.population:
            ready += self._newcomers(state, slots)
        ready.sort(key=attrgetter("step"))  # stable, so of those at the same step the first
        return next_intervals(state, ready[: max(slots, 0)], self.problem)

    def tell(self, state: State, report: Report) -> State:
        """Enter a report; exploit and explore when it is time."""
        trial = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        if self.asynchronous:
            return self._decide(state, [state.trials[trial]])
        if state.outstanding or len(state.trials) < self.population:  # first, as this is cheap
            return state
        waiting = [t for t in state.trials if t.status == "waiting"]
        return state if self._ready(state) else self._decide(state, waiting)

    def done(self, state: State) -> bool:
        """Tell whether all members are fully trained."""
        return len(state.trials) == self.population and all(
            t.status == "finished" for t in state.trials
        )

    @staticmethod
    def _ready(state: State) -> bool:
        return any(t.status == "ready" for t in state.trials)

    def _newcomers(self, state: State, most: int) -> list[Trial]:
        configs = initial_configs(self.problem, self.population, state.seed, self.start)
        n = len(state.trials)
        return [Trial(i, config) for i, config in enumerate(configs[n : n + most], n)]

    def _decide(self, state: State, deciding: Sequence[Trial]) -> State:
        """Let the deciding members go on, take over from a donor, or finish."""
        over = [t for t in deciding if t.step >= self.problem.steps]
        deciding = [t for t in deciding if t.step < self.problem.steps]
        donors = self._donors(state, deciding)
        after = [replace(t, status="finished") for t in over]
        after += [self._successor(state, t, donors.get(t.id)) for t in deciding]
        return updated(state, after)

    def _donors(self, state: State, deciding: Sequence[Trial]) -> dict[int, Trial]:
        """Return the donor of each deciding member that is to be replaced."""
        if not deciding:
            return {}
        live = [
            (t, latest)
            for t in state.trials
            if t.status != "finished" and (latest := t.latest) is not None
        ]
        sound, failed = (
            [(t, r) for t, r in live if r.is_finite],
            [t for t, r in live if not r.is_finite],
        )
        if not sound:
            return {}
        moment = (deciding[0].id, deciding[0].step) if self.asynchronous else (deciding[0].step,)
        size = quantile_size(len(live), self.fraction)
        order = self.rank(
            np.array([r.objectives for _, r in sound]),
            np.array([r.violation for _, r in sound]),
            stream(state.seed, "rank", *moment),
            (size, len(live) - size),
        )
        ranked = {
            t.id: t for t in [*(sound[i][0] for i in order), *failed]
        }  # who failed is worse than all others
        replaced = truncation(
            list(ranked),
            lambda id: self._stream(state, "exploit", ranked[id]),
            fraction=self.fraction,
            failed={t.id for t in failed},
            deciding={t.id for t in deciding},
        )
        return {loser: ranked[donor] for loser, donor in replaced.items()}

    def _successor(self, state: State, trial: Trial, donor: Trial | None) -> Trial:
        if donor is None and trial.is_finite:
            return replace(trial, status="ready")
        source = (
            donor or trial
        )  # nobody is sound: try again from its last checkpoint with another configuration
        config = self.explore(
            self.problem.space, source.config, self._stream(state, "explore", trial)
        )
        step = (
            max(source.step, trial.step) if self.inherit_step else trial.step
        )  # going back, a run might never end
        return replace(
            trial, status="ready", config=config, checkpoint=source.checkpoint, step=step
        )

    @staticmethod
    def _stream(state: State, decision: str, trial: Trial) -> Generator:
        return stream(state.seed, decision, trial.id, trial.step)


@lru_cache(maxsize=4)
def initial_configs(
    problem: Problem, n: int, seed: int, start: Literal["stratified", "iid"]
) -> tuple[Config, ...]:
    """Return the first `n` configurations of a run, the same for every algorithm with this seed."""
    propose = Stratified() if start == "stratified" else Uniform()
    return tuple(propose(problem.space, History(), n, stream(seed, "population")))
