"""Stacks of members as single programs, one stack in each worker process."""

from mopbt.engines.base import RunContext
from mopbt.engines.pool import PoolEngine
from mopbt.errors import CannotStack


class VectorizedEngine(PoolEngine):
    """Carries out `stack` jobs at a time as one program in each of `workers` processes.

    With one worker the whole population can be one stack (best on a GPU); with one worker for each core and one thread each, a
    share of it is in every worker (best on CPUs). The task must know how: `TorchTask` does.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        stack: int = 16,
        threads: int | None = 1,
        retries: int = 2,
        warm_bytes: int = 2**30,
    ) -> None:
        super().__init__(workers, threads=threads, retries=retries, warm_bytes=warm_bytes)
        if not isinstance(stack, int) or isinstance(stack, bool) or stack < 1:
            raise ValueError(f"`stack` must be a whole number of at least 1, got {stack!r}")
        self._stack = stack

    @property
    def stack(self) -> int:
        """Return how many jobs make a bundle that a worker carries out together."""
        return self._stack

    def start(self, work: RunContext) -> None:
        """Get ready for a run of a task that can be stacked."""
        if not hasattr(work.task, "train_many"):
            raise CannotStack(
                f"the task {work.problem.name!r} has no `train_many`, so it cannot be stacked; use engine='pool'"
            )
        super().start(work)
