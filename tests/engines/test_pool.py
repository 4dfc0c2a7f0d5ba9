import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pytest

import mopbt
from engines.in_workers import (
    BrokenCheckpoints,
    ForkingToy,
    GarbageTask,
    HalfSilentTask,
    LockedTask,
    SilentTask,
    SlowCheckpoints,
    ThreadCountTask,
    UnreadableTask,
    UnreadTask,
    WordyTask,
)
from lanes import slow_except
from mopbt.engines import pool
from mopbt.engines.base import RunContext
from mopbt.engines.devices import available_cores
from mopbt.engines.execution import Answer
from mopbt.engines.pool import PoolEngine, pickle_task
from mopbt.engines.simulated import SimulatedEngine
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import MissingScore, StoreError, TaskError, UnreadHyperparameter, WorkerFailed
from mopbt.function_task import FunctionTask
from mopbt.problem import problem_of
from mopbt.space import Grid
from mopbt.state import Job, Report
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.tasks.toy import ToyTask
from mopbt.testing import EngineConformance
from toys import HangingToy, SlowToy, SuicidalToy, UnstackableToy


class TestPool(EngineConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def make(self):
        return PoolEngine(2)

    def checkpoints(self):
        return DirectoryCheckpoints(self.folder)


@pytest.mark.slow
class TestPoolWithoutCache(TestPool):
    def make(self):
        return PoolEngine(1, warm_bytes=0)


def start(task, folder, **options):
    engine = PoolEngine(**options)
    engine.start(RunContext(task, problem_of(task), 0, DirectoryCheckpoints(folder)))
    return engine


def fresh(*ids):
    return [Job(i, i, (10, 3), None, 0, 2) for i in ids]


def collect(engine, n):
    reports = []
    while len(reports) < n:
        reports += engine.collect()
    return {report.job: report for report in reports}


def test_a_dead_worker_is_replaced_and_its_job_repeated(tmp_path):
    (tmp_path / "lives").write_text("1")
    engine = start(SuicidalToy(lives=str(tmp_path / "lives")), tmp_path, workers=1, retries=2)
    engine.submit(fresh(0, 1), {})
    reports = collect(engine, 2)
    engine.close()
    assert (tmp_path / "lives").read_text() == "0"
    assert all(report.objectives is not None for report in reports.values())


@pytest.mark.slow
def test_a_job_that_keeps_killing_its_worker_is_reported_as_failed(tmp_path):
    (tmp_path / "lives").write_text("2")
    engine = start(SuicidalToy(lives=str(tmp_path / "lives")), tmp_path, workers=1, retries=1)
    engine.submit([*fresh(0), Job(1, 1, (0, 3), None, 0, 2)], {})
    reports = collect(engine, 2)
    engine.close()
    assert "died 2 times" in reports[0].error
    assert "-9" in reports[0].error
    assert reports[1].objectives is not None


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 2])
def test_a_job_that_is_being_saved_is_not_blamed_for_the_death_of_the_next_one(tmp_path, retries):
    (tmp_path / "lives").write_text("99")
    engine, task = (
        PoolEngine(workers=1, retries=retries),
        SuicidalToy(lives=str(tmp_path / "lives")),
    )
    engine.start(RunContext(task, problem_of(task), 0, SlowCheckpoints(tmp_path)))
    engine.submit([Job(0, 0, (0, 3), None, 0, 2), *fresh(1), Job(2, 2, (0, 3), None, 0, 2)], {})
    reports = collect(engine, 3)
    engine.close()
    assert {id: bool(report.error) for id, report in reports.items()} == {
        0: False,
        1: True,
        2: False,
    }
    assert f"died {max(retries + 1, 2)} times" in reports[1].error


class ScriptedProcess:
    popen = SimpleNamespace(pid=1)
    deadline = math.inf
    timed_out = False

    def __init__(self):
        self.sent = []
        self.send = self.sent.append


class ScriptedSupervisor:
    """Returns events that were written down, each a function of the process that was started."""

    def __init__(self, events):
        self.events = list(events)
        self.processes = []

    def spawn(self, target, environment):
        self.processes.append(ScriptedProcess())
        return self.processes[-1]

    def receive(self, timeout=None):
        return self.events.pop(0)(self.processes[-1]) if self.events else None

    def reap(self, process):
        return -9


