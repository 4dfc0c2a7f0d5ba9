"""Two runs compared, by examples worked out by hand."""

from dataclasses import replace

import pytest
from matplotlib.collections import PolyCollection

from mopbt.objectives import Constraint, Objective, total_violation
from mopbt.plots import front
from mopbt.plots.against import describe_differences
from mopbt.plots.front import plot_front
from mopbt.problem import problem_of
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange
from mopbt.tasks.toy import ToyTask

GAIN = (Objective("gain", "max"), Objective("cost", "min"))


def run_of(points, name, *, reference=(0.0, -4.0), objectives=GAIN, constraints=()):
    """Return a run whose members reported these scores, one after the other; None is a failure."""
    problem = problem_of(ToyTask(interval=1, steps=20))
    problem = replace(problem, objectives=objectives, reference=reference, constraints=constraints)
    results = Results(RunConfig(problem, {"name": name}, 0), None)
    jobs = tuple(Job(i, i, (0, 0), None, 0, 1) for i in range(len(points)))
    reports = [
        Report(i, None, error="it failed", seconds=i + 1.0)
        if point is None
        else Report(
            i,
            tuple(o.sign * value for o, value in zip(objectives, point, strict=True)),
            violation=total_violation(
                constraints, dict(zip([o.name for o in objectives], point, strict=True))
            ),
            scores={o.name: value for o, value in zip(objectives, point, strict=True)},
            seconds=i + 1.0,
        )
        for i, point in enumerate(points)
    ]
    for exchange in (Exchange(jobs=jobs), *(Exchange(reports=(r,)) for r in reports)):
        results.history.append(exchange)
    return results


# From the reference (gain 0, cost 4), MINE dominates 3 + 2 + 1,
# and THEIRS 0.5 x 3.5 + 1 x 2 + 1 x 1.
MINE = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
THEIRS = [(0.5, 0.5), (1.5, 2.0), (2.5, 3.0)]


def test_by_hand():
    """The hypervolume of MINE grows from 3 to 5, which exceeds 4.75, and to 6."""
    assert describe_differences(run_of(MINE, "mine"), run_of(THEIRS, "theirs")) == [
        "hypervolume: mine 6, theirs 4.75 (+26.3 %)",
        "dominated: 2 of the 3 models of theirs by a model of mine; conversely 0 of 3",
        "gain where cost <= 2: mine 2, theirs 1.5",
        "speed: mine exceeded the hypervolume of theirs after 2 of its 3 intervals",
    ]


def test_failures_are_intervals_too():
    said = describe_differences(run_of([None, *MINE, None], "mine"), run_of(THEIRS, "theirs"))
    assert said[-1] == "speed: mine exceeded the hypervolume of theirs after 3 of its 5 intervals"


def test_two_runs_of_one_algorithm_are_called_by_their_folders(tmp_path):
    runs = [run_of(points, "mo-pbt") for points in (MINE, THEIRS)]
    for run, folder in zip(runs, ("new", "old"), strict=True):
        run.path = tmp_path / folder
    assert describe_differences(*runs)[0] == "hypervolume: new 6, old 4.75 (+26.3 %)"


def test_the_worse_run_has_no_line_about_speed():
    assert describe_differences(run_of(THEIRS, "theirs"), run_of(MINE, "mine")) == [
        "hypervolume: theirs 4.75, mine 6 (-20.8 %)",
        "dominated: 0 of the 3 models of mine by a model of theirs; conversely 2 of 3",
        "gain where cost <= 2: theirs 1.5, mine 2",
    ]


def test_runs_without_a_reference_of_their_task_get_one_in_common():
    one, two = ([(1.0, 1.0)], [(2.0, 2.0), (1.5, 1.5)])
    said = describe_differences(
        run_of(one, "one", reference=None), run_of(two, "two", reference=None)
    )
    # Measured from (0.9, -2.1): 0.1 x 1.1, and 0.6 x 0.6 + 0.5 x 0.1.
    assert said[0] == "hypervolume: one 0.11, two 0.41 (-73.2 %)"
    assert said[2] == "gain where cost <= 1.5: one 1, two 1.5"


