"""Evaluations outside of the search: on test data, after the run, once for each model and seed."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import mopbt
from mopbt import Results
from mopbt.cli import main
from mopbt.engines.pool import PoolEngine
from mopbt.engines.simulated import PerStep, SimulatedEngine
from mopbt.errors import TaskError, TaskFailed
from mopbt.estimate import Estimate
from mopbt.evaluations import FILE, Evaluation, Evaluations, read_evaluations
from mopbt.space import Float
from mopbt.stores.journal import read_journal
from mopbt.tasks.toy import RowsToy, ToyTask
from mopbt.testing import TaskConformance

QUIET = {"population": 6, "progress": False}


class TestRowsToy(TaskConformance):
    def make(self):
        return RowsToy()


def lines(path):
    return (path / FILE).read_bytes().splitlines()


def decisions(path):
    """Return all that the scheduler decided and saw."""
    found = []
    for exchange in read_journal(path / "journal.jsonl")[0]:
        found += [job.to_json() for job in exchange.jobs]
        found += [(r.job, r.objectives, dict(r.scores)) for r in exchange.reports]
    return found


def test_the_final_front_is_evaluated_and_the_search_does_not_see_it(tmp_path):
    plain = mopbt.run(ToyTask(), out=tmp_path / "plain", engine="local", **QUIET)
    results = mopbt.run(RowsToy(), out=tmp_path / "rows", engine="local", **QUIET)
    assert decisions(results.path) == decisions(plain.path)
    assert not (tmp_path / "plain" / FILE).exists()
    front = {point.model for point in results.front()}
    opened = Results.open(tmp_path / "rows")
    for evaluations in (results.evaluations, opened.evaluations):
        assert {e.key for e in evaluations} == {(model, "test", 0) for model in front}
    for evaluation in opened.evaluations.select("test"):
        point = opened.point(evaluation.model)
        assert evaluation.scores["near"] != point.scores["near"]
        assert evaluation.scores["near"] == pytest.approx(point.scores["near"], abs=0.1)
        assert evaluation.scores["step"] == point.step
        assert evaluation.scores["weight"] == point.hp["weight"]


@pytest.mark.slow
def test_every_engine_measures_the_same(tmp_path):
    engines = {
        "local": "local",
        "pool": PoolEngine(2),
        "simulated": SimulatedEngine(3),
    }
    found = {}
    for name, engine in engines.items():
        results = mopbt.run(RowsToy(), out=tmp_path / name, engine=engine, **QUIET)
        found[name] = {e.key: dict(e.scores) for e in results.evaluations}
    assert found["pool"] == found["local"] == found["simulated"]


def test_a_run_that_is_not_kept_has_its_evaluations_in_memory():
    results = mopbt.run(RowsToy(), out=None, engine="local", **QUIET)
    assert {e.model for e in results.evaluations} == {p.model for p in results.front()}
    assert len(results.evaluate(seeds=[0, 1])) == 2 * len(results.front())
    with pytest.raises(TypeError, match=r"`seeds` must be a list .*, such as \[0, 1\], got 2"):
        results.evaluate(seeds=2)


class Killed(BaseException):
    """Stands for SIGKILL."""


@dataclass(frozen=True)
class Counting(RowsToy):
    """Count evaluations, and die or fail at some of them."""

    name: str = "toy"
    calls: tuple[list, ...] = ([],)
    dies_at: int = -1
    fails: bool = False

    def evaluate_rows(self, model, hp, step, rows, seed):
        if len(self.calls[0]) == self.dies_at:
            raise Killed
        self.calls[0].append(rows)
        if self.fails and len(self.calls[0]) == 2:
            raise ZeroDivisionError("no rows")
        return super().evaluate_rows(model, hp, step, rows, seed)


def test_a_kill_between_two_evaluations_loses_and_repeats_nothing(tmp_path):
    run = {"out": tmp_path / "run", "engine": "local", **QUIET}
    dying = Counting(calls=([],), dies_at=2)
    with pytest.raises(Killed):
        mopbt.run(dying, **run)
    first = lines(tmp_path / "run")
    assert len(first) == 2
    # The kill may also leave half a line.
    with open(tmp_path / "run" / FILE, "ab") as file:
        file.write(first[0][:20])
    counting = Counting(calls=([],))
    results = mopbt.run(counting, **run)
    assert len(counting.calls[0]) == len(results.front()) - 2
    assert lines(tmp_path / "run")[:2] == first
    assert len(lines(tmp_path / "run")) == len(results.front()) == len(results.evaluations)
    again = Counting(calls=([],))
    mopbt.run(again, **run)
    assert not again.calls[0]


def test_a_complete_run_gets_the_evaluations_that_it_lacks(tmp_path):
    run = {"out": tmp_path / "run", "engine": "local", **QUIET}
    mopbt.run(ToyTask(), **run)
    journal = (tmp_path / "run" / "journal.jsonl").read_bytes()
    results = mopbt.run(RowsToy(), **run)
    assert len(results.evaluations) == len(results.front())
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == journal


def test_a_damaged_line_is_measured_again(tmp_path):
    run = {"out": tmp_path / "run", "engine": "local", **QUIET}
    before = {e.key: e.scores for e in mopbt.run(RowsToy(), **run).evaluations}
    damaged = lines(tmp_path / "run")
    damaged[1] = damaged[1].replace(b"near", b"nEar")
    (tmp_path / "run" / FILE).write_bytes(b"\n".join(damaged) + b"\n")
    assert len(read_evaluations(tmp_path / "run")) == len(before) - 1
    after = {e.key: e.scores for e in mopbt.run(RowsToy(), **run).evaluations}
    assert after == before


def test_a_failed_evaluation_is_an_error_after_all_others(tmp_path):
    run = {"out": tmp_path / "run", "engine": "local", **QUIET}
    failing = Counting(calls=([],), fails=True)
    with pytest.raises(TaskFailed, match=r"1 of \d+ evaluations failed.*'test'.*no rows") as caught:
        mopbt.run(failing, **run)
    assert "all trained models are kept" in str(caught.value)
    results = Results.open(tmp_path / "run", Counting(calls=([],)))
    assert results.done
    assert len(results.evaluations) == len(results.front()) - 1
    assert len(results.evaluate("test")) == len(results.front())


def test_seeds_and_models_can_be_chosen_later(tmp_path):
    results = mopbt.run(RowsToy(), out=tmp_path / "run", engine="local", **QUIET)
    dominated = next(
        point for point in results.points() if point.model in results.checkpoints.kept()
    )
    found = results.evaluate("test", [dominated], seeds=range(3))
    assert [(e.model, e.seed) for e in found] == [(dominated.model, seed) for seed in range(3)]
    assert len({e.scores["near"] for e in found}) == 3
    assert results.evaluate("test", [dominated], seeds=range(3)) == found


@pytest.mark.parametrize(
    ("task", "rows", "error", "message"),
    [
        (ToyTask(), "test", ValueError, "declares no `rows`.*got 'test'"),
        (RowsToy(), "tset", ValueError, "must be one of 'test', got 'tset'; did you mean 'test'"),
        (None, "test", TaskError, r"needs the task: .*Results\.open\(path, task=task\)"),
    ],
)
def test_rows_that_do_not_exist_are_an_error(tmp_path, task, rows, error, message):
    mopbt.run(ToyTask(), out=tmp_path / "run", engine="local", **QUIET)
    with pytest.raises(error, match=message):
        Results.open(tmp_path / "run", task).evaluate(rows)


@pytest.mark.parametrize("rows", ["test", ("test", "test"), ("validation",), (3,), ("",)])
def test_wrong_names_of_rows_are_an_error_before_training(tmp_path, rows):
    with pytest.raises(ValueError, match="different names other than 'validation'.*got"):
        mopbt.run(RowsToy(rows=rows), out=tmp_path / "run", engine="local", **QUIET)
    assert not (tmp_path / "run").exists()


def test_evaluations_keep_their_errors_and_numbers():
    bar = Estimate(0.5, 0.1).error_bar()
    evaluation = Evaluation(3, "test", 1, {"a": 0.5, "b": float("nan")}, {"a": bar}, 0.25)
    again = Evaluation.from_json(json.loads(json.dumps(evaluation.to_json())))
    assert repr(again) == repr(evaluation)
    first = Evaluations([evaluation, Evaluation(3, "test", 1, {"a": 9.0})])
    assert [e.scores["a"] for e in first] == [0.5]


def test_an_estimate_keeps_its_error(tmp_path):
    class Uncertain(RowsToy):
        def evaluate_rows(self, model, hp, step, rows, seed):
            return {"near": Estimate(0.5, 0.1), "far": (0.0, 0.2), "plain": 1}

    task = Uncertain(name="toy")
    results = mopbt.run(task, out=tmp_path / "run", engine="local", **QUIET)
    (evaluation, *_) = Results.open(results.path).evaluations
    assert evaluation.scores == {"near": 0.5, "far": 0.0, "plain": 1.0}
    assert {name: bar.stderr for name, bar in evaluation.errors.items()} == {
        "near": pytest.approx(0.1),
        "far": pytest.approx(0.2),
    }


def test_the_observed_and_the_pessimistic_front_are_both_measured(tmp_path):
    class Noisy(RowsToy):
        def evaluate(self, model):
            return {name: (score, 0.05) for name, score in super().evaluate(model).items()}

        def evaluate_rows(self, model, hp, step, rows, seed):
            return ToyTask().evaluate(model)

    task = Noisy(name="toy")
    results = mopbt.run(task, out=tmp_path / "run", engine="local", **QUIET)
    fronts = [{p.model for p in results.front(observed=observed)} for observed in (False, True)]
    assert {e.model for e in results.evaluations} == fronts[0] | fronts[1]


# The function form.

ROWS = {"validation": 1.0, "test": 3.0}


def describe(**more):
    return {
        "space": {"lr": Float(0.1, 0.9)},
        "objectives": {"loss": "min", "size": "min"},
        "steps": 4,
        "engine": "local",
        "population": 4,
        "progress": False,
        **more,
    }


def train(m):
    w = np.zeros(1)
    m.track(w=w)
    for _ in m.steps():
        w -= m.hp["lr"] * (w - 2)
    m.report(loss=float(w[0] - ROWS[m.rows]) ** 2, size=float(abs(w[0])))


def test_a_function_measures_the_rows_that_m_names(tmp_path):
    results = mopbt.run(train, out=tmp_path / "run", rows=("test",), **describe())
    assert len(results.evaluations) == len(results.front())
    for evaluation in results.evaluations:
        w = results.load(evaluation.model)["w"][0]
        assert evaluation.scores["loss"] == (w - 3) ** 2
        assert results.point(evaluation.model).scores["loss"] == (w - 1) ** 2


def test_a_decorated_function_declares_its_rows(tmp_path):
    options = {key: describe()[key] for key in ("space", "objectives", "steps")}
    decorated = mopbt.task(rows=("test",), **options)(train)
    run = {"engine": "local", "population": 4, "progress": False}
    results = mopbt.run(decorated, out=tmp_path / "run", **run)
    assert len(results.evaluations) == len(results.front())


def test_a_function_that_ignores_the_rows_is_an_error(tmp_path):
    def ignores(m):
        w = np.zeros(1)
        m.track(w=w)
        for _ in m.steps():
            w -= m.hp["lr"] * (w - 2)
        m.report(loss=float(w[0] - 1) ** 2, size=float(abs(w[0])))

    with pytest.raises(TaskError, match="never reads `m.rows`.*on 'test' would be those on"):
        mopbt.run(ignores, out=tmp_path / "run", rows=("test",), **describe())
    assert not Results.open(tmp_path / "run").evaluations
    plain = mopbt.run(ignores, out=tmp_path / "plain", **describe())
    assert not plain.evaluations


def test_a_function_that_reports_nothing_on_other_rows_is_an_error(tmp_path):
    def silent(m):
        w = np.zeros(1)
        m.track(w=w)
        for _ in m.steps():
            w -= m.hp["lr"] * (w - 2)
            m.report(loss=float(w[0] - ROWS[m.rows]) ** 2, size=float(abs(w[0])))
        assert m.rows

    with pytest.raises(TaskError, match="never called `report.*'test'; report after the loop"):
        mopbt.run(silent, out=tmp_path / "run", rows=("test",), **describe())


@pytest.mark.parametrize("engine", ["simulated", "pool"])
def test_jobs_that_a_budget_left_over_do_not_disturb_evaluations(engine, tmp_path):
    if engine == "simulated":
        chosen = SimulatedEngine(4, PerStep(1.0))
        budget = mopbt.Budget(seconds=7.0)
    else:
        chosen = PoolEngine(2)
        budget = mopbt.Budget(jobs=9)
    results = mopbt.run(
        RowsToy(steps=8),
        algorithm="mo-asha",
        out=tmp_path / "run",
        engine=chosen,
        budget=budget,
        progress=False,
    )
    assert results.outcome == "done"
    front = {point.model for point in results.front()}
    assert {evaluation.model for evaluation in results.evaluations} == front
    if engine == "simulated":
        assert len(results.history.outstanding) > 0


# The command line.


def test_the_command_line_measures_what_is_missing(tmp_path, capsys, monkeypatch):
    (tmp_path / "rows_toys.py").write_text(
        "from mopbt.tasks.toy import RowsToy\ntask = RowsToy()\n"
    )
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["mopbt", *arguments])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0, capsys.readouterr()
        return 0, capsys.readouterr()

    start = ("run", "rows_toys.py:task", "--out", "run", "--population", "4", "--engine", "local")
    assert call(*start, "--quiet")[0] == 0
    front = Results.open(tmp_path / "run").front()
    code, printed = call("evaluate", "run", "--rows", "test", "--repeats", "3", "--json")
    assert code == 0
    found = json.loads(printed.out)
    assert {(e["model"], e["seed"]) for e in found} == {
        (point.model, seed) for point in front for seed in range(3)
    }
    code, printed = call("evaluate", "run", "--repeats", "3")
    assert code == 0
    assert len(printed.out.strip().splitlines()) == len(front) + 1
    code, printed = call("evaluate", "run", "--rows", "other")
    assert code == 2
    assert "must be one of 'test', got 'other'" in printed.err
