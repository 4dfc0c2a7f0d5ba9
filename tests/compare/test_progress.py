"""Estimating the time left."""

from itertools import product
from pathlib import Path

import pytest

from mopbt.compare import (
    Experiment,
    PlannedRun,
    seconds_left,
)
from mopbt.compare.plan import plan_comparison
from mopbt.compare.progress import ProgressView


def test_time_left_is_estimated_from_the_most_similar_runs():
    runs = {(t, a, s): PlannedRun(t, a, s) for t, a, s in product("xy", "AB", (0, 1))}
    plan = list(runs.values())
    assert seconds_left(plan, {}, {}) == 0
    duration = {runs["x", "A", 0]: 10.0, runs["x", "B", 0]: 30.0}
    # Of x A 1 a quarter of 10 is done and x B 1 takes 30. The four runs of y take 20 each, the mean
    # of all, because none of y is finished.
    assert seconds_left(plan, duration, {runs["x", "A", 1]: 0.25}) == 7.5 + 30 + 4 * 20
    duration[runs["y", "A", 0]] = 100.0
    assert seconds_left(plan, duration, {}) == 10 + 30 + 100 + 2 * 100
    assert seconds_left(plan, duration, {}, jobs=2) == (10 + 30 + 100 + 2 * 100) / 2
    duration |= dict.fromkeys(plan[:-1], 100.0)
    assert seconds_left(plan, duration, {plan[-1]: 0.1}, jobs=2) == pytest.approx(90), (
        "a single run cannot be split"
    )


def test_time_left_is_shown_before_the_first_run_is_finished(monkeypatch):
    mine = Experiment(name="mine", tasks=("x",), algorithms={"A": {"name": "mo-pbt"}}, seeds=4)
    plan = plan_comparison(mine, Path("out"), None, (), 2)
    runs = plan.runs
    now = [0.0]
    monkeypatch.setattr("mopbt.compare.progress.time.monotonic", lambda: now[0])
    with ProgressView(plan, {}, shown=False) as view:
        view.begin(runs[0])
        assert "left" not in view._line()
        # The run was started in an earlier session, whose duration is unknown.
        view.share(runs[0], 0.5)
        assert "left" not in view._line()
        now[0] = 30.0
        # A quarter takes 30 s and a run 120 s. 30 s and three runs are left, two at a time.
        view.share(runs[0], 0.75)
        assert "3:15 left" in view._line()
        now[0] = 60.0
        # The finished run reports its total duration.
        view.end(runs[0], {"finished": {"real": 200.0}})
        assert "5:00 left" in view._line()
        view.begin(runs[1])
        view.end(runs[1], {"failed": "RuntimeError: no such luck"})
        view.give_up(runs[2], "needs the time of 'A'")
        assert view._line().endswith("3:20 left | 2 failed")
