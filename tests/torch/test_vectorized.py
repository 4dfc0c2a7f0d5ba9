"""Stacks in worker processes, and what happens when something goes wrong in them."""

import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.torch.nets import COLUMNS, dropping, dropping_task, make_task, mlp, scores
from torch import nn

import mopbt
from mopbt.engines import auto
from mopbt.engines.base import ModelCache, RunContext
from mopbt.engines.execution import save, train
from mopbt.engines.vectorized import VectorizedEngine
from mopbt.errors import CannotStack
from mopbt.problem import problem_of
from mopbt.state import Job
from mopbt.stores.directory import DirectoryCheckpoints
from mopbt.stores.journal import read_journal
from mopbt.stores.memory import MemoryCheckpoints
from mopbt.tasks.toy import ToyTask
from mopbt.torch import AdamW

# Complete runs.


def wild_task(**options):
    """Return a task in which members with the largest learning rate diverge."""
    space = {"lr": mopbt.Ordinal([0.01, 0.03, 0.1, 1e30]), "dropout": mopbt.Grid(0, 0.8, 9)}
    return make_task(dropping, **{"space": space, "steps": 3} | options)


ENGINES = {name: name for name in ("local", "pool", "vectorized", "auto")} | {
    "one stack": VectorizedEngine(1, stack=6)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_gives_models_that_an_ordinary_model_loads(tmp_path, monkeypatch, name):
    if name != "vectorized":
        monkeypatch.setattr(auto, "available_cores", lambda: 1)  # workers take seconds to start
    task, engine = wild_task(), ENGINES[name]
    results = mopbt.run(task, out=tmp_path / "run", population=6, engine=engine, progress=False)
    assert (results.outcome, len(results), results.failures) == ("done", 18, {})
    front = results.front()
    assert len(front) > 0
    for point in front:
        model = dropping()
        model.load_state_dict(results.load(point)["model"])
        with torch.no_grad():
            measured = scores(model.eval()(task.validation[0]), task.validation[1])
        assert {name: float(measured[name]) for name in task.objectives} == {
            name: point.scores[name] for name in task.objectives
        }
        assert point.scores["loss"] == pytest.approx(float(measured["loss"]), abs=1e-6)
    nan = [record for record in results.records() if math.isnan(record["score.recall"])]
    assert nan, "no member diverged"
    assert all(record["hp.lr"] == 1e30 for record in nan)
    assert not any(record["front"] for record in nan)
    # A diverged member continues from another member, or from its own earlier checkpoint.
    for record in nan:
        later = [
            r
            for r in results.records()
            if r["trial"] == record["trial"] and r["begin"] == record["end"]
        ]
        assert all(r["start"] != record["model"] for r in later)


KILLED = """
import os, signal, sys, time
sys.path[:0] = {path!r}
import torch
torch.set_num_threads(1)
import mopbt
from tests.torch.nets import dropping_task
from tests.torch.test_vectorized import killable
from tests.toys import Watcher
def watch(progress):
    if progress.reported >= int(sys.argv[2]):
        time.sleep(float(sys.argv[3]))  # The worker continues, but the run cannot end.
        os.kill(os.getpid(), signal.SIGKILL)
killable(sys.argv[1], [Watcher(watch)])
"""


def killable(out, callbacks=()):
    """Train a population with dropout as stacks, one after another in one worker."""
    return mopbt.run(
        dropping_task(steps=6, updates=20),
        out=out,
        population=6,
        engine=VectorizedEngine(1, stack=3),
        progress=False,
        callbacks=callbacks,
    )


def events(out):
    exchanges, _ = read_journal(Path(out) / "journal.jsonl")
    jobs = sorted((job for e in exchanges for job in e.jobs), key=lambda job: job.id)
    reports = sorted(
        (r.job, r.objectives, r.scores, r.checksum, r.error) for e in exchanges for r in e.reports
    )
    assert len({r[0] for r in reports}) == len(reports) == len(jobs)
    return jobs, reports


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_ends_as_if_nothing_had_happened(tmp_path):
    whole = killable(tmp_path / "whole")
    expected = events(tmp_path / "whole"), {p.model: whole.checkpoint(p) for p in whole.front()}
    program = KILLED.format(
        path=[str(Path(__file__).parent.parent.parent), str(Path(__file__).parent.parent)]
    )
    rng, out = random.Random(5), tmp_path / "killed"
    for after in (4, 13, 25):
        command = [sys.executable, "-c", program, str(out), str(after), str(rng.uniform(0, 0.03))]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert after <= len(mopbt.Results.open(out)) < 36
    results = killable(out)
    assert (events(out), {p.model: results.checkpoint(p) for p in results.front()}) == expected
    assert any(p.hp["dropout"] > 0 for p in results.points())


@pytest.mark.parametrize("population", [7, 9])
def test_stacks_are_the_same_in_every_generation(population, tmp_path):
    """Otherwise a resumed run could train members alone that were stacked before."""
    sizes = []
    for generation in range(3):
        engine = VectorizedEngine(1, stack=math.ceil(population / 2))
        engine.start(work_on(make_task(), DirectoryCheckpoints(tmp_path)))
        jobs = [
            Job(generation * population + i, i, (0,), None, generation, generation + 1)
            for i in range(population)
        ]
        engine.submit(jobs, {})
        sizes.append(
            [
                len(b)
                for b in (*(s for w in engine._pool.values() for s in w.stacks), *engine._pending)
            ]
        )
        engine.close()
    assert sizes == [{7: [4, 3], 9: [5, 4]}[population]] * 3


# One stack.


def work_on(task, checkpoints=None):
    return RunContext(task, problem_of(task), 0, checkpoints or MemoryCheckpoints())


def first_jobs(work, *hp, begin=0, start=None, id=0):
    encode = work.problem.space.encode
    return [
        (Job(id + i, i, encode(v), start, begin, begin + work.problem.interval), "")
        for i, v in enumerate(hp)
    ]


HP = [
    {"lr": lr, "dropout": p, "balance": 1.0}
    for lr, p in ((0.3, 0.0), (0.003, 0.8), (0.3, 0.4), (0.3, 0.2))
]


def test_a_stack_trains_like_its_members_alone():
    task = make_task(optimizer=AdamW(lr="lr"))
    work = work_on(task)
    stack_jobs = first_jobs(work, {"lr": 0.01}, {"lr": 0.1}, {"lr": 1.0})
    together = train(work, stack_jobs, ModelCache(2**20))
    alone = [train(work, [job], ModelCache(2**20))[0] for job in stack_jobs]
    for a, b in zip(alone, together, strict=True):
        assert b.scores["loss"] == pytest.approx(a.scores["loss"], abs=1e-4)
        assert b.job == a.job


def test_cached_and_loaded_members_give_the_same_bytes(tmp_path):
    work = work_on(dropping_task(), DirectoryCheckpoints(tmp_path))
    warm = ModelCache(2**24)
    reports = [save(work, t) for t in train(work, first_jobs(work, *HP), warm)]
    seconds = [
        Job(10 + i, i, job.config, (1, 1, 3, 0)[i], 1, 2)
        for i, (job, _) in enumerate(first_jobs(work, *HP))
    ]
    stack_jobs = [(job, {job.start: reports[job.start].checksum}) for job in seconds]
    hot, cold = train(work, stack_jobs, warm), train(work, stack_jobs, ModelCache(0))
    assert [t.data.checksum for t in hot] == [t.data.checksum for t in cold]
    assert len({t.data.checksum for t in hot}) == 4
    assert not any(t.error for t in hot)


def test_a_damaged_checkpoint_fails_only_its_own_member(tmp_path):
    work = work_on(dropping_task(), DirectoryCheckpoints(tmp_path))
    reports = [save(work, t) for t in train(work, first_jobs(work, *HP), ModelCache(0))]
    file = tmp_path / "1.ckpt"
    file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    seconds = [
        (Job(10 + i, i, job.config, i, 1, 2), {i: reports[i].checksum})
        for i, (job, _) in enumerate(first_jobs(work, *HP))
    ]
    trained = train(work, seconds, ModelCache(0))
    assert [bool(t.error) for t in trained] == [False, True, False, False]
    assert "1.ckpt is damaged" in trained[1].error
    assert all("1.ckpt is damaged" in t.stack_error for t in trained)
    assert all(set(t.scores) >= {"recall", "specificity"} for t in trained if not t.error)


def fussy(outputs, y):
    """Raise an exception for large outputs, as some metrics do."""
    if float(outputs.abs().max()) > 50:
        raise ZeroDivisionError("too large for me")
    return scores(outputs, y)


def test_an_exception_for_one_member_fails_only_that_one():
    work = work_on(
        make_task(
            metrics=fussy, space={"lr": mopbt.Ordinal([0.01, 0.1, 300.0])}, optimizer=AdamW(lr="lr")
        )
    )
    stack_jobs = first_jobs(work, {"lr": 0.01}, {"lr": 300.0}, {"lr": 0.1})
    trained = train(work, stack_jobs, ModelCache(0))
    assert [bool(t.error) for t in trained] == [False, True, False]
    assert "ZeroDivisionError: too large for me" in trained[1].error
    assert all(t.stack_error == "ZeroDivisionError: too large for me" for t in trained)
    assert trained[0].scores["loss"] == pytest.approx(
        train(work, stack_jobs[:1], ModelCache(0))[0].scores["loss"], abs=1e-6
    )


def rectified():
    return nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU(), nn.Linear(8, 2))


