import csv
import gzip
import hashlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import mopbt
from mopbt import Results, SimulatedEngine, metrics
from mopbt.algorithms import MOPBT, NSGA2, ParEGO, RandomSearch
from mopbt.cli import app
from mopbt.compare import (
    AlgorithmEntry,
    Comparison,
    Experiment,
    PlannedRun,
    collect,
    compare,
    execute,
    recompute,
    seconds_left,
    workers,
)
from mopbt.compare.collect import about_of
from mopbt.compare.progress import ProgressView
from mopbt.compare.report import FIGURES, write_report
from mopbt.compare.workers import Order, execute_order
from mopbt.engines.simulated import PerStep
from mopbt.errors import (
    DataMissing,
    MissingExtra,
    RunLocked,
    RunMismatch,
    StorageFull,
    StoreError,
    TaskFailed,
)
from mopbt.problem import make_problem
from mopbt.registry import find_task, registered, task_fingerprint
from mopbt.stores.directory import Lock, holder_of
from mopbt.stores.journal import read_journal
from mopbt.tasks import registry as datasets

TESTS = Path(__file__).parent.parent
COST = 0.49  # of which the sums come out a little too large
SHARED = TESTS.parent.parent / "shared" / "data"
EXPERIMENTS = sorted((TESTS.parent / "experiments").glob("*.toml"))
PROBLEMS = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import mopbt
from mopbt.errors import DataMissing
from mopbt.tasks.synthetic import Annealing, TwoQuadratics
from mopbt.tasks import registry
from mopbt.testing import ToyTask
from toys import SlowToy

class Mixed:
    "One objective of each direction, on validation and test data; a category; and intervals that fail or diverge."
    space = {{"rate": mopbt.Grid(0.1, 1.0, 10), "kind": mopbt.Categorical(["plain", "with, comma"]), "n": mopbt.Int(1, 3)}}
    objectives = {{"up": "max", "down": "min"}}
    interval, steps = 1, 4
    def init(self, seed): return {{"x": 0.0}}
    def train(self, model, hp, begin, end, seed):
        rate, _ = hp["rate"], hp["kind"]
        if hp["n"] == 3 and begin == 1:
            raise ValueError("three, is\\n'too' many")
        model["x"] = float("nan") if hp["n"] == 2 and begin == 2 else model["x"] + rate
    def evaluate(self, model):
        x = model["x"]
        return {{"up": x, "down": x ** 2, "test/up": 0.9 * x, "test/down": 1.1 * x ** 2, "other": 7.0}}
    dump, load = staticmethod(mopbt.dumps), staticmethod(mopbt.loads)

class Fatal(ToyTask):
    "Ends its process where a file says so."
    def train(self, model, hp, begin, end, seed):
        if os.path.exists({place!r} + "/fatal") and begin >= 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(model, hp, begin, end, seed)

class Deadly(ToyTask):
    "Some of its configurations end the process."
    def train(self, model, hp, begin, end, seed):
        if hp["weight"] > 0.75:
            os._exit(7)
        return super().train(model, hp, begin, end, seed)

class Fickle(ToyTask):
    "Some of its configurations fail."
    def train(self, model, hp, begin, end, seed):
        if hp["weight"] < 0.55:
            raise RuntimeError("too light")
        return super().train(model, hp, begin, end, seed)

class Broken(ToyTask):
    def train(self, model, hp, begin, end, seed):
        raise RuntimeError("no such luck")

class Absent(ToyTask):
    def __init__(self):
        raise DataMissing("the data set 'absent' is not here")

