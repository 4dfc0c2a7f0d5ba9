"""What a notebook shows of a run, and how its figures are drawn."""

import re
import sys
from io import BytesIO

import pytest

import mopbt
from mopbt.errors import MissingExtra
from mopbt.tasks.synthetic import ThreeSkills

SPACE = {
    "lr": mopbt.Float(1e-3, 1, log=True),
    "kind": mopbt.Categorical(("<b>", "c")),
    "n": mopbt.Int(1, 8),
}


def train(m):
    w = {"w": 0.0}
    m.track(w=w)
    size = m.hp["n"] + (m.hp["kind"] == "c")
    for _ in m.steps():
        w["w"] += m.hp["lr"] * (1 - w["w"])
    m.report(**{"accuracy": w["w"], "cost": m.hp["lr"] * size, "test/accuracy": w["w"] / 2})


@pytest.fixture(scope="module")
def results():
    objectives = {"accuracy": "max", "cost": "min"}
    return mopbt.run(
        train,
        out=None,
        engine="local",
        progress=False,
        population=6,
        steps=6,
        space=SPACE,
        objectives=objectives,
    )


def header_of(html):
    return re.findall(r"<th[^>]*>([^<]*)</th>", html)


def test_tables_are_escaped_and_have_no_colors(results):
    front = results.front()
    for shown in (results, front, front.knee()):
        html = shown._repr_html_()
        assert "<b>" not in re.sub(r"<div><b>[^<]*</b></div>", "", html)
        assert "color" not in html
        assert html.count("<tr") <= 20
    assert "&lt;b&gt;" in results._repr_html_() or all(p.hp["kind"] == "c" for p in front)
    assert front.knee().why.split(":")[0] in front.knee()._repr_html_()
    assert f"{results.hypervolume():.5g}" in results._repr_html_()


def test_a_metric_on_test_rows_stands_beside_its_namesake(results):
    names = ["model", "step", "accuracy", "test/accuracy", "cost", "lr", "kind", "n"]
    assert header_of(results.front()._repr_html_()) == names
    assert str(results.front()).splitlines()[1].split() == names


def labels(figure):
    return [ax.get_ylabel() for ax in figure.axes]


def test_figures_name_their_axes(results):
    knee = results.front().knee()
    assert [name.split("  ")[-1] for name in labels(results.plot_progress())] == [
        "(better →)",
        "(better →)",
        "best cost",
    ]
    curves = results.plot_learning_curves()
    assert labels(curves) == ["accuracy  (better →)", "test/accuracy", "(← better)  cost"]
    lineage = results.plot_lineage(knee)
    assert labels(lineage)[2:] == ["lr", "kind", "n"]
    hyperparameters = results.plot_hyperparameters()
    assert labels(hyperparameters) == ["lr", "kind", "n"]
    assert hyperparameters.axes[0].get_yscale() == "log"
    ticks = [tick.get_text() for tick in hyperparameters.axes[1].get_yticklabels()]
    assert ticks == ["<b>", "c"]
    assert hyperparameters.axes[0].get_xlabel() == "training step"


def test_the_hypervolume_of_the_figure_is_that_of_the_run(results):
    (line,) = results.plot_progress().axes[0].lines
    assert line.get_ydata()[-1] == pytest.approx(results.hypervolume())


def test_a_lineage_is_drawn_as_recorded(results):
    knee = results.front().knee()
    (line,) = results.plot_lineage(knee).axes[0].lines[:1]
    assert list(line.get_ydata()) == [a.scores["accuracy"] for a in results.lineage(knee)]


def test_a_figure_shows_itself_in_a_notebook(results):
    png = results.front().plot()._repr_png_()
    assert png.startswith(b"\x89PNG")
    file = BytesIO()
    results.plot_progress().savefig(file, format="svg")


@pytest.mark.slow
def test_more_objectives_are_parallel_coordinates():
    results = mopbt.run(
        ThreeSkills(), out=None, engine="simulated", progress=False, population=4, seed=1
    )
    figure = results.front().plot_parallel()
    (ax,) = figure.axes
    assert len(ax.lines) == len(results.front()) + 3
    assert [tick.get_text().split("\n")[0] for tick in ax.get_xticklabels()] == [
        o.name for o in results.problem.objectives
    ]
    best = results.front().best("first")
    (top,) = (line for line in ax.lines if len(line.get_ydata()) == 3 and line.get_ydata()[0] == 1)
    assert top.get_ydata()[1] <= 1
    assert f"{best.scores['first']:.4g}" in [text.get_text() for text in ax.texts]
    assert results.plot_progress().axes[0].get_xlabel() == "virtual time (s)"


def test_without_matplotlib_a_figure_names_the_extra(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mopbt\[plot\]'"):
        results.plot_progress()


@pytest.mark.slow
def test_a_run_is_one_block_in_a_kernel(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cells = [
        "import mopbt; from mopbt.tasks.toy import ToyTask\n"
        "results = mopbt.run(ToyTask(), out=None, engine='local', population=6)\nresults",
        "results.front().plot()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=place).execute()
    run, figure = (cell["outputs"] for cell in notebook.cells)
    assert [output["output_type"] for output in run] == ["display_data", "execute_result"]
    assert "generation 10/10" in run[0]["data"]["text/plain"]
    assert "<table" in run[1]["data"]["text/html"]
    assert "image/png" in figure[0]["data"]
