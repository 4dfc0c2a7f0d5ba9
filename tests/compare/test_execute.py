"""Running a comparison."""

import json
import shutil
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest

import mopbt
from compare.helpers import COST, ONE_RUN, by_run, experiment, plain, task
from mopbt import Results, SimulatedEngine, metrics
from mopbt.algorithms import MOPBT
from mopbt.compare import (
    Experiment,
    PlannedRun,
    compare,
    execute,
    worker,
)
from mopbt.compare.directory import read_about
from mopbt.compare.plan import task_seed
from mopbt.engines.simulated import PerStep
from mopbt.errors import (
    DataMissing,
    RunLocked,
    StorageFull,
    TaskFailed,
)
from mopbt.locking import Lock
from mopbt.problem import problem_of
from mopbt.registry import find_task


def test_the_plan_is_complete_and_in_the_order_of_the_experiment(small, place):
    comparison, _ = small
    tasks = [task(place, "short"), task(place, "Mixed")]
    assert list(by_run(comparison)) == [
        PlannedRun(*run) for run in product(tasks, ["MO-PBT", "MO-ASHA"], [0, 1])
    ]
    assert comparison.missing == ()
    assert comparison.failures == {}
    assert list(comparison.problems) == tasks
    assert comparison.algorithms == ("MO-PBT", "MO-ASHA")


@pytest.mark.parametrize("name", ["short", "Mixed"])
def test_a_run_of_a_comparison_is_the_run_that_one_gets_alone(small, place, name):
    _, out = small
    for seed in (0, 1):
        run = PlannedRun(task(place, name), "MO-PBT", seed)
        alone = mopbt.run(
            find_task(run.task)[0],
            out=None,
            algorithm=MOPBT(population=6),
            seed=task_seed(seed, problem_of(find_task(run.task)[0]).name),
            engine=SimulatedEngine(4, PerStep(COST)),
            progress=False,
        )
        assert plain(Results.open(out / run.directory)) == plain(alone)


def test_algorithms_without_an_end_get_the_time_of_the_slowest_run(small, place):
    comparison, _ = small
    for name in ("short", "Mixed"):
        mine, theirs = (
            [r for r in comparison.runs if (r.task, r.algorithm) == (task(place, name), a)]
            for a in comparison.algorithms
        )
        slowest = max(run.seconds.max() for run in mine)
        # Six members on four workers take two rounds for each of six (four) steps. The sum of their
        # costs is slightly larger.
        rounds = {"short": 12, "Mixed": 8}[name]
        assert slowest == pytest.approx(rounds * COST)
        assert [run.seconds.max() for run in theirs] == pytest.approx([slowest] * 2)
        assert [len(run) for run in theirs] == [4 * rounds] * 2


@pytest.mark.slow
def test_the_slowest_run_counts_where_they_take_different_times(place, tmp_path):
    algorithms = {
        "random search": {"name": "random-search", "population": 4},
        "MO-ASHA": {"name": "mo-asha"},
    }
    # A training that fails ends early, so the runs take different times.
    uneven = experiment(
        place, "Mixed", seeds=4, workers=1, time_of="random search", algorithms=algorithms
    )
    comparison = compare(uneven, out=tmp_path / "out", jobs=1, progress=False)
    times = {
        label: [run.seconds.max() for run in comparison.runs if run.algorithm == label]
        for label in algorithms
    }
    assert min(times["random search"]) < max(times["random search"])
    assert times["MO-ASHA"] == pytest.approx([max(times["random search"])] * 4)


def test_finished_runs_are_not_repeated_and_nothing_is_started_for_them(small, place):
    comparison, out = small
    journals = {file: file.stat().st_mtime_ns for file in out.rglob("journal.jsonl")}
    assert len(journals) == 8
    again = compare(experiment(place, "short", "Mixed"), out=out, progress=False)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("journal.jsonl")} == journals
    assert len(json.loads((out / "about.json").read_text())["sessions"]) == 1
    assert [run.objectives.tolist() for run in again.runs if run.errors == {}] == [
        run.objectives.tolist() for run in comparison.runs if run.errors == {}
    ]


