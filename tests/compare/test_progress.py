"""Estimating the time left."""

from itertools import product

import pytest

from mopbt.compare import (
    PlannedRun,
    seconds_left,
)
from mopbt.compare.progress import ProgressView


def test_time_left_is_that_of_the_runs_most_alike():
    runs = {(t, a, s): PlannedRun(t, a, s) for t, a, s in product("xy", "AB", (0, 1))}
    plan = list(runs.values())
    assert seconds_left(plan, {}, {}) == 0
    duration = {runs["x", "A", 0]: 10.0, runs["x", "B", 0]: 30.0}
    # x A 1: 10, of which a quarter is done; x B 1: 30; the four of y: 20 each, as nothing of y is over.
    assert seconds_left(plan, duration, {runs["x", "A", 1]: 0.25}) == 7.5 + 30 + 4 * 20
    duration[runs["y", "A", 0]] = 100.0
    assert seconds_left(plan, duration, {}) == 10 + 30 + 100 + 2 * 100
    assert seconds_left(plan, duration, {}, jobs=2) == (10 + 30 + 100 + 2 * 100) / 2
    duration |= dict.fromkeys(plan[:-1], 100.0)
    assert seconds_left(plan, duration, {plan[-1]: 0.1}, jobs=2) == pytest.approx(90), (
        "the last one cannot be shared"
    )


def test_time_left_is_told_before_the_first_run_is_over(monkeypatch):
    runs = [PlannedRun("x", "A", seed) for seed in range(4)]
    now = [0.0]
    monkeypatch.setattr("mopbt.compare.progress.time.monotonic", lambda: now[0])
    with ProgressView("mine", runs, {}, 2, shown=False) as board:
        board.begin(runs[0])
        assert "left" not in board._line()
        board.share(
            runs[0], 0.5
        )  # it goes on from a session before: what that duration is not known
        assert "left" not in board._line()
        now[0] = 30.0
        board.share(
            runs[0], 0.75
        )  # a quarter in 30 s: 120 s a run, of which 30 and three whole ones are to go, two at a time
        assert "3:15 left" in board._line()
        now[0] = 60.0
        board.end(
            runs[0], {"finished": {"real": 200.0}}
        )  # what it duration all in all is known now
        assert "5:00 left" in board._line()
        board.begin(runs[1])
        board.end(runs[1], {"failed": "RuntimeError: no such luck"})
        board.give_up(runs[2], "needs the time of 'A'")
        assert board._line().endswith("3:20 left | 2 failed")
