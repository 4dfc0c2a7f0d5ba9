"""A run that starts from the models of an earlier one."""

import shutil
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from mopbt import Budget, Grid, run
from mopbt.cli import app
from mopbt.errors import RunMismatch
from mopbt.tasks.toy import ToyTask

SIZES = {"population": 6, "progress": False, "engine": "local"}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return run(ToyTask(), out=tmp_path_factory.mktemp("runs") / "old", **SIZES)


@dataclass(frozen=True)
class Idle(ToyTask):
    """A toy that does not train, so that its first metrics are those of its start."""

    name = "toy"

    def train(self, model, hp, begin, end, seed):
        dict(hp.items())
        return model


def test_the_first_members_are_models_of_the_earlier_front(old, tmp_path):
    new = run(Idle(), out=tmp_path / "new", warm_start=old.path, **SIZES)
    warm = new.settings.warm_start
    assert warm["run_id"] == old.settings.run_id
    chosen = [old.point(job) for job in warm["models"]]
    assert {p.model for p in chosen} <= {p.model for p in old.front()}
    assert len(chosen) == min(6, len(old.front()))
    first = {p.trial: p for p in new.points() if p.step == new.problem.interval}
    for trial, point in enumerate(chosen):
        assert first[trial].hp == point.hp
        assert first[trial].scores == pytest.approx(point.scores)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "pool"])
def test_it_resumes_and_replays_without_the_earlier_run(old, tmp_path, engine):
    source = shutil.copytree(old.path, tmp_path / "old")
    sizes = SIZES | {"engine": engine, "warm_start": source}
    whole = run(ToyTask(), out=tmp_path / "whole", **sizes)
    run(ToyTask(), out=tmp_path / "parts", budget=Budget(jobs=8), **sizes)
    shutil.rmtree(source)
    parts = run(ToyTask(), out=tmp_path / "parts", **sizes)
    assert [p.scores for p in parts.points()] == [p.scores for p in whole.points()]
    point = parts.front()[0]
    assert not any(parts.replay(point, ToyTask()).differences.values())


def test_other_settings_and_spaces_are_errors(old, tmp_path):
    out = tmp_path / "new"
    run(ToyTask(), out=out, warm_start=old.path, **SIZES)
    with pytest.raises(RunMismatch, match="warm_start"):
        run(ToyTask(), out=out, **SIZES)
    with pytest.raises(ValueError, match="`out` None"):
        run(ToyTask(), out=None, warm_start=old.path, **SIZES)

    @dataclass(frozen=True)
    class Other(ToyTask):
        space = {"weight": Grid(0, 1, 11), "rate": Grid(0, 1, 3)}

    with pytest.raises(ValueError, match=r"does not fit the space: .*pass configurations"):
        run(Other(), out=tmp_path / "other", warm_start=old.path, **SIZES)
    assert not (tmp_path / "other").exists()


def test_the_command_line_starts_from_a_run(old, tmp_path):
    arguments = ["run", "toy", "--out", str(tmp_path / "new"), "--population", "6", "--quiet"]
    arguments += ["--engine", "local", "--warm-start", str(old.path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "initial" / "0.ckpt").is_file()
