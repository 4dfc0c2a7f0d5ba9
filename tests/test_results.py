import builtins
import csv
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas
import pytest

from mopbt import Budget, Results, metrics, run
from mopbt.errors import CorruptCheckpoint, MissingExtra, StoreError
from mopbt.front import record_of
from mopbt.state import ErrorBar
from mopbt.tasks.toy import ToyTask


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(
        ToyTask(steps=16),
        out=tmp_path_factory.mktemp("runs") / "toy",
        population=8,
        engine="local",
        progress=False,
    )


def test_front_is_the_non_dominated_set_of_all_evaluations(finished):
    points = list(finished.points())
    scores = np.array([[p.scores["near"], p.scores["far"]] for p in points])
    brute = {
        p.model
        for p, x in zip(points, scores, strict=True)
        if not ((scores >= x).all(1) & (scores > x).any(1)).any()
    }
    assert {p.model for p in finished.front()} == brute
    assert len(points) == len(finished) == 64
    assert finished.front().scores.shape == (len(brute), 2)
    assert "near (max), far (max)" in repr(finished.front())
    assert finished.front()[:2] == tuple(finished.front())[:2]


def test_everything_can_be_read_from_the_directory_alone(finished):
    again = Results.open(finished.path)
    assert again.outcome is None
    assert list(again.front()) == list(finished.front())
    assert again.hypervolume() == finished.hypervolume()
    assert again.records() == finished.records()
    point = again.front()[0]
    assert again.lineage(point) == finished.lineage(point)
    np.testing.assert_array_equal(again.load(point)["place"], finished.load(point)["place"])
    assert again.running == ""


def test_the_records_of_a_front_are_those_of_its_run(finished):
    rows = {record["model"]: record for record in finished.records() if record["front"]}
    front = finished.front()
    assert front.records() == [rows[point.model] for point in front]
    assert front.where("near >= -10").records() == front.records()


def test_records_have_the_errors_of_metrics_that_have_one(finished):
    (point, *_) = finished.front()
    measured = replace(point, errors={"near": ErrorBar(0.1, 0.2, 0.5)})
    record = record_of(measured, on_front=True)
    assert [record[f"{part}.near"] for part in ("stderr", "lower", "upper")] == [0.1, 0.2, 0.5]
    assert "stderr.far" not in record
    assert "stderr.near" not in finished.records()[0]


def test_hypervolume_is_that_of_the_metrics_and_takes_a_named_reference(finished):
    reference = {"near": -1.0, "far": -2.0}
    expected = metrics.hypervolume(finished.front().scores, np.array([-1.0, -2.0]))
    assert finished.hypervolume(reference) == pytest.approx(expected)
    curve = finished.hypervolume_curve(reference)
    assert curve[-1][1] == pytest.approx(expected)
    assert [v for _, v in curve] == sorted(v for _, v in curve)
    assert finished.hypervolume() > 0
    with pytest.raises(
        ValueError, match="`reference` must give a number for each of 'near', 'far', got"
    ):
        finished.hypervolume({"near": 0.0})


class CostTask(ToyTask):
    objectives = {"cost": "min", "far": "max"}

    def evaluate(self, model):
        scores = super().evaluate(model)
        return {"cost": -scores["near"], "far": scores["far"]}


def test_a_minimized_objective_is_flipped_once_and_shown_as_it_is(finished, tmp_path):
    flipped = run(CostTask(steps=16), out=tmp_path, population=8, engine="local", progress=False)
    assert [p.model for p in flipped.front()] == [p.model for p in finished.front()]
    assert [p.scores["cost"] for p in flipped.front()] == [
        -p.scores["near"] for p in finished.front()
    ]
    assert flipped.hypervolume({"cost": 1.0, "far": -2.0}) == pytest.approx(
        finished.hypervolume({"near": -1.0, "far": -2.0})
    )


def test_lineage_goes_back_to_fresh_weights_through_exploits(finished):
    exploits = 0
    for point in finished.front():
        line = finished.lineage(point)
        assert line[0].begin == 0
        assert not line[0].exploited
        assert line[-1].model == point.model
        assert line[-1].scores == point.scores
        assert [a.begin for a in line[1:]] == [a.end for a in line[:-1]]
        exploits += sum(a.exploited for a in line)
        for before, after in pairwise(line):
            assert after.exploited == (before.trial != after.trial)
    assert exploits > 0


