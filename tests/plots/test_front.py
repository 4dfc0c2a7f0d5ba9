import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import mopbt
from mopbt.errors import MissingExtra
from mopbt.history import History
from mopbt.plots import front
from mopbt.plots.front import plot_front
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange
from mopbt.tasks.toy import ToyTask


@dataclass(frozen=True)
class ManyObjectives(ToyTask):
    """The toy task with 2 to 4 objectives, a constraint and an occasional NaN."""

    count: int = 3
    constraints: tuple[str, ...] = ("near >= 0",)

    @property
    def objectives(self) -> Mapping[str, Any]:
        return dict(
            [("near", "max"), ("far", "max"), ("cost", "min"), ("loss", "min")][: self.count]
        )

    def evaluate(self, model: dict[str, Any]) -> dict[str, float]:
        x, y = model["place"]
        return super().evaluate(model) | {
            "cost": float(x + y) if x > 0 else float("nan"),
            "loss": float(x - y),
        }


def run(task, tmp_path, **options):
    return mopbt.run(
        task, out=tmp_path / "run", population=8, engine="local", progress=False, **options
    )


def size_of(file) -> tuple[int, int]:
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def drawn(results, tmp_path, monkeypatch):
    """Return the matplotlib figure that `plot_front` made."""
    made = []
    monkeypatch.setattr(
        front,
        "new_figure",
        lambda size, make=front.new_figure: made.append(make(size)) or made[0],
    )
    plot_front(results, tmp_path / "front.png")
    return made[0]


def test_two_objectives_make_one_panel(tmp_path):
    results = run(ToyTask(), tmp_path)
    plot_front(results, tmp_path / "front.png")
    assert size_of(tmp_path / "front.png") == (1050, 660)
    plot_front(results, str(tmp_path / "small.png"), dpi=50)
    assert size_of(tmp_path / "small.png") == (350, 220)


@pytest.mark.slow
def test_three_objectives_make_three_panels(tmp_path, monkeypatch):
    figure = drawn(run(ManyObjectives(), tmp_path), tmp_path, monkeypatch)
    assert size_of(tmp_path / "front.png") == (1575, 585)
    labels = [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes[:3]]
    near, far, cost = "near  (better →)", "far  (better →)", "(← better)  cost"
    assert labels == [(near, far), (near, cost), (far, cost)]


def test_shows_every_evaluation_and_the_front(tmp_path, monkeypatch):
    results = run(ToyTask(), tmp_path)
    figure = drawn(results, tmp_path, monkeypatch)
    ax = figure.axes[0]
    assert len(ax.collections[0].get_offsets()) == len(results) == 80
    (line,) = ax.get_lines()
    np.testing.assert_array_equal(line.get_xydata(), results.front().scores[::-1])
    assert line.get_drawstyle() == "steps-pre"
    title = figure.get_suptitle()
    assert title.startswith("toy\n80 evaluations")
    assert (
        f"a front of {len(results.front())} models, hypervolume {results.hypervolume():.4g}"
        in title
    )


def test_with_errors_both_fronts_and_the_intervals_are_drawn(tmp_path, monkeypatch):
    class Uncertain(ToyTask):
        def evaluate(self, model):
            scores = super().evaluate(model)
            stderr = 2.0 if model["place"][0] > 0.5 else 0.05
            return scores | {"near": mopbt.Estimate(scores["near"], stderr)}

    results = run(Uncertain(), tmp_path)
    front = results.front()
    figure = drawn(results, tmp_path, monkeypatch)
    ax = figure.axes[0]
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines) == ["observed front", "pessimistic front"]
    observed = results.front(observed=True).scores[::-1]
    np.testing.assert_array_equal(lines["observed front"].get_xydata(), observed)
    np.testing.assert_array_equal(lines["pessimistic front"].get_xydata(), front.scores[::-1])
    assert lines["observed front"].get_linewidth() < lines["pessimistic front"].get_linewidth()
    bars = ax.collections[1].get_segments()
    assert len(bars) == 2 * len(front)
    near = front[0].errors["near"]
    np.testing.assert_array_equal(bars[0][:, 0], [near.lower, near.upper])
    assert ax.get_xlim()[0] <= min(p.errors["near"].lower for p in front)
    assert f"a pessimistic front of {len(front)} model" in figure.get_suptitle()


