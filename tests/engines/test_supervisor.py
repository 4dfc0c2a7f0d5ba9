"""Worker processes: messages, deaths, deadlines, and the processes that a worker starts."""

import os
import sys
import time
from pathlib import Path

import pytest

from lanes import slow_except
from mopbt.engines.supervisor import Supervisor


@pytest.fixture
def supervisor():
    supervisor = Supervisor()
    yield supervisor
    supervisor.close()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pid):
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_messages_of_any_size_arrive_in_order(supervisor):
    worker = supervisor.spawn("engines.in_workers:echo", {})
    messages = [b"", b"x", bytes(3 * 2**20), b"last"]
    for message in messages:
        worker.send(message)
    assert [supervisor.receive(30) for _ in messages] == [(worker, m) for m in messages]
    assert supervisor.receive(0.01) is None


def test_a_worker_has_the_variables_that_it_is_given(supervisor):
    worker = supervisor.spawn("engines.in_workers:variable", {"MOPBT_TEST": "7"})
    assert supervisor.receive(30) == (worker, b"7")


def test_a_death_comes_after_the_messages_with_its_exit_code(supervisor):
    worker = supervisor.spawn("engines.in_workers:echo", {})
    worker.send(b"before")
    worker.send(b"exit3")
    assert supervisor.receive(30) == (worker, b"before")
    assert supervisor.receive(30) == (worker, None)
    assert supervisor.reap(worker) == 3
    assert not worker.timed_out


def test_a_worker_that_dies_takes_its_children_with_it(supervisor):
    worker = supervisor.spawn("engines.in_workers:echo", {})
    worker.send(b"fork")
    child = int(supervisor.receive(30)[1])
    assert is_alive(child)
    worker.send(b"exit0")
    assert supervisor.receive(30) == (worker, None)
    supervisor.reap(worker)
    wait_for_end(child)


@pytest.mark.skipif(sys.platform != "linux", reason="sessions are searched on Linux only")
@pytest.mark.parametrize(
    "end", slow_except(["is killed"], ["dies", "is killed", "loses its supervisor"])
)
def test_processes_in_sessions_of_their_own_end_with_their_worker(supervisor, end):
    worker = supervisor.spawn("engines.in_workers:echo", {})
    other = supervisor.spawn("engines.in_workers:echo", {})
    for process in (worker, other):
        process.send(b"session")
    answers = dict(supervisor.receive(30) for _ in range(2))
    assert is_alive(int(answers[worker]))
    if end == "dies":
        worker.send(b"exit0")
        assert supervisor.receive(30) == (worker, None)
        supervisor.reap(worker)
    elif end == "is killed":
        worker.kill()
    else:
        worker.popen.stdin.close()
    wait_for_end(int(answers[worker]))
    assert is_alive(int(answers[other]))


def test_close_kills_workers_and_their_children(supervisor):
    worker = supervisor.spawn("engines.in_workers:echo", {})
    worker.send(b"fork")
    child = int(supervisor.receive(30)[1])
    supervisor.close()
    assert worker.popen.returncode == -9
    wait_for_end(child)


def test_a_worker_whose_supervisor_is_gone_ends_with_its_children(supervisor):
    worker = supervisor.spawn("engines.in_workers:forking", {})
    child = int(supervisor.receive(30)[1])
    worker.popen.stdin.close()  # as the death of this process would
    assert supervisor.receive(30) == (worker, None)
    wait_for_end(child)


def test_a_worker_that_keeps_the_lock_of_python_ends_with_its_supervisor(supervisor):
    worker = supervisor.spawn("engines.in_workers:stuck", {})
    assert supervisor.receive(30) == (worker, b"stuck")
    worker.popen.stdin.close()  # as the death of this process would
    assert supervisor.receive(30) == (worker, None)
    assert supervisor.reap(worker) == -9


def test_a_worker_is_killed_at_its_deadline_and_others_are_not(supervisor):
    slow, other = (supervisor.spawn("engines.in_workers:echo", {}) for _ in range(2))
    slow.deadline = time.monotonic() + 0.1
    assert supervisor.receive(30) == (slow, None)
    assert slow.timed_out
    assert supervisor.reap(slow) == -9
    other.send(b"still here")
    assert supervisor.receive(30) == (other, b"still here")
    assert not other.timed_out


def test_a_worker_is_not_in_the_group_that_a_terminal_interrupts(supervisor):
    worker = supervisor.spawn("engines.in_workers:echo", {})
    assert os.getpgid(worker.popen.pid) == worker.popen.pid != os.getpgrp()