@pytest.mark.slow
def test_one_task_can_be_run_now_and_the_others_later(small, place, tmp_path):
    """This works even if the data of the others are missing."""
    both = experiment(place, "short", "Absent", seeds=1)
    first = task(place, "short")
    part = compare(both, out=tmp_path / "out", tasks=[first], jobs=1, progress=False)
    assert {run.task for run in part.runs} == {first}
    assert {run.task for run in part.missing} == {task(place, "Absent")}
    with pytest.raises(
        DataMissing, match="'absent' is not here; or run other tasks first: `tasks`, or --task NAME"
    ):
        compare(both, out=tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match="`tasks` must be one of .*short.*, got 'shrt'"):
        compare(both, out=tmp_path / "out", tasks=["shrt"], progress=False)
    again = compare(both, out=tmp_path / "out", tasks=[first], progress=False)
    of_small = [run for run in small[0].runs if (run.task, run.seed) == (first, 0)]
    assert [run.objectives.tolist() for run in again.runs] == [
        run.objectives.tolist() for run in of_small
    ]


def test_models_are_removed_unless_they_are_to_be_kept(small, place, tmp_path):
    _, out = small
    assert not list(out.rglob("*.ckpt"))
    kept = experiment(
        place,
        "quick",
        seeds=[3],
        keep_models=True,
        time_of=None,
        algorithms={"A": {"name": "mo-pbt", "population": 4}},
    )
    compare(kept, out=tmp_path / "kept", jobs=1, progress=False)
    results = Results.open(tmp_path / "kept" / kept.plan()[0].directory)
    assert results.settings.seed == task_seed(3, results.problem.name)
    assert all(results.load(point) for point in results.front())


def test_command_machine_and_versions_are_recorded(small, place):
    _, out = small
    about = json.loads((out / "about.json").read_text())
    (session,) = about["sessions"]
    assert session["jobs"] == 2
    assert session["versions"]["numpy"] == np.__version__
    assert session["machine"]["cores"] >= 1
    assert session["machine"]["processor"]
    assert about["seconds"] == pytest.approx(session["seconds"])
    assert len(about["runs"]) == 8
    assert all(run["real"] > 0 for run in about["runs"].values())
    assert about["tasks"] == {
        task(place, name): {"cost": COST, "engine": "local"} for name in ("short", "Mixed")
    }
    assert Experiment.read(out / "experiment.toml") == experiment(place, "short", "Mixed")


@pytest.mark.slow
def test_a_measured_cost_is_measured_once(place, tmp_path):
    algorithms = {
        "A": {"name": "mo-pbt", "population": 4},
        "B": {"name": "random-search", "population": 4},
    }
    measured = experiment(
        place, "slow", seeds=1, cost="measured", time_of=None, algorithms=algorithms
    )
    out = tmp_path / "out"
    compare(measured, out=out, jobs=1, progress=False)
    cost = json.loads((out / "about.json").read_text())["tasks"][task(place, "slow")]["cost"]
    assert cost == pytest.approx(0.01, rel=0.9)  # 0.02 seconds for an interval of two steps
    shutil.rmtree(out / "runs")
    about = json.loads((out / "about.json").read_text())
    about["tasks"][task(place, "slow")]["cost"] = 0.25
    (out / "about.json").write_text(json.dumps(about))
    again = compare(measured, out=out, jobs=1, progress=False)
    times = {run.algorithm: run.seconds[0] for run in again.runs}
    assert times == {"A": 0.5, "B": 0.5}


@pytest.mark.slow
def test_the_cost_is_that_of_configurations_that_can_be_trained(place, tmp_path):
    algorithms = {"A": {"name": "random-search", "population": 8}}
    fickle = experiment(
        place, "Fickle", seeds=1, cost="measured", time_of=None, algorithms=algorithms
    )
    comparison = compare(fickle, out=tmp_path / "out", jobs=1, progress=False)
    assert not comparison.missing
    assert read_about(tmp_path / "out")["tasks"][fickle.tasks[0]]["cost"] >= 1e-4
    with pytest.raises(
        TaskFailed, match="failed with each of three configurations; fix the task, or set `cost`"
    ):
        compare(
            experiment(place, "Broken", cost="measured"),
            out=tmp_path / "broken",
            jobs=1,
            progress=False,
        )


def test_two_processes_do_not_run_the_same_comparison(place, tmp_path):
    """Each would measure the cost of a step, and runs of one table would have different times."""
    out = tmp_path / "out"
    out.mkdir()
    held = Lock(out / "lock", "hint")
    with pytest.raises(
        RunLocked,
        match=r"out is locked by process \d+ .*--only-report and --reuse read a comparison",
    ):
        compare(experiment(place, "quick"), out=out, jobs=1, progress=False)
    held.release()
    one = experiment(place, "quick", **ONE_RUN)
    assert not compare(one, out=out, jobs=1, progress=False).missing