def test_a_level_that_a_run_does_not_reach():
    said = describe_differences(run_of([(2.0, 2.0)], "one"), run_of([(1.0, 1.0)], "two"))
    assert said[2] == "gain where cost <= 1: one has no such model, two 1"


def test_three_objectives():
    three = (*GAIN, Objective("size", "min"))
    runs = [
        run_of([point], "run", reference=(0.0, -4.0, -4.0), objectives=three)
        for point in ((1.0, 1.0, 1.0), (1.0, 2.0, 1.0))
    ]
    assert [line.split(":")[0] for line in describe_differences(*runs)] == [
        "hypervolume",
        "dominated",
        "speed",
    ]


def test_a_run_without_a_model():
    assert describe_differences(run_of([], "one"), run_of(MINE, "mine")) == [
        "one has no feasible model, so the runs cannot be compared"
    ]


def test_other_objectives_are_refused():
    with pytest.raises(ValueError, match="only if they have the same objectives"):
        describe_differences(
            run_of(MINE, "mine"),
            run_of(THEIRS, "theirs", objectives=GAIN[::-1], reference=(-4.0, 0.0)),
        )


def test_a_figure_of_other_objectives_is_refused(tmp_path):
    with pytest.raises(ValueError, match="only if they have the same objectives"):
        plot_front(
            run_of(MINE, "mine"),
            tmp_path / "f.png",
            against=run_of(THEIRS, "theirs", objectives=GAIN[::-1], reference=None),
        )


@pytest.mark.parametrize(
    "directions", [("max", "min"), ("max", "max"), ("min", "min"), ("min", "max")]
)
def test_the_figure_shades_what_one_front_alone_dominates(directions, tmp_path, monkeypatch):
    signs = [1 if d == "max" else -1 for d in directions]
    objectives = tuple(map(Objective, ("x", "y"), directions))
    given = {"objectives": objectives, "reference": None}
    # Larger is better here. Mine exceeds theirs by a square of 1 on the left and one on the right,
    # and theirs exceeds mine by one in the middle.
    mine, theirs = [(1.0, 4.0), (2.0, 1.0), (3.0, 1.0)], [(1.0, 3.0), (2.0, 2.0)]
    runs = [
        run_of([(signs[0] * a, signs[1] * b) for a, b in points], "run", **given)
        for points in (mine, theirs)
    ]
    figure = drawn(*runs, tmp_path, monkeypatch)
    gained, lost = shaded(figure)
    low = signs[1] * figure.axes[0].get_ylim()[signs[1] < 0]
    assert (gained, lost) == pytest.approx(((3 - 2) * (1 - low), 1.0))


def test_the_figure_measures_both_fronts_from_one_reference(tmp_path, monkeypatch):
    runs = [
        run_of(points, name, reference=None)
        for points, name in (([(1.0, 1.0)], "one"), ([(2.0, 2.0), (1.5, 1.5)], "two"))
    ]
    title = drawn(*runs, tmp_path, monkeypatch).get_suptitle()
    assert (
        "a front of 1 model, hypervolume 0.11\nagainst two: a front of 2 models, hypervolume 0.41"
        in title
    )


def test_infeasible_models_dominate_nothing_in_the_figure(tmp_path, monkeypatch):
    unmet = (Constraint.parse("gain >= 9"),)
    figure = drawn(
        *(run_of(points, "run", constraints=unmet) for points in (MINE, THEIRS)),
        tmp_path,
        monkeypatch,
    )
    assert shaded(figure) == [0, 0]
    assert (
        figure.get_suptitle()
        .replace("\n", " ")
        .count("no model satisfies gain >= 9; this one comes closest")
        == 2
    )


def drawn(results, against, tmp_path, monkeypatch):
    """Return the matplotlib figure of two runs."""
    made = []
    monkeypatch.setattr(
        front,
        "new_figure",
        lambda size, make=front.new_figure: made.append(make(size)) or made[0],
    )
    plot_front(results, tmp_path / "front.png", against=against)
    return made[0]


def shaded(figure):
    """Return the area that only the first and that only the second front dominates."""
    shades = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    return [sum(_area(path.vertices) for path in shade.get_paths()) for shade in shades]


def _area(vertices):
    x, y = vertices[:, 0], vertices[:, 1]
    return abs((x[:-1] * y[1:] - x[1:] * y[:-1]).sum()) / 2
