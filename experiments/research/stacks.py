"""Stacks of members in this process, which need not start another one for each run."""

from dataclasses import replace

from mopbt.engines.execution import make_stacks, save_stack, train
from mopbt.engines.local import LocalEngine

STACK = 32


class InProcessStacks(LocalEngine):
    """Train stacks of members in this process."""

    capacity = STACK
    stack = STACK

    def submit(self, jobs, checksums):
        """Queue jobs as stacks."""
        self._jobs.extend(make_stacks(jobs, checksums, STACK))

    def collect(self, timeout=None):
        """Train the next stack."""
        stack = self._jobs.popleft()
        answer = save_stack(self._context, train(self._context, stack, self._cache))
        assert not answer.stack_error, answer.stack_error
        return [replace(report, seconds=self.elapsed()) for report in answer.reports]
