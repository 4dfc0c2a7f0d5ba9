"""Supervises worker processes: start, messages, death, process groups.

A worker is a Python process that calls one function. Messages are bytes with a length in front.
The supervisor writes them to the worker's standard input and reads them from its standard output.
A worker leads its own session, so Ctrl-C in the terminal reaches only the supervising process,
and killing a worker also ends every process that it started. On Linux, this includes processes
that began a session of their own, as those of `torchrun` do: a mark in their environment tells
whose they are. On Windows, where this was not tested, a worker is killed with its children.
"""

import math
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

# The variable with the mark of a worker, which everything that it starts inherits.
MARK = "MOPBT_WORKER"
# Seconds in which a worker may end by itself after its supervisor is gone.
_GRACE = 1.0
if sys.platform == "win32":
    # Ctrl-C in the terminal must not reach the workers there either.
    _NEW_GROUP = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _NEW_GROUP = 0


class WorkerProcess:
    """A process that a `Supervisor` started.

    Set `deadline`, a moment of `time.monotonic()`, to have the supervisor kill the process at
    that time. `timed_out` then tells such a death from others.
    """

    def __init__(self, popen: subprocess.Popen[bytes], mark: str) -> None:
        self.popen = popen
        self._mark = mark
        self.deadline = math.inf
        self.timed_out = False
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None

    def send(self, message: bytes) -> None:
        """Queue a message for the process; one to a dead process is lost."""
        self._outbox.put(message)

    def kill(self) -> None:
        """Kill the process and every process that it started."""
        self.kill_group()
        _kill_marked(self._mark)

    def kill_group(self) -> None:
        """Kill the process and those that it started in its own session."""
        if sys.platform == "win32":
            self._kill_tree()
            return
        # macOS refuses to signal a group whose processes have all ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def _kill_tree(self) -> None:
        """Kill the process and its children, as Windows has no groups that can be killed."""
        if self.popen.poll() is None:
            with suppress(OSError):
                command = ["taskkill", "/F", "/T", "/PID", str(self.popen.pid)]
                subprocess.run(command, capture_output=True, check=False)
            self.popen.kill()

    def reap(self) -> int:
        """Wait for the process, kill what it left behind, and return its exit code."""
        code = self.wait()
        _kill_marked(self._mark)
        return code

    def wait(self) -> int:
        """Wait for the process, kill its group, and return its exit code."""
        self._outbox.put(None)
        code = self.popen.wait()
        self.kill_group()
        assert self._reader is not None
        assert self.popen.stdout is not None
        self._reader.join(timeout=1.0)
        # Closing a pipe would block while another thread reads from it.
        if not self._reader.is_alive():
            self.popen.stdout.close()
        return code

    def _start_threads(self, inbox: "queue.SimpleQueue[Event]") -> None:
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._write, daemon=True).start()

    def _read(self, inbox: "queue.SimpleQueue[Event]") -> None:
        assert self.popen.stdout is not None
        while (message := receive(self.popen.stdout)) is not None:
            inbox.put((self, message))
        inbox.put((self, None))

    def _write(self) -> None:
        assert self.popen.stdin is not None
        # A broken pipe means that the process is dead, which the reader notices as well.
        with suppress(BrokenPipeError):
            while (message := self._outbox.get()) is not None:
                send(self.popen.stdin, message)
        with suppress(BrokenPipeError):
            self.popen.stdin.close()


# A message and the process that sent it; None instead of a message: the process has ended.
Event = tuple[WorkerProcess, bytes | None]


class Supervisor:
    """Starts worker processes and collects their messages in the order of arrival."""

    def __init__(self) -> None:
        self._path = [os.path.abspath(entry) for entry in sys.path]
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._processes: list[WorkerProcess] = []
        self._mark = uuid.uuid4().hex
        self._spawned = 0

    def spawn(self, target: str, environment: Mapping[str, str]) -> WorkerProcess:
        """Start a process that calls `target`, a "module:function".

        It has the import path that this process had when the supervisor was created, and
        `environment` in addition to the variables of this process.
        """
        module, _, function = target.partition(":")
        import_path = f"import sys; sys.path[:] = {self._path!r}"
        code = f"{import_path}; from {module} import {function}; {function}()"
        self._spawned += 1
        mark = f"{self._mark}-{self._spawned}."
        # A worker of a worker has the marks of both.
        marks = f"{os.environ.get(MARK, '')}/{mark}"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, MARK: marks},
            start_new_session=True,
            creationflags=_NEW_GROUP,
        )
        worker = WorkerProcess(process, mark)
        self._processes.append(worker)
        worker._start_threads(self._inbox)
        return worker

    def receive(self, timeout: float | None = None) -> Event | None:
        """Return the next message or death, or None after `timeout` seconds.

        Processes whose deadline has passed are killed meanwhile.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            deadlines = [worker.deadline for worker in self._processes]
            wait = min([end, *deadlines]) - time.monotonic()
            with suppress(queue.Empty):
                return self._inbox.get(timeout=None if wait == math.inf else max(wait, 0.0))
            now = time.monotonic()
            for worker in self._processes:
                if worker.deadline <= now:
                    worker.timed_out = True
                    worker.deadline = math.inf
                    worker.kill()
            if now >= end:
                return None

    def reap(self, worker: WorkerProcess) -> int:
        """Wait for a process that ends, kill what it left, and return its exit code."""
        self._processes.remove(worker)
        return worker.reap()

    def close(self) -> None:
        """Kill all processes and their groups."""
        processes = self._processes
        self._processes = []
        for worker in processes:
            worker.kill_group()
        for worker in processes:
            worker.wait()
        if processes:
            # One search for all of them.
            _kill_marked(self._mark)


def _kill_marked(mark: str) -> None:
    """Kill the other processes that have a mark in their environment; on Linux only."""
    if sys.platform == "win32":
        return
    needle = mark.encode()
    killed = {os.getpid()}
    while found := _find_marked(needle) - killed:
        # Meanwhile they may have started others, so the search is repeated.
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        killed |= found


def _find_marked(mark: bytes) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile, and those of other users cannot be read.
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


# The worker's side.


def open_channel() -> tuple[IO[bytes], IO[bytes]]:
    """Take standard input and output for messages.

    What is printed goes to standard error.

    Processes that the worker forks do not keep the channel open.
    """
    _watch_supervisor()
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    descriptors = (source.fileno(), sink.fileno())

    def close_channel() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    if sys.platform != "win32":
        os.register_at_fork(after_in_child=close_channel)
    return source, sink


def _watch_supervisor() -> None:
    """Start a process that kills this worker's group after the supervisor is gone.

    The worker itself notices that too, unless it hangs in code that keeps Python's lock.
    """
    if sys.platform == "win32":
        return
    group = os.getpgrp()
    if group != os.getpid() or not hasattr(select, "poll"):
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # As a grandchild, it is no child that the task's code could wait for.
    if os.fork() == 0:
        os.dup2(2, 1)
        poll = select.poll()
        # Without events, only the end of the channel is reported.
        poll.register(0, 0)
        poll.poll()
        time.sleep(_GRACE)
        _kill_marked(os.environ.get(MARK, "").rpartition("/")[2] or "none")
        os.killpg(group, signal.SIGKILL)
    os._exit(0)


def exit_at_once() -> NoReturn:
    """End this process and all that it started, because the supervisor is gone."""
    if mark := os.environ.get(MARK, "").rpartition("/")[2]:
        _kill_marked(mark)
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def send(stream: IO[bytes], data: bytes) -> None:
    """Write one message."""
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    data = stream.read(size)
    return data if len(data) == size else None