def test_an_answer_that_was_on_its_way_when_its_worker_was_killed_counts(tmp_path, monkeypatch):
    """The time limit passes while the answer is in the pipe, so the death comes after it."""

    def answered_too_late(process):
        process.timed_out = True
        return process, pickle.dumps(Answer([Report(0, (1.0, 1.0))]))

    supervisor = ScriptedSupervisor(
        [lambda p: (p, pickle.dumps(None)), answered_too_late, lambda p: (p, None)]
    )
    monkeypatch.setattr("mopbt.engines.pool.Supervisor", lambda: supervisor)
    engine = start(ToyTask(), tmp_path, workers=1, timeout=1.0, retries=0)
    engine.submit(fresh(0, 1), {})
    assert [report.job for report in engine.collect()] == [0]
    # Job 1 was not the reason, so it is repeated, also without retries.
    _, second = supervisor.processes
    stack = second.sent[-1]
    assert [job.id for job, _ in pickle.loads(stack)] == [1]


def test_close_ends_all_workers_at_once_even_in_the_middle_of_a_job(tmp_path):
    engine = start(SlowToy(seconds=60, begun=str(tmp_path / "begun")), tmp_path, workers=2)
    engine.submit(fresh(0, 1), {})
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("begun-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(tmp_path.glob("begun-*"))) == 2
    processes = [worker.process.popen for worker in engine._pool.values()]
    began = time.monotonic()
    engine.close()
    # The jobs would take another 60 seconds.
    assert time.monotonic() - began < 30
    assert all(process.poll() is not None for process in processes)


def test_collect_gives_up_after_its_timeout(tmp_path):
    engine = start(SlowToy(seconds=30), tmp_path, workers=1)
    engine.submit(fresh(0), {})
    assert engine.collect(timeout=0.05) == []
    engine.close()


def test_workers_end_when_their_driver_is_killed(tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from toys import SlowToy
import mopbt
engine = mopbt.PoolEngine(2)
out = {str(tmp_path / "run")!r}
mopbt.run(SlowToy(seconds=60), out=out, population=4, engine=engine, progress=False)
"""
    driver = subprocess.Popen([sys.executable, "-c", program])
    workers = []
    deadline = time.monotonic() + 30
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        workers = children(driver.pid)
    time.sleep(0.5)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in workers)


def children(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_a_worker_has_one_thread_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    for threads, expected in ((1, 1.0), (2, 2.0)):
        engine = start(ThreadCountTask(), tmp_path, workers=1, threads=threads)
        engine.submit([Job(0, 0, (0,), None, 0, 1)], {})
        assert collect(engine, 1)[0].scores == {"omp": expected, "torch": expected}
        engine.close()


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (UnreadTask(), UnreadHyperparameter, "never read 'x'"),
        (SilentTask(), MissingScore, "did not measure the objective 'omp'; it measured 'torch'"),
        (WordyTask(), TaskError, "'torch' must be a number, got 'very good'"),
    ],
)
def test_a_broken_contract_comes_back_as_the_error_itself(tmp_path, task, error, message):
    engine = start(task, tmp_path, workers=1)
    engine.submit([Job(0, 0, (0,), None, 0, 1)], {})
    with pytest.raises(error, match=message):
        engine.collect()
    engine.close()
    assert list(tmp_path.glob("*.ckpt")) == []


def test_a_task_that_cannot_be_sent_is_refused_before_anything_trains(tmp_path):
    with pytest.raises(WorkerFailed, match="cannot be sent to worker processes.*engine='local'"):
        start(LockedTask(), tmp_path, workers=1)
    assert list(tmp_path.iterdir()) == []


LOCK = threading.Lock()


def use_lock():
    return LOCK


def train_with_a_lock(m):
    m.track(x={"x": m.hp["rate"]})
    with use_lock():
        m.report(up=float(m.advance()))


def test_the_object_that_cannot_be_sent_is_named():
    space = {"rate": Grid(0, 1, 2)}
    task = FunctionTask(train_with_a_lock, space=space, objectives={"up": "max"}, steps=2)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(WorkerFailed, match=r"because of `LOCK`: .*functools\.cache"):
            pickle_task(task)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_task_that_a_worker_cannot_read_is_an_error_that_says_so(tmp_path):
    engine = start(UnreadableTask(), tmp_path, workers=1)
    engine.submit([Job(0, 0, (0,), None, 0, 1)], {})
    with pytest.raises(
        WorkerFailed, match="cannot read the task: ImportError: no such thing in a worker"
    ):
        engine.collect()
    engine.close()


def test_a_task_written_in_a_script_without_a_guard_just_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import functools
import mopbt

@functools.cache
def data():
    return [1.0]

def train(m):
    assert data() is data()
    state = {"x": 0.0}
    m.track(state=state)
    for step in m.steps():
        state["x"] += m.hp["rate"]
        print("noise on standard output")
    m.report(up=state["x"], down=-state["x"])

results = mopbt.run(
    train,
    space={"rate": mopbt.Float(0.1, 1.0)},
    objectives={"up": "max", "down": "max"},
    population=4,
    steps=4,
    interval=2,
    out="run",
    engine=mopbt.PoolEngine(2),
    progress=False,
)
print("front", len(results.front()))
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("front ")
    assert "noise" in done.stderr


def test_refuses_wrong_sizes():
    for options in ({"workers": 0}, {"workers": 1.5}, {"threads": 0}, {"retries": -1}):
        with pytest.raises(ValueError, match="must be a whole number of at least"):
            PoolEngine(**options)
    assert PoolEngine().workers == available_cores() >= 1


@pytest.mark.slow
def test_the_death_of_a_worker_whose_children_survive_is_noticed_at_once(tmp_path):
    (tmp_path / "lives").write_text("1")
    began = time.monotonic()
    engine = start(ForkingToy(lives=str(tmp_path / "lives")), tmp_path, workers=1)
    engine.submit(fresh(0), {})
    assert collect(engine, 1)[0].objectives is not None
    engine.close()
    assert time.monotonic() - began < 10


def test_a_folder_that_cannot_be_written_ends_the_run(tmp_path):
    engine = start(ToyTask(), tmp_path / "gone", workers=1)
    engine.submit(fresh(0), {})
    with pytest.raises(
        StoreError,
        match=r"cannot write .*0\.ckpt: No such file or directory",
    ):
        engine.collect(60)
    engine.close()


def saving(tmp_path, error):
    """Return an engine whose only job is trained and cannot be saved."""
    engine = PoolEngine(1)
    engine.start(
        RunContext(ToyTask(), problem_of(ToyTask()), 0, BrokenCheckpoints(tmp_path, error))
    )
    engine.submit(fresh(0), {})
    return engine


@pytest.mark.parametrize("error", [ConnectionResetError("away"), RuntimeError("away")])
def test_a_storage_that_refuses_a_checkpoint_stops_the_run(tmp_path, error):
    engine = saving(tmp_path, error)
    name = type(error).__name__
    with pytest.raises(StoreError, match=rf"checkpoint 0 \({name}: away\); nothing reported is"):
        engine.collect(60)
    engine.close()


@pytest.mark.slow
def test_a_worker_collects_garbage_except_in_what_it_imported(tmp_path):
    engine = start(GarbageTask(), tmp_path, workers=1)
    engine.submit(fresh(0), {})
    scores = collect(engine, 1)[0].scores
    assert scores["collects"] == 1.0
    assert scores["frozen"] > 1000
    engine.close()


@pytest.mark.slow
def test_long_jobs_do_not_wait_behind_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "_SHORT", 0.05)
    engine = start(SlowToy(seconds=0.1), tmp_path, workers=2)
    engine.submit(fresh(0, 1), {})
    collect(engine, 2)
    engine.submit(fresh(2, 3, 4), {})
    assert [len(worker.stacks) for worker in engine._pool.values()] == [1, 1]
    assert len(engine._pending) == 1
    collect(engine, 3)
    engine.close()


@pytest.mark.slow
def test_finished_jobs_are_reported_before_the_error(tmp_path):
    evaluated = tmp_path / "evaluated"
    engine = start(HalfSilentTask(noise=0.0, evaluated=str(evaluated)), tmp_path, workers=1)
    engine.submit([Job(0, 0, (0, 9), None, 0, 2), Job(1, 1, (10, 9), None, 0, 2)], {})
    deadline = time.monotonic() + 30
    while not evaluated.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # both have answered
    assert [report.job for report in engine.collect()] == [0]
    with pytest.raises(MissingScore):
        engine.collect()
    engine.close()


STACK_FAILED = r"members of 'toy' as one stack failed \(ZeroDivisionError: no stacks today\)"


@pytest.mark.parametrize("is_simulated", slow_except([False], [False, True]))
def test_a_stack_that_fails_is_reported_once_and_its_members_trained_one_by_one(
    tmp_path, is_simulated
):
    engine = VectorizedEngine(1, stack=2)
    if is_simulated:
        engine = SimulatedEngine(6, engine=engine)
    task = UnstackableToy()
    for folder in ("first", "second"):  # once per run, not once per engine
        (tmp_path / folder).mkdir()
        checkpoints = DirectoryCheckpoints(tmp_path / folder)
        engine.start(RunContext(task, problem_of(task), 0, checkpoints))
        engine.submit(fresh(*range(6)), {})
        with pytest.warns(RuntimeWarning, match=STACK_FAILED) as caught:
            reports = collect(engine, 6)
        engine.close()
        assert len(caught) == 1
        assert "one by one" in str(caught[0].message)
        assert all(report.objectives is not None for report in reports.values())


# Time limits.


@pytest.fixture
def hanging(tmp_path):
    def task(times):
        (tmp_path / "left").write_text(str(times))
        return HangingToy(left=str(tmp_path / "left"))

    yield task
    children = [int(file.name.split("-")[1]) for file in tmp_path.glob("child-*")]
    deadline = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, children))


def test_a_worker_that_hangs_is_killed_and_its_job_repeated(tmp_path, hanging):
    engine = start(hanging(1), tmp_path, workers=1, timeout=0.5)
    engine.submit([*fresh(0), Job(1, 1, (0, 3), None, 0, 2)], {})
    reports = collect(engine, 2)
    engine.close()
    assert all(report.objectives is not None for report in reports.values())
    assert len(list(tmp_path.glob("child-*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("retries", "times"), [(2, "2 times"), (0, "once")])
def test_a_job_that_always_hangs_fails_and_others_do_not(tmp_path, hanging, retries, times):
    engine = start(hanging(9), tmp_path, workers=1, timeout=0.5, retries=retries)
    engine.submit([*fresh(0), Job(1, 1, (0, 3), None, 0, 2)], {})
    reports = collect(engine, 2)
    engine.close()
    assert f"longer than its time limit of 0.5 s, {times}; raise `timeout`" in reports[0].error
    assert reports[1].objectives is not None


@pytest.mark.slow
def test_a_stack_has_the_time_of_its_members_and_is_then_repeated_one_by_one(tmp_path, hanging):
    task = hanging(9)
    engine = VectorizedEngine(1, stack=3, timeout=0.4)
    engine.start(RunContext(task, problem_of(task), 0, DirectoryCheckpoints(tmp_path)))
    jobs = [Job(i, i, (10 if i == 1 else 0, 3), None, 0, 2) for i in range(3)]
    began = time.monotonic()
    engine.submit(jobs, {})
    reports = collect(engine, 3)
    engine.close()
    # The stack had three limits, and the second member two more alone.
    assert time.monotonic() - began > 5 * 0.4
    assert {id for id, report in reports.items() if report.error} == {1}


@pytest.mark.slow
def test_waiting_for_a_worker_to_start_and_for_other_jobs_does_not_count(tmp_path):
    engine = start(SlowToy(seconds=0.3), tmp_path, workers=1, timeout=0.6)
    engine.submit(fresh(*range(5)), {})
    reports = collect(engine, 5)
    engine.close()
    assert not any(report.error for report in reports.values())


@pytest.mark.slow
def test_a_run_continues_without_the_members_that_hang(tmp_path, hanging):
    results = mopbt.run(
        hanging(4),
        out=tmp_path / "run",
        population=8,
        seed=3,
        engine="pool",
        timeout=0.5,
        progress=False,
    )
    assert results.outcome == "done"
    assert "time limit" in next(iter(results.failures.values()))
    assert len(results.front()) > 0


def test_refuses_time_limits_that_are_none():
    for wrong in (0, -1, float("inf"), float("nan"), True, "5"):
        with pytest.raises(ValueError, match="`timeout` must be a number of seconds above 0"):
            PoolEngine(timeout=wrong)


def test_an_engine_object_has_its_own_time_limit():
    with pytest.raises(ValueError, match=r"`timeout`: .*got a PoolEngine object.*timeout=\.\.\."):
        mopbt.run(ToyTask(), out=None, engine=PoolEngine(1), timeout=5)