def raising_on_nan(outputs, y):
    if outputs.isnan().any():
        raise ValueError("Input contains NaN.")  # scikit-learn does this.
    return scores(outputs, y)


@pytest.mark.parametrize("metrics", [scores, raising_on_nan])
def test_a_member_with_nan_weights_is_reported_as_nan_whatever_its_metrics(metrics):
    """The argmax of NaN is class 0, which would give the best specificity."""
    space = {"lr": mopbt.Ordinal([0.1, 1e30])}
    work = work_on(make_task(rectified, metrics=metrics, space=space, constraints=["loss <= 9"]))
    reports = [
        save(work, t)
        for t in train(
            work, first_jobs(work, {"lr": 0.1}, {"lr": 1e30}, {"lr": 0.1}), ModelCache(0)
        )
    ]
    assert [r.error for r in reports] == ["", "", ""]
    assert all(map(math.isnan, reports[1].objectives))
    assert all(map(math.isfinite, reports[0].objectives + reports[2].objectives))


def test_a_broken_contract_in_a_stack_ends_the_run():
    work = work_on(make_task(loss=lambda m, b, hp: m(b[0]).sum() * m(b[0]).sum().item()))
    with pytest.raises(CannotStack, match=r"\.item\(\)"):
        train(work, first_jobs(work, {"lr": 0.01}, {"lr": 0.1}), ModelCache(0))


