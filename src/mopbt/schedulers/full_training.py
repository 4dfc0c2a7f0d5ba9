"""Train every configuration from start to end.

Random search, qNEHVI, ParEGO and NSGA-II do so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from mopbt.problem import Problem
from mopbt.proposals.base import Propose, Trials
from mopbt.proposals.uniform import Stratified, Uniform
from mopbt.rng import stream
from mopbt.schedulers.base import check_initial, next_intervals, start_with_given
from mopbt.schedulers.views import statuses
from mopbt.space import Config
from mopbt.state import Job, Report, Result, State, Status, Trial, updated, with_report


@dataclass(frozen=True)
class FullTraining:
    """Train proposed configurations to the end, in blocks.

    The first block has `first` configurations, all later ones have `batch`. A block is proposed
    when all trials before it are over. Asynchronously, a configuration is proposed as soon as a
    slot is free, given the pending ones. A training that fails or diverges stops.

    Args:
        problem: The problem to solve.
        propose: Where configurations come from.
        first: The size of the first block.
        batch: The size of every later block.
        trainings: The total number of trainings; None: as many as the budget allows.
        asynchronous: Propose without waiting for the block to finish.
    """

    problem: Problem
    propose: Propose
    first: int
    batch: int
    trainings: int | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        check_initial(self.problem, self.trainings)

    @property
    def total_jobs(self) -> int | None:
        """Return how many jobs a complete run has if no training fails."""
        if self.trainings is None:
            return None
        return self.trainings * self.problem.steps // self.problem.interval

    @property
    def needs_budget(self) -> bool:
        """Return whether only a budget ends a run."""
        return self.trainings is None

    @property
    def decides_together(self) -> bool:
        """Return whether all trials of a generation are decided together."""
        return False

    @property
    def extendable(self) -> tuple[str, ...]:
        """Return what can be extended: nothing if proposals depend on results."""
        return ("steps", "population") if isinstance(self.propose, Stratified | Uniform) else ()

    def extended(self, extension: Mapping[str, int]) -> "FullTraining":
        """Return the scheduler of a run with more steps, or with more trainings."""
        steps = extension.get("steps", self.problem.steps)
        trainings = extension.get("population", self.trainings)
        return replace(self, problem=replace(self.problem, steps=steps), trainings=trainings)

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Order intervals of running trials and, in free slots, of new ones.

        Trials with the fewest steps come first. The last trials of a block do not wait for a free
        slot: trained after all others, they would leave workers idle for an entire training.
        """
        ready = [state.trials[id] for id in statuses(state).ready(slots)]
        workers = slots + len(state.outstanding)
        if len(ready) < slots or self._few_left_in_block(state, workers):
            ready += self._new_trials(state, slots - len(ready))
        ready.sort(key=attrgetter("step"))
        return next_intervals(state, ready[: max(slots, 0)], self.problem)

    def tell(self, state: State, report: Report) -> State:
        """Record a report; its trial continues, finishes or stops."""
        id = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        trial = state.trials[id]
        return updated(state, [replace(trial, status=self._next_status(trial))])

    def done(self, state: State) -> bool:
        """Return whether all trainings are over."""
        if self.trainings is None or len(state.trials) < self.trainings:
            return False
        over = statuses(state)
        return over.count("finished") + over.count("stopped") == len(state.trials)

    def _next_status(self, trial: Trial) -> Status:
        if not trial.is_finite:
            return "stopped"
        return "finished" if trial.step >= self.problem.steps else "ready"

    def _few_left_in_block(self, state: State, workers: int) -> bool:
        """Check whether the block has trials left to start, but fewer than workers."""
        n = len(state.trials)
        if self.asynchronous and n >= self.first:
            return False
        _, end = self._block(n)
        return 0 < end - n < workers

    def _new_trials(self, state: State, slots: int) -> list[Trial]:
        n = len(state.trials)
        begin, end = self._block(n)
        if end <= n:
            return []
        if self.asynchronous and n >= self.first:
            begin = n
            end = min(end, n + slots)
        elif not all(_is_over(t) for t in state.trials[:begin]):
            return []
        known = self._known_trials(state.trials[:begin])
        configs = _propose_block(self.propose, self.problem, known, end - begin, state.seed, begin)
        return [Trial(id, configs[id - begin]) for id in range(n, end)]

    def _block(self, n: int) -> tuple[int, int]:
        """Return the first row and the end of the block that contains row `n`."""
        if n < self.first:
            begin = 0
            end = self.first
        else:
            begin = self.first + (n - self.first) // self.batch * self.batch
            end = begin + self.batch
        return begin, end if self.trainings is None else min(end, self.trainings)

    def _known_trials(self, earlier: tuple[Trial, ...]) -> Trials:
        over = [t for t in earlier if _is_over(t)]
        return Trials(
            configs=tuple(t.config for t in over),
            results=tuple(t.results.get(self.problem.steps, Result(None)) for t in over),
            pending=tuple(t.config for t in earlier if not _is_over(t)),
        )


def _is_over(trial: Trial) -> bool:
    return trial.status in ("finished", "stopped")


@lru_cache(maxsize=4)
def _propose_block(
    propose: Propose, problem: Problem, trials: Trials, n: int, seed: int, begin: int
) -> tuple[Config, ...]:
    """Propose the configurations of a block.

    They are cached, because `ask` needs them again while some of their rows wait for a slot.
    """
    rng = stream(seed, "propose", begin) if begin else stream(seed, "population")
    return start_with_given(problem, begin, tuple(propose(problem.space, trials, n, rng)))
