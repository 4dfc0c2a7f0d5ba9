"""Runs that stop because their hypervolume no longer grows."""

from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from mopbt import Budget, Estimate, Results, run
from mopbt.cli import app
from mopbt.history import History
from mopbt.metrics import hypervolume
from mopbt.rng import stream
from mopbt.stall import stalled_generations
from mopbt.tasks.toy import ToyTask

POPULATION = 6
REFERENCE = {"near": -3.0, "far": -3.0}


@dataclass(frozen=True)
class PlateauToy(ToyTask):
    """A toy that improves for six steps, and then measures the same, with noise if asked."""

    steps: int = 40
    reference = REFERENCE
    stderr: float = 0.0
    reports_errors: bool = True

    def evaluate(self, model):
        step = float(model["speed"][0])
        value = min(step, 6.0) / 6
        rng = stream(0, "measure", model["place"].tobytes().hex())
        near, far = [value, 1 - value / 2] + self.stderr * rng.normal(size=2)
        if not self.stderr or not self.reports_errors:
            return {"near": near, "far": far}
        return {
            "near": Estimate(near, stderr=self.stderr),
            "far": Estimate(far, stderr=self.stderr),
        }

    def train(self, model, hp, begin, end, seed):
        model = super().train(model, hp, begin, end, seed)
        model["speed"][:] = end
        return model


def start(task, out=None, **options):
    settings = {"population": POPULATION, "engine": "local", "progress": False}
    return run(task, out=out, **(settings | options))


def test_a_run_stops_when_its_hypervolume_does_not_grow():
    # Generations 1 to 3 grow; 4 and 5 are the same as 3.
    results = start(PlateauToy(), budget=Budget(stall=2))
    assert results.outcome == "budget"
    assert len(results) == 5 * POPULATION
    assert stalled_generations(results.history, POPULATION) == 2


def test_a_run_that_grows_is_not_stopped():
    results = start(PlateauToy(steps=6), budget=Budget(stall=1))
    assert results.outcome == "done"


def test_growth_within_the_error_is_none():
    """Luck makes the hypervolume of a noisy plateau grow, but not by more than its error."""
    known = start(PlateauToy(stderr=0.2), budget=Budget(stall=3))
    unknown = start(PlateauToy(stderr=0.2, reports_errors=False), budget=Budget(stall=3))
    assert known.outcome == "budget"
    assert len(known) < len(unknown)


def test_the_count_is_that_of_brute_force():
    results = start(ToyTask(steps=30, interval=1), population=4)
    objectives = results.history.reports.objectives()
    for reports in (3, 4, 8, 37, 80, 120):
        history = History(results.problem)
        history.extend(lines_up_to(results, reports))
        reference = history.reference()
        last = reports // 4
        volumes = [hypervolume(objectives[: 4 * g], reference) for g in range(1, last + 1)]
        expected = sum(volume == volumes[-1] for volume in volumes[:-1]) if volumes else 0
        if volumes and volumes[-1] == 0:
            expected = 0
        assert stalled_generations(history, 4) == expected


def lines_up_to(results, reports):
    """Return the jobs and reports of a run up to a number of reports, as in its journal."""
    history = results.history
    found = 0
    for event in history.events:
        if found == reports:
            return
        if event >= 0:
            yield {"jobs": [history.job(event).to_json()]}
        else:
            found += 1
            yield {"reports": [history.reports[~event].to_json()]}


@pytest.mark.parametrize("stop", [7, 24, 27])
def test_a_resumed_run_stops_at_the_same_place(tmp_path, stop):
    start(PlateauToy(), tmp_path, budget=Budget(jobs=stop))
    resumed = start(PlateauToy(), tmp_path, budget=Budget(stall=2))
    assert len(resumed) == 5 * POPULATION
    again = start(PlateauToy(), tmp_path, budget=Budget(stall=2))
    assert len(again) == 5 * POPULATION
    assert len(start(PlateauToy(), tmp_path, budget=Budget(stall=4))) == 7 * POPULATION


def test_a_run_without_feasible_models_does_not_stall():
    class Infeasible(PlateauToy):
        constraints = ("near >= 9",)

    assert start(Infeasible(steps=10), budget=Budget(stall=1)).outcome == "done"


def test_the_progress_shows_it(capsys):
    start(PlateauToy(), budget=Budget(stall=2), progress=True)
    lines = capsys.readouterr().err.splitlines()
    (third,) = [line for line in lines if line.startswith("generation 3/")]
    (fourth,) = [line for line in lines if line.startswith("generation 4/")]
    (fifth,) = [line for line in lines if line.startswith("generation 5/")]
    assert "no growth" not in third
    assert "| no growth for 1 of 2 generations |" in fourth
    assert "| no growth for 2 of 2 generations |" in fifth


@pytest.mark.parametrize("stall", [0, -1, 1.5, True])
def test_a_bad_number_of_generations_is_an_error(stall):
    with pytest.raises(ValueError, match=r"`stall` must be a whole number above 0, or None"):
        Budget(stall=stall)


FLAT = """
from mopbt.tasks.toy import ToyTask


class Flat(ToyTask):
    reference = {"near": 0.0, "far": 0.0}

    def evaluate(self, model):
        return {"near": 1.0, "far": 1.0}


task = Flat()
"""


def test_the_command_line_stops_too(tmp_path):
    (tmp_path / "flat.py").write_text(FLAT)
    arguments = ["run", f"{tmp_path / 'flat.py'}:task", "--population", "4", "--engine", "local"]
    arguments += ["--quiet", "--out", str(tmp_path / "run"), "--budget-stall", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 3, done.output
    assert len(Results.open(tmp_path / "run")) == 8
