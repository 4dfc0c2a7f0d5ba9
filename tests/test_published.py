"""Check the published results against their own files."""

import csv
import gzip
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import moocore
import numpy as np
import pytest

from mopbt.compare import Experiment
from mopbt.metrics import coverage

ROOT = Path(__file__).parent.parent
PUBLISHED = sorted(
    folder for folder in (ROOT / "results" / "small").glob("*") if (folder / "tables.csv").exists()
)


def complete(page):
    """Yield the tasks of the main tables for which all planned runs are finished."""
    for folder in (folder for folder in PUBLISHED if folder.name in page.MAIN):
        with open(folder / "runs.csv", newline="") as file:
            done = Counter(row["task"] for row in csv.DictReader(file))
        wanted = Counter(
            run.task for run in Experiment.read(experiment_of(folder)).at("small").plan()
        )
        yield from (task for task in wanted if done[task] == wanted[task])


def experiment_of(folder):
    """Return the experiment file of a published comparison, which may be one of several parts."""
    name = json.loads((folder / "about.json").read_text())["experiment"]
    assert re.fullmatch(rf"{name}(-\d)?", folder.name)
    return ROOT / "experiments" / f"{name}.toml"


def load_script(name):
    """Import a script of results/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "results" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page():
    return load_script("page")


def test_the_page_has_the_tables_of_the_results(page):
    text = page.PAGE.read_text()
    assert page.update_tables(text) == text, "run python results/page.py"
    shown = re.findall(r"<!-- (?:row|table): ([\w-]+) -->", text)
    assert len(shown) > 1
    assert set(complete(page)) <= set(shown), "the page lacks a complete row"


def test_a_table_of_the_page_combines_the_two_files(page):
    table = page.row_table("adult-precision-recall").splitlines()
    (line,) = (line for line in table if line.startswith("| MO-PBT |"))
    cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
    # The numbers of the paper's Tables 5, 6 and 7, and 70.59 / 68.69.
    assert cells[1] == "70.59 ± 0.13"
    assert cells[3] == "69.95 ± 0.18"
    assert cells[5] == "40.39 ± 2.62"
    assert cells[7] == "+2.8 %"
    with open(ROOT / "results" / "small" / "tables-5-7-tabular" / "tables.csv", newline="") as file:
        ours = {
            (r["table"], r["algorithm"]): r
            for r in csv.DictReader(file)
            if r["task"] == "adult-precision-recall"
        }
    for place, measure in ((2, "hypervolume"), (4, "test"), (6, "coverage")):
        row = ours[measure, "MO-PBT"]
        assert (
            cells[place] == f"{100 * float(row['mean']):.2f} ± {100 * float(row['deviation']):.2f}"
        )
    random_search = float(ours["hypervolume", "random search"]["mean"])
    assert (
        cells[8]
        == f"{100 * (float(ours['hypervolume', 'MO-PBT']['mean']) / random_search - 1):+.1f} %"
    )


def test_numbers_quoted_outside_the_tables_are_reproduced(page, capsys):
    findings = load_script("findings")
    for finding in (
        findings.print_click_tail,
        findings.print_gaps,
        findings.print_leads_without_seed_0,
        findings.print_p_over_image_tasks,
        findings.print_leads_above_recall_0,
        findings.print_leads_of_figure_14,
    ):
        finding()
    found = capsys.readouterr().out
    text = page.PAGE.read_text()
    for number in ("22.75", "22.37", "21.10", "22.20", "22.14", "21.59", "0.0007", "0.0014"):
        assert number in found
        assert number in text
    for label, p, pairs in (
        ("random search", "0.012", "11 of 12"),
        ("MO-ASHA", "0.039", "10 of 12"),
        ("PBT, max", "0.19", "9 of 12"),
    ):
        assert re.search(rf"{label}[^;]* {p} \({pairs}\)", found)
        assert re.search(rf"\({pairs}[^)]*, p = {p}\)", text)
    assert re.search(r"adult-fairness +2.58 +2.05 ", found)
    assert "2.6 % with all\n  seeds and 2.1 % without seed 0" in text


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_means_are_those_of_the_runs(folder):
    with open(folder / "runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    with open(folder / "tables.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    # Rows without a task are over all tasks.
    cells = [row for row in rows if row["table"] == "hypervolume" and row["task"]]
    assert cells
    for cell in cells:
        values = [
            float(r["hypervolume"])
            for r in runs
            if (r["task"], r["algorithm"]) == (cell["task"], cell["algorithm"])
        ]
        assert len(values) == int(cell["runs"])
        assert sum(values) / len(values) == pytest.approx(float(cell["mean"]))


@pytest.mark.slow
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_hypervolumes_of_the_runs_are_those_of_their_fronts(folder):
    with open(folder / "tasks.csv", newline="") as file:
        objectives = list(csv.DictReader(file))
    with gzip.open(folder / "fronts.csv.gz", "rt", newline="") as file:
        models = list(csv.DictReader(file))
    with open(folder / "runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    assert runs
    for run in runs:
        own = [o for o in objectives if o["task"] == run["task"]]
        front = [
            m for m in models if all(m[key] == run[key] for key in ("task", "algorithm", "seed"))
        ]
        maximize = [o["direction"] == "max" for o in own]
        reference = [float(o["reference"]) for o in own]
        for measure, prefix in (("hypervolume", "score."), ("test_hypervolume", "score.test/")):
            if run[measure]:
                points = np.array(
                    [[float(model[prefix + o["objective"]]) for o in own] for model in front]
                )
                assert moocore.hypervolume(
                    points, ref=reference, maximise=maximize
                ) == pytest.approx(float(run[measure]))
        # All objectives are shares, so coverage needs no scaling.
        if run["coverage"]:
            signs = np.where(maximize, 1.0, -1.0)
            points = signs * np.array(
                [[float(model[f"score.{o['objective']}"]) for o in own] for model in front]
            )
            assert coverage(points, signs * reference) == pytest.approx(float(run["coverage"]))


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_results_say_how_to_reproduce_them(folder):
    about = json.loads((folder / "about.json").read_text())
    experiment = experiment_of(folder)
    # The record keeps the name that the option had at the time of the run.
    recorded = (folder / "experiment.toml").read_text()
    assert recorded.replace("published = true", "authors_variant = true") == experiment.read_text()
    for session in about["sessions"]:
        assert session["command"].startswith(f"mopbt compare experiments/{experiment.name} ")
        assert "/tmp" not in session["command"]
        assert session["machine"]["cores"]
        assert {"mopbt", "python", "numpy", "torch"} <= set(session["versions"])
    assert about["seconds"] > 0