def test_the_line_is_the_edge_of_what_the_front_dominates(tmp_path, monkeypatch):
    """With the first objective to be minimized, a point dominates what lies to its right."""

    class Loss(ToyTask):
        @property
        def objectives(self):
            return {"loss": "min", "far": "max"}

        def evaluate(self, model):
            scores = super().evaluate(model)
            return {"loss": -scores["near"], "far": scores["far"]}

    (line,) = drawn(run(Loss(), tmp_path), tmp_path, monkeypatch).axes[0].get_lines()
    assert line.get_drawstyle() == "steps-post"
    assert (np.diff(line.get_xydata(), axis=0) > 0).all()


def test_an_evaluation_far_off_is_counted_and_does_not_squeeze_the_rest(tmp_path, monkeypatch):
    results = run(ToyTask(), tmp_path)
    job = len(results.history.jobs)
    far_off = Report(job, (-1e6, -1e6), scores={"near": -1e6, "far": -1e6}, checksum="0")
    results.history.append(Exchange(jobs=(Job(job, 0, (0, 0), None, 0, 2),)))
    results.history.append(Exchange(reports=(far_off,)))
    figure = drawn(results, tmp_path, monkeypatch)
    assert figure.axes[0].get_xlim()[0] > -10
    assert " outside the view)" in figure.get_suptitle()
    lo, hi = figure.axes[0].get_xlim()
    front = results.front().scores[:, 0]
    assert lo < front.min() <= front.max() < hi


def test_a_run_of_one_evaluation_can_be_drawn(tmp_path):
    results = run(ToyTask(), tmp_path, budget=mopbt.Budget(jobs=1))
    plot_front(results, tmp_path / "front.png")
    assert size_of(tmp_path / "front.png") == (1050, 660)


def test_a_run_without_feasible_evaluations_says_so(tmp_path, monkeypatch):
    results = run(replace(ManyObjectives(count=2), constraints=("near >= 5",)), tmp_path)
    figure = drawn(results, tmp_path, monkeypatch)
    assert size_of(tmp_path / "front.png") == (1050, 660)
    (ax,) = figure.axes  # without feasible evaluations there is no color bar
    (nearest,) = ax.get_lines()
    assert (nearest.get_markerfacecolor(), nearest.get_linestyle(), nearest.get_label()) == (
        "white",
        "None",
        "nearest",
    )
    (point,) = results.front()
    said = f"no model satisfies near >= 5; this one comes closest (violation {point.violation:.2g})"
    assert said in figure.get_suptitle().replace("\n", " ")
    assert max(map(len, figure.get_suptitle().splitlines())) <= front.TITLE_WIDTH


def test_four_objectives_are_parallel_coordinates(tmp_path):
    many = run(ManyObjectives(count=4), tmp_path, budget=mopbt.Budget(jobs=2))
    (ax,) = front.front_figure(many).axes
    assert len(ax.get_xticks()) == 4
    with pytest.raises(ValueError, match="needs 2 or 3 objectives, got 4"):
        plot_front(many, tmp_path / "front.png", against=many)


def test_nothing_to_draw_is_an_error(tmp_path):
    empty = run(ToyTask(), tmp_path / "other", budget=mopbt.Budget(jobs=1))
    empty.history = History(empty.problem)
    with pytest.raises(ValueError, match="no evaluation that can be drawn"):
        plot_front(empty, tmp_path / "front.png")
    assert not (tmp_path / "front.png").exists()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    results = run(ToyTask(steps=2), tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] + [
        "matplotlib"
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"a plot needs matplotlib: pip install 'mopbt\[plot\]'"):
        plot_front(results, tmp_path / "front.png")


@pytest.mark.slow
def test_matplotlib_is_imported_with_the_first_figure_and_without_pyplot(tmp_path):
    run(ToyTask(steps=2), tmp_path)
    script = (
        "import sys; from mopbt.plots.front import plot_front; from mopbt import Results; "
        "assert 'matplotlib' not in sys.modules; "
        f"plot_front(Results.open({str(tmp_path / 'run')!r}), {str(tmp_path / 'front.png')!r}); "
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
