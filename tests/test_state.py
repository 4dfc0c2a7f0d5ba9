import copy
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mopbt.state import (
    ErrorBar,
    Job,
    Report,
    Result,
    State,
    Trial,
    required_checkpoints,
    updated,
    with_jobs,
    with_report,
)

floats = st.floats()  # NaN, infinities and -0.0 among them
times = st.floats(0, 1e6).map(lambda v: round(v, 6))
ids = st.integers(0, 10**6)
positions = st.one_of(st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False))
weights = st.floats(0, 1)
blends = st.lists(st.tuples(ids, weights), max_size=2).map(tuple)
jobs = st.builds(
    Job, ids, ids, st.lists(positions, max_size=5).map(tuple), st.none() | ids, ids, ids, blends
)
reports = st.builds(
    Report,
    ids,
    objectives=st.lists(floats, min_size=1, max_size=3).map(tuple),
    violation=st.floats(0) | st.just(0.0),
    scores=st.dictionaries(st.text(max_size=6), floats, max_size=4),
    checksum=st.text("0123456789abcdef", max_size=8),
    seconds=times,
    duration=times,
    errors=st.dictionaries(st.text(max_size=6), st.builds(ErrorBar, floats, floats, floats)),
)
failures = st.builds(Report, ids, seconds=times, duration=times, error=st.text())


def through_json(data):
    return json.loads(
        json.dumps(data, allow_nan=False, ensure_ascii=False)
    )  # real JSON: NaN is not part of it


@given(jobs)
def test_a_job_survives_json(job):
    again = Job.from_json(through_json(job.to_json()))
    assert repr(again) == repr(job)  # repr: -0.0 and the types of positions count
    assert hash(again) == hash(job)


@given(reports | failures)
def test_a_report_survives_json(report):
    assert repr(Report.from_json(through_json(report.to_json()))) == repr(report)


def test_a_report_by_hand():
    report = Report(
        3,
        (math.inf, -0.0, math.nan),
        math.inf,
        {"ü ∞": -math.inf, "f": 1 / 3, "z": -0.0},
        "ab",
        1.25,
        0.5,
    )
    data = report.to_json()
    assert data == {
        "job": 3,
        "seconds": 1.25,
        "duration": 0.5,
        "objectives": ["inf", -0.0, "nan"],
        "scores": {"ü ∞": "-inf", "f": 1 / 3, "z": -0.0},
        "checksum": "ab",
        "violation": "inf",
    }
    assert repr(Report.from_json(through_json(data))) == repr(report)
    assert Report(3, error='Traceback "…"\n').to_json() == {
        "job": 3,
        "seconds": 0.0,
        "duration": 0.0,
        "error": 'Traceback "…"\n',
    }
    lost = Report(3, error="lost", checksum="ab")
    assert lost.to_json()["checksum"] == "ab"
    assert Report.from_json(through_json(lost.to_json())) == lost


def test_what_a_line_has_only_if_it_is_needed_by_hand():
    """A job that blends checkpoints, and a report with errors of its metrics."""
    job = Job(7, 2, (3, 0.5), 4, 10, 20, ((5, 0.25), (6, 0.125)))
    assert job.to_json() == [7, 2, [3, 0.5], 4, 10, 20, [[5, 0.25], [6, 0.125]]]
    assert Job.from_json(through_json(job.to_json())) == job
    assert Job.from_json([7, 2, [3, 0.5], None, 10, 20]) == Job(7, 2, (3, 0.5), None, 10, 20)
    report = Report(7, (0.5,), scores={"a": 0.5}, errors={"a": ErrorBar(0.1, 0.25, math.inf)})
    assert report.to_json()["errors"] == {"a": [0.1, 0.25, "inf"]}
    assert Report.from_json(through_json(report.to_json())) == report
    assert "errors" not in Report(7, (0.5,)).to_json()


def test_a_job_starts_from_its_checkpoint_and_those_it_blends():
    alone, fresh = Job(7, 2, (), 4, 0, 1), Job(7, 2, (), None, 0, 1)
    blended = Job(7, 2, (), 4, 0, 1, ((5, 0.25), (6, 0.125)))
    assert [job.starts for job in (alone, fresh, blended)] == [(4,), (), (4, 5, 6)]
    assert alone.weighted_starts == ((4, 1),)
    assert fresh.weighted_starts == ()
    assert blended.weighted_starts == ((4, 0.625), (5, 0.25), (6, 0.125))
    state = State(0, [Trial(0, (), "ready", 1, 8, blend=((9, 0.5),))], {7: blended})
    assert required_checkpoints(state) == {4, 5, 6, 8, 9}


