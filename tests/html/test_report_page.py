"""The page is self-contained, complete, and usable with mouse, keyboard and phone."""

import json
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import pytest

import mopbt
from command_line import mopbt_command
from mopbt.errors import StoreError
from mopbt.front import score_text
from mopbt.html.report import read_run_data, report, write_report
from mopbt.results import Results
from mopbt.tasks.toy import ToyTask
from toys import NanToy

HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>$data"


@dataclass(frozen=True)
class Many(NanToy):
    """A toy with three or four objectives, failures and NaN."""

    count: int = 3

    @property
    def objectives(self):
        return dict(
            [("near", "max"), ("far", "max"), ("cost", "min"), ("loss", "min")][: self.count]
        )

    def train(self, model, hp, begin, end, seed):
        if hp["lr"] <= 0.001:
            raise RuntimeError("<b>too slow</b>")
        return super().train(model, hp, begin, end, seed)

    def evaluate(self, model):
        x, y = model["place"]
        return super().evaluate(model) | {
            "cost": float(abs(x) + abs(y)),
            "loss": float((x - y) ** 2),
        }


@dataclass(frozen=True)
class Uncertain(ToyTask):
    """A toy whose metrics have errors, large ones in a part of the space."""

    def evaluate(self, model):
        scores = super().evaluate(model)
        stderr = 1.0 if model["place"][0] > 0.5 else 0.0058
        return {name: mopbt.Estimate(value, stderr) for name, value in scores.items()}


