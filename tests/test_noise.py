"""Runs whose metrics have errors: what is recorded, which front it gives, what is claimed."""

import csv
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from typer.testing import CliRunner

from mopbt import Budget, Estimate, Float, Results, run
from mopbt.cli import app
from mopbt.errors import RunMismatch, TaskError
from mopbt.estimate import normal_quantile
from mopbt.history import History
from mopbt.messages import with_error
from mopbt.ranking import dominates
from mopbt.rng import stream
from mopbt.stores.journal import read_lines
from mopbt.tasks.synthetic import TwoQuadratics
from mopbt.tasks.toy import ToyTask
from mopbt.trackers.base import evaluations_of

Z = normal_quantile(0.68)


@dataclass(frozen=True)
class NoisyToy(ToyTask):
    """A toy that is measured with errors of different sizes; `cost` is minimized."""

    objectives = {"near": "max", "cost": "min"}
    scale: float = 0.2

    def evaluate(self, model):
        scores = super().evaluate(model)
        rng = stream(0, "measure", model["place"].tobytes().hex())
        stderr = self.scale * rng.random(2)
        near, cost = np.array([scores["near"], -scores["far"]]) + stderr * rng.normal(size=2)
        # Both forms of a metric with an error, and a metric without one.
        return {"near": Estimate(near, stderr=stderr[0]), "cost": (cost, stderr[1]), "exact": 1.0}


@dataclass(frozen=True)
class RandomToy(ToyTask):
    """A toy whose metrics have nothing to do with its models."""

    reports_errors: bool = False

    def evaluate(self, model):
        rng = stream(0, "random", model["place"].tobytes().hex())
        values = rng.normal(size=2)
        if self.reports_errors:
            values = [Estimate(value, stderr=1.0) for value in values]
        return {"near": values[0], "far": values[1]}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "noisy"
    return run(NoisyToy(), out=out, population=12, engine="local", progress=False)


def bounds_of(point):
    """Return what a model is worth at the bounds of its metrics, larger is better."""
    near, cost = point.errors["near"], point.errors["cost"]
    return point.scores["near"] - Z * near.stderr, -point.scores["cost"] - Z * cost.stderr


def test_the_journal_records_errors_and_their_bounds(noisy):
    reports = [
        line["reports"] for line in read_lines(noisy.path / "journal.jsonl") if "reports" in line
    ]
    report = reports[-1][-1]
    assert set(report["errors"]) == {"near", "cost"}
    stderr, lower, upper = report["errors"]["near"]
    near = report["scores"]["near"]
    assert type(near) is float
    assert [lower, upper] == pytest.approx([near - Z * stderr, near + Z * stderr])


def test_records_and_csv_have_columns_for_errors(noisy, tmp_path):
    record = noisy.records()[0]
    point = noisy.point(record["model"])
    assert record["stderr.near"] == point.errors["near"].stderr
    assert record["lower.cost"] < record["score.cost"] < record["upper.cost"]
    assert "stderr.exact" not in record
    noisy.to_csv(tmp_path / "all.csv")
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["upper.near"]) == record["upper.near"]


def test_trackers_log_standard_errors(noisy):
    evaluation = evaluations_of(noisy)[0]
    assert evaluation.scores["stderr/near"] == noisy.point(evaluation.model).errors["near"].stderr


def test_the_front_is_the_pessimistic_one(noisy):
    points = list(noisy.points())
    bounds = [bounds_of(point) for point in points]
    expected = set()
    for point, own in zip(points, bounds, strict=True):
        if not any(dominates(other, own) for other in bounds):
            expected.add(point.model)
    front = noisy.front()
    assert front.kind == "pessimistic"
    assert {point.model for point in front} == expected
    assert [p.scores["near"] for p in front] == sorted(p.scores["near"] for p in front)[::-1]
    assert repr(front).startswith("<Pessimistic front of ")
    assert {r["model"] for r in noisy.records() if r["front"]} == expected


def test_the_observed_front_is_still_there(noisy):
    observed = noisy.front(observed=True)
    assert observed.kind == "observed"
    values = [(p.scores["near"], -p.scores["cost"]) for p in noisy.points()]
    assert len(observed) == sum(not any(dominates(o, v) for o in values) for v in values)
    assert {p.model for p in observed} != {p.model for p in noisy.front()}


