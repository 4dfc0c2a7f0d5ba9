"""The data of a page agrees with `Results`, however it is read, and stays small."""

import json
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mopbt
from mopbt.algorithms import algorithm_by_name
from mopbt.errors import CorruptJournal
from mopbt.history import History, read_history
from mopbt.html.report import distinct_names, read_run_data, write_report
from mopbt.html.run_data import (
    MOST_DRAWN,
    MOST_TIMES,
    MOST_TRIALS,
    RunData,
    common_reference,
    compared,
    level_of,
    levels_of,
    loading,
    sample,
    thinned,
    view_of,
)
from mopbt.objectives import Objective
from mopbt.problem import problem_of
from mopbt.results import Results
from mopbt.run_config import RunConfig
from mopbt.space import Categorical, Float, Grid, Int, LogGrid, Ordinal
from mopbt.state import Job, Report
from mopbt.stores.base import Exchange
from mopbt.stores.journal import read_journal, read_lines
from mopbt.tasks.toy import ToyTask
from toys import NanToy


@dataclass(frozen=True)
class Troubled(NanToy):
    """A toy with a third, minimized objective that raises and diverges at the extreme rates."""

    constraints: tuple[str, ...] = ("near >= -0.5",)

    @property
    def objectives(self):
        return {"near": "max", "far": "max", "cost": "min"}

    def train(self, model, hp, begin, end, seed):
        if hp["lr"] <= 0.001:
            raise RuntimeError(f"too slow\nweight {hp['weight']}")
        return super().train(model, hp, begin, end, seed)

    def evaluate(self, model):
        return super().evaluate(model) | {
            "cost": float(np.abs(model["place"]).sum()),
            "extra": float("inf"),
        }


RUNS = {
    "mo-pbt": (ToyTask(), {}),
    "troubled": (Troubled(), {}),
    "random-search": (ToyTask(steps=8), {"algorithm": "random-search"}),
    "mo-asha": (ToyTask(steps=16), {"algorithm": "mo-asha", "budget": mopbt.Budget(jobs=90)}),
    "asynchronous": (ToyTask(), {"algorithm": mopbt.MOPBT(population=8, asynchronous=True)}),
}


@pytest.fixture(scope="module", params=list(RUNS))
def recorded(request, tmp_path_factory):
    """Return a run as `Results` and as a run_data."""
    task, options = RUNS[request.param]
    path = tmp_path_factory.mktemp("run_data") / "run"
    options = (
        {"population": 8} | options
        if isinstance(options.get("algorithm", ""), str) and request.param != "mo-asha"
        else options
    )
    mopbt.run(task, out=path, engine="local", progress=False, **options)
    return Results.open(path, task), run_data_of(path)


def run_data_of(path):
    settings, journal = Results.open(path).settings, path / "journal.jsonl"
    history = read_history(settings.problem, read_lines(journal), journal)
    run_data = RunData(settings, history, name="run", path=str(path))
    return run_data


def invented(n, K=2, *, population=100, failing=(), seed=0):
    """Return exchanges of `n` intervals of a population that improves and sometimes exploits."""
    rng = np.random.default_rng(seed)
    scores = rng.random((n, K)) * (1 + np.arange(n)[:, None] / n)
    jobs, latest = [], {}
    for id in range(n):
        trial, generation = id % population, id // population
        start = latest.get(int(rng.integers(population)) if rng.random() < 0.25 else trial)
        config = (int(rng.integers(11)), int(rng.integers(10)))
        jobs.append(
            Job(id, trial, config, start if generation else None, generation, generation + 1)
        )
        latest[trial] = id
    for job in jobs:
        yield Exchange(jobs=(job,))
        error = Report(job.id, error="no\nluck", seconds=job.id / 10)
        sound = Report(
            job.id,
            tuple(scores[job.id].tolist()),
            scores=dict(zip("ab", scores[job.id].tolist(), strict=False)),
            seconds=job.id / 10,
        )
        yield Exchange(reports=(error if job.id in failing else sound,))


