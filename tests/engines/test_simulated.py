import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mopbt import MOPBT, Budget, run
from mopbt.algorithms import MOASHA
from mopbt.engines.base import RunContext
from mopbt.engines.local import LocalEngine
from mopbt.engines.pool import PoolEngine
from mopbt.engines.simulated import Lognormal, Measured, PerConfiguration, PerStep, SimulatedEngine
from mopbt.problem import problem_of
from mopbt.results import Results
from mopbt.state import Job
from mopbt.stores.journal import read_journal
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.toy import ToyTask
from mopbt.testing import EngineConformance

TOY = ToyTask(steps=12)  # six intervals of two steps


class TestSimulated(EngineConformance):
    def make(self):
        return SimulatedEngine(8)


class TestRandomTimes(EngineConformance):
    def make(self):
        return SimulatedEngine(8, Lognormal(spread=1.0))


class TestMeasuredTimes(EngineConformance):
    def make(self):
        return SimulatedEngine(8, Measured())


def simulated(engine, tmp_path=None, **options):
    options = {"algorithm": MOPBT(population=8), "progress": False, **options}
    return run(options.pop("task", TOY), out=tmp_path, engine=engine, **options)


def timeline(path):
    """Return when each job began and ended, according to the journal."""
    now, began, ended = 0.0, {}, {}
    for exchange in read_journal(path / "journal.jsonl")[0]:
        for job in exchange.jobs:
            began[job.id] = now
        for report in exchange.reports:
            now = max(now, report.seconds)
            ended[report.job] = report.seconds
    return began, ended


def test_time_is_what_the_cost_model_says(tmp_path):
    results = simulated(SimulatedEngine(8, PerStep(3.0, overhead=0.5)), tmp_path)
    assert results.seconds == pytest.approx(
        6 * (2 * 3.0 + 0.5)
    )  # eight workers for eight members: six rounds
    began, ended = timeline(tmp_path)
    assert {round(ended[j] - began[j], 6) for j in ended} == {6.5}


@pytest.mark.parametrize(("workers", "rounds"), [(1, 8), (3, 3), (4, 2), (5, 2), (8, 1), (100, 1)])
def test_a_generation_takes_as_many_rounds_as_the_workers_need(workers, rounds):
    assert simulated(SimulatedEngine(workers)).seconds == pytest.approx(6 * 2 * rounds)


def test_no_more_jobs_at_a_time_than_workers(tmp_path):
    simulated(
        SimulatedEngine(3, Lognormal(spread=1.0)),
        tmp_path,
        algorithm=MOPBT(population=8, asynchronous=True),
    )
    began, ended = timeline(tmp_path)
    for moment in {*began.values(), *ended.values()}:
        assert sum(began[j] <= moment < ended[j] for j in ended) <= 3


def test_workers_never_idle_while_there_is_work(tmp_path):
    simulated(
        SimulatedEngine(3, Lognormal(spread=1.0)),
        tmp_path,
        algorithm=MOASHA(),
        budget=Budget(jobs=60),
    )
    began, ended = timeline(tmp_path)
    last = max(began.values())
    busy = sum(min(ended[j], last) - began[j] for j in ended)
    assert busy == pytest.approx(3 * last, rel=1e-6)


def test_results_do_not_depend_on_the_time_that_jobs_take():
    """A synchronous run gives the same models on any number of workers of any speed."""
    plain = simulated(LocalEngine())
    for engine in (
        SimulatedEngine(1),
        SimulatedEngine(5, Lognormal(spread=2.0)),
        SimulatedEngine(8, Measured()),
    ):
        other = simulated(engine)
        assert [(p.trial, p.step, p.hp, p.scores) for p in other.front()] == [
            (p.trial, p.step, p.hp, p.scores) for p in plain.front()
        ]


def test_an_asynchronous_run_is_repeatable_to_the_bit(tmp_path):
    for name in ("a", "b"):
        engine = SimulatedEngine(5, Lognormal(spread=0.7))
        simulated(engine, tmp_path / name, algorithm=MOPBT(population=8, asynchronous=True))
    journals = [read_journal(tmp_path / name / "journal.jsonl")[0] for name in ("a", "b")]
    without_durations = [
        [(e.jobs, [replace(r, duration=0.0) for r in e.reports]) for e in journal]
        for journal in journals
    ]
    assert without_durations[0] == without_durations[1]


