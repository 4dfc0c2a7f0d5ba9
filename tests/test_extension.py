"""Runs that start with given configurations, and runs that are extended after they were started."""

import json

import pytest

import mopbt
from mopbt import MOASHA, MOPBT, PBT, Budget, RandomSearch, Results
from mopbt.cli import main as command_line
from mopbt.errors import RunMismatch
from mopbt.problem import problem_of, with_initial
from mopbt.repair import repair_journal
from mopbt.run_directory import read_run_config
from mopbt.stores.journal import read_damaged, read_journal
from mopbt.tasks.toy import ToyTask


def main(arguments, monkeypatch):
    """Run the command line and return its exit code."""
    monkeypatch.setattr("sys.argv", ["mopbt", *arguments])
    try:
        command_line()
    except SystemExit as stop:
        return stop.code or 0
    return 0


QUIET = {"engine": "local", "progress": False}


def exchanges(results):
    """Return jobs and reports without their times, in the order of the journal."""
    found = []
    for exchange in read_journal(results.path / "journal.jsonl")[0]:
        found += [job.to_json() for job in exchange.jobs]
        found += [(r.job, r.objectives, r.checksum) for r in exchange.reports]
    return found


ALGORITHMS = [
    MOPBT(population=6),
    MOPBT(population=6, asynchronous=True),
    MOPBT(population=6, inherit_step=True),
    PBT(population=6),
    RandomSearch(population=6),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_an_extended_run_is_the_run_that_was_longer_from_the_start(tmp_path, algorithm):
    def begin(name, steps, **options):
        task = ToyTask(steps=steps)
        return mopbt.run(task, out=tmp_path / name, algorithm=algorithm, **QUIET, **options)

    begin("extended", 8)
    extended = begin("extended", 8, extend={"steps": 14})
    assert extended.outcome == "done"
    assert extended.problem.steps == 14
    longer = begin("longer", 14)
    if isinstance(algorithm, RandomSearch):
        # It trains those with the fewest steps first, so only the ids of jobs differ.
        assert sorted(p.scores["near"] for p in extended.points()) == sorted(
            p.scores["near"] for p in longer.points()
        )
    else:
        assert exchanges(extended) == exchanges(longer)
    assert all(extended.load(point) for point in extended.front())
    line = [e.extend for e in read_journal(tmp_path / "extended" / "journal.jsonl")[0] if e.extend]
    assert line == [{"steps": 14}]


def test_an_extended_run_is_resumed_with_its_first_or_its_extended_settings(tmp_path):
    def go(steps, **options):
        return mopbt.run(
            ToyTask(steps=steps), out=tmp_path / "run", population=6, **QUIET, **options
        )

    go(8)
    half = go(8, extend={"steps": 14}, budget=Budget(jobs=30))
    assert (half.outcome, len(half), half.intervals, half.done) == ("budget", 30, 42, False)
    assert (len(go(8, budget=Budget(jobs=33))), len(go(14, budget=Budget(jobs=36)))) == (33, 36)
    done = go(8, extend={"steps": 14})
    assert done.outcome == "done"
    longer = mopbt.run(ToyTask(steps=14), out=tmp_path / "longer", population=6, **QUIET)
    assert exchanges(done) == exchanges(longer)
    with pytest.raises(RunMismatch, match="steps is 10, it was 8"):
        go(10)
    opened = Results.open(tmp_path / "run")
    assert opened.done
    assert opened.problem.steps == 14


@pytest.mark.parametrize(
    ("asynchronous", "first"), [(True, 7), (True, 12), (True, None), (False, None)]
)
def test_a_population_is_extended_by_members_and_survives_any_interruption(
    tmp_path, asynchronous, first
):
    """Wherever it is extended and stopped, the run is the one that was not stopped."""
    algorithm = MOPBT(population=4, asynchronous=asynchronous)

    def go(name, **options):
        task = ToyTask(steps=8)
        return mopbt.run(task, out=tmp_path / name, algorithm=algorithm, **QUIET, **options)

    start = {} if first is None else {"budget": Budget(jobs=first)}
    for name in ("whole", "stopped"):
        go(name, **start)
    whole = go("whole", extend={"population": 7})
    assert whole.outcome == "done"
    assert {p.trial for p in whole.points() if p.step == 8} == set(range(7))
    go("stopped", extend={"population": 7}, budget=Budget(jobs=(first or 16) + 1))
    for jobs in range(18, 28, 3):
        go("stopped", budget=Budget(jobs=jobs))
    assert exchanges(go("stopped")) == exchanges(whole)


def test_a_synchronous_population_gets_new_members_when_it_is_complete(tmp_path):
    def go(**options):
        task = ToyTask(steps=8)
        return mopbt.run(task, out=tmp_path / "run", population=4, **QUIET, **options)

    go(budget=Budget(jobs=7))
    with pytest.raises(ValueError, match="only when the run is complete; resume it to its end"):
        go(extend={"population": 7})
    done = go()
    extended = go(extend={"population": 7, "steps": 10})
    assert (done.outcome, extended.outcome, len(extended)) == ("done", "done", 35)


def test_a_random_search_is_extended_by_configurations(tmp_path):
    def go(**options):
        algorithm = RandomSearch(population=4)
        task = ToyTask(steps=4)
        return mopbt.run(task, out=tmp_path / "run", algorithm=algorithm, **QUIET, **options)

    first = exchanges(go())
    more = go(extend={"population": 7})
    assert exchanges(more)[: len(first)] == first
    assert {point.trial for point in more.points()} == set(range(7))
    assert more.settings.algorithm["population"] == 7
    both = go(extend={"population": 9, "steps": 6})
    assert (both.outcome, both.intervals, len(both)) == ("done", 27, 27)


@pytest.mark.parametrize(
    ("algorithm", "extend", "message"),
    [
        (MOPBT(population=4), {"population": 3}, "`population` must be .* at least 4, got 3"),
        (MOASHA(trials=4), {"steps": 8}, "Asha cannot be extended by `steps`.*by nothing"),
        (MOPBT(population=4), {"steps": 3}, "`steps` must be a whole number of at least 4, got 3"),
        (MOPBT(population=4), {"steps": 7}, r"multiple of `interval` \(2\), got 7"),
        (MOPBT(population=4), {"stepz": 8}, "cannot be extended by `stepz`"),
    ],
)
def test_what_cannot_be_extended_is_an_error(tmp_path, algorithm, extend, message):
    def go(**options):
        task = ToyTask(steps=4)
        return mopbt.run(task, out=tmp_path / "run", algorithm=algorithm, **QUIET, **options)

    before = exchanges(go())
    with pytest.raises(ValueError, match=message):
        go(extend=extend)
    assert exchanges(go()) == before


def test_a_damaged_line_of_an_extended_run_is_repaired(tmp_path):
    task = ToyTask(steps=4)
    run = {"out": tmp_path / "run", "population": 4, **QUIET}
    mopbt.run(task, **run)
    mopbt.run(task, extend={"steps": 8}, **run)
    lines = read_damaged(tmp_path / "run" / "journal.jsonl")
    place = next(i for i, line in enumerate(lines) if line.extend) + 1
    problem = problem_of(task)
    damaged = [*lines[:place], None, *lines[place + 1 :]]
    scheduler = MOPBT(population=4).scheduler(problem)
    assert repair_journal(damaged, problem, scheduler, 0) == lines


@pytest.mark.parametrize(
    "algorithm",
    [
        MOPBT(population=4),
        MOPBT(population=4, start="iid"),
        RandomSearch(population=4),
        MOASHA(trials=5),
        mopbt.NSGA2(population=4, trainings=8),
    ],
    ids=str,
)
def test_the_first_trials_take_the_given_configurations(tmp_path, algorithm):
    task = ToyTask(steps=4)
    space = problem_of(task).space
    initial = [space.decode((7, 1)), space.decode((2, 9))]
    options = {"algorithm": algorithm, **QUIET}
    plain = mopbt.run(task, out=tmp_path / "plain", **options)
    given = mopbt.run(task, out=tmp_path / "given", initial=initial, **options)
    first = {p.trial: dict(p.hp) for p in given.points() if p.step == 2}
    proposed = {p.trial: dict(p.hp) for p in plain.points() if p.step == 2}
    assert [first[0], first[1]] == initial
    assert {t: first[t] for t in (2, 3)} == {t: proposed[t] for t in (2, 3)}
    recorded = read_run_config(tmp_path / "given").problem
    assert [space.decode(config) for config in recorded.initial] == initial
    with pytest.raises(RunMismatch, match="initial is not set, it was"):
        mopbt.run(task, out=tmp_path / "given", **options)
    assert mopbt.run(task, out=tmp_path / "given", initial=initial, **options).outcome == "complete"


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ("x", r"`initial` must be a list of hyperparameters by name.*got 'x'"),
        ([3], r"`initial\[0\]` must map names to values, got 3"),
        ([{"speed": 1}], r"`initial\[0\]`"),
    ],
)
def test_wrong_configurations_are_errors_before_anything_is_written(tmp_path, initial, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mopbt.run(ToyTask(), out=tmp_path / "run", initial=initial, population=4, **QUIET)
    assert not (tmp_path / "run").exists()


def test_more_configurations_than_trials_are_an_error(tmp_path):
    space = problem_of(ToyTask()).space
    initial = [space.decode((i, i)) for i in range(5)]
    with pytest.raises(ValueError, match="at most as many .* trials, 4, got 5"):
        mopbt.run(ToyTask(), out=tmp_path / "run", initial=initial, population=4, **QUIET)
    assert with_initial(problem_of(ToyTask()), initial).initial == tuple((i, i) for i in range(5))


def test_both_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hp = problem_of(ToyTask()).space.decode((7, 1))
    (tmp_path / "initial.json").write_text(json.dumps([hp]))
    start = "run toy --population 4 --out run --engine local --quiet --initial initial.json"
    assert main(start.split(), monkeypatch) == 0
    steps = read_run_config(tmp_path / "run").problem.steps
    assert main(f"resume run --engine local --quiet --steps {steps + 2}".split(), monkeypatch) == 0
    results = Results.open(tmp_path / "run")
    assert results.done
    assert max(point.step for point in results.points()) == steps + 2
    assert dict(results.point(0).hp) == hp
    capsys.readouterr()
    members = ["resume", "run", "--engine", "local", "--quiet", "--population", "2"]
    assert main(members, monkeypatch) == 2
    assert "`population` must be a whole number of at least 4" in capsys.readouterr().err
    assert main([*members[:-1], "5"], monkeypatch) == 0
    assert {point.trial for point in Results.open(tmp_path / "run").points()} == set(range(5))
    (tmp_path / "initial.json").write_text("[")
    wrong = ["run", "toy", "--out", "other", "--quiet", "--initial", "initial.json"]
    assert main(wrong, monkeypatch) == 2
    assert "must be a JSON file with a list of configurations" in capsys.readouterr().err


def test_a_run_extended_before_all_members_started_resumes_like_an_unbroken_one(tmp_path):
    options = {"algorithm": MOPBT(population=4), "engine": "local", "progress": False}
    task = ToyTask(steps=6, interval=2)
    mopbt.run(task, out=tmp_path / "broken", budget=Budget(jobs=1), **options)
    for jobs in (18, None):
        budget = None if jobs is None else Budget(jobs=jobs)
        mopbt.run(task, out=tmp_path / "broken", extend={"steps": 12}, budget=budget, **options)
    mopbt.run(task, out=tmp_path / "whole", extend={"steps": 12}, **options)
    jobs = [mopbt.Results.open(tmp_path / name).history.jobs for name in ("broken", "whole")]
    assert [jobs[0][i] for i in range(24)] == [jobs[1][i] for i in range(24)]


@pytest.mark.parametrize(
    "algorithm", [MOPBT(population=4, asynchronous=True), RandomSearch(population=4)]
)
def test_members_that_are_added_before_all_have_started_change_no_decision(tmp_path, algorithm):
    options = {"algorithm": algorithm, "engine": "local", "progress": False}
    task = ToyTask(steps=6, interval=2)
    for name, stops in (("whole", ()), ("broken", (2, 5, 9))):
        mopbt.run(task, out=tmp_path / name, budget=Budget(jobs=1), **options)
        for jobs in (*stops, None):
            budget = Budget(jobs=jobs)
            members = {"population": 6}
            mopbt.run(task, out=tmp_path / name, extend=members, budget=budget, **options)
    whole, broken = (mopbt.Results.open(tmp_path / n).history for n in ("whole", "broken"))
    assert [broken.jobs[i] for i in range(18)] == [whole.jobs[i] for i in range(18)]