def test_schedule_replayed_by_hand_gives_the_same_model(finished):
    """Training along the lineage and the schedule, with the seeds of the jobs, gives the model."""
    from mopbt.rng import derived_seed

    task = ToyTask(steps=16)
    point = finished.front()[len(finished.front()) // 2]
    line = finished.lineage(point)
    model = task.init(derived_seed(0, "init", line[0].trial))
    for a in line:
        model = task.train(model, a.hp, a.begin, a.end, derived_seed(0, "train", a.trial, a.begin))
    assert task.dump(model) == finished.checkpoint(point)
    schedule = finished.schedule(point)
    assert schedule[0][0] == 0
    assert schedule[-1][1] == point.step
    assert all(a[2] != b[2] for a, b in pairwise(schedule))


def test_records_and_pandas_hold_every_report_with_its_configuration(finished):
    frame = finished.to_pandas()
    assert len(frame) == 64
    assert {
        "model",
        "trial",
        "begin",
        "end",
        "parent",
        "hp.weight",
        "hp.lr",
        "score.near",
        "score.far",
        "front",
    } <= set(frame)
    assert frame["front"].sum() == len(finished.front())
    assert (frame["hp.weight"].between(0, 1)).all()
    assert len(finished.front().to_pandas()) == len(finished.front())


def test_a_run_as_csv_reads_back_as_what_it_holds(finished, tmp_path):
    finished.to_csv(tmp_path / "reports.csv")
    read = pandas.read_csv(tmp_path / "reports.csv")
    pandas.testing.assert_frame_equal(
        read, finished.to_pandas().assign(error=math.nan), check_dtype=False
    )
    with pytest.raises(
        ValueError, match=r"the table must be a file in an existing directory, .*, got"
    ):
        finished.to_csv(tmp_path)


def test_csv_holds_failed_reports_with_their_errors(tmp_path):
    class Fragile(ToyTask):
        def train(self, model, config, begin, end, seed):
            if seed % 4 == 0:
                raise ArithmeticError(f"a seed of {seed},\nand a line more")
            return super().train(model, config, begin, end, seed)

    results = run(
        Fragile(steps=8), out=tmp_path / "run", population=8, engine="local", progress=False
    )
    results.to_csv(tmp_path / "reports.csv")
    with (tmp_path / "reports.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    failed = {int(row["model"]): row["error"] for row in rows if not row["score.near"]}
    assert failed == results.failures != {}


def test_pandas_is_optional(finished, monkeypatch):
    real = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingExtra, match=r"pip install 'mopbt\[pandas\]'"):
        finished.to_pandas()


def test_a_point_that_is_not_one(finished):
    with pytest.raises(
        ValueError,
        match="a point must be the id of an evaluated model of this run.*got 9999",
    ):
        finished.load(9999)
    with pytest.raises(ValueError, match="got 'best'"):
        finished.lineage("best")


def test_a_model_that_left_the_front_says_so(finished):
    gone = next(p for p in finished.points() if not finished.checkpoint_file(p).exists())
    with pytest.raises(CorruptCheckpoint, match="does not exist: its model left the front"):
        finished.load(gone)


class ForeignTask(ToyTask):
    def dump(self, model):
        return b"foreign" + super().dump(model)

    def load(self, data):
        return super().load(data[7:])


def test_a_task_with_bytes_of_its_own_is_needed_to_load_them(tmp_path):
    results = run(ForeignTask(steps=4), out=tmp_path, population=4, engine="local", progress=False)
    point = results.front()[0]
    assert "place" in results.load(point)
    with pytest.raises(
        StoreError,
        match=r"only the task 'toy' can load its models: use Results.open\(.*task=\.\.\.\)",
    ):
        Results.open(tmp_path).load(point)
    assert "place" in Results.open(tmp_path, task=ForeignTask()).load(point)


def test_an_empty_run_and_no_run(tmp_path):
    with pytest.raises(StoreError, match=r"is not a run: it has no run\.toml"):
        Results.open(tmp_path)
    run(
        ToyTask(),
        out=tmp_path / "run",
        population=4,
        engine="local",
        progress=False,
        budget=Budget(jobs=1),
    )
    (tmp_path / "run" / "journal.jsonl").unlink()
    empty = Results.open(tmp_path / "run")
    assert (
        len(empty),
        len(empty.front()),
        empty.hypervolume(),
        empty.hypervolume_curve(),
        empty.records(),
    ) == (0, 0, 0.0, [], [])


class Blind(ToyTask):
    def evaluate(self, model):
        return {"near": float("nan"), "far": 1.0}


def test_a_run_that_measured_nothing_but_nan_has_an_empty_curve(tmp_path):
    blind = run(
        Blind(), out=None, population=4, engine="local", progress=False, budget=Budget(jobs=2)
    )
    assert (len(blind.front()), blind.hypervolume(), blind.hypervolume_curve()) == (0, 0.0, [])


class StrictTask(ToyTask):
    constraints = ["near >= 0.2"]


def test_the_front_of_a_constrained_run_is_feasible(tmp_path):
    results = run(StrictTask(steps=16), out=tmp_path, population=8, engine="local", progress=False)
    assert len(results.front()) > 1
    assert all(p.scores["near"] >= 0.2 and p.violation == 0 for p in results.front())
    assert any(p.violation > 0 for p in results.points())


class ImpossibleTask(ToyTask):
    constraints = ["near >= 5"]


def test_where_nothing_is_feasible_the_front_is_what_comes_closest(tmp_path):
    results = run(
        ImpossibleTask(steps=8), out=tmp_path, population=6, engine="local", progress=False
    )
    (only,) = results.front()
    assert only.violation == min(p.violation for p in results.points()) > 0
    assert results.hypervolume() == 0


class ReferencedTask(ToyTask):
    reference = {"near": -1, "far": -2}


def test_a_task_may_name_its_reference_point(finished, tmp_path):
    results = run(
        ReferencedTask(steps=16), out=tmp_path, population=8, engine="local", progress=False
    )
    assert results.hypervolume() == finished.hypervolume({"near": -1.0, "far": -2.0})
    assert Results.open(tmp_path).hypervolume() == results.hypervolume()


def test_spread_picks_models_all_over_the_front(finished):
    front = finished.front()
    few = front.spread(5)
    assert len(few) == 5
    assert {p.model for p in few} <= {p.model for p in front}
    assert few[0] == front[0]
    assert few[-1] == front[-1]
    assert len(front.spread(10_000)) == len(front)
    assert [p.scores["near"] for p in few] == sorted((p.scores["near"] for p in few), reverse=True)
    with pytest.raises(ValueError, match="`n` must be a whole number of at least 1, got 0"):
        front.spread(0)