def test_all_models_of_both_fronts_can_be_loaded(noisy):
    both = {p.model for p in noisy.front()} | {p.model for p in noisy.front(observed=True)}
    for job in both:
        assert set(noisy.load(job)) == {"place", "speed"}


def test_a_resumed_run_has_the_same_fronts_and_keeps_their_models(noisy, tmp_path):
    options = {"out": tmp_path, "population": 12, "engine": "local", "progress": False}
    for jobs in (15, 77):
        run(NoisyToy(), budget=Budget(jobs=jobs), **options)
    resumed = run(NoisyToy(), **options)
    expected = [(point.model, point.scores, point.errors) for point in noisy.front()]
    assert [(p.model, p.scores, p.errors) for p in resumed.front()] == expected
    for point in resumed.front():
        point.load()


def test_a_large_journal_gives_the_same_front_as_one_report_at_a_time(noisy):
    at_once = Results.open(noisy.path).history.pessimistic_front
    one_by_one = History(noisy.problem)
    for line in read_lines(noisy.path / "journal.jsonl"):
        one_by_one.extend([line])
        assert one_by_one.pessimistic_front or not len(one_by_one.reports)
    assert set(at_once) == set(one_by_one.pessimistic_front)


def test_choosing_uses_bounds_and_says_so(noisy):
    front = noisy.front()
    best = front.best("near")
    assert best.model == max(front, key=lambda p: bounds_of(p)[0]).model
    bar = best.errors["near"]
    assert f"near {best.scores['near']:.2f}"[:9] in best.why
    assert "Models are compared at their bounds: near " in best.why
    assert " ± " in best.why
    assert "(lower bound " in best.why
    assert "(upper bound " in best.why
    assert bar.lower == pytest.approx(bounds_of(best)[0])
    scaled = np.array([bounds_of(p) for p in front])
    scaled = (scaled - scaled.min(axis=0)) / np.ptp(scaled, axis=0)
    assert front.knee().model == front[int(scaled.sum(axis=1).argmax())].model
    assert "bounds" not in noisy.front(observed=True).knee().why


def test_limits_hold_at_the_bounds(noisy):
    front = noisy.front()
    limit = float(np.median([p.errors["near"].lower for p in front]))
    kept = front.where(f"near >= {limit}")
    assert {p.model for p in kept} == {p.model for p in front if p.errors["near"].lower >= limit}
    assert kept.kind == "pessimistic"
    cap = float(np.median([p.errors["cost"].upper for p in front]))
    expected = {p.model for p in front if p.errors["cost"].upper <= cap}
    assert {p.model for p in front.where(f"cost <= {cap}")} == expected
    with pytest.raises(
        ValueError, match=r"near >= 9 at the bound of its interval; it reaches near"
    ):
        front.where("near >= 9")


def test_the_printed_front_shows_errors(noisy):
    assert " ± " in str(noisy.front())


def test_the_card_of_an_exported_model_has_intervals(noisy, tmp_path):
    point = noisy.front()[0]
    files = noisy.export(point, tmp_path / "model.safetensors")
    card = files.card.read_text()
    bar = point.errors["near"]
    value = with_error(point.scores["near"], bar.stderr)
    expected = f"| near | larger is better | {value} ({bar.lower:.4g} to {bar.upper:.4g}) |  |"
    assert expected in card
    assert "Intervals have a confidence of 68%." in card
    about = json.loads(files.about.read_text())
    assert about["errors"]["near"] == bar._asdict()
    assert about["confidence"] == 0.68


def test_claims_are_smaller_than_lucky_measurements(noisy):
    claims = noisy.claims()
    assert [claim.model for claim in claims] == [point.model for point in noisy.front()]
    luck = [noisy.point(c.model).scores["near"] - c.scores["near"] for c in claims]
    assert np.mean(luck) > 0
    assert all(0 <= claim.probability <= 1 for claim in claims)
    assert all(isinstance(claim.scores["cost"], Estimate) for claim in claims)
    assert noisy.claims() == claims


def test_without_errors_there_is_nothing_to_claim():
    results = run(ToyTask(), out=None, population=4, engine="local", progress=False)
    assert results.claims() == []
    assert results.front().kind == "observed"
    reports = results.history.reports
    assert not any("errors" in reports[row].to_json() for row in range(len(reports)))