@dataclass(frozen=True)
class Hostile(ToyTask):
    """A toy task whose names look like markup."""

    name: str = HOSTILE

    @property
    def space(self):
        return {f"weight{HOSTILE}": super().space["weight"], "lr": super().space["lr"]}

    @property
    def objectives(self):
        return {"near": "max", HOSTILE: "max"}

    def train(self, model, hp, begin, end, seed):
        if hp["lr"] <= 0.002:
            raise RuntimeError(HOSTILE)
        return super().train(
            model, {"weight": hp[f"weight{HOSTILE}"], "lr": hp["lr"]}, begin, end, seed
        )

    def evaluate(self, model):
        scores = super().evaluate(model)
        return {"near": scores["near"], HOSTILE: scores["far"], f"more{HOSTILE}": 1.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the directories of some runs."""
    root = tmp_path_factory.mktemp("runs")
    options = {"population": 8, "engine": "local", "progress": False}
    mopbt.run(ToyTask(), out=root / "toy", **options)
    mopbt.run(ToyTask(), out=root / "other", seed=1, algorithm="random-search", **options)
    mopbt.run(Many(), out=root / "three", **options)
    mopbt.run(Many(count=4), out=root / "four", **options)
    mopbt.run(Uncertain(), out=root / "uncertain", **options)
    mopbt.run(Hostile(), out=root / "hostile", **options)
    mopbt.run(
        replace(ToyTask(), name="begun"), out=root / "begun", budget=mopbt.Budget(jobs=1), **options
    )
    return root


@pytest.fixture
def opened(runs, tmp_path, open_view):
    """Return a function that writes the report of runs and opens it, without a network."""

    def open_report(*names, **options):
        file = write_report([runs / name for name in names], tmp_path / "report.html")
        view = open_view(offline=True, **options)
        view.page.goto(file.as_uri())
        return view

    return open_report


class Elements(HTMLParser):
    """Collects the elements of a page and their attributes."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    )


@pytest.mark.slow
def test_the_page_refers_to_nothing_outside_it(runs):
    text = report([read_run_data(runs / "toy")], [""])
    parser = Elements()
    parser.feed(text)
    links = [
        a[key] for _, a in parser.found for key in ("src", "href", "action", "data") if key in a
    ]
    assert links == ["data:,", "#main"]
    assert not re.search(
        r"url\(|@import|fetch\(|XMLHttp|import\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(",
        text,
    )
    (policy,) = [
        a["content"] for tag, a in parser.found if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_names_cannot_end_the_element_they_stand_in(runs):
    text = report([read_run_data(runs / "hostile")], [""])
    parser = Elements()
    parser.feed(text)
    assert [tag for tag, _ in parser.found].count("script") == 2
    assert "img" not in [tag for tag, _ in parser.found]
    assert data_of(text)["runs"][0]["objectives"][1]["name"] == HOSTILE
    data = re.search(r'id="data">(.*?)</script>', text, re.S)[1]
    assert data.isascii()
    assert not set("<>&") & set(data)


def test_a_report_of_nothing_is_refused(runs, tmp_path):
    with pytest.raises(ValueError, match="a report needs at least one run, got none"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="`out` must be a file in an existing directory"):
        write_report([runs / "toy"], tmp_path / "nowhere" / "report.html")
    with pytest.raises(StoreError, match="is not a run"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(ValueError, match="only if they have the same objectives"):
        write_report([runs / "toy", runs / "three"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_page(runs, tmp_path):
    done = mopbt_command("report", runs / "toy", runs / "other", "--out", "here.html", cwd=tmp_path)
    assert done.stdout == "written: here.html\n"
    assert len(data_of((tmp_path / "here.html").read_text())["runs"]) == 2


def test_a_report_opens_without_a_network_and_shows_all_sections(opened, runs):
    view = opened("toy")
    results = Results.open(runs / "toy")
    assert view.page.title() == "toy · mopbt"
    headings = view.page.locator("h2").all_inner_texts()
    chosen = [h for h in headings if h.startswith("Model ")]
    assert [h for h in headings if h not in chosen] == [
        "Front",
        "Hypervolume over time",
        "Learning curves",
        "Lineage",
        "Hyperparameter schedules",
        "Importance of hyperparameters",
        "Searched regions",
        "Settings",
    ]
    assert view.page.locator("#front .point[data-job]").count() == len(results.front())
    assert view.page.locator("#head .tile", has_text="models on the front").inner_text().split(
        "\n"
    )[1] == str(len(results.front()))
    assert [url for url in view.requests if not url.startswith(("file:", "data:"))] == []


def test_a_click_on_a_point_shows_its_model(opened, runs):
    view, results = opened("toy"), Results.open(runs / "toy")
    for point in (results.front()[0], results.front()[-1]):
        view.page.locator(f"#front .point[data-job='{point.model}']").click()
        model = view.page.locator("#model").inner_text()
        assert f"Model {point.model}\n" in model
        for name, score in point.scores.items():
            shown = float(re.search(rf"^{name}\b.*?(-?[\d.e-]+)$", model, re.M)[1])
            assert shown == pytest.approx(score, rel=1e-5)
        assert f"results.load({point.model})" in model
        steps = (
            view.page.locator("#model tbody").nth(1).locator("tr td:first-child").all_inner_texts()
        )
        assert steps == [f"{begin}–{end}" for begin, end, _ in results.schedule(point)]
        assert view.page.locator("#front tr.chosen button").inner_text() == str(point.model)
        assert view.page.locator("#lineage .ancestry").count() == 1


def test_the_lineage_of_the_selected_model_leads_back_to_its_start(opened, runs):
    view, results = opened("toy"), Results.open(runs / "toy")
    point = max(results.front(), key=lambda p: sum(a.exploited for a in results.lineage(p)))
    view.page.locator(f"#front .point[data-job='{point.model}']").click()
    view.page.locator("#lineage summary").click()
    rows = view.page.locator("#lineage tbody tr").all_inner_texts()
    ancestors = results.lineage(point)
    assert rows[0].startswith("0–")
    assert sum("copied from" in row for row in rows) == sum(a.exploited for a in ancestors) > 0


def test_the_front_can_be_used_with_the_keyboard_alone(opened, runs):
    view, results = opened("toy"), Results.open(runs / "toy")
    focused = "document.activeElement.dataset.job ?? ''"
    for _ in range(20):
        view.page.keyboard.press("Tab")
        if view.page.evaluate(focused):
            break
    order = [str(p.model) for p in sorted(results.front(), key=lambda p: p.scores["near"])]
    view.page.keyboard.press("Home")
    assert view.page.evaluate(focused) == order[0]
    view.page.keyboard.press("ArrowRight")
    assert view.page.evaluate(focused) == order[1]
    assert (
        view.page.evaluate("getComputedStyle(document.activeElement).strokeWidth") == "3px"
    )  # it can be seen
    view.page.keyboard.press("Enter")
    assert view.page.locator("#model h2").inner_text() == f"Model {order[1]}"
    assert view.page.evaluate(focused) == order[1]  # and stays where it was
    view.page.keyboard.press("End")
    view.page.keyboard.press(" ")
    assert view.page.locator("#model h2").inner_text() == f"Model {order[-1]}"
    assert f"model {order[-1]}," in view.page.locator("#status").inner_text()


@pytest.mark.parametrize(
    "names",
    [("toy",), ("three",), ("four",), ("toy", "other"), ("hostile",), ("begun",)],
    ids="-".join,
)
def test_nothing_is_wider_than_a_phone(opened, names):
    view = opened(*names, width=360, height=740)
    content, window = view.widths()
    assert content <= window == 360
    sizes = view.page.evaluate(
        "[...document.querySelectorAll('svg text')].map((t) => getComputedStyle(t).fontSize)"
    )
    assert min(float(size.removesuffix("px")) for size in sizes) >= 11


def test_three_objectives_have_three_panels_and_four_have_parallel_coordinates(opened, runs):
    view, front = opened("three"), len(Results.open(runs / "three").front())
    assert view.page.locator("#front .panels > svg").count() == 3
    assert view.page.locator("#front .point[data-job]").count() == 3 * front
    view = opened("four")
    assert view.page.locator("#front .way").count() == len(Results.open(runs / "four").front())
    view.page.locator("#front .way").first.focus()
    job = view.page.locator("#front .way").first.get_attribute("data-job")
    view.page.keyboard.press("Enter")
    assert view.page.locator("#model h2").inner_text() == f"Model {job}"


def test_failures_are_shown_with_their_messages(opened, runs):
    view, results = opened("three"), Results.open(runs / "three")
    section = view.page.locator("#failures")
    assert f"{len(results.failures)} intervals failed" in section.inner_text()
    assert "RuntimeError: <b>too slow</b>" in section.locator("summary").inner_text()


def test_hostile_names_are_shown_as_text(opened):
    view = opened("hostile")
    assert view.page.locator("h1").inner_text() == HOSTILE
    assert view.page.locator("img").count() == 0
    assert f"more{HOSTILE}" in view.page.locator("#model").inner_text()
    assert HOSTILE in view.page.locator("#failures summary").first.inner_text()
    assert view.page.locator("script").count() == 2


def test_several_runs_are_compared(opened, runs):
    view = opened("toy", "other")
    fronts = {name: len(Results.open(runs / name).front()) for name in ("toy", "other")}
    rows = view.page.locator("#comparison tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in rows] == ["toy", "other"]
    assert view.page.locator("#comparison .point[data-job]").count() == sum(fronts.values())
    assert view.page.locator("#comparison .curve").count() == 2
    view.page.locator("#which button", has_text="other").click()
    assert view.page.locator("#front .point[data-job]").count() == fronts["other"]
    view.page.locator("#comparison .c0.point[data-job]").first.click()
    assert view.page.locator("#which button[aria-pressed=true]").inner_text() == "toy"


def test_pictures_have_names_and_tables_beside_them(opened):
    view = opened("toy")
    pictures = "main > section > svg, .panels > svg, .beside svg:not([aria-hidden])"
    names = view.page.evaluate(
        f"[...document.querySelectorAll('{pictures}')].map((s) => s.getAttribute('aria-label'))"
    )
    assert names
    assert all(names)
    assert view.page.locator("caption").count() >= 5
    usable, named = (
        "button, [role=button], a, summary",
        "b.textContent.trim() || b.getAttribute('aria-label')",
    )
    assert (
        view.page.evaluate(
            f"[...document.querySelectorAll('{usable}')].filter((b) => !({named})).length"
        )
        == 0
    )


def test_dark_and_light_have_contrast(opened):
    ratio = """(() => {
      const linear = (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
      const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => linear(x / 255));
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const back = light(getComputedStyle(document.body).backgroundColor);
      return [...document.querySelectorAll('p, .tile dt, svg text, td, h2, summary')].map((e) => {
        const front = light(getComputedStyle(e)[e.tagName === 'text' ? 'fill' : 'color']);
        return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05); });
    })()"""
    backgrounds = set()
    for scheme in ("light", "dark"):
        view = opened("toy", color_scheme=scheme)
        assert min(view.page.evaluate(ratio)) >= 4.5
        backgrounds.add(view.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2


@pytest.mark.slow
def test_errors_are_shown_as_bars_and_in_tables_and_the_observed_front_beside(opened, runs):
    view = opened("uncertain")
    page = view.page
    front = Results.open(runs / "uncertain").front()
    bars = page.locator("#front .picture > div > svg .bars").get_attribute("d")
    assert bars.count("H") == bars.count("V") == len(front)
    assert page.locator("#front svg .stairs.observed").count() == 2  # the line and its legend
    assert "models on the pessimistic front" in page.inner_text("#front")
    cells = page.locator("#front-table, [data-key=front-table] tbody td").all_inner_texts()
    texts = [score_text(point, "near") for point in front]
    assert all(" ± " in text for text in texts)
    assert set(texts) <= set(cells)


@pytest.mark.slow
def test_without_errors_there_are_no_bars(opened):
    page = opened("toy").page
    assert page.locator("#front svg .bars").count() == 0
    assert page.locator("#front svg .observed").count() == 0
    assert " ± " not in page.inner_text("#front")
