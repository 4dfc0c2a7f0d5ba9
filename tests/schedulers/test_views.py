"""Schedulers with views decide like those that read the whole table each time."""

from dataclasses import fields

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lanes import examples, slow_except
from mopbt import MOPBT, PBT, RandomScalarizationPBT, standings
from mopbt.algorithms import MOASHA
from mopbt.problem import problem_of
from mopbt.schedulers.views import Statuses
from mopbt.state import Report, State, Trial, with_jobs
from mopbt.tasks.synthetic import ThreeSkills, TradeOff
from schedulers.plain import PlainAsha, PlainPbt

PROBLEMS = {2: problem_of(TradeOff(steps=10)), 3: problem_of(ThreeSkills(steps=10))}
ALGORITHMS = {
    "synchronous": MOPBT(population=9),
    "asynchronous": MOPBT(population=13, asynchronous=True),
    "half": MOPBT(population=7, asynchronous=True, fraction=0.5, inherit_step=True),
    "crowded": MOPBT(population=10, asynchronous=True, within="crowded"),
    "hypervolume": MOPBT(population=10, asynchronous=True, within="hypervolume"),
    "scaled": MOPBT(population=10, asynchronous=True, scale=True),
    "one objective": PBT(population=8, asynchronous=True),
    "random weights": RandomScalarizationPBT(population=8, asynchronous=True),
    "stopping": MOASHA(trials=40),
    "promotion": MOASHA(trials=40, kind="promotion", eta=2),
}


def plain(scheduler):
    """Return the same scheduler without views."""
    kind = {"Pbt": PlainPbt, "Asha": PlainAsha}[type(scheduler).__name__]
    return kind(**{field.name: getattr(scheduler, field.name) for field in fields(scheduler)})


@st.composite
def outcomes(draw, k):
    """Draw the outcome of a job, with ties, failures, NaN and violations."""
    kind = draw(st.sampled_from(["tie", "any", "any", "any", "violated", "nan", "failed"]))
    if kind == "failed":
        return {"error": "no"}
    values = st.integers(0, 3).map(float) if kind == "tie" else st.floats(-5, 5, width=16)
    objectives = list(draw(st.tuples(*[values] * k)))
    if kind == "nan":
        objectives[0] = float("nan")
    violation = draw(st.sampled_from([0.5, 0.5, 2.0])) if kind == "violated" else 0.0
    return {"objectives": tuple(objectives), "violation": violation}


@pytest.mark.parametrize("name", slow_except(["scaled", "asynchronous", "promotion"], ALGORITHMS))
@given(k=st.sampled_from([2, 3]), slots=st.integers(1, 6), limit=st.booleans(), data=st.data())
@examples(5)
def test_views_change_no_decision(name, k, slots, limit, data):
    scheduler = ALGORITHMS[name].scheduler(PROBLEMS[k])
    oracle = plain(scheduler)
    pool = data.draw(st.lists(outcomes(k), min_size=1, max_size=30))
    picks = data.draw(st.randoms(use_true_random=False))
    state = State(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standings, "CHANGES_PER_RESULT", 400 * limit)
        patch.setattr(standings, "SMALLEST_CHAIN", 2)
        for _ in range(100):
            assert scheduler.done(state) == oracle.done(state)
            if oracle.done(state):
                break
            jobs = oracle.ask(state, slots - len(state.outstanding))
            assert scheduler.ask(state, slots - len(state.outstanding)) == jobs
            state = with_jobs(state, jobs)
            job = picks.choice(sorted(state.outstanding))
            report = Report(job, **picks.choice(pool), checksum="0")
            after = scheduler.tell(state, report)
            # The views belong to the new state, and the old one gets the report again.
            assert after == oracle.tell(state, report) == scheduler.tell(state, report)
            state = after


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["ready", "running", "waiting", "finished"]), st.integers(0, 3)),
        max_size=40,
    ),
    n=st.integers(-1, 20),
    most=st.booleans(),
)
@example(rows=[("ready", 2), ("ready", 2), ("ready", 2), ("ready", 0)], n=2, most=False)
def test_ready_trials_come_by_step_and_id(rows, n, most):
    trials = [Trial(id, (), status, step) for id, (status, step) in enumerate(rows)]
    view = Statuses()
    view.update(list(enumerate(trials)))
    sign = -1 if most else 1
    expected = sorted(
        (t for t in trials if t.status == "ready"), key=lambda t: (sign * t.step, t.id)
    )
    assert view.ready(n, most_steps_first=most) == [t.id for t in expected[: max(n, 0)]]
    assert view.count("waiting") == sum(t.status == "waiting" for t in trials)
    assert view.waiting_at(2).tolist() == [
        t.id for t in trials if t.status == "waiting" and t.step == 2
    ]
