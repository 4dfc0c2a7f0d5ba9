"""A study holds the same data as the run, read through Optuna."""

import math
import sys
from dataclasses import dataclass

import pytest
import typer.testing

optuna = pytest.importorskip("optuna")

import mopbt  # noqa: E402
from mopbt import Categorical, Float, Grid, Int, LogGrid, Ordinal  # noqa: E402
from mopbt.cli import app  # noqa: E402
from mopbt.errors import MissingExtra  # noqa: E402
from mopbt.integrations.optuna import distribution_of, from_optuna, to_optuna  # noqa: E402
from mopbt.tasks.toy import ToyTask  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Wild(ToyTask):
    """A toy task with a loss to minimize, a constraint, failures and NaN."""

    constraints: tuple[str, ...] = ("far >= 0",)

    @property
    def objectives(self):
        return {"near": "max", "loss": "min"}

    def train(self, model, hp, begin, end, seed):
        if hp["weight"] == 1:
            raise ZeroDivisionError
        return super().train(model, hp, begin, end, seed)

    def evaluate(self, model):
        scores = super().evaluate(model)
        loss = math.nan if abs(model["place"][0] - 0.3) < 0.02 else -scores["far"]
        return {"near": scores["near"], "loss": loss, "far": scores["far"]}


@pytest.fixture(scope="module")
def results():
    return mopbt.run(ToyTask(steps=10), out=None, population=8, engine="local", progress=False)


@pytest.fixture(scope="module")
def wild():
    return mopbt.run(
        Wild(steps=10), out=None, population=12, engine="local", progress=False, seed=1
    )


def test_the_best_trials_of_the_study_are_the_front(results):
    study = to_optuna(results)
    assert {trial.user_attrs["model"] for trial in study.best_trials} >= {
        point.model for point in results.front()
    }
    scores = {tuple(point.scores.values()) for point in results.front()}
    assert {tuple(trial.values) for trial in study.best_trials} == scores


def test_directions_constraints_failures_and_nan_are_kept(wild):
    study = to_optuna(wild)
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == ["near", "loss"]
    failed = {
        t.user_attrs["model"] for t in study.trials if t.state == optuna.trial.TrialState.FAIL
    }
    without_loss = {
        record["model"]
        for record in wild.records()
        if math.isnan(record.get("score.loss", math.nan))
    }
    assert failed == without_loss
    assert set(wild.failures) < failed
    assert {(t.values[0], t.values[1]) for t in study.best_trials} == {
        (p.scores["near"], p.scores["loss"]) for p in wild.front()
    }
    assert all(
        "ZeroDivisionError" in study.trials[job].user_attrs["error"] for job in wild.failures
    )


