"""Metrics on parts of the validation rows: drawn for each interval, or folds."""

import pytest
import torch
from tests.torch.nets import make_task, rows, scores

import mopbt
from mopbt.engines.local import LocalEngine
from mopbt.torch.rows import Parts

HP = {"lr": 0.1}
VALIDATION = rows(60, seed=1)


def draw_fresh_rows(n, share, updates):
    return Parts(fresh_share=share).of(n, updates)["fresh/"]


def trained(task, steps=1):
    member = task.init(0)
    for step in range(steps):
        member = task.train(member, HP, step, step + 1, seed=step)
    return member


def test_metrics_on_fresh_rows_are_those_of_the_drawn_rows():
    task = make_task(validation=VALIDATION, fresh_rows=0.5)
    member = trained(task)
    measured = task.evaluate(member)
    plain = make_task(validation=VALIDATION).evaluate(member)
    assert {name: measured[name] for name in plain} == plain
    drawn = draw_fresh_rows(60, 0.5, member["updates"])
    assert len(set(drawn.tolist())) == 30
    outputs = task.model()
    outputs.load_state_dict(member["model"])
    with torch.no_grad():
        expected = scores(outputs(VALIDATION[0])[drawn], VALIDATION[1][drawn])
    for name, value in expected.items():
        assert float(measured[f"fresh/{name}"]) == pytest.approx(float(value), abs=1e-6)


def test_members_of_a_generation_share_their_rows_and_the_next_generation_has_others():
    assert draw_fresh_rows(60, 0.5, 8).tolist() == draw_fresh_rows(60, 0.5, 8).tolist()
    assert set(draw_fresh_rows(60, 0.5, 8).tolist()) != set(draw_fresh_rows(60, 0.5, 16).tolist())


def test_stacked_members_have_the_metrics_of_single_ones():
    task = make_task(validation=VALIDATION, fresh_rows=0.25)
    members = [trained(task), trained(task, steps=2)]
    assert [dict(m) for m in task.evaluate_many(members)] == [
        dict(task.evaluate(m)) for m in members
    ]


def test_a_run_decides_by_fresh_rows_and_its_front_is_measured_on_all(tmp_path):
    task = make_task(validation=VALIDATION, steps=4)
    results = mopbt.run(
        task,
        algorithm=mopbt.MOPBT(population=4, fresh_rows=0.5, ema=0.9),
        engine=LocalEngine(),
        out=tmp_path,
        progress=False,
    )
    for point in results.front():
        assert {f"fresh/{name}" for name in task.objectives} <= point.scores.keys()
        assert "trained" in point.load()
    # A replay trains with the same options.
    assert not any(results.replay(results.front()[0]).differences.values())


def test_what_a_task_was_given_explicitly_stays():
    task = make_task(validation=VALIDATION, ema=0.7)
    adapted = task.adapted(ema=0.9, fresh_rows=0.5)
    assert adapted.ema == 0.7
    assert adapted.fresh_rows == 0.5
    own = make_task(metrics=None, evaluate_model=lambda model: {"recall": 1.0, "specificity": 0.0})
    assert own.adapted(ema=0.9, fresh_rows=0.5).fresh_rows is None


@pytest.mark.parametrize("share", [0, 1.0, 0.001, "half", True])
def test_a_share_that_leaves_no_rows_is_an_error(share):
    with pytest.raises(ValueError, match="`fresh_rows` must be a share") as caught:
        make_task(validation=VALIDATION, fresh_rows=share)
    assert repr(share) in str(caught.value)


def test_folds_divide_the_rows_and_have_their_metrics():
    task = make_task(validation=VALIDATION, folds=7)
    member = trained(task)
    measured = task.evaluate(member)
    parts = Parts(folds=7).of(60, member["updates"])
    assert sorted(row for fold in parts.values() for row in fold.tolist()) == list(range(60))
    assert {len(fold) for fold in parts.values()} == {8, 9}
    network = task.model()
    network.load_state_dict(member["model"])
    for prefix, fold in parts.items():
        with torch.no_grad():
            expected = scores(network(VALIDATION[0])[fold], VALIDATION[1][fold])
        assert float(measured[f"{prefix}loss"]) == pytest.approx(float(expected["loss"]), abs=1e-6)


@pytest.mark.parametrize("folds", [1, 31, 2.0, True])
def test_a_wrong_number_of_folds_is_an_error(folds):
    with pytest.raises(ValueError, match="`folds` must be a number of parts") as caught:
        make_task(validation=VALIDATION, folds=folds)
    assert repr(folds) in str(caught.value)
