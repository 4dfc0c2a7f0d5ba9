import io
import re
from dataclasses import replace

from rich.console import Console

from mopbt import run
from mopbt.progress_display import Display, clock, line, panel
from mopbt.tasks.toy import FailingToy, ToyTask
from toys import Watcher


def shown(task, *, terminal, **options):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, highlight=False)
    display = Display(console, closing_note=lambda outcome: f"{outcome}, press play")
    seen = []
    callbacks = [display, Watcher(seen.append)]
    run(task, out=None, engine="local", progress=False, callbacks=callbacks, **options)
    return text.getvalue(), seen


def test_without_a_terminal_it_is_one_plain_line_per_generation():
    text, seen = shown(ToyTask(steps=8), terminal=False, population=4)
    lines = [line for line in text.splitlines() if not line.startswith("advice: ")]
    assert lines[0].startswith("generation 0/4 | 0/16 intervals")
    assert re.match(
        r"generation 4/4 \| 16/16 intervals \| near \S+  far \S+ \| front \d+ "
        r"\| hypervolume \S+ \| \d+:\d\d elapsed",
        lines[-2],
    )
    assert lines[-1] == "done, press play"
    assert len(lines) == 6
    assert "\x1b" not in text
    assert len(seen) == 17


def test_on_a_terminal_it_is_a_live_panel():
    text, seen = shown(ToyTask(steps=8), terminal=True, population=4)
    for piece in ("generation 4/4", "16/16", "best near", "best far", "hypervolume"):
        assert piece in text
    assert seen[-1].generation == 4


def test_the_panel_fits_80_columns_without_wrapping():
    _, seen = shown(ToyTask(steps=8), terminal=False, population=4)
    progress = seen[-1]
    problem = replace(progress.problem, name="a-task-with-a-name-of-many-words-" * 2)
    console = Console(file=io.StringIO(), width=80)
    console.print(panel(replace(progress, problem=problem)))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "generation 4/4 0:00 0:00 left" in lines[0]
    assert max(map(len, lines)) <= 80


def test_hypervolume_never_falls_once_all_have_reported():
    _, seen = shown(ToyTask(steps=12), terminal=False, population=4)
    values = [p.hypervolume() for p in seen if p.reported >= 4]
    assert values == sorted(values)
    assert values[-1] > 0


def test_failures_are_counted_and_the_first_are_printed():
    text, seen = shown(FailingToy(steps=8), terminal=False, population=11, seed=1)
    assert seen[-1].failures > 0
    assert "failed: ZeroDivisionError" in text
    assert f"{seen[-1].failures} failed" in text


def test_time_left_shrinks_to_nothing():
    _, seen = shown(ToyTask(steps=8), terminal=False, population=4)
    assert seen[0].seconds_left is None
    assert seen[-1].seconds_left == 0
    assert "16/16" in line(seen[-1])
    assert panel(seen[0]).renderables


def test_time_left_does_not_count_the_start():
    """Worker processes import packages for seconds before the first interval."""
    _, seen = shown(ToyTask(steps=8), terminal=False, population=4)
    # Two intervals took two seconds, 13 are left.
    begun = replace(seen[3], elapsed=22.0, reported=3, total=16, since=(20.0, 1))
    assert begun.seconds_left == 13
    assert replace(begun, reported=1).seconds_left is None


def test_clock():
    assert [clock(s) for s in (0, 59.6, 61, 3600, 36_061, -3)] == [
        "0:00",
        "1:00",
        "1:01",
        "1:00:00",
        "10:01:01",
        "0:00",
    ]
