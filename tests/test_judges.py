"""The script that lets others judge our algorithms: arithmetic, problems, resumption."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import mopbt
from mopbt.algorithms import NSGA2
from mopbt.space import Float, Space

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _importable():
    """Import the script as the command line does."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


SPACE = Space({f"x{i}": Float(-5, 5) for i in range(3)})


def two_spheres(x):
    """Return two objectives to minimize."""
    return sum(v**2 for v in x), sum((v - 1) ** 2 for v in x)


def test_our_proposals_are_called_as_a_run_calls_them():
    from judging.samplers import ours

    from mopbt.proposals.nsga2 import NSGA2Proposal

    asked = []

    def train(member):
        model = {"steps": 0}
        member.track(model=model)
        point = [member.hp[name] for name in SPACE]
        for _ in member.steps():
            model["steps"] += 1
            first, second = two_spheres(point)
            asked.append(point)
            member.report(first=first, second=second)

    mopbt.run(
        train,
        out=None,
        algorithm=NSGA2(population=4, trainings=12),
        engine="local",
        progress=False,
        space=SPACE,
        objectives={"first": "min", "second": "min"},
        steps=1,
        seed=5,
    )
    seen = []

    def evaluate(x):
        seen.append(x)
        return two_spheres(x)

    ours(NSGA2Proposal(population=4), first=4, batch=4)(SPACE, evaluate, 12, 5)
    assert seen == asked
    assert len(seen) == 12


@pytest.mark.slow
def test_every_sampler_spends_the_same_budget_inside_the_box():
    pytest.importorskip("pymoo")
    pytest.importorskip("optuna")
    from judging.samplers import SAMPLERS

    models = {"qNEHVI", "ParEGO", "BoTorch qLogNEHVI", "Optuna GP"}
    for name in set(SAMPLERS) - models:
        seen = []

        def evaluate(x, seen=seen):
            seen.append(list(x))
            return two_spheres(x)

        SAMPLERS[name](SPACE, evaluate, 50, 1)
        assert len(seen) == 50, name
        assert np.abs(seen).max() <= 5, name
        assert len({tuple(x) for x in seen}) > 40, name


def test_targets_are_those_of_coco_and_a_better_front_reaches_more():
    from judging.functions import TARGETS, hits_of

    assert len(TARGETS) == 58
    assert sorted(TARGETS, reverse=True) == TARGETS
    assert TARGETS[0] == 1
    assert TARGETS[-1] == pytest.approx(-1e-4)
    assert hits_of([(3, 0.5)]) == [3] * 4
    assert hits_of([(3, 1.5)]) == []
    assert hits_of([(1, 0.9), (9, -1.0)]) == [1] + [9] * 57


def test_coco_judges_a_run():
    pytest.importorskip("cocoex")
    from judging import functions

    key = {"part": "nsga2", "function": 1, "instance": 1, "budget": 60}
    found = {a: functions.measure(key | {"algorithm": a}) for a in ("random search", "MO-TPE")}
    for measured in found.values():
        assert measured["hits"] == sorted(measured["hits"])
        assert 0 < measured["gap"] <= functions.TARGETS[len(measured["hits"]) - 1]
    # The gap is that of the log, and the better algorithm has the smaller one.
    assert found["MO-TPE"]["gap"] < found["random search"]["gap"]


def test_curves_keep_or_change_their_order():
    from judging.curves import STEPS, Curves

    fast = [0.9, 0.5, 0.5, 0.5]
    slow = [0.2, 0.5, 0.5, 0.5]
    crossing = Curves("crossing", 0)
    assert crossing.true_errors(fast, 2) < crossing.true_errors(slow, 2)
    assert crossing.true_errors(fast, 1000) > crossing.true_errors(slow, 1000)
    parallel = Curves("parallel", 0)
    differences = [
        parallel.true_errors(fast, t) - parallel.true_errors(slow, t) for t in (1, STEPS)
    ]
    assert np.prod(differences) > 0