def run_data_for(exchanges, *, steps=20, name="invented", objectives=None, reference=None):
    problem = replace(problem_of(ToyTask(interval=1, steps=steps)), reference=reference)
    if objectives:
        problem = replace(problem, objectives=tuple(Objective(n, d) for n, d in objectives.items()))
    settings = RunConfig(problem, {"name": "mo-pbt"}, 0)
    run_data = RunData(settings, History(problem), name=name, path=f"runs/{name}")
    for exchange in exchanges:
        run_data.history.append(exchange)
    return run_data


def test_the_front_is_that_of_the_results(recorded):
    results, run_data = recorded
    data = run_data.data()
    assert [p["job"] for p in data["front"]] == [p.model for p in results.front()]
    np.testing.assert_array_equal([p["objectives"] for p in data["front"]], results.front().scores)
    assert [(p["trial"], p["step"], p["seconds"]) for p in data["front"]] == [
        (p.trial, p.step, p.seconds) for p in results.front()
    ]


def test_the_hypervolume_and_its_curve_are_those_of_the_results(recorded):
    results, run_data = recorded
    assert run_data.data()["hypervolume"] == pytest.approx(results.hypervolume(), rel=1e-12)
    theirs, mine = results.hypervolume_curve(), run_data.curve()
    assert mine[-1] == pytest.approx((results.seconds, theirs[-1][1]))
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(mine))
    for seconds, volume in mine[:-1]:
        assert volume == pytest.approx(max(v for t, v in theirs if t <= seconds), rel=1e-9)


def test_the_counts_are_those_of_the_results(recorded):
    results, run_data = recorded
    data = run_data.data()
    sound = [
        p
        for p in results.points()
        if all(np.isfinite(p.scores[o.name]) for o in results.problem.objectives)
    ]
    assert data["intervals"] == len(results)
    assert data["failed"] == len(results.failures) == sum(f["count"] for f in data["failures"])
    assert data["diverged"] == len(results) - len(results.failures) - len(sound)
    assert data["others"]["of"] == len(data["others"]["steps"]) == len(sound) - len(results.front())
    names = [o.name for o in results.problem.objectives]
    seen = [
        p
        for p in sound
        if all(lo <= p.scores[n] <= hi for n, (lo, hi) in zip(names, data["views"], strict=True))
    ]
    assert data["others"]["outside"] == len(sound) - len(seen)
    assert data["seconds"] == results.seconds
    assert data["total"] == results.intervals
    assert data["state"] == ("done" if results.done else "interrupted")


def test_the_lineage_of_every_model_is_that_of_the_results(recorded):
    results, run_data = recorded
    data = run_data.data()
    stretches = {s[0]: s for s in data["stretches"]}
    for point in results.front():
        way, job = [], point.model
        while job is not None:
            way.insert(0, stretches[job])
            job = stretches[job][1]
        ancestors = results.lineage(point)
        steps = [
            (trial, step, results.problem.space.decode(tuple(config)))
            for _, _, trial, a, b, config in way
            for step in range(a, b)
        ]
        assert steps == [(a.trial, step, a.hp) for a in ancestors for step in range(a.begin, a.end)]
        taken = [(b[2], b[3]) for a, b in pairwise(way) if a[2] != b[2]]
        assert taken == [(a.trial, a.begin) for a in ancestors if a.exploited]