def test_configurations_can_cost_more_than_others(tmp_path):
    cost = PerConfiguration(lambda hp: 1 + 10 * hp["weight"])
    results = simulated(
        SimulatedEngine(8, cost), tmp_path, algorithm=MOPBT(population=8, asynchronous=True)
    )
    began, ended = timeline(tmp_path)
    for point in results.points():
        assert ended[point.model] - began[point.model] == pytest.approx(
            2 * (1 + 10 * point.hp["weight"]), abs=1e-5
        )


@pytest.mark.slow
def test_random_times_have_the_median_and_the_spread_that_was_said(tmp_path):
    simulated(
        SimulatedEngine(50, Lognormal(2.0, 0.5)),
        tmp_path,
        algorithm=MOPBT(population=200, asynchronous=True),
    )
    began, ended = timeline(tmp_path)
    logs = np.log([(ended[j] - began[j]) / 2 for j in ended])  # two steps a job
    assert np.median(logs) == pytest.approx(np.log(2.0), abs=0.06)
    assert np.std(logs) == pytest.approx(0.5, abs=0.04)


def test_a_straggler_delays_a_synchronous_run_and_not_an_asynchronous_one():
    speeds = [1.0] * 7 + [0.1]
    seconds = {
        kind: simulated(
            SimulatedEngine(8, speeds=speeds), algorithm=MOPBT(population=32, asynchronous=kind)
        ).seconds
        for kind in (False, True)
    }
    assert seconds[False] == pytest.approx(
        6 * 20
    )  # every generation waits for the slow worker's one job
    assert seconds[True] < 0.7 * seconds[False]


def test_dying_workers_cost_time_and_only_repeated_deaths_fail_a_job():
    fine = simulated(SimulatedEngine(4, retries=50, deaths=0.0), algorithm=MOPBT(population=16))
    dying = simulated(
        SimulatedEngine(4, deaths=0.3, restart=5.0, retries=50), algorithm=MOPBT(population=16)
    )
    assert dying.seconds > fine.seconds + 5.0
    assert not dying.failures
    assert [p.scores for p in dying.front()] == [p.scores for p in fine.front()]
    failing = simulated(SimulatedEngine(4, deaths=0.3, retries=0), algorithm=MOPBT(population=16))
    assert 10 < len(failing.failures) < 60  # of 96
    assert "died once" in next(iter(failing.failures.values()))


def test_a_time_budget_cuts_the_run_at_that_virtual_moment(tmp_path):
    cut = simulated(SimulatedEngine(4, PerStep(1.0)), tmp_path, budget=Budget(seconds=11))
    assert cut.outcome == "budget"
    assert len(cut) == 4 * 5  # rounds end at 2, 4, 6, 8 and 10
    more = simulated(SimulatedEngine(4, PerStep(1.0)), tmp_path)
    assert more.outcome == "done"
    assert more.seconds == pytest.approx(24)  # as if it had never been cut


def test_measured_times_are_those_of_the_work(tmp_path):
    results = simulated(SimulatedEngine(4, Measured(100.0)), tmp_path)
    began, ended = timeline(tmp_path)
    duration = {
        r.job: r.duration for e in read_journal(tmp_path / "journal.jsonl")[0] for r in e.reports
    }
    assert all(ended[j] - began[j] == pytest.approx(100 * duration[j], abs=2e-4) for j in ended)
    assert results.seconds > max(duration.values()) * 100


def test_training_can_run_on_the_pool():
    pooled = simulated(SimulatedEngine(8, Lognormal(), engine=PoolEngine(2)))
    here = simulated(SimulatedEngine(8, Lognormal()))
    assert pooled.seconds == pytest.approx(here.seconds, abs=1e-6)  # a file has six digits
    assert [p.scores for p in pooled.front()] == [p.scores for p in here.front()]


