"""Reading, checking and planning an experiment."""

import math
import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compare.helpers import EXPERIMENTS, GOOD, ONE_RUN, TESTS, by_run, experiment, task
from lanes import slow_except
from mopbt.algorithms import MOPBT, NSGA2, ParEGO, RandomSearch
from mopbt.compare import (
    AlgorithmEntry,
    Comparison,
    Experiment,
    PlannedRun,
    compare,
    recompute,
)
from mopbt.compare.report import FIGURES, write_report
from mopbt.compare.worker import check_algorithms, task_at_scale
from mopbt.errors import (
    RunMismatch,
    StoreError,
)
from mopbt.problem import make_problem
from mopbt.registry import registered
from mopbt.tasks import registry as datasets

WRONG = [
    (
        "seeds = 2",
        "seed = 2",
        "an experiment has no 'seed'; it has name, tasks, algorithms, about, seeds, workers, cost",
    ),
    ('name = "good"', "", "an experiment also needs `name`"),
    (
        'name = "good"',
        "name = 3",
        "`name` must be a string with a letter from a to z or a digit, at most 200 characters",
    ),
    ('name = "good"', 'name = "τ"', "a directory is named after it, got 'τ'"),
    ('name = "good"', 'name = "../up"', "a directory is named after it, got '../up'"),
    (
        "seeds = 2",
        "seeds = 0",
        "`seeds` must be a whole number of at least 1 or a list of different whole numbers, got 0",
    ),
    ("seeds = 2", "seeds = [[1]]", "`seeds` must be a whole number of at least 0, got [1]"),
    ("seeds = 2", 'seeds = 2\nfigures = ["pie"]', "`figures` must be one of 'progress', 'fronts'"),
    (
        "[algorithms]",
        "[scales.small]\nalgorithms = 3\n[algorithms]",
        "`algorithms of small` must be a list of strings, got 3",
    ),
    (
        "[algorithms]",
        '[scales.small]\nalgorithms = "MO-PBT"\n[algorithms]',
        "must be a list of strings, got 'MO-PBT'",
    ),
    (
        '"MO-ASHA" =',
        f'"{"long " * 50}" =',
        "must differ in letters from a to z and digits, and have at most 200 of them",
    ),
    (
        "seeds = 2",
        "seeds = [1, 1]",
        "whole number of at least 1 or a list of different whole numbers, got [1, 1]",
    ),
    ("seeds = 2", "seeds = [-1]", "`seeds` must be a whole number of at least 0, got -1"),
    (
        "seeds = 2",
        'seeds = "two"',
        "whole number of at least 1 or a list of different whole numbers, got 'two'",
    ),
    ("seeds = 2", "workers = 0", "`workers` must be a whole number of at least 1, got 0"),
    (
        "seeds = 2",
        "cost = 0",
        "at least 0.0001 and with at most six decimals, or 'measured', got 0",
    ),
    ("seeds = 2", 'cost = "dear"', "with at most six decimals, or 'measured', got 'dear'"),
    ("seeds = 2", "cost = 0.00001", "`cost` must be a number of seconds, at least 0.0001"),
    ("seeds = 2", "cost = 0.1234567", "with at most six decimals, or 'measured', got 0.1234567"),
    ("seeds = 2", "cost = inf", "or 'measured', got inf"),
    (
        "seeds = 2",
        "cost = true",
        "at least 0.0001 and with at most six decimals, or 'measured', got True",
    ),
    (
        "seeds = 2",
        'engine = "pool"',
        "`engine` must be one of 'auto', 'local', 'vectorized', got 'pool'",
    ),
    ("seeds = 2", "keep_models = 1", "`keep_models` must be one of True, False, got 1"),
    ("seeds = 2", 'figures = "final"', "`figures` must be a list of strings, got 'final'"),
    ('["toy", "annealing"]', "[]", "`tasks` must be a list of strings, at least one, got []"),
    (
        '["toy", "annealing"]',
        '["toy", "Toy!"]',
        "`tasks` must differ in letters from a to z and digits, and have",
    ),
    (
        '"MO-ASHA" =',
        '"mo-pbt" =',
        "`algorithms` must differ in letters from a to z and digits, and have",
    ),
    (
        'time_of = "MO-PBT"',
        'time_of = "PBT"',
        "`time_of` must be one of 'MO-PBT', 'MO-ASHA', got 'PBT'",
    ),
    (
        'name = "mo-asha"',
        'name = "asha"',
        "algorithm 'MO-ASHA': `algorithm` must be one of mo-pbt, random-search",
    ),
    (
        'name = "mo-asha"',
        'kind = "x"',
        "algorithm 'MO-ASHA' must be a table with a name, such as { name = \"mo-pbt\" }",
    ),
    (
        'name = "mo-asha"',
        'name = "mo-asha", tau = 1',
        "mo-asha has no option 'tau'; it has eta, grace, kind, scale",
    ),
    (
        'name = "mo-asha"',
        'name = "mo-asha", tau = 1',
        "an entry may also have by_task, constraints, seed_offset, seeds, tasks, time_of",
    ),
    (
        'name = "mo-asha"',
        'name = "mo-asha", eta = 1',
        "algorithm 'MO-ASHA': `eta` must be a whole number of at least 2, got 1",
    ),
    (
        'name = "mo-asha"',
        'name = "mo-asha", tasks = ["adult"]',
        "`tasks of MO-ASHA` must be one of 'toy', 'annealing'",
    ),
    (
        'name = "mo-asha"',
        'name = "mo-asha", seed_offset = -1',
        "`seed_offset` must be a whole number of at least 0, got -1",
    ),
    (
        'name = "mo-asha"',
        'name = "mo-asha", constraints = ["near"]',
        "a constraint must read like 'accuracy >= 0.7'",
    ),
    (
        "[algorithms]",
        "[scales.small]\nseed = 1\n[algorithms]",
        "the scale 'small' has no 'seed'; it has seeds, workers",
    ),
    (
        "[algorithms]",
        "[scales.small]\nseeds = 0\n[algorithms]",
        "`seeds` must be a whole number of at least 1",
    ),
    (
        "[algorithms]",
        '[scales.small]\nalgorithms = ["PBT"]\n[algorithms]',
        "`algorithms of small` must be one of 'MO-PBT'",
    ),
    (
        '"MO-ASHA" =',
        '"MO\\nASHA" =',
        "`algorithms` must have labels of one line and printable characters, got 'MO\\nASHA'",
    ),
    ("name =", "name", "is not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_errors_in_a_file_say_what_is_allowed(tmp_path, old, new, message):
    assert old in GOOD
    (tmp_path / "wrong.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError) as raised:
        Experiment.read(tmp_path / "wrong.toml")
    assert message in str(raised.value)
    assert "wrong.toml" in str(raised.value)


IMPOSSIBLE = [
    ('"toy"', '"nosuch"', "TASK must be one of"),
    (
        'time_of = "MO-PBT"\n',
        "",
        "is run on toy ('MO-PBT'), got None",
    ),
    (
        'time_of = "MO-PBT"',
        'time_of = "MO-ASHA"',
        "'MO-ASHA' does not end by itself: `time_of` must name an algorithm that does",
    ),
    (
        'name = "mo-pbt"',
        'name = "mo-pbt", tasks = ["toy"]',
        "is run on annealing (there is none), got 'MO-PBT'",
    ),
    (
        'name = "mo-pbt"',
        'name = "mo-pbt", time_of = "MO-PBT"',
        "'MO-PBT' ends by itself; remove its `time_of`",
    ),
    (
        'name = "mo-asha"',
        'name = "pbt", objective = 2',
        "'MO-ASHA' on toy: `objective` must be one of 'near', 'far' or",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), slow_except(IMPOSSIBLE[:2], IMPOSSIBLE))
def test_an_impossible_experiment_is_refused_before_any_run(tmp_path, old, new, message):
    assert old in GOOD
    (tmp_path / "wrong.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError) as raised:
        compare(tmp_path / "wrong.toml", out=tmp_path / "out", progress=False)
    assert message in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(
        ValueError, match="there is no file .*nosuch.toml; pass the file of an experiment"
    ):
        Experiment.read(tmp_path / "nosuch.toml")


def test_an_experiment_is_the_same_after_writing_and_reading(place, tmp_path):
    whole = experiment(
        place,
        "short",
        about="ü",
        scales={"small": {"seeds": 1, "workers": 2, "algorithms": ["MO-PBT"]}},
    )
    (tmp_path / "whole.toml").write_text(whole.to_toml())
    read = Experiment.read(tmp_path / "whole.toml")
    assert read == whole
    assert read.to_toml() == (tmp_path / "whole.toml").read_text()
    assert (
        read.at("small").seeds,
        read.at("small").workers,
        list(read.at("small").algorithms),
    ) == ((0,), 2, ["MO-PBT"])
    assert read.at(None) == read.at("paper") == read


def test_an_experiment_is_parsed_once(small, place, tmp_path, monkeypatch):
    shutil.copytree(small[1], tmp_path / "out")
    text = experiment(place, "short", "Mixed", about="parsed once").to_toml()
    (tmp_path / "small.toml").write_text(text)
    (tmp_path / "out" / "experiment.toml").write_text(text)
    parsed = []

    def loads(text):
        parsed.append(text)
        return tomllib_loads(text)

    tomllib_loads = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", loads)
    assert not compare(tmp_path / "small.toml", out=tmp_path / "out", progress=False).missing
    assert parsed.count(text) == 1


def test_an_experiment_that_changed_since_it_was_read_is_written_with_its_changes(place, tmp_path):
    (tmp_path / "whole.toml").write_text(experiment(place, "short").to_toml())
    fewer = replace(Experiment.read(tmp_path / "whole.toml"), seeds=(1,))
    (tmp_path / "fewer.toml").write_text(fewer.to_toml())
    assert Experiment.read(tmp_path / "fewer.toml") == fewer


def test_the_papers_scale_is_the_default(place, tmp_path):
    one = experiment(place, "short", **ONE_RUN)
    compare(one, out=tmp_path, jobs=1, progress=False)
    assert compare(one, out=tmp_path, scale="paper", progress=False).runs
    assert recompute(one, out=tmp_path, scale="paper").runs


@pytest.mark.slow
def test_a_scale_of_the_experiment_alone_leaves_tasks_as_they_are(place, tmp_path):
    """A task of a user's file has one size, and must run in any scale of the experiment."""
    quick = experiment(place, "quick", scales={"quick": {"seeds": 1}}, **ONE_RUN | {"seeds": 2})
    done = compare(quick, out=tmp_path / "quick", scale="quick", jobs=1, progress=False)
    assert len(done.runs) == 1
    with pytest.raises(
        ValueError,
        match=r"`scale` must be one of 'paper', 'quick', or left out, got 'quik'; .*'quick'",
    ):
        compare(quick, out=tmp_path / "quik", scale="quik", jobs=1, progress=False)
    with pytest.raises(RunMismatch, match="another scale: it is None, it was quick"):
        recompute(quick, out=tmp_path / "quick", scale="paper")
    assert task_at_scale(quick, "adult-fairness", "quick")[0] == "adult-fairness"
    assert task_at_scale(quick, "adult-fairness", "small")[0] == "adult-fairness@small"
    assert task_at_scale(quick, "adult-fairness@smoke", "small")[0] == "adult-fairness@smoke"


def test_runs_that_give_others_their_time_come_first_on_each_task():
    algorithms = {
        "C": {"name": "mo-asha"},
        "B": {"name": "random-search", "tasks": ["two"]},
        "A": {"name": "mo-pbt"},
    }
    runs = Experiment(
        name="x", tasks=("one", "two"), seeds=(4,), time_of="A", algorithms=algorithms
    ).plan()
    assert [(run.task, run.algorithm) for run in runs] == [
        ("one", "A"),
        ("one", "C"),
        ("two", "A"),
        ("two", "C"),
        ("two", "B"),
    ]
    assert runs[0].directory == Path("runs", "one", "a", "4")


def test_the_population_of_a_scale_is_the_default_of_all_algorithms():
    def made(**options):
        return AlgorithmEntry(options=options).algorithm("toy", 16)

    assert made(name="mo-pbt") == MOPBT(population=16)
    assert made(name="mo-pbt", population=64) == MOPBT(population=64)
    assert made(name="random-search") == RandomSearch(population=16)
    assert made(name="nsga2") == NSGA2(population=8, trainings=16)
    assert made(name="parego") == ParEGO(trainings=16)
    assert task_at_scale(Experiment.read(EXPERIMENTS[0]), "toy", "small") == ("toy", 32)
    assert task_at_scale(Experiment.read(EXPERIMENTS[0]), "cifar10-robustness", "small") == (
        "cifar10-robustness@small",
        16,
    )
    assert task_at_scale(Experiment.read(EXPERIMENTS[0]), "cifar10-robustness@smoke", "small") == (
        "cifar10-robustness@smoke",
        4,
    )
    assert task_at_scale(Experiment.read(EXPERIMENTS[0]), "cifar10-robustness", None) == (
        "cifar10-robustness",
        32,
    )


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
@pytest.mark.parametrize("scale", [None, "small", "smoke"])
def test_the_experiments_of_the_paper_can_be_run(file, scale):
    read = Experiment.read(file)
    assert read.name == file.stem
    assert read.about
    assert set(read.figures) <= set(FIGURES)
    assert scale is None or scale in read.scales
    here = read.at(scale)
    for name in here.tasks:
        family = registered()[name].load()
        family = family() if isinstance(family, type) else family
        problem = make_problem(
            name=name,
            space=family.space,
            objectives=family.objectives,
            constraints=(),
            interval=1,
            steps=50,
        )
        check_algorithms(here, name, problem, 32)


def test_the_rows_of_the_papers_tables_are_there():
    rows = [
        name
        for kind in ("tabular", "images")
        for name in Experiment.read(TESTS.parent / f"experiments/tables-5-7-{kind}.toml").tasks
    ]
    assert len(rows) == 9
    assert {name.partition("-")[2] for name in rows} == {
        "precision-recall",
        "fairness",
        "fairness-3",
        "robustness",
    }


SHARED = TESTS.parent.parent / "shared" / "data"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Return one directory for all experiments, because they have runs in common."""
    with pytest.MonkeyPatch.context() as patch:
        if SHARED.is_dir() and "MOPBT_DATA" not in os.environ:
            patch.setenv("MOPBT_DATA", str(SHARED))
        yield tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_every_experiment_runs_in_its_smallest_size(file, smoke):
    pytest.importorskip("matplotlib")
    sets = {
        family.dataset
        for name in Experiment.read(file).tasks
        if hasattr(family := registered()[name].load(), "dataset")
    }
    if absent := sorted(name for name in sets if datasets.state(name) == "missing"):
        pytest.skip(f"the data of {', '.join(absent)} are not here")
    out = smoke / file.stem
    comparison = compare(file, out=out, scale="smoke", jobs=1, progress=False, reuse=[smoke])
    assert not comparison.missing
    assert not comparison.failures
    assert {run.algorithm for run in comparison.runs} == set(
        Experiment.read(file).at("smoke").algorithms
    )
    written = write_report(comparison, out)
    assert {path.suffix for path in written} >= {".md", ".tex", ".csv", ".png"}


def test_a_directory_belongs_to_one_experiment_in_one_scale(small, place, tmp_path):
    _, out = small
    usual = experiment(place, "short", "Mixed")
    other = replace(
        usual,
        seeds=(0, 5),
        algorithms=usual.algorithms
        | {"MO-ASHA": {"name": "mo-asha", "eta": 2}, "X": {"name": "pbt"}},
    )
    with pytest.raises(RunMismatch) as raised:
        compare(other, out=out, progress=False)
    for piece in (
        "seeds is [0, 5], it was [0, 1]",
        "algorithm 'MO-ASHA' is {'name': 'mo-asha', 'eta': 2}, it was {'name': 'mo-asha'}",
        "algorithm 'X' is {'name': 'pbt'}, it was 'not there'",
        "use the same experiment, or another directory",
    ):
        assert piece in str(raised.value)
    with pytest.raises(RunMismatch, match="seeds is"):
        recompute(other, out=out)
    with pytest.raises(RunMismatch, match="another scale: it is small, it was None"):
        compare(
            replace(usual, scales={"small": {"seeds": 2}}), out=out, scale="small", progress=False
        )
    (tmp_path / "note").touch()
    with pytest.raises(RunMismatch, match="is not a comparison and not empty"):
        compare(usual, out=tmp_path, progress=False)
    with pytest.raises(StoreError, match="is not a comparison: it has no experiment.toml"):
        Comparison.open(tmp_path)
    assert (
        compare(
            replace(usual, about="otherwise the same", figures=("final",)), out=out, progress=False
        ).missing
        == ()
    )


def test_constraints_of_an_entry_are_added_to_those_of_the_task(place, tmp_path):
    own = {"name": "mo-pbt", "population": 4}
    algorithms = {"free": own, "bound": own | {"constraints": ["up >= 100"]}}
    bound = experiment(place, "Mixed", seeds=1, time_of=None, algorithms=algorithms)
    runs = by_run(compare(bound, out=tmp_path / "out", jobs=1, progress=False))
    free, bound = (runs[PlannedRun(task(place, "Mixed"), label, 0)] for label in algorithms)
    finite = np.isfinite(bound.objectives[:, 0])
    np.testing.assert_allclose(bound.violations[finite], (100 - bound.objectives[finite, 0]) / 100)
    assert set(free.violations.tolist()) <= {0.0, math.inf}


@pytest.mark.parametrize(("name", "seeds"), [("tables-5-7-tabular", 10), ("tables-5-7-images", 5)])
def test_the_tables_have_the_papers_seeds(name, seeds):
    file = next(file for file in EXPERIMENTS if file.stem == name)
    assert len(Experiment.read(file).seeds) == seeds


def test_an_algorithm_may_have_fewer_seeds_and_other_options_on_a_task():
    asha = {"name": "mo-asha", "seeds": 2, "by_task": {"annealing": {"grace": 3}}}
    algorithms = {"MO-PBT": {"name": "mo-pbt"}, "MO-ASHA": asha}
    planned = Experiment(
        name="some", tasks=("toy", "annealing"), algorithms=algorithms, seeds=(7, 8, 9)
    )
    seeds = [run.seed for run in planned.plan() if (run.task, run.algorithm) == ("toy", "MO-ASHA")]
    assert seeds == [7, 8]
    assert len(planned.plan()) == 2 * (3 + 2)
    entry = planned.entries["MO-ASHA"]
    assert (entry.algorithm("toy").grace, entry.algorithm("annealing").grace) == (1, 3)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"seeds": 0}, "`seeds` must be a whole number of at least 1, got 0"),
        ({"by_task": 3}, "`by_task` must have a table of options for each task.*got 3"),
        ({"by_task": {"toy": {"grade": 3}}}, "'grade'"),
        ({"by_task": {"toys": {"grace": 3}}}, "'toys'"),
    ],
)
def test_wrong_options_of_single_tasks_and_seeds_are_named(own, message):
    with pytest.raises(ValueError, match=message):
        Experiment(name="some", tasks=("toy",), algorithms={"MO-ASHA": {"name": "mo-asha", **own}})