def test_a_lineage_in_which_a_trial_changes_its_own_values_has_every_step():
    exchanges = list(invented(400, population=20, seed=3))
    jobs = {job.id: job for exchange in exchanges for job in exchange.jobs}
    run_data = run_data_for(exchanges)
    stretches = {s.job: s for s in run_data.segments()}
    for entry in run_data.front:
        recorded, stretch = [], stretches[entry.job]
        while stretch is not None:
            recorded = [
                (stretch.trial, step, stretch.config) for step in range(stretch.begin, stretch.end)
            ] + recorded
            stretch = None if stretch.start is None else stretches[stretch.start]
        expected, job = [], jobs[entry.job]
        while job is not None:
            expected = [(job.trial, job.begin, job.config), *expected]
            job = None if job.start is None else jobs[job.start]
        assert recorded == expected


def test_a_stretch_continues_until_something_changes(recorded):
    results, run_data = recorded
    lengths = len(run_data.segments())
    if "pbt" not in results.settings.algorithm["name"]:
        assert lengths == len(results.front())  # nothing ever changes
    else:
        assert lengths > len(results.front())


def test_the_exploits_are_those_of_the_journal(recorded):
    results, run_data = recorded
    jobs = [results.history.job(id) for id in range(len(results.history.jobs))]
    trials = {job.id: job.trial for job in jobs}
    expected = [j for j in jobs if j.start is not None and trials[j.start] != j.trial]
    data = run_data.data()
    assert data["exploited"] == len(expected)
    shown = sorted((trials[j.start], j.trial, j.begin) for j in expected)
    assert sorted((a, b, step) for a, _, b, step in data["exploits"]) == shown
    assert [row[0] for row in data["trials"]] == sorted(set(trials.values()))