def test_the_confidence_is_recorded_and_decides_the_bounds(tmp_path):
    options = {"out": tmp_path, "population": 4, "engine": "local", "progress": False}
    results = run(NoisyToy(), confidence=0.95, **options)
    assert "confidence = 0.95\n" in (tmp_path / "run.toml").read_text()
    bar = results.front()[0].errors["near"]
    assert bar.upper - bar.lower == pytest.approx(2 * 1.959964 * bar.stderr)
    with pytest.raises(RunMismatch, match=r"confidence is 0.68, it was 0.95"):
        run(NoisyToy(), **options)


def test_a_bad_confidence_is_an_error():
    with pytest.raises(ValueError, match=r"`confidence` must be between 0 and 1, such as 0.9"):
        run(NoisyToy(), out=None, confidence=95, progress=False)


def test_a_training_function_reports_errors():
    def train(m):
        state = {"x": 0.0}
        m.track(state=state)
        for _ in m.steps():
            state["x"] += m.hp["lr"]
        m.report(a=Estimate.ratio(3, 3), b=(state["x"], 0.1), c=Estimate(math.nan, math.nan))

    results = run(
        train,
        space={"lr": Float(0.1, 1)},
        objectives={"a": "max", "b": "max"},
        steps=2,
        out=None,
        population=2,
        engine="local",
        progress=False,
    )
    point = results.front()[0]
    assert point.scores["a"] == 1.0
    assert point.errors["a"].lower < 0.76
    assert point.errors["b"].stderr == 0.1
    assert set(point.errors) == {"a", "b"}


@pytest.mark.parametrize("pair", [(0.5, -0.1), (0.5, 0.1, 0.1), ("high", 0.1)])
def test_a_pair_that_is_no_estimate_is_an_error(pair):
    class Bad(ToyTask):
        def evaluate(self, model):
            return {"near": pair, "far": 1.0}

    with pytest.raises(
        TaskError, match=r"the metric 'near' must be a number, an Estimate, or a pair"
    ):
        run(Bad(), out=None, population=2, engine="local", progress=False)


@pytest.mark.parametrize("reports_errors", [False, True])
def test_a_front_of_random_metrics_comes_with_a_warning(reports_errors):
    task = RandomToy(steps=40, reports_errors=reports_errors)
    results = run(task, out=None, population=16, engine="local", progress=False)
    warning = results.front().warning
    assert warning.startswith("Noise alone could have produced this front: ")
    number = "320 evaluations of equally good models" if reports_errors else "rank correlation"
    assert number in warning
    assert str(results.front()).endswith(warning)


def test_a_front_without_noise_has_no_warning():
    results = run(TwoQuadratics(), out=None, population=8, engine="local", progress=False)
    assert len(results) > 100
    assert results.front().warning == ""
    assert results.noise_warning() == ""


def test_an_empty_front_has_no_warning():
    results = run(ToyTask(), out=None, population=2, engine="local", progress=False)
    results.history = History(results.problem)
    assert results.front().warning == ""
    assert results.noise_warning() == ""


def mopbt(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_line_shows_errors_fronts_and_claims(noisy):
    printed = mopbt("front", noisy.path)
    assert f"{len(noisy.front())} models on the pessimistic front, observed hypervolume" in printed
    assert " ± " in printed
    observed = mopbt("front", noisy.path, "--observed")
    assert f"{len(noisy.front(observed=True))} models on the front, hypervolume" in observed
    claims = mopbt("front", noisy.path, "--claims")
    assert "on the front" in claims
    assert "%" in claims
    assert " ± " in mopbt("pick", noisy.path)


def test_json_has_errors(noisy):
    listed = json.loads(mopbt("front", noisy.path, "--json"))
    assert [point["model"] for point in listed] == [point.model for point in noisy.front()]
    assert set(listed[0]["errors"]["near"]) == {"stderr", "lower", "upper"}
    assert json.loads(mopbt("show", noisy.path, "--json"))["warning"] == noisy.noise_warning()


def test_the_command_line_warns(tmp_path):
    run(RandomToy(), out=tmp_path, population=6, engine="local", progress=False)
    for command in ("front", "show"):
        assert "Noise alone could have produced this front" in mopbt(command, tmp_path)