def test_rivals_of_successive_halving_spend_the_same_steps():
    pytest.importorskip("optuna")
    from judging.curves import SINGLE, Curves, _run, _run_optuna

    for algorithm in SINGLE.values():
        curves = Curves("noisy", 0)
        execute = _run_optuna if isinstance(algorithm, str) else _run
        execute(curves, algorithm, 60, 0)
        assert len(curves.log) == 60, algorithm


def test_a_verdict_needs_an_interval_without_zero():
    from judging.page import compare

    base = {seed: float(seed) for seed in range(8)}
    better = {seed: value + 1 + 0.1 * seed for seed, value in base.items()}
    mixed = {seed: value + (-1) ** seed for seed, value in base.items()}
    values = {"base": base, "better": better, "mixed": mixed}
    assert compare("better", "base", values).verdict == "ahead"
    assert compare("base", "better", values).verdict == "behind"
    assert compare("base", "better", values, smaller_is_better=True).verdict == "ahead"
    assert compare("mixed", "base", values).verdict == "undecided"
    # Means and gains are of the same pairs, and few pairs have no interval.
    few = compare("a", "b", {"a": {0: 2.0, 1: 9.0}, "b": {0: 1.0, 2: 5.0}})
    assert (few.ours, few.theirs, few.gain, few.pairs) == (2.0, 1.0, 1.0, 1)
    assert few.verdict == "undecided"
    assert math.isnan(few.lower)


def test_problems_count_when_all_algorithms_were_measured():
    from judging.page import complete

    lines = [{"algorithm": a, "function": f, "instance": 1} for a, f in ("a1", "b1", "a2")]
    assert complete(lines, ("a", "b")) == lines[:2]


def test_instances_of_a_function_are_one_observation():
    from judging.page import ecdf, shares_by_function

    lines = [
        {"algorithm": "a", "function": 1, "hits": [5] * 29, "budget": 100},
        {"algorithm": "a", "function": 1, "hits": [10] * 58, "budget": 100},
    ]
    assert shares_by_function(lines, "a") == {1: 75.0}
    x, y = ecdf(lines, "a")
    assert (x[0], x[-1], y[-1]) == (1.0, 20.0, 0.75)


def test_wrong_arguments_are_errors(tmp_path, capsys):
    import judges

    with pytest.raises(ValueError, match="`algorithm` must be one of"):
        judges.read_algorithm("mopbt")
    with pytest.raises(SystemExit):
        judges.main(["cocoo", "--out", str(tmp_path)])
    assert "must be one of nsga2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        judges.main(["--quick"])
    assert "--quick needs --out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rerun_resumes_and_ignores_an_incomplete_line(tmp_path):
    pytest.importorskip("cocoex")
    pytest.importorskip("pymoo")
    import judges

    arguments = ["nsga2", "--quick", "--out", str(tmp_path), "--docs", str(tmp_path)]
    judges.main(arguments)
    file = tmp_path / "nsga2.jsonl"
    lines = file.read_text().splitlines()
    assert len(lines) == 10
    file.write_text("\n".join(lines[:9]) + "\n" + lines[9][:40])
    judges.main(arguments)
    again = file.read_text().splitlines()
    assert again[:9] == lines[:9]
    first, second = json.loads(lines[9]), json.loads(again[9])
    assert first | {"cpu": 0} == second | {"cpu": 0}
    page = (tmp_path / "judges.md").read_text()
    assert "| NSGA-II |" in page
    assert (tmp_path / "judges.png").exists()


@pytest.mark.slow
def test_gaussian_processes_spend_the_same_budget():
    pytest.importorskip("botorch")
    from judging.samplers import SAMPLERS

    for name in ("qNEHVI", "ParEGO", "BoTorch qLogNEHVI", "Optuna GP"):
        seen = []

        def evaluate(x, seen=seen):
            seen.append(list(x))
            return two_spheres(x)

        SAMPLERS[name](SPACE, evaluate, 12, 1)
        assert len(seen) == 12, name
        assert np.abs(seen).max() <= 5, name
