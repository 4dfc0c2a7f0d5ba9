"""Stacks of jobs in worker processes, each stack trained as one program."""

from mopbt.arguments import check_count
from mopbt.engines.base import RunContext
from mopbt.engines.devices import DeviceNames
from mopbt.engines.execution import require_stackable
from mopbt.engines.pool import PoolEngine


class VectorizedEngine(PoolEngine):
    """Trains stacks of up to `stack` jobs, each as one program, in worker processes.

    On a GPU, one worker whose stack holds its share of the population is best. On CPUs, use one
    worker with one thread for each core, and divide the population among them. The task must be a
    `StackableTask`, as `TorchTask` is. The other arguments are those of `PoolEngine`; `timeout`
    counts for each interval of a stack.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        stack: int = 16,
        devices: DeviceNames = "auto",
        workers_per_device: int | None = None,
        timeout: float | None = None,
        threads: int | None = 1,
        retries: int = 2,
        warm_bytes: int = 2**30,
    ) -> None:
        super().__init__(
            workers,
            devices=devices,
            workers_per_device=workers_per_device,
            timeout=timeout,
            threads=threads,
            retries=retries,
            warm_bytes=warm_bytes,
        )
        check_count("stack", stack, 1)
        self._stack_size = stack

    @property
    def stack(self) -> int:
        """Return the largest number of jobs in a stack."""
        return self._stack_size

    def start(self, context: RunContext) -> None:
        """Prepare for a run of a task that can be stacked."""
        require_stackable(context.task, context.problem.name, "use engine='pool'")
        super().start(context)