def test_every_interval_is_counted_among_the_visits_and_every_sound_one_in_view_in_a_histogram(
    recorded,
):
    results, run_data = recorded
    data = run_data.data()
    scores = np.array(
        [[p.scores[o.name] for o in results.problem.objectives] for p in results.points()]
    )
    scores = scores[np.isfinite(scores).all(axis=1)]
    assert [(h["x"], h["y"]) for h in data["histograms"]] == list(
        combinations(range(scores.shape[1]), 2)
    )
    for h in data["histograms"]:
        inside = np.ones(len(scores), dtype=bool)
        for k in (h["x"], h["y"]):
            inside &= (scores[:, k] >= data["views"][k][0]) & (scores[:, k] <= data["views"][k][1])
        assert sum(count for _, _, count in h["cells"]) == inside.sum()
    reported = [results.history.job(record["model"]) for record in results.records()]
    for k, (name, visits) in enumerate(zip(results.problem.space, data["visits"], strict=True)):
        expected = np.zeros((len(visits), len(results.problem.space[name].values)), dtype=int)
        for job in reported:
            expected[job.end // results.problem.interval - 1, job.config[k]] += 1
        np.testing.assert_array_equal(visits, expected)


def test_it_is_json_without_nan(recorded):
    _, run_data = recorded
    text = json.dumps(run_data.data(), allow_nan=False)  # raises where there is NaN
    assert json.loads(text).keys() == run_data.data().keys()


def test_it_does_not_matter_in_how_many_pieces_it_is_folded(recorded):
    results, whole = recorded
    exchanges = read_journal(results.path / "journal.jsonl")[0]
    history = History(results.problem)
    pieces = RunData(results.settings, history, name="run", path=str(results.path))
    for exchange in exchanges:
        pieces.history.append(exchange)
        if len(pieces.front) == 3:
            pieces.data()  # looking at it in between changes nothing
    assert pieces.data() == whole.data()


def test_the_code_to_load_a_model_loads_it(tmp_path):
    path = tmp_path / 'it\'s "here"'
    results = mopbt.run(ToyTask(steps=4), out=path, population=4, engine="local", progress=False)
    for origin in ("", "toy"):
        head, tail = loading(str(path), origin)["python"]
        found = {}
        job = results.front()[0].model
        exec(f"{head}{job}{tail}", found)
        np.testing.assert_array_equal(found["model"]["place"], results.load(job)["place"])


def test_failures_are_grouped_by_their_last_line():
    run_data = run_data_for(invented(40, population=4, failing={5, 6, 30}))
    (failure,) = run_data.data()["failures"]
    assert failure == {"message": "luck", "count": 3, "jobs": [5, 6, 30], "text": "no\nluck"}


@pytest.mark.slow
def test_a_hundred_thousand_evaluations_make_small_data_with_the_whole_front():
    run_data = run_data_for(invented(100_000, K=2), steps=1000)
    data = run_data.data()
    text = json.dumps(data)
    assert len(text) < 1_500_000
    assert len(data["others"]["steps"]) == MOST_DRAWN
    assert len(data["exploits"]) <= MOST_DRAWN
    assert len(data["curve"]) <= MOST_TIMES + 1
    assert len(data["trials"]) <= 100 + MOST_TRIALS
    scores = run_data.history.reports.objectives()
    best = sorted(range(len(scores)), key=lambda i: (-scores[i, 0], -scores[i, 1]))
    highest, expected = -np.inf, []
    # A sweep over two objectives: higher in the second than all that are better in the first.
    for i in best:
        if scores[i, 1] > highest:
            highest = scores[i, 1]
            expected.append(i)
    assert [p["job"] for p in data["front"]] == expected


def test_many_trials_are_thinned_but_for_those_that_led_to_the_front():
    run_data = run_data_for(invented(3000, population=1500), steps=2)
    data = run_data.data()
    rows = {row[0] for row in data["trials"]}
    assert {s[2] for s in data["stretches"]} <= rows
    assert len(rows) <= MOST_TRIALS + len({s[2] for s in data["stretches"]})


def test_an_empty_run_and_one_without_an_end_have_data():
    data = run_data_for([]).data()
    assert (data["front"], data["curve"], data["hypervolume"], data["state"]) == (
        [],
        [],
        0.0,
        "interrupted",
    )
    assert run_data_for([]).data(driver="process 1")["state"] == "running"
    settings = replace(run_data_for([]).settings, algorithm={"name": "from elsewhere"})
    assert RunData(settings, History(settings.problem), name="x", path="x").data()["total"] is None
    json.dumps(data, allow_nan=False)


def test_a_journal_that_contradicts_itself_is_refused():
    job = Job(0, 0, (0, 0), None, 0, 1)
    for jobs in ([job, job], [replace(job, start=0)], [job, Job(1, 0, (0, 0), 7, 0, 1)]):
        with pytest.raises(CorruptJournal, match="does not follow from the lines before it"):
            run_data_for([Exchange(jobs=(j,)) for j in jobs])
    with pytest.raises(ValueError, match="has 3 objectives, not 2"):
        run_data_for([Exchange(jobs=(job,)), Exchange(reports=(Report(0, (1.0, 2.0, 3.0)),))])


def reports_of(points, name):
    jobs = [Job(i, i, (0, 0), None, 0, 1) for i in range(len(points))]
    reports = [
        Report(i, p, scores={"a": p[0], "b": -p[1]}, seconds=i + 1.0) for i, p in enumerate(points)
    ]
    exchanges = [Exchange(jobs=tuple(jobs)), *(Exchange(reports=(r,)) for r in reports)]
    return run_data_for(
        exchanges, name=name, objectives={"a": "max", "b": "min"}, reference=(0.0, 0.0)
    )


def test_runs_are_compared_under_one_reference_by_hand():
    one, two = (
        reports_of([(1.0, 2.0), (2.0, 1.0)], "one"),
        reports_of([(1.5, 1.5), (0.5, 1.0), (1.0, 2.0)], "two"),
    )
    data = compared([one, two])
    # one: 1 x 2 + 1 x 1 = 3; two: 1.5 x 1.5 + 1 x 0.5 = 2.75.
    # The point (1, 2) is on both fronts.
    assert [row["hypervolume"] for row in data["rows"]] == pytest.approx([3.0, 2.75])
    assert [(row["kept"], row["of"]) for row in data["rows"]] == [(2, 2), (2, 2)]
    assert data["curves"] == [[(1.0, 2.0), (2.0, 3.0)], [(1.0, 2.25), (3.0, 2.75)]]
    assert data["reference"] == {"a": 0.0, "b": 0.0}
    assert [row["coverage"] for row in data["rows"]] == pytest.approx([2 / 361, 2 / 361])
    beaten = compared([one, reports_of([(0.5, 0.5)], "three")])
    assert [row["kept"] for row in beaten["rows"]] == [2, 0]
    json.dumps(data, allow_nan=False)


def test_without_a_reference_of_the_task_the_fronts_make_one():
    runs = [reports_of([(1.0, 2.0), (2.0, 1.0)], "one"), reports_of([(4.0, 0.0)], "two")]
    problems = [replace(run_data.problem, reference=None) for run_data in runs]
    reference = common_reference(problems, [run_data.points() for run_data in runs])
    np.testing.assert_allclose(
        reference, [1.0 - 0.3, 0.0 - 0.2]
    )  # the worst, less a tenth of the range


def test_runs_with_other_objectives_are_not_compared():
    with pytest.raises(
        ValueError,
        match=r"runs/invented has the objectives near max, far max, and runs/one has a max, b min",
    ):
        compared([reports_of([(1.0, 2.0)], "one"), run_data_for([])])


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 60))
def test_what_more_ids_leave_of_a_choice_was_in_it(few, more, most):
    before, after = np.arange(few), np.arange(few + more)
    chosen, later = sample(before, most).tolist(), sample(after, most).tolist()
    assert len(chosen) == min(few, most)
    assert len(later) == min(few + more, most)
    assert later == sorted(set(later))
    assert {i for i in later if i < few} <= set(chosen)


