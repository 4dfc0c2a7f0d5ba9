"""Population based training (Algorithm 2).

A population trains in parallel, and its worst members copy its best ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.random import Generator

from mopbt.exploit import (
    draw_donor,
    nearest_relative,
    neighboring_pairs,
    quantile_size,
    sparsity,
    truncation,
)
from mopbt.explore import Explore, Local, interpolate
from mopbt.metrics import non_dominated
from mopbt.objectives import fresh_metrics, signed, signed_bounds, signed_folds
from mopbt.problem import Problem
from mopbt.proposals.base import Trials
from mopbt.proposals.uniform import Stratified, Uniform
from mopbt.ranking import Rank
from mopbt.rng import stream
from mopbt.schedulers.base import check_initial, next_intervals, start_with_given
from mopbt.schedulers.views import population_ranking, statuses
from mopbt.space import Config
from mopbt.state import Blend, Job, Measurement, Report, Result, State, Trial, updated, with_report
from mopbt.uncertainty import clear_donors, lineage_mean


@dataclass(frozen=True)
class Pbt:
    """Run population based training with any ranking.

    Synchronous: when the entire population has reported, the bottom `fraction` copies the top one.
    Asynchronous: each member decides when it reports, ranked among the latest results of all.

    Args:
        problem: The problem to solve.
        rank: How members are compared.
        explore: How a copied configuration is perturbed.
        population: The number of members.
        fraction: The share of the population that is replaced, and from which it is replaced.
        asynchronous: Decide at each report.
        inherit_step: An exploiting member continues at its donor's step if that is ahead. By
            default it continues at its own.
        start: Spread the initial configurations evenly, or draw them independently.
        pessimistic: Compare members at the bounds of their metrics.
        margin: Replace a member only by donors that dominate it by this many standard errors of the
            difference in at least one objective; None replaces it by any donor. If the task reports
            metrics on folds of its rows, the error of a difference is that on shared rows.
        interpolate: A replaced member starts between its donor and the donor's nearest relative
            among the donors, if the task can blend models.
        candidates: How many blends of neighbors on the front are evaluated after the training.
        fresh_rows: Decide by metrics on the rows that the task draws for each interval, where it
            reports them.
        sparse_donors: Draw donors in proportion to their distance from the nearest other donor.
        cooling: Replace fewer members, and resample fewer hyperparameters, toward the end.
        lineage: How many of the last evaluations of a lineage are averaged for a decision.
        frequencies: The members are divided into as many groups. Those of a group are compared with
            each other after each so many intervals; its worst one copies one of the best of all.
    """

    problem: Problem
    rank: Rank
    explore: Explore
    population: int = 32
    fraction: float = 0.25
    asynchronous: bool = False
    inherit_step: bool = False
    start: Literal["stratified", "iid"] = "stratified"
    pessimistic: bool = False
    margin: float | None = None
    interpolate: bool = False
    candidates: int = 0
    fresh_rows: bool = False
    sparse_donors: bool = False
    cooling: bool = False
    lineage: int = 1
    frequencies: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        check_initial(self.problem, self.population)

    @property
    def total_jobs(self) -> int | None:
        """Return how many jobs a complete run has, if that does not depend on its results."""
        if self.inherit_step or self._adds_candidates:
            return None
        return self.population * self.problem.steps // self.problem.interval

    @property
    def needs_budget(self) -> bool:
        """Return False: a run ends when all members are fully trained."""
        return False

    @property
    def decides_together(self) -> bool:
        """Return whether all trials of a generation are decided together."""
        return not self.asynchronous

    @property
    def extendable(self) -> tuple[str, ...]:
        """Return what can be extended: nothing if candidates follow after the training."""
        return () if self._adds_candidates else ("steps", "population")

    def extended(self, extension: Mapping[str, int]) -> "Pbt":
        """Return the scheduler of a run with more steps, or with more members.

        New members start from fresh weights, and may copy the members that are fully trained.
        """
        steps = extension.get("steps", self.problem.steps)
        population = extension.get("population", self.population)
        return replace(self, problem=replace(self.problem, steps=steps), population=population)

    @property
    def reads_reports(self) -> bool:
        """Return whether decisions depend on more of a report than its objectives."""
        is_plain = not self.pessimistic and self.margin is None and self.lineage == 1
        return not is_plain or self.fresh_rows

    def result_of(self, report: Report, recent: tuple[Measurement, ...]) -> Result:
        """Return the part of a report that decisions depend on.

        `recent` are the last measurements of the lineage that the job continued.
        """
        if report.objectives is None:
            return Result(None, report.violation)
        objectives = self.problem.objectives
        errors = report.errors
        scores = report.scores
        values = report.objectives
        if self.fresh_rows:
            scores, errors = fresh_metrics(scores, errors)
            values = signed(objectives, scores)
        if self.pessimistic:
            values = signed_bounds(objectives, scores, errors)
        stderrs = tuple(errors[o.name].stderr if o.name in errors else 0.0 for o in objectives)
        folds = signed_folds(objectives, report.scores) if self.margin is not None else ()
        if self.lineage == 1:
            return Result(values, report.violation, stderrs, folds=folds)
        window = (*recent, Measurement(values, stderrs))[-self.lineage :]
        means, errors_of_means = lineage_mean(
            [m.objectives for m in window], [m.stderrs for m in window], last=self.lineage
        )
        mean = tuple(means.tolist())
        return Result(mean, report.violation, tuple(errors_of_means.tolist()), recent=window)

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Order intervals of ready members, those with the fewest steps first."""
        ready = [state.trials[id] for id in statuses(state).ready(slots)]
        if len(state.trials) < self.population:
            ready += self._new_members(state, slots)
        # The sort is stable: of members at the same step, the first comes first.
        ready.sort(key=attrgetter("step"))
        jobs = next_intervals(state, ready[: max(slots, 0)], self.problem)
        # A candidate is not trained.
        return tuple(
            job if job.trial < self.population else replace(job, end=job.begin) for job in jobs
        )

    def tell(self, state: State, report: Report) -> State:
        """Record a report; exploit and explore when it is time."""
        trial = state.outstanding[report.job].trial
        result = None
        if self.reads_reports:
            result = self.result_of(report, state.trials[trial].recent)
        if trial >= self.population:
            return with_report(state, report, status="finished", result=result)
        state = with_report(state, report, status="waiting", result=result)
        if self.asynchronous:
            return self._decide(state, [state.trials[trial]])
        # The cheap test comes first.
        if state.outstanding or len(state.trials) < self.population:
            return state
        if statuses(state).count("ready"):
            return state
        return self._decide(state, [t for t in state.trials if t.status == "waiting"])

    def done(self, state: State) -> bool:
        """Return whether all members are fully trained, and all candidates evaluated."""
        return self._has_finished(state)

    @property
    def _adds_candidates(self) -> bool:
        return self.candidates > 0 and self.problem.blendable

    def _has_finished(self, state: State) -> bool:
        n = len(state.trials)
        return n >= self.population and statuses(state).count("finished") == n

    def _blends(self, state: State) -> list[Trial]:
        """Return candidates: means of neighbors on the front, the most distant first."""
        front = _front_of(state.trials)
        objectives = np.array([result.objectives for result in front]).reshape(
            -1, len(self.problem.objectives)
        )
        pairs = neighboring_pairs(objectives, [result.origin for result in front])
        blends = []
        for id, (first, other) in enumerate(pairs[: self.candidates], self.population):
            a = front[first]
            b = front[other]
            config = interpolate(self.problem.space, a.config, b.config, 0.5)
            blend = ((b.job, 0.5),)
            step = self.problem.steps
            trial = Trial(id, config, "ready", step, a.job, blend=blend, origin=a.origin)
            blends.append(trial)
        return blends

    def _new_members(self, state: State, slots: int) -> list[Trial]:
        configs = initial_configs(self.problem, self.population, state.seed, self.start)
        n = len(state.trials)
        return [Trial(i, config) for i, config in enumerate(configs[n : n + slots], n)]

    def _decide(self, state: State, deciding: Sequence[Trial]) -> State:
        """Let each deciding member continue, copy a donor, or finish."""
        finished = [t for t in deciding if t.step >= self.problem.steps]
        deciding = [t for t in deciding if t.step < self.problem.steps]
        donors, chosen = self._choose_donors(state, deciding)
        after = [replace(t, status="finished") for t in finished]
        after += [self._successor(state, t, chosen.get(t.id), donors) for t in deciding]
        state = updated(state, after)
        if self._adds_candidates and self._has_finished(state):
            state = updated(state, self._blends(state))
        return state

    def _choose_donors(
        self, state: State, deciding: Sequence[Trial]
    ) -> tuple[Sequence[Trial], dict[int, Trial]]:
        """Return all donors, and that of each deciding member that is replaced, by its id."""
        if not deciding:
            return (), {}
        if self.asynchronous:
            (trial,) = deciding
            return self._choose_donor(state, trial)
        members = [t for t in state.trials if t.status != "finished" and t.results]
        if len(self.frequencies) == 1:
            return self._exploit_within(state, members, deciding)
        donors: list[Trial] = []
        chosen: dict[int, Trial] = {}
        best, _ = self._exploit_within(state, members, deciding)
        for group, frequency in enumerate(self.frequencies):
            if deciding[0].step // self.problem.interval % frequency:
                continue
            own = [t for t in members if t.id % len(self.frequencies) == group]
            group_donors, replaced = self._exploit_within(state, own, deciding)
            donors += group_donors
            if replaced and best:
                # Migration: the worst of a group copies one of the best of all.
                worst = next(reversed(replaced))
                rng = self._stream(state, "migrate", state.trials[worst])
                replaced[worst] = best[int(rng.integers(len(best)))]
            chosen |= replaced
        ids = {trial.id for trial in donors}
        return [*donors, *(trial for trial in best if trial.id not in ids)], chosen

    def _exploit_within(
        self, state: State, members: Sequence[Trial], deciding: Sequence[Trial]
    ) -> tuple[Sequence[Trial], dict[int, Trial]]:
        """Return the donors among some members, and that of each one that is replaced.

        The replaced members are in the order of the ranking, the worst last.
        """
        finite: list[tuple[Trial, Result]] = []
        failed: list[Trial] = []
        for trial in members:
            latest = trial.latest
            if latest is not None and latest.is_finite:
                finite.append((trial, latest))
            else:
                failed.append(trial)
        if not finite:
            return (), {}
        n = len(finite) + len(failed)
        size = quantile_size(n, self.fraction)
        share = self._remaining(deciding[0].step) if self.cooling else 1.0
        order = self.rank(
            np.array([result.objectives for _, result in finite]),
            np.array([result.violation for _, result in finite]),
            stream(state.seed, "rank", deciding[0].step),
            (size, n - round(share * size)),
        )
        # Failed members rank below all others.
        ranked = {t.id: t for t in [*(finite[i][0] for i in order), *failed]}
        donors = [finite[i][0] for i in order[:size]]
        replaced = truncation(
            list(ranked),
            lambda id: self._stream(state, "exploit", ranked[id]),
            fraction=self.fraction,
            failed={t.id for t in failed},
            deciding={t.id for t in deciding},
            eligible=self._eligible(state),
            share=share,
            weights=self._donor_weights(donors),
        )
        return donors, {loser: ranked[donor] for loser, donor in replaced.items()}

    def _choose_donor(self, state: State, trial: Trial) -> tuple[Sequence[Trial], dict[int, Trial]]:
        """Return the donors, and the one of a member that decides alone if it is replaced.

        It is the donor that `truncation` draws, without an order of the entire population.
        """
        ranking = population_ranking(state, self.rank)
        n = ranking.finite + ranking.failed
        size = quantile_size(n, self.fraction)
        # Failed members rank below all others and never donate.
        donors = min(size, ranking.finite)
        if not donors:
            return (), {}
        share = self._remaining(trial.step) if self.cooling else 1.0
        bottom = n - round(share * size)
        order = ranking.order((size, bottom), lambda: self._stream(state, "rank", trial))
        if trial.is_finite and order.precedes(trial.id, bottom):
            return (), {}
        rng = self._stream(state, "exploit", trial)
        eligible = self._eligible(state)
        # Listing all donors is only worth its time if they are needed.
        if not self.interpolate and not self.sparse_donors and eligible is None:
            return (), {trial.id: state.trials[order.at(int(rng.integers(donors)))]}
        ids = [order.at(place) for place in range(donors)]
        others = [state.trials[id] for id in sorted(ids)]
        own = ids if eligible is None or not trial.is_finite else eligible(trial.id, ids)
        if not own:
            return others, {}
        return others, {trial.id: state.trials[draw_donor(own, rng, self._donor_weights(others))]}

    def _remaining(self, step: int) -> float:
        """Return the share of the training that is left at a step."""
        return 1 - step / self.problem.steps

    def _donor_weights(self, donors: Sequence[Trial]) -> dict[int, float] | None:
        """Return how likely each donor is drawn, by its id.

        It is None if all are equally likely.
        """
        if not self.sparse_donors:
            return None
        objectives = np.array([trial.latest.objectives for trial in donors if trial.latest])
        ids = [trial.id for trial in donors]
        return dict(zip(ids, sparsity(objectives).tolist(), strict=True))

    def _eligible(self, state: State) -> Callable[[int, list[int]], list[int]] | None:
        """Return how the donors are found that are better by more than noise explains."""
        margin = self.margin
        if margin is None:
            return None

        def clearly_better(loser: int, donors: list[int]) -> list[int]:
            results = [state.trials[id].latest for id in (loser, *donors)]
            own, *others = [result for result in results if result is not None]
            pairs = zip(donors, others, strict=True)
            nearer = [id for id, result in pairs if result.violation < own.violation]
            if nearer:
                return nearer
            values = np.array([result.objectives for result in (own, *others)])
            stderrs = np.array([result.stderrs for result in (own, *others)])
            places = range(1, len(values))
            parts = [result.folds for result in (own, *others)]
            # A task without folds has none for any member.
            folds = np.array(parts) if all(parts) else None
            clear = clear_donors(values, stderrs, 0, places, margin=margin, folds=folds)
            return [donors[place - 1] for place in clear]

        return clearly_better

    def _successor(
        self, state: State, trial: Trial, donor: Trial | None, donors: Sequence[Trial]
    ) -> Trial:
        if donor is None and trial.is_finite:
            return replace(trial, status="ready", recent=_recent_of(trial))
        # Without a donor all members have failed. This one retries from its last checkpoint with
        # another configuration.
        source = donor or trial
        config = source.config
        blend: Blend = ()
        relative = self._nearest_relative(source, donors) if donor is not None else None
        if relative is not None:
            weight = float(self._stream(state, "interpolate", trial).random())
            config = interpolate(self.problem.space, config, relative.config, weight)
            assert relative.checkpoint is not None
            blend = ((relative.checkpoint, weight),)
        rng = self._stream(state, "explore", trial)
        config = self._explore_at(trial.step)(self.problem.space, config, rng)
        # A member never falls back to an earlier step; otherwise a run might not end.
        step = max(source.step, trial.step) if self.inherit_step else trial.step
        return replace(
            trial,
            status="ready",
            config=config,
            checkpoint=source.checkpoint,
            blend=blend,
            origin=source.origin,
            step=step,
            recent=_recent_of(source),
        )

    def _explore_at(self, step: int) -> Explore:
        if not self.cooling or not isinstance(self.explore, Local):
            return self.explore
        return Local(self.explore.resample * self._remaining(step))

    def _nearest_relative(self, donor: Trial, donors: Sequence[Trial]) -> Trial | None:
        """Return the closest donor of the same origin, if blending is possible."""
        if not self.interpolate or not self.problem.blendable:
            return None
        ids = [trial.id for trial in donors]
        objectives = np.array([trial.latest.objectives for trial in donors if trial.latest])
        origins = [trial.origin for trial in donors]
        row = nearest_relative(objectives, origins, ids.index(donor.id))
        return None if row is None else donors[row]

    @staticmethod
    def _stream(state: State, decision: str, trial: Trial) -> Generator:
        return stream(state.seed, decision, trial.id, trial.step)


def _recent_of(trial: Trial) -> tuple[Measurement, ...]:
    """Return the last measurements of the lineage of a trial's checkpoint."""
    latest = trial.latest
    # A failed interval leaves the trial at the checkpoint before it.
    return latest.recent if latest is not None and latest.is_finite else trial.recent


def _front_of(members: Iterable[Trial]) -> list[Result]:
    """Return the feasible results that no other one dominates, ordered by job."""
    results = [r for trial in members for r in trial.results.values()]
    feasible = [r for r in results if r.is_finite and not r.violation]
    if not feasible:
        return []
    rows = non_dominated(np.array([result.objectives for result in feasible]))
    return sorted((feasible[i] for i in rows), key=lambda result: result.job)


@lru_cache(maxsize=4)
def initial_configs(
    problem: Problem, n: int, seed: int, start: Literal["stratified", "iid"]
) -> tuple[Config, ...]:
    """Draw the first `n` configurations of a run, the same for every algorithm."""
    propose = Stratified() if start == "stratified" else Uniform()
    proposed = tuple(propose(problem.space, Trials(), n, stream(seed, "population")))
    return start_with_given(problem, 0, proposed)
