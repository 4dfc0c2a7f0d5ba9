"""Check and measure a task before a run, in this process or in workers.

A task that may use an accelerator is tried in worker processes on that device, so that this
process neither initializes it nor keeps memory there.
"""

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

from mopbt.engines.pool import pickle_task
from mopbt.engines.supervisor import Supervisor, WorkerProcess
from mopbt.errors import WorkerFailed


class Trial:
    """Calls the methods of a task that check or measure it, in this process."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the task and return its result."""
        return self.call_at_once(1, method, *arguments)[0]

    def call_at_once(self, workers: int, method: str, *arguments: Any) -> list[Any]:
        """Call a method in several workers at the same time and return all results."""
        assert workers == 1
        return [methodcaller(method, *arguments)(self.task)]


class WorkerTrial(Trial):
    """Calls the methods of a task in worker processes with a given environment."""

    def __init__(self, task: Any, environment: Mapping[str, str]) -> None:
        super().__init__(task)
        self._environment = environment
        self._supervisor = Supervisor()
        self._workers: list[WorkerProcess] = []

    def call_at_once(self, workers: int, method: str, *arguments: Any) -> list[Any]:
        """Call a method in several workers at the same time and return all results."""
        while len(self._workers) < workers:
            self._workers.append(self._spawn())
        chosen = self._workers[:workers]
        if workers > 1:
            # All have imported and built everything before the measurement starts.
            self._exchange(chosen, pickle.dumps((method, arguments)))
        return self._exchange(chosen, pickle.dumps((method, arguments)))

    def close(self) -> None:
        """Kill the workers."""
        self._supervisor.close()

    def _spawn(self) -> WorkerProcess:
        worker = self._supervisor.spawn("mopbt.engines.worker:answer_calls", self._environment)
        worker.send(pickle_task(self.task))
        return worker

    def _exchange(self, workers: list[WorkerProcess], message: bytes) -> list[Any]:
        for worker in workers:
            worker.send(message)
        results: dict[WorkerProcess, Any] = {}
        while len(results) < len(workers):
            event = self._supervisor.receive()
            assert event is not None
            worker, answer = event
            if answer is None:
                code = self._supervisor.reap(worker)
                raise WorkerFailed(
                    f"the process that checks the task ended with exit code {code}; see what it "
                    f"prints above"
                )
            results[worker] = pickle.loads(answer)
        for result in results.values():
            if isinstance(result, Exception):
                raise result
        return [results[worker] for worker in workers]


def measure_start(task: Any) -> float:
    """Return the CPU seconds in which a worker process starts and reads a task."""
    before = os.times()
    trial = WorkerTrial(task, {})
    try:
        # Any call is answered after the task was read.
        trial.call("__sizeof__")
    finally:
        trial.close()
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system


@contextmanager
def open_trial(task: Any, environment: Mapping[str, str] | None) -> Iterator[Trial]:
    """Open a trial of a task, in workers if they have an environment of their own."""
    if environment is None:
        yield Trial(task)
        return
    trial = WorkerTrial(task, environment)
    try:
        yield trial
    finally:
        trial.close()