def test_numbers_of_numpy_survive_json():
    report = Report(0, (np.float64(0.5), np.float64("nan")), scores={"a": np.float64("inf")})
    again = Report.from_json(through_json(report.to_json()))
    assert again.objectives[0] == 0.5
    assert math.isnan(again.objectives[1])
    assert again.scores == {"a": math.inf}


def test_a_failed_report_is_recognized_by_its_objectives():
    again = Report.from_json(through_json(Report(1).to_json()))
    assert (again.objectives, again.error, again.checksum) == (None, "", "")


# The table, worked by hand.


FAILED = Result(None, 0.0, (), 1, 1, (2,))  # of job 1, which is the first of trial 1


def two_members():
    """Member 0 reports at step 2, member 1 fails; both are ready again."""
    state = with_jobs(State(5), [Job(0, 0, (1,), None, 0, 2), Job(1, 1, (2,), None, 0, 2)])
    state = with_report(state, Report(0, (0.5,), 0.25, {"a": 0.5}, "c0"), status="ready")
    return with_report(state, Report(1, error="no"), status="ready")


def test_ordering_makes_trials_that_run():
    state = with_jobs(State(5), [Job(0, 0, (1,), None, 0, 2), Job(1, 1, (2,), None, 0, 2)])
    assert state == State(
        seed=5,
        trials=(Trial(0, (1,), "running", origin=0), Trial(1, (2,), "running", origin=1)),
        outstanding={0: Job(0, 0, (1,), None, 0, 2), 1: Job(1, 1, (2,), None, 0, 2)},
        jobs=2,
    )


def test_recording_moves_a_trial_to_the_end_of_its_job():
    assert two_members() == State(
        seed=5,
        trials=(
            Trial(0, (1,), "ready", 2, 0, {2: Result((0.5,), 0.25, (), 0, 0, (1,))}, origin=0),
            # It failed: no checkpoint, and it was from fresh weights.
            Trial(1, (2,), "ready", 2, None, {2: FAILED}, origin=1),
        ),
        outstanding={},
        jobs=2,
    )


def test_an_exploit_is_a_number_in_a_job():
    state = with_jobs(two_members(), [Job(2, 1, (3,), 0, 2, 4)])
    assert state.trials[1] == Trial(1, (3,), "running", 2, 0, {2: FAILED}, origin=1)
    state = with_report(state, Report(2, (0.75,)), status="finished")
    newest = Result((0.75,), 0.0, (), 2, 1, (3,))
    assert state.trials[1] == Trial(1, (3,), "finished", 4, 2, {2: FAILED, 4: newest}, origin=1)
    assert state.trials[0] == two_members().trials[0]
    assert state.trials[1].latest == newest


def test_a_failure_goes_back_to_where_the_job_started():
    state = with_jobs(two_members(), [Job(2, 1, (3,), 0, 2, 4)])
    state = with_report(state, Report(2, error="no"), status="waiting")
    assert state.trials[1] == Trial(
        1, (3,), "waiting", 4, 0, {2: FAILED, 4: Result(None, 0.0, (), 2, 1, (3,))}, origin=1
    )


@pytest.mark.parametrize(
    ("objectives", "violation"),
    [((math.nan, 1.0), 0.0), ((math.inf, 1.0), 0.0), ((1.0, 1.0), math.inf)],
)
def test_no_trial_continues_from_nan_or_infinity(objectives, violation):
    state = with_jobs(two_members(), [Job(2, 0, (3,), 0, 2, 4)])
    state = with_report(state, Report(2, objectives, violation), status="ready")
    assert state.trials[0].checkpoint == 0
    assert not state.trials[0].is_finite
    assert two_members().trials[0].is_finite
    assert not two_members().trials[1].is_finite
    assert not Trial(0, ()).is_finite
    assert required_checkpoints(state) == {0}