class Suicidal(nn.Module):
    """A model that kills its process in training if a file exists."""

    def __init__(self, file):
        super().__init__()
        self.net, self.file = mlp(), Path(file)

    def forward(self, x):
        if self.training and self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_of_a_stack_is_replaced(tmp_path):
    file = str(tmp_path / "kill")
    work = work_on(make_task(lambda: Suicidal(file)), DirectoryCheckpoints(tmp_path))
    engine = VectorizedEngine(1, stack=3)
    Path(file).touch()
    engine.start(work)
    engine.submit([job for job, _ in first_jobs(work, {"lr": 0.01}, {"lr": 0.1}, {"lr": 1.0})], {})
    reports = []
    while len(reports) < 3:
        reports += engine.collect()
    engine.close()
    assert not Path(file).exists()
    assert sorted(r.job for r in reports) == [0, 1, 2]
    assert all(r.objectives is not None and not r.error for r in reports)
    assert DirectoryCheckpoints(tmp_path).kept() == {0, 1, 2}


# Arguments of the engine.


def test_a_task_without_stacks_raises_an_error_with_the_remedy(tmp_path):
    with pytest.raises(
        CannotStack,
        match="the task 'toy' has no `train_many`.*use engine='pool'",
    ):
        VectorizedEngine(1).start(work_on(ToyTask()))
    with pytest.raises(CannotStack, match="use engine='pool'"):
        mopbt.run(ToyTask(), out=None, population=4, engine="vectorized", progress=False)


@pytest.mark.slow
def test_sizes():
    engine = VectorizedEngine(2, stack=8)
    assert (engine.workers, engine.stack) == (2, 8)
    assert engine.capacity >= 16
    for stack in (0, 1.5, True):
        with pytest.raises(ValueError, match="`stack` must be a whole number of at least 1"):
            VectorizedEngine(1, stack=stack)
