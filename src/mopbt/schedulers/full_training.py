"""Full training: every configuration is trained from the start to the end (random search, qNEHVI, ParEGO, NSGA-II)."""

from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from mopbt.problem import Problem
from mopbt.proposals.base import History, Propose
from mopbt.rng import stream
from mopbt.schedulers.base import next_intervals
from mopbt.space import Config
from mopbt.state import Job, Report, Result, State, Status, Trial, updated, with_report


@dataclass(frozen=True)
class FullTraining:
    """Trains proposed configurations to the end, in blocks: the first ones, then `batch` at a time.

    A block is proposed when all before it are trained; asynchronously, a configuration is proposed whenever there is room, knowing
    those still on the way. A training that fails or diverges ends there.
    """

    problem: Problem
    propose: Propose
    first: int
    batch: int
    trainings: int | None = None  # how many in all; None: as many as the budget lets
    asynchronous: bool = False

    @property
    def total_jobs(self) -> int | None:
        """Return how many jobs a whole run has, if no training fails."""
        return (
            None
            if self.trainings is None
            else self.trainings * self.problem.steps // self.problem.interval
        )

    @property
    def needs_budget(self) -> bool:
        """Tell whether only a budget ends it."""
        return self.trainings is None

    @property
    def decides_together(self) -> bool:
        """Return whether all trials of a generation are decided together."""
        return False

    def ask(self, state: State, slots: int) -> tuple[Job, ...]:
        """Order intervals of the trials under way and, where there is room, of new ones, lowest step first.

        The last ones of a block do not wait for room: trained after all others, they would leave workers idle for a whole training.
        """
        ready = [t for t in state.trials if t.status == "ready"]
        if len(ready) < slots or self._are_last(state, slots + len(state.outstanding)):
            ready += self._newcomers(state, slots - len(ready))
        ready.sort(key=attrgetter("step"))
        return next_intervals(state, ready[: max(slots, 0)], self.problem)

    def tell(self, state: State, report: Report) -> State:
        """Enter a report: the training goes on, has come to its end, or failed."""
        id = state.outstanding[report.job].trial
        state = with_report(state, report, status="waiting")
        return updated(state, [replace(state.trials[id], status=self._next(state.trials[id]))])

    def done(self, state: State) -> bool:
        """Tell whether all trainings have come to their end."""
        return (
            self.trainings is not None
            and len(state.trials) >= self.trainings
            and all(_is_over(t) for t in state.trials)
        )

    def _next(self, trial: Trial) -> Status:
        if not trial.is_finite:
            return "stopped"
        return "finished" if trial.step >= self.problem.steps else "ready"

    def _are_last(self, state: State, workers: int) -> bool:
        """Tell whether there are trials of the block to come, and fewer than workers."""
        n = len(state.trials)
        return not (self.asynchronous and n >= self.first) and 0 < self._block(n)[1] - n < workers

    def _newcomers(self, state: State, slots: int) -> list[Trial]:
        n = len(state.trials)
        begin, end = self._block(n)
        if end <= n:
            return []
        if self.asynchronous and n >= self.first:
            begin, end = n, min(end, n + slots)
        elif not all(_is_over(t) for t in state.trials[:begin]):
            return []
        earlier = state.trials[:begin]
        history = History(
            configs=tuple(t.config for t in earlier if _is_over(t)),
            results=tuple(self._outcome(t) for t in earlier if _is_over(t)),
            pending=tuple(t.config for t in earlier if not _is_over(t)),
        )
        configs = _proposed(self.propose, self.problem, history, end - begin, state.seed, begin)
        return [Trial(id, configs[id - begin]) for id in range(n, end)]

    def _block(self, n: int) -> tuple[int, int]:
        """Return the first and the last row (exclusive) of the block to which row `n` belongs."""
        begin = 0 if n < self.first else self.first + (n - self.first) // self.batch * self.batch
        end = self.first if n < self.first else begin + self.batch
        return begin, end if self.trainings is None else min(end, self.trainings)

    def _outcome(self, trial: Trial) -> Result:
        return trial.results.get(self.problem.steps, Result(None))


def _is_over(trial: Trial) -> bool:
    return trial.status in ("finished", "stopped")


@lru_cache(maxsize=4)
def _proposed(
    propose: Propose, problem: Problem, history: History, n: int, seed: int, begin: int
) -> tuple[Config, ...]:
    """Return a block's configurations; remembered, as a block is asked for again while its rows wait for room."""
    rng = stream(seed, "propose", begin) if begin else stream(seed, "population")
    return tuple(propose(problem.space, history, n, rng))