@pytest.mark.slow
def test_a_run_whose_process_dies_is_reported_and_the_others_continue(place, tmp_path):
    fatal = experiment(place, "Fatal", "quick", seeds=1)
    (place / "fatal").touch()
    comparison = compare(fatal, out=tmp_path / "out", jobs=2, progress=False)
    dead = task(place, "Fatal")
    assert {run.task for run in by_run(comparison)} == {task(place, "quick")}
    assert [run.task for run in comparison.missing] == [dead, dead]
    assert list(comparison.failures) == [
        PlannedRun(dead, "MO-PBT", 0),
        PlannedRun(dead, "MO-ASHA", 0),
    ]
    first, second = comparison.failures.values()
    assert "intervals in a row failed" in first
    assert "the worker process died 3 times while it executed this job (exit code -9)" in first
    assert second == "needs the time of 'MO-PBT', of which a run failed"
    (place / "fatal").unlink()
    repaired = compare(fatal, out=tmp_path / "out", jobs=2, progress=False)
    assert repaired.missing == ()
    assert repaired.failures == {}
    alone = mopbt.run(
        find_task(dead)[0],
        out=None,
        algorithm=MOPBT(population=6),
        seed=task_seed(0, problem_of(find_task(dead)[0]).name),
        engine=SimulatedEngine(4, PerStep(COST)),
        progress=False,
    )
    assert plain(Results.open(tmp_path / "out" / PlannedRun(dead, "MO-PBT", 0).directory)) == plain(
        alone
    )


@pytest.mark.slow
def test_a_configuration_that_ends_its_process_costs_its_interval_and_not_the_run(place, tmp_path):
    deadly = experiment(place, "Deadly", seeds=1)
    comparison = compare(deadly, out=tmp_path / "out", jobs=1, progress=False)
    assert (comparison.missing, comparison.failures) == ((), {})
    first, _ = comparison.runs
    weights = first.positions[:, 0] / 10
    assert {
        row: "the worker process died 3 times" in error for row, error in first.errors.items()
    } == dict.fromkeys(np.flatnonzero(weights > 0.75).tolist(), True)
    assert first.errors


def test_a_task_that_always_fails_is_reported_with_its_error(place, tmp_path, capfd):
    broken = experiment(
        place,
        "Broken",
        seeds=1,
        time_of=None,
        algorithms={"A": {"name": "mo-pbt", "population": 4}},
    )
    comparison = compare(broken, out=tmp_path / "out", jobs=1)
    assert "RuntimeError: no such luck" in comparison.failures[broken.plan()[0]]
    shown = capfd.readouterr().err
    assert "A, seed 0: failed: 4 intervals in a row failed" in shown
    assert "0/1 runs" in shown
    assert "1 failed" in shown


def test_a_full_disk_ends_the_plan(place, tmp_path, monkeypatch):
    """Otherwise each of the other runs would start and fail by itself."""
    asked = []

    class FullDisk(execute.WorkerPool):
        def start(self, spec):
            asked.append(spec)

        def receive(self):
            message = {"run": asdict(asked[-1])}
            return asked[-1].path, worker.answer_message(message, lambda _: None)

    def no_space(spec, report_share):
        raise StorageFull("no space left to write it")

    monkeypatch.setattr(worker, "execute_run", no_space)
    monkeypatch.setattr(execute, "WorkerPool", FullDisk)
    comparison = compare(
        experiment(place, "quick", engine="local"), out=tmp_path / "out", jobs=1, progress=False
    )
    assert len(asked) == 1
    assert sorted(comparison.failures.values()) == [
        "no space left to write it",
        *["not started, because there is no space left"] * 3,
    ]


@pytest.mark.slow
def test_an_algorithm_does_not_differ_from_itself_under_other_seeds(place, tmp_path):
    seeds, own = 6, {"name": "mo-pbt", "population": 4}
    algorithms = {"A": own, "the same": own, "other seeds": own | {"seed_offset": 1000}}
    check = experiment(place, "short", seeds=seeds, time_of=None, algorithms=algorithms)
    comparison = compare(check, out=tmp_path / "out", jobs=2, progress=False)
    values = {label: np.zeros(seeds) for label in algorithms}
    for run in comparison.runs:
        values[run.algorithm][run.seed] = metrics.hypervolume(run.objectives, [0.0, 0.0])
    np.testing.assert_array_equal(values["A"], values["the same"])
    differences = values["other seeds"] - values["A"]
    assert (differences != 0).all()
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=seeds)]
    assert np.mean(np.array(sums) >= abs(differences.sum()) - 1e-12) > 0.05
    others = [run for run in check.plan() if run.algorithm == "other seeds"]
    opened = [Results.open(tmp_path / "out" / run.directory) for run in others]
    expected = {task_seed(seed, opened[0].problem.name) for seed in range(1000, 1000 + seeds)}
    assert {results.settings.seed for results in opened} == expected
