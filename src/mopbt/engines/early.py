"""Worker processes that start while the driver checks the task."""

import pickle
import sys
from collections.abc import Mapping
from typing import Any

from mopbt.engines.supervisor import Supervisor, WorkerProcess
from mopbt.problem import FunctionBasedTask

WORKER = "mopbt.engines.worker:main"


def modules_of(task: Any) -> list[str]:
    """Return the known modules that a worker imports to read a task."""
    names = {type(task).__module__}
    if isinstance(task, FunctionBasedTask):
        names.add(task.function.__module__)
    return sorted(names & sys.modules.keys() - {"__main__"})


def start_worker(
    supervisor: Supervisor, environment: Mapping[str, str], modules: list[str]
) -> WorkerProcess:
    """Start a worker, which imports modules until it is sent a run."""
    process = supervisor.spawn(WORKER, environment)
    process.send(pickle.dumps(modules))
    return process


class EarlyWorkers:
    """Workers on the CPU that wait for the run of a task.

    Attributes:
        supervisor: The supervisor of these processes. The engine that takes them over uses it for
            further ones, and closes it.
    """

    def __init__(self, task: Any, environment: Mapping[str, str], number: int) -> None:
        self.supervisor = Supervisor()
        self._environment = dict(environment)
        modules = modules_of(task)
        self._waiting = [start_worker(self.supervisor, environment, modules) for _ in range(number)]

    def take(self, environment: Mapping[str, str]) -> WorkerProcess | None:
        """Return a process with this environment, or None if there is none left."""
        if not self._waiting or dict(environment) != self._environment:
            return None
        return self._waiting.pop()

    def close(self) -> None:
        """Kill the processes."""
        self._waiting.clear()
        self.supervisor.close()