KILLED = """
import os, signal, sys
from mopbt import MOPBT, Callback, run
from mopbt.engines.simulated import Lognormal, SimulatedEngine
from mopbt.tasks.toy import ToyTask
class Watcher(Callback):
    def on_report(self, run, reports):
        watch(run.progress)
def watch(progress):
    if progress.reported >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
engine = SimulatedEngine(5, Lognormal(spread=0.7), deaths=0.2, restart=1.0)
algorithm = MOPBT(population=8, asynchronous=True)
run(ToyTask(steps=12), out=sys.argv[1], algorithm=algorithm, engine=engine,
    callbacks=[Watcher()])
"""


@pytest.mark.parametrize(
    "after", [13, *(pytest.param(after, marks=pytest.mark.slow) for after in (1, 30))]
)
def test_a_killed_run_resumes_by_the_same_clock(tmp_path, after):
    """When a job ends does not depend on when the process was killed, even if asynchronous."""

    def finish(path):
        engine = SimulatedEngine(5, Lognormal(spread=0.7), deaths=0.2, restart=1.0)
        simulated(engine, path, algorithm=MOPBT(population=8, asynchronous=True))
        exchanges = read_journal(path / "journal.jsonl")[0]
        jobs = [job for e in exchanges for job in e.jobs]
        return jobs, [
            (r.job, round(r.seconds, 5), r.objectives) for e in exchanges for r in e.reports
        ]

    unbroken = finish(tmp_path / "unbroken")
    path = tmp_path / "killed"
    code = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(after)], check=False, env=os.environ
    ).returncode
    assert code == -signal.SIGKILL
    assert len(Results.open(path)) < 48
    assert finish(path) == unbroken


def test_resuming_with_too_few_workers_is_an_error(tmp_path):
    simulated(SimulatedEngine(8, PerStep(1.0)), tmp_path, budget=Budget(seconds=3))
    with pytest.raises(
        ValueError, match="as many workers as it began with, got 2, which is too few"
    ):
        simulated(SimulatedEngine(2, PerStep(1.0)), tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimulatedEngine(0), "`workers` must be a whole number of at least 1, got 0"),
        (
            lambda: SimulatedEngine(2, speeds=[1.0]),
            "`speeds` must be a number above 0 for each of the 2 workers",
        ),
        (lambda: SimulatedEngine(2, speeds=[1.0, 0.0]), "`speeds` must be a number above 0"),
        (lambda: SimulatedEngine(2, deaths=1.0), "`deaths` must be a probability below 1, got 1.0"),
        (lambda: SimulatedEngine(2, retries=-1), "`retries` must be a whole number of at least 0"),
        (lambda: PerStep(0.0), "`seconds` must be a number above 0, got 0.0"),
        (lambda: PerStep(1.0, overhead=-1.0), "`overhead` must be a number of at least 0"),
        (lambda: Lognormal(1.0, -0.1), "`spread` must be a number of at least 0"),
        (lambda: Measured(0.0), "`factor` must be a number above 0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "model", [PerStep(2.0), PerConfiguration(lambda hp: 2.0), Lognormal(2.0, 0.0)]
)
def test_a_job_that_only_evaluates_is_charged_as_half_an_interval(model):
    problem = replace(problem_of(ToyTask()), interval=4)
    context = RunContext(ToyTask(), problem, 0, MemoryCheckpoints())
    config = problem.space.sample(np.random.default_rng(0))
    assert model(context, Job(0, 0, config, None, 4, 8)) == pytest.approx(8.0)
    assert model(context, Job(1, 1, config, 0, 8, 8)) == pytest.approx(4.0)


def test_a_cost_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="a function whose values are above 0, got 0"):
        simulated(SimulatedEngine(2, PerConfiguration(lambda hp: 0)))


def test_all_that_end_together_report_together(tmp_path):
    simulated(SimulatedEngine(8), tmp_path)
    sizes = [len(e.reports) for e in read_journal(tmp_path / "journal.jsonl")[0] if e.reports]
    assert sizes == list(itertools.repeat(8, 6))