@pytest.mark.slow
def test_a_study_in_a_file_is_read_back_completely(results, tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    to_optuna(results, storage, name="toy-1")
    study = optuna.load_study(study_name="toy-1", storage=storage)
    assert len(study.trials) == len(results)
    for trial, record in zip(study.trials, results.records(), strict=True):
        assert trial.params == {"weight": record["hp.weight"], "lr": record["hp.lr"]}
        assert trial.values == [record["score.near"], record["score.far"]]
        assert (trial.user_attrs["trial"], trial.user_attrs["step"]) == (
            record["trial"],
            record["end"],
        )
        assert trial.duration.total_seconds() == pytest.approx(record["duration"], abs=1e-3)
    with pytest.raises(ValueError, match="already has a study 'toy-1'; choose another `name`"):
        to_optuna(results, storage, name="toy-1")


def test_the_study_contains_the_lineage(results):
    study = to_optuna(results)
    for point in results.front():
        jobs, trial = [], next(t for t in study.trials if t.user_attrs["model"] == point.model)
        while trial is not None:
            jobs.append(trial.user_attrs["model"])
            trial = (
                study.trials[trial.user_attrs["parent"]] if "parent" in trial.user_attrs else None
            )
        assert jobs[::-1] == [ancestor.model for ancestor in results.lineage(point)]
    exploits = [t.user_attrs["model"] for t in study.trials if t.user_attrs.get("exploited")]
    assert exploits == [
        r["model"] for r in results.records() if r["parent"] not in (None, r["trial"])
    ]
    assert exploits


def test_one_objective_gives_learning_curves():
    @dataclass(frozen=True)
    class Single(ToyTask):
        @property
        def objectives(self):
            return {"near": "max"}

    results = mopbt.run(Single(steps=6), out=None, population=4, engine="local", progress=False)
    study = to_optuna(results)
    (best,) = results.front()
    curve = {a.end: a.scores["near"] for a in results.lineage(best)}
    assert study.trials[best.model].intermediate_values == curve
    assert study.best_value == best.scores["near"]


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (Float(1e-4, 1.0, log=True), optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)),
        (Int(1, 5), optuna.distributions.IntDistribution(1, 5)),
        (Grid(0, 0.8, 5), optuna.distributions.FloatDistribution(0, 0.8)),
        (LogGrid(0.01, 10, 4), optuna.distributions.FloatDistribution(0.01, 10, log=True)),
        (
            LogGrid(0.01, 10, 3, zero=True),
            optuna.distributions.CategoricalDistribution((0.0, 0.01, 10.0)),
        ),
        (Ordinal([16, 32]), optuna.distributions.CategoricalDistribution((16, 32))),
        (Categorical(["a", "b"]), optuna.distributions.CategoricalDistribution(("a", "b"))),
    ],
)
def test_a_domain_becomes_the_distribution_with_the_same_values(domain, expected):
    assert distribution_of(domain) == expected
    for position in domain.stratified(5, mopbt.stream(0, "test")):
        assert expected._contains(expected.to_internal_repr(domain.decode(position)))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("study_of", ["results", "wild"])
def test_optunas_plots_draw_the_study(study_of, request):
    plotly = pytest.importorskip("plotly")
    run = request.getfixturevalue(study_of)
    study, plots = to_optuna(run), optuna.visualization
    figure = plots.plot_pareto_front(study)
    assert isinstance(figure, plotly.graph_objects.Figure)
    first = run.problem.objectives[0].name
    assert figure.layout.xaxis.title.text == first
    drawn = [set(zip(trace.x, trace.y, strict=True)) for trace in figure.data]
    assert {tuple(trial.values) for trial in study.best_trials} in drawn
    for plot in (
        plots.plot_slice,
        plots.plot_parallel_coordinate,
        plots.plot_optimization_history,
        plots.plot_contour,
    ):
        assert plot(study, target=lambda trial: trial.values[0], target_name=first).data
    assert plots.plot_timeline(study).data


def test_export_on_the_command_line(tmp_path):
    mopbt.run(ToyTask(steps=4), out=tmp_path / "toy", population=4, engine="local", progress=False)
    run = typer.testing.CliRunner().invoke
    done = run(app, ["export", str(tmp_path / "toy"), str(tmp_path / "place"), "--to", "optuna"])
    assert "Exported 8 reports" in done.stdout
    study = optuna.load_study(
        study_name="toy", storage=f"sqlite:///{tmp_path / 'place' / 'optuna.db'}"
    )
    assert len(study.trials) == 8
    again = run(app, ["export", str(tmp_path / "toy"), str(tmp_path / "place"), "--to", "optuna"])
    assert "already has a study 'toy'; choose another `name` (--name on the command line)" in str(
        again.exception
    )
    run(
        app,
        [
            "export",
            str(tmp_path / "toy"),
            str(tmp_path / "place"),
            "--to",
            "optuna",
            "--name",
            "later",
        ],
    )
    assert (
        len(
            optuna.load_study(
                study_name="later", storage=f"sqlite:///{tmp_path / 'place' / 'optuna.db'}"
            ).trials
        )
        == 8
    )
    run(app, ["export", str(tmp_path / "toy"), str(tmp_path / "reports.csv"), "--to", "csv"])
    assert len((tmp_path / "reports.csv").read_text().splitlines()) == 9
    wrong = run(app, ["export", str(tmp_path / "toy"), "place", "--to", "elsewhere"])
    assert "--to must be one of csv, tensorboard, mlflow, wandb, optuna, got 'elsewhere'" in str(
        wrong.exception
    )