@given(st.integers(0, 300), st.integers(2, 50))
def test_a_thinned_curve_keeps_its_ends_and_invents_nothing(n, most):
    pairs = [(float(i), float(i * i)) for i in range(n)]
    kept = thinned(pairs, most)
    assert len(kept) == min(n, most)
    assert kept == sorted(set(kept) & set(pairs))
    assert not n or (kept[0], kept[-1]) == (pairs[0], pairs[-1])


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.sampled_from(["max", "min"]),
    st.data(),
)
def test_the_front_and_most_scores_are_in_view(scores, direction, data):
    array = np.array(scores)
    front = array[data.draw(st.lists(st.integers(0, len(scores) - 1), max_size=5))]
    lo, hi = view_of(Objective("x", direction), array, front)
    assert lo < hi
    assert all(lo < x < hi for x in front)
    assert ((lo <= array) & (array <= hi)).sum() >= round(0.95 * len(scores))
    best = max(scores) if direction == "max" else min(scores)
    assert lo <= best <= hi


def test_one_that_diverged_does_not_squeeze_the_view():
    scores = np.append(np.linspace(0, 1, 99), -1e9)
    assert view_of(Objective("x", "max"), scores, scores[:1]) == pytest.approx(
        (-0.04 + 4 / 98, 1.04), abs=0.05
    )


DOMAINS = [
    Grid(0, 1, 11),
    LogGrid(0.01, 10, 50),
    Ordinal(["a", "b", "c"]),
    Categorical([True, False]),
    Float(0.1, 10, log=True),
    Int(3, 5),
    Int(1, 1000, log=True),
]


@given(st.sampled_from(DOMAINS), st.integers(0, 2**32 - 1))
def test_a_position_falls_into_a_level_and_small_domains_have_a_level_for_each_value(domain, seed):
    position = domain.sample(np.random.default_rng(seed))
    assert 0 <= level_of(domain, position) < levels_of(domain) <= 20
    values = getattr(domain, "values", None)
    if values is not None and len(values) <= 20:
        assert level_of(domain, position) == position
    if domain == Int(3, 5):
        assert level_of(domain, position) == position - 3