short, quick, slow = Annealing(steps=6), ToyTask(steps=6), SlowToy(steps=16, seconds=0.02)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a directory with a file of tasks."""
    place = tmp_path_factory.mktemp("compare")
    (place / "problems.py").write_text(PROBLEMS.format(tests=str(TESTS), place=str(place)))
    return place


def task(place, name):
    return f"{place / 'problems.py'}:{name}"


def experiment(place, *tasks, **fields):
    """Return a small experiment of MO-PBT and MO-ASHA in its time."""
    algorithms = {"MO-PBT": {"name": "mo-pbt", "population": 6}, "MO-ASHA": {"name": "mo-asha"}}
    usual = {
        "name": "small",
        "seeds": 2,
        "workers": 4,
        "cost": COST,
        "time_of": "MO-PBT",
        "algorithms": algorithms,
    }
    return Experiment(tasks=tuple(task(place, name) for name in tasks), **(usual | fields))


@pytest.fixture(scope="module")
def small(place):
    """Return a finished comparison of two algorithms on two tasks."""
    out = place / "small"
    return compare(experiment(place, "short", "Mixed"), out=out, jobs=2, progress=False), out


def plain(results):
    """Return the records of a run without real times."""
    records = [
        record | {"seconds": round(record["seconds"], 6)} for record in results.records()
    ]  # as a journal has them
    return [
        {key: repr(value) for key, value in record.items() if key != "duration"}
        for record in records
    ]


def by_run(comparison):
    return {PlannedRun(run.task, run.algorithm, run.seed): run for run in comparison.runs}


# Runs


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
            seed=seed,
            engine=SimulatedEngine(4, PerStep(COST)),
            progress=False,
        )
        assert plain(Results.open(out / run.directory)) == plain(alone)


def test_those_without_an_end_get_the_time_of_the_slowest_run(small, place):
    comparison, _ = small
    for name in ("short", "Mixed"):
        mine, theirs = (
            [r for r in comparison.runs if (r.task, r.algorithm) == (task(place, name), a)]
            for a in comparison.algorithms
        )
        slowest = max(run.seconds.max() for run in mine)
        # Six members on four workers take two rounds for each of six (four) steps; the sum of their costs is a little above this.
        rounds = {"short": 12, "Mixed": 8}[name]
        assert slowest == pytest.approx(rounds * COST)
        assert [run.seconds.max() for run in theirs] == pytest.approx([slowest] * 2)
        assert [len(run) for run in theirs] == [4 * rounds] * 2


def test_the_slowest_run_counts_where_they_take_different_times(place, tmp_path):
    algorithms = {
        "random search": {"name": "random-search", "population": 4},
        "MO-ASHA": {"name": "mo-asha"},
    }
    uneven = experiment(
        place, "Mixed", seeds=4, workers=1, time_of="random search", algorithms=algorithms
    )  # what fails ends early
    comparison = compare(uneven, out=tmp_path / "out", jobs=2, progress=False)
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


def test_one_task_can_be_run_now_and_the_others_later(small, place, tmp_path):
    """Also where the data of the others are not there."""
    whole, first = experiment(place, "short", "Absent"), task(place, "short")
    part = compare(whole, out=tmp_path / "out", tasks=[first], jobs=2, progress=False)
    assert {run.task for run in part.runs} == {first}
    assert {run.task for run in part.missing} == {task(place, "Absent")}
    with pytest.raises(
        DataMissing, match="'absent' is not here; or run other tasks first: `tasks`, or --task NAME"
    ):
        compare(whole, out=tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match="`tasks` must be one of .*short.*, got 'shrt'"):
        compare(whole, out=tmp_path / "out", tasks=["shrt"], progress=False)
    again = compare(whole, out=tmp_path / "out", tasks=[first], progress=False)
    of_small = [run for run in small[0].runs if run.task == first]
    assert [run.objectives.tolist() for run in again.runs] == [
        run.objectives.tolist() for run in of_small
    ]


def test_models_go_unless_they_are_to_be_kept(small, place, tmp_path):
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
    assert results.settings.seed == 3
    assert all(results.load(point) for point in results.front())


def test_what_was_done_with_what_is_recorded(small, place):
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


# The table


def table_of(out):
    with gzip.open(out / "evaluations.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def as_text(value):
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def test_the_table_has_what_the_runs_have(small):
    comparison, out = small
    rows = table_of(out)
    expected = {}
    for run in by_run(comparison):
        for record in Results.open(out / run.directory).records():
            failed = bool(record["error"])
            row = {
                "task": run.task,
                "algorithm": run.algorithm,
                "seed": run.seed,
                "step": record["end"],
            }
            row |= {key: record[key] for key in ("job", "trial", "seconds", "duration", "error")}
            row |= {"violation": math.inf if failed else record["violation"]}
            row |= {
                key: value for key, value in record.items() if key.startswith(("score.", "config."))
            }
            expected[run.task, run.algorithm, run.seed, record["job"]] = row
    columns = list(rows[0])
    assert len(rows) == len(expected) == sum(map(len, comparison.runs))
    assert any(row["error"] for row in rows)
    assert any(row["config.kind"] == "with, comma" for row in rows)
    for row in rows:
        want = expected[row["task"], row["algorithm"], int(row["seed"]), int(row["job"])]
        assert row == {column: as_text(want.get(column)) for column in columns}
    assert columns[:10] == [
        "task",
        "algorithm",
        "seed",
        "job",
        "trial",
        "step",
        "seconds",
        "duration",
        "violation",
        "error",
    ]
    assert columns[10:12] == ["score.first", "score.second"]
    assert columns[-3:] == ["config.rate", "config.kind", "config.n"]


def test_columns_are_those_of_the_table(small):
    comparison, out = small
    columns, rows = comparison.evaluations(), table_of(out)
    assert list(columns) == list(rows[0])
    for name, column in columns.items():
        texts = [as_text(value) for value in column.tolist()]
        assert (texts if name != "config.n" else [text.removesuffix(".0") for text in texts]) == [
            row[name] for row in rows
        ]
    assert columns["config.n"].dtype == float  # with NaN for the other task


def test_arrays_are_larger_is_better_and_in_the_order_of_completion(small, place):
    comparison, out = small
    runs = by_run(comparison)
    for seed, label in product((0, 1), comparison.algorithms):
        planned = PlannedRun(task(place, "Mixed"), label, seed)
        run, results = runs[planned], Results.open(out / planned.directory)
        exchanges, _ = read_journal(out / planned.directory / "journal.jsonl")
        assert run.jobs.tolist() == [
            report.job for exchange in exchanges for report in exchange.reports
        ]
        assert (np.diff(run.seconds) >= 0).all()
        up, down = run.scores["up"], run.scores["down"]
        np.testing.assert_array_equal(run.objectives, np.column_stack([up, -down]))
        np.testing.assert_array_equal(
            run.test, np.column_stack([run.scores["test/up"], -run.scores["test/down"]])
        )
        assert {run.jobs[row]: error for row, error in run.errors.items()} == results.failures()
        assert np.isinf(run.violations).nonzero()[0].tolist() == list(run.errors)
        assert np.isnan(run.objectives[list(run.errors)]).all()
        positions = dict(zip(run.jobs.tolist(), run.positions.tolist(), strict=True))
        for point in results.points():
            assert results.problem.space.encode(point.hp) == tuple(positions[point.job])
    assert any(run.errors for run in comparison.runs)
    assert any(
        (np.isnan(run.objectives).any(axis=1) & np.isfinite(run.violations)).any()
        for run in comparison.runs
    )  # diverged


def test_without_test_scores_there_is_no_test(place, tmp_path):
    only = experiment(
        place, "quick", seeds=1, time_of=None, algorithms={"A": {"name": "mo-pbt", "population": 2}}
    )
    (run,) = compare(only, out=tmp_path / "out", jobs=1, progress=False).runs
    assert run.test is None
    assert run.steps.tolist() == [2, 2, 4, 4, 6, 6]


def test_the_same_evaluations_make_the_same_file_also_from_the_journals_alone(small, place):
    comparison, out = small
    before = (out / "evaluations.csv.gz").read_bytes()
    (out / "evaluations.csv.gz").unlink()
    again = recompute(experiment(place, "short", "Mixed"), out=out)
    assert (out / "evaluations.csv.gz").read_bytes() == before
    assert len(again.runs) == len(comparison.runs)


cells = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.floats()), min_size=1
)


@given(cells)
@example([("\r", 0.0), ("a\nb", math.nan), ("", -0.0), ('"', math.inf), ("a,b", 5e-324)])
def test_cells_are_read_back_as_they_were(rows):
    texts, numbers = (
        np.array([text for text, _ in rows], dtype=object),
        np.array([number for _, number in rows]),
    )
    lines = "".join(
        f"{line}\n"
        for line in map(",".join, zip(collect._texts(texts), collect._texts(numbers), strict=True))
    )
    back = list(csv.reader(io.StringIO(lines, newline="")))
    assert [text for text, _ in back] == texts.tolist()
    np.testing.assert_array_equal([float(number or "nan") for _, number in back], numbers)


def test_cells_that_are_equal_and_of_other_kinds_stay_apart():
    cells = np.array([1, True, 1.0, "1", 0, False, ""], dtype=object)
    assert collect._texts(cells) == ["1", "True", "1.0", "1", "0", "False", ""]


def test_parquet_says_what_it_needs_or_has_the_same_table(small, place):
    comparison, out = small
    try:
        import pyarrow.parquet
    except ImportError:
        with pytest.raises(MissingExtra, match="Parquet needs pyarrow: pip install pyarrow"):
            compare(experiment(place, "short", "Mixed"), out=out, progress=False, parquet=True)
        return
    recompute(experiment(place, "short", "Mixed"), out=out, parquet=True)
    table = pyarrow.parquet.read_table(out / "evaluations.parquet")
    for name, column in comparison.evaluations().items():
        cells = table.column(name).to_pylist()
        assert [as_text(cell) for cell in cells] == [as_text(cell) for cell in column.tolist()], (
            name
        )
    assert table.schema.field("error").type == pyarrow.string()


# Trouble


@pytest.mark.slow
def test_a_run_whose_process_dies_is_reported_and_the_others_go_on(place, tmp_path):
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
    assert "the worker process died 3 times while it carried out this job (exit code -9)" in first
    assert second == "needs the time of 'MO-PBT', of which a run failed"
    (place / "fatal").unlink()
    repair_journal = compare(fatal, out=tmp_path / "out", jobs=2, progress=False)
    assert repair_journal.missing == ()
    assert repair_journal.failures == {}
    alone = mopbt.run(
        find_task(dead)[0],
        out=None,
        algorithm=MOPBT(population=6),
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


def test_the_cost_is_that_of_configurations_that_can_be_trained(place, tmp_path):
    algorithms = {"A": {"name": "random-search", "population": 8}}
    fickle = experiment(
        place, "Fickle", seeds=1, cost="measured", time_of=None, algorithms=algorithms
    )
    comparison = compare(fickle, out=tmp_path / "out", jobs=1, progress=False)
    assert not comparison.missing
    assert about_of(tmp_path / "out")["tasks"][fickle.tasks[0]]["cost"] >= 1e-4
    with pytest.raises(
        TaskFailed, match="failed with each of three configurations; mend it, or give `cost`"
    ):
        compare(
            experiment(place, "Broken", cost="measured"),
            out=tmp_path / "broken",
            jobs=1,
            progress=False,
        )


def test_two_processes_do_not_go_on_with_the_same_comparison(place, tmp_path):
    """They measured the cost of a step each, and the runs of one table had different times."""
    out = tmp_path / "out"
    out.mkdir()
    held = Lock(out / "lock", "hint")
    with pytest.raises(
        RunLocked,
        match=r"out is being driven by process \d+ .*--only-report and --reuse read a comparison",
    ):
        compare(experiment(place, "quick"), out=out, jobs=1, progress=False)
    held.release()
    assert not compare(experiment(place, "quick"), out=out, jobs=1, progress=False).missing


def test_runs_of_another_cost_are_not_held_against_each_other(place, tmp_path):
    out, quick = tmp_path / "out", experiment(place, "quick", cost="measured")
    compare(quick, out=out, jobs=1, progress=False)
    about = about_of(out)
    about["tasks"][quick.tasks[0]]["cost"] = 123.0
    (out / "about.json").write_text(json.dumps(about))
    (out / quick.plan()[0].directory / "finished.json").unlink()
    with pytest.raises(
        RunMismatch,
        match=r"was run with .* virtual seconds a step, and about.json says 123.0; restore that file",
    ):
        compare(quick, out=out, jobs=1, progress=False)


def test_a_run_that_was_begun_at_another_cost_is_begun_anew(place, tmp_path):
    out, quick = tmp_path / "out", experiment(place, "quick", seeds=1)
    compare(quick, out=out, jobs=1, progress=False)
    first = out / quick.plan()[0].directory
    changed(first, "0.49", "0.4")
    (first / "finished.json").unlink()
    compare(quick, out=out, jobs=1, progress=False)
    assert "0.49" in (first / "run.toml").read_text()


@pytest.mark.parametrize(("name", "text"), [("about.json", "{"), ("finished.json", "")])
def test_a_torn_file_is_named(small, place, tmp_path, name, text):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    folder = (
        tmp_path / "out" if name == "about.json" else tmp_path / "out" / usual.plan()[0].directory
    )
    (folder / name).write_text(text)
    with pytest.raises(StoreError, match=rf"{folder / name} is damaged \(.*\); re"):
        recompute(usual, out=tmp_path / "out")


def test_a_run_that_was_not_copied_whole_is_told(small, place, tmp_path):
    """It counted as a run of hypervolume 0."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    (tmp_path / "out" / usual.plan()[0].directory / "journal.jsonl").unlink()
    with pytest.raises(
        StoreError,
        match=r"mo-pbt/0 is not as its run left it: it has no journal.jsonl; put back a copy of it, or",
    ):
        recompute(usual, out=tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("counted", ["bytes", "evaluations"])
def test_a_finished_run_that_is_damaged_is_told_before_anything_is_run(
    small, place, tmp_path, counted
):
    """It was found after all the others had been trained, and cost the tables."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    first, *_, last = [tmp_path / "out" / run.directory for run in usual.plan()]
    shutil.rmtree(last)
    if counted == "evaluations":  # as the first versions marked runs
        marker = json.loads((first / "finished.json").read_text())
        del marker["bytes"]
        (first / "finished.json").write_text(json.dumps(marker))
    lines = (first / "journal.jsonl").read_text().splitlines(keepends=True)
    (first / "journal.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(
        StoreError,
        match=rf"mo-pbt/0 is not as its run left it: it.* has \d+ {counted}.*finished.json says \d+; put",
    ):
        compare(usual, out=tmp_path / "out", jobs=1, progress=False)
    assert not last.exists()
    other = compare(
        replace(usual, name="other"),
        out=tmp_path / "other",
        jobs=1,
        progress=False,
        reuse=[tmp_path / "out"],
    )
    assert not other.missing, "and it is not taken over, but run"
    assert len(other.runs[0]) == len(small[0].runs[0])
    shutil.rmtree(first)
    assert not compare(usual, out=tmp_path / "out", jobs=1, progress=False).missing, (
        "the remedy that is told"
    )


def test_a_mark_that_counts_other_evaluations_is_told(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    changed(
        tmp_path / "out" / usual.plan()[0].directory,
        '"evaluations": 36',
        '"evaluations": 35',
        file="finished.json",
    )
    with pytest.raises(
        StoreError,
        match=r"mo-pbt/0 is not as its run left it: it has 36 evaluations .*finished.json says 35; put back",
    ):
        recompute(usual, out=tmp_path / "out")


def test_a_journal_that_cannot_be_read_has_a_remedy_that_does_not_spoil_the_comparison(
    small, place, tmp_path
):
    """`mopbt resume --repair` would make failed intervals of what was lost, and train on where no end is set."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    first = tmp_path / "out" / usual.plan()[0].directory
    text = (first / "journal.jsonl").read_text()
    (first / "journal.jsonl").write_text(text.replace("0", "1", 40))
    with pytest.raises(
        StoreError,
        match=r"(?s)remove that directory, and the same command without --only-report runs it anew",
    ) as told:
        recompute(usual, out=tmp_path / "out")
    assert "--repair" not in str(told.value)
    refused = CliRunner().invoke(app, ["resume", str(first), "--repair"])
    assert "belongs to a comparison" in str(refused.exception)


@pytest.mark.parametrize("text", ["[]", "{}", '{"real": 1}'])
def test_a_mark_that_lacks_something_is_named(small, place, tmp_path, text):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    mark = tmp_path / "out" / usual.plan()[0].directory / "finished.json"
    mark.write_text(text)
    with pytest.raises(
        StoreError, match=rf"{mark} is damaged \(it .*\); remove it, and the run goes on"
    ):
        recompute(usual, out=tmp_path / "out")


def test_a_run_that_went_past_its_time_is_begun_anew(place, tmp_path, capfd):
    """MO-ASHA has no end of its own: what else went on with its directory gave it more time than MO-PBT."""
    order = Order(
        path=str(tmp_path / "run"), task=task(place, "short"), algorithm={"name": "mo-asha"}, constraints=(), seed=0, workers=4,
        cost=COST, stack=1, seconds=8 * COST, keep_models=True, task_fingerprint=task_fingerprint(task(place, "short")),
    )  # fmt: skip
    execute_order(order, lambda _: None)
    (tmp_path / "run" / "finished.json").unlink()
    assert execute_order(replace(order, seconds=4 * COST), lambda _: None)["seconds"] <= 4 * COST
    assert (
        "begins anew: it has gone on to 3.43 virtual seconds, and its time is 1.96"
        in capfd.readouterr().err
    )


def test_code_that_changes_while_a_comparison_runs_is_not_mistaken(tmp_path):
    """Runs were marked with the code that was there when they began, and trained with that of when their process began."""
    (tmp_path / "mine.py").write_text(
        "from mopbt.testing import ToyTask\nclass Mine(ToyTask):\n    pass\n"
    )
    reference = f"{tmp_path / 'mine.py'}:Mine"
    order = Order(
        path=str(tmp_path / "one"), task=reference, algorithm={"name": "random-search", "population": 2}, constraints=(), seed=0,
        workers=2, cost=COST, stack=1, seconds=None, keep_models=False, task_fingerprint=task_fingerprint(reference),
    )  # fmt: skip
    execute_order(order, lambda _: None)
    with (tmp_path / "mine.py").open("a") as file:
        file.write("    more = 1\n")
    execute_order(
        replace(order, path=str(tmp_path / "two")), lambda _: None
    )  # this process has the old code, and says so
    assert order.task_fingerprint in (tmp_path / "two" / "run.toml").read_text()
    with pytest.raises(
        RunMismatch,
        match=r"the code of .*mine.py:Mine was changed while the comparison ran; the same command goes",
    ):
        execute_order(
            replace(
                order, path=str(tmp_path / "three"), task_fingerprint=task_fingerprint(reference)
            ),
            lambda _: None,
        )


def test_a_comparison_that_was_published_without_its_runs_is_not_replaced(small, place, tmp_path):
    """Going on trained everything anew, and wrote tables of one run over the published ones."""
    shutil.copytree(small[1], tmp_path / "out", ignore=shutil.ignore_patterns("runs", "lock"))
    write_report(small[0], tmp_path / "out", figures=False)
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with pytest.raises(
        RunMismatch,
        match=r"out was published without its 8 runs: .*; use another directory for `out`",
    ):
        compare(experiment(place, "short", "Mixed"), out=tmp_path / "out", progress=False)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_a_full_disk_ends_the_plan(place, tmp_path, monkeypatch):
    """Each of the other runs began, and failed by itself."""
    asked = []

    class Full:
        def submit(self, message, tell=None):
            asked.append(message)
            future = Future()
            future.set_result(workers._answer(message, lambda _: None))
            return future

    def no_space(order, tell):
        raise StorageFull("no space left to write it")

    monkeypatch.setattr(workers, "execute_order", no_space)
    monkeypatch.setattr(execute, "crew_of", lambda jobs: nullcontext(Full()))
    comparison = compare(
        experiment(place, "quick", engine="local"), out=tmp_path / "out", jobs=1, progress=False
    )
    assert len(asked) == 1
    assert sorted(comparison.failures.values()) == [
        "no space left to write it",
        *["not begun, as there is no space left"] * 3,
    ]


def test_a_comparison_is_not_mistaken_for_a_run(small):
    with pytest.raises(
        StoreError,
        match=r"small is not a run: .*it is a comparison: `mopbt compare .* --only-report` makes its report",
    ):
        Results.open(small[1])


def test_runs_of_two_versions_in_one_comparison_are_told(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    mark = tmp_path / "out" / usual.plan()[0].directory
    changed(
        mark,
        f'\\"version\\": \\"{mopbt.__version__}\\"',
        '\\"version\\": \\"0.0.9\\"',
        file="finished.json",
    )
    mixed = recompute(usual, out=tmp_path / "out")
    assert mixed.versions == ("0.0.9", mopbt.__version__)
    write_report(mixed, tmp_path / "out", figures=False)
    assert (
        f"The runs were made by mopbt 0.0.9 and {mopbt.__version__}, which may decide diff"
        in (tmp_path / "out/tables.md").read_text()
    )


def test_a_cost_that_was_given_is_not_taken_for_one_that_was_measured(place, tmp_path):
    given = experiment(place, "quick", seeds=1)
    compare(given, out=tmp_path / "given", jobs=1, progress=False)
    compare(
        replace(given, cost="measured"),
        out=tmp_path / "out",
        jobs=1,
        progress=False,
        reuse=[tmp_path / "given"],
    )
    assert about_of(tmp_path / "out")["tasks"][given.tasks[0]]["cost"] != COST


def test_a_scale_of_the_experiment_alone_leaves_tasks_as_they_are(place, tmp_path):
    """A task in a file of one's own comes in one size, and could not be run in any scale."""
    quick = experiment(place, "quick", scales={"quick": {"seeds": 1}})
    assert (
        len(compare(quick, out=tmp_path / "quick", scale="quick", jobs=1, progress=False).runs) == 2
    )
    with pytest.raises(
        ValueError,
        match=r"`scale` must be one of 'paper', 'quick', or left out, got 'quik'; did you mean 'quick'\?",
    ):
        compare(quick, out=tmp_path / "quik", scale="quik", jobs=1, progress=False)
    with pytest.raises(RunMismatch, match="another scale: it is None, it was quick"):
        recompute(quick, out=tmp_path / "quick", scale="paper")
    assert execute._in_scale(quick, "adult-fairness", "quick")[0] == "adult-fairness"
    assert execute._in_scale(quick, "adult-fairness", "small")[0] == "adult-fairness@small"
    assert execute._in_scale(quick, "adult-fairness@smoke", "small")[0] == "adult-fairness@smoke"


def test_runs_of_another_version_are_not_taken_over(place, tmp_path):
    """Its schedulers may decide otherwise: random search once duration half as long again on some numbers of workers."""
    one = experiment(place, "quick", seeds=1)
    compare(one, out=tmp_path / "one", jobs=1, progress=False)
    first, second = (tmp_path / "one" / run.directory for run in one.plan())
    changed(
        first,
        f'\\"version\\": \\"{mopbt.__version__}\\"',
        '\\"version\\": \\"0.0.9\\"',
        file="finished.json",
    )
    compare(one, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    taken = [
        (tmp_path / "two" / run.directory / "journal.jsonl").read_bytes() for run in one.plan()
    ]
    assert [
        (run / "journal.jsonl").read_bytes() == journal
        for run, journal in zip((first, second), taken, strict=True)
    ] == [
        False,  # its real seconds are others
        True,
    ]


MADE_OF = {
    "mine.py": "import math\nimport helper\nfrom parts import weights\nimport parts.deep.layers as layers\n",
    "helper.py": "from constants import RATE\n",
    "constants.py": "RATE = 1\n",
    "parts/__init__.py": "",
    "parts/weights.py": "from . import scales\nfrom .deep.layers import size\n",
    "parts/scales.py": "from .. import nothing\n",
    "parts/deep/__init__.py": "from ..weights import cycle\n",
    "parts/deep/layers.py": "size = 1\n",
    "other.py": "import mine\n",
}


@pytest.mark.parametrize("changed_file", MADE_OF)
def test_a_task_is_made_of_what_its_file_imports_from_its_folder(tmp_path, changed_file):
    for name, text in MADE_OF.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    reference = f"{tmp_path / 'mine.py'}:task"
    before = task_fingerprint(reference)
    shutil.copytree(tmp_path, tmp_path / "moved")
    assert task_fingerprint(f"{tmp_path / 'moved' / 'mine.py'}:task") == before, "wherever it is"
    (tmp_path / changed_file).write_text(MADE_OF[changed_file] + "more = 1\n")
    assert (task_fingerprint(reference) != before) == (changed_file != "other.py")


def test_a_task_of_one_file_is_made_of_that_file(tmp_path):
    (tmp_path / "mine.py").write_text("import math, mopbt\n")
    assert (
        task_fingerprint(f"{tmp_path / 'mine.py'}:task")
        == hashlib.sha256(b"import math, mopbt\n").hexdigest()
    )
    (tmp_path / "mine.py").write_text("def broken(:\n")
    assert task_fingerprint(
        f"{tmp_path / 'mine.py'}:task"
    )  # what is wrong with it is told by who imports it


@pytest.mark.slow
def test_the_cost_of_another_task_of_the_same_name_is_not_taken_over(place, tmp_path):
    quick = experiment(place, "quick", seeds=1, cost="measured")
    compare(quick, out=tmp_path / "one", jobs=1, progress=False)
    about = about_of(tmp_path / "one")
    about["tasks"][quick.tasks[0]]["cost"] = 0.123
    (tmp_path / "one" / "about.json").write_text(json.dumps(about))
    compare(quick, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert about_of(tmp_path / "two")["tasks"][quick.tasks[0]]["cost"] == 0.123
    for run in quick.plan():
        changed(tmp_path / "one" / run.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    compare(quick, out=tmp_path / "three", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert about_of(tmp_path / "three")["tasks"][quick.tasks[0]]["cost"] != 0.123


def test_what_has_changed_since_all_runs_is_told(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    assert compare(usual, out=tmp_path / "out", progress=False).changed == ()
    for run in usual.plan():
        changed(tmp_path / "out" / run.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    assert compare(usual, out=tmp_path / "out", progress=False).changed == usual.tasks


def test_parquet_that_is_there_is_kept_up_to_date(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    (tmp_path / "out" / "evaluations.parquet").write_text("old")
    recompute(experiment(place, "short", "Mixed"), out=tmp_path / "out")
    assert (tmp_path / "out" / "evaluations.parquet").read_bytes()[:4] == b"PAR1"


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


COMMAND = [sys.executable, "-c", "from mopbt.cli import main; main()", "compare"]


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it duration too long"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_goes_on_after_a_signal_as_if_nothing_had_happened(place, tmp_path, number):
    slow = experiment(place, "slow", seeds=2)
    (tmp_path / "slow.toml").write_text(slow.to_toml())
    command = [*COMMAND, "slow.toml", "--out", "out", "--jobs", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    runs = [tmp_path / "out" / run.directory for run in slow.plan()]
    asha = runs[2] / "journal.jsonl"
    wait_until(
        lambda: asha.exists() and asha.read_text().count("reports") >= 2
    )  # so that both runs of MO-PBT are finished
    (tmp_path / "signalled").touch()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    told, signalled = (
        (tmp_path / name).stat().st_mtime_ns for name in ("out/about.json", "signalled")
    )
    assert (told >= signalled) == (number == signal.SIGINT), (
        "what a session duration is written down where it can be"
    )
    assert ("stopped (interrupted); nothing reported is lost" in errors) == (
        number == signal.SIGINT
    )
    wait_until(lambda: not any(holder_of(run) for run in runs), 10)
    before = {
        run: (run / "journal.jsonl").read_bytes()
        for run in runs
        if (run / "journal.jsonl").exists()
    }
    assert [(run / "finished.json").exists() for run in runs[:2]] == [True, True]
    assert not all((run / "finished.json").exists() for run in runs)
    comparison = compare(tmp_path / "slow.toml", out=tmp_path / "out", jobs=2, progress=False)
    for run, journal in before.items():
        assert (run / "journal.jsonl").read_bytes().startswith(journal[: journal.rfind(b"\n") + 1])
        is_finished = runs.index(run) < 2
        assert ((run / "journal.jsonl").read_bytes() == journal) == is_finished
    whole = compare(slow, out=tmp_path / "whole", jobs=2, progress=False)
    for mine, theirs in zip(comparison.runs, whole.runs, strict=True):
        for name in ("jobs", "trials", "steps", "seconds", "objectives", "positions"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_a_run_with_holes_is_begun_anew(place, tmp_path):
    """Nothing waits for the disk, so a power cut may leave reports without their checkpoints: no member may pay for that."""
    order = Order(
        path=str(tmp_path / "run"), task=task(place, "short"), algorithm={"name": "mo-pbt", "population": 6}, constraints=(),
        seed=0, workers=4, cost=COST, stack=1, seconds=4 * COST, keep_models=False, task_fingerprint=task_fingerprint(task(place, "short")),
    )  # fmt: skip
    execute_order(replace(order, keep_models=True), lambda _: None)
    (tmp_path / "run" / "finished.json").unlink()
    max((tmp_path / "run" / "checkpoints").glob("*.ckpt"), key=lambda file: int(file.stem)).unlink()
    whole = execute_order(
        replace(order, path=str(tmp_path / "whole"), seconds=None), lambda _: None
    )
    anew = execute_order(replace(order, seconds=None), lambda _: None)
    assert (anew["evaluations"], anew["failures"]) == (whole["evaluations"], 0)
    assert plain(Results.open(tmp_path / "run")) == plain(Results.open(tmp_path / "whole"))


def test_what_a_kill_may_leave_is_no_obstacle(place, tmp_path):
    (tmp_path / "experiment.toml.123.tmp").touch()
    one = experiment(
        place, "short", seeds=1, algorithms={"MO-PBT": {"name": "mo-pbt", "population": 6}}
    )
    half = tmp_path / f"{one.plan()[0].directory}.tmp"  # a copy in the making
    assert not compare(one, out=tmp_path, jobs=1, progress=False).missing
    half.mkdir()
    (half / "run.toml").touch()
    shutil.rmtree(tmp_path / one.plan()[0].directory)
    compare(replace(one, name="other"), out=tmp_path.with_name("other"), jobs=1, progress=False)
    again = compare(one, out=tmp_path, jobs=1, progress=False, reuse=[tmp_path.with_name("other")])
    assert not again.missing
    assert not half.exists()


def test_a_report_of_nothing_touches_nothing(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out", ignore=shutil.ignore_patterns("runs"))
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with pytest.raises(
        StoreError, match="has no finished run, so there is nothing to compute from"
    ):
        recompute(experiment(place, "short", "Mixed", about="another word"), out=tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_what_is_said_about_an_experiment_may_change(small, place, tmp_path):
    shutil.copytree(small[1], tmp_path / "out")
    told = experiment(place, "short", "Mixed", about="now I know", figures=("final",))
    assert recompute(told, out=tmp_path / "out").experiment.figures == ("final",)
    assert "now I know" in (tmp_path / "out" / "experiment.toml").read_text()


def changed(path, old, new, file="run.toml"):
    text = (path / file).read_text()
    assert old in text
    (path / file).write_text(text.replace(old, new))


def test_a_task_that_has_changed_is_told(small, place, tmp_path):
    """Runs of two versions of a task in one table would be held against each other."""
    shutil.copytree(small[1], tmp_path / "out")
    usual = experiment(place, "short", "Mixed")
    first, *_, last = [run for run in usual.plan() if run.task.endswith("short")]
    changed(tmp_path / "out" / last.directory, 'task_fingerprint = "', 'task_fingerprint = "0')
    assert recompute(usual, out=tmp_path / "out").mixed == (first.task,)
    changed(tmp_path / "out" / last.directory, "steps = 6", "steps = 5")
    with pytest.raises(RunMismatch, match=r"runs of .*short in .* are of different tasks"):
        recompute(usual, out=tmp_path / "out")
    (tmp_path / "out" / first.directory / "finished.json").unlink()
    with pytest.raises(
        RunMismatch,
        match=r"the task has changed since .* was run: steps is 6, it was 5; change it back",
    ):
        compare(usual, out=tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    "change", [('task_fingerprint = "', 'task_fingerprint = "x'), ("steps = 6", "steps = 5")]
)
def test_runs_of_a_task_that_has_changed_are_not_taken_over(place, tmp_path, change):
    one = experiment(
        place, "short", seeds=1, algorithms={"MO-PBT": {"name": "mo-pbt", "population": 6}}
    )
    directory = one.plan()[0].directory
    compare(one, out=tmp_path / "one", jobs=1, progress=False)
    changed(tmp_path / "one" / directory, *change)
    compare(one, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert change[1] in (tmp_path / "one" / directory / "run.toml").read_text()
    assert change[1] not in (tmp_path / "two" / directory / "run.toml").read_text()


def test_a_directory_belongs_to_one_experiment_in_one_scale(small, place, tmp_path):
    _, out = small
    usual = experiment(place, "short", "Mixed")
    other = replace(
        usual,
        seeds=(0, 5),
        algorithms=usual.algorithms
        | {"MO-ASHA": {"name": "mo-asha", "eta": 2}, "X": {"name": "pbt"}},
    )
    with pytest.raises(RunMismatch) as raised:
        compare(other, out=out, progress=False)
    for piece in (
        "seeds is [0, 5], it was [0, 1]",
        "algorithm 'MO-ASHA' is {'name': 'mo-asha', 'eta': 2}, it was {'name': 'mo-asha'}",
        "algorithm 'X' is {'name': 'pbt'}, it was 'not there'",
        "use it again, or another directory",
    ):
        assert piece in str(raised.value)
    with pytest.raises(RunMismatch, match="seeds is"):
        recompute(other, out=out)
    with pytest.raises(RunMismatch, match="another scale: it is small, it was None"):
        compare(
            replace(usual, scales={"small": {"seeds": 2}}), out=out, scale="small", progress=False
        )
    (tmp_path / "note").touch()
    with pytest.raises(RunMismatch, match="is not a comparison and not empty"):
        compare(usual, out=tmp_path, progress=False)
    with pytest.raises(StoreError, match="is not a comparison: it has no experiment.toml"):
        Comparison.open(tmp_path)
    assert (
        compare(
            replace(usual, about="otherwise the same", figures=("final",)), out=out, progress=False
        ).missing
        == ()
    )


# Experiments

GOOD = """
name = "good"
seeds = 2
tasks = ["toy", "annealing"]
time_of = "MO-PBT"
[algorithms]
"MO-PBT" = { name = "mo-pbt" }
"MO-ASHA" = { name = "mo-asha" }
"""

WRONG = [
    ("seeds = 2", "seed = 2", "an experiment has no 'seed'; it has name, tasks, algorithms, about, seeds, workers, cost, time_of"),
    ('name = "good"', "", "an experiment needs `name` as well"),
    ('name = "good"', "name = 3", "`name` must be a text with a letter of a to z or a digit, of at most 200 letters and without"),
    ('name = "good"', 'name = "τ"', "as a directory is named after it, got 'τ'"),
    ('name = "good"', 'name = "../up"', "as a directory is named after it, got '../up'"),
    ("seeds = 2", "seeds = 0", "`seeds` must be a whole number of at least 1, or a list of different ones, got 0"),
    ("seeds = 2", "seeds = [[1]]", "`seeds` must be a whole number of at least 0, got [1]"),
    ("seeds = 2", 'seeds = 2\nfigures = ["pie"]', "`figures` must be one of 'progress', 'fronts'"),
    ("[algorithms]", "[scales.small]\nalgorithms = 3\n[algorithms]", "`algorithms of small` must be a list of texts, got 3"),
    ("[algorithms]", '[scales.small]\nalgorithms = "MO-PBT"\n[algorithms]', "must be a list of texts, got 'MO-PBT'"),
    ('"MO-ASHA" =', f'"{"long " * 50}" =', "must differ in the letters a to z and digits, and have at most 200 of them"),
    ("seeds = 2", "seeds = [1, 1]", "`seeds` must be a whole number of at least 1, or a list of different ones, got [1, 1]"),
    ("seeds = 2", "seeds = [-1]", "`seeds` must be a whole number of at least 0, got -1"),
    ("seeds = 2", 'seeds = "two"', "`seeds` must be a whole number of at least 1, or a list of different ones, got 'two'"),
    ("seeds = 2", "workers = 0", "`workers` must be a whole number of at least 1, got 0"),
    ("seeds = 2", "cost = 0", "`cost` must be seconds, at least 0.0001 and with up to six decimals, or 'measured', got 0"),
    ("seeds = 2", 'cost = "dear"', "with up to six decimals, or 'measured', got 'dear'"),
    ("seeds = 2", "cost = 0.00001", "`cost` must be seconds, at least 0.0001"),
    ("seeds = 2", "cost = 0.1234567", "with up to six decimals, or 'measured', got 0.1234567"),
    ("seeds = 2", "cost = inf", "or 'measured', got inf"),
    ("seeds = 2", "cost = true", "`cost` must be seconds, at least 0.0001 and with up to six decimals, or 'measured', got True"),
    ("seeds = 2", 'engine = "pool"', "`engine` must be one of 'auto', 'local', 'vectorized', got 'pool'"),
    ("seeds = 2", "keep_models = 1", "`keep_models` must be one of True, False, got 1"),
    ("seeds = 2", 'figures = "final"', "`figures` must be a list of texts, got 'final'"),
    ('["toy", "annealing"]', "[]", "`tasks` must be a list of texts, at least one of them, got []"),
    ('["toy", "annealing"]', '["toy", "Toy!"]', "`tasks` must differ in the letters a to z and digits, and have"),
    ('"MO-ASHA" =', '"mo-pbt" =', "`algorithms` must differ in the letters a to z and digits, and have"),
    ('time_of = "MO-PBT"', 'time_of = "PBT"', "`time_of` must be one of 'MO-PBT', 'MO-ASHA', got 'PBT'"),
    ('name = "mo-asha"', 'name = "asha"', "algorithm 'MO-ASHA': `algorithm` must be one of mo-pbt, random-search"),
    ('name = "mo-asha"', 'kind = "x"', "algorithm 'MO-ASHA' must be a table with a name, such as { name = \"mo-pbt\" }"),
    ('name = "mo-asha"', 'name = "mo-asha", tau = 1', "mo-asha has no option 'tau'; it has eta, grace, kind, scale"),
    ('name = "mo-asha"', 'name = "mo-asha", tau = 1', "an entry may also have constraints, seed_offset, tasks, time_of"),
    ('name = "mo-asha"', 'name = "mo-asha", eta = 1', "algorithm 'MO-ASHA': `eta` must be a whole number of at least 2, got 1"),
    ('name = "mo-asha"', 'name = "mo-asha", tasks = ["adult"]', "`tasks of MO-ASHA` must be one of 'toy', 'annealing'"),
    ('name = "mo-asha"', 'name = "mo-asha", seed_offset = -1', "`seed_offset` must be a whole number of at least 0, got -1"),
    ('name = "mo-asha"', 'name = "mo-asha", constraints = ["near"]', "a constraint must read like 'accuracy >= 0.7'"),
    ("[algorithms]", '[scales.small]\nseed = 1\n[algorithms]', "the scale 'small' has no 'seed'; it has seeds, workers"),
    ("[algorithms]", "[scales.small]\nseeds = 0\n[algorithms]", "`seeds` must be a whole number of at least 1"),
    ("[algorithms]", '[scales.small]\nalgorithms = ["PBT"]\n[algorithms]', "`algorithms of small` must be one of 'MO-PBT'"),
    ('"MO-ASHA" =', '"MO\\nASHA" =', "`algorithms` must have labels of one line that can be printed, got 'MO\\nASHA'"),
    ("name =", "name", "is not TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_what_is_wrong_in_a_file_is_said_with_what_is_right(tmp_path, old, new, message):
    assert old in GOOD
    (tmp_path / "wrong.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError) as raised:
        Experiment.read(tmp_path / "wrong.toml")
    assert message in str(raised.value)
    assert "wrong.toml" in str(raised.value)


IMPOSSIBLE = [
    ('"toy"', '"nosuch"', "TASK must be one of"),
    ('time_of = "MO-PBT"\n', "", "`time_of` must name one that has, and is run on toy ('MO-PBT'), got None"),
    ('time_of = "MO-PBT"', 'time_of = "MO-ASHA"', "'MO-ASHA' has no end of its own: `time_of` must name one that has"),
    ('name = "mo-pbt"', 'name = "mo-pbt", tasks = ["toy"]', "is run on annealing (there is none), got 'MO-PBT'"),
    ('name = "mo-pbt"', 'name = "mo-pbt", time_of = "MO-PBT"', "'MO-PBT' has an end of its own: leave out its `time_of`"),
    ('name = "mo-asha"', 'name = "pbt", objective = 2', "'MO-ASHA' on toy: `objective` must be one of 'near', 'far' or"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_said_before_anything_is_run(tmp_path, old, new, message):
    assert old in GOOD
    (tmp_path / "wrong.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError) as raised:
        compare(tmp_path / "wrong.toml", out=tmp_path / "out", progress=False)
    assert message in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(
        ValueError, match="there is no file .*nosuch.toml; name an experiment's file"
    ):
        Experiment.read(tmp_path / "nosuch.toml")


def test_an_experiment_is_the_same_after_writing_and_reading(place, tmp_path):
    whole = experiment(
        place,
        "short",
        about="ü",
        scales={"small": {"seeds": 1, "workers": 2, "algorithms": ["MO-PBT"]}},
    )
    (tmp_path / "whole.toml").write_text(whole.to_toml())
    read = Experiment.read(tmp_path / "whole.toml")
    assert read == whole
    assert read.to_toml() == (tmp_path / "whole.toml").read_text()
    assert (
        read.at("small").seeds,
        read.at("small").workers,
        list(read.at("small").algorithms),
    ) == ((0,), 2, ["MO-PBT"])
    assert read.at(None) == read.at("paper") == read


def test_an_experiment_that_was_changed_since_it_was_read_is_written_as_it_is(place, tmp_path):
    (tmp_path / "whole.toml").write_text(experiment(place, "short").to_toml())
    fewer = replace(Experiment.read(tmp_path / "whole.toml"), seeds=(1,))
    (tmp_path / "fewer.toml").write_text(fewer.to_toml())
    assert Experiment.read(tmp_path / "fewer.toml") == fewer


def test_the_papers_scale_is_the_usual_one(place, tmp_path):
    one = experiment(
        place, "short", seeds=1, algorithms={"MO-PBT": {"name": "mo-pbt", "population": 6}}
    )
    compare(one, out=tmp_path, jobs=1, progress=False)
    assert compare(one, out=tmp_path, scale="paper", progress=False).runs
    assert recompute(one, out=tmp_path, scale="paper").runs


@pytest.mark.parametrize(
    ("cells", "typed"),
    [
        (["b", "a", 3], ["b", "a", "3"]),
        ([0, 0.5, ""], [0.0, 0.5, math.nan]),
        ([True, False, ""], [True, False, None]),
        ([True, 0.5, ""], ["True", "0.5", ""]),
        (["", ""], ["", ""]),
    ],
)
def test_a_column_of_mixed_values_has_one_type_where_types_are_known(cells, typed):
    column = collect._typed("config.x", np.array(cells, dtype=object))
    np.testing.assert_array_equal(column, np.array(typed, dtype=column.dtype))


def test_what_is_a_text_is_one_in_every_comparison():
    """The errors of a comparison without any were a column of numbers, and two files could not be put together."""
    assert collect._typed("error", np.array(["", ""], dtype=object)).tolist() == ["", ""]


def test_a_column_that_not_all_tasks_have_keeps_its_kind():
    """Truth values became 1.0 and 0.0."""
    tables = [{"job": np.arange(2), "config.on": np.array([True, False])}, {"job": np.arange(1)}]
    assert collect._joined("config.on", tables).tolist() == [True, False, ""]
    assert collect._joined("config.on", tables[:1]).dtype == bool


def test_runs_that_give_others_their_time_come_first_on_each_task():
    algorithms = {
        "C": {"name": "mo-asha"},
        "B": {"name": "random-search", "tasks": ["two"]},
        "A": {"name": "mo-pbt"},
    }
    runs = Experiment(
        name="x", tasks=("one", "two"), seeds=(4,), time_of="A", algorithms=algorithms
    ).plan()
    assert [(run.task, run.algorithm) for run in runs] == [
        ("one", "A"),
        ("one", "C"),
        ("two", "A"),
        ("two", "C"),
        ("two", "B"),
    ]
    assert runs[0].directory == Path("runs", "one", "a", "4")


def test_the_population_of_a_scale_is_that_of_all_who_leave_it_open():
    def made(**options):
        return AlgorithmEntry(options=options).algorithm(16)

    assert made(name="mo-pbt") == MOPBT(population=16)
    assert made(name="mo-pbt", population=64) == MOPBT(population=64)
    assert made(name="random-search") == RandomSearch(population=16)
    assert made(name="nsga2") == NSGA2(population=8, trainings=16)
    assert made(name="parego") == ParEGO(trainings=16)
    assert execute._in_scale(Experiment.read(EXPERIMENTS[0]), "toy", "small") == ("toy", 32)
    assert execute._in_scale(Experiment.read(EXPERIMENTS[0]), "cifar10-robustness", "small") == (
        "cifar10-robustness@small",
        16,
    )
    assert execute._in_scale(
        Experiment.read(EXPERIMENTS[0]), "cifar10-robustness@smoke", "small"
    ) == (
        "cifar10-robustness@smoke",
        4,
    )
    assert execute._in_scale(Experiment.read(EXPERIMENTS[0]), "cifar10-robustness", None) == (
        "cifar10-robustness",
        32,
    )


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
@pytest.mark.parametrize("scale", [None, "small", "smoke"])
def test_the_experiments_of_the_paper_can_be_run(file, scale):
    read = Experiment.read(file)
    assert read.name == file.stem
    assert read.about
    assert set(read.figures) <= set(FIGURES)
    assert scale is None or scale in read.scales
    here = read.at(scale)
    for name in here.tasks:
        family = registered()[name].load()
        family = family() if isinstance(family, type) else family
        problem = make_problem(
            name=name,
            space=family.space,
            objectives=family.objectives,
            constraints=(),
            interval=1,
            steps=50,
        )
        labels = [label for label in here.entries if here.has(name, label)]
        needs_budget = frozenset(
            label for label in labels if execute._is_endless(here, name, label, problem, 32)
        )
        for label in labels:
            execute._check_time(
                here,
                name,
                label,
                needs_budget,
                [other for other in labels if other not in needs_budget],
            )


def test_the_rows_of_the_papers_tables_are_there():
    rows = [
        name
        for kind in ("tabular", "images")
        for name in Experiment.read(TESTS.parent / f"experiments/tables-5-7-{kind}.toml").tasks
    ]
    assert len(rows) == 9
    assert {name.partition("-")[2] for name in rows} == {
        "precision-recall",
        "fairness",
        "fairness-3",
        "robustness",
    }


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Return where all experiments are made in their smallest size: they have runs in common."""
    with pytest.MonkeyPatch.context() as patch:
        if SHARED.is_dir() and "MOPBT_DATA" not in os.environ:
            patch.setenv("MOPBT_DATA", str(SHARED))
        yield tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_every_experiment_runs_in_its_smallest_size(file, smoke):
    pytest.importorskip("matplotlib")
    sets = {
        family.dataset
        for name in Experiment.read(file).tasks
        if hasattr(family := registered()[name].load(), "dataset")
    }
    if absent := sorted(name for name in sets if datasets.state(name) == "missing"):
        pytest.skip(f"the data of {', '.join(absent)} are not here")
    out = smoke / file.stem
    comparison = compare(file, out=out, scale="smoke", jobs=1, progress=False, reuse=[smoke])
    assert not comparison.missing
    assert not comparison.failures
    assert {run.algorithm for run in comparison.runs} == set(
        Experiment.read(file).at("smoke").algorithms
    )
    written = write_report(comparison, out)
    assert {path.suffix for path in written} >= {".md", ".tex", ".csv", ".png"}


# The harness checks itself


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
    seeds_of = {
        Results.open(tmp_path / "out" / run.directory).settings.seed
        for run in check.plan()
        if run.algorithm == "other seeds"
    }
    assert seeds_of == set(range(1000, 1000 + seeds))


def test_constraints_of_an_entry_are_beside_those_of_the_task(place, tmp_path):
    own = {"name": "mo-pbt", "population": 4}
    algorithms = {"free": own, "bound": own | {"constraints": ["up >= 100"]}}
    bound = experiment(place, "Mixed", seeds=1, time_of=None, algorithms=algorithms)
    runs = by_run(compare(bound, out=tmp_path / "out", jobs=1, progress=False))
    free, bound = (runs[PlannedRun(task(place, "Mixed"), label, 0)] for label in algorithms)
    finite = np.isfinite(bound.objectives[:, 0])
    np.testing.assert_allclose(bound.violations[finite], (100 - bound.objectives[finite, 0]) / 100)
    assert set(free.violations.tolist()) <= {0.0, math.inf}


@pytest.mark.slow
def test_runs_that_another_comparison_has_are_not_repeated(small, place, tmp_path):
    made, out = small
    wider = {
        "MO-PBT": {"name": "mo-pbt", "population": 6},
        "MO-ASHA": {"name": "mo-asha"},
        "new": {"name": "random-search", "population": 6},
    }
    again = experiment(place, "short", name="again", algorithms=wider)
    comparison = compare(again, out=tmp_path / "out", jobs=1, progress=False, reuse=[place])
    theirs, mine = by_run(made), by_run(comparison)
    for run, registry in mine.items():
        path = tmp_path / "out" / run.directory / "finished.json"
        is_copy = (
            path.read_bytes() == (out / run.directory / "finished.json").read_bytes()
            if run in theirs
            else False
        )
        assert is_copy == (run.algorithm != "new"), run
        if is_copy:
            np.testing.assert_array_equal(registry.objectives, theirs[run].objectives)
    assert len(comparison.runs) == 6
    Results.open(tmp_path / "out" / again.plan()[0].directory)  # a run like any other
    (source,) = about_of(tmp_path / "out")["taken_over"].items()
    assert source[0] == "small"
    assert (source[1]["runs"], set(source[1]["sessions"][0])) == (4, {"machine", "versions"})


@pytest.mark.slow
def test_runs_of_a_project_that_has_moved_are_taken_over(place, tmp_path, monkeypatch):
    """With their models where these are kept; and a cost of 1 is one of 1.0."""
    one = experiment(place, "quick", seeds=1, cost=1, keep_models=True)
    compare(one, out=tmp_path / "one", jobs=1, progress=False)
    shutil.copy(place / "problems.py", tmp_path / "problems.py")
    monkeypatch.delitem(sys.modules, "problems")  # of this process, which has it from where it was
    moved = experiment(tmp_path, "quick", seeds=1, cost=1.0, keep_models=True)
    compare(moved, out=tmp_path / "two", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert about_of(tmp_path / "two")["taken_over"]["one"]["runs"] == 2
    results = Results.open(tmp_path / "two" / moved.plan()[0].directory)
    assert len(results.load(results.front()[0]))
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    for run in one.plan():
        changed(
            tmp_path / "three" / run.directory, 'task_fingerprint = "', 'task_fingerprint = "0'
        )  # of the same name, and other code
    compare(
        replace(moved, name="four"),
        out=tmp_path / "four",
        jobs=1,
        progress=False,
        reuse=[tmp_path / "one", tmp_path / "three"],
    )
    assert about_of(tmp_path / "four")["taken_over"]["one"]["runs"] == 2
    shutil.rmtree(tmp_path / "three")
    bare = replace(moved, keep_models=False)
    compare(bare, out=tmp_path / "bare", jobs=1, progress=False, reuse=[tmp_path / "one"])
    assert about_of(tmp_path / "bare")["taken_over"]["one"]["runs"] == 2
    compare(moved, out=tmp_path / "three", jobs=1, progress=False, reuse=[tmp_path / "bare"])
    assert "taken_over" not in about_of(tmp_path / "three"), "there are no models to take over"


@pytest.mark.slow
def test_runs_that_differ_in_anything_are_run(small, place, tmp_path):
    for change in (
        {"workers": 3},
        {"cost": 2 * COST},
        {"algorithms": {"MO-PBT": {"name": "mo-pbt", "population": 4}}},
    ):
        other = experiment(
            place,
            "short",
            seeds=1,
            **({"algorithms": {"MO-PBT": {"name": "mo-pbt", "population": 6}}} | change),
        )
        out = tmp_path / str(list(change))
        compare(other, out=out, jobs=1, progress=False, reuse=[place])
        marker = other.plan()[0].directory / "finished.json"
        assert (out / marker).read_bytes() != (small[1] / marker).read_bytes()


# What is shown


def test_time_left_is_that_of_the_runs_most_alike():
    runs = {(t, a, s): PlannedRun(t, a, s) for t, a, s in product("xy", "AB", (0, 1))}
    plan = list(runs.values())
    assert seconds_left(plan, {}, {}) == 0
    duration = {runs["x", "A", 0]: 10.0, runs["x", "B", 0]: 30.0}
    # x A 1: 10, of which a quarter is done; x B 1: 30; the four of y: 20 each, as nothing of y is over.
    assert seconds_left(plan, duration, {runs["x", "A", 1]: 0.25}) == 7.5 + 30 + 4 * 20
    duration[runs["y", "A", 0]] = 100.0
    assert seconds_left(plan, duration, {}) == 10 + 30 + 100 + 2 * 100
    assert seconds_left(plan, duration, {}, jobs=2) == (10 + 30 + 100 + 2 * 100) / 2
    duration |= dict.fromkeys(plan[:-1], 100.0)
    assert seconds_left(plan, duration, {plan[-1]: 0.1}, jobs=2) == pytest.approx(90), (
        "the last one cannot be shared"
    )


def test_time_left_is_told_before_the_first_run_is_over(monkeypatch):
    runs = [PlannedRun("x", "A", seed) for seed in range(4)]
    now = [0.0]
    monkeypatch.setattr("mopbt.compare.progress.time.monotonic", lambda: now[0])
    with ProgressView("mine", runs, {}, 2, shown=False) as board:
        board.begin(runs[0])
        assert "left" not in board._line()
        board.share(
            runs[0], 0.5
        )  # it goes on from a session before: what that duration is not known
        assert "left" not in board._line()
        now[0] = 30.0
        board.share(
            runs[0], 0.75
        )  # a quarter in 30 s: 120 s a run, of which 30 and three whole ones are to go, two at a time
        assert "3:15 left" in board._line()
        now[0] = 60.0
        board.end(
            runs[0], {"finished": {"real": 200.0}}
        )  # what it duration all in all is known now
        assert "5:00 left" in board._line()
        board.begin(runs[1])
        board.end(runs[1], {"failed": "RuntimeError: no such luck"})
        board.give_up(runs[2], "needs the time of 'A'")
        assert board._line().endswith("3:20 left | 2 failed")


def test_the_command_runs_and_its_report_can_be_made_again(place, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    small = experiment(place, "quick", name="quick", figures=("final",))
    (tmp_path / "quick.toml").write_text(small.to_toml())
    done = subprocess.run(
        [*COMMAND, "quick.toml", "--jobs", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "comparisons" / "quick"
    assert (
        "Tables of 4 runs are in comparisons/quick/tables.md, figures in comparisons/quick/figures."
        in done.stdout
    )
    assert "4/4 runs" in done.stderr
    assert (out / "experiment.toml").read_text() == small.to_toml()
    assert (out / "figures" / "final.png").exists()
    assert json.loads((out / "about.json").read_text())["sessions"][0]["command"].endswith(
        "compare quick.toml --jobs 2"
    )
    authors_variant = {
        name: (out / name).read_bytes()
        for name in ("tables.csv", "tables.md", "tables.tex", "evaluations.csv.gz")
    }
    for name in authors_variant:
        (out / name).unlink()
    monkeypatch.chdir(tmp_path)
    assert invoked("quick.toml", "--recompute").exit_code == 0
    assert {name: (out / name).read_bytes() for name in authors_variant} == authors_variant
    (out / small.plan()[-1].directory / "finished.json").unlink()
    partial = invoked("quick.toml", "--only-report")
    assert "Tables of 3 runs" in partial.stdout
    assert (
        "Missing runs: 1; rerun the same command without --only-report to complete them."
        in partial.stdout
    )


def invoked(*arguments):
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command_says_what_is_wrong_and_which_runs_failed(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text(GOOD.replace("seeds", "seed"))
    assert "wrong.toml: an experiment has no 'seed'" in str(invoked("wrong.toml").exception)
    Path("good.toml").write_text(GOOD)
    assert "elsewhere is not a comparison" in str(
        invoked("good.toml", "--only-report", "--out", "elsewhere").exception
    )
    for option in (("--task", "annealing"), ("--reuse", "."), ("--jobs", "2")):
        assert f"leave out {option[0]}" in str(
            invoked("good.toml", "--only-report", *option).exception
        )
    broken = experiment(
        place,
        "Broken",
        seeds=1,
        time_of=None,
        algorithms={"A": {"name": "mo-pbt", "population": 4}},
    )
    Path("broken.toml").write_text(broken.to_toml())
    failed = invoked("broken.toml", "--out", "broken", "--jobs", "1", "--quiet")
    assert failed.exit_code == 1
    assert "Missing runs: 1; rerun the same command to complete them." in failed.stdout
    assert "RuntimeError: no such luck" in failed.stderr
    assert "The tracebacks of the failures are in about.json." in failed.stdout
    (trace,) = about_of(Path("broken"))["failures"].values()
    assert "problems.py" in trace


def test_without_matplotlib_there_are_tables(small, place, tmp_path, monkeypatch):
    """It had said so before, and then failed."""
    shutil.copytree(small[1], tmp_path / "small")
    (tmp_path / "small.toml").write_text(experiment(place, "short", "Mixed").to_toml())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = invoked(str(tmp_path / "small.toml"), "--out", str(tmp_path / "small"), "--only-report")
    assert done.exit_code == 0, done.exception
    assert "tables.md, no figure: matplotlib is not installed." in done.stdout.replace("\n", "")