def test_the_newest_result_is_the_last_that_came_not_the_one_of_the_highest_step():
    state = with_jobs(State(0), [Job(0, 0, (1,), None, 0, 2)])
    for job in (
        Job(1, 0, (1,), 0, 2, 4),
        Job(2, 0, (1,), 0, 0, 2),
    ):  # it takes over from a donor that is behind
        state = with_report(state, Report(job.id - 1, (float(job.id),)), status="ready")
        state = with_jobs(state, [job])
    state = with_report(state, Report(2, (9.0,)), status="ready")
    results = state.trials[0].results
    assert [(step, result.objectives) for step, result in results.items()] == [
        (4, (2.0,)),
        (2, (9.0,)),
    ]
    assert state.trials[0].latest.objectives == (9.0,)
    assert Trial(0, ()).latest is None


def test_ids_continue_whatever_the_order_of_jobs():
    assert with_jobs(State(0), []).jobs == 0
    state = with_jobs(State(0), [Job(4, 0, (), None, 0, 1), Job(2, 1, (), None, 0, 1)])
    assert state.jobs == 5
    assert list(state.outstanding) == [4, 2]
    assert with_jobs(state, [Job(3, 2, (), None, 0, 1)]).jobs == 5


def test_new_rows_are_appended_and_known_ones_replaced():
    state = State(0, (Trial(0, (1,)), Trial(1, (1,))))
    after = updated(state, [Trial(2, (7,)), Trial(0, (8,)), Trial(3, (9,))])
    assert [t.config for t in after.trials] == [(8,), (1,), (7,), (9,)]
    with pytest.raises(IndexError):
        updated(state, [Trial(5, ())])


def test_a_report_without_an_outstanding_job_is_an_error():
    state = two_members()
    with pytest.raises(KeyError):
        with_report(state, Report(0, (0.5,)), status="ready")


@pytest.mark.parametrize(
    ("statuses", "kept"),
    [
        (("ready", "ready"), {0, 1}),
        (("waiting", "running"), {0, 1}),
        (("finished", "ready"), {1}),
        (("stopped", "waiting"), {1}),
        (("finished", "stopped"), set()),
    ],
)
def test_checkpoints_are_required_while_their_trials_continue(statuses, kept):
    trials = tuple(Trial(i, (), status, 2, i) for i, status in enumerate(statuses))
    assert required_checkpoints(State(0, trials)) == frozenset(kept)


def test_checkpoints_of_outstanding_jobs_are_needed_and_fresh_weights_are_none():
    state = State(
        0,
        (Trial(0, (), "finished", 2, 0), Trial(1, (), "ready")),
        {7: Job(7, 2, (), 5, 2, 4), 8: Job(8, 3, (), None, 0, 2)},
    )
    assert required_checkpoints(state) == frozenset({5})
    assert required_checkpoints(State(0)) == frozenset()


# Values that do not change.


@pytest.mark.parametrize(
    "value", [Job(0, 0, (), None, 0, 1), Report(0), Result(None), Trial(0, ()), State(0)], ids=repr
)
def test_everything_is_frozen(value):
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, 1)
    with pytest.raises((TypeError, AttributeError)):
        value.other = 1


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_a_step_leaves_what_was_before_as_it_was(plays):
    """After any sequence of intervals no earlier state has changed, and the counts agree."""
    state = State(0)
    history = [(state, copy.deepcopy(state))]
    reported = {}
    for trial, fails in plays:
        trial = min(trial, len(state.trials))
        row = state.trials[trial] if trial < len(state.trials) else Trial(trial, (trial,))
        job = Job(state.jobs, trial, row.config, row.checkpoint, row.step, row.step + 1)
        state = with_jobs(state, [job])
        history.append((state, copy.deepcopy(state)))
        assert job.start is None or job.start in required_checkpoints(state)
        state = with_report(
            state, Report(job.id) if fails else Report(job.id, (float(job.id),)), status="ready"
        )
        history.append((state, copy.deepcopy(state)))
        reported.setdefault(trial, []).append(None if fails else job.id)
    assert all(now == then for now, then in history)
    assert state.jobs == len(plays)
    assert not state.outstanding
    for trial, outcomes in reported.items():
        row = state.trials[trial]
        assert row.step == len(row.results) == len(outcomes)
        assert row.checkpoint == next((job for job in reversed(outcomes) if job is not None), None)
    assert required_checkpoints(state) == {t.checkpoint for t in state.trials} - {None}


def test_a_job_that_starts_from_several_checkpoints_survives_json():
    job = Job(7, 2, (1, 0.5), None, 2, 4, ((3, 0.25), (5, 0.75)))
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