def test_algorithms_say_how_many_intervals_there_are():
    run_data = run_data_for([])
    settings = replace(run_data.settings, algorithm={"name": "mo-pbt", "population": 5})
    assert (
        RunData(settings, History(settings.problem), name="x", path="x").total
        == 5 * 20
        == algorithm_by_name("mo-pbt", None, population=5).scheduler(run_data.problem).total_jobs
    )


@dataclass(frozen=True)
class Uncertain(ToyTask):
    """A toy whose first metric is exact to 0.05, and uncertain by 2 where it is best."""

    def evaluate(self, model):
        scores = super().evaluate(model)
        stderr = 2.0 if model["place"][0] > 0.5 else 0.05
        return scores | {"near": mopbt.Estimate(scores["near"], stderr)}


def test_with_errors_the_front_is_the_pessimistic_one_and_the_observed_one_is_beside_it(tmp_path):
    results = mopbt.run(
        Uncertain(), out=tmp_path / "run", population=8, engine="local", progress=False
    )
    data = run_data_of(tmp_path / "run").data()
    honest = results.front()
    assert {p.model for p in honest} != {p.model for p in results.front(observed=True)}
    assert [p["job"] for p in data["front"]] == [p.model for p in honest]
    assert [p["objectives"] for p in data["front"]] == honest.scores.tolist()
    assert data["observed"] == results.front(observed=True).scores.tolist()
    assert data["confidence"] == 0.68
    for point, entry in zip(honest, data["front"], strict=True):
        assert entry["errors"] == {"near": list(point.errors["near"])}
        low, high = data["views"][0]
        assert low <= point.errors["near"].lower
        assert point.errors["near"].upper <= high
    assert data["models"] == len(honest)
    jobs = {segment[0] for segment in data["stretches"]}
    assert {p.model for p in honest} <= jobs


def test_without_errors_there_is_one_front(recorded):
    _, run = recorded
    data = run.data()
    assert data["observed"] is None
    assert all(point["errors"] == {} for point in data["front"])


def test_a_private_report_names_no_folder(tmp_path):
    folder = tmp_path / "secret-folder"
    options = {"population": 4, "engine": "local", "progress": False}
    mopbt.run(ToyTask(steps=4), out=folder / "run", **options)
    text = write_report([folder / "run"], tmp_path / "open.html").read_text()
    assert "secret-folder" in text
    text = write_report([folder / "run"], tmp_path / "private.html", private=True).read_text()
    assert "secret-folder" not in text


def test_runs_with_one_name_are_distinguished(tmp_path):
    options = {"population": 4, "engine": "local", "progress": False}
    paths = [tmp_path / name / "0" for name in ("mo-pbt", "random")]
    for path in paths:
        mopbt.run(ToyTask(steps=4), out=path, **options)
    assert distinct_names(paths) == ["mo-pbt/0", "random/0"]
    assert distinct_names(paths[:1]) == ["0"]
    assert distinct_names([paths[0], paths[0]]) == ["0", "0"]


def test_learning_curves_are_the_metrics_of_all_members(tmp_path):
    options = {"population": 6, "engine": "local", "progress": False}
    results = mopbt.run(ToyTask(), out=tmp_path / "run", **options)
    learning = read_run_data(tmp_path / "run").data()["learning"]
    assert learning["metrics"] == ["near", "far"]
    found = {}
    for curve in learning["curves"]:
        values = zip(curve["jobs"], curve["steps"], *curve["scores"], strict=True)
        found |= {job: (curve["trial"], step, near, far) for job, step, near, far in values}
        exploits = [results.history.is_exploit(job) for job in curve["jobs"]]
        assert exploits == list(map(bool, curve["taken"]))
    assert found == {
        p.model: (p.trial, p.step, *(float(f"{p.scores[n]:.6g}") for n in ("near", "far")))
        for p in results.points()
    }
