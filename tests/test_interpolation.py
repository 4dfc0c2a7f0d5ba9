"""Members that start between two donors, and means of neighbors on the front, in whole runs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import mopbt
from lanes import slow_except
from mopbt.errors import TaskError
from mopbt.problem import problem_of
from mopbt.stores.journal import read_journal
from mopbt.tasks.toy import ToyTask

MEMBERS = 12
TASK = ToyTask(steps=20)
ALGORITHM = mopbt.MOPBT(population=MEMBERS, fraction=0.5, interpolate=True, candidates=6)


def train(out, engine="local", algorithm=ALGORITHM, **options):
    return mopbt.run(TASK, out=out, algorithm=algorithm, engine=engine, progress=False, **options)


def jobs_of(path):
    exchanges, _ = read_journal(path / "journal.jsonl")
    return {job.id: job for exchange in exchanges for job in exchange.jobs}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    return train(path)


def test_replaced_members_start_between_two_relatives(finished):
    jobs = jobs_of(finished.path)

    def origin(id):
        return jobs[id].trial if jobs[id].start is None else origin(jobs[id].start)

    blended = [job for job in jobs.values() if job.blend and job.trial < MEMBERS]
    assert len(blended) >= 5
    for job in blended:
        ((other, weight),) = job.blend
        assert 0 <= weight <= 1
        assert jobs[job.start].trial != job.trial
        assert jobs[other].trial != jobs[job.start].trial
        assert origin(other) == origin(job.start)
        assert jobs[other].end == jobs[job.start].end == job.begin


def test_the_weights_of_a_candidate_are_the_mean_of_two_neighbors(finished):
    jobs = jobs_of(finished.path)
    candidates = [job for job in jobs.values() if job.trial >= MEMBERS]
    assert 1 <= len(candidates) <= 6
    assert all(job.begin == job.end == TASK.steps for job in candidates)
    reported = {record["model"] for record in finished.records()}
    assert reported == set(jobs)
    kept = {point.model for point in finished.front()}
    checked = 0
    for job in candidates:
        if {job.id, *job.starts} <= kept:
            mine, first, other = (finished.load(id)["place"] for id in (job.id, *job.starts))
            np.testing.assert_allclose(mine, (first + other) / 2)
            checked += 1
    assert checked


def test_the_run_is_done_and_stays_as_it_is(finished):
    assert finished.done
    before = (finished.path / "journal.jsonl").read_bytes()
    again = train(finished.path)
    assert again.done
    assert (finished.path / "journal.jsonl").read_bytes() == before


def decisions(path):
    return [job.to_json() for job in jobs_of(path).values()]


@pytest.mark.parametrize("reports", slow_except([50], [1, 50, 119, 122]))
def test_a_run_that_stops_anywhere_resumes_to_the_same_decisions(finished, reports, tmp_path):
    train(tmp_path / "run", budget=mopbt.Budget(jobs=reports))
    train(tmp_path / "run")
    assert decisions(tmp_path / "run") == decisions(finished.path)
    models = {point.model: finished.checkpoint(point) for point in finished.front()}
    again = mopbt.Results.open(tmp_path / "run", TASK)
    assert {point.model: again.checkpoint(point) for point in again.front()} == models


def test_an_asynchronous_run_blends_as_well(tmp_path):
    algorithm = replace(ALGORITHM, candidates=3, asynchronous=True)
    train(tmp_path, engine=mopbt.SimulatedEngine(3), algorithm=algorithm)
    jobs = jobs_of(tmp_path).values()
    kinds = Counter((bool(job.blend), job.begin == job.end) for job in jobs)
    assert kinds[True, False] >= 3
    assert 1 <= kinds[True, True] <= 3


def test_members_of_a_task_that_cannot_blend_copy_single_donors(tmp_path):
    def learn(m):
        seen = np.zeros(1)
        m.track(seen=seen)
        x = m.hp["x"]
        for _ in m.steps():
            seen += x
        m.report(a=x * m.end, b=-x)

    results = mopbt.run(
        learn,
        space={"x": mopbt.Grid(0, 1, 11)},
        objectives={"a": "max", "b": "max"},
        steps=4,
        out=tmp_path,
        algorithm=ALGORITHM,
        engine="local",
        progress=False,
    )
    assert not problem_of(results.task).blendable
    jobs = jobs_of(tmp_path)
    assert len(jobs) == MEMBERS * 4
    assert not any(job.blend for job in jobs.values())


@pytest.mark.parametrize(
    ("options", "facts"),
    [({"interpolate": 2}, "`interpolate`"), ({"candidates": -1}, "`candidates`")],
)
def test_wrong_options_are_errors(options, facts):
    with pytest.raises(ValueError, match=facts):
        mopbt.MOPBT(**options)


def test_a_replay_trains_all_ancestors_of_a_blended_model(finished):
    jobs = jobs_of(finished.path)
    blended = [point for point in finished.front() if jobs[point.model].blend]
    assert blended
    for point in blended[:3]:
        replayed = finished.replay(point)
        assert replayed.data == finished.checkpoint(point)
        assert not any(replayed.differences.values())
        assert len(replayed.lineage) > len(finished.lineage(point))


def test_a_blended_schedule_is_not_stretched(finished):
    jobs = jobs_of(finished.path)
    point = next(point for point in finished.front() if jobs[point.model].blend)
    with pytest.raises(TaskError, match="mean of several models") as caught:
        finished.replay(point, ToyTask(steps=40))
    assert "40" in str(caught.value)