def test_a_missing_package_names_the_extra(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        MissingExtra, match=r"to_optuna and from_optuna need Optuna: pip install 'mopbt\[optuna\]'"
    ):
        to_optuna(results)


def build_study(storage=None, trials=30):
    def objective(trial):
        lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        depth = trial.suggest_int("depth", 1, 4)
        width = trial.suggest_float("width", 0.0, 1.0, step=0.25)
        kind = trial.suggest_categorical("kind", ["a", "b"])
        if trial.number == 3:
            raise optuna.TrialPruned
        return lr + (kind == "a"), depth + width

    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(
        study_name="mine", storage=storage, sampler=sampler, directions=["maximize", "minimize"]
    )
    study.optimize(objective, n_trials=trials)
    return study


def test_a_run_starts_from_the_best_trials_of_a_storage(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = build_study(storage)
    imported = from_optuna(storage, most=6, objectives=["gain", "cost"])
    assert imported.objectives == {"gain": "max", "cost": "min"}
    assert imported.space == {
        "lr": Float(1e-4, 1.0, log=True),
        "depth": Int(1, 4),
        "width": Grid(0.0, 1.0, 5),
        "kind": Categorical(["a", "b"]),
    }
    best = [trial.params for trial in study.best_trials]
    assert len(imported.initial) == 6
    for params in imported.initial[: len(best)]:
        assert params in best

    def train(m):
        state = {"gain": 0.0, "cost": 0.0}
        m.track(state=state)
        for _ in m.steps():
            state["gain"] += m.hp["lr"] + (m.hp["kind"] == "a")
            state["cost"] += m.hp["depth"] + m.hp["width"]
        m.report(**state)

    results = mopbt.run(
        train,
        out=None,
        space=imported.space,
        objectives=imported.objectives,
        initial=imported.initial,
        population=8,
        steps=4,
        engine="local",
        progress=False,
    )
    for model, hp in enumerate(imported.initial):
        assert results.point(model).hp == hp


def test_later_fronts_follow_the_first_one():
    study = optuna.create_study(directions=["maximize"])
    odd = {"x": optuna.distributions.IntDistribution(1, 9, step=2)}
    for x, value in ((1, 1.0), (3, 3.0), (5, 2.0)):
        study.add_trial(optuna.trial.create_trial(params={"x": x}, distributions=odd, value=value))
    imported = from_optuna(study, objectives=["score"])
    assert [hp["x"] for hp in imported.initial] == [3, 5, 1]
    assert imported.space == {"x": Ordinal([1, 3, 5, 7, 9])}


def test_what_cannot_be_imported_is_explained(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    build_study(storage, trials=2)
    with pytest.raises(ValueError, match=r"must be a study of the storage \('mine'\), got 'other'"):
        from_optuna(storage, name="other")
    with pytest.raises(ValueError, match="has 2 objectives, got the names"):
        from_optuna(storage)
    with pytest.raises(ValueError, match="no hyperparameter that all of its 0 complete trials"):
        from_optuna(optuna.create_study(), objectives=["score"])


def test_an_exported_run_can_be_imported():
    results = mopbt.run(ToyTask(), out=None, population=4, engine="local", progress=False)
    imported = from_optuna(to_optuna(results), most=4)
    assert imported.objectives == {"near": "max", "far": "max"}
    best = [point.hp for point in results.front()]
    assert all(dict(hp) in best for hp in imported.initial)
